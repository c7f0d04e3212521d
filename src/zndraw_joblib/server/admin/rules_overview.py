"""The state of the queue for operators: findings, totals, servers, the release, and metrics."""

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.admin import rules_capacity, sql_figures, sql_lists, sql_operators, sql_statistics
from zndraw_joblib.server.admin.rules_capacity import Limits
from zndraw_joblib.server.admin.sql_figures import QueuedJob, WorkerGroup
from zndraw_joblib.server.admin.sql_statistics import ALL_JOBS, RecentEnds
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import (
    rules_allocations,
    rules_limits,
    rules_pauses,
    rules_queues,
    sql_counts,
    sql_groups,
    sql_jobs,
    sql_occurrences,
    sql_pauses,
    sql_schedules,
    sql_webhooks,
)
from zndraw_joblib.server.queue.rules_allocations import NoTime
from zndraw_joblib.server.queue.sql_counts import WaitingTask
from zndraw_joblib.server.queue.sql_groups import GroupRecord
from zndraw_joblib.server.queue.sql_pauses import ALL_ROOMS, PauseRecord
from zndraw_joblib.server.queue.sql_schedules import ScheduleRecord
from zndraw_joblib.server.queue.sql_webhooks import WebhookRecord
from zndraw_joblib.wire.groups import GroupOnEnd
from zndraw_joblib.wire.messages import SweeperCycle, SweeperMode
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.operators import (
    BUCKET_BOUNDS,
    HOUR,
    MINUTE,
    Finding,
    JobEntry,
    Overview,
    RoomOverview,
    ServerCycle,
    ServerEntry,
    Severity,
    Version,
    WorkerState,
)
from zndraw_joblib.wire.requirements import shown
from zndraw_joblib.wire.statuses import TERMINAL, StatusCounts, TaskStatus

_LONG, _VERY_LONG = timedelta(minutes=10), timedelta(hours=1)
# A job with at least this many failures, and this share of its ends, is a finding.
_MANY_FAILURES, _FAILING_SHARE = 5, 0.5
# So is one with this share, this many times its share of the day before, if that had this number of ends.
_HIGH_SHARE, _ABOVE_USUAL, _USUAL_ENDS = 0.05, 2, 20
_USUAL = timedelta(days=1)
_MANY_LOST = 5
# A webhook that failed so often in a row is a finding: after about seven minutes.
_MANY_DELIVERY_FAILURES = 5
_MAX_FINDINGS = 100
# For how long after its end a group is listed whose task could not be submitted.
_LISTED_GROUPS = timedelta(days=1)
_LISTED_PAUSES = 100
_FORGOTTEN = timedelta(days=1)
# Servers of two versions run side by side while one replaces the other, but not for so long.
_UPGRADE = timedelta(hours=1)
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, critical ones first, and of a kind those of the largest numbers, at most 100."""
    findings = list(findings)
    kinds = list(dict.fromkeys(finding.code for finding in findings))

    def place(finding: Finding) -> tuple[int, int, int]:
        return _ORDER[finding.severity], kinds.index(finding.code), -(finding.count or 0)

    return sorted(findings, key=place)[:_MAX_FINDINGS]


def unserved_job(job: QueuedJob) -> Finding:
    """Return that no worker serves a job with queued tasks, or that none has the labels that they require."""
    policy = sql_jobs.policy_of(job.policy)
    requirements = policy.requires, rules_queues.requires_of(job.requires)
    required = [shown(*requirements)] if any(requirements) else []
    if (cost := sql_jobs.cost_of(policy, job.requires)) > 1:
        required.append(f"{cost} slots")
    if required and job.unserved_since is None:
        return _unmatched_job(job, " and ".join(required))
    remedy = "Start a worker that registers this job, or cancel its tasks."
    since = f" since {job.unserved_since:%Y-%m-%d %H:%M} UTC" if job.unserved_since else ""
    version = f"version {job.version} of " if job.version is not None else ""
    problem = f"No worker serves {version}{job.full_name}{since}"
    if job.version is not None:
        remedy = "Start a worker of this version, or retarget or cancel its tasks."
    finding = _queued(job, "job-without-workers", Severity.CRITICAL, problem, remedy)
    return finding.model_copy(update={"since": job.unserved_since})


def _unmatched_job(job: QueuedJob, required: str) -> Finding:
    since = f" since {job.waits_since:%Y-%m-%d %H:%M} UTC" if job.waits_since else ""
    problem = f"No worker can run tasks of {job.full_name} that require {required}{since}"
    remedy = (
        "Start a worker with these labels and slots (zndraw-joblib worker --label, --concurrency); "
        "'zndraw-joblib explain ID' names the nearest worker. Or cancel these tasks, and "
        "submit them with other requirements."
    )
    finding = _queued(job, "tasks-without-matching-workers", Severity.CRITICAL, problem, remedy)
    return finding.model_copy(update={"since": job.waits_since})


def job_without_time(row: NoTime) -> Finding:
    """Return that the allocations of all workers of a job end before its tasks would."""
    job = row.job
    problem = (
        f"No worker of {job.full_name} has enough time for its tasks, which are expected to run for "
        f"{_seconds(row.expected.seconds)} (by {row.expected.source}); the most that one has left is "
        f"{_seconds(row.left.total_seconds())}"
    )
    remedy = (
        "Start a worker with more time (zndraw-joblib worker --walltime), or set expected_seconds of the job "
        "to how long its tasks run."
    )
    queued = QueuedJob(job.id, job.full_name, job.queued, None, None)
    finding = _queued(queued, "tasks-without-enough-time", Severity.CRITICAL, problem, remedy)
    return finding.model_copy(update={"since": job.waits_since})


def paused_job(job: QueuedJob) -> Finding:
    """Return that a paused job has queued tasks."""
    remedy = "Resume the job when its tasks may run again."
    problem = f"{job.full_name} is paused{_until(job.paused_until)}"
    return _queued(job, "job-paused", Severity.INFO, problem, remedy)


def paused_rooms(pauses: Iterable[PauseRecord], pending: Mapping[str, int], now: datetime) -> list[Finding]:
    """Return which rooms are paused, and whether all are. `pending` has the number of their tasks that wait.

    An operator may have forgotten a pause without an end that holds back tasks for a day.
    """
    findings = []
    for pause in pauses:
        is_all, waiting = pause.room_id == ALL_ROOMS, pending.get(pause.room_id, 0)
        what, rest = ("queue", "All rooms are") if is_all else ("room", f"Room {pause.room_id} is")
        is_forgotten = waiting and pause.until is None and now - pause.paused_at >= _FORGOTTEN
        text = f": {_tasks(waiting)} pending" if waiting else ""
        findings.append(
            Finding(
                code=f"{what}-paused",
                severity=Severity.WARNING if is_forgotten else Severity.INFO,
                detail=f"{rest} paused{_until(pause.until)}, by {pause.paused_by}{text}.",
                remedy=f"Resume the {what} when its tasks may run again.",
                room=None if is_all else pause.room_id,
                count=waiting,
                since=pause.paused_at,
            )
        )
    return findings


def _until(end: datetime | None) -> str:
    return "" if end is None else f" until {end:%Y-%m-%d %H:%M:%S} UTC"


def failing_schedule(schedule: ScheduleRecord) -> Finding:
    """Return that the last due time of a schedule has no task."""
    return Finding(
        code="schedule-failing",
        severity=Severity.WARNING,
        detail=f"Schedule {schedule.name} of room {schedule.room_id} submits no task: {schedule.error}",
        remedy="Correct the schedule or its job, pause the schedule, or delete it.",
        job=schedule.job_name,
        room=schedule.room_id,
        since=schedule.error_at,
    )


def unfinished_group(group: GroupRecord) -> Finding:
    """Return that the task that a group submits at its end could not be submitted."""
    on_end = GroupOnEnd.model_validate_json(group.on_end or "")
    name = "" if group.name is None else f" ({group.name})"
    return Finding(
        code="group-on-end-failed",
        severity=Severity.WARNING,
        detail=f"Group {group.id}{name} has ended, but its on_end was not submitted: {group.error}",
        remedy="Submit the task of its on_end by hand. This is listed for a day after the end of the group.",
        job=on_end.job,
        room=group.room_id,
        since=group.ended_at,
    )


def failing_webhook(webhook: WebhookRecord) -> Finding:
    """Return that the deliveries to a webhook of a room fail, or that it is disabled."""
    name = f"Webhook {webhook.name} of room {webhook.room_id}"
    if webhook.disabled_at is not None:
        return Finding(
            code="webhook-disabled",
            severity=Severity.WARNING,
            detail=f"{name} is disabled: {webhook.disabled_reason}. Its events are not written.",
            remedy="Write it again when its receiver works, or delete it.",
            room=webhook.room_id,
            since=webhook.disabled_at,
        )
    return Finding(
        code="webhook-failing",
        severity=Severity.WARNING,
        detail=f"{name} failed {webhook.failures:,} times since its last success: {webhook.last_error}.",
        remedy="Repair the receiver or the URL, then send a test. A delivery is given up after 3 days.",
        room=webhook.room_id,
        count=webhook.failures,
    )


def _queued(job: QueuedJob, code: str, severity: Severity, problem: str, remedy: str) -> Finding:
    where = "of this room wait" if job.is_of_room else "in its queue"
    if job.is_of_room and job.queued == 1:
        where = "of this room waits"
    return Finding(
        code=code,
        severity=severity,
        detail=f"{problem}: {_tasks(job.queued)} {where}.",
        remedy=remedy,
        job=job.full_name,
        count=job.queued,
    )


def waiting_task(task: WaitingTask, now: datetime) -> Finding | None:
    """Return that a task has waited for too long; None for a task that has not."""
    waited = now - task.since
    if waited < _LONG:
        return None
    return Finding(
        code="waiting-too-long",
        severity=Severity.CRITICAL if waited >= _VERY_LONG else Severity.WARNING,
        detail=f"A task of {task.job} has waited for {_duration(waited)}.",
        remedy="Read why it waits (explain the task); add workers or slots, or raise the job's limits.",
        job=task.job,
        room=task.room_id,
        task=task.id,
        since=task.since,
    )


def failing_tasks(ends: RecentEnds, since: datetime, usual: tuple[int, int] | None = None) -> list[Finding]:
    """Return that many tasks of a job failed, and that attempts were lost, since a time.

    `usual` is how many tasks of the job completed and failed on the day before, None if unknown.
    """
    number = ends.failed + ends.completed
    findings = [_failing(ends, number, since) or _above_usual(ends, number, since, usual)]
    if ends.lost >= _MANY_LOST:
        findings.append(
            Finding(
                code="lost-attempts",
                severity=Severity.WARNING,
                detail=f"{ends.lost:,} attempts of {ends.job} ended since {since:%H:%M} UTC because the "
                "worker was lost, did not start them in time, or a time limit passed.",
                remedy="Check the workers' load, memory and connection, and the time limits of the job. If "
                "workers die whenever its tasks run, pause it, and serve it with --executor process.",
                job=ends.job,
                count=ends.lost,
                since=ends.lost_since or since,
            )
        )
    return [finding for finding in findings if finding is not None]


def _failing(ends: RecentEnds, number: int, since: datetime) -> Finding | None:
    if ends.failed < _MANY_FAILURES or ends.failed < _FAILING_SHARE * number:
        return None
    return Finding(
        code="failing-job",
        severity=Severity.WARNING if ends.completed else Severity.CRITICAL,
        detail=f"{_failed(ends, number, since)}.",
        remedy="Read the error of one of them; pause the job until it is repaired, then retry them.",
        job=ends.job,
        count=ends.failed,
        since=ends.failed_since or since,
    )


def _failed(ends: RecentEnds, number: int, since: datetime) -> str:
    return f"{ends.failed:,} of the {number:,} tasks of {ends.job} that ended since {since:%H:%M} UTC failed"


def _above_usual(
    ends: RecentEnds, number: int, since: datetime, usual: tuple[int, int] | None
) -> Finding | None:
    if ends.failed < _MANY_FAILURES or ends.failed < _HIGH_SHARE * number:
        return None
    completed, failed = usual or (0, 0)
    share, text = ends.failed / number, "the job has run too rarely before to compare"
    if completed + failed >= _USUAL_ENDS:
        usual_share = failed / (completed + failed)
        if share < _ABOVE_USUAL * usual_share:
            return None
        text = f"on the day before it was {usual_share:.1%}"
    return Finding(
        code="failure-rate",
        severity=Severity.WARNING,
        detail=f"{_failed(ends, number, since)}: {share:.0%}; {text}.",
        remedy="Read the error of one of them; retry them once its cause is gone.",
        job=ends.job,
        count=ends.failed,
        since=ends.failed_since or since,
    )


def silent_workers(group: WorkerGroup) -> list[Finding]:
    """Return that workers are silent."""
    if not group.workers:
        return []
    return [
        Finding(
            code="silent-workers",
            severity=Severity.WARNING,
            detail=f"{_workers(group.workers)} sent no heartbeat for two intervals. They hold "
            f"{_tasks(group.held)}.",
            remedy="Check that these processes run and reach the server. The sweeper removes a worker after "
            "worker_timeout_seconds.",
            count=group.workers,
        )
    ]


def sweepers(servers: Sequence[ServerEntry], held_back: bool) -> list[Finding]:
    """Return what keeps the sweepers from recovering tasks."""
    findings = []
    silent = [server for server in servers if server.is_silent]
    if silent:
        names = ", ".join(f"{server.host} (pid {server.pid})" for server in silent[:5])
        findings.append(
            Finding(
                code="sweeper-silent",
                severity=Severity.CRITICAL if len(silent) == len(servers) else Severity.WARNING,
                detail=f"The sweepers of {len(silent)} of {len(servers)} servers do not report: {names}.",
                remedy="Check these processes and their logs. A killed server is listed for an hour.",
                count=len(silent),
                since=max(server.seen_at for server in silent),
            )
        )
    modes = {server.sweeper_mode for server in servers if not server.is_silent}
    if modes & {SweeperMode.OBSERVE, SweeperMode.OFF}:
        mode = min(str(mode) for mode in modes & {SweeperMode.OBSERVE, SweeperMode.OFF})
        findings.append(
            _held_back(
                f"The sweeper's last cycle had the mode {mode}: it recovered no task of a lost worker."
            )
        )
    elif held_back:
        findings.append(
            _held_back("Most workers are silent at once, so the sweeper has held back for one cycle.")
        )
    return findings


def different_versions(servers: Sequence[ServerEntry], now: datetime) -> list[Finding]:
    """Return that servers of different versions run, an hour after the last of them has started."""
    running = [server for server in servers if not server.is_silent]
    versions = Counter(server.version for server in running)
    if len(versions) < 2:
        return []
    since = max(server.started_at for server in running)
    numbers = ", ".join(f"{number} of {version}" for version, number in sorted(versions.items())[:5])
    few = min(versions, key=lambda version: (versions[version], version))
    names = ", ".join(f"{server.host} (pid {server.pid})" for server in running if server.version == few)
    return [
        Finding(
            code="different-versions",
            severity=Severity.WARNING if now - since >= _UPGRADE else Severity.INFO,
            detail=f"Servers of different versions share the queue: {numbers}.",
            remedy=f"Replace the servers of the other version. Those of {few}: {names[:200]}.",
            since=since,
        )
    ]


def _held_back(detail: str) -> Finding:
    return Finding(
        code="sweeper-held-back",
        severity=Severity.WARNING,
        detail=detail,
        remedy="Look at the preview of the sweeper, then set its mode to enforce.",
    )


def _workers(number: int) -> str:
    return "1 worker has" if number == 1 else f"{number:,} workers have"


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number:,} tasks"


def _duration(waited: timedelta) -> str:
    minutes = int(waited.total_seconds() // 60)
    if minutes < 120:
        return "1 minute" if minutes == 1 else f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 48 * 60 else f"{minutes // 1440} days"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else _duration(timedelta(seconds=seconds))


# The state of the whole queue, or of a room, with what is wrong first. Reading it scans no tasks.

SILENT_HEARTBEATS = 2
_RECENT = timedelta(minutes=15)
_LISTED_JOBS = 50
_ROOM_JOBS = 200


async def read_overview(tx: Transaction, heartbeat_seconds: float, limits: Limits) -> Overview:
    """Return the state of the queue. Call it in a snapshot: it has sums of several tables."""
    now = await tx.now()
    counts = await sql_counts.of_all(tx)
    totals, waiting = await sql_figures.job_totals(tx), await sql_counts.of_queues(tx)
    silent_since = now - timedelta(seconds=SILENT_HEARTBEATS * heartbeat_seconds)
    groups = await sql_figures.by_state(tx, silent_since)
    listed = await entries(tx)
    last, pauses = await history(tx, 1), await sql_pauses.first(tx, _LISTED_PAUSES)
    findings = [
        *paused_rooms(pauses, await _pending_of(tx, pauses, counts), now),
        *await _of_jobs(tx, waiting, now),
        *map(failing_schedule, await sql_schedules.failing(tx, _LISTED_JOBS)),
        *map(unfinished_group, await sql_groups.with_error(tx, now - _LISTED_GROUPS, _LISTED_JOBS)),
        *map(failing_webhook, await _faulty_webhooks(tx)),
        *silent_workers(groups[WorkerState.SILENT]),
        *sweepers(listed, held_back=bool(last) and last[0].held_back),
        *different_versions(listed, now),
        *rules_capacity.findings(await rules_capacity.read(tx, counts.pending), limits),
    ]
    since = now - timedelta(seconds=HOUR)
    return Overview(
        at=now,
        findings=ordered(findings),
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
    findings = [unserved_job(job) for job in unserved]
    findings += map(job_without_time, without_time)
    findings += [paused_job(job) for job in paused]
    since = (now - _RECENT).replace(second=0, microsecond=0)
    recent = await sql_statistics.ends(tx, since)
    failing = [ends.job_id for ends in recent if ends.failed >= _MANY_FAILURES]
    usual = await sql_statistics.ends_before(tx, failing, since - _USUAL, since.replace(minute=0))
    for ends in recent:
        findings += failing_tasks(ends, since, usual.get(ends.job_id))
    # The longest wait of each job, unless it is known why it waits.
    explained = {job.id for job in (*unserved, *paused)} | {row.job.id for row in without_time}
    longest: dict[str, WaitingTask] = {}
    for task in sorted(waiting, key=lambda task: task.since):
        if task.job_id not in explained:
            longest.setdefault(task.job, task)
    for task in longest.values():
        if (late := waiting_task(task, now)) is not None:
            findings.append(late)
    return findings


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
        findings=ordered(
            [
                *paused_rooms(pauses, {ALL_ROOMS: total.pending, room_id: total.pending}, now),
                *_of_room(entries),
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
            findings.append(unserved_job(job))
        if entry.queued and entry.paused:
            findings.append(paused_job(job))
    return findings


# Server processes as they report themselves with each cycle of their sweepers.

# A server is silent when its sweeper has not reported for this many intervals.
_SILENT_SWEEPS = 3
_KEEP_SERVERS = timedelta(hours=1)
_KEEP_CYCLES = timedelta(days=7)
_MAX_CYCLES = 10_000
_LISTED_CYCLES = 100


class Process(NamedTuple):
    """A server process."""

    id: UUID
    host: str
    pid: int
    version: str


class SweepReport(NamedTuple):
    """What a server reports of itself after a cycle of its sweeper. Times are ago, in seconds."""

    started_ago: float
    last_good_ago: float
    grace_remaining_seconds: float
    sweep_interval_seconds: float


async def report(
    tx: Transaction, process: Process, state: SweepReport, cycle: SweeperCycle, *, prune: bool
) -> None:
    """Store the state of a server and the summary of a cycle; with `prune`, delete old ones."""
    now = await tx.now()
    row: dict[str, Any] = process._asdict() | {
        "started_at": now - timedelta(seconds=state.started_ago),
        "seen_at": now,
        "sweeper_mode": cycle.mode,
        "sweep_interval_seconds": state.sweep_interval_seconds,
        "grace_remaining_seconds": state.grace_remaining_seconds,
        "last_good_at": now - timedelta(seconds=state.last_good_ago),
    }
    await sql_operators.put_server(tx, row)
    await sql_operators.add_cycle(tx, cycle.model_dump() | {"at": now, "server_id": process.id})
    if prune:
        since = now - _KEEP_SERVERS
        await sql_operators.prune_servers(
            tx, seen_since=since, cycles_since=now - _KEEP_CYCLES, limit=_MAX_CYCLES
        )


async def leave(tx: Transaction, process: Process) -> None:
    """Delete a server that stops."""
    await sql_operators.remove_server(tx, process.id)


async def entries(tx: Transaction) -> list[ServerEntry]:
    """Return the servers that have reported in the last hour, the oldest first."""
    now = await tx.now()
    servers = []
    for row in await sql_operators.seen_since(tx, now - _KEEP_SERVERS):
        patience = timedelta(seconds=_SILENT_SWEEPS * row.sweep_interval_seconds + 1)
        mode = None if row.sweeper_mode is None else SweeperMode(row.sweeper_mode)
        entry = row._asdict() | {"is_silent": row.seen_at < now - patience, "sweeper_mode": mode}
        servers.append(ServerEntry.model_validate(entry))
    return servers


async def history(tx: Transaction, limit: int = _LISTED_CYCLES) -> list[ServerCycle]:
    """Return the last cycles of the sweepers of all servers, newest first."""
    return [ServerCycle.model_validate(row._asdict()) for row in await sql_operators.last_cycles(tx, limit)]


# The release of the server: of the package, of Python, of the database and of its schema.

_NAME = "zndraw-joblib"


async def get(tx: Transaction, build: str | None, *, socketio: bool, page: str | None) -> Version:
    """Return the versions of this process and of its database; `build` is what the operator calls it."""
    of_database = await schema.get(tx)
    return Version(
        version=distribution(_NAME).version,
        build=build or installed_commit(),
        python=platform.python_version(),
        database=of_database.database,
        schema_version=of_database.schema,
        socketio=socketio,
        page=page,
    )


@cache
def installed_commit() -> str | None:
    """Return the commit from which pip has installed the package, None if it was no repository."""
    try:
        origin = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    commit = origin.get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None


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
    groups = await sql_figures.by_state(tx, now - timedelta(seconds=SILENT_HEARTBEATS * heartbeat_seconds))
    active, listed = groups[WorkerState.ACTIVE], await entries(tx)
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
