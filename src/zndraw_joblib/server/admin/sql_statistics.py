"""The rows of the statistics, and the time up to which the tasks were read."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, INTEGER, one_row, statement
from zndraw_joblib.server.db.tables import Statistic
from zndraw_joblib.server.queue import sql_occurrences
from zndraw_joblib.server.queue.sql_occurrences import KEY
from zndraw_joblib.server.queue.sql_task_rows import CHUNK
from zndraw_joblib.wire.operators import HOUR, MINUTE, Counters, Histogram, Interval

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
    """What happened to the tasks of a job lately, and since when tasks failed and attempts were lost."""

    job: str
    job_id: UUID
    completed: int
    failed: int
    lost: int
    failed_since: datetime | None = None
    lost_since: datetime | None = None


_LOCK = statement(
    f"""
SELECT {", ".join(Position._fields)} FROM joblib_statistic_position WHERE key = {KEY}
FOR UPDATE SKIP LOCKED
""",
    *Position._fields,
)
_BEGIN = statement(
    f"INSERT INTO joblib_statistic_position {one_row(('key', *Position._fields))} ON CONFLICT DO NOTHING",
    key=INTEGER,
)
_MOVE = statement(
    f"""
UPDATE joblib_statistic_position SET {", ".join(f"{name} = :{name}" for name in Position._fields)}
WHERE key = {KEY}
"""
)
_NUMBERS = ("submitted", "completed", "failed", "cancelled", "retried", "lost")
_COLUMNS = Statistic.__table__.c.keys()
_CHANGING = [name for name in _COLUMNS if name not in Key._fields]
_WRITE = statement(
    f"""
INSERT INTO joblib_statistic {one_row(_COLUMNS)}
ON CONFLICT ({", ".join(Key._fields)}) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _CHANGING)}
""",
    failed=BIG_INTEGER,
    cancelled=BIG_INTEGER,
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM joblib_statistic WHERE resolution ="
_AT_START = statement(f"{_SELECT} :resolution AND start = :start AND job_id = ANY (:all_job_id)", *_COLUMNS)
_READ = statement(
    f"{_SELECT} :resolution AND job_id = :job_id AND start >= :since AND start < :until ORDER BY start",
    *_COLUMNS,
)
_TOTALS = statement(f"{_SELECT} {TOTALS} AND job_id = ANY (:all_job_id)", *_COLUMNS)
_OF_JOBS = statement(
    f"""
SELECT {", ".join(_COLUMNS)}, full_name
FROM joblib_statistic LEFT JOIN joblib_job ON joblib_statistic.job_id = joblib_job.id
WHERE resolution = :resolution AND start >= :since
ORDER BY start, full_name
""",
    *(*_COLUMNS, "full_name"),
)
_ENDS = statement(
    f"""
SELECT full_name, joblib_job.id, sum(completed), sum(failed), sum(lost),
    min(CASE WHEN failed > 0 THEN start END), min(CASE WHEN lost > 0 THEN start END)
FROM joblib_statistic JOIN joblib_job ON joblib_statistic.job_id = joblib_job.id
WHERE resolution = {MINUTE} AND start >= :since AND failed + lost + completed > 0
GROUP BY full_name, joblib_job.id ORDER BY full_name
""",
    *RecentEnds._fields,
    failed_since=UtcDateTime(),
    lost_since=UtcDateTime(),
)
_ENDS_BEFORE = statement(
    f"""
SELECT job_id, sum(completed), sum(failed) FROM joblib_statistic
WHERE resolution = {HOUR} AND job_id = ANY (:all_job_id) AND start >= :since AND start < :until
GROUP BY job_id
""",
    *("job_id", "completed", "failed"),
    until=UtcDateTime(),
)
_OLDEST = statement("SELECT min(start) FROM joblib_statistic WHERE resolution = :resolution", "start")
_PRUNE = statement("DELETE FROM joblib_statistic WHERE resolution = :resolution AND start < :until")


async def lock_position(tx: Transaction) -> Position | None:
    """Lock and return the position. None if another server holds it, or if it begins now."""
    row = (await tx.execute(_LOCK)).first()
    if row is not None:
        return Position(*row)
    first = await position_now(tx)
    await tx.execute(_BEGIN, {"key": KEY, **first._asdict()})
    return None


async def position_now(tx: Transaction) -> Position:
    """Return the position from which only what happens from now on is read."""
    now, numbers = await tx.now(), await sql_occurrences.numbers(tx)
    # It begins with the first transaction after the numbers.
    at = max(now, numbers.at)
    return Position(at, numbers.task, numbers.attempt, at, numbers.task, numbers.attempt)


async def move_position(tx: Transaction, new: Position) -> None:
    """Store the position, which is locked."""
    await tx.execute(_MOVE, new._asdict())


async def add(tx: Transaction, changes: Mapping[Key, Counters]) -> None:
    """Add counts to the rows of these keys. The position is locked, so no other transaction does."""
    rows = {}
    for resolution, start in sorted({(key.resolution, key.start) for key in changes}):
        job_ids = sorted(key.job_id for key in changes if (key.resolution, key.start) == (resolution, start))
        stored = await _of_jobs(tx, resolution, start, job_ids)
        for job_id in job_ids:
            key = Key(resolution, job_id, start)
            rows[key] = _added(stored.get(job_id, Counters()), changes[key])
    if rows:
        await tx.execute(_WRITE, [{**key._asdict(), **_stored(counters)} for key, counters in rows.items()])


async def _of_jobs(
    tx: Transaction, resolution: int, start: datetime, job_ids: list[UUID]
) -> dict[UUID, Counters]:
    counters: dict[UUID, Counters] = {}
    for first in range(0, len(job_ids), CHUNK):
        ids = padded(job_ids[first : first + CHUNK])
        rows = await tx.execute(_AT_START, {"resolution": resolution, "start": start, "all_job_id": ids})
        counters |= {row.job_id: Counters(**_counted(row)) for row in rows}
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
    params = {"resolution": resolution, "job_id": job_id, "since": since, "until": until}
    rows = await tx.execute(_READ, params)
    return [Interval(start=row.start, **_counted(row)) for row in rows]


async def of_jobs(tx: Transaction, resolution: int, since: datetime) -> list[tuple[str | None, Interval]]:
    """Return the intervals of all jobs since a time, each with the full name of its job.

    The name is None for all jobs together. The totals are those of the resolution `TOTALS` since `BEGINNING`.
    """
    rows = await tx.execute(_OF_JOBS, {"resolution": resolution, "since": since})
    return [(row.full_name, Interval(start=row.start, **_counted(row))) for row in rows]


async def ends(tx: Transaction, since: datetime) -> list[RecentEnds]:
    """Return what was counted in the minutes since a time, for each job with ends."""
    rows = await tx.execute(_ENDS, {"since": since})
    return [
        RecentEnds(job, job_id, int(completed), int(failed), int(lost), *first)
        for job, job_id, completed, failed, lost, *first in rows
    ]


async def ends_before(
    tx: Transaction, job_ids: Sequence[UUID], since: datetime, until: datetime
) -> dict[UUID, tuple[int, int]]:
    """Return how many tasks of jobs completed and failed in the hours that began between two times."""
    if not job_ids:
        return {}
    rows = await tx.execute(_ENDS_BEFORE, {"all_job_id": padded(job_ids), "since": since, "until": until})
    return {job_id: (int(completed), int(failed)) for job_id, completed, failed in rows}


async def totals(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, Any]:
    """Return the rows since the beginning of these jobs, and that of `ALL_JOBS`."""
    rows = await tx.execute(_TOTALS, {"all_job_id": padded([ALL_JOBS, *job_ids])})
    return {row.job_id: row for row in rows}


async def prune(tx: Transaction, resolution: int, before: datetime) -> None:
    """Delete a batch of the intervals that begin before a time, the oldest first."""
    params = {"resolution": resolution}
    oldest = (await tx.execute(_OLDEST, params)).scalar_one()
    if oldest is not None and oldest < before:
        await tx.execute(_PRUNE, {**params, "until": min(before, oldest + _PRUNED_AT_ONCE[resolution])})
