"""Release, retry, hasten and fail a task on request. An `attempt` in the request must be that of the task."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_audit,
    rules_jobs,
    rules_successors,
    rules_transitions,
    rules_unique,
    rules_waves,
    sql_jobs,
    sql_tasks,
    sql_transitions,
)
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.server.queue.sql_tasks import positions
from zndraw_joblib.wire.messages import TaskActionRequest, TaskResponse
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import (
    FailedByOperator,
    Forbidden,
    InvalidTaskTransition,
    Released,
    Retried,
    TaskNotFound,
)
from zndraw_joblib.wire.statuses import HELD, TERMINAL, Role, TaskStatus

TaskAction = Callable[..., Awaitable[TaskResponse]]
_Decide = Callable[[TaskRecord, TaskActionRequest, datetime], TaskRecord]
_RETRIABLE = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


class _Kind(NamedTuple):
    name: str
    allowed: frozenset[Role]
    # Whether a payload that gets results is validated.
    validate: bool = True


_RELEASE = _Kind("task.release", frozenset({Role.WORKER, Role.SUPERUSER}))
_RETRY = _Kind("task.retry", frozenset({Role.SUBMITTER, Role.SUPERUSER}))
_RUN_NOW = _Kind("task.run-now", frozenset({Role.SUBMITTER, Role.SUPERUSER}))
_FAIL = _Kind("task.fail", frozenset({Role.SUPERUSER}))


async def release(
    tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest
) -> TaskResponse:
    """Requeue a held task for its worker or a superuser, without counting a failed attempt."""

    def decide(task: TaskRecord, action: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_status(task, HELD, "released")
        return rules_transitions.released(task, rules_transitions.truncate_error(action.error))

    repeated = await _released_before(tx, task_id, action)
    if repeated is not None and repeated.worker_owner_id == caller.id:
        position = (await positions(tx, [repeated])).get(task_id)
        return rules_answers.task_response(repeated, position, unique_key=repeated.unique_text)
    return await _apply(tx, caller, task_id, action, _RELEASE, decide)


async def _released_before(tx: Transaction, task_id: UUID, action: TaskActionRequest) -> TaskRecord | None:
    """Return a task that is pending since this claim was released: then the request is a repeat."""
    task = await sql_tasks.by_id(tx, task_id)
    if task is None or task.status != TaskStatus.PENDING or task.attempt != action.attempt:
        return None
    attempts = await sql_tasks.attempts_of(tx, task.seq)
    claim = (action.attempt, action.worker_id, Released.problem_id())
    is_repeat = (
        bool(attempts) and (attempts[-1].attempt, attempts[-1].worker_id, attempts[-1].reason) == claim
    )
    return task if is_repeat else None


async def retry(tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest) -> TaskResponse:
    """Requeue a failed or cancelled task for its submitter or a superuser."""

    def decide(task: TaskRecord, _: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_status(
            task, _RETRIABLE, "retried", ". 'run-now' queues it before its time" * task.is_scheduled
        )
        return rules_transitions.retried(task, Retried.problem_id())

    return await _apply(tx, caller, task_id, action, _RETRY, decide)


async def run_now(
    tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest, *, validate: bool = True
) -> TaskResponse:
    """Put a scheduled task into its queue, for its submitter or a superuser; a queued one stays there.

    A task that waits for others waits no longer. With `validate` its payload with their results must match
    the schema. Raises `Conflict` if a result does not exist or does not fit.
    """

    def decide(task: TaskRecord, _: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_status(task, frozenset({TaskStatus.PENDING}), "run now")
        return rules_transitions.due(task) if task.is_scheduled else task

    return await _apply(tx, caller, task_id, action, _RUN_NOW._replace(validate=validate), decide)


async def fail(tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest) -> TaskResponse:
    """Fail a task that has not ended, for a superuser. Later reports of its worker are rejected."""

    def decide(task: TaskRecord, action: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_status(task, frozenset(TaskStatus) - TERMINAL, "failed")
        error = rules_transitions.truncate_error(action.error) or "An operator ended the task"
        return rules_transitions.ended(task, TaskStatus.FAILED, now, error, FailedByOperator.problem_id())

    return await _apply(tx, caller, task_id, action, _FAIL, decide)


async def _apply(
    tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest, kind: _Kind, decide: _Decide
) -> TaskResponse:
    task = await _locked(tx, caller, task_id, kind)
    rules_transitions.check_fence(task, action)
    after = decide(task, action, await tx.now())
    if task.is_waiting and after.is_queued:
        after = await rules_waves.release_by_hand(tx, task, validate=kind.validate)
    elif task.status in TERMINAL and after.is_queued:
        [after] = await rules_successors.wait_again(tx, [after])
    if after is not task:
        await _write(tx, task, after)
        if rules_audit.is_by_operator(caller, task):
            await rules_audit.record(tx, caller, kind.name, str(task_id), task.room_id)
    position = (await positions(tx, [after])).get(task_id)
    if after is not task:
        rules_answers.publish_status(tx, after, position)
    return rules_answers.task_response(after, position, unique_key=after.unique_text)


async def _locked(tx: Transaction, caller: Identity, task_id: UUID, kind: _Kind) -> TaskRecord:
    task = (await sql_tasks.lock(tx, [task_id])).get(task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    if task.job.room_id == INTERNAL and task.status not in TERMINAL and not caller.operates(task.room_id):
        raise Forbidden("Not authorized: the task is internal")
    if not rules_transitions.roles_of(caller, task) & kind.allowed:
        raise Forbidden(f"Not authorized: only the task's {' or '.join(sorted(kind.allowed))} may do this")
    return task


async def _write(tx: Transaction, task: TaskRecord, after: TaskRecord) -> None:
    # So that the job is not deleted, and no other task gets the key, while the task returns to its queue.
    await sql_jobs.lock_with_versions(tx, [task.job_id])
    if task.status in TERMINAL:
        for refusal in (await rules_unique.retake(tx, [after])).values():
            raise refusal
    await sql_transitions.move(tx, [(task, after)])
    await rules_jobs.restore_needed(tx, [after])
    if task.status == TaskStatus.PENDING:
        await rules_jobs.record_unserved(tx, [task.job_id])


def _check_status(task: TaskRecord, allowed: frozenset[TaskStatus], verb: str, remedy: str = "") -> None:
    if task.status not in allowed:
        listed = " or ".join(status for status in TaskStatus if status in allowed)
        raise InvalidTaskTransition(
            f"Only a task that is {listed} can be {verb}; this one is {task.status}{remedy}",
            reason="wrong order",
            current_status=task.status,
            current_attempt=task.attempt,
            error_code=task.error_code,
        )
