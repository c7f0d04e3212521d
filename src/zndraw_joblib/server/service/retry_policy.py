"""What becomes of a task whose attempt went wrong, or that goes back to its queue. Pure decisions.

Source: seed 000 (a lost worker fails its tasks) and seed 004 (release with backoff).
"""

from dataclasses import replace
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

ERROR = "error"
_CODES = {RetryOn.WORKER_LOST: WorkerLost.problem_id(), RetryOn.TIMEOUT: RunTimeout.problem_id()}
DISCONNECTED = "Worker disconnected"
INTERNAL_TIMEOUT = "Internal worker timeout"
# So long a broker may take to confirm that it has a task, and a little more.
LEASE_SECONDS = 30.0
_DISPATCH_AGAIN_SECONDS = 60.0


def start_deadline(task: TaskRecord, now: datetime) -> datetime | None:
    """Return by when a task that is claimed now must have started."""
    return _after(now, task.policy.start_timeout_seconds or None)


def dispatch_deadline(task: TaskRecord, now: datetime, *, exclusive_start: bool) -> datetime:
    """Return when an internal task that goes to its broker now goes there again, unless it is heard of.

    A guarded executor starts a task once, however often it is told of it: then the pauses begin with
    `start_timeout_seconds` and double. For another one this is the end of a lease, which a confirmation ends.
    """
    if not exclusive_start:
        return now + timedelta(seconds=LEASE_SECONDS)
    pause = timedelta(seconds=task.policy.start_timeout_seconds or _DISPATCH_AGAIN_SECONDS)
    return now + max(pause, now - (task.claimed_at or now))


def end_deadline(task: TaskRecord, now: datetime) -> datetime | None:
    """Return by when a task that starts now must have ended."""
    return _after(now, task.policy.timeout_seconds)


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)


def ended(
    task: TaskRecord, status: TaskStatus, now: datetime, error: str | None, code: str | None, **also: Any
) -> TaskRecord:
    """Return the task at its end."""
    return replace(
        task,
        status=status,
        completed_at=now,
        error=error,
        error_code=code,
        deadline=None,
        run_at=None,
        **also,
    )


def queued(
    task: TaskRecord, reason: str, *, error: str | None = None, run_at: datetime | None = None, **also: Any
) -> TaskRecord:
    """Return the task back in its queue, or on its way there. Whoever held it is fenced out.

    What was said of an earlier attempt is said of this one no more.
    """
    return replace(
        task,
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
    """Return what a failed attempt makes of a task: one more where the policy allows it, else the end.

    `chance`, between 0 and 1, is for the jitter of the pause before it.
    """
    crashed = cause == RetryOn.WORKER_LOST
    failures, crashes = task.failures + (not crashed), task.crashes + crashed
    code = _CODES.get(cause, ERROR)
    counts: dict[str, Any] = {"failures": failures, "crashes": crashes}
    if may_retry and _may_go_again(task, cause, **counts):
        pause = task.policy.backoff.pause(failures + crashes, chance)
        # Without a pause no clock has to let it in.
        return queued(task, code, error=error, run_at=_after(now, pause or None), **counts)
    return ended(task, TaskStatus.FAILED, now, error, code, **counts)


def _may_go_again(task: TaskRecord, cause: RetryOn, failures: int, crashes: int) -> bool:
    policy = task.policy
    most = task.max_attempts or policy.max_attempts
    # With one attempt there is no other, however it ended: seed 000.
    if most == 1 or cause not in policy.retry_on:
        return False
    return crashes < policy.max_crashes if cause == RetryOn.WORKER_LOST else failures < most


def lost(task: TaskRecord, now: datetime, chance: float) -> TaskRecord:
    """Return what becomes of a held task whose worker is gone."""
    return failed(task, RetryOn.WORKER_LOST, DISCONNECTED, now, chance)


def overdue(task: TaskRecord, now: datetime, chance: float) -> TaskRecord:
    """Return what becomes of a held task that was not started, or did not end, in time."""
    if task.status == TaskStatus.CLAIMED:
        error = f"The task was not started within {task.policy.start_timeout_seconds:g} s"
        return queued(task, StartTimeout.problem_id(), error=error)
    error = f"The attempt ran for more than {task.policy.timeout_seconds:g} s"
    return failed(task, RetryOn.TIMEOUT, error, now, chance)


def due(task: TaskRecord) -> TaskRecord:
    """Return a task whose time has come, in its queue."""
    return replace(task, run_at=None)


def expired(task: TaskRecord, now: datetime) -> TaskRecord:
    """Return what becomes of a pending task that nobody claimed in time."""
    code = TaskExpired.problem_id()
    return ended(task, TaskStatus.FAILED, now, "Nobody claimed the task in time", code)


def internal_timeout(task: TaskRecord, now: datetime) -> TaskRecord:
    """Return what becomes of an internal task that is held for too long."""
    return ended(task, TaskStatus.FAILED, now, INTERNAL_TIMEOUT, InternalTimeout.problem_id())


def retried(task: TaskRecord, reason: str) -> TaskRecord:
    """Return a task that had ended without success in its queue again, with all its attempts before it."""
    return replace(queued(task, reason), failures=0, crashes=0, expires_at=None, error_code=None)


def released(task: TaskRecord, error: str | None = None) -> TaskRecord:
    """Return a held task that was handed back, for what is said to be wrong; that burns no attempt."""
    return queued(task, Released.problem_id(), error=error)
