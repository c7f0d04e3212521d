"""The figures of the whole queue by job, in a bounded number of jobs: the same from every server."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.names import INTERNAL
from zndraw_joblib.contract.operations import WorkerState
from zndraw_joblib.contract.statistics import BUCKET_BOUNDS
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.server.service import servers
from zndraw_joblib.server.store import job_list, statistic_position, statistics, worker_list
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.statistics import ALL_JOBS
from zndraw_joblib.server.store.tasks import heads, kept

# Jobs beyond the first 500 are added up. The full name of a job has colons, so no job is called so.
MAX_JOBS, OTHER = 500, "other"
_SILENT_HEARTBEATS = 2
_BUCKETS = len(BUCKET_BOUNDS) + 1
_COUNTERS = ("submitted", "retried", "lost", *sorted(TERMINAL))


@dataclass
class Durations:
    """A histogram of durations by `BUCKET_BOUNDS`, and their sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    sum: float = 0.0

    def add(self, buckets: list[int], seconds: float) -> None:
        """Add the counts of a row."""
        self.buckets = [mine + other for mine, other in zip(self.buckets, buckets, strict=True)]
        self.sum += seconds


@dataclass
class JobMetrics:
    """The figures of a job, or of all jobs beyond the first ones, which have no `workers` and `is_paused`.

    `workers` is null for internal jobs. `totals` counts since the statistics began.
    """

    tasks: dict[TaskStatus, int] = field(default_factory=lambda: dict.fromkeys(TaskStatus, 0))
    queued: int = 0
    scheduled: int = 0
    oldest_seconds: float = 0.0
    workers: int | None = None
    is_paused: bool | None = None
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))
    waiting: Durations = field(default_factory=Durations)
    running: Durations = field(default_factory=Durations)


@dataclass
class QueueMetrics:
    """The figures of the whole queue: `jobs` by full name, `causes` of failed and lost attempts."""

    jobs: dict[str, JobMetrics]
    causes: dict[str, int]
    workers: dict[WorkerState, int]
    held_slots: int
    free_slots: int
    active_servers: int
    silent_servers: int
    last_success: datetime | None
    statistics_until: datetime | None


async def read(tx: Transaction, heartbeat_seconds: float) -> QueueMetrics:
    """Return the figures of the queue. Call it in a snapshot."""
    now = await tx.now()
    groups = await worker_list.by_state(tx, now - timedelta(seconds=_SILENT_HEARTBEATS * heartbeat_seconds))
    active, listed = groups[WorkerState.ACTIVE], await servers.entries(tx)
    silent = sum(server.is_silent for server in listed)
    successes = [server.last_good_at for server in listed if server.last_good_at is not None]
    totals = await statistics.totals(tx)
    return QueueMetrics(
        jobs=await _jobs(tx, totals, now),
        causes=_causes(totals),
        workers={state: group.workers for state, group in groups.items()},
        held_slots=sum(group.used for group in groups.values()),
        free_slots=active.slots - active.used,
        active_servers=len(listed) - silent,
        silent_servers=silent,
        last_success=max(successes, default=None),
        statistics_until=await statistic_position.read_until(tx),
    )


def _causes(totals: list[Any]) -> dict[str, int]:
    causes: dict[str, int] = {}
    for row in totals:
        if row.job_id == ALL_JOBS:
            for cause, number in row.causes.items():
                causes[cause] = causes.get(cause, 0) + number
    return causes


async def _jobs(tx: Transaction, totals: list[Any], now: datetime) -> dict[str, JobMetrics]:
    """Return the figures of each job that has tasks or can get some, the oldest jobs first."""
    counts, claiming = await kept.of_jobs(tx), await worker_list.claiming(tx)
    jobs: dict[str, JobMetrics] = {}
    by_id: dict[UUID, JobMetrics] = {}
    for place, job in enumerate(await job_list.figures(tx)):
        of_job = counts.get(job.id, kept.NO_COUNTS)
        if job.is_deleted and of_job == kept.NO_COUNTS:
            continue
        if place < MAX_JOBS:
            has_workers = job.room_id != INTERNAL and not job.is_deleted
            workers = claiming.get(job.id, 0) if has_workers else None
            metrics = jobs[job.full_name] = JobMetrics(is_paused=job.is_paused, workers=workers)
        else:
            metrics = jobs.setdefault(OTHER, JobMetrics())
        by_id[job.id] = metrics
        metrics.queued += job.queued
        metrics.scheduled += job.scheduled
        for status, number in of_job:
            metrics.tasks[TaskStatus(status)] += number
    _add_totals(by_id, totals)
    for task in await heads.of_queues(tx):
        if (waits := by_id.get(task.job_id)) is not None:
            waits.oldest_seconds = max(waits.oldest_seconds, (now - task.since).total_seconds())
    return jobs


def _add_totals(by_id: dict[UUID, JobMetrics], totals: list[Any]) -> None:
    for row in totals:
        if (metrics := by_id.get(row.job_id)) is not None:
            for name in _COUNTERS:
                metrics.totals[name] += getattr(row, name)
            metrics.waiting.add(row.waiting, row.waiting_seconds)
            metrics.running.add(row.running, row.running_seconds)
