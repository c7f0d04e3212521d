"""Workers, and which jobs they serve."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import (
    BindParameter,
    Integer,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    union,
    update,
)

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.tables import Job, ProviderRecord, Worker, WorkerJobLink
from zndraw_joblib.server.queue.sql_task_rows import IS_HELD, in_queue, of_status
from zndraw_joblib.server.queue.sql_transitions import COST_IF_LOST, tasks
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.statuses import TaskStatus

workers = Worker.__table__
links = WorkerJobLink.__table__
jobs = Job.__table__


class WorkerRecord(NamedTuple):
    """A worker's row."""

    id: UUID
    owner_id: str
    last_heartbeat: datetime
    draining: bool
    max_tasks: int | None


class QueueState(NamedTuple):
    """How many tasks of a job are pending, how many may be held at once, and the job's room."""

    pending: int
    max_in_flight: int | None
    room_id: str


class OwnerCounts(NamedTuple):
    """How many workers a user has, and how many of them are silent."""

    owner_id: str
    total: int
    silent: int


@dataclass(slots=True)
class ServedJobs:
    """The jobs that a worker may claim from. `is_paused`: one of them is paused and has pending tasks."""

    names: list[JobName]
    is_paused: bool = False


_NO_INFO = WorkerInfo()
_COLUMNS = [workers.c[name] for name in WorkerRecord._fields]
# Statements of the hot paths are built once.
_IDS: BindParameter[Sequence[UUID]] = bindparam("ids")
_LOCK = (
    select(*_COLUMNS, func.now().label("now"))
    .where(among(workers.c.id, _IDS))
    .order_by(workers.c.id)
    .with_for_update(key_share=True)
)
_STALE = (
    select(workers.c.id)
    .where(workers.c.last_heartbeat < bindparam("cutoff", type_=workers.c.last_heartbeat.type))
    .order_by(workers.c.last_heartbeat)
    .limit(bindparam("limit"))
)
_cost = (
    select(func.coalesce(func.sum(literal_column(COST_IF_LOST, Integer())), 0))
    .where(IS_HELD, tasks.c.worker_id == workers.c.id)
    .scalar_subquery()
)
# A stronger lock would conflict with a provider that gets one of these workers as its next worker.
_LOCK_STALE = _STALE.add_columns(_cost.label("cost")).with_for_update(
    key_share=True, skip_locked=True, of=workers
)
_LOCK_STALE_OF_OTHERS = _LOCK_STALE.where(~among(workers.c.owner_id, bindparam("but_of")))
_LOCK_ONE_STALE = _LOCK_STALE.where(workers.c.id == bindparam("only", type_=workers.c.id.type))
# With a limit PostgreSQL uses the index, whatever it expects to find.
_FUTURE_LIMIT = 500
_LOCK_FUTURE = (
    select(workers.c.id)
    .where(workers.c.last_heartbeat > bindparam("latest", type_=workers.c.last_heartbeat.type))
    .order_by(workers.c.last_heartbeat)
    .limit(_FUTURE_LIMIT)
    .with_for_update(key_share=True, skip_locked=True)
)
_UNLOCKED = (
    select(workers.c.id).where(among(workers.c.id, _IDS)).with_for_update(key_share=True, skip_locked=True)
)
_HEARTBEAT = (
    update(workers)
    .where(workers.c.id.in_(_UNLOCKED.scalar_subquery()))
    .values(last_heartbeat=bindparam("at"))
)
_MARK = update(workers).where(among(workers.c.id, _IDS)).values(draining=workers.c.draining)
_UNLINK = delete(links).where(among(links.c.worker_id, _IDS)).returning(links.c.job_id)
_REMOVE = delete(workers).where(among(workers.c.id, _IDS))
_SERVED_JOBS = (
    select(
        links.c.worker_id,
        jobs.c.room_id,
        jobs.c.category,
        jobs.c.name,
        and_(jobs.c.paused, jobs.c.pending > 0).label("is_paused"),
    )
    .join_from(links, jobs, links.c.job_id == jobs.c.id)
    .where(among(links.c.worker_id, _IDS), jobs.c.room_id != INTERNAL)
    .order_by(jobs.c.id)
)
_OPEN_QUEUES = links.join(
    jobs, and_(links.c.job_id == jobs.c.id, jobs.c.pending > 0, jobs.c.room_id != INTERNAL, ~jobs.c.paused)
)
_PENDING_QUEUES = (
    select(links.c.worker_id, jobs.c.id, jobs.c.pending, jobs.c.max_in_flight, jobs.c.room_id)
    .select_from(_OPEN_QUEUES)
    .where(among(links.c.worker_id, _IDS))
)
_seen = workers.alias("seen")
_HEARTBEAT_SEEN = select(_seen.c.last_heartbeat).where(_seen.c.id == workers.c.id).scalar_subquery()
# The OFFSET makes PostgreSQL look up the jobs per worker, instead of joining all workers with all their jobs.
_ITS_QUEUES = (
    select(links.c.job_id, jobs.c.pending, jobs.c.max_in_flight, jobs.c.room_id)
    .select_from(_OPEN_QUEUES)
    .where(links.c.worker_id == workers.c.id)
    .offset(0)
    .lateral("queues")
)
_LOCK_WITH_QUEUES = (
    select(
        *_COLUMNS,
        _HEARTBEAT_SEEN.label("heartbeat_seen"),
        _ITS_QUEUES.c.job_id,
        _ITS_QUEUES.c.pending,
        _ITS_QUEUES.c.max_in_flight,
        _ITS_QUEUES.c.room_id,
        func.now().label("now"),
    )
    .select_from(workers.outerjoin(_ITS_QUEUES, true()))
    .where(among(workers.c.id, _IDS))
    .order_by(workers.c.id)
    .with_for_update(key_share=True, of=workers)
)


async def add(
    tx: Transaction, owner_id: str, max_tasks: int | None = None, info: WorkerInfo | None = None
) -> UUID:
    """Insert a worker with a heartbeat now, and what it says about itself."""
    worker_id, now = uuid4(), await tx.now()
    row = {
        "id": worker_id,
        "owner_id": owner_id,
        "created_at": now,
        "last_heartbeat": now,
        "draining": False,
        "max_tasks": max_tasks,
        **(info or _NO_INFO).model_dump(),
    }
    await tx.execute(insert(workers), [row])
    return worker_id


async def describe(tx: Transaction, worker_id: UUID, info: WorkerInfo) -> None:
    """Write what a worker says about itself, unless it is known; the fields that are None stay."""
    values = info.model_dump(exclude_none=True)
    if values:
        is_new = or_(*[workers.c[name].is_distinct_from(value) for name, value in values.items()])
        await tx.execute(update(workers).where(workers.c.id == worker_id, is_new).values(**values))


async def set_draining(tx: Transaction, worker_id: UUID) -> None:
    """Mark a worker as draining."""
    await tx.execute(update(workers).where(workers.c.id == worker_id).values(draining=True))


async def set_max_tasks(tx: Transaction, worker_id: UUID, max_tasks: int) -> None:
    """Set how many tasks a worker may hold at once."""
    await tx.execute(update(workers).where(workers.c.id == worker_id).values(max_tasks=max_tasks))


async def lock(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, WorkerRecord]:
    """Lock workers until the commit, so that they are not deleted, and return those that exist, by id."""
    rows = (await tx.execute(_LOCK, {"ids": padded(ids)})).all()
    tx.record_now(rows)
    return {row.id: WorkerRecord(*row[:-1]) for row in rows}


async def lock_of_owner(tx: Transaction, owner_id: str, limit: int) -> list[UUID]:
    """Lock up to `limit` workers of a user, and return their ids."""
    owned = select(workers.c.id).where(workers.c.owner_id == owner_id).order_by(workers.c.id).limit(limit)
    return list((await tx.execute(owned.with_for_update(key_share=True))).scalars())


async def lock_if_stale(
    tx: Transaction, cutoff: datetime, limit: int, only: UUID | None = None, but_of: Collection[str] = ()
) -> dict[UUID, int]:
    """Lock up to `limit` workers without a heartbeat since `cutoff`, the oldest heartbeat first.

    Those of the users `but_of` are left out. Return them with what it costs to recover their tasks: 1 for
    each one that fails without a retry. A worker that another transaction has locked (it claims, or another
    sweeper removes it) is skipped.
    """
    params: dict[str, Any] = {"cutoff": cutoff, "limit": limit}
    if only is None:
        if but_of:
            rows = await tx.execute(_LOCK_STALE_OF_OTHERS, {**params, "but_of": padded([*but_of])})
        else:
            rows = await tx.execute(_LOCK_STALE, params)
    else:
        rows = await tx.execute(_LOCK_ONE_STALE, {**params, "only": only})
    return {worker_id: cost for worker_id, cost in rows}


async def stale(tx: Transaction, cutoff: datetime, limit: int) -> list[UUID]:
    """Return what `lock_if_stale` would lock, without a lock."""
    return list((await tx.execute(_STALE, {"cutoff": cutoff, "limit": limit})).scalars())


async def heartbeat(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Set the heartbeats of these workers to now. A worker that another transaction has locked is skipped."""
    if ids:
        await tx.execute(_HEARTBEAT, {"ids": padded(ids), "at": await tx.now()})


async def mark_claims(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Write new versions of the rows of locked workers, whose claims have ids.

    A plain claim that began before this transaction's commit then sees that there was another claim.
    """
    if ids and not tx.is_sqlite:
        await tx.execute(_MARK, {"ids": ids})


async def clamp_future_heartbeats(tx: Transaction, tolerance: timedelta) -> None:
    """Set heartbeats in the future to now: after a clock was set back they would not expire."""
    latest = await tx.now() + tolerance
    count = _FUTURE_LIMIT
    while count == _FUTURE_LIMIT:
        ids = (await tx.execute(_LOCK_FUTURE, {"latest": latest})).scalars().all()
        await heartbeat(tx, ids)
        count = len(ids)


async def remove(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Delete workers, which the caller has unlinked from their jobs and providers."""
    await tx.execute(_REMOVE, {"ids": padded(ids)})


async def unlink_all(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Delete all links of these workers. Return the ids of the jobs that they served."""
    return sorted(set((await tx.execute(_UNLINK, {"ids": padded(ids)})).scalars()))


async def link(tx: Transaction, worker_id: UUID, job_id: UUID) -> None:
    """Link a worker to a job, unless it is linked already."""
    statement = dialect(tx).insert(links).values(worker_id=worker_id, job_id=job_id)
    await tx.execute(statement.on_conflict_do_nothing())


async def unlink(tx: Transaction, worker_id: UUID, job_id: UUID) -> bool:
    """Delete the link of a worker to a job. Return whether it existed."""
    statement = delete(links).where(links.c.worker_id == worker_id, links.c.job_id == job_id)
    return (await tx.execute(statement.returning(links.c.job_id))).first() is not None


async def lock_with_queues(
    tx: Transaction, ids: Sequence[UUID]
) -> tuple[dict[UUID, WorkerRecord], dict[UUID, dict[UUID, QueueState]]]:
    """Lock workers, as `lock` does. Return them, and by worker the jobs with pending tasks that it serves.

    On PostgreSQL this is one statement. If it waits for a lock, it returns the new version of the worker's
    row, but links and jobs as they were before. A transaction that unlinks a job changes the heartbeat too;
    if the heartbeat differs between the two versions, the queues are read again.
    """
    pending: list[Sequence[Any]] = []
    if tx.is_sqlite:
        locked = await lock(tx, ids)
        is_outdated = True
    else:
        rows = (await tx.execute(_LOCK_WITH_QUEUES, {"ids": ids})).all()
        tx.record_now(rows)
        locked = {row.id: WorkerRecord(*row[: len(_COLUMNS)]) for row in rows}
        pending = [
            (row.id, row.job_id, row.pending, row.max_in_flight, row.room_id)
            for row in rows
            if row.job_id is not None
        ]
        is_outdated = any(row.last_heartbeat != row.heartbeat_seen for row in rows)
    if is_outdated:
        pending = list(await tx.execute(_PENDING_QUEUES, {"ids": padded(ids)}))
    queues: dict[UUID, dict[UUID, QueueState]] = {worker_id: {} for worker_id in locked}
    for worker_id, job_id, *state in pending:
        if worker_id in queues:
            queues[worker_id][job_id] = QueueState(*state)
    return locked, queues


async def served_jobs(tx: Transaction, worker_ids: Sequence[UUID]) -> dict[UUID, ServedJobs]:
    """Return the jobs that each worker may claim from."""
    by_worker = {worker_id: ServedJobs([]) for worker_id in worker_ids}
    for worker_id, *name, is_paused in await tx.execute(_SERVED_JOBS, {"ids": padded(worker_ids)}):
        served = by_worker[worker_id]
        served.names.append(JobName(*name))
        served.is_paused = served.is_paused or bool(is_paused)
    return by_worker


async def serving(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, list[UUID]]:
    """Return the workers of each job."""
    statement = select(links.c.job_id, links.c.worker_id).where(links.c.job_id.in_(padded(job_ids)))
    by_job: dict[UUID, list[UUID]] = {job_id: [] for job_id in job_ids}
    for job_id, worker_id in await tx.execute(statement.order_by(links.c.worker_id)):
        by_job[job_id].append(worker_id)
    return by_job


async def count_by_owner(tx: Transaction, silent_since: datetime) -> list[OwnerCounts]:
    """Count the workers of each user, and those of them without a heartbeat since a time."""
    is_silent = case((workers.c.last_heartbeat < silent_since, 1), else_=0)
    statement = select(workers.c.owner_id, func.count(), func.sum(is_silent)).group_by(workers.c.owner_id)
    return [OwnerCounts(*row) for row in await tx.execute(statement)]


async def count(tx: Transaction, stale_since: datetime | None = None) -> int:
    """Count the workers, or those without a heartbeat since a time."""
    statement = select(func.count()).select_from(workers)
    if stale_since is not None:
        statement = statement.where(workers.c.last_heartbeat < stale_since)
    number: int = (await tx.execute(statement)).scalar_one()
    return number


# How busy the workers of a job are, and how long its recent tasks took.

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


# The rooms of what a worker serves and holds.

providers = ProviderRecord.__table__


_WORKER = bindparam("worker", type_=workers.c.id.type)
_IS_OWN = (
    select(workers.c.id).where(workers.c.id == _WORKER, workers.c.owner_id == bindparam("owner")).exists()
)
_ROOMS = union(
    select(literal_column("'jobs'").label("kind"), jobs.c.room_id)
    .join_from(links, jobs, links.c.job_id == jobs.c.id)
    .where(links.c.worker_id == _WORKER, _IS_OWN),
    select(literal_column("'held'"), jobs.c.room_id)
    .join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)
    .where(IS_HELD, tasks.c.worker_id == _WORKER, _IS_OWN),
    select(literal_column("'providers'"), providers.c.room_id).where(
        providers.c.worker_id == _WORKER, _IS_OWN
    ),
)
_JOB_ROOMS = (
    select(tasks.c.id, jobs.c.room_id)
    .join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)
    .where(among(tasks.c.id, bindparam("ids")), tasks.c.worker_owner_id == bindparam("owner"))
)


async def served(tx: Transaction, worker_id: UUID, owner_id: str) -> list[tuple[str, str]]:
    """Return the rooms of a worker: those of its `jobs`, of the jobs of `held` tasks, and of its `providers`.

    Each has its kind before it. There are none if the worker belongs to another user.
    """
    rows = await tx.execute(_ROOMS, {"worker": worker_id, "owner": owner_id})
    return [(kind, room_id) for kind, room_id in rows]


async def job_rooms(tx: Transaction, task_ids: Sequence[UUID], owner_id: str) -> dict[UUID, str]:
    """Return the rooms of the jobs of those of these tasks that a worker of this user has or had last."""
    params = {"ids": padded(task_ids), "owner": owner_id}
    return {task_id: room_id for task_id, room_id in await tx.execute(_JOB_ROOMS, params)}
