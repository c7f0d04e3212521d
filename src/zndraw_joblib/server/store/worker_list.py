"""Lists of workers: what they say about themselves, the jobs that they serve, the tasks that they hold."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, case, exists, func, literal_column, select

from zndraw_joblib.contract.operations import WorkerState
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.column_types import UtcDateTime
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.jobs import visible_from
from zndraw_joblib.server.store.pages import fetch_page
from zndraw_joblib.server.store.tables import Job, Task, Worker, WorkerJobLink
from zndraw_joblib.server.store.tasks.records import IS_HELD, TaskRecord, fetch_records, select_records

workers = Worker.__table__
links = WorkerJobLink.__table__
jobs = Job.__table__
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


class ServedJob(NamedTuple):
    """A job that a worker serves."""

    worker_id: UUID
    room_id: str
    full_name: str


class WorkerGroup(NamedTuple):
    """The workers in one state: how many tasks they can run, how many they hold, and in how many slots.

    `running` of the `used` slots have a task that has started.
    """

    workers: int
    slots: int
    held: int
    used: int
    running: int


class Service(NamedTuple):
    """How many workers serve a job, and how many tasks they can run at once."""

    workers: int
    slots: int


class HeldTasks(NamedTuple):
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
_HELD_BY = (
    select_records(bodies=False)
    .where(IS_HELD, tasks.c.worker_id == bindparam("worker", type_=tasks.c.worker_id.type))
    .order_by(tasks.c.seq.desc())
    .limit(bindparam("limit"))
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
_LINKS = select(links.c.job_id, func.count()).group_by(links.c.job_id)
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


async def page(tx: Transaction, room_id: str | None, part: Page) -> tuple[list[WorkerListing], int]:
    """Return one page of workers, newest first, and the count of all.

    With a room, only workers that serve a job which the room lists.
    """
    wanted = and_(True)
    if room_id is not None:
        served = and_(links.c.worker_id == workers.c.id, ~jobs.c.deleted, visible_from(room_id))
        wanted = exists().where(served, links.c.job_id == jobs.c.id)
    rows, total = await fetch_page(tx, workers, _LISTED, wanted, part)
    return [WorkerListing(*row) for row in rows], total


async def by_id(tx: Transaction, worker_id: UUID) -> WorkerListing | None:
    """Return a worker."""
    row = (await tx.execute(_LISTED.where(workers.c.id == worker_id))).first()
    return None if row is None else WorkerListing(*row)


async def served(tx: Transaction, ids: Sequence[UUID]) -> list[ServedJob]:
    """Return the jobs that these workers serve, by full name."""
    return [ServedJob(*row) for row in await tx.execute(_SERVED, {"ids": padded(ids)})]


async def held_counts(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, HeldTasks]:
    """Return how many tasks each of these workers holds; a worker without one is missing."""
    rows = await tx.execute(_HELD, {"ids": padded(ids)})
    return {worker_id: HeldTasks(*numbers) for worker_id, *numbers in rows}


async def held_tasks(tx: Transaction, worker_id: UUID, limit: int) -> list[TaskRecord]:
    """Return the tasks that a worker holds, without their bodies, the newest first."""
    return await fetch_records(tx, _HELD_BY, worker=worker_id, limit=limit)


async def by_state(tx: Transaction, silent_since: datetime) -> dict[WorkerState, WorkerGroup]:
    """Return the workers by state. Those without a heartbeat since `silent_since` are silent."""
    given = {"silent_since": silent_since}
    busy = {state: map(int, numbers) for state, *numbers in await tx.execute(_BUSY_STATES, given)}
    found = {
        WorkerState(state): WorkerGroup(number, int(slots), *busy.get(state, (0, 0, 0)))
        for state, number, slots in await tx.execute(_STATES, given)
    }
    return {state: found.get(state, _NO_WORKERS) for state in WorkerState}


async def services(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, Service]:
    """Return how many workers and slots serve each job; a job without workers is missing."""
    rows = await tx.execute(_SERVICES, {"ids": padded(job_ids)})
    return {job_id: Service(number, int(slots)) for job_id, number, slots in rows}


async def claiming(tx: Transaction) -> dict[UUID, int]:
    """Return how many workers serve each job and are not draining; a job without workers is missing."""
    found: dict[UUID, int] = {job_id: number for job_id, number in await tx.execute(_LINKS)}
    for job_id in (await tx.execute(_DRAINING_LINKS)).scalars():
        found[job_id] -= 1
    return found
