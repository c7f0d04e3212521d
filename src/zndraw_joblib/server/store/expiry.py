"""Which tasks cannot stay as they are: whose worker, whose time or whose use is over; and their past."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, bindparam, func, null, or_, select

from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Attempt, Job, Task, Worker
from zndraw_joblib.server.store.tasks import (
    CHUNK,
    IS_HELD,
    IS_PENDING,
    IS_SCHEDULED,
    QUEUED,
    TaskRecord,
    fetch_records,
    select_records,
)

tasks = Task.__table__
attempts = Attempt.__table__
jobs = Job.__table__
workers = Worker.__table__

Wanted = ColumnElement[bool]
# Expressions that no index serves: few tasks are held, but without statistics SQLite would rather walk
# all tasks in their order, or start from the jobs.
_BY_ARRIVAL = tasks.c.seq + 0
_HELD_BY = (
    select_records(bodies=False)
    .where(IS_HELD, among(tasks.c.worker_id, bindparam("workers")))
    .order_by(_BY_ARRIVAL)
    .with_for_update(of=tasks)
)
_ROOM_OF_JOB = func.coalesce(jobs.c.room_id, "")


async def held(
    tx: Transaction, wanted: ColumnElement[bool], *, limit: int | None = None, lock: bool = True
) -> list[TaskRecord]:
    """Return those held tasks that match, without payload and result, locked unless only looked at."""
    statement = select_records(bodies=False).where(IS_HELD, wanted).order_by(_BY_ARRIVAL).limit(limit)
    return await fetch_records(tx, statement.with_for_update(of=tasks) if lock else statement)


async def lock_held_by(tx: Transaction, worker_ids: Sequence[UUID]) -> list[TaskRecord]:
    """Return the tasks that these workers hold, locked, without payload and result."""
    return await fetch_records(tx, _HELD_BY, workers=padded(worker_ids))


async def due(tx: Transaction, now: datetime, limit: int) -> list[TaskRecord]:
    """Lock tasks whose time has come, the earliest first, passing over those that a rival has locked."""
    statement = (
        select_records(bodies=False).where(IS_SCHEDULED, tasks.c.run_at <= now).order_by(tasks.c.run_at)
    )
    return await fetch_records(tx, statement.limit(limit).with_for_update(of=tasks, skip_locked=True))


async def next_due(tx: Transaction) -> datetime | None:
    """Return when the time of the next task comes."""
    found: datetime | None = (
        await tx.execute(select(tasks.c.run_at).where(IS_SCHEDULED).order_by(tasks.c.run_at).limit(1))
    ).scalar_one_or_none()
    return found


async def expired(
    tx: Transaction,
    now: datetime,
    limit: int,
    *,
    lock: bool = True,
    only: Sequence[UUID] = (),
    but: Sequence[int] = (),
) -> list[TaskRecord]:
    """Return pending tasks that nobody claimed in time, the earliest first, locked unless only looked at.

    `only` those of some jobs, where given, `but` for some by their `seq`.
    """
    statement = (
        select_records(bodies=False).where(IS_PENDING, tasks.c.expires_at <= now).order_by(tasks.c.expires_at)
    )
    if only:
        statement = statement.where(of_jobs(only))
    if but:
        statement = statement.where(tasks.c.seq.not_in(padded(but)))
    statement = statement.limit(limit)
    return await fetch_records(
        tx, statement.with_for_update(of=tasks, skip_locked=True) if lock else statement
    )


def held_by(worker_ids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match the tasks of these workers."""
    return tasks.c.worker_id.in_(padded(worker_ids))


def stuck_inside(cutoff: datetime) -> ColumnElement[bool]:
    """Match the tasks of internal jobs that started, or else were made, before `cutoff`."""
    # A task is claimed when it is made, but for one that is for later, or is tried again.
    since = func.coalesce(tasks.c.started_at, tasks.c.claimed_at, tasks.c.created_at)
    return and_(_ROOM_OF_JOB == INTERNAL, since < cutoff)


def of_jobs(job_ids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match the tasks of these jobs."""
    return tasks.c.job_id.in_(padded(job_ids))


def in_rooms(rooms: Sequence[str]) -> ColumnElement[bool]:
    """Match the tasks of these rooms."""
    return tasks.c.room_id.in_(padded(rooms))


async def count_held(tx: Transaction, wanted: ColumnElement[bool], by: str) -> Counter[Any]:
    """Count those tasks that match and are claimed or running, by a column."""
    column = tasks.c[by]
    return Counter(
        {
            key: count
            for key, count in await tx.execute(
                select(column, func.count()).where(IS_HELD, wanted).group_by(column)
            )
        }
    )


def overdue(now: datetime) -> ColumnElement[bool]:
    """Match the tasks that should have been started, or should have ended, by now.

    An internal one that was not started is dispatched again instead.
    """
    is_waited_for = or_(_ROOM_OF_JOB != INTERNAL, tasks.c.status == TaskStatus.RUNNING.value)
    return and_(tasks.c.deadline <= now, is_waited_for)


def abandoned() -> ColumnElement[bool]:
    """Match the tasks whose worker does not exist. An internal one need not have one."""
    known = select(workers.c.id).where(workers.c.id == tasks.c.worker_id).exists()
    has_none = and_(tasks.c.worker_id.is_(None), _ROOM_OF_JOB != INTERNAL)
    return or_(has_none, and_(tasks.c.worker_id.is_not(None), ~known))


async def undispatched(
    tx: Transaction, job_ids: Sequence[UUID], now: datetime, limit: int
) -> list[TaskRecord]:
    """Lock internal tasks that are due to be handed to their broker, the longest due first."""
    known = func.coalesce(tasks.c.job_id, null()).in_(padded(job_ids))
    statement = select_records().where(IS_HELD, _undispatched(), known, tasks.c.deadline <= now)
    statement = statement.order_by(tasks.c.deadline, _BY_ARRIVAL).limit(limit)
    return await fetch_records(tx, statement.with_for_update(of=tasks, skip_locked=True))


async def lock_undispatched(tx: Transaction, ids: Sequence[UUID]) -> list[TaskRecord]:
    """Lock those of these tasks that nobody has started, without payload and result."""
    found: list[TaskRecord] = []
    for start in range(0, len(ids), CHUNK):
        chosen = tasks.c.id.in_(padded(ids[start : start + CHUNK]))
        found += await held(tx, and_(_undispatched(), chosen))
    return found


def _undispatched() -> ColumnElement[bool]:
    # Of what is held, what has not started is claimed; a comparison of the status would draw other indexes.
    return and_(tasks.c.worker_id.is_(None), tasks.c.started_at.is_(None))


class AttemptRow(NamedTuple):
    """What is kept of an earlier attempt."""

    attempt: int
    status: str
    worker_id: UUID | None
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    ended_at: datetime
    run_at: datetime | None
    error_code: str | None
    error: str | None
    reason: str


async def attempts_of(tx: Transaction, seq: int) -> list[AttemptRow]:
    """Return what is kept of the earlier attempts of a task, oldest first."""
    columns = [attempts.c[name] for name in AttemptRow._fields]
    statement = select(*columns).where(attempts.c.task_seq == seq).order_by(attempts.c.n)
    return [AttemptRow(*row) for row in await tx.execute(statement)]


async def jobs_waiting_in(tx: Transaction, rooms: Sequence[str]) -> list[JobName]:
    """Return the jobs in whose queues tasks of these rooms wait, at most a hundred."""
    statement = (
        select(jobs.c.room_id, jobs.c.category, jobs.c.name)
        .join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)
        .where(in_rooms(rooms), QUEUED)
        .distinct()
        .limit(100)
    )
    return [JobName(*row) for row in await tx.execute(statement)]
