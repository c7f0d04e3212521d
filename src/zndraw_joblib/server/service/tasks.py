"""Submit, report and read tasks. The writers take a list and give a result or a problem for each item."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from pydantic_core import to_json

from zndraw_joblib.contract.messages import (
    PaginatedResponse,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.problems import (
    InternalJobNotConfigured,
    JobNotFound,
    ProblemException,
    TaskNotFound,
)
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.server.ports import Identity, Page, job_key
from zndraw_joblib.server.service import jobs as job_service
from zndraw_joblib.server.service import payloads, retry_policy, rules, serializers
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import pages
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.positions import positions
from zndraw_joblib.server.store.tasks import TaskRecord

Answer = TaskResponse | ProblemException


@dataclass(frozen=True, slots=True)
class Submission:
    """One call of a job, from a room. `is_configured`: an internal job has an executor here.

    `exclusive_start`: that starts a task once, however often it is told of it; `is_deferred`: it is told later.
    `is_bounded`: its room may have only so many tasks under way.
    `validated_schema` is a schema, as JSON, that the payload is known to fit. `options`: when, how urgently, how often.
    """

    caller: Identity
    room_id: str
    job: JobName
    payload: dict[str, Any]
    is_configured: bool = False
    exclusive_start: bool = False
    is_deferred: bool = False
    is_bounded: bool = False
    validate_payload: bool = True
    cross_room: bool = False
    validated_schema: str | None = None
    options: TaskSubmitRequest = field(default_factory=TaskSubmitRequest)


class Report(NamedTuple):
    """What somebody says of a task."""

    caller: Identity
    task_id: UUID
    update: TaskUpdateRequest


async def submit(tx: Transaction, items: Sequence[Submission]) -> list[TaskResponse | Exception]:
    """Add tasks: pending, or claimed at once where the job is internal and the server will dispatch it.

    The answer to one whose payload is laborious to check is `MuchWork`.
    """
    jobs = await job_store.lock_by_names(tx, list(dict.fromkeys(item.job for item in items)))
    now = await tx.now()
    schemas = {name: to_json(job.schema).decode() for name, job in jobs.items()}
    made = [_check(item, schemas.get(item.job)) or _task(item, jobs[item.job], now) for item in items]
    tasks = [task for task in made if isinstance(task, TaskRecord)]
    if tasks:
        await store.add(tx, tasks)
    standing = await _standing(tx, tasks, jobs)
    pending = {job.id: job.pending for job in jobs.values()}
    answers: list[TaskResponse | Exception] = []
    for item, task in zip(items, made, strict=True):
        if isinstance(task, Exception):
            answers.append(task)
            continue
        if item.is_deferred and task.status == TaskStatus.CLAIMED:
            tx.wake(job_key(task.job), 1)
        position = None
        if task.status == TaskStatus.PENDING and task.run_at is None:
            position = pending[task.job_id] = pending[task.job_id] + 1
        position = standing.get(task.id, position)
        serializers.publish_status(tx, task, position)
        answers.append(serializers.task_response(task, position))
    return answers


def _check(item: Submission, schema: str | None) -> Exception | None:
    try:
        if schema is None:
            raise JobNotFound(f"Job {str(item.job)!r} not found")
        rules.check_room(item.job, item.room_id, cross_room=item.cross_room)
        if item.job.room_id == INTERNAL and not item.is_configured:
            raise InternalJobNotConfigured(f"Job {str(item.job)!r} has no executor in this server")
        if item.validate_payload:
            payloads.check(schema, item.payload, item.validated_schema)
    except (ProblemException, payloads.ExpensiveValidation) as problem:
        return problem
    return None


async def _standing(
    tx: Transaction, made: Sequence[TaskRecord], jobs: Mapping[JobName, Any]
) -> dict[UUID, int]:
    """Return the positions of new tasks in queues of more than one lane: those are not at the end."""
    for job in jobs.values():
        if not job.has_lanes and any(task.job_id == job.id and task.lane for task in made):
            await job_store.record_priorities(tx, job.id)
    mixed = {job.id for job in jobs.values() if job.has_lanes} | {task.job_id for task in made if task.lane}
    ids = [task.id for task in made if task.job_id in mixed]
    return await positions(tx, list((await store.lock(tx, ids)).values())) if ids else {}


def _task(item: Submission, job: Any, now: datetime) -> TaskRecord:
    options = item.options
    policy = job_store.policy_of(job.policy)
    run_at = (
        options.run_at if options.delay_seconds is None else now + timedelta(seconds=options.delay_seconds)
    )
    if run_at is not None and run_at <= now:
        run_at = None
    expires = (
        None if options.expires_in_seconds is None else now + timedelta(seconds=options.expires_in_seconds)
    )
    # What may not run at once waits in its queue, from which the dispatcher takes it.
    may_wait = run_at is not None or job.paused or policy.max_in_flight is not None or item.is_bounded
    if item.job.room_id != INTERNAL or may_wait:
        return _new(item, job, policy, now, run_at=run_at, expires_at=expires)
    task = _new(item, job, policy, now, status=TaskStatus.CLAIMED, claimed_at=now, attempt=1)
    due = (
        now
        if item.is_deferred
        else retry_policy.dispatch_deadline(task, now, exclusive_start=item.exclusive_start)
    )
    return replace(task, deadline=due)


def _new(item: Submission, job: Any, policy: JobPolicy, now: datetime, **state: Any) -> TaskRecord:
    options = item.options
    known = {"status": TaskStatus.PENDING, **state}
    return TaskRecord(
        lane=-(policy.priority if options.priority is None else options.priority),
        max_attempts=options.max_attempts,
        policy=policy,
        seq=0,
        id=uuid4(),
        job_id=job.id,
        job=item.job,
        room_id=item.room_id,
        created_by=item.caller.id,
        payload=item.payload,
        created_at=now,
        **known,
    )


async def report(tx: Transaction, items: Sequence[Report]) -> list[Answer]:
    """Move tasks as their holders, submitters or superusers say, in the order of the list."""
    current = await store.lock(tx, list(dict.fromkeys(item.task_id for item in items)))
    now = await tx.now()
    moves: list[tuple[TaskRecord, TaskRecord]] = []
    answers: list[TaskRecord | ProblemException] = []
    for item in items:
        task = current.get(item.task_id)
        try:
            if task is None:
                raise TaskNotFound(f"Task {item.task_id} not found")
            after = rules.decide(item.caller, task, item.update, now, random.random())  # noqa: S311 - jitter
        except ProblemException as problem:
            answers.append(problem)
            continue
        if after is not task:
            moves.append((task, after))
            current[item.task_id] = after
        answers.append(after)
    await store.move(tx, moves)
    await job_service.restore_needed(tx, [after for _, after in moves])
    standing = await positions(tx, [task for task in answers if isinstance(task, TaskRecord)])
    for _, after in moves:
        serializers.publish_status(tx, after, standing.get(after.id))
    await job_service.soft_delete_orphans(tx, _emptied(moves))
    return [
        serializers.task_response(task, standing.get(task.id)) if isinstance(task, TaskRecord) else task
        for task in answers
    ]


def _emptied(moves: Sequence[tuple[TaskRecord, TaskRecord]]) -> list[UUID]:
    # Only a task that was still pending could keep its job from being an orphan.
    return sorted({before.job_id for before, _ in moves if before.status == TaskStatus.PENDING})


async def get(tx: Transaction, task_id: UUID) -> TaskResponse:
    """Return one task. Raises `TaskNotFound`."""
    task = await store.by_id(tx, task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    standing = await positions(tx, [task])
    return serializers.task_response(task, standing.get(task.id))


async def page(
    tx: Transaction,
    room_id: str,
    status: TaskStatus | None,
    *,
    part: Page,
    job: UUID | None = None,
) -> PaginatedResponse[TaskResponse]:
    """Return one page of a room's tasks, of one status and one job where these are given."""
    found, total = await pages.page(tx, pages.in_room(room_id, status, job), part)
    standing = await positions(tx, found)
    items = [serializers.task_response(task, standing.get(task.id)) for task in found]
    return PaginatedResponse[TaskResponse].model_construct(
        items=items, total=total, limit=part.limit, offset=part.offset
    )


async def ended(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these tasks that have ended."""
    return await store.finished(tx, ids)


def has_ended(task: TaskResponse) -> bool:
    """Tell whether nothing more will happen to a task."""
    return task.status in TERMINAL
