"""Statistics of tasks: what happened in each minute and hour, read from the tasks after it has happened.

A pass reads the time since the last pass, and adds what happened to the counts of its minutes and hours, and
to the totals. Passes of several servers take turns; a pass that fails changes nothing.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.admin import sql_statistics
from zndraw_joblib.server.admin.sql_statistics import ALL_JOBS, BEGINNING, TOTALS, Key, Position
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import rules_transitions, sql_jobs, sql_occurrences
from zndraw_joblib.server.queue.sql_occurrences import RETURNED, SUBMITTED, Occurrence, TimeRange
from zndraw_joblib.wire.names import JobName
from zndraw_joblib.wire.operators import HOUR, MINUTE, Counters, Histogram, Interval, Statistics
from zndraw_joblib.wire.problems import (
    InternalTimeout,
    JobNotFound,
    Released,
    RunTimeout,
    StartTimeout,
    WorkerLost,
)
from zndraw_joblib.wire.statuses import TaskStatus

# A transaction of PostgreSQL counts if it ends within this time after its start.
LATE = timedelta(minutes=2)
# A transaction that has just started may not yet be listed as open, and what it writes may have ended before.
SETTLE = timedelta(seconds=1 + rules_transitions.MAX_ENDED_AGO)
_LONGEST = timedelta(minutes=5)
# If nothing happens, the position moves this often.
_IDLE = timedelta(seconds=30)
# The clock has been wrong: the statistics begin anew now, instead of at the time that they have reached.
_AHEAD = timedelta(days=1)
MAX_INTERVALS, _DEFAULT_INTERVALS = 2880, 60
# Nothing happened earlier.
_FIRST = BEGINNING + MAX_INTERVALS * timedelta(seconds=HOUR)
_LOST = {error.problem_id() for error in (WorkerLost, RunTimeout, StartTimeout, InternalTimeout)}
_NOT_FAILED = {error.problem_id() for error in (Released, StartTimeout)}


class StatisticsRetention(NamedTuple):
    """For how long to keep the counts of minutes and of hours."""

    minutes: timedelta
    hours: timedelta


class Pass(NamedTuple):
    """What a pass has read: how many occurrences, and whether there is more to read now."""

    number: int
    is_behind: bool


async def advance(tx: Transaction, retention: StatisticsRetention, settle: timedelta = SETTLE) -> Pass:
    """Read what happened since the last pass, at most 5 minutes of it. Add it to the statistics.

    If another server does so at this moment, do nothing.
    """
    position = await sql_statistics.lock_position(tx)
    if position is None:
        return Pass(0, is_behind=False)
    latest = await _latest(tx, settle)
    if latest <= position.until:
        if position.until - latest > _AHEAD:
            await sql_statistics.move_position(tx, await sql_statistics.position_now(tx))
        return Pass(0, is_behind=False)
    until = min(latest, position.until + _LONGEST)
    interval = await _interval(tx, position, until, is_behind=until < latest)
    occurrences = await sql_occurrences.read(tx, interval)
    if not occurrences and until < latest:
        until = await _next_time(tx, interval, latest)
    if occurrences or until - position.until >= _IDLE:
        ids = sorted({occurrence.job_id for occurrence in occurrences})
        await sql_statistics.add(tx, counts(occurrences, await sql_jobs.stable_ids(tx, ids)))
        await sql_statistics.move_position(tx, await _moved(tx, position, interval, until))
        await _prune(tx, until, retention)
    return Pass(sum(occurrence.number for occurrence in occurrences), until < latest)


async def _latest(tx: Transaction, settle: timedelta) -> datetime:
    """Return the time before which all transactions have ended: what happened before is complete.

    The time of a row is that of the start of its transaction; that of an end may be up to `MAX_ENDED_AGO`
    earlier.
    """
    now = await tx.now()
    if tx.is_sqlite or tx.has_own_clock:
        return now - settle  # this transaction holds the only lock for writes
    oldest = await sql_occurrences.oldest_transaction(tx)
    return max(now - LATE, min(now, oldest or now) - settle)


async def _interval(tx: Transaction, position: Position, until: datetime, *, is_behind: bool) -> TimeRange:
    interval = TimeRange(position.until, until, position.task_floor, position.attempt_floor)
    if is_behind and (beyond := await sql_occurrences.after(tx, position.task_floor, until + LATE)):
        # A transaction gets its numbers within LATE after its start.
        return interval._replace(task_ceiling=beyond[0])
    return interval


async def _next_time(tx: Transaction, interval: TimeRange, latest: datetime) -> datetime:
    """Return the time until which nothing happened after an interval in which nothing happened."""
    created = await sql_occurrences.after(tx, interval.task_floor, interval.until)
    ended = await sql_occurrences.next_end(tx, interval.attempt_floor, interval.until)
    times = [latest] if ended is None else [latest, ended]
    if created is not None:
        times.append(created[1] - LATE)
    return max(interval.until, min(times))


async def _moved(tx: Transaction, position: Position, interval: TimeRange, until: datetime) -> Position:
    """Return the position after an interval was read."""
    task_floor, attempt_floor = position.task_floor, position.attempt_floor
    new = position._replace(until=until)
    if until >= position.next_at:
        task_floor = max(task_floor, position.next_task_floor)
        attempt_floor = max(attempt_floor, position.next_attempt_floor)
        task, attempt, at = await sql_occurrences.numbers(tx)
        new = new._replace(next_at=at, next_task_floor=task, next_attempt_floor=attempt)
    if interval.task_ceiling < sql_occurrences.NO_CEILING:
        task_floor = max(task_floor, await sql_occurrences.last_before(tx, interval, interval.until - LATE))
    return new._replace(task_floor=task_floor, attempt_floor=attempt_floor)


async def _prune(tx: Transaction, until: datetime, retention: StatisticsRetention) -> None:
    await sql_statistics.prune(tx, MINUTE, until - retention.minutes)
    await sql_statistics.prune(tx, HOUR, until - retention.hours)


def counts(
    occurrences: Iterable[Occurrence], stable_ids: Mapping[UUID, UUID] = MappingProxyType({})
) -> dict[Key, Counters]:
    """Return the counts of what happened: for each job and for all jobs, by minute, by hour and in all.

    `stable_ids` has the jobs of versions other than their first one.
    """
    changes: dict[Key, Counters] = {}
    for occurrence in occurrences:
        minute = datetime.fromtimestamp(occurrence.minute * MINUTE, UTC)
        hour = minute.replace(minute=0)
        for job_id in (stable_ids.get(occurrence.job_id, occurrence.job_id), ALL_JOBS):
            for resolution, start in ((MINUTE, minute), (HOUR, hour), (TOTALS, BEGINNING)):
                _count(changes.setdefault(Key(resolution, job_id, start), Counters()), occurrence)
    return changes


def _count(counters: Counters, occurrence: Occurrence) -> None:
    if occurrence.kind == SUBMITTED:
        counters.submitted += occurrence.number
        return
    _observe(counters.waiting, occurrence.waiting, occurrence.number, occurrence.waiting_seconds)
    _observe(counters.running, occurrence.running, occurrence.number, occurrence.running_seconds)
    code = occurrence.code or ""
    if occurrence.kind == RETURNED:
        counters.retried += 0 if code in _NOT_FAILED else occurrence.number
        is_cause = code != Released.problem_id()
    else:
        setattr(counters, occurrence.kind, getattr(counters, occurrence.kind) + occurrence.number)
        is_cause = occurrence.kind == TaskStatus.FAILED
    if is_cause and code:
        counters.causes[code] = counters.causes.get(code, 0) + occurrence.number
        counters.lost += occurrence.number if code in _LOST else 0


def _observe(histogram: Histogram, bucket: int | None, number: int, seconds: float) -> None:
    if bucket is not None:
        histogram.buckets[bucket] += number
        histogram.sum += seconds


async def read(
    tx: Transaction, name: JobName | None, resolution: int, since: datetime | None, until: datetime | None
) -> Statistics:
    """Return the statistics of a job, or of all jobs. Raises `JobNotFound`."""
    now = await tx.now()
    job_id = ALL_JOBS
    if name is not None:
        job = await sql_jobs.by_name_with_deleted(tx, name)
        if job is None:
            raise JobNotFound(f"Job {str(name)!r} not found")
        job_id = job.stable_id
    since, until = _span(resolution, since, until, now)
    return Statistics(
        job_id=None if name is None else job_id,
        resolution=resolution,
        until=await sql_occurrences.read_until(tx) or now,
        intervals=await sql_statistics.read(tx, resolution, job_id, since, until),
    )


async def read_tagged(
    tx: Transaction,
    tag: str,
    room_id: str | None,
    resolution: int,
    since: datetime | None,
    until: datetime | None,
) -> Statistics:
    """Return the statistics of the newest 10,000 tasks with a tag, of a room or of all, from their rows."""
    now = await tx.now()
    since, until = _span(resolution, since, until, now)
    occurrences = await sql_occurrences.read_tagged(tx, tag, room_id, since, until)
    return Statistics(
        tag=tag,
        resolution=resolution,
        until=now,
        intervals=[
            Interval(start=key.start, **dict(counters))
            for key, counters in sorted(counts(occurrences).items(), key=lambda item: item[0].start)
            if key.resolution == resolution and key.job_id == ALL_JOBS
        ],
    )


def _span(
    resolution: int, since: datetime | None, until: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    """Return the times that a request for statistics means."""
    until = max(until or now + timedelta(seconds=resolution), _FIRST)
    since = since or until - _DEFAULT_INTERVALS * timedelta(seconds=resolution)
    return max(since, until - MAX_INTERVALS * timedelta(seconds=resolution)), until


async def totals(tx: Transaction) -> dict[str | None, Counters]:
    """Return all that happened since the statistics began, by the full name of the job; None for all jobs.

    The counts only grow, and are the same from every server. Jobs without any event are left out.
    """
    return {name: counters for name, counters in await sql_statistics.of_jobs(tx, TOTALS, BEGINNING)}
