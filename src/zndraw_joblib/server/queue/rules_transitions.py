"""Decisions that need no database: permissions, limits, and the effect of a report on a task."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.process.ports import Identity, TaskKey
from zndraw_joblib.server.queue.sql_reports import FENCE
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord, TaskState, ended_unstarted
from zndraw_joblib.wire.messages import (
    MAX_ERROR_BYTES,
    MAX_JSON_BYTES,
    TaskActionRequest,
    TaskResponse,
    TaskUpdateRequest,
    Verdict,
)
from zndraw_joblib.wire.names import RESERVED, JobName
from zndraw_joblib.wire.policy import RetryOn
from zndraw_joblib.wire.problems import (
    ContentTooLarge,
    Forbidden,
    InternalTimeout,
    InvalidTaskTransition,
    JobNotFound,
    ProblemException,
    Released,
    RunTimeout,
    StaleReport,
    StartTimeout,
    TaskExpired,
    Unauthorized,
    WorkerLost,
)
from zndraw_joblib.wire.scopes import DEFAULT_SCOPES, AccessRole, Scope, roles_with
from zndraw_joblib.wire.statuses import HELD, TERMINAL, Role, TaskStatus, may_move, targets

# Rooms and patterns that a refusal lists.
_MAX_SHOWN = 10
_CUT = "\n[cut: the text was longer than {} KiB]"


def check_room(job: JobName, room_id: str, *, cross_room: bool) -> None:
    """Raise `JobNotFound` for a job of another room."""
    if not (cross_room or job.room_id in RESERVED or job.room_id == room_id):
        raise JobNotFound(f"Job {str(job)!r} not found in room {room_id!r}")


def cannot_serve(caller: Identity, room_id: str) -> Forbidden:
    """Return the refusal of a caller who may not serve jobs and providers of a room."""
    if caller.scopes is None and caller.is_in(room_id):
        return Forbidden(f"Not authorized: only superusers may serve jobs and providers of {room_id}")
    return outside_rooms(caller, room_id) if caller.may(Scope.WORK) else missing_scope(caller, Scope.WORK)


def missing_scope(caller: Identity, scopes: Scope, others: Scope | None = None) -> Forbidden:
    """Return the refusal of a caller that has none of these scopes, and needs one of `others` too."""
    own = ", ".join((caller.scopes or DEFAULT_SCOPES).names) or "none"
    roles = [role for role in roles_with(scopes) if others is None or role in roles_with(others)]
    return Forbidden(
        f"Not authorized: this needs the scope {scopes}, and the caller has {own}. Use a token that was "
        f"created with `--role {roles[0]}`, or give the user this role"
    )


def check_sees(caller: Identity, owner_id: str | None, what: str) -> None:
    """Raise `Forbidden` for a thing of another user that the caller may not see, as its response shows it."""
    if not caller.sees(owner_id):
        raise Forbidden(
            f"Not authorized: {what} is of another user, and without the scope {Scope.READ} the caller "
            f"changes only what it has made itself. Use a token that was created with `--role "
            f"{AccessRole.SUBMITTER}`, or give the user this role"
        )


def outside_rooms(caller: Identity, room_id: str) -> Forbidden:
    """Return the refusal of a caller that has rights in other rooms only."""
    return Forbidden(
        f"Not authorized in room {room_id!r}: the caller has rights in {own_rooms(caller)} only. Use a "
        f"token that was created with `--rooms {room_id}`, or give the user this room"
    )


def own_rooms(caller: Identity) -> str:
    """Return the first rooms in which a caller has rights, as a refusal names them."""
    own = sorted(caller.rooms or ())
    return ", ".join(own[:_MAX_SHOWN]) + (", ..." if own[_MAX_SHOWN:] else "") or "no room"


def other_task(caller: Identity, id_: UUID, kind: str = "task") -> Forbidden:
    """Return the refusal of the token of a task for another task, or for a group that this has not made."""
    own = None if caller.task is None else caller.task.id
    return Forbidden(
        f"Not authorized for {kind} {id_}: the token is of task {own}, what this task waits for, what it has "
        "submitted, and the groups that it has made"
    )


def not_below(caller: Identity, id_: UUID) -> Forbidden:
    """Return the refusal of a report, with the token of a task, on a task that it may not report on."""
    own = None if caller.task is None else caller.task.id
    return Forbidden(
        f"Not authorized for task {id_}: the token reports on task {own} alone, and cancels only tasks "
        "below it"
    )


def is_below(caller: Identity, task: TaskRecord | TaskResponse) -> bool:
    """Return whether the task of the caller's token is the parent of a task, or the first of its tree."""
    return caller.task is not None and caller.task.id in {task.parent, task.root}


def claim_ended(claim: TaskKey) -> Unauthorized:
    """Return the refusal of the token of a claim that does not hold its task."""
    return Unauthorized(
        f"The token is of attempt {claim.attempt} of task {claim.id}, which does not hold the task any "
        "more: it has ended, or was released or claimed again",
        headers={"WWW-Authenticate": "Bearer"},
    )


def check_claim(caller: Identity, task: TaskRecord, tasks: Mapping[UUID, TaskRecord]) -> None:
    """Raise `Unauthorized` for a report on another task with the token of a claim that has ended.

    `tasks` are locked, and that of the token is one of them.
    """
    if caller.task is None or caller.task.id == task.id:
        return
    own = tasks.get(caller.task.id)
    if own is None or own.status not in HELD or own.attempt != caller.task.attempt:
        raise claim_ended(caller.task)


def other_job(caller: Identity, full_name: str, kind: str = "job") -> Forbidden:
    """Return the refusal of a caller that may submit and serve other jobs, or providers, only."""
    own = sorted(caller.jobs or ())
    return Forbidden(
        f"Not authorized for {kind} {full_name!r}: it matches none of {', '.join(own[:_MAX_SHOWN])}. Use a "
        "token that was created with a pattern of it in `--jobs`"
    )


def check_size(field: str, value: Any) -> str:
    """Return `value` as JSON. Raise `ContentTooLarge` if that is larger than 1 MiB."""
    encoded = to_json(value)
    if len(encoded) > MAX_JSON_BYTES:
        raise ContentTooLarge(f"{field} has {len(encoded)} bytes; at most {MAX_JSON_BYTES} are allowed")
    return encoded.decode()


def at_item(problem: ProblemException, field: str, index: int) -> ProblemException:
    """Return the problem of an item of a list, with its place in the list."""
    text = f"{field}.{index}: {problem}"
    error = {"loc": ["body", field, str(index)], "message": str(problem), "type": problem.problem_id()}
    problem.problem = problem.problem.model_copy(update={"detail": text, "errors": [error]})
    return problem


def truncate_error(error: str | None, limit: int = MAX_ERROR_BYTES) -> str | None:
    """Return an error text that every database can store, truncated to `limit` bytes and then marked."""
    if not error:
        return None
    text = error.replace("\x00", "\ufffd").encode("utf-8", "replace")
    if len(text) > limit:
        mark = _CUT.format(limit // 1024)
        return text[: limit - len(mark)].decode("utf-8", "ignore") + mark
    return text.decode()


def roles_of(caller: Identity, task: TaskRecord) -> frozenset[Role]:
    """Return the roles of the caller for a task. Raise `Forbidden` if it has none."""
    if caller.task is not None:
        if is_below(caller, task):
            return frozenset({Role.SUBMITTER})
        if caller.task != (task.id, task.attempt):
            raise Forbidden(f"Not authorized: the token is of another claim than task {task.id} has")
        return frozenset({Role.WORKER})
    roles = set()
    if caller.operates(task.room_id):
        roles.add(Role.SUPERUSER)
    if task.worker_owner_id == caller.id and caller.may(Scope.WORK):
        roles.add(Role.WORKER)
    if task.created_by == caller.id and caller.may(Scope.SUBMIT) and caller.is_in(task.room_id):
        roles.add(Role.SUBMITTER)
    if not roles:
        unclaimed = task.worker_id is None
        raise Forbidden(
            "Task not claimed by any worker" if unclaimed else "Not authorized to update this task"
        )
    return frozenset(roles)


def decide(
    caller: Identity, task: TaskRecord, report: TaskUpdateRequest, now: datetime, chance: float
) -> TaskRecord:
    """Return a task after a report; the same object if the report is a repeat or has no status.

    `chance`, between 0 and 1, determines the jitter of the pause before a retry. Raises `Forbidden`,
    `StaleReport` or `InvalidTaskTransition`.
    """
    roles = roles_of(caller, task)
    target = report.status
    if roles == {Role.SUBMITTER} and (target != TaskStatus.CANCELLED or report.has_details):
        raise Forbidden("Not authorized to update this task: its submitter may only cancel it")
    if _has_requeued(task, report):
        return task
    check_fence(task, report)
    if target is None:
        check_held(task)
        return task
    if _is_repeat(task, report):
        return task
    if not may_move(roles, task.status, target):
        raise _refusal(task, target)
    return _reported(task, target, report, now, chance)


def _reported(
    task: TaskRecord, target: TaskStatus, report: TaskUpdateRequest, now: datetime, chance: float
) -> TaskRecord:
    """Return a task after a report that may move it to the status `target`."""
    error = truncate_error(report.error)
    if target == TaskStatus.PENDING:
        return released(task, error)
    started_at, ended_at = _run_times(task, report, now)
    if target == TaskStatus.RUNNING:
        return started(task, now).changed(started_at=started_at or now)
    if target == TaskStatus.FAILED:
        cause = RetryOn.WORKER_LOST if report.error_code == WorkerLost.problem_id() else RetryOn.ERROR
        after = failed(task, cause, error, now, chance, report)
        is_over = after.status is TaskStatus.FAILED
        also = {"started_at": started_at, "completed_at": ended_at} if is_over else {"ended_at": ended_at}
        return after.changed(error_code=report.error_code or after.error_code, **also)
    result = {"result": report.result} if target == TaskStatus.COMPLETED else {}
    return ended(task, target, ended_at, error, None, started_at=started_at, **result)


def _run_times(
    task: TaskRecord, report: TaskUpdateRequest, now: datetime
) -> tuple[datetime | None, datetime]:
    """Return when a run started, None if it has not, and when it ended; not before the claim."""

    def past(seconds: float) -> datetime:
        return max(task.claimed_at or task.created_at, now - timedelta(seconds=seconds))

    started_ago, ended_ago = ages(report)
    started_at = task.started_at
    if started_ago is not None and (started_at is not None or report.status == TaskStatus.RUNNING):
        started_at = past(started_ago)
    ended_at = now if ended_ago is None else past(ended_ago)
    return started_at, max(ended_at, started_at or ended_at)


def ages(report: TaskUpdateRequest) -> tuple[float | None, float | None]:
    """Return how many seconds ago a run started and ended, by its report; an end at most `MAX_ENDED_AGO`.

    Of an earlier end the start is as much later, so that the run took as long.
    """
    started_ago, ended_ago = report.started_ago, report.ended_ago
    if ended_ago is not None and ended_ago > MAX_ENDED_AGO:
        if started_ago is not None:
            started_ago = max(0.0, started_ago - ended_ago) + MAX_ENDED_AGO
        ended_ago = MAX_ENDED_AGO
    return started_ago, ended_ago


def verdict(task: TaskState | None, worker_id: UUID, attempt: int) -> Verdict:
    """Return the verdict on a task that a worker believes it holds by its claim `attempt`."""
    if task is None or (task.worker_id, task.attempt) != (worker_id, attempt):
        return Verdict.LOST
    if task.status in HELD:
        return Verdict.CONTINUE
    return Verdict.CANCEL if task.status == TaskStatus.CANCELLED else Verdict.LOST


def check_fence(task: TaskRecord, report: TaskUpdateRequest | TaskActionRequest) -> None:
    """Raise `StaleReport` if the report is for another claim of the task than the current one."""
    differing = [name for name in FENCE if getattr(report, name) not in {None, getattr(task, name)}]
    if differing:
        what = f"{differing[-1].removesuffix('_id')} {getattr(report, differing[-1])}"
        # A task that is neither held nor ended was released and not claimed again.
        was_claimed = task.status in HELD or ("attempt" in differing and task.status in TERMINAL)
        raise StaleReport(
            f"Task was taken away: {what} does not hold it (it is {task.status}, attempt {task.attempt})",
            reason="taken over" if was_claimed else _reason(task.status),
            current_status=task.status,
            current_attempt=task.attempt,
            error_code=task.error_code,
        )


def check_held(task: TaskRecord) -> None:
    """Raise `StaleReport` unless a worker holds the task."""
    if task.status not in HELD:
        raise StaleReport(
            f"No worker holds the task: it is {task.status}, attempt {task.attempt}",
            reason=_reason(task.status),
            current_status=task.status,
            current_attempt=task.attempt,
            error_code=task.error_code,
        )


def _has_requeued(task: TaskRecord, report: TaskUpdateRequest) -> bool:
    """Return whether this report has requeued the task already: then it is a repeat."""
    codes = {TaskStatus.FAILED: report.error_code or ERROR, TaskStatus.PENDING: Released.problem_id()}
    return (
        (task.status, report.attempt) == (TaskStatus.PENDING, task.attempt)
        and report.status in codes
        and task.error_code == codes[report.status]
        and task.error == truncate_error(report.error)
    )


def _is_repeat(task: TaskRecord, report: TaskUpdateRequest) -> bool:
    if report.status != task.status or task.status in {TaskStatus.PENDING, TaskStatus.CLAIMED}:
        return False
    return task.status != TaskStatus.FAILED or truncate_error(report.error) == task.error


def _refusal(task: TaskRecord, target: TaskStatus) -> InvalidTaskTransition:
    allowed = ", ".join(t for t in targets(task.status) if t != TaskStatus.CLAIMED)
    ending = f"it has ended{f' ({task.error[:200]})' if task.error else ''}"
    return InvalidTaskTransition(
        f"Cannot transition from '{task.status}' to '{target}': "
        + (f"from there it can go to {allowed}" if allowed else ending),
        reason=_reason(task.status),
        current_status=task.status,
        current_attempt=task.attempt,
        error_code=task.error_code,
    )


def _reason(status: TaskStatus) -> str:
    if status == TaskStatus.CANCELLED:
        return "cancelled"
    if status == TaskStatus.PENDING:
        return "released"
    return "finished" if status in TERMINAL else "wrong order"


# The state changes of a task that need no database: claims, ends, retries and deadlines.

# Statistics read what ended this many seconds ago.
MAX_ENDED_AGO = 2
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
    report: TaskUpdateRequest | None = None,
) -> TaskRecord:
    """Return a task after a failed attempt: pending again if its policy allows a retry, else failed.

    `chance`, between 0 and 1, determines the jitter of the policy's pause. The report of a failure may be
    final, or have a pause of its own: then the job asked for a retry, and `retry_on` does not matter.
    """
    crashed = cause == RetryOn.WORKER_LOST
    failures, crashes = task.failures + (not crashed), task.crashes + crashed
    code = _CODES.get(cause, ERROR)
    counts: dict[str, Any] = {"failures": failures, "crashes": crashes}
    pause = None if report is None else report.retry_after_seconds
    is_reason = pause is not None or cause in task.policy.retry_on
    is_final = report is not None and _is_final(task, report)
    if is_reason and not is_final and _has_attempts_left(task, **counts, is_crash=crashed):
        if pause is None:
            pause = task.policy.backoff.pause(failures + crashes, chance)
        return requeued(task, code, error=error, run_at=_after(now, pause or None), **counts)
    return ended(task, TaskStatus.FAILED, now, error, code, **counts)


def _is_final(task: TaskRecord, report: TaskUpdateRequest) -> bool:
    types = report.error_types or ([] if report.failure is None else [report.failure.type])
    return not report.retry or task.policy.is_final(types)


def _has_attempts_left(task: TaskRecord, failures: int, crashes: int, *, is_crash: bool) -> bool:
    policy = task.policy
    max_attempts = task.max_attempts or policy.max_attempts
    # With one attempt a crash is not retried either, whatever `max_crashes` says.
    if max_attempts == 1:
        return False
    return crashes < policy.max_crashes if is_crash else failures < max_attempts


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
