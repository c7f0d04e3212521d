"""All jobs, for operators: by full name, their sums, and those that need attention."""

from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, case, func, select

from zndraw_joblib.contract.names import INTERNAL, RESERVED
from zndraw_joblib.server.ports import JobFilter
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.jobs import COLUMNS, JobRecord, jobs
from zndraw_joblib.server.store.tables import WorkerJobLink

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


async def page(
    tx: Transaction, wanted: JobFilter, after: str | None, limit: int
) -> list[tuple[JobRecord, int]]:
    """Return the jobs that follow a full name, each with its number of scheduled tasks."""
    conditions: list[ColumnElement[bool]] = [] if wanted.deleted else [~jobs.c.deleted]
    if wanted.room_id is not None:
        conditions.append(jobs.c.room_id == wanted.room_id)
    if wanted.category is not None:
        conditions.append(jobs.c.category == wanted.category)
    if wanted.name is not None:
        conditions.append(jobs.c.name == wanted.name)
    if wanted.paused is not None:
        conditions.append(jobs.c.paused.is_(wanted.paused))
    if after is not None:
        conditions.append(jobs.c.full_name > after)
    statement = select(*COLUMNS, jobs.c.scheduled).where(*conditions).order_by(jobs.c.full_name).limit(limit)
    return [(JobRecord(*row), scheduled) for *row, scheduled in await tx.execute(statement)]


async def totals(tx: Transaction) -> JobTotals:
    """Return the numbers of all active jobs."""
    return JobTotals(*map(int, (await tx.execute(_TOTALS)).one()))


async def unserved(tx: Transaction, limit: int) -> list[QueuedJob]:
    """Return the jobs with queued tasks that no worker serves, those with most tasks first."""
    return [QueuedJob(*row) for row in await tx.execute(_UNSERVED.limit(limit))]


async def paused(tx: Transaction, limit: int) -> list[QueuedJob]:
    """Return the paused jobs with queued tasks, those with most tasks first."""
    return [QueuedJob(*row) for row in await tx.execute(_PAUSED.limit(limit))]


async def figures(tx: Transaction) -> list[JobFigures]:
    """Return all jobs in an order in which each keeps its place: of reserved rooms first, then the oldest."""
    return [JobFigures(*row) for row in await tx.execute(_ALL)]
