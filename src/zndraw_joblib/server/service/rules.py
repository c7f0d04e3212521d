"""Decisions that need no database: permissions, limits, and the effect of a report on a task."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.contract.messages import (
    MAX_ERROR_BYTES,
    MAX_JSON_BYTES,
    TaskActionRequest,
    TaskUpdateRequest,
    Verdict,
)
from zndraw_joblib.contract.names import GLOBAL, RESERVED, JobName
from zndraw_joblib.contract.policy import RetryOn
from zndraw_joblib.contract.problems import (
    ContentTooLarge,
    Forbidden,
    InvalidTaskTransition,
    JobNotFound,
    ProblemException,
    StaleReport,
)
from zndraw_joblib.contract.status import HELD, TERMINAL, Role, TaskStatus, may_move, targets
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.service import retry_policy
from zndraw_joblib.server.store.tasks import TaskRecord, TaskState

_CUT = "\n[cut: the text was longer than {} KiB]"


def check_room(job: JobName, room_id: str, *, cross_room: bool) -> None:
    """Raise `JobNotFound` for a job of another room."""
    if not (cross_room or job.room_id in RESERVED or job.room_id == room_id):
        raise JobNotFound(f"Job {str(job)!r} not found in room {room_id!r}")


def may_serve_room(caller: Identity, room_id: str) -> bool:
    """Return whether the caller may serve jobs and providers of a room, if the host's guards agree."""
    return room_id != GLOBAL or caller.is_superuser


def only_superusers() -> Forbidden:
    """Return the refusal of a caller who may not serve ``@global``."""
    return Forbidden(f"Not authorized: only superusers may serve jobs and providers of {GLOBAL}")


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


def truncate_error(error: str | None, most: int = MAX_ERROR_BYTES) -> str | None:
    """Return an error text that every database can store, truncated to `most` bytes and then marked."""
    if not error:
        return None
    text = error.replace("\x00", "\ufffd").encode("utf-8", "replace")
    if len(text) > most:
        mark = _CUT.format(most // 1024)
        return text[: most - len(mark)].decode("utf-8", "ignore") + mark
    return text.decode()


def roles_of(caller: Identity, task: TaskRecord) -> frozenset[Role]:
    """Return the roles of the caller for a task. Raise `Forbidden` if it has none."""
    roles = set()
    if caller.is_superuser:
        roles.add(Role.SUPERUSER)
    if task.worker_owner_id == caller.id:
        roles.add(Role.WORKER)
    if task.created_by == caller.id:
        roles.add(Role.SUBMITTER)
    if not roles:
        unclaimed = task.worker_id is None
        raise Forbidden(
            "Task not claimed by any worker" if unclaimed else "Not authorized to update this task"
        )
    return frozenset(roles)


def decide(
    caller: Identity, task: TaskRecord, report: TaskUpdateRequest, now: datetime, chance: float = 0.0
) -> TaskRecord:
    """Return a task after a report; the same object if the report is a repeat or has no status.

    `chance`, between 0 and 1, determines the jitter of the pause before a retry. Raises `Forbidden`,
    `StaleReport` or `InvalidTaskTransition`.
    """
    roles = roles_of(caller, task)
    target = report.status
    if roles == {Role.SUBMITTER} and (target != TaskStatus.CANCELLED or report.has_details):
        raise Forbidden("Not authorized to update this task: its submitter may only cancel it")
    if _has_caused_retry(task, report):
        return task
    check_fence(task, report)
    if target is None:
        check_held(task)
        return task
    if _is_repeat(task, report):
        return task
    if not may_move(roles, task.status, target):
        raise _refusal(task, target)
    if target == TaskStatus.RUNNING:
        return retry_policy.started(task, now)
    error = truncate_error(report.error)
    if target == TaskStatus.FAILED:
        after = retry_policy.failed(task, RetryOn.ERROR, error, now, chance, may_retry=report.retry)
        return after if report.error_code is None else after.changed(error_code=report.error_code)
    result = {"result": report.result} if target == TaskStatus.COMPLETED else {}
    return retry_policy.ended(task, target, now, error, None, **result)


def verdict(task: TaskState | None, worker_id: UUID, attempt: int) -> Verdict:
    """Return the verdict on a task that a worker believes it holds by its claim `attempt`."""
    if task is None or (task.worker_id, task.attempt) != (worker_id, attempt):
        return Verdict.LOST
    if task.status in HELD:
        return Verdict.CONTINUE
    return Verdict.CANCEL if task.status == TaskStatus.CANCELLED else Verdict.LOST


def check_fence(task: TaskRecord, report: TaskUpdateRequest | TaskActionRequest) -> None:
    """Raise `StaleReport` if the report is for another claim of the task than the current one."""
    other_worker = report.worker_id is not None and report.worker_id != task.worker_id
    other_attempt = report.attempt is not None and report.attempt != task.attempt
    if other_worker or other_attempt:
        what = f"attempt {report.attempt}" if other_attempt else f"worker {report.worker_id}"
        # A task that is neither held nor ended was released and not claimed again.
        was_claimed = task.status in HELD or (other_attempt and task.status in TERMINAL)
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


def _has_caused_retry(task: TaskRecord, report: TaskUpdateRequest) -> bool:
    """Return whether this report has requeued the task already: then it is a repeat."""
    return (
        (task.status, report.status, report.attempt) == (TaskStatus.PENDING, TaskStatus.FAILED, task.attempt)
        and task.error_code == (report.error_code or retry_policy.ERROR)
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
