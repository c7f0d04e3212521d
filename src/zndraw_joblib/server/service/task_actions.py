"""What is done to a task by hand, guarded by the claim that is meant; and what there is to tell of it."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from uuid import UUID

from zndraw_joblib.contract.messages import (
    Reason,
    TaskActionRequest,
    TaskExplanation,
    TaskHistory,
    TaskResponse,
    Transition,
)
from zndraw_joblib.contract.names import INTERNAL
from zndraw_joblib.contract.problems import (
    FailedByOperator,
    Forbidden,
    InvalidTaskTransition,
    Released,
    Retried,
    TaskNotFound,
)
from zndraw_joblib.contract.status import HELD, TERMINAL, Role, TaskStatus
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.service import fairness, retry_policy, rules, serializers
from zndraw_joblib.server.service import jobs as job_service
from zndraw_joblib.server.store import expiry
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.fairness import count_held_in
from zndraw_joblib.server.store.positions import positions
from zndraw_joblib.server.store.tasks import TaskRecord

Act = Callable[[TaskRecord, TaskActionRequest, datetime], TaskRecord]
TaskAction = Callable[..., Awaitable[TaskResponse]]
_AGAIN = frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})


async def release(
    tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest
) -> TaskResponse:
    """Hand a held task back to its queue: its worker, or a superuser. That burns no attempt."""

    def act(task: TaskRecord, action: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_from(task, HELD, "released")
        return retry_policy.released(task, rules.truncate_error(action.error))

    again = await _released_before(tx, task_id, action)
    if again is not None and again.worker_owner_id == caller.id:
        return serializers.task_response(again, (await positions(tx, [again])).get(task_id))
    return await _act(tx, caller, task_id, action, frozenset({Role.WORKER, Role.SUPERUSER}), act)


async def _released_before(tx: Transaction, task_id: UUID, action: TaskActionRequest) -> TaskRecord | None:
    """Return a task that waits since this very claim was handed back: then it is a repeat."""
    task = await store.by_id(tx, task_id)
    if task is None or task.status != TaskStatus.PENDING or task.attempt != action.attempt:
        return None
    known = await expiry.attempts_of(tx, task.seq)
    meant = (action.attempt, action.worker_id, Released.problem_id())
    is_same = bool(known) and (known[-1].attempt, known[-1].worker_id, known[-1].reason) == meant
    return task if is_same else None


async def retry(tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest) -> TaskResponse:
    """Let a task that failed or was cancelled be tried once more: its submitter, or a superuser."""

    def act(task: TaskRecord, _: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_from(task, _AGAIN, "retried")
        return retry_policy.retried(task, Retried.problem_id())

    return await _act(tx, caller, task_id, action, frozenset({Role.SUBMITTER, Role.SUPERUSER}), act)


async def fail(tx: Transaction, caller: Identity, task_id: UUID, action: TaskActionRequest) -> TaskResponse:
    """End a task that has not ended: a superuser. Whoever holds it is fenced out."""

    def act(task: TaskRecord, action: TaskActionRequest, now: datetime) -> TaskRecord:
        _check_from(task, frozenset(TaskStatus) - TERMINAL, "failed")
        error = rules.truncate_error(action.error) or "An operator ended the task"
        return retry_policy.ended(task, TaskStatus.FAILED, now, error, FailedByOperator.problem_id())

    return await _act(tx, caller, task_id, action, frozenset({Role.SUPERUSER}), act)


async def _act(
    tx: Transaction,
    caller: Identity,
    task_id: UUID,
    action: TaskActionRequest,
    allowed: frozenset[Role],
    act: Act,
) -> TaskResponse:
    task = (await store.lock(tx, [task_id])).get(task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    if task.job.room_id == INTERNAL and task.status not in TERMINAL and not caller.is_superuser:
        raise Forbidden("Not authorized: the task is internal")
    if not rules.roles_of(caller, task) & allowed:
        raise Forbidden(f"Not authorized: that is for {' or '.join(sorted(allowed))} of the task")
    rules.check_fence(task, action)
    after = act(task, action, await tx.now())
    # The job's row, so that it is not hidden while a task comes back to it.
    await job_store.lock_by_names(tx, [task.job])
    await store.move(tx, [(task, after)])
    await job_service.restore_needed(tx, [after])
    if task.status == TaskStatus.PENDING:
        await job_service.soft_delete_orphans(tx, [task.job_id])
    standing = await positions(tx, [after])
    serializers.publish_status(tx, after, standing.get(task_id))
    return serializers.task_response(after, standing.get(task_id))


def _check_from(task: TaskRecord, sources: frozenset[TaskStatus], what: str) -> None:
    if task.status not in sources:
        allowed = ", ".join(status for status in TaskStatus if status in sources)
        raise _refused(task, f"Only a task that is {allowed} can be {what}; this one is {task.status}")


def _refused(task: TaskRecord, detail: str) -> InvalidTaskTransition:
    return InvalidTaskTransition(
        detail,
        reason="wrong order",
        current_status=task.status,
        current_attempt=task.attempt,
        error_code=task.error_code,
    )


async def history(tx: Transaction, task_id: UUID) -> TaskHistory:
    """Return all transitions of a task, oldest first. Raises `TaskNotFound`."""
    task = await _found(tx, task_id)
    told = [Transition(at=task.created_at, status=TaskStatus.PENDING, attempt=0, reason="submitted")]
    for row in await expiry.attempts_of(tx, task.seq):
        told += _attempt(row)
        told.append(
            Transition(
                at=row.ended_at,
                status=TaskStatus.PENDING,
                attempt=row.attempt,
                worker_id=row.worker_id,
                reason=row.reason,
                error=None if row.status in TERMINAL else row.error,
                run_at=row.run_at,
            )
        )
    told += _attempt(task)
    return TaskHistory(id=task_id, transitions=told)


def _attempt(row: TaskRecord | expiry.AttemptRow) -> list[Transition]:
    steps = [(row.claimed_at, TaskStatus.CLAIMED), (row.started_at, TaskStatus.RUNNING)]
    told = [
        Transition(at=at, status=status, attempt=row.attempt, worker_id=row.worker_id)
        for at, status in steps
        if at is not None
    ]
    if row.completed_at is not None:
        status = TaskStatus(row.status)
        told.append(
            Transition(
                at=row.completed_at,
                status=status,
                attempt=row.attempt,
                worker_id=row.worker_id,
                reason=row.error_code,
                error=row.error,
            )
        )
    return told


async def explain(tx: Transaction, task_id: UUID, order: fairness.ClaimOrder) -> TaskExplanation:
    """Tell why a task is where it is. Raises `TaskNotFound`."""
    task = await _found(tx, task_id)
    standing = (await positions(tx, [task])).get(task_id)
    if task.status in TERMINAL:
        reasons = [Reason(code=task.status, detail=f"It ended at {task.completed_at:%Y-%m-%d %H:%M:%S} UTC")]
        if task.error_code:
            reasons.append(Reason(code=task.error_code, detail=task.error or ""))
    elif task.status in HELD:
        since = task.started_at or task.claimed_at
        by = "the server" if task.worker_id is None else f"worker {task.worker_id}"
        detail = f"It is {task.status} by {by}, attempt {task.attempt}, since {since:%Y-%m-%d %H:%M:%S} UTC"
        reasons = [Reason(code=task.status, detail=detail)]
    else:
        reasons = await _waits(tx, task, standing, order)
    return TaskExplanation(id=task_id, status=task.status, queue_position=standing, reasons=reasons)


async def _waits(
    tx: Transaction, task: TaskRecord, standing: int | None, order: fairness.ClaimOrder
) -> list[Reason]:
    reasons: list[Reason] = []
    job = await job_store.by_name(tx, task.job)
    serving = await worker_store.draining_flags(tx, task.job_id)
    if job is not None and job.paused:
        reasons.append(Reason(code="paused", detail=f"Job {task.job} is paused"))
    if task.job.room_id == INTERNAL:
        pass  # the server's own processes serve it
    elif not serving:
        reasons.append(Reason(code="no_worker", detail=f"No worker serves {task.job}"))
    elif all(serving):
        reasons.append(
            Reason(code="draining", detail=f"All {len(serving)} workers of {task.job} are leaving")
        )
    if task.run_at is not None:
        since = f" after: {task.error}" if task.error else ""
        reasons.append(
            Reason(code="scheduled", detail=f"It waits until {task.run_at:%Y-%m-%d %H:%M:%S.%f} UTC{since}")
        )
    reasons += await _caps(tx, task, order)
    if standing is not None:
        ahead = standing - 1
        reasons.append(
            Reason(code="queued", detail=f"It stands at position {standing}, {ahead} are ahead of it")
        )
    return reasons


async def _caps(tx: Transaction, task: TaskRecord, order: fairness.ClaimOrder) -> list[Reason]:
    reasons = []
    most = task.policy.max_in_flight
    if most is not None:
        held = (await expiry.count_held(tx, expiry.of_jobs([task.job_id]), "job_id"))[task.job_id]
        if held >= most:
            detail = f"{held} tasks of {task.job} are under way, {most} may be (max_in_flight)"
            reasons.append(Reason(code="job_at_capacity", detail=detail))
    if order.room_cap is not None:
        held = (await count_held_in(tx, [task.room_id]))[task.room_id]
        if held >= order.room_cap:
            detail = f"{held} tasks of room {task.room_id!r} are under way, {order.room_cap} may be"
            reasons.append(Reason(code="room_at_capacity", detail=f"{detail} (room_max_in_flight)"))
    return reasons


async def _found(tx: Transaction, task_id: UUID) -> TaskRecord:
    task = await store.by_id(tx, task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    return task
