"""Workers and the jobs they serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import BindParameter, Row, and_, bindparam, delete, exists, func, insert, select, true, update

from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction, dialect
from zndraw_joblib.server.store.jobs import visible_from
from zndraw_joblib.server.store.tables import Job, Worker, WorkerJobLink

workers = Worker.__table__
links = WorkerJobLink.__table__
jobs = Job.__table__

# Statements of the hot paths are built once.
_IDS: BindParameter[Sequence[UUID]] = bindparam("ids")
_LOCK = (
    select(workers, func.now().label("now"))
    .where(among(workers.c.id, _IDS))
    .order_by(workers.c.id)
    .with_for_update(key_share=True)
)
_STALE = (
    select(workers.c.id)
    .where(workers.c.last_heartbeat < bindparam("cutoff", type_=workers.c.last_heartbeat.type))
    .order_by(workers.c.last_heartbeat, workers.c.id)
    .limit(bindparam("limit"))
)
_LOCK_STALE = _STALE.with_for_update(skip_locked=True)
_LOCK_ONE_STALE = _STALE.where(workers.c.id == bindparam("only", type_=workers.c.id.type)).with_for_update(
    skip_locked=True
)
_ALIVE = select(workers.c.id).where(among(workers.c.id, _IDS)).with_for_update(skip_locked=True)
_BEAT = (
    update(workers).where(workers.c.id.in_(_ALIVE.scalar_subquery())).values(last_heartbeat=bindparam("at"))
)
_UNLINK = delete(links).where(among(links.c.worker_id, _IDS)).returning(links.c.job_id)
_REMOVE = delete(workers).where(among(workers.c.id, _IDS))
_SERVED = (
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
_QUEUES = links.join(
    jobs,
    and_(links.c.job_id == jobs.c.id, jobs.c.pending > 0, jobs.c.room_id != INTERNAL, ~jobs.c.paused),
)
_WAITING = (
    select(links.c.worker_id, jobs.c.id, jobs.c.pending, jobs.c.max_in_flight)
    .select_from(_QUEUES)
    .where(among(links.c.worker_id, _IDS))
)
_seen = workers.alias("seen")
_SEEN = select(_seen.c.last_heartbeat).where(_seen.c.id == workers.c.id).scalar_subquery()
# The OFFSET keeps it a look for each worker; PostgreSQL may join all workers with all their jobs else.
_ITS_QUEUES = (
    select(links.c.job_id, jobs.c.pending, jobs.c.max_in_flight)
    .select_from(_QUEUES)
    .where(links.c.worker_id == workers.c.id)
    .offset(0)
    .lateral("queues")
)
_LOCK_ASKERS = (
    select(
        workers.c.id,
        workers.c.owner_id,
        workers.c.last_heartbeat,
        workers.c.draining,
        workers.c.max_tasks,
        _SEEN.label("heartbeat_seen"),
        _ITS_QUEUES.c.job_id,
        _ITS_QUEUES.c.pending,
        _ITS_QUEUES.c.max_in_flight,
        func.now().label("now"),
    )
    .select_from(workers.outerjoin(_ITS_QUEUES, true()))
    .where(among(workers.c.id, _IDS))
    .order_by(workers.c.id)
    .with_for_update(key_share=True, of=workers)
)


class Queue(NamedTuple):
    """How many tasks wait in a queue, and how many of its job may be under way at once."""

    pending: int
    max_in_flight: int | None


@dataclass(slots=True)
class Served:
    """The jobs that a worker may claim from. `is_paused`: tasks wait in one that is paused."""

    names: list[JobName]
    is_paused: bool = False


async def add(tx: Transaction, owner_id: str, max_tasks: int | None = None) -> UUID:
    """Create a worker, seen alive now."""
    worker_id, now = uuid4(), await tx.now()
    row = {
        "id": worker_id,
        "owner_id": owner_id,
        "created_at": now,
        "last_heartbeat": now,
        "draining": False,
        "max_tasks": max_tasks,
    }
    await tx.execute(insert(workers), [row])
    return worker_id


async def update_row(tx: Transaction, worker_id: UUID, **values: Any) -> None:
    """Write what is known of a worker."""
    await tx.execute(update(workers).where(workers.c.id == worker_id).values(**values))


async def lock(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Row[*tuple[Any, ...]]]:
    """Return the workers that exist, by id, and keep them from being removed until the commit."""
    found = (await tx.execute(_LOCK, {"ids": padded(ids)})).all()
    tx.record_now(found)
    return {row.id: row for row in found}


async def lock_if_stale(
    tx: Transaction, cutoff: datetime, limit: int, only: UUID | None = None
) -> list[UUID]:
    """Return up to `limit` workers silent since before `cutoff`, the longest silent first.

    They are locked; a worker that somebody else holds (it claims, or is swept elsewhere) is passed over.
    """
    given: dict[str, Any] = {"cutoff": cutoff, "limit": limit}
    if only is not None:
        return list((await tx.execute(_LOCK_ONE_STALE, {**given, "only": only})).scalars())
    return list((await tx.execute(_LOCK_STALE, given)).scalars())


async def silent(tx: Transaction, cutoff: datetime, limit: int) -> list[UUID]:
    """Return up to `limit` workers silent since before `cutoff`, the longest silent first, without a lock."""
    statement = select(workers.c.id).where(workers.c.last_heartbeat < cutoff)
    statement = statement.order_by(workers.c.last_heartbeat, workers.c.id).limit(limit)
    return list((await tx.execute(statement)).scalars())


async def heartbeat(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Note a sign of life of each. A worker that is locked elsewhere is passed over."""
    if ids:
        await tx.execute(_BEAT, {"ids": padded(ids), "at": await tx.now()})


async def clamp_future_heartbeats(tx: Transaction, tolerance: timedelta) -> None:
    """Set heartbeats that lie in the future to now: a clock that was set back makes nobody immortal."""
    now = await tx.now()
    future = select(workers.c.id).where(workers.c.last_heartbeat > now + tolerance)
    ids = (await tx.execute(future.with_for_update(skip_locked=True))).scalars().all()
    await heartbeat(tx, ids)


async def remove(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Remove workers and their links. Return the ids of the jobs they served."""
    gone = {"ids": padded(ids)}
    job_ids = sorted(set((await tx.execute(_UNLINK, gone)).scalars()))
    await tx.execute(_REMOVE, gone)
    return job_ids


async def link(tx: Transaction, worker_id: UUID, job_id: UUID) -> None:
    """Let a worker serve a job; no change where it does already."""
    statement = dialect(tx).insert(links).values(worker_id=worker_id, job_id=job_id)
    await tx.execute(statement.on_conflict_do_nothing())


async def unlink(tx: Transaction, worker_id: UUID, job_id: UUID) -> bool:
    """Let a worker serve a job no more. Tell whether it did."""
    statement = delete(links).where(links.c.worker_id == worker_id, links.c.job_id == job_id)
    return (await tx.execute(statement.returning(links.c.job_id))).first() is not None


async def lock_with_queues(
    tx: Transaction, ids: Sequence[UUID]
) -> tuple[dict[UUID, Row[*tuple[Any, ...]]], dict[UUID, dict[UUID, Queue]]]:
    """Lock workers, as `lock` does. Return them, and for each the jobs with pending tasks that it serves.

    On PostgreSQL in one statement. One that waits for a lock sees the worker as it is then, and the rest
    as it was before. Whoever takes a job off a worker sets its heartbeat, which shows here: then the queues
    are read again.
    """
    if tx.is_sqlite:
        found = await lock(tx, ids)
        is_new = True
    else:
        rows = (await tx.execute(_LOCK_ASKERS, {"ids": ids})).all()
        tx.record_now(rows)
        found = {row.id: row for row in rows}
        waiting = [
            (row.id, row.job_id, row.pending, row.max_in_flight) for row in rows if row.job_id is not None
        ]
        is_new = any(row.last_heartbeat != row.heartbeat_seen for row in rows)
    if is_new:
        waiting = [tuple(row) for row in await tx.execute(_WAITING, {"ids": padded(ids)})]
    queues: dict[UUID, dict[UUID, Queue]] = {worker_id: {} for worker_id in found}
    for worker_id, job_id, *queue in waiting:
        if worker_id in queues:
            queues[worker_id][job_id] = Queue(*queue)
    return found, queues


async def served_jobs(tx: Transaction, worker_ids: Sequence[UUID]) -> dict[UUID, Served]:
    """Return the names of the jobs that each worker may claim from."""
    found = {worker_id: Served([]) for worker_id in worker_ids}
    for row in await tx.execute(_SERVED, {"ids": padded(worker_ids)}):
        served = found[row.worker_id]
        served.names.append(JobName(row.room_id, row.category, row.name))
        served.is_paused = served.is_paused or bool(row.is_paused)
    return found


async def draining_flags(tx: Transaction, job_id: UUID) -> list[bool]:
    """Return for each worker of a job whether it drains."""
    served = workers.join(links, links.c.worker_id == workers.c.id)
    statement = select(workers.c.draining).select_from(served).where(links.c.job_id == job_id)
    return [bool(row.draining) for row in await tx.execute(statement)]


async def serving(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, list[UUID]]:
    """Return the workers of each job."""
    statement = select(links.c.job_id, links.c.worker_id).where(links.c.job_id.in_(padded(job_ids)))
    found: dict[UUID, list[UUID]] = {job_id: [] for job_id in job_ids}
    for job_id, worker_id in await tx.execute(statement.order_by(links.c.worker_id)):
        found[job_id].append(worker_id)
    return found


async def count(tx: Transaction, silent_since: datetime | None = None) -> int:
    """Count the workers, or those silent since before a time."""
    statement = select(func.count()).select_from(workers)
    if silent_since is not None:
        statement = statement.where(workers.c.last_heartbeat < silent_since)
    found: int = (await tx.execute(statement)).scalar_one()
    return found


async def page(tx: Transaction, room_id: str | None, part: Page) -> tuple[list[Row[*tuple[Any, ...]]], int]:
    """Return one page of (id, last_heartbeat, job_count), newest first, and the count of all.

    With a room, of the workers that serve a job which is visible there.
    """
    wanted = and_(True)
    if room_id is not None:
        served = and_(links.c.worker_id == workers.c.id, ~jobs.c.deleted, visible_from(room_id))
        wanted = exists().where(served, links.c.job_id == jobs.c.id)
    job_count = select(func.count()).where(links.c.worker_id == workers.c.id).scalar_subquery()
    rows = await tx.execute(
        select(workers.c.id, workers.c.last_heartbeat, job_count.label("job_count"))
        .where(wanted)
        .order_by(workers.c.created_at.desc(), workers.c.id.desc())
        .limit(part.limit)
        .offset(part.offset)
    )
    total = await tx.execute(select(func.count()).select_from(workers).where(wanted))
    return list(rows), total.scalar_one()
