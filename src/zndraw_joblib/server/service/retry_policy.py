"""The state changes of a task that need no database: claims, ends, retries and deadlines."""

from datetime import datetime, timedelta
from typing import Any

from zndraw_joblib.contract.policy import RetryOn
from zndraw_joblib.contract.problems import (
    InternalTimeout,
    Released,
    RunTimeout,
    StartTimeout,
    TaskExpired,
    WorkerLost,
)
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store.tasks import TaskRecord
from zndraw_joblib.server.store.tasks.records import ended_unstarted

ERROR = "error"
DISCONNECTED = "Worker disconnected"
UNNAMED = "The worker is alive, but did not name the task in its heartbeats: it has lost the task"
INTERNAL_TIMEOUT = "Internal worker timeout"
# How long a broker may take to confirm a task, with a margin.
LEASE_SECONDS = 30.0
_DISPATCH_AGAIN_SECONDS = 60.0
_CODES = {RetryOn.WORKER_LOST: WorkerLost.problem_id(), RetryOn.TIMEOUT: RunTimeout.problem_id()}


def start_deadline(task: TaskRecord, now: datetime) -> datetime | None:
    """Return the time by which a task that is claimed now must start."""
    return _after(now, task.policy.start_timeout_seconds or None)


def dispatch_deadline(task: TaskRecord, now: datetime, *, exclusive_start: bool) -> datetime:
    """Return when to dispatch an internal task again if it does not start after this dispatch.

    An executor with `exclusive_start` starts a task once, however often it is dispatched: the pauses begin
    with `start_timeout_seconds` and double. For other executors this is a lease, which a confirmation ends.
    """
    if not exclusive_start:
        return now + timedelta(seconds=LEASE_SECONDS)
    pause = timedelta(seconds=task.policy.start_timeout_seconds or _DISPATCH_AGAIN_SECONDS)
    return now + max(pause, now - (task.claimed_at or now))


def end_deadline(task: TaskRecord, now: datetime) -> datetime | None:
    """Return the time by which a task that starts now must end."""
    return _after(now, task.policy.timeout_seconds)


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)


def claimed(task: TaskRecord, now: datetime, *, start: bool = False, **holder: Any) -> TaskRecord:
    """Return a queued task as claimed now, and with `start` as started; if it has expired, as failed."""
    if task.expires_at is not None and task.expires_at <= now:
        return expired(task, now)
    also: dict[str, Any] = {"claimed_at": now, "attempt": task.attempt + 1, "expires_at": None, **holder}
    if start:
        return started(task, now, **also)
    return task.changed(status=TaskStatus.CLAIMED, deadline=start_deadline(task, now), **also)


def started(task: TaskRecord, now: datetime, **also: Any) -> TaskRecord:
    """Return a claimed task as running from now on."""
    deadline = end_deadline(task, now)
    return task.changed(status=TaskStatus.RUNNING, started_at=now, deadline=deadline, **also)


def ended(
    task: TaskRecord, status: TaskStatus, now: datetime, error: str | None, code: str | None, **also: Any
) -> TaskRecord:
    """Return a task in a terminal status."""
    return task.changed(
        status=status, completed_at=now, error=error, error_code=code, deadline=None, run_at=None, **also
    )


def requeued(
    task: TaskRecord, reason: str, *, error: str | None = None, run_at: datetime | None = None, **also: Any
) -> TaskRecord:
    """Return a task in its queue again, or scheduled for `run_at`.

    Its attempt stays, so that reports of its previous holder are rejected. A claim that has not started is
    counted, because it was no attempt.
    """
    return task.changed(
        **also,
        status=TaskStatus.PENDING,
        worker_id=None,
        claimed_at=None,
        started_at=None,
        completed_at=None,
        deadline=None,
        claim_id=None,
        run_at=run_at,
        reason=reason,
        unstarted=task.unstarted + ended_unstarted(task.claimed_at, task.started_at),
        error=error,
        error_code=reason,
        result=None,
    )


def failed(
    task: TaskRecord,
    cause: RetryOn,
    error: str | None,
    now: datetime,
    chance: float,
    *,
    may_retry: bool = True,
) -> TaskRecord:
    """Return a task after a failed attempt: pending again if its policy allows a retry, else failed.

    `chance`, between 0 and 1, determines the jitter of the pause.
    """
    crashed = cause == RetryOn.WORKER_LOST
    failures, crashes = task.failures + (not crashed), task.crashes + crashed
    code = _CODES.get(cause, ERROR)
    counts: dict[str, Any] = {"failures": failures, "crashes": crashes}
    if may_retry and _has_attempts_left(task, cause, **counts):
        pause = task.policy.backoff.pause(failures + crashes, chance)
        return requeued(task, code, error=error, run_at=_after(now, pause or None), **counts)
    return ended(task, TaskStatus.FAILED, now, error, code, **counts)


def _has_attempts_left(task: TaskRecord, cause: RetryOn, failures: int, crashes: int) -> bool:
    policy = task.policy
    max_attempts = task.max_attempts or policy.max_attempts
    # With one attempt a crash is not retried either, whatever `max_crashes` says.
    if max_attempts == 1 or cause not in policy.retry_on:
        return False
    return crashes < policy.max_crashes if cause == RetryOn.WORKER_LOST else failures < max_attempts


def worker_lost(task: TaskRecord, now: datetime, chance: float) -> TaskRecord:
    """Return a held task after its worker was removed."""
    return failed(task, RetryOn.WORKER_LOST, DISCONNECTED, now, chance)


def unnamed(task: TaskRecord, now: datetime, chance: float) -> TaskRecord:
    """Return a held task that its living worker did not name in its heartbeats."""
    if task.status == TaskStatus.CLAIMED:
        return released(task, UNNAMED)
    return failed(task, RetryOn.WORKER_LOST, UNNAMED, now, chance)


def overdue(task: TaskRecord, now: datetime, chance: float) -> TaskRecord:
    """Return a held task after its deadline to start or to end."""
    if task.status == TaskStatus.CLAIMED:
        error = f"The task was not started within {task.policy.start_timeout_seconds:g} s"
        return requeued(task, StartTimeout.problem_id(), error=error)
    error = f"The attempt ran for more than {task.policy.timeout_seconds:g} s"
    return failed(task, RetryOn.TIMEOUT, error, now, chance)


def due(task: TaskRecord) -> TaskRecord:
    """Return a scheduled task in its queue."""
    return task.changed(run_at=None)


def expired(task: TaskRecord, now: datetime) -> TaskRecord:
    """Return a pending task after its `expires_at`."""
    code = TaskExpired.problem_id()
    return ended(task, TaskStatus.FAILED, now, "No worker claimed the task before it expired", code)


def internal_timeout(task: TaskRecord, now: datetime) -> TaskRecord:
    """Return an internal task that was held for too long."""
    return ended(task, TaskStatus.FAILED, now, INTERNAL_TIMEOUT, InternalTimeout.problem_id())


def retried(task: TaskRecord, reason: str) -> TaskRecord:
    """Return a failed or cancelled task in its queue again, with all its attempts left."""
    return requeued(task, reason).changed(failures=0, crashes=0, expires_at=None, error_code=None)


def released(task: TaskRecord, error: str | None = None) -> TaskRecord:
    """Return a held task in its queue again. The attempt is not counted as a failure."""
    return requeued(task, Released.problem_id(), error=error)
