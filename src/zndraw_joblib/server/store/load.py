"""How busy the workers of a job are, and how long its recent tasks took."""

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import and_, bindparam, case, func, select

from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Task, Worker, WorkerJobLink
from zndraw_joblib.server.store.tasks.records import IS_HELD, in_queue, of_status

tasks = Task.__table__
workers = Worker.__table__
links = WorkerJobLink.__table__

_RECENT = 100
_IS_HELD_BY = and_(tasks.c.worker_id == workers.c.id, IS_HELD)
_JOB = bindparam("job", type_=tasks.c.job_id.type)
_LOADS = (
    select(
        workers.c.draining,
        workers.c.max_tasks,
        workers.c.created_at,
        func.count(tasks.c.seq),
        func.count(tasks.c.started_at),
        func.max(func.coalesce(tasks.c.started_at, tasks.c.claimed_at), type_=tasks.c.started_at.type),
    )
    .select_from(links.join(workers, workers.c.id == links.c.worker_id).outerjoin(tasks, _IS_HELD_BY))
    .where(links.c.job_id == _JOB)
    .group_by(workers.c.id)
)
_HEAD = (
    select(tasks.c.room_id, tasks.c.created_at)
    .where(in_queue(_JOB))
    .order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq)
    .limit(1)
)
_IS_COMPLETED = of_status([TaskStatus.COMPLETED])
_EARLIER = (
    select(tasks.c.claimed_at, case((_IS_COMPLETED, tasks.c.completed_at)))
    .where(
        tasks.c.job_id == _JOB,
        tasks.c.room_id == bindparam("room"),
        tasks.c.created_at <= bindparam("at", type_=tasks.c.created_at.type),
    )
    .order_by(tasks.c.created_at.desc(), tasks.c.seq.desc())
    .limit(_RECENT)
)


class WorkerLoad(NamedTuple):
    """How many tasks a worker holds, of any job, and runs; `since` is when the last of them began."""

    is_draining: bool
    max_tasks: int | None
    created_at: datetime
    held: int
    running: int
    since: datetime | None

    @property
    def is_full(self) -> bool:
        """Whether it holds as many tasks as it may. The server knows the slots of few workers."""
        return self.held >= (self.max_tasks or 1)


async def of_workers(tx: Transaction, job_id: UUID) -> list[WorkerLoad]:
    """Return how busy the workers of a job are."""
    return [WorkerLoad(*row) for row in await tx.execute(_LOADS, {"job": job_id})]


async def recent_durations(tx: Transaction, job_id: UUID) -> list[timedelta]:
    """Return how long tasks took from claim to completion, of those submitted before the queue's first one.

    They are among the last 100 tasks of the job in that task's room, so the backlog is not read.
    """
    head = (await tx.execute(_HEAD, {"job": job_id})).one_or_none()
    if head is None:
        return []
    rows = await tx.execute(_EARLIER, {"job": job_id, "room": head.room_id, "at": head.created_at})
    return [ended - claimed for claimed, ended in rows if ended is not None]
