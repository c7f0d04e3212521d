"""The state of the whole queue, or of a room, with what is wrong first, and metrics. It scans no tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from zndraw_joblib.server.admin import (
    rules_capacity,
    rules_findings,
    rules_servers,
    sql_figures,
    sql_lists,
    sql_operators,
    sql_statistics,
)
from zndraw_joblib.server.admin.rules_capacity import Limits, UserShare
from zndraw_joblib.server.admin.sql_figures import QueuedJob
from zndraw_joblib.server.admin.sql_operators import EndingToken
from zndraw_joblib.server.admin.sql_statistics import ALL_JOBS
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import (
    rules_allocations,
    rules_limits,
    rules_pauses,
    sql_counts,
    sql_executors,
    sql_groups,
    sql_jobs,
    sql_occurrences,
    sql_pauses,
    sql_schedules,
    sql_webhooks,
)
from zndraw_joblib.server.queue.sql_counts import WaitingTask
from zndraw_joblib.server.queue.sql_executors import WaitingJob
from zndraw_joblib.server.queue.sql_pauses import ALL_ROOMS, PauseRecord
from zndraw_joblib.server.queue.sql_webhooks import WebhookRecord
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.operators import (
    BUCKET_BOUNDS,
    HOUR,
    MINUTE,
    Finding,
    JobEntry,
    Overview,
    RoomOverview,
    WorkerState,
)
from zndraw_joblib.wire.statuses import TERMINAL, StatusCounts, TaskStatus

SILENT_HEARTBEATS = 2
_RECENT = timedelta(minutes=15)
_LISTED_JOBS = 50
_ROOM_JOBS = 200
# A webhook that failed this many times in a row is a finding: after about seven minutes.
_MANY_DELIVERY_FAILURES = 5
# For how long after its end a group is listed whose task could not be submitted.
_LISTED_GROUPS = timedelta(days=1)
_LISTED_PAUSES = 100
# For how long a task of an internal job waits before it is a finding that no server can run it.
_UNDISPATCHED = timedelta(minutes=2)
# How long before its end a token of workers is listed.
_TOKEN_ENDS = timedelta(days=7)
_USUAL = timedelta(days=1)


async def read_overview(
    tx: Transaction, heartbeat_seconds: float, limits: Limits, share: UserShare | None = None
) -> Overview:
    """Return the state of the queue, with the share of a user. Call it in a snapshot, for sums of tables."""
    now = await tx.now()
    counts = await sql_counts.of_all(tx)
    totals, waiting = await sql_figures.job_totals(tx), await sql_counts.of_queues(tx)
    silent_since = now - timedelta(seconds=SILENT_HEARTBEATS * heartbeat_seconds)
    groups = await sql_figures.by_state(tx, silent_since)
    listed = await rules_servers.entries(tx)
    last, pauses = await rules_servers.history(tx, 1), await sql_pauses.first(tx, _LISTED_PAUSES)
    unfinished = await sql_groups.with_error(tx, now - _LISTED_GROUPS, _LISTED_JOBS)
    findings = [
        *rules_findings.paused_rooms(pauses, await _pending_of(tx, pauses, counts), now),
        *await _of_jobs(tx, waiting, now),
        *await _of_schedules(tx),
        *await _schedules_without_executor(tx),
        *[rules_findings.ending_token(token, now) for token in await _ending(tx, silent_since)],
        *map(rules_findings.unfinished_group, unfinished),
        *map(rules_findings.failing_webhook, await _faulty_webhooks(tx)),
        *rules_findings.silent_workers(groups[WorkerState.SILENT]),
        *rules_findings.sweepers(listed, held_back=bool(last) and last[0].held_back),
        *rules_findings.different_versions(listed, now),
        *rules_capacity.findings(await rules_capacity.read(tx, counts.pending), limits),
        *rules_capacity.share_findings(share),
    ]
    since = now - timedelta(seconds=HOUR)
    return Overview(
        at=now,
        findings=rules_findings.ordered(findings),
        counts=counts,
        queued=totals.queued,
        scheduled=totals.scheduled,
        oldest_waiting_at=min((task.since for task in waiting), default=None),
        jobs=totals.jobs,
        paused_jobs=totals.paused,
        pauses=list(map(rules_pauses.entry, pauses)),
        workers={state: group.workers for state, group in groups.items()},
        slots=sum(group.slots for group in groups.values()),
        slots_used=sum(group.running for group in groups.values()),
        servers=listed,
        recent=await sql_statistics.read(tx, MINUTE, ALL_JOBS, since, now),
        statistics_until=await sql_occurrences.read_until(tx),
    )


async def _of_schedules(tx: Transaction, room_id: str | None = None) -> list[Finding]:
    return [
        *map(rules_findings.failing_schedule, await sql_schedules.failing(tx, _LISTED_JOBS, room_id)),
        *map(rules_findings.failed_run, await sql_schedules.failed_runs(tx, _LISTED_JOBS, room_id)),
    ]


async def _ending(tx: Transaction, silent_since: datetime) -> list[EndingToken]:
    return await sql_operators.ending_tokens(tx, _TOKEN_ENDS, silent_since)


async def _pending_of(tx: Transaction, pauses: Sequence[PauseRecord], counts: StatusCounts) -> dict[str, int]:
    """Return how many tasks are pending in each paused room."""
    if not pauses:
        return {}
    of_rooms, _ = await sql_counts.of_rooms(tx, [pause.room_id for pause in pauses])
    return {room_id: of_room.pending for room_id, of_room in of_rooms.items()} | {ALL_ROOMS: counts.pending}


async def _faulty_webhooks(tx: Transaction) -> list[WebhookRecord]:
    disabled = await sql_webhooks.disabled(tx, _LISTED_JOBS)
    return [*disabled, *await sql_webhooks.failing(tx, _MANY_DELIVERY_FAILURES, _LISTED_JOBS)]


async def _of_jobs(tx: Transaction, waiting: list[WaitingTask], now: datetime) -> list[Finding]:
    unserved = await sql_figures.unserved_jobs(tx, _LISTED_JOBS)
    paused = await sql_figures.paused_jobs(tx, _LISTED_JOBS)
    without_time = await rules_allocations.without_time(tx, _LISTED_JOBS)
    findings = [rules_findings.unserved_job(job) for job in unserved]
    findings += map(rules_findings.job_without_time, without_time)
    without_executor = await _without_executor(tx, now)
    findings += map(rules_findings.job_without_executor, without_executor)
    findings += [rules_findings.paused_job(job) for job in paused]
    since = (now - _RECENT).replace(second=0, microsecond=0)
    recent = await sql_statistics.ends(tx, since)
    failing = [ends.job_id for ends in recent if ends.failed >= rules_findings.MANY_FAILURES]
    usual = await sql_statistics.ends_before(tx, failing, since - _USUAL, since.replace(minute=0))
    for ends in recent:
        findings += rules_findings.failing_tasks(ends, since, usual.get(ends.job_id))
    # The longest wait of each job, unless it is known why it waits.
    explained = {job.id for job in (*unserved, *paused)} | {job.id for job in without_executor}
    explained |= {row.job.id for row in without_time}
    longest: dict[str, WaitingTask] = {}
    for task in sorted(waiting, key=lambda task: task.since):
        if task.job_id not in explained:
            longest.setdefault(task.job, task)
    for task in longest.values():
        if (late := rules_findings.waiting_task(task, now)) is not None:
            findings.append(late)
    return findings


async def _without_executor(tx: Transaction, now: datetime) -> list[WaitingJob]:
    executors = await sql_executors.known(tx)
    return [] if executors is None else await sql_executors.waiting_jobs(tx, executors, now - _UNDISPATCHED)


async def _schedules_without_executor(tx: Transaction) -> list[Finding]:
    executors = await sql_executors.known(tx)
    schedules = [] if executors is None else await sql_executors.schedules(tx, executors)
    return list(map(rules_findings.schedule_without_executor, schedules))


async def read_room(tx: Transaction, room_id: str) -> RoomOverview:
    """Return the state of a room, with nothing about tasks of other rooms. Call it in a snapshot."""
    now = await tx.now()
    jobs, _ = await sql_jobs.page(tx, room_id, Page(_ROOM_JOBS, 0))
    counts = await sql_counts.of_jobs_in_room(tx, room_id)
    services = await sql_figures.services(tx, [job.id for job in jobs]) if jobs else {}
    versions = await sql_jobs.versions_of(tx, [job.id for job in jobs]) if jobs else {}
    oldest = (await sql_counts.oldest_of_rooms(tx, [room_id])).get(room_id)
    entries = []
    for job in jobs:
        # Its pending tasks count as queued.
        of_job = sql_lists.sum_of(counts.get(version_id) for version_id in versions[job.id])
        entries.append(sql_lists.job_entry(job, now, services.get(job.id), of_job, queued=of_job.pending))
    pauses = await sql_pauses.of_room(tx, room_id)
    total = sql_lists.sum_of(counts.values())
    return RoomOverview(
        at=now,
        room=room_id,
        findings=rules_findings.ordered(
            [
                *rules_findings.paused_rooms(pauses, {ALL_ROOMS: total.pending, room_id: total.pending}, now),
                *_of_room(entries),
                *await _of_schedules(tx, room_id),
            ]
        ),
        counts=total,
        jobs=entries,
        pauses=list(map(rules_pauses.entry, pauses)),
        oldest_waiting_at=oldest,
    )


def _of_room(entries: list[JobEntry]) -> list[Finding]:
    findings = []
    for entry in entries:
        job = QueuedJob(
            entry.id, entry.full_name, entry.queued, entry.unserved_since, entry.paused_until, is_of_room=True
        )
        if entry.queued and not entry.workers and entry.room_id != INTERNAL:
            findings.append(rules_findings.unserved_job(job))
        if entry.queued and entry.paused:
            findings.append(rules_findings.paused_job(job))
    return findings


# The figures of the whole queue by job, in a bounded number of jobs: the same from every server.

# Jobs beyond the first 500 are added up. The full name of a job has colons, so no job is called so.
MAX_JOBS, OTHER = 500, "other"

_BUCKETS = len(BUCKET_BOUNDS) + 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTERS = ("submitted", "retried", "lost", *sorted(TERMINAL))


@dataclass
class Durations:
    """A histogram of durations by `BUCKET_BOUNDS`, and their sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    sum: float = 0.0

    def subtract(self, other: "Durations") -> None:
        """Leave what is not in another histogram."""
        self.buckets = [
            max(0, mine - theirs) for mine, theirs in zip(self.buckets, other.buckets, strict=True)
        ]
        self.sum = max(0.0, self.sum - other.sum)


@dataclass
class JobMetrics:
    """The figures of a job, or of all jobs beyond the first ones, which have no `workers` and `is_paused`.

    `workers` is null for internal jobs. `totals` counts since the statistics began, for all jobs beyond the
    first ones also those that were deleted.
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

    def count(self, row: Any) -> None:
        """Take the totals of a row of the statistics, if there is one."""
        if row is None:
            return
        self.totals = {name: getattr(row, name) for name in _COUNTERS}
        self.waiting = Durations(row.waiting, row.waiting_seconds)
        self.running = Durations(row.running, row.running_seconds)

    def add(self, tasks: Mapping[TaskStatus, int], queued: int, scheduled: int) -> None:
        """Add the tasks of a version of the job."""
        self.tasks = {status: number + tasks[status] for status, number in self.tasks.items()}
        self.queued, self.scheduled = self.queued + queued, self.scheduled + scheduled

    def subtract(self, job: "JobMetrics") -> None:
        """Leave the figures of all but a job."""
        self.queued = max(0, self.queued - job.queued)
        self.scheduled = max(0, self.scheduled - job.scheduled)
        self.tasks = {status: max(0, number - job.tasks[status]) for status, number in self.tasks.items()}
        self.totals = {name: max(0, number - job.totals[name]) for name, number in self.totals.items()}
        self.waiting.subtract(job.waiting)
        self.running.subtract(job.running)


@dataclass
class QueueMetrics:
    """The figures of the whole queue: `jobs` by full name, `causes` of failed and lost attempts.

    `used_ratios` has the used part of each limit by its setting.
    """

    jobs: dict[str, JobMetrics]
    causes: dict[str, int]
    workers: dict[WorkerState, int]
    held_slots: int
    free_slots: int
    active_servers: int
    silent_servers: int
    last_success: datetime | None
    statistics_until: datetime | None
    schedule_lag_seconds: float
    failed_schedules: int
    jobs_without_executor: int
    token_seconds: float
    rate_limited_tasks: int
    paused_rooms: int
    is_paused: bool
    failing_webhooks: int
    disabled_webhooks: int
    webhook_lag_seconds: float
    stored_result_bytes: int
    used_ratios: dict[str, float]


async def read_metrics(tx: Transaction, heartbeat_seconds: float, limits: Limits) -> QueueMetrics:
    """Return the figures of the queue. Call it in a snapshot."""
    now = await tx.now()
    silent_since = now - timedelta(seconds=SILENT_HEARTBEATS * heartbeat_seconds)
    groups, ending = await sql_figures.by_state(tx, silent_since), await _ending(tx, silent_since)
    active, listed = groups[WorkerState.ACTIVE], await rules_servers.entries(tx)
    silent = sum(server.is_silent for server in listed)
    successes = [server.last_good_at for server in listed if server.last_good_at is not None]
    first = await sql_figures.first_jobs(tx, MAX_JOBS)
    totals, pauses = await sql_statistics.totals(tx, [job.id for job in first]), await sql_pauses.active(tx)
    usage = await rules_capacity.read(tx, (await sql_counts.of_all(tx)).pending)
    return QueueMetrics(
        jobs=await _jobs(tx, first, totals, now),
        causes=totals[ALL_JOBS].causes if ALL_JOBS in totals else {},
        workers={state: group.workers for state, group in groups.items()},
        held_slots=sum(group.slots_used for group in groups.values()),
        free_slots=active.slots - active.slots_used,
        active_servers=len(listed) - silent,
        silent_servers=silent,
        last_success=max(successes, default=None),
        statistics_until=await sql_occurrences.read_until(tx),
        schedule_lag_seconds=_lag(now, await sql_schedules.next_due(tx)),
        jobs_without_executor=len(await _without_executor(tx, now)),
        failed_schedules=len(await sql_schedules.failed_runs(tx, MAX_JOBS)),
        token_seconds=((ending[0].expires_at - now) if ending else _TOKEN_ENDS).total_seconds(),
        rate_limited_tasks=await rules_limits.count_rate_limited(tx),
        paused_rooms=len(pauses.rooms),
        is_paused=pauses.is_all,
        failing_webhooks=await sql_webhooks.count_failing(tx),
        disabled_webhooks=await sql_webhooks.count_disabled(tx),
        webhook_lag_seconds=_lag(now, await sql_webhooks.first_due(tx, _EPOCH)),
        stored_result_bytes=usage.result_bytes,
        used_ratios=rules_capacity.ratios(usage, limits),
    )


def _lag(now: datetime, first: datetime | None) -> float:
    """Return for how many seconds what was due first has been due; 0 if nothing is."""
    return 0.0 if first is None else max(0.0, (now - first).total_seconds())


async def _jobs(
    tx: Transaction, first: Sequence[sql_figures.JobFigures], totals: Mapping[UUID, Any], now: datetime
) -> dict[str, JobMetrics]:
    """Return the figures of the first jobs that have tasks or can get some, and of all others together."""
    ids = [job.id for job in first]
    counts, claiming = await sql_counts.of_jobs(tx, ids), await sql_figures.claiming(tx, ids)
    number, queued, scheduled = await sql_figures.job_sums(tx)
    others = JobMetrics(_by_status(await sql_counts.of_all(tx)), queued, scheduled)
    others.count(totals.get(ALL_JOBS))
    jobs: dict[str, JobMetrics] = {}
    by_name: dict[str, JobMetrics] = {}
    by_id: dict[UUID, JobMetrics] = {}
    for job in first:
        of_job = counts.get(job.id, sql_counts.NO_COUNTS)
        # A job has a row for each version, and the totals are of the first one.
        metrics = by_name.setdefault(job.full_name, JobMetrics(_by_status(sql_counts.NO_COUNTS), 0, 0))
        by_id[job.id] = metrics
        metrics.add(_by_status(of_job), job.queued, job.scheduled)
        if job.room_id != INTERNAL and not job.is_deleted:
            metrics.workers = claiming[job.id]
        metrics.is_paused = job.is_paused
        metrics.count(totals.get(job.id))
        if not job.is_deleted or of_job != sql_counts.NO_COUNTS:
            jobs[job.full_name] = metrics
    if number > len(first):
        for metrics in by_name.values():
            others.subtract(metrics)
        jobs[OTHER] = others
    for task in await sql_counts.of_queues(tx):
        waits = by_id.get(task.job_id, others)
        waits.oldest_seconds = max(waits.oldest_seconds, (now - task.since).total_seconds())
    return jobs


def _by_status(counts: StatusCounts) -> dict[TaskStatus, int]:
    return {TaskStatus(status): number for status, number in counts}
