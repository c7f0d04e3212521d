"""Submit, report and read tasks. Submissions and reports come in lists; each item gets its own result."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.contract.messages import (
    PaginatedResponse,
    TaskResponse,
    TaskSubmitRequest,
    TaskUpdateRequest,
)
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.problems import (
    InternalJobNotConfigured,
    JobNotFound,
    NoWorkersAvailable,
    ProblemException,
    TaskNotFound,
)
from zndraw_joblib.contract.status import HELD, TERMINAL, TaskStatus
from zndraw_joblib.server.ports import Identity, Page, RequestKey, job_key
from zndraw_joblib.server.service import audit, details, payloads, retry_policy, rules, serializers
from zndraw_joblib.server.service import jobs as job_service
from zndraw_joblib.server.service.details import DEFAULT_LIMITS, LogLimits
from zndraw_joblib.server.service.task_ids import new_ids
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.jobs import JobRecord
from zndraw_joblib.server.store.tasks import Move, TaskRecord, end_hooks, read
from zndraw_joblib.server.store.tasks import details as detail_store
from zndraw_joblib.server.store.tasks import stored_results as task_results
from zndraw_joblib.server.store.tasks.positions import positions

ReportResult = TaskResponse | ProblemException
# One answer has at most about this many bytes of payloads and results, as a claim has.
_MAX_BODY_BYTES = 8 * 1024**2


@dataclass(slots=True)
class Submission:
    """A task to submit from a room.

    For an internal job, `is_configured`: this server has an executor; `exclusive_start`: the executor starts
    a task once, however often it is dispatched; `is_deferred`: the dispatcher claims the task later.
    `is_bounded`: the number of held tasks of the room is limited. `requires_worker`: the job needs a worker,
    unless it is internal.
    `validated_schema`: a schema as JSON that the payload is known to match. `task_id`: the id that the task
    got in an earlier attempt to insert it, which may have succeeded. `traceparent`: the trace context of the
    submit. `on_end`: the name of the host's function to call after the task's end.
    """

    caller: Identity
    room_id: str
    job: JobName
    payload: dict[str, Any]
    is_configured: bool = False
    exclusive_start: bool = False
    is_deferred: bool = False
    is_bounded: bool = False
    requires_worker: bool = False
    validate_payload: bool = True
    cross_room: bool = False
    validated_schema: str | None = None
    options: TaskSubmitRequest = field(default_factory=TaskSubmitRequest)
    key: RequestKey | None = None
    task_id: UUID | None = None
    traceparent: str | None = None
    on_end: str | None = None

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"job {self.job}"


class NoneSubmitted(Exception):
    """No item was submitted, because some cannot be: their `results` are exceptions."""

    def __init__(self, results: Sequence[TaskResponse | Exception]) -> None:
        super().__init__("some tasks cannot be submitted")
        self.results = results


class Report(NamedTuple):
    """A report of a task's new status. Its answer has the payload only if it `wants_body`."""

    caller: Identity
    task_id: UUID
    update: TaskUpdateRequest
    key: RequestKey | None = None
    wants_body: bool = True
    request_id: str | None = None

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"task {self.task_id}"

    @property
    def weight(self) -> int:
        """Return how many tasks without a log it takes as long as."""
        return 1 + details.weight(self.update.log)


async def submit(
    tx: Transaction, items: Sequence[Submission], learn: Callable[[Iterable[JobRecord]], None] | None = None
) -> list[TaskResponse | Exception]:
    """Insert tasks: pending, or claimed if the job is internal and the server dispatches it at once.

    No payload is validated here. The result for one that was not validated against the job's current schema
    is `UnvalidatedPayload`. `learn` gets the jobs.
    """
    jobs = await job_store.lock_by_names(tx, list(dict.fromkeys(item.job for item in items)))
    if learn is not None:
        learn(jobs.values())
    now = await tx.now()
    faults = await _faults(tx, items, jobs)
    made = [fault or _task(item, jobs[item.job], now) for item, fault in zip(items, faults, strict=True)]
    tasks = [task for task in made if isinstance(task, TaskRecord)]
    if tasks:
        await store.add(tx, tasks)
    await _attach_hooks(tx, items, made, now)
    positions_by_priority = await _positions_by_priority(tx, tasks, jobs)
    pending = {job.id: job.pending for job in jobs.values()}
    results: list[TaskResponse | Exception] = []
    for item, task in zip(items, made, strict=True):
        if isinstance(task, Exception):
            results.append(task)
            continue
        if item.is_deferred and task.status == TaskStatus.CLAIMED:
            tx.wake(job_key(task.job), 1)
        position = None
        if task.is_queued:
            position = pending[task.job_id] = pending[task.job_id] + 1
        position = positions_by_priority.get(task.id, position)
        serializers.publish_status(tx, task, position)
        results.append(serializers.task_response(task, position))
    return results


async def _attach_hooks(
    tx: Transaction, items: Sequence[Submission], made: Sequence[TaskRecord | Exception], now: datetime
) -> None:
    names = {
        task.id: item.on_end
        for item, task in zip(items, made, strict=True)
        if item.on_end is not None and isinstance(task, TaskRecord)
    }
    await end_hooks.attach(tx, names, now)


async def submit_all(tx: Transaction, items: Sequence[Submission]) -> list[TaskResponse]:
    """Insert tasks as `submit` does. Raises `NoneSubmitted` unless all can be inserted."""
    results = await submit(tx, items)
    made = [result for result in results if not isinstance(result, Exception)]
    if len(made) < len(results):
        raise NoneSubmitted(results)
    return made


async def _faults(
    tx: Transaction, items: Sequence[Submission], jobs: Mapping[JobName, JobRecord]
) -> list[Exception | None]:
    """Return why each item cannot be submitted, None for one that can."""
    schemas = {name: to_json(job.schema).decode() for name, job in jobs.items()}
    unserved = await _unserved(tx, items, jobs)
    return [_check(item, schemas.get(item.job), unserved) for item in items]


async def _unserved(
    tx: Transaction, items: Sequence[Submission], jobs: Mapping[JobName, JobRecord]
) -> set[JobName]:
    """Return those of the jobs that need a worker and have none."""
    names = {item.job for item in items if item.requires_worker and item.job.room_id != INTERNAL}
    ids = {name: jobs[name].id for name in names if name in jobs}
    served = await job_store.served(tx, list(ids.values())) if ids else set()
    return {name for name, job_id in ids.items() if job_id not in served}


def _check(item: Submission, schema: str | None, unserved: Collection[JobName]) -> Exception | None:
    try:
        if schema is None:
            raise JobNotFound(f"Job {str(item.job)!r} not found")
        rules.check_room(item.job, item.room_id, cross_room=item.cross_room)
        if item.job.room_id == INTERNAL and not item.is_configured:
            raise InternalJobNotConfigured(f"Job {str(item.job)!r} has no executor in this server")
        if item.job in unserved:
            raise NoWorkersAvailable(
                f"No worker serves job {str(item.job)!r}, and the server accepts no task without one "
                "(setting without_workers); start a worker, or submit it later"
            )
    except ProblemException as problem:
        return problem
    if item.validate_payload and schema not in {item.validated_schema, payloads.ANY_PAYLOAD}:
        return payloads.UnvalidatedPayload(schema)
    return None


async def _positions_by_priority(
    tx: Transaction, made: Sequence[TaskRecord], jobs: Mapping[JobName, JobRecord]
) -> dict[UUID, int]:
    """Return the positions of new tasks in queues with several priorities, which need not be the last."""
    for job in jobs.values():
        if not job.has_lanes and any(task.job_id == job.id and task.lane for task in made):
            await job_store.record_priorities(tx, job.id)
    mixed = {job.id for job in jobs.values() if job.has_lanes} | {task.job_id for task in made if task.lane}
    ids = [task.id for task in made if task.job_id in mixed]
    return await positions(tx, list((await store.lock(tx, ids, 0)).values())) if ids else {}


def _task(item: Submission, job: JobRecord, now: datetime) -> TaskRecord:
    options, policy = item.options, job.policy
    run_at = options.run_at
    if options.delay_seconds is not None:
        run_at = now + timedelta(seconds=options.delay_seconds)
    if run_at is not None and run_at <= now:
        run_at = None
    expires_at = None
    if options.expires_in_seconds is not None:
        expires_at = now + timedelta(seconds=options.expires_in_seconds)
    task = TaskRecord(
        seq=0,
        id=item.task_id or new_ids(1)[0],
        job_id=job.id,
        job=item.job,
        room_id=item.room_id,
        status=TaskStatus.PENDING,
        created_by=item.caller.id,
        payload=item.payload,
        created_at=now,
        lane=-(policy.priority if options.priority is None else options.priority),
        max_attempts=options.max_attempts,
        traceparent=item.traceparent,
        policy=policy,
    )
    # A task that may not start at once waits in its queue, where the dispatcher finds it.
    may_wait = run_at is not None or job.paused or policy.max_in_flight is not None or item.is_bounded
    if item.job.room_id != INTERNAL or may_wait:
        task.run_at, task.expires_at = run_at, expires_at
        return task
    task = task.changed(status=TaskStatus.CLAIMED, claimed_at=now, attempt=1)
    if item.is_deferred:
        task.deadline = now
    else:
        exclusive_start = item.exclusive_start
        task.deadline = retry_policy.dispatch_deadline(task, now, exclusive_start=exclusive_start)
    return task


def most_body_bytes(items: Sequence[Report]) -> int:
    """Return how large a payload and a result may be to be read in the transaction of these reports.

    Beyond that the answer has none, and `load_bodies` reads them after the commit.
    """
    return _MAX_BODY_BYTES // len(items) if any(item.wants_body for item in items) else 0


async def report(
    tx: Transaction, items: Sequence[Report], limits: LogLimits = DEFAULT_LIMITS
) -> list[ReportResult]:
    """Apply reports of workers, submitters and superusers in the order of the list.

    The payload of a result is None if it is larger than `most_body_bytes`. `limits` are those of each log.
    """
    current = await store.lock(tx, list({item.task_id for item in items}), most_body_bytes(items))
    now = await tx.now()
    decided: list[tuple[TaskRecord, Report, TaskRecord]] = []
    results: list[TaskRecord | ProblemException] = []
    for item in items:
        task = current.get(item.task_id)
        try:
            if task is None:
                raise TaskNotFound(f"Task {item.task_id} not found")
            after = rules.decide(item.caller, task, item.update, now, random.random())  # noqa: S311 - jitter
        except ProblemException as problem:
            results.append(problem)
            continue
        decided.append((task, item, after))
        current[item.task_id] = after
        results.append(after)
    moves: list[Move] = [(task, after) for task, _, after in decided if after is not task]
    await store.move(tx, moves)
    held = [(task, item.update) for task, item, _ in decided if task.status in HELD]
    await details.record(tx, [each for each in held if each[1].has_details], limits)
    await _record_cancels(tx, decided)
    await job_service.restore_needed(tx, [after for _, after in moves])
    found_at = await positions(tx, [task for task in results if isinstance(task, TaskRecord)])
    for _, after in moves:
        serializers.publish_status(tx, after, found_at.get(after.id))
    # Only a task that was pending could keep its job from being an orphan.
    await job_service.soft_delete_orphans(
        tx, sorted({task.job_id for task, _ in moves if task.status == TaskStatus.PENDING})
    )
    return [
        serializers.task_response(task, found_at.get(task.id)) if isinstance(task, TaskRecord) else task
        for task in results
    ]


async def _record_cancels(tx: Transaction, decided: Iterable[tuple[TaskRecord, Report, TaskRecord]]) -> None:
    for task, item, after in decided:
        is_cancel = after.status is TaskStatus.CANCELLED and after is not task
        if is_cancel and audit.is_by_operator(item.caller, task):
            tx.request_id = item.request_id
            await audit.record(tx, item.caller, "task.cancel", str(task.id), task.room_id)


async def load_body(tx: Transaction, reported: TaskResponse) -> None:
    """Set payload and result of a task. Raises `TaskNotFound`."""
    await load_bodies(tx, [reported])
    if not has_body(reported):
        raise TaskNotFound(f"Task {reported.id} was removed since it was reported")


async def load_bodies(tx: Transaction, reported: Sequence[TaskResponse | Exception]) -> None:
    """Set payload and result of tasks, in order, while they have at most 8 MiB in all; the first always.

    Neither changes without the status. The payload of a task that was removed stays None.
    """
    found = [task for task in reported if isinstance(task, TaskResponse)]
    sizes = await read.body_sizes(tx, list({task.id for task in found}))
    left = _MAX_BODY_BYTES
    wanted: list[TaskResponse] = []
    for task in found:
        left -= sizes.get(task.id, 0)
        if wanted and left < 0:
            break
        wanted.append(task)
    bodies = await read.bodies(tx, list({task.id for task in wanted}))
    for task in wanted:
        if task.id in bodies:
            task.payload, result = bodies[task.id]
            task.result = result if task.status is TaskStatus.COMPLETED else None


async def get(tx: Transaction, task_id: UUID) -> TaskResponse:
    """Return one task. Raises `TaskNotFound`."""
    found = await detail_store.by_id(tx, task_id)
    if found is None:
        raise TaskNotFound(f"Task {task_id} not found")
    task, detail, has_stored = found
    found_at = await positions(tx, [task])
    stored = await task_results.current(tx, [task]) if has_stored else {}
    return serializers.task_response(task, found_at.get(task.id), detail, stored.get(task.id))


async def page(
    tx: Transaction, room_id: str, status: TaskStatus | None, *, part: Page, job: UUID | None = None
) -> PaginatedResponse[TaskResponse]:
    """Return one page of a room's tasks, optionally of one status and of one job."""
    found, total = await read.page(tx, room_id, status, part=part, job_id=job)
    found_at, detail_of = await positions(tx, found), await detail_store.current(tx, found)
    stored = await task_results.current(tx, found)
    items = [
        serializers.task_response(task, found_at.get(task.id), detail_of.get(task.id), stored.get(task.id))
        for task in found
    ]
    return serializers.page_response(PaginatedResponse[TaskResponse], items, total, part)


async def ended(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these tasks that have ended."""
    return await store.finished(tx, ids)


def has_body(task: TaskResponse) -> bool:
    """Return whether the payload of a reported task was read."""
    return task.payload is not None


def has_ended(task: TaskResponse) -> bool:
    """Return whether a task has ended."""
    return task.status in TERMINAL


def reporter(item: Report, task: TaskResponse) -> UUID | None:
    """Return the worker that reported. Clients of version 0.1.x send no id; workers cancel no tasks."""
    is_cancelled = item.update.status == TaskStatus.CANCELLED
    return item.update.worker_id or (None if is_cancelled else task.worker_id)
