"""Find tasks that lost their worker or exceeded a time limit or lease, and tasks that are due."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, delete, exists, func, null, or_, select

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.tables import Job, Task, UnnamedTask, Worker
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    IS_HELD,
    IS_PENDING,
    IS_SCHEDULED,
    Condition,
    TaskRecord,
    fetch_records,
    select_records,
)
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__
jobs = Job.__table__
workers = Worker.__table__

# `+ 0` and `coalesce` keep the planner off an index. Few tasks are held, but without statistics SQLite
# would scan all tasks in `seq` order or start from the jobs.
_BY_SEQ = tasks.c.seq + 0
_ROOM_OF_JOB = func.coalesce(jobs.c.room_id, "")
_HELD_BY = (
    select_records(bodies=False)
    .where(IS_HELD, among(tasks.c.worker_id, bindparam("workers")))
    .order_by(_BY_SEQ)
    .with_for_update(of=tasks)
)
# A held task that has not started is claimed. Comparing the status would select other indexes.
_UNDISPATCHED = and_(tasks.c.worker_id.is_(None), tasks.c.started_at.is_(None))
# Without a deadline a broker has confirmed the task: it may start, whether or not its job is paused.
_WAITS_FOR_RESUME = and_(jobs.c.paused, _UNDISPATCHED, tasks.c.deadline.is_not(None))


def held_by(worker_ids: Sequence[UUID]) -> Condition:
    """Match the tasks of these workers."""
    return tasks.c.worker_id.in_(padded(worker_ids))


def of_jobs(job_ids: Sequence[UUID]) -> Condition:
    """Match the tasks of these jobs."""
    return tasks.c.job_id.in_(padded(job_ids))


def stuck_internal(cutoff: datetime) -> Condition:
    """Match the tasks of internal jobs that started before `cutoff`, or were claimed or created before it.

    Tasks that cannot start because their job is paused do not match.
    """
    since = func.coalesce(tasks.c.started_at, tasks.c.claimed_at, tasks.c.created_at)
    return and_(_ROOM_OF_JOB == INTERNAL, since < cutoff, ~_WAITS_FOR_RESUME)


def paused_internal(now: datetime) -> Condition:
    """Match the tasks of paused internal jobs that have not started although their next dispatch is due."""
    return and_(_ROOM_OF_JOB == INTERNAL, _WAITS_FOR_RESUME, tasks.c.deadline <= now)


def overdue(now: datetime) -> Condition:
    """Match the tasks whose deadline to start or to end has passed.

    An internal task that has not started is dispatched again instead.
    """
    is_started_or_remote = or_(_ROOM_OF_JOB != INTERNAL, tasks.c.status == TaskStatus.RUNNING.value)
    return and_(tasks.c.deadline <= now, is_started_or_remote)


def abandoned() -> Condition:
    """Match the tasks whose worker does not exist. An internal task needs no worker."""
    worker = select(workers.c.id).where(workers.c.id == tasks.c.worker_id).exists()
    has_none = and_(tasks.c.worker_id.is_(None), _ROOM_OF_JOB != INTERNAL)
    return or_(has_none, and_(tasks.c.worker_id.is_not(None), ~worker))


async def held(
    tx: Transaction,
    wanted: Condition,
    *,
    limit: int | None = None,
    lock: bool = True,
    but_of: Collection[UUID] = (),
) -> list[TaskRecord]:
    """Return the held tasks that match, except those of the jobs `but_of`, without payload and result.

    With `lock` they are locked; a task that another transaction has locked is skipped.
    """
    statement = select_records(bodies=False).where(IS_HELD, wanted, *_not_of(but_of))
    statement = statement.order_by(_BY_SEQ).limit(limit)
    if lock:
        statement = statement.with_for_update(of=tasks, skip_locked=True)
    return await fetch_records(tx, statement)


async def lock_held_by(tx: Transaction, worker_ids: Sequence[UUID]) -> list[TaskRecord]:
    """Lock and return the tasks that these workers hold, without payload and result."""
    return await fetch_records(tx, _HELD_BY, workers=padded(worker_ids))


def _not_of(job_ids: Collection[UUID]) -> list[Condition]:
    return [~of_jobs(sorted(job_ids))] if job_ids else []


async def lock_due(
    tx: Transaction, now: datetime, limit: int, *, but_of: Collection[UUID] = ()
) -> list[TaskRecord]:
    """Lock scheduled tasks whose `run_at` has passed, the earliest first; skip locked ones.

    Those of the jobs `but_of` are left out.
    """
    statement = select_records(bodies=False).where(IS_SCHEDULED, tasks.c.run_at <= now, *_not_of(but_of))
    statement = statement.order_by(tasks.c.run_at).limit(limit)
    return await fetch_records(tx, statement.with_for_update(of=tasks, skip_locked=True))


async def next_due(tx: Transaction, after: datetime | None = None) -> datetime | None:
    """Return the earliest `run_at` of a scheduled task, or the earliest after a time."""
    earliest = select(tasks.c.run_at).where(IS_SCHEDULED).order_by(tasks.c.run_at).limit(1)
    if after is not None:
        earliest = earliest.where(tasks.c.run_at > after)
    earliest_at: datetime | None = (await tx.execute(earliest)).scalar_one_or_none()
    return earliest_at


async def expired(  # noqa: PLR0913 - the sweeper and the claims exclude different tasks
    tx: Transaction,
    now: datetime,
    limit: int,
    *,
    lock: bool = True,
    only: Sequence[UUID] = (),
    but: Sequence[int] = (),
    but_of: Collection[UUID] = (),
) -> list[TaskRecord]:
    """Return pending tasks whose `expires_at` has passed, the earliest first, locked if `lock`.

    `only` restricts them to the tasks of these jobs, `but` excludes tasks by their `seq`, and `but_of`
    by their job.
    """
    statement = select_records(bodies=False).where(IS_PENDING, tasks.c.expires_at <= now, *_not_of(but_of))
    if only:
        statement = statement.where(of_jobs(only))
    if but:
        statement = statement.where(tasks.c.seq.not_in(padded(but)))
    statement = statement.order_by(tasks.c.expires_at).limit(limit)
    if lock:
        statement = statement.with_for_update(of=tasks, skip_locked=True)
    return await fetch_records(tx, statement)


async def lock_due_dispatches(
    tx: Transaction, job_ids: Sequence[UUID], now: datetime, limit: int
) -> list[TaskRecord]:
    """Lock internal tasks that are due to be dispatched, by priority and age; skip locked ones."""
    known = func.coalesce(tasks.c.job_id, null()).in_(padded(job_ids))
    statement = select_records().where(IS_HELD, _UNDISPATCHED, known, tasks.c.deadline <= now)
    statement = statement.order_by(tasks.c.lane, _BY_SEQ).limit(limit)
    return await fetch_records(tx, statement.with_for_update(of=tasks, skip_locked=True))


async def lock_undispatched(tx: Transaction, ids: Sequence[UUID]) -> list[TaskRecord]:
    """Lock those of these internal tasks that no worker has started, without payload and result."""
    records: list[TaskRecord] = []
    for start in range(0, len(ids), CHUNK):
        chunk = tasks.c.id.in_(padded(ids[start : start + CHUNK]))
        statement = select_records(bodies=False).where(IS_HELD, _UNDISPATCHED, chunk).order_by(_BY_SEQ)
        records += await fetch_records(tx, statement.with_for_update(of=tasks))
    return records


# Record held tasks that their worker does not name in its heartbeats, and since when.

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


async def named_tasks_of(tx: Transaction, worker_ids: Sequence[UUID], limit: int) -> list[HeldTask]:
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
