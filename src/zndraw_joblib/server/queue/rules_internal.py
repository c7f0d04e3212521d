"""Internal jobs: the server dispatches their tasks to a broker, and an executor starts them.

The `deadline` of a claimed internal task is when it is dispatched again; that of a running one is when it
must have ended.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_fairness,
    rules_limits,
    rules_payloads,
    rules_transitions,
    sql_claims,
    sql_expiry,
    sql_jobs,
    sql_tasks,
    sql_transitions,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder, ClaimSlot
from zndraw_joblib.server.queue.sql_jobs import JobRecord
from zndraw_joblib.server.queue.sql_task_rows import Move, TaskRecord
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import (
    Conflict,
    DispatchFailed,
    ProblemException,
    TaskNotFound,
    WorkerNotFound,
)
from zndraw_joblib.wire.statuses import HELD, TaskStatus

DISPATCH_FAILED = "Failed to dispatch to internal executor"
# The owner of the worker rows of processes that run internal tasks.
EXECUTOR = Identity(INTERNAL, is_superuser=False)


class InternalJob(NamedTuple):
    """An internal job as the server's code declares it."""

    name: JobName
    schema: dict[str, Any]
    policy: JobPolicy


class Start(NamedTuple):
    """The request of an executor to start a task of a job."""

    worker_id: UUID
    task_id: UUID
    job: JobName

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"task {self.task_id}"


def check(job: InternalJob) -> None:
    """Raise the problem of a job whose schema is too large or invalid."""
    rules_payloads.check_schema(rules_transitions.check_size("schema", job.schema))


async def register(tx: Transaction, jobs: Sequence[InternalJob]) -> None:
    """Insert or update internal jobs and restore soft-deleted ones. Their tasks stay."""
    changed = False
    await sql_jobs.lock_named(tx, [job.name for job in jobs])
    for name, schema, policy in sorted(jobs, key=lambda one: str(one.name)):
        job, is_new = await sql_jobs.add_or_lock(tx, name, schema, policy)
        is_same = job.schema == schema and job.policy == policy
        if job.deleted:
            await sql_jobs.restore_with(tx, name, policy)
        elif not is_same:
            await sql_jobs.set_policy(tx, name, policy)
        if job.schema != schema:
            # Its tasks have payloads of both schemas, for an internal job has no versions.
            await sql_jobs.set_schema(tx, job.id, schema, job.masked)
        if is_new or job.policy.limits != policy.limits:
            await rules_limits.change(tx, [job.id], policy.limits)
        changed = changed or is_new or job.deleted or not is_same
    if changed:
        rules_answers.publish_jobs_changed(tx, INTERNAL)


async def start(tx: Transaction, items: Sequence[Start]) -> list[TaskRecord | ProblemException | None]:
    """Start claimed tasks, each for the first executor that requests it.

    The result for a later executor is None, for an unknown worker `WorkerNotFound`, and for a task of another
    job `Conflict`. A task of a paused job or room returns to its queue; it is dispatched again after the
    pause. An executor that repeats its request gets the task again, since the first response may have been
    lost.
    """
    workers = await sql_workers.lock(tx, list(dict.fromkeys(item.worker_id for item in items)))
    records = await sql_tasks.lock(tx, list(dict.fromkeys(item.task_id for item in items)))
    now = await tx.now()
    # A job's pause commits either before these locks or after the start.
    paused, pauses = await sql_jobs.lock_and_find_paused(
        tx, {task.job_id for task in records.values() if _may_start(task)}
    )
    moves: list[Move] = []
    results: list[TaskRecord | ProblemException | None] = []
    for item in items:
        task = records.get(item.task_id)
        if item.worker_id not in workers:
            results.append(WorkerNotFound(f"Worker {item.worker_id} not found"))
        elif task is not None and task.job != item.job:
            results.append(Conflict(f"Task {item.task_id} is of job {task.job}, not of {item.job}"))
        elif task is None or not _may_start(task):
            results.append(task if task is not None and _runs_at(task, item.worker_id) else None)
        else:
            is_paused = task.job_id in paused or pauses.has(task.room_id)
            holder = {"worker_id": item.worker_id, "worker_owner_id": EXECUTOR.id}
            after = (
                rules_transitions.released(task)
                if is_paused
                else rules_transitions.started(task, now, **holder)
            )
            moves.append((task, after))
            records[task.id] = after
            results.append(None if is_paused else after)
    await sql_transitions.move(tx, moves)
    for before, after in moves:
        if after.status != before.status:
            rules_answers.publish_status(tx, after)
    await _load_payloads(tx, [result for result in results if isinstance(result, TaskRecord)])
    return results


async def _load_payloads(tx: Transaction, started: Sequence[TaskRecord]) -> None:
    """Set the payloads that were too large to be read with the lock."""
    if missing := [task for task in started if task.payload is None]:
        bodies = await sql_tasks.bodies(tx, [task.id for task in missing])
        for task in missing:
            task.payload = bodies[task.id][0]


def _may_start(task: TaskRecord) -> bool:
    is_internal = task.job.room_id == INTERNAL
    return is_internal and task.status == TaskStatus.CLAIMED and task.worker_id is None


def _runs_at(task: TaskRecord, worker_id: UUID) -> bool:
    return task.status == TaskStatus.RUNNING and task.worker_id == worker_id


async def claim(
    tx: Transaction, names: Sequence[str], limit: int, order: ClaimOrder, *, exclusive_start: bool
) -> list[TaskRecord]:
    """Claim at most `limit` tasks of these jobs for dispatch, by priority and age.

    Claimed tasks that are due to be dispatched and queued tasks are merged in this order, without those of
    paused rooms.
    """
    now = await tx.now()
    records, pauses = await sql_jobs.by_names(tx, names)
    jobs = [job for job in records if not job.is_paused(now)]
    waiting = [job for job in jobs if job.pending]
    free, limiter = await _limits(tx, waiting, limit)
    due = await sql_expiry.lock_due_dispatches(tx, [job.id for job in jobs], now, limit) if jobs else []
    demand = {} if pauses.is_all else {job.id: min(job.pending, free.get(job.id, limit)) for job in waiting}
    order = order._replace(skips_paused=bool(pauses.rooms))
    queued = await _lock_next(tx, demand, limit, order, limiter)
    first = islice(merge(due, queued, key=attrgetter("place")), limit)
    claimed = [(task, _claimed(task, now, limiter) if task.is_queued else task) for task in first]
    moves = [(task, _leased(after, now, exclusive_start=exclusive_start)) for task, after in claimed]
    await sql_transitions.claim(tx, moves)
    if limiter is not None:
        await limiter.write([after for before, after in moves if before.is_queued and after.status in HELD])
    for before, after in moves:
        if before.status != after.status:
            rules_answers.publish_status(tx, after)
    return [after for _, after in moves if after.status == TaskStatus.CLAIMED]


async def _limits(
    tx: Transaction, jobs: Sequence[JobRecord], count: int
) -> tuple[dict[UUID, int], rules_limits.Limiter | None]:
    """Return how many more tasks of jobs with `max_in_flight` may be held, and the other limits."""
    limits = {job.id: job.max_in_flight for job in jobs if job.max_in_flight is not None}
    stored = {job.id: job.limits for job in jobs if job.limits is not None}
    if limits or stored:
        await sql_jobs.lock(tx, [job.id for job in jobs])
    free = await rules_fairness.free_slots(tx, limits)
    if not stored:
        return free, None
    limiter = rules_limits.Limiter(tx)
    await limiter.add(stored, count)
    return free, limiter


def _claimed(task: TaskRecord, now: datetime, limiter: rules_limits.Limiter | None) -> TaskRecord:
    after = rules_transitions.claimed(task, now)
    return after if limiter is None else after.changed(limit_key=limiter.key_of(task))


async def _lock_next(
    tx: Transaction,
    demand: Mapping[UUID, int],
    limit: int,
    order: ClaimOrder,
    limiter: rules_limits.Limiter | None,
) -> list[TaskRecord]:
    """Lock the next tasks of the queues: at most `limit`, and at most `demand` of each job."""
    demand = {job_id: count for job_id, count in demand.items() if count > 0}
    if not demand or limit <= 0:
        return []
    if order.is_by_room or order.skips_paused or limiter is not None:
        slot = ClaimSlot(demand=demand, task_limit=min(limit, sum(demand.values())))
        return list((await rules_fairness.assign(tx, [slot], demand, order, limiter)).values())
    oldest = await sql_claims.oldest(tx, {job_id: min(count, limit) for job_id, count in demand.items()})
    places = sorted((place, job_id) for job_id, queue in oldest.items() for place in queue)
    records: list[TaskRecord] = []
    for job_id, count in sorted(Counter(job_id for _, job_id in places[:limit]).items()):
        records += await sql_claims.lock_oldest(tx, job_id, count)
    return sorted(records, key=attrgetter("place"))


def _leased(task: TaskRecord, now: datetime, *, exclusive_start: bool) -> TaskRecord:
    if task.status != TaskStatus.CLAIMED:
        return task
    deadline = rules_transitions.dispatch_deadline(task, now, exclusive_start=exclusive_start)
    return task.changed(deadline=deadline)


async def confirm_dispatch(tx: Transaction, ids: Sequence[UUID]) -> list[None]:
    """Record that the broker has these tasks: they are not dispatched again."""
    await _set_deadline(tx, ids, None)
    return [None] * len(ids)


async def retry_dispatch_later(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Let the dispatcher dispatch tasks that have not started again at its next check."""
    await _set_deadline(tx, ids, await tx.now())


async def dispatch_again(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Let the dispatcher dispatch tasks that have not started again at once."""
    for task in await _set_deadline(tx, ids, await tx.now()):
        tx.wake(task.job_key, 1)


async def _set_deadline(tx: Transaction, ids: Sequence[UUID], at: datetime | None) -> list[TaskRecord]:
    records = await sql_expiry.lock_undispatched(tx, list(dict.fromkeys(ids)))
    await sql_transitions.move(tx, [(task, task.changed(deadline=at)) for task in records])
    return records


async def fail_dispatch(tx: Transaction, task_id: UUID) -> TaskResponse:
    """Fail a task that the broker did not take. A task that has started or ended meanwhile stays."""
    task = (await sql_tasks.lock(tx, [task_id])).get(task_id)
    if task is None:
        raise TaskNotFound(f"Task {task_id} not found")
    if task.status == TaskStatus.CLAIMED:
        code = DispatchFailed.problem_id()
        failed = rules_transitions.ended(task, TaskStatus.FAILED, await tx.now(), DISPATCH_FAILED, code)
        await sql_transitions.move(tx, [(task, failed)])
        rules_answers.publish_status(tx, failed)
        task = failed
    return rules_answers.task_response(task)
