"""Jobs: named functions with a JSON Schema."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, or_, select, update

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction, dialect, fetch_page
from zndraw_joblib.server.db.tables import (
    Job,
    QueueBlock,
    RoomCount,
    RoomQueue,
    Statistic,
    Task,
    WorkerJobLink,
)
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, RESERVED, JobName
from zndraw_joblib.wire.operators import HOUR, MINUTE
from zndraw_joblib.wire.policy import JobPolicy

jobs = Job.__table__
links = WorkerJobLink.__table__


@lru_cache(maxsize=4096)
def policy_of(stored: str | None) -> JobPolicy:
    """Return a job's policy from the text in its column `policy`."""
    return JobPolicy() if stored is None else JobPolicy.model_validate_json(stored)


class JobRecord(NamedTuple):
    """A job's row. `stored_policy` is the policy as JSON, None for the default one."""

    id: UUID
    room_id: str
    category: str
    short_name: str
    schema: dict[str, Any]
    created_at: datetime
    deleted: bool
    pending: int
    paused: bool
    has_lanes: bool
    stored_policy: str | None
    max_in_flight: int | None

    @property
    def name(self) -> JobName:
        """The job's full name."""
        return JobName(self.room_id, self.category, self.short_name)

    @property
    def policy(self) -> JobPolicy:
        """The job's policy."""
        return policy_of(self.stored_policy)


class CountChange(NamedTuple):
    """By how many tasks a job's counts grow: those in its queue, and those scheduled for later."""

    queued: int
    later: int


COLUMNS = [
    jobs.c.id,
    jobs.c.room_id,
    jobs.c.category,
    jobs.c.name,
    jobs.c.schema,
    jobs.c.created_at,
    jobs.c.deleted,
    jobs.c.pending,
    jobs.c.paused,
    jobs.c.has_lanes,
    jobs.c.policy,
    jobs.c.max_in_flight,
]
_NAME = [jobs.c.room_id, jobs.c.category, jobs.c.name]
_SELECT = select(*COLUMNS)
# Statements of the hot paths are built once.
_LOCK_NAMED = (
    select(*COLUMNS, func.now().label("now"))
    .where(among(jobs.c.full_name, bindparam("names")), ~jobs.c.deleted)
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
_BY_ID = (
    select(jobs.c.id, jobs.c.fair_round, jobs.c.fair_room)
    .where(among(jobs.c.id, bindparam("ids")))
    .order_by(jobs.c.id)
)
_LOCK = _BY_ID.with_for_update(key_share=True)
_LOCK_FREE = _BY_ID.with_for_update(key_share=True, skip_locked=True)
_PAUSED = select(jobs.c.id).where(among(jobs.c.id, bindparam("ids")), jobs.c.paused).limit(1)
_FULL_NAMES = select(jobs.c.id, jobs.c.full_name).where(among(jobs.c.id, bindparam("ids")))
_LOCK_AND_FIND_PAUSED = (
    select(jobs.c.id, jobs.c.paused)
    .where(among(jobs.c.id, bindparam("ids")))
    .order_by(jobs.c.id)
    .with_for_update(key_share=True)
)
_SET_TURN = (
    update(jobs)
    .where(jobs.c.id == bindparam("job"))
    .values(fair_round=bindparam("round"), fair_room=bindparam("room"))
)
ADD_TO_COUNTS = (
    update(jobs)
    .where(jobs.c.id == bindparam("job"))
    .values(pending=jobs.c.pending + bindparam("queued"), scheduled=jobs.c.scheduled + bindparam("later"))
)


def visible_from(room_id: str) -> ColumnElement[bool]:
    """Match the jobs that a room lists: its own and, unless it is reserved, those of the reserved rooms."""
    rooms = [room_id] if room_id in RESERVED else [room_id, GLOBAL, INTERNAL]
    return jobs.c.room_id.in_(rooms)


async def by_name(tx: Transaction, name: JobName) -> JobRecord | None:
    """Return the active job of this name."""
    return await _first(tx, _is_named(name), ~jobs.c.deleted)


async def by_name_with_deleted(tx: Transaction, name: JobName) -> JobRecord | None:
    """Return the job of this name, also if it is soft-deleted."""
    return await _first(tx, _is_named(name))


async def _first(tx: Transaction, *conditions: ColumnElement[bool]) -> JobRecord | None:
    row = (await tx.execute(_SELECT.where(*conditions))).first()
    return None if row is None else JobRecord(*row)


async def lock_by_names(tx: Transaction, names: Sequence[JobName]) -> dict[JobName, JobRecord]:
    """Lock the active jobs of these names until the commit, and return them."""
    rows = (await tx.execute(_LOCK_NAMED, {"names": padded([str(name) for name in names])})).all()
    tx.record_now(rows)
    records = [JobRecord(*row[:-1]) for row in rows]
    return {job.name: job for job in records}


async def add_or_lock(
    tx: Transaction, name: JobName, schema: dict[str, Any], policy: JobPolicy
) -> tuple[JobRecord, bool]:
    """Insert the job of this name unless it exists. Return it, locked, and whether it is new."""
    values = {
        **name._asdict(),
        "id": uuid4(),
        "schema": schema,
        "created_at": await tx.now(),
        "deleted": False,
        "pending": 0,
        "scheduled": 0,
        "paused": False,
        "has_lanes": False,
        "fair_round": 0,
        "fair_room": "",
        **_stored(policy),
    }
    statement = dialect(tx).insert(jobs).values(**values).on_conflict_do_nothing().returning(jobs.c.id)
    while True:
        is_new = (await tx.execute(statement)).first() is not None
        row = (await tx.execute(_SELECT.where(_is_named(name)).with_for_update())).first()
        # A soft-deleted job may be pruned between the two statements.
        if row is not None:
            return JobRecord(*row), is_new


async def count_active(tx: Transaction, room_id: str, limit: int) -> int:
    """Count the active jobs of a room, up to `limit`."""
    active = select(jobs.c.id).where(jobs.c.room_id == room_id, ~jobs.c.deleted).limit(limit)
    return int((await tx.execute(select(func.count()).select_from(active.subquery()))).scalar_one())


async def restore_with(tx: Transaction, job_id: UUID, schema: dict[str, Any], policy: JobPolicy) -> None:
    """Restore a soft-deleted job with a new schema and a new policy, not paused."""
    values = {"deleted": False, "deleted_at": None, "paused": False, "schema": schema, **_stored(policy)}
    await tx.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


async def replace(tx: Transaction, job_id: UUID, schema: dict[str, Any], policy: JobPolicy) -> None:
    """Replace the schema and the policy of an active job."""
    values = {"schema": schema, **_stored(policy)}
    await tx.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


async def restore(tx: Transaction, job_ids: Sequence[UUID]) -> list[str]:
    """Restore those of these jobs that are soft-deleted, unchanged. Return their rooms."""
    deleted = update(jobs).where(jobs.c.id.in_(padded(job_ids)), jobs.c.deleted)
    restored = deleted.values(deleted=False, deleted_at=None).returning(jobs.c.room_id)
    return list((await tx.execute(restored)).scalars())


async def soft_delete_orphans(tx: Transaction, job_ids: Sequence[UUID]) -> list[JobName]:
    """Soft-delete those of these jobs that have no worker and no pending task. Return their names.

    The rows are locked before they are checked, so that a link committed meanwhile is seen.
    """
    if not job_ids:
        return []
    condition = jobs.c.id.in_(padded(job_ids))
    await lock(tx, job_ids)
    served = select(links.c.job_id).where(links.c.job_id == jobs.c.id).exists()
    orphaned = and_(
        ~jobs.c.deleted, jobs.c.pending == 0, jobs.c.scheduled == 0, jobs.c.room_id != INTERNAL, ~served
    )
    statement = update(jobs).where(condition, orphaned).values(deleted=True, deleted_at=await tx.now())
    return [JobName(*row) for row in await tx.execute(statement.returning(*_NAME))]


async def served(tx: Transaction, job_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of these jobs that have a worker."""
    statement = select(links.c.job_id).where(links.c.job_id.in_(padded(job_ids))).distinct()
    return set((await tx.execute(statement)).scalars())


async def by_names(tx: Transaction, names: Sequence[str]) -> list[JobRecord]:
    """Return the active jobs of these full names, in the order of their ids."""
    named = jobs.c.full_name.in_(padded(names))
    rows = await tx.execute(_SELECT.where(named, ~jobs.c.deleted).order_by(jobs.c.id))
    return [JobRecord(*row) for row in rows]


async def pause(tx: Transaction, name: JobName, *, paused: bool) -> JobRecord | None:
    """Pause or resume an active job. Return its new state."""
    statement = update(jobs).where(_is_named(name), ~jobs.c.deleted).values(paused=paused)
    row = (await tx.execute(statement.returning(*COLUMNS))).first()
    return None if row is None else JobRecord(*row)


async def lock_and_find_paused(tx: Transaction, job_ids: Collection[UUID]) -> set[UUID]:
    """Lock jobs until the commit, in the order of their ids. Return the ids of the paused ones."""
    if not job_ids:
        return set()
    rows = await tx.execute(_LOCK_AND_FIND_PAUSED, {"ids": padded(sorted(job_ids))})
    return {row.id for row in rows if row.paused}


async def are_paused(tx: Transaction, job_ids: Iterable[UUID]) -> bool:
    """Return whether any of these jobs is paused."""
    ids = {"ids": padded(sorted(set(job_ids)))}
    return (await tx.execute(_PAUSED, ids)).first() is not None


async def record_priorities(tx: Transaction, job_id: UUID) -> None:
    """Record that the queue of a job contains tasks of several priorities."""
    await tx.execute(update(jobs).where(jobs.c.id == job_id).values(has_lanes=True))


async def lock(tx: Transaction, job_ids: Iterable[UUID], *, skip_locked: bool = False) -> set[UUID]:
    """Lock jobs until the commit, in the order of their ids: no other transaction changes their queues.

    Return the ids of the locked jobs. With `skip_locked`, skip jobs that another transaction has locked.
    """
    ids = sorted(set(job_ids))
    if tx.is_sqlite or not ids:
        return set(ids)
    return set((await tx.execute(_LOCK_FREE if skip_locked else _LOCK, {"ids": ids})).scalars())


async def lock_named(tx: Transaction, names: Sequence[JobName]) -> None:
    """Lock the jobs of these names, also soft-deleted ones, in the order of their ids."""
    named = jobs.c.full_name.in_(padded([str(name) for name in names]))
    await tx.execute(select(jobs.c.id).where(named).order_by(jobs.c.id).with_for_update(key_share=True))


async def lock_turns(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, tuple[int, str]]:
    """Lock jobs as `lock` does. Return the turn of the last fair claim of each: its round and its room."""
    rows = await tx.execute(_LOCK, {"ids": padded(sorted(set(job_ids)))})
    return {job_id: (number, room) for job_id, number, room in rows}


async def set_turn(tx: Transaction, job_id: UUID, turn: tuple[int, str]) -> None:
    """Record the turn of the last fair claim of a job, which the caller has locked."""
    await tx.execute(_SET_TURN, {"job": job_id, "round": turn[0], "room": turn[1]})


async def add_to_counts(tx: Transaction, changes: Mapping[UUID, CountChange]) -> None:
    """Add to the counts of pending tasks, in the order of the job ids.

    Only the functions that write a task's status call this.
    """
    rows = [{"job": job_id, **changes[job_id]._asdict()} for job_id in sorted(changes)]
    if rows:
        await tx.execute(ADD_TO_COUNTS, rows)


async def rooms(tx: Transaction, job_ids: Sequence[UUID]) -> list[str]:
    """Return the rooms of these jobs, each once."""
    statement = select(jobs.c.room_id).where(jobs.c.id.in_(padded(job_ids))).distinct()
    return sorted((await tx.execute(statement)).scalars())


async def full_names(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the names of jobs, also of soft-deleted ones, by id."""
    rows = await tx.execute(_FULL_NAMES, {"ids": padded(sorted(set(job_ids)))})
    return {job_id: name for job_id, name in rows}


async def claimable_counts(tx: Transaction) -> dict[JobName, int]:
    """Return the jobs with pending tasks, and how many of these may be claimed at most."""
    statement = select(*_NAME, jobs.c.pending, jobs.c.max_in_flight)
    rows = await tx.execute(statement.where(jobs.c.pending > 0, ~jobs.c.paused))
    return {JobName(*name): min(pending, limit or pending) for *name, pending, limit in rows}


async def page(tx: Transaction, room_id: str, part: Page) -> tuple[list[JobRecord], int]:
    """Return one page of the jobs that a room lists, newest first, and the count of all."""
    condition = and_(visible_from(room_id), ~jobs.c.deleted)
    rows, total = await fetch_page(tx, jobs, _SELECT, condition, part)
    return [JobRecord(*row) for row in rows], total


def _stored(policy: JobPolicy) -> dict[str, Any]:
    is_default = policy == JobPolicy()
    return {"policy": None if is_default else policy.model_dump_json(), "max_in_flight": policy.max_in_flight}


def _is_named(name: JobName) -> ColumnElement[bool]:
    return jobs.c.full_name == str(name)


# Delete soft-deleted jobs, with their schemas, to which nothing refers.

FIRST = UUID(int=0)
# Of so many rooms the counts are deleted at once.
_MAX_ROOMS = 500

room_counts = RoomCount.__table__
blocks = QueueBlock.__table__
statistics = Statistic.__table__
_REFERENCES = [table.__table__.c.job_id for table in (Task, WorkerJobLink, RoomQueue)]


def _is_unused() -> ColumnElement[bool]:
    has_statistics = select(statistics.c.start).where(
        statistics.c.resolution.in_([MINUTE, HOUR]), statistics.c.job_id == jobs.c.id
    )
    # These are deleted in batches of their own.
    has_empty_blocks = select(blocks.c.block).where(blocks.c.job_id == jobs.c.id, blocks.c.queued == 0)
    references = [select(column).where(column == jobs.c.id) for column in _REFERENCES]
    return and_(
        jobs.c.deleted, *[~query.exists() for query in (*references, has_statistics, has_empty_blocks)]
    )


async def prune(tx: Transaction, deleted_before: datetime, after: UUID, limit: int) -> tuple[int, UUID]:
    """Delete those of the `limit` soft-deleted jobs behind `after` that have no tasks and no statistics.

    Return how many rows were deleted, and the id to continue behind; `FIRST` at the end. A job that another
    transaction has locked stays: it may be registered again. So does one whose counts are too many.
    """
    is_old = or_(jobs.c.deleted_at.is_(None), jobs.c.deleted_at < deleted_before)
    following = select(jobs.c.id).where(jobs.c.deleted, is_old, jobs.c.id > after).order_by(jobs.c.id)
    ids = list((await tx.execute(following.limit(limit))).scalars())
    if not ids:
        return 0, FIRST
    query = select(jobs.c.id, jobs.c.deleted_at).where(jobs.c.id.in_(padded(ids)), _is_unused())
    locked = query.order_by(jobs.c.id).with_for_update(skip_locked=True, of=jobs)
    rows = (await tx.execute(locked)).all()
    # A server of an earlier release deleted these.
    if undated := [row.id for row in rows if row.deleted_at is None]:
        dated = update(jobs).where(jobs.c.id.in_(padded(undated)))
        await tx.execute(dated.values(deleted_at=await tx.now()))
    at_end = ids[-1] if len(ids) == limit else FIRST
    unused = [row.id for row in rows if row.deleted_at is not None]
    if not unused:
        return 0, at_end
    deleted, rest = await _delete_room_counts(tx, unused)
    if uncounted := [job_id for job_id in unused if rest is None or job_id < rest]:
        deleted += await _delete(tx, uncounted)
    return deleted, at_end if rest is None else UUID(int=rest.int - 1)


async def _delete_room_counts(tx: Transaction, job_ids: Sequence[UUID]) -> tuple[int, UUID | None]:
    """Delete counts of a limited number of rooms. Return how many, and the first job that may have more.

    All counts of a job in a room go at once: only their sum is right, and the job may be restored.
    """
    counts = (
        select(room_counts.c.job_id, room_counts.c.room_id)
        .where(room_counts.c.job_id.in_(padded(job_ids)))
        .distinct()
    )
    counts = counts.order_by(room_counts.c.job_id, room_counts.c.room_id).limit(_MAX_ROOMS)
    rows = (await tx.execute(counts)).all()
    if not rows:
        return 0, None
    counted = sorted({row.job_id for row in rows})
    room_ids = sorted({row.room_id for row in rows})
    own = and_(room_counts.c.room_id.in_(padded(room_ids)), room_counts.c.job_id.in_(padded(counted)))
    deleted = (await tx.execute(delete(room_counts).where(own).returning(room_counts.c.part))).all()
    return len(deleted), counted[-1] if len(rows) == _MAX_ROOMS else None


async def _delete(tx: Transaction, job_ids: Sequence[UUID]) -> int:
    """Delete jobs without tasks, and what has no meaning of its own then. Return the number of rows."""
    own = padded(job_ids)
    of_jobs = and_(statistics.c.resolution.in_([0, MINUTE, HOUR]), statistics.c.job_id.in_(own))
    deleted = (await tx.execute(delete(statistics).where(of_jobs).returning(statistics.c.start))).all()
    emptied = (
        await tx.execute(delete(blocks).where(blocks.c.job_id.in_(own)).returning(blocks.c.lane))
    ).all()
    await tx.execute(delete(jobs).where(jobs.c.id.in_(own)))
    return len(deleted) + len(emptied) + len(job_ids)
