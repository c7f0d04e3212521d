"""What is wrong with the queue, and what to do about it."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from zndraw_joblib.contract.messages import SweeperMode
from zndraw_joblib.contract.operations import Finding, ServerEntry, Severity
from zndraw_joblib.server.store.job_list import QueuedJob
from zndraw_joblib.server.store.statistics import RecentEnds
from zndraw_joblib.server.store.tasks.heads import WaitingTask
from zndraw_joblib.server.store.worker_list import WorkerGroup

_LONG, _VERY_LONG = timedelta(minutes=10), timedelta(hours=1)
# So many failures of a job, and this share of its ends, make a finding.
_MANY_FAILURES, _MOST = 5, 0.5
_MANY_LOST = 5
_MOST_FINDINGS = 100
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1}


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, critical ones first, at most 100."""
    return sorted(found, key=lambda finding: _ORDER[finding.severity])[:_MOST_FINDINGS]


def unserved(job: QueuedJob) -> Finding:
    """Return that no worker serves a job with queued tasks."""
    remedy = "Start a worker that registers this job, or cancel its tasks."
    return _queued(job, "job-without-workers", Severity.CRITICAL, f"No worker serves {job.full_name}", remedy)


def paused(job: QueuedJob) -> Finding:
    """Return that a paused job has queued tasks."""
    remedy = "Resume the job when its tasks may run again."
    return _queued(job, "job-paused", Severity.WARNING, f"{job.full_name} is paused", remedy)


def _queued(job: QueuedJob, code: str, severity: Severity, problem: str, remedy: str) -> Finding:
    return Finding(
        code=code,
        severity=severity,
        detail=f"{problem}: {_tasks(job.queued)} in its queue.",
        remedy=remedy,
        job=job.full_name,
        count=job.queued,
    )


def waiting(task: WaitingTask, now: datetime) -> Finding | None:
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


def failing(ends: RecentEnds, since: datetime) -> list[Finding]:
    """Return that most tasks of a job failed, and that attempts were lost, since a time."""
    found = []
    number = ends.failed + ends.completed
    if ends.failed >= _MANY_FAILURES and ends.failed >= _MOST * number:
        detail = (
            f"{ends.failed} of the {number} tasks of {ends.job} that ended since {since:%H:%M} UTC failed."
        )
        found.append(
            Finding(
                code="failing-job",
                severity=Severity.WARNING if ends.completed else Severity.CRITICAL,
                detail=detail,
                remedy="Read the error of one of them; pause the job until it is repaired, then retry them.",
                job=ends.job,
                count=ends.failed,
                since=since,
            )
        )
    if ends.lost >= _MANY_LOST:
        found.append(
            Finding(
                code="lost-attempts",
                severity=Severity.WARNING,
                detail=f"{ends.lost} attempts of {ends.job} ended since {since:%H:%M} UTC because the worker "
                "was lost or a time limit passed.",
                remedy="Check the memory of the workers, their connection and the time limits of the job.",
                job=ends.job,
                count=ends.lost,
                since=since,
            )
        )
    return found


def silent_workers(group: WorkerGroup) -> list[Finding]:
    """Return that workers are silent."""
    if not group.workers:
        return []
    return [
        Finding(
            code="silent-workers",
            severity=Severity.WARNING,
            detail=f"{group.workers} workers have sent no heartbeat for two intervals; they hold "
            f"{_tasks(group.held)}.",
            remedy="Check that these processes run and reach the server. The sweeper removes them after "
            "worker_timeout_seconds.",
            count=group.workers,
        )
    ]


def sweepers(servers: Sequence[ServerEntry], held_back: bool) -> list[Finding]:
    """Return what keeps the sweepers from recovering tasks."""
    found = []
    silent = [server for server in servers if server.is_silent]
    if silent:
        names = ", ".join(f"{server.host} (pid {server.pid})" for server in silent[:5])
        found.append(
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
        found.append(
            _held_back(
                f"The sweeper's last cycle had the mode {mode}: it recovered no task of a lost worker."
            )
        )
    elif held_back:
        found.append(
            _held_back("Most workers are silent at once, so the sweeper has held back for one cycle.")
        )
    return found


def _held_back(detail: str) -> Finding:
    return Finding(
        code="sweeper-held-back",
        severity=Severity.WARNING,
        detail=detail,
        remedy="Look at the preview of the sweeper, then set its mode to enforce.",
    )


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def _duration(waited: timedelta) -> str:
    minutes = int(waited.total_seconds() // 60)
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 48 * 60 else f"{minutes // 1440} days"
