"""Fail held tasks whose worker is removed, in one statement, without reading them first."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, bindparam, case, literal_column, or_, select

from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.room_events import is_watched
from zndraw_joblib.server.store.tables import Job, Task
from zndraw_joblib.server.store.tasks import counts, moving
from zndraw_joblib.server.store.tasks.counts import CountChanges
from zndraw_joblib.server.store.tasks.records import IS_HELD

tasks = Task.__table__
jobs = Job.__table__


class LostTask(NamedTuple):
    """A task that has failed because its worker was removed."""

    id: UUID
    job_id: UUID
    room_id: str
    created_at: datetime
    started_at: datetime | None
    worker_id: UUID
    completed_at: datetime


async def fail_held_by(tx: Transaction, worker_ids: Sequence[UUID], error: str, code: str) -> list[LostTask]:
    """Fail the tasks of these workers that the default policy does not retry. Return them, to `count` them.

    On PostgreSQL the other tasks of these workers are locked too: all in one order.
    """
    now = await tx.now()
    given = {"workers": padded(worker_ids), "now": now, "error": error, "code": code}
    statement = _FAIL_ON_SQLITE if tx.is_sqlite else _FAIL_ON_POSTGRESQL
    rows = (await tx.execute(statement, given)).all()
    if rows and not tx.is_sqlite:
        tx.record_watched(is_watched=any(row.is_watched for row in rows))
    found = [LostTask._make((*row[: len(_RETURNED)], now)) for row in rows]
    for task in found:
        tx.record_freed(task.room_id, None)  # their workers' claims end
    return found


async def count(tx: Transaction, lost: Sequence[LostTask], locked: Collection[UUID]) -> None:
    """Count tasks that have failed, after the jobs and the other tasks are locked: `locked` has the jobs."""
    kept = CountChanges()
    for task in lost:
        kept.fail_held(task.room_id, task.job_id)
    await counts.write(tx, kept, locked)


_IS_OF_WORKERS = and_(IS_HELD, among(tasks.c.worker_id, bindparam("workers")))
_HAS_ONE_ATTEMPT = or_(tasks.c.max_attempts.is_(None), tasks.c.max_attempts == literal_column("1"))
_HAS_NO_POLICY = select(jobs.c.id).where(jobs.c.id == tasks.c.job_id, jobs.c.policy.is_(None)).exists()
# A task that may be retried is read first, and gets a row in its history.
_RETRY_COST = 3


def cost_if_lost() -> ColumnElement[int]:
    """Return what it costs to recover a task, compared with one that fails without a retry."""
    return case((and_(_HAS_NO_POLICY, _HAS_ONE_ATTEMPT), 1), else_=_RETRY_COST)


_RETURNED = [tasks.c[name] for name in LostTask._fields if name != "completed_at"]
_FAILING = moving.failing(_IS_OF_WORKERS).returning(*_RETURNED)
_HELD = (
    select(tasks.c.seq, and_(_HAS_NO_POLICY, _HAS_ONE_ATTEMPT).label("has_failed"))
    .where(_IS_OF_WORKERS)
    .order_by(tasks.c.seq + literal_column("0"))
    .with_for_update()
    .cte("held")
)
_FAIL_ON_POSTGRESQL = _FAILING.where(tasks.c.seq == _HELD.c.seq, _HELD.c.has_failed).returning(
    is_watched(tasks.c.room_id).label("is_watched")
)
_FAIL_ON_SQLITE = _FAILING.where(_HAS_ONE_ATTEMPT, _HAS_NO_POLICY)
