"""Jobs: named functions with a schema."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Row, and_, bindparam, func, select, update

from zndraw_joblib.contract.names import GLOBAL, INTERNAL, RESERVED, JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction, dialect
from zndraw_joblib.server.store.tables import Job, WorkerJobLink

jobs = Job.__table__
links = WorkerJobLink.__table__

# Statements of the hot paths are built once.
_LOCK_NAMED = (
    select(jobs, func.now().label("now"))
    .where(among(jobs.c.full_name, bindparam("names")), ~jobs.c.deleted)
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
ADD_TO_COUNTS = (
    update(jobs)
    .where(jobs.c.id == bindparam("job"))
    .values(pending=jobs.c.pending + bindparam("queued"), scheduled=jobs.c.scheduled + bindparam("later"))
)


@lru_cache(maxsize=4096)
def policy_of(stored: str | None) -> JobPolicy:
    """Return a job's policy as it is in the column `policy`."""
    return JobPolicy() if stored is None else JobPolicy.model_validate_json(stored)


class CountChange(NamedTuple):
    """How many tasks more there are in a job's queue, and how many more wait for their time."""

    queued: int
    later: int


def visible_from(room_id: str) -> ColumnElement[bool]:
    """Match the jobs that a room's lists show: its own and, unless it is reserved, the reserved rooms'."""
    rooms = [room_id] if room_id in RESERVED else [room_id, GLOBAL, INTERNAL]
    return jobs.c.room_id.in_(rooms)


async def by_name(tx: Transaction, name: JobName) -> Row[*tuple[Any, ...]] | None:
    """Return the active job of this name."""
    return (await tx.execute(select(jobs).where(_named([name]), ~jobs.c.deleted))).first()


async def by_name_with_deleted(tx: Transaction, name: JobName) -> Row[*tuple[Any, ...]] | None:
    """Return the job of this name, hidden or not."""
    return (await tx.execute(select(jobs).where(_named([name])))).first()


async def lock_by_names(tx: Transaction, names: Sequence[JobName]) -> dict[JobName, Row[*tuple[Any, ...]]]:
    """Return the active jobs of these names, and keep their counts as they are until the commit."""
    found = (await tx.execute(_LOCK_NAMED, {"names": padded([str(name) for name in names])})).all()
    tx.record_now(found)
    return {JobName(row.room_id, row.category, row.name): row for row in found}


async def add_or_lock(
    tx: Transaction, name: JobName, schema: dict[str, Any], policy: JobPolicy
) -> tuple[Row[*tuple[Any, ...]], bool]:
    """Return the job of this name, locked, made now if there is none. Tell whether it is new."""
    values = {**name._asdict(), "id": uuid4(), "schema": schema, "created_at": await tx.now()}
    rest = {
        "deleted": False,
        "pending": 0,
        "scheduled": 0,
        "paused": False,
        "has_lanes": False,
        **_stored(policy),
    }
    statement = dialect(tx).insert(jobs).values(**values, **rest)
    made = await tx.execute(statement.on_conflict_do_nothing().returning(jobs.c.id))
    is_new = made.first() is not None
    row = (await tx.execute(select(jobs).where(_named([name])).with_for_update())).one()
    return row, is_new


async def restore_with(tx: Transaction, job_id: UUID, schema: dict[str, Any], policy: JobPolicy) -> None:
    """Show a hidden job again, with a new schema and a new policy."""
    values = {"deleted": False, "paused": False, "schema": schema, **_stored(policy)}
    await tx.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


async def replace(tx: Transaction, job_id: UUID, schema: dict[str, Any], policy: JobPolicy) -> None:
    """Give an active job a new schema and a new policy; one that is paused stays so."""
    values = {"schema": schema, **_stored(policy)}
    await tx.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


async def by_names(tx: Transaction, names: Sequence[str]) -> list[Row[*tuple[Any, ...]]]:
    """Return the active jobs of these full names, in the order of their ids."""
    named = jobs.c.full_name.in_(padded(names))
    return list(await tx.execute(select(jobs).where(named, ~jobs.c.deleted).order_by(jobs.c.id)))


def _stored(policy: JobPolicy) -> dict[str, Any]:
    is_default = policy == JobPolicy()
    return {
        "policy": None if is_default else policy.model_dump_json(),
        "max_in_flight": policy.max_in_flight,
    }


async def pause(tx: Transaction, name: JobName, *, paused: bool) -> Row[*tuple[Any, ...]] | None:
    """Stop the claims of an active job, or let them go on. Return the job as it is now."""
    statement = update(jobs).where(_named([name]), ~jobs.c.deleted).values(paused=paused)
    return (await tx.execute(statement.returning(jobs))).first()


async def record_priorities(tx: Transaction, job_id: UUID) -> None:
    """Note that tasks of a job may pass others in its queue, by their priority."""
    await tx.execute(update(jobs).where(jobs.c.id == job_id).values(has_lanes=True))


async def restore(tx: Transaction, job_ids: Sequence[UUID]) -> list[str]:
    """Show those of these jobs again that were hidden, as they were. Return their rooms."""
    hidden = update(jobs).where(jobs.c.id.in_(padded(job_ids)), jobs.c.deleted)
    return list((await tx.execute(hidden.values(deleted=False).returning(jobs.c.room_id))).scalars())


async def lock_limited(tx: Transaction, job_ids: Sequence[UUID]) -> None:
    """Lock jobs whose tasks in flight are to be counted: nobody else claims of them until the commit."""
    if not tx.is_sqlite:
        await tx.execute(_LOCK_CAPPED, {"ids": sorted(job_ids)})


async def soft_delete_orphans(tx: Transaction, job_ids: Sequence[UUID]) -> list[Row[*tuple[Any, ...]]]:
    """Hide those of these jobs that have no worker and no pending task. Return what was hidden.

    One that waits for its time is pending too.

    The rows are locked before they are judged: a registration that just linked a worker is seen.
    """
    if not job_ids:
        return []
    among = jobs.c.id.in_(padded(job_ids))
    await tx.execute(select(jobs.c.id).where(among).order_by(jobs.c.id).with_for_update())
    served = select(links.c.job_id).where(links.c.job_id == jobs.c.id).exists()
    orphaned = and_(
        ~jobs.c.deleted, jobs.c.pending == 0, jobs.c.scheduled == 0, jobs.c.room_id != INTERNAL, ~served
    )
    statement = update(jobs).where(among, orphaned).values(deleted=True)
    return list(await tx.execute(statement.returning(jobs.c.room_id, jobs.c.category, jobs.c.name)))


async def add_to_counts(tx: Transaction, changes: Mapping[UUID, CountChange]) -> None:
    """Add to the counts of pending tasks, in the order of the ids.

    The callers are the functions that write a task's status, and nobody else.
    """
    counted = [{"job": job_id, **changes[job_id]._asdict()} for job_id in sorted(changes)]
    if counted:
        await tx.execute(ADD_TO_COUNTS, counted)


async def rooms(tx: Transaction, job_ids: Sequence[UUID]) -> list[str]:
    """Return the rooms of these jobs, each once."""
    statement = select(jobs.c.room_id).where(jobs.c.id.in_(padded(job_ids))).distinct()
    return sorted((await tx.execute(statement)).scalars())


async def pending_counts(tx: Transaction) -> dict[JobName, int]:
    """Return the jobs that have tasks to claim, and how many may be claimed at most."""
    statement = select(jobs.c.room_id, jobs.c.category, jobs.c.name, jobs.c.pending, jobs.c.max_in_flight)
    rows = await tx.execute(statement.where(jobs.c.pending > 0, ~jobs.c.paused))
    return {
        JobName(row.room_id, row.category, row.name): min(row.pending, row.max_in_flight or row.pending)
        for row in rows
    }


async def page(tx: Transaction, room_id: str, part: Page) -> tuple[list[Row[*tuple[Any, ...]]], int]:
    """Return one page of the jobs a room sees, newest first, and the count of all."""
    wanted = [visible_from(room_id), ~jobs.c.deleted]
    order = jobs.c.created_at.desc(), jobs.c.id.desc()
    rows = await tx.execute(
        select(jobs).where(*wanted).order_by(*order).limit(part.limit).offset(part.offset)
    )
    total = await tx.execute(select(func.count()).select_from(jobs).where(*wanted))
    return list(rows), total.scalar_one()


_LOCK_CAPPED = (
    select(jobs.c.id).where(among(jobs.c.id, bindparam("ids"))).order_by(jobs.c.id)
).with_for_update(key_share=True)


def _named(names: Sequence[JobName]) -> ColumnElement[bool]:
    return jobs.c.full_name.in_([str(name) for name in names])
