"""Record held tasks that their worker does not name in its heartbeats, and since when."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, delete, exists, select

from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction, dialect
from zndraw_joblib.server.store.detail_tables import UnnamedTask
from zndraw_joblib.server.store.tables import Task, Worker
from zndraw_joblib.server.store.tasks.records import CHUNK, IS_HELD, Condition

tasks = Task.__table__
workers = Worker.__table__
unnamed = UnnamedTask.__table__

_IS_MARK = and_(unnamed.c.task_seq == tasks.c.seq, unnamed.c.attempt == tasks.c.attempt)
_HELD = (
    select(
        tasks.c.seq, tasks.c.id, tasks.c.status, tasks.c.worker_id, tasks.c.attempt, unnamed.c.unnamed_since
    )
    .select_from(tasks.outerjoin(unnamed, _IS_MARK))
    .where(IS_HELD, among(tasks.c.worker_id, bindparam("workers")))
    .limit(bindparam("limit"))
)


class HeldTask(NamedTuple):
    """A held task, and the time since which its worker's heartbeats have not named it."""

    seq: int
    id: UUID
    status: TaskStatus
    worker_id: UUID
    attempt: int
    unnamed_since: datetime | None


async def held_by(tx: Transaction, worker_ids: Sequence[UUID], limit: int) -> list[HeldTask]:
    """Return tasks that these workers hold, at most `limit`, without a lock."""
    rows = await tx.execute(_HELD, {"workers": padded(worker_ids), "limit": limit})
    return [HeldTask(seq, id_, TaskStatus(status), *rest) for seq, id_, status, *rest in rows]


async def mark(tx: Transaction, held: Iterable[HeldTask]) -> None:
    """Record that the heartbeats of their workers do not name these tasks from now on."""
    now = await tx.now()
    rows = [{"task_seq": task.seq, "attempt": task.attempt, "unnamed_since": now} for task in held]
    if rows:
        statement = dialect(tx).insert(unnamed)
        values = {name: statement.excluded[name] for name in ("attempt", "unnamed_since")}
        await tx.execute(statement.on_conflict_do_update(index_elements=["task_seq"], set_=values), rows)


async def unmark(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Delete the records of these tasks, because their workers name them again."""
    for start in range(0, len(ids), CHUNK):
        await _delete(tx, tasks.c.id.in_(padded(ids[start : start + CHUNK])))


async def unmark_held_by(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Delete the records of the tasks that these workers hold."""
    if worker_ids:
        await _delete(tx, and_(IS_HELD, tasks.c.worker_id.in_(padded(worker_ids))))


async def _delete(tx: Transaction, wanted: Condition) -> None:
    await tx.execute(delete(unnamed).where(unnamed.c.task_seq.in_(select(tasks.c.seq).where(wanted))))


def since(cutoff: datetime) -> Condition:
    """Match tasks that were last named before `cutoff`, by workers that have sent a heartbeat after it."""
    is_alive = exists().where(workers.c.id == tasks.c.worker_id, workers.c.last_heartbeat > cutoff)
    return and_(exists().where(_IS_MARK, unnamed.c.unnamed_since <= cutoff), is_alive)


async def forget_ended(tx: Transaction, cutoff: datetime) -> None:
    """Delete the records, older than `cutoff`, of attempts that have ended."""
    is_held = exists().where(_IS_MARK, IS_HELD)
    await tx.execute(delete(unnamed).where(unnamed.c.unnamed_since <= cutoff, ~is_held))
