"""The rows of the statistics, and the time up to which the tasks were read."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select, update

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.tables import Job, Statistic, StatisticPosition
from zndraw_joblib.server.queue import sql_occurrences
from zndraw_joblib.server.queue.sql_occurrences import KEY
from zndraw_joblib.server.queue.sql_task_rows import CHUNK
from zndraw_joblib.wire.operators import MINUTE, Counters, Histogram, Interval

statistics = Statistic.__table__
jobs = Job.__table__
position = StatisticPosition.__table__

# The job that stands for all jobs, and the `start` of the totals since the first start of a server.
ALL_JOBS = UUID(int=0)
TOTALS = 0
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
# A batch of old rows deletes those of at most this time: about as many for each job.
_PRUNED_AT_ONCE = {60: timedelta(minutes=5), 3600: timedelta(hours=2)}


class Position(NamedTuple):
    """Until when the statistics have read; see `StatisticPosition`."""

    until: datetime
    task_floor: int
    attempt_floor: int
    next_at: datetime
    next_task_floor: int
    next_attempt_floor: int


class Key(NamedTuple):
    """A row of the statistics."""

    resolution: int
    job_id: UUID
    start: datetime


class RecentEnds(NamedTuple):
    """What happened to the tasks of a job lately."""

    job: str
    completed: int
    failed: int
    lost: int


_COLUMNS = [position.c[name] for name in Position._fields]
_LOCK = select(*_COLUMNS).where(position.c.key == KEY).with_for_update(skip_locked=True)
_NUMBERS = ("submitted", "completed", "failed", "cancelled", "retried", "lost")
_CHANGING = [column.name for column in statistics.c if not column.primary_key]
_NAMED = select(statistics, jobs.c.full_name).join_from(
    statistics, jobs, statistics.c.job_id == jobs.c.id, isouter=True
)

_ENDS = (
    select(jobs.c.full_name, *[func.sum(statistics.c[name]) for name in RecentEnds._fields[1:]])
    .join_from(statistics, jobs, statistics.c.job_id == jobs.c.id)
    .where(
        statistics.c.resolution == MINUTE,
        statistics.c.start >= bindparam("since", type_=statistics.c.start.type),
        statistics.c.failed + statistics.c.lost + statistics.c.completed > 0,
    )
    .group_by(jobs.c.full_name)
    .order_by(jobs.c.full_name)
)
_TOTALS = select(statistics).where(
    statistics.c.resolution == TOTALS, among(statistics.c.job_id, bindparam("ids"))
)


async def lock_position(tx: Transaction) -> Position | None:
    """Lock and return the position. None if another server holds it, or if it begins now."""
    row = (await tx.execute(_LOCK)).first()
    if row is not None:
        return Position(*row)
    first = await position_now(tx)
    added = dialect(tx).insert(position).values(key=KEY, **first._asdict())
    await tx.execute(added.on_conflict_do_nothing())
    return None


async def position_now(tx: Transaction) -> Position:
    """Return the position from which only what happens from now on is read."""
    now, numbers = await tx.now(), await sql_occurrences.numbers(tx)
    # It begins with the first transaction after the numbers.
    at = max(now, numbers.at)
    return Position(at, numbers.task, numbers.attempt, at, numbers.task, numbers.attempt)


async def move_position(tx: Transaction, new: Position) -> None:
    """Store the position, which is locked."""
    await tx.execute(update(position).where(position.c.key == KEY).values(**new._asdict()))


async def add(tx: Transaction, changes: Mapping[Key, Counters]) -> None:
    """Add counts to the rows of these keys. The position is locked, so no other transaction does."""
    rows = {}
    for resolution, start in sorted({(key.resolution, key.start) for key in changes}):
        job_ids = sorted(key.job_id for key in changes if (key.resolution, key.start) == (resolution, start))
        stored = await _of_jobs(tx, resolution, start, job_ids)
        for job_id in job_ids:
            key = Key(resolution, job_id, start)
            rows[key] = _added(stored.get(job_id, Counters()), changes[key])
    insert = dialect(tx).insert(statistics)
    upsert = insert.on_conflict_do_update(
        index_elements=list(Key._fields), set_={name: insert.excluded[name] for name in _CHANGING}
    )
    if rows:
        await tx.execute(upsert, [{**key._asdict(), **_stored(counters)} for key, counters in rows.items()])


async def _of_jobs(
    tx: Transaction, resolution: int, start: datetime, job_ids: list[UUID]
) -> dict[UUID, Counters]:
    counters: dict[UUID, Counters] = {}
    for first in range(0, len(job_ids), CHUNK):
        of_jobs = statistics.c.job_id.in_(padded(job_ids[first : first + CHUNK]))
        statement = select(statistics).where(
            statistics.c.resolution == resolution, statistics.c.start == start, of_jobs
        )
        counters |= {row.job_id: Counters(**_counted(row)) for row in await tx.execute(statement)}
    return counters


def _added(counters: Counters, more: Counters) -> Counters:
    causes = dict(counters.causes)
    for code, number in more.causes.items():
        causes[code] = causes.get(code, 0) + number
    numbers = {name: getattr(counters, name) + getattr(more, name) for name in _NUMBERS}
    return Counters(
        **numbers,
        causes=causes,
        waiting=_sum(counters.waiting, more.waiting),
        running=_sum(counters.running, more.running),
    )


def _sum(one: Histogram, other: Histogram) -> Histogram:
    buckets = [sum(pair) for pair in zip(one.buckets, other.buckets, strict=True)]
    return Histogram(buckets=buckets, sum=one.sum + other.sum)


def _stored(counters: Counters) -> dict[str, Any]:
    return {name: getattr(counters, name) for name in _NUMBERS} | {
        "waiting": counters.waiting.buckets,
        "running": counters.running.buckets,
        "waiting_seconds": counters.waiting.sum,
        "running_seconds": counters.running.sum,
        "causes": counters.causes,
    }


def _counted(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _NUMBERS} | {
        "causes": row.causes,
        "waiting": Histogram(buckets=row.waiting, sum=row.waiting_seconds),
        "running": Histogram(buckets=row.running, sum=row.running_seconds),
    }


async def read(
    tx: Transaction, resolution: int, job_id: UUID, since: datetime, until: datetime
) -> list[Interval]:
    """Return the intervals of a job, or of `ALL_JOBS`, that begin at these times, oldest first."""
    statement = select(statistics).where(
        statistics.c.resolution == resolution,
        statistics.c.job_id == job_id,
        statistics.c.start >= since,
        statistics.c.start < until,
    )
    rows = await tx.execute(statement.order_by(statistics.c.start))
    return [Interval(start=row.start, **_counted(row)) for row in rows]


async def of_jobs(tx: Transaction, resolution: int, since: datetime) -> list[tuple[str | None, Interval]]:
    """Return the intervals of all jobs since a time, each with the full name of its job.

    The name is None for all jobs together. The totals are those of the resolution `TOTALS` since `BEGINNING`.
    """
    statement = _NAMED.where(statistics.c.resolution == resolution, statistics.c.start >= since)
    rows = await tx.execute(statement.order_by(statistics.c.start, jobs.c.full_name))
    return [(row.full_name, Interval(start=row.start, **_counted(row))) for row in rows]


async def ends(tx: Transaction, since: datetime) -> list[RecentEnds]:
    """Return what was counted in the minutes since a time, for each job with ends."""
    rows = await tx.execute(_ENDS, {"since": since})
    return [RecentEnds(job, *map(int, numbers)) for job, *numbers in rows]


async def totals(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, Any]:
    """Return the rows since the beginning of these jobs, and that of `ALL_JOBS`."""
    rows = await tx.execute(_TOTALS, {"ids": padded([ALL_JOBS, *job_ids])})
    return {row.job_id: row for row in rows}


async def prune(tx: Transaction, resolution: int, before: datetime) -> None:
    """Delete a batch of the intervals that begin before a time, the oldest first."""
    of_resolution = statistics.c.resolution == resolution
    oldest = (await tx.execute(select(func.min(statistics.c.start)).where(of_resolution))).scalar_one()
    if oldest is not None and oldest < before:
        until = min(before, oldest + _PRUNED_AT_ONCE[resolution])
        await tx.execute(delete(statistics).where(of_resolution, statistics.c.start < until))
