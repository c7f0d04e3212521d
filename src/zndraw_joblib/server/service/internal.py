"""Tasks that run inside the server: handed to a broker after the commit, held by whoever starts them.

While one is claimed, its `deadline` is when it is handed over again; while it runs, when it must have ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import EmptyReason, TaskResponse
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.problems import DispatchFailed, ProblemException, TaskNotFound, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity, job_key
from zndraw_joblib.server.service import fairness, payloads, retry_policy, rules, serializers
from zndraw_joblib.server.store import expiry, fetch
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import TaskRecord

DISPATCH_FAILED = "Failed to dispatch to internal executor"
# Who owns the rows of the processes that run internal tasks.
EXECUTOR = Identity(INTERNAL, is_superuser=False)


class InternalJob(NamedTuple):
    """An internal job as the newest code has it."""

    name: JobName
    schema: dict[str, Any]
    policy: JobPolicy


class Start(NamedTuple):
    """A worker inside the server is about to run a task."""

    worker_id: UUID
    task_id: UUID


def check(offer: InternalJob) -> None:
    """Raise the problem of a job that no server could offer."""
    payloads.check_schema(rules.check_size("schema", offer.schema))


async def register(tx: Transaction, offers: Sequence[InternalJob]) -> None:
    """Make or renew internal jobs, and show those that were hidden; their tasks stay."""
    changed = False
    for name, schema, policy in sorted(offers, key=lambda one: str(one.name)):
        job, is_new = await job_store.add_or_lock(tx, name, schema, policy)
        is_same = job.schema == schema and job_store.policy_of(job.policy) == policy
        if job.deleted:
            await job_store.restore_with(tx, job.id, schema, policy)
        elif not is_same:
            await job_store.replace(tx, job.id, schema, policy)
        changed = changed or is_new or job.deleted or not is_same
    if changed:
        serializers.publish_jobs_changed(tx, INTERNAL)


async def start(tx: Transaction, items: Sequence[Start]) -> list[TaskRecord | ProblemException | None]:
    """Let workers start tasks: each task that is claimed, and that nobody has started, goes to one.

    The answer to whoever comes too late is None, and to a worker that is not there `WorkerNotFound`. Who
    has started a task already gets it again: the first answer may have been lost.
    """
    workers = await worker_store.lock(tx, list(dict.fromkeys(item.worker_id for item in items)))
    found = await store.lock(tx, list(dict.fromkeys(item.task_id for item in items)))
    now = await tx.now()
    moves: list[tuple[TaskRecord, TaskRecord]] = []
    answers: list[TaskRecord | ProblemException | None] = []
    for item in items:
        task = found.get(item.task_id)
        if item.worker_id not in workers:
            answers.append(WorkerNotFound(f"Worker {item.worker_id} not found"))
        elif task is None or not _may_start(task):
            answers.append(task if task is not None and _runs_at(task, item.worker_id) else None)
        else:
            after = _started(task, item.worker_id, now)
            moves.append((task, after))
            found[task.id] = after
            answers.append(after)
    await store.move(tx, moves)
    for _, after in moves:
        serializers.publish_status(tx, after)
    return answers


def _may_start(task: TaskRecord) -> bool:
    is_inside = task.job.room_id == INTERNAL
    return is_inside and task.status == TaskStatus.CLAIMED and task.worker_id is None


def _runs_at(task: TaskRecord, worker_id: UUID) -> bool:
    return task.status == TaskStatus.RUNNING and task.worker_id == worker_id


def _started(task: TaskRecord, worker_id: UUID, now: datetime) -> TaskRecord:
    return replace(
        task,
        status=TaskStatus.RUNNING,
        worker_id=worker_id,
        worker_owner_id=EXECUTOR.id,
        started_at=now,
        deadline=retry_policy.end_deadline(task, now),
    )


@dataclass(slots=True)
class _Opening:
    """Where one task more may go; an `Asker` for whoever gives rooms their turns."""

    waiting: dict[UUID, int]
    seq: int | None = None
    refusal: EmptyReason | None = None


async def claim(
    tx: Transaction, names: Sequence[str], limit: int, order: fairness.ClaimOrder, *, exclusive_start: bool
) -> list[TaskRecord]:
    """Return tasks of these jobs to hand to their broker now, at most `limit`; nobody else gets them for now.

    Those that are due again, then those that wait in their queues: these are claimed by it, in the order of
    the server's settings.
    """
    jobs = await job_store.by_names(tx, names)
    waiting = [job for job in jobs if job.pending and not job.paused]
    room = await _room(tx, waiting)
    now = await tx.now()
    due = await expiry.undispatched(tx, [job.id for job in jobs], now, limit) if jobs else []
    moves = [(task, task) for task in due]
    demand = {job.id: min(job.pending, room.get(job.id, limit)) for job in waiting}
    moves += [(task, _claimed(task, now)) for task in await _waiting(tx, demand, limit - len(moves), order)]
    moves = [(before, _leased(after, now, exclusive_start=exclusive_start)) for before, after in moves]
    await store.move(tx, moves)
    for before, after in moves:
        if before.status != after.status:
            serializers.publish_status(tx, after)
    return [after for _, after in moves if after.status == TaskStatus.CLAIMED]


async def _waiting(
    tx: Transaction, demand: Mapping[UUID, int], limit: int, order: fairness.ClaimOrder
) -> list[TaskRecord]:
    """Lock the tasks that are next in their queues: at most `limit`, and `demand` of each job."""
    demand = {job_id: count for job_id, count in demand.items() if count > 0}
    if not demand or limit <= 0:
        return []
    if order.is_by_room:
        openings = [_Opening(dict(demand)) for _ in range(min(limit, sum(demand.values())))]
        await fairness.assign(tx, openings, demand, order)
        chosen = [opening.seq for opening in openings if opening.seq is not None]
        return list((await fetch.lock_pending(tx, chosen)).values()) if chosen else []
    found: list[TaskRecord] = []
    for job_id, count in demand.items():
        if limit > len(found):
            found += await fetch.lock_oldest(tx, job_id, min(count, limit - len(found)))
    return found


async def _room(tx: Transaction, jobs: Sequence[Any]) -> dict[UUID, int]:
    """Return how many tasks more of each job with a cap may be under way, its row locked."""
    caps = {job.id: job.max_in_flight for job in jobs if job.max_in_flight is not None}
    if not caps:
        return {}
    await job_store.lock_limited(tx, [job.id for job in jobs])
    held = await expiry.count_held(tx, expiry.of_jobs(list(caps)), "job_id")
    return {job_id: most - held[job_id] for job_id, most in caps.items()}


def _claimed(task: TaskRecord, now: datetime) -> TaskRecord:
    if task.expires_at is not None and task.expires_at <= now:
        return retry_policy.expired(task, now)
    attempt = task.attempt + 1
    return replace(task, status=TaskStatus.CLAIMED, claimed_at=now, attempt=attempt, expires_at=None)


def _leased(task: TaskRecord, now: datetime, *, exclusive_start: bool) -> TaskRecord:
    if task.status != TaskStatus.CLAIMED:
        return task
    return replace(task, deadline=retry_policy.dispatch_deadline(task, now, exclusive_start=exclusive_start))


async def confirm_dispatch(tx: Transaction, ids: Sequence[UUID]) -> list[None]:
    """Note that a broker has tasks: nobody hands them to it again."""
    await _set_due(tx, ids, None)
    return [None] * len(ids)


async def retry_dispatch_later(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Let tasks that were not started be handed over the next time that a dispatcher looks."""
    await _set_due(tx, ids, await tx.now())


async def dispatch_again(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Let tasks that were not started be handed over anew, at once."""
    for task in await _set_due(tx, ids, await tx.now()):
        tx.wake(job_key(task.job), 1)


async def _set_due(tx: Transaction, ids: Sequence[UUID], at: datetime | None) -> list[TaskRecord]:
    found = await expiry.lock_undispatched(tx, list(dict.fromkeys(ids)))
    await store.move(tx, [(task, replace(task, deadline=at)) for task in found])
    return found


async def fail_dispatch(tx: Transaction, task_id: UUID) -> TaskResponse:
    """Fail a task that the broker did not take; one that has gone on all the same stays as it is."""
    task = (await store.lock(tx, [task_id])).get(task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    if task.status == TaskStatus.CLAIMED:
        code = DispatchFailed.problem_id()
        failed = retry_policy.ended(task, TaskStatus.FAILED, await tx.now(), DISPATCH_FAILED, code)
        await store.move(tx, [(task, failed)])
        serializers.publish_status(tx, failed)
        task = failed
    return serializers.task_response(task)
