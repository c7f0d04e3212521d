"""Figures of jobs and of workers, the workers with their jobs and tasks, and ids that begin with a prefix."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Table, and_, bindparam, case, exists, func, literal_column, select

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction, fetch_page
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.db.tables import Task, Worker, WorkerJobLink
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue.sql_jobs import jobs, visible_from
from zndraw_joblib.server.queue.sql_task_rows import (
    IS_HELD,
    RECORD_NAMES,
    SELECT_RECORDS,
    TASK_IS_HELD,
    TaskRecord,
    fetch_records,
)
from zndraw_joblib.wire.names import INTERNAL, RESERVED
from zndraw_joblib.wire.operators import WorkerState

links = WorkerJobLink.__table__


class JobTotals(NamedTuple):
    """The numbers of all active jobs, and of the tasks in their queues."""

    jobs: int
    paused: int
    queued: int
    scheduled: int


class QueuedJob(NamedTuple):
    """A job with queued tasks."""

    id: UUID
    full_name: str
    queued: int


class JobFigures(NamedTuple):
    """A job's row."""

    id: UUID
    full_name: str
    room_id: str
    queued: int
    scheduled: int
    is_paused: bool
    is_deleted: bool


def _sum(number: ColumnElement[Any]) -> ColumnElement[int]:
    return func.coalesce(func.sum(number), 0)


_TOTALS = select(
    func.count(), *map(_sum, (case((jobs.c.paused, 1), else_=0), jobs.c.pending, jobs.c.scheduled))
).where(~jobs.c.deleted)
_QUEUED = (
    select(jobs.c.id, jobs.c.full_name, jobs.c.pending)
    .where(~jobs.c.deleted, jobs.c.pending > 0)
    .order_by(jobs.c.pending.desc(), jobs.c.full_name)
)
_IS_SERVED = select(links.c.job_id).where(links.c.job_id == jobs.c.id).exists()
_UNSERVED = _QUEUED.where(jobs.c.room_id != INTERNAL, ~_IS_SERVED)
_PAUSED = _QUEUED.where(jobs.c.paused)
_ALL = select(
    *(jobs.c.id, jobs.c.full_name, jobs.c.room_id, jobs.c.pending),
    *(jobs.c.scheduled, jobs.c.paused, jobs.c.deleted),
).order_by(jobs.c.room_id.in_(sorted(RESERVED)).desc(), jobs.c.created_at, jobs.c.id)
_SUMS = select(func.count(), *map(_sum, (jobs.c.pending, jobs.c.scheduled)))


async def job_totals(tx: Transaction) -> JobTotals:
    """Return the numbers of all active jobs."""
    return JobTotals(*map(int, (await tx.execute(_TOTALS)).one()))


async def unserved_jobs(tx: Transaction, limit: int) -> list[QueuedJob]:
    """Return the jobs with queued tasks that no worker serves, those with most tasks first."""
    return [QueuedJob(*row) for row in await tx.execute(_UNSERVED.limit(limit))]


async def paused_jobs(tx: Transaction, limit: int) -> list[QueuedJob]:
    """Return the paused jobs with queued tasks, those with most tasks first."""
    return [QueuedJob(*row) for row in await tx.execute(_PAUSED.limit(limit))]


async def first_jobs(tx: Transaction, limit: int) -> list[JobFigures]:
    """Return the first jobs in an order that does not change: those of reserved rooms, then the oldest."""
    return [JobFigures(*row) for row in await tx.execute(_ALL.limit(limit))]


async def job_sums(tx: Transaction) -> tuple[int, int, int]:
    """Return how many jobs there are, deleted ones too, and the tasks in their queues and scheduled ones."""
    number, queued, scheduled = map(int, (await tx.execute(_SUMS)).one())
    return number, queued, scheduled


# Workers: what they say about themselves, the jobs that they serve, the tasks that they hold.

workers = Worker.__table__
tasks = Task.__table__


class WorkerListing(NamedTuple):
    """A worker in a list, with the count of the jobs that it serves."""

    id: UUID
    last_heartbeat: datetime
    owner_id: str
    created_at: datetime
    draining: bool
    max_tasks: int | None
    name: str | None
    host: str | None
    pid: int | None
    version: str | None
    slots: int | None
    job_count: int


class WorkerJob(NamedTuple):
    """A job that a worker serves."""

    worker_id: UUID
    room_id: str
    full_name: str


class WorkerGroup(NamedTuple):
    """The workers in one state: how many tasks they can run, how many they hold, and in how many slots.

    `running` of the `slots_used` have a task that has started.
    """

    workers: int
    slots: int
    held: int
    slots_used: int
    running: int


class Service(NamedTuple):
    """How many workers serve a job, and how many tasks they can run at once."""

    workers: int
    slots: int


class HeldCounts(NamedTuple):
    """How many tasks a worker holds, and how many of them run."""

    held: int = 0
    running: int = 0


_NO_WORKERS = WorkerGroup(0, 0, 0, 0, 0)
_job_count = select(func.count()).where(links.c.worker_id == workers.c.id).scalar_subquery()
_LISTED = select(*[workers.c[name] for name in WorkerListing._fields[:-1]], _job_count.label("job_count"))
_SERVED = (
    select(links.c.worker_id, jobs.c.room_id, jobs.c.full_name)
    .join_from(links, jobs, links.c.job_id == jobs.c.id)
    .where(among(links.c.worker_id, bindparam("ids")))
    .order_by(jobs.c.full_name)
)
_HELD = (
    select(tasks.c.worker_id, func.count(), func.count(tasks.c.started_at))
    .where(IS_HELD, among(tasks.c.worker_id, bindparam("ids")))
    .group_by(tasks.c.worker_id)
)
_HELD_BY = statement(
    f"""
{SELECT_RECORDS[False]} WHERE {TASK_IS_HELD} AND joblib_task.worker_id = :worker_id
ORDER BY joblib_task.seq DESC LIMIT :limit
""",
    *RECORD_NAMES,
)

# A worker that does not report its slots has one, or as many as it may hold.
_SLOTS = func.coalesce(workers.c.slots, workers.c.max_tasks, 1)
_SERVICES = (
    select(links.c.job_id, func.count(), func.sum(_SLOTS))
    .join_from(links, workers, links.c.worker_id == workers.c.id)
    .where(among(links.c.job_id, bindparam("ids")))
    .group_by(links.c.job_id)
)
# Without a join for each link: few workers are draining.
_LINKS = (
    select(links.c.job_id, func.count())
    .where(among(links.c.job_id, bindparam("ids")))
    .group_by(links.c.job_id)
)
_DRAINING_LINKS = select(links.c.job_id).where(
    links.c.worker_id.in_(select(workers.c.id).where(workers.c.draining))
)
_STATE = case(
    (
        workers.c.last_heartbeat < bindparam("silent_since", type_=UtcDateTime()),
        literal_column(f"'{WorkerState.SILENT}'"),
    ),
    (workers.c.draining, literal_column(f"'{WorkerState.DRAINING}'")),
    else_=literal_column(f"'{WorkerState.ACTIVE}'"),
).label("state")
_STATES = select(_STATE, func.count(), func.sum(_SLOTS)).group_by(literal_column("state"))
# In the order of the index of held tasks, so that no other index and no scan has it.
_held_tasks = (
    select(tasks.c.worker_id, tasks.c.started_at)
    .where(IS_HELD)
    .order_by(tasks.c.worker_id)
    .limit(2**31)
    .subquery()
)
_busy = (
    select(
        _held_tasks.c.worker_id,
        func.count().label("held"),
        func.count(_held_tasks.c.started_at).label("running"),
    )
    .group_by(_held_tasks.c.worker_id)
    .subquery()
)
_USED, _RUNNING = [case((count < _SLOTS, count), else_=_SLOTS) for count in (_busy.c.held, _busy.c.running)]
_BUSY_STATES = (
    select(_STATE, func.sum(_busy.c.held), func.sum(_USED), func.sum(_RUNNING))
    .join_from(_busy, workers, workers.c.id == _busy.c.worker_id)
    .group_by(literal_column("state"))
)


async def workers_page(tx: Transaction, room_id: str | None, part: Page) -> tuple[list[WorkerListing], int]:
    """Return one page of workers, newest first, and the count of all.

    With a room, only workers that serve a job which the room lists.
    """
    condition = and_(True)
    if room_id is not None:
        served = and_(links.c.worker_id == workers.c.id, ~jobs.c.deleted, visible_from(room_id))
        condition = exists().where(served, links.c.job_id == jobs.c.id)
    rows, total = await fetch_page(tx, workers, _LISTED, condition, part)
    return [WorkerListing(*row) for row in rows], total


async def worker_by_id(tx: Transaction, worker_id: UUID) -> WorkerListing | None:
    """Return a worker."""
    row = (await tx.execute(_LISTED.where(workers.c.id == worker_id))).first()
    return None if row is None else WorkerListing(*row)


async def served_jobs(tx: Transaction, ids: Sequence[UUID]) -> list[WorkerJob]:
    """Return the jobs that these workers serve, by full name."""
    return [WorkerJob(*row) for row in await tx.execute(_SERVED, {"ids": padded(ids)})]


async def held_counts(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, HeldCounts]:
    """Return how many tasks each of these workers holds; a worker without one is missing."""
    rows = await tx.execute(_HELD, {"ids": padded(ids)})
    return {worker_id: HeldCounts(*numbers) for worker_id, *numbers in rows}


async def held_tasks(tx: Transaction, worker_id: UUID, limit: int) -> list[TaskRecord]:
    """Return the tasks that a worker holds, without their bodies, the newest first."""
    return await fetch_records(tx, _HELD_BY, worker_id=worker_id, limit=limit)


async def by_state(tx: Transaction, silent_since: datetime) -> dict[WorkerState, WorkerGroup]:
    """Return the workers by state. Those without a heartbeat since `silent_since` are silent."""
    params = {"silent_since": silent_since}
    busy = {state: map(int, numbers) for state, *numbers in await tx.execute(_BUSY_STATES, params)}
    groups = {
        WorkerState(state): WorkerGroup(number, int(slots), *busy.get(state, (0, 0, 0)))
        for state, number, slots in await tx.execute(_STATES, params)
    }
    return {state: groups.get(state, _NO_WORKERS) for state in WorkerState}


async def services(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, Service]:
    """Return how many workers and slots serve each job; a job without workers is missing."""
    rows = await tx.execute(_SERVICES, {"ids": padded(job_ids)})
    return {job_id: Service(number, int(slots)) for job_id, number, slots in rows}


async def claiming(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Return how many workers serve each of these jobs and are not draining."""
    workers_of_jobs = dict.fromkeys(job_ids, 0)
    workers_of_jobs |= {
        job_id: number for job_id, number in await tx.execute(_LINKS, {"ids": padded(job_ids)})
    }
    for job_id in (await tx.execute(_DRAINING_LINKS)).scalars():
        if job_id in workers_of_jobs:
            workers_of_jobs[job_id] -= 1
    return workers_of_jobs


# Find tasks and workers by the first characters of their ids.

# Ids of tasks begin with the time, so up to this many may share a short prefix.
_CANDIDATES = 20_000


async def tasks_with(
    tx: Transaction, first: UUID, last: UUID, rooms: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` tasks with ids in a range, the last first, of these rooms or of all."""
    return await _within(tx, tasks, (first, last), "room_id", rooms, limit)


async def workers_with(
    tx: Transaction, first: UUID, last: UUID, owners: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` workers with ids in a range, the last first, of these owners or of all."""
    return await _within(tx, workers, (first, last), "owner_id", owners, limit)


async def _within(
    tx: Transaction, table: Table, span: tuple[UUID, UUID], name: str, values: Sequence[Any], limit: int
) -> list[UUID]:
    ids = select(table.c.id, table.c[name]).where(table.c.id >= span[0], table.c.id <= span[1])
    near = ids.order_by(table.c.id.desc()).limit(_CANDIDATES if values else limit).subquery()
    statement = select(near.c.id).order_by(near.c.id.desc()).limit(limit)
    if values:
        statement = statement.where(near.c[name].in_(values))
    return list((await tx.execute(statement)).scalars())
