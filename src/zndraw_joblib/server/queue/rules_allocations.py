"""Claims of workers whose allocation ends: which of their queues have tasks that still fit.

How long a task runs is a property of its job, so a claim passes over queues, and looks at no task.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple
from uuid import UUID

from cachetools import TTLCache

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import sql_allocations
from zndraw_joblib.server.queue.sql_allocations import BriefJob
from zndraw_joblib.server.queue.sql_jobs import policy_of
from zndraw_joblib.wire.names import JobName, split_name
from zndraw_joblib.wire.operators import BUCKET_BOUNDS
from zndraw_joblib.wire.policy import JobPolicy

# The runs that decide, if a policy does not: those of the last day, at least this number.
_RECENT = timedelta(days=1)
_LEAST_RUNS = 20
_SHARE = 0.95
_CACHED_JOBS, _CACHED_SECONDS = 10_000, 60
# A stored end that differs by less is kept: requests take some time.
_TOLERANCE = timedelta(seconds=10)


class LongQueues(NamedTuple):
    """The queues of a worker whose tasks are expected to run for longer than its allocation."""

    ids: frozenset[UUID] = frozenset()
    names: frozenset[JobName] = frozenset()


NONE_LONG = LongQueues()


class TimeLeft(NamedTuple):
    """What fits into the rest of an allocation: not the queues `long`, and after `seconds` not another one.

    `ends_at` is when the allocation ends, None if that is stored.
    """

    long: LongQueues
    seconds: float
    ends_at: datetime | None


class Expected(NamedTuple):
    """How long tasks of a job run, in seconds, and what says so."""

    seconds: float
    source: str


class RunTimes:
    """The 95th percentiles of the run times of jobs by the statistics, which a server reads once a minute."""

    def __init__(self) -> None:
        self._cache: TTLCache[UUID, float | None] = TTLCache(_CACHED_JOBS, _CACHED_SECONDS)

    async def read(self, tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, float]:
        """Return them by the ids of the jobs; jobs with few runs are missing."""
        wanted = set(job_ids)
        known = {job_id: self._cache[job_id] for job_id in wanted if job_id in self._cache}
        if new := wanted - known.keys():
            times = await _read(tx, sorted(new))
            known |= {job_id: times.get(job_id) for job_id in new}
            self._cache.update({job_id: known[job_id] for job_id in new})
        return {job_id: seconds for job_id, seconds in known.items() if seconds is not None}


async def _read(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, float]:
    merged: dict[UUID, tuple[list[int], float]] = {}
    for job_id, buckets, seconds in await sql_allocations.runs(tx, job_ids, _RECENT):
        before, total = merged.get(job_id, ([0] * len(buckets), 0.0))
        merged[job_id] = [sum(pair) for pair in zip(before, buckets, strict=True)], total + seconds
    times = {job_id: percentile(*histogram) for job_id, histogram in merged.items()}
    return {job_id: seconds for job_id, seconds in times.items() if seconds is not None}


def percentile(buckets: Sequence[int], total: float) -> float | None:
    """Return about the 95th percentile of durations with this histogram and sum; None for few durations.

    The durations in its bucket and above count as spread evenly from the lower bound of the bucket, as far as
    their mean allows: the buckets of long durations are wide.
    """
    number = sum(buckets)
    if number < _LEAST_RUNS:
        return None
    lows = (0.0, *BUCKET_BOUNDS)
    below, shorter = 0, 0.0
    for index, size in enumerate(buckets):
        if below + size >= _SHARE * number:
            break
        below += size
        shorter += size * (lows[index] + lows[index + 1]) / 2
    low, high = lows[index], BUCKET_BOUNDS[index] if index < len(BUCKET_BOUNDS) else inf
    mean = (total - shorter) / (number - below)
    width = max(0.0, min(high - low, 2 * (mean - low)))
    return low + width * (_SHARE * number - below) / size


def _of_policy(policy: JobPolicy) -> Expected | None:
    if policy.expected_seconds is not None:
        return Expected(policy.expected_seconds, "expected_seconds")
    return None if policy.timeout_seconds is None else Expected(policy.timeout_seconds, "timeout_seconds")


async def expected(
    tx: Transaction, policies: Mapping[UUID, JobPolicy], times: RunTimes | None = None
) -> dict[UUID, Expected]:
    """Return how long tasks of these jobs run; jobs for which nothing says so are missing.

    `times` has what this server has read of the statistics lately.
    """
    known = {job_id: _of_policy(policy) for job_id, policy in policies.items()}
    unknown = [job_id for job_id, of_job in known.items() if of_job is None]
    read = await (times or RunTimes()).read(tx, unknown) if unknown else {}
    runs = {job_id: Expected(seconds, "the runs of the last day") for job_id, seconds in read.items()}
    return {job_id: of_job for job_id, of_job in known.items() if of_job is not None} | runs


async def read(
    tx: Transaction, worker_id: UUID, owner_id: str, remaining: float, times: RunTimes
) -> TimeLeft:
    """Return what fits into the `remaining` seconds of a worker."""
    stored, queues = await sql_allocations.queues_of(tx, worker_id, owner_id)
    policies = {queue.job_id: policy_of(queue.policy) for queue in queues}
    seconds_of = {job_id: of_job.seconds for job_id, of_job in (await expected(tx, policies, times)).items()}
    # Just as long does not fit: time has passed when the task starts.
    long = [queue for queue in queues if seconds_of.get(queue.job_id, 0.0) >= remaining]
    ids, names = {queue.id for queue in long}, {split_name(queue.queue) for queue in long}
    rest = [remaining - seconds for seconds in seconds_of.values() if seconds < remaining]
    ends_at = await tx.now() + timedelta(seconds=remaining)
    is_known = stored is not None and abs(stored - ends_at) < _TOLERANCE
    left = LongQueues(frozenset(ids), frozenset(names)) if ids else NONE_LONG
    return TimeLeft(left, min(rest, default=inf), None if is_known else ends_at)


async def set_end(tx: Transaction, worker_id: UUID, owner_id: str, ends_at: datetime) -> None:
    """Store when the allocation of a worker ends, if it is of this owner."""
    await sql_allocations.set_end(tx, worker_id, owner_id, ends_at)


class NoTime(NamedTuple):
    """A queue with tasks for which no worker has enough time: `left` has the one with most of it."""

    job: BriefJob
    expected: Expected
    left: timedelta


async def without_time(tx: Transaction, limit: int) -> list[NoTime]:
    """Return queues with tasks for which no worker has enough time, of the `limit` that have most tasks."""
    jobs = await sql_allocations.brief_jobs(tx, limit)
    times = await expected(tx, {job.job_id: policy_of(job.policy) for job in jobs}) if jobs else {}
    now = await tx.now()
    rows = [
        NoTime(job, times[job.job_id], max(job.last_end - now, timedelta()))
        for job in jobs
        if job.job_id in times
    ]
    return [row for row in rows if row.expected.seconds >= row.left.total_seconds()]
