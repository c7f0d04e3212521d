"""Findings for operators: what is wrong with jobs, tasks, workers and servers, with a remedy for each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from shlex import quote

from zndraw_joblib.server.admin.sql_figures import QueuedJob, WorkerGroup
from zndraw_joblib.server.admin.sql_operators import EndingToken
from zndraw_joblib.server.admin.sql_statistics import RecentEnds
from zndraw_joblib.server.queue import rules_queues, sql_jobs
from zndraw_joblib.server.queue.rules_allocations import NoTime
from zndraw_joblib.server.queue.sql_counts import WaitingTask
from zndraw_joblib.server.queue.sql_executors import InternalSchedule, WaitingJob
from zndraw_joblib.server.queue.sql_groups import GroupRecord
from zndraw_joblib.server.queue.sql_pauses import ALL_ROOMS, PauseRecord
from zndraw_joblib.server.queue.sql_schedules import FailedRun, ScheduleRecord
from zndraw_joblib.server.queue.sql_webhooks import WebhookRecord
from zndraw_joblib.wire.groups import GroupOnEnd
from zndraw_joblib.wire.messages import SweeperMode
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.operators import Finding, ServerEntry, Severity
from zndraw_joblib.wire.requirements import shown

_LONG, _VERY_LONG = timedelta(minutes=10), timedelta(hours=1)
# A job with at least this many failures, and this share of its ends, is a finding.
MANY_FAILURES, _FAILING_SHARE = 5, 0.5
# So is one with this share, this many times its share of the day before, if that had this number of ends.
_HIGH_SHARE, _ABOVE_USUAL, _USUAL_ENDS = 0.05, 2, 20
_MANY_LOST = 5
_MAX_FINDINGS = 100
_FORGOTTEN = timedelta(days=1)
_DAY = timedelta(days=1)
_NAMED_WORKERS = 5
_NEW_EXECUTOR = "an app with JobLib(jobs=…) of this job, or a server with internal_extensions."
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


def job_without_executor(job: WaitingJob) -> Finding:
    """Return that no server can run the queued tasks of an internal job."""
    queued = QueuedJob(job.id, job.full_name, job.queued, None, None)
    problem = f"No server that runs has an executor for {job.full_name}"
    remedy = (
        f"Start {_NEW_EXECUTOR} If workers run the job now, cancel these tasks (zndraw-joblib tasks bulk "
        f"cancel --all-rooms --status pending --job {job.full_name}), and submit them to the job of the "
        "workers."
    )
    finding = _queued(queued, "job-without-executor", Severity.CRITICAL, problem, remedy)
    return finding.model_copy(update={"since": job.waits_since})


def schedule_without_executor(schedule: InternalSchedule) -> Finding:
    """Return that no server can run the tasks of a schedule that an app has written."""
    return Finding(
        code="schedule-without-executor",
        severity=Severity.WARNING,
        detail=f"Schedule {schedule.name} of room {INTERNAL} submits no task: no server that runs has an "
        f"executor for {schedule.job_name}.",
        remedy="If workers run the job now, which write schedules of their own, delete this one: "
        f"zndraw-joblib schedules delete {quote(schedule.name)} --room {INTERNAL}. Otherwise start "
        f"{_NEW_EXECUTOR}",
        job=schedule.job_name,
        room=INTERNAL,
    )


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


def failed_run(run: FailedRun) -> Finding:
    """Return that the last task of a schedule failed."""
    code = run.error_code or "error"
    return Finding(
        code="schedule-run-failed",
        severity=Severity.WARNING,
        detail=f"The last task of schedule {run.name} of room {run.room_id}, a task of {run.job_name}, "
        f"failed with the error code {code}.",
        remedy=f"Read its error (zndraw-joblib task {run.task_id}) and correct the cause, then retry the "
        "task. It is listed until the next due time, or until the schedule is paused.",
        job=run.job_name,
        room=run.room_id,
        task=run.task_id,
        since=run.failed_at,
    )


def ending_token(token: EndingToken, now: datetime) -> Finding:
    """Return that the token of workers that run ends soon."""
    left, number = token.expires_at - now, len(token.workers)
    names = ", ".join(token.workers[:_NAMED_WORKERS]) + (", …" if number > _NAMED_WORKERS else "")
    workers = "its worker ends" if number == 1 else f"its {number:,} workers end"
    return Finding(
        code="worker-token-ending",
        severity=Severity.CRITICAL if left < _DAY else Severity.WARNING,
        detail=f"Token {token.name} ends in {_duration(left)}, at {token.expires_at:%Y-%m-%d %H:%M} UTC; "
        f"{workers} before that: {names}.",
        remedy=f"Move the end, on the server's machine: zndraw-joblib token update {quote(token.name)} "
        "--expires 90d. The workers notice it, and need no restart.",
        count=number,
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
    if ends.failed < MANY_FAILURES or ends.failed < _FAILING_SHARE * number:
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
    if ends.failed < MANY_FAILURES or ends.failed < _HIGH_SHARE * number:
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
