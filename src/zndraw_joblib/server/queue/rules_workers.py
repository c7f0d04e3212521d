"""Workers: creation, heartbeats, draining and removal. Every removal ends in `retire`."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.jobs.logs import one_line
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, worker_key
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_audit,
    rules_details,
    rules_jobs,
    rules_providers,
    rules_transitions,
    sql_expiry,
    sql_jobs,
    sql_tasks,
    sql_transitions,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_details import HeldAttempt, LogLimits
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord, TaskState
from zndraw_joblib.server.queue.sql_tasks import positions
from zndraw_joblib.server.queue.sql_workers import SilentWorker, WorkerRecord
from zndraw_joblib.wire.messages import MAX_NAMED_TASKS, NamedTask, TaskVerdict, WorkerInfo, WorkerResponse
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.problems import (
    Conflict,
    Forbidden,
    JobNotFound,
    ProblemException,
    WorkerLost,
    WorkerNotFound,
)
from zndraw_joblib.wire.statuses import HELD, TaskStatus

# How many held tasks a batch of heartbeats compares with the named ones, besides as many as are named.
MAX_HELD = 2000
_REMOVED_AT_ONCE = 50
_NEVER = datetime.max.replace(tzinfo=UTC)
Decide = Callable[[TaskRecord, datetime, float], TaskRecord]


# The most removed workers that the log of a cycle names.
_MAX_DESCRIBED = 3


@dataclass(slots=True)
class Counts:
    """How many held tasks were requeued, and how many failed. `silent` describes some removed workers."""

    released: int = 0
    failed: int = 0
    silent: dict[UUID, str] = field(default_factory=dict, compare=False)

    def add_silent(self, workers: Mapping[UUID, SilentWorker], now: datetime) -> None:
        """Describe workers for the log, unless some are described already."""
        for worker_id, worker in islice(workers.items(), _MAX_DESCRIBED - len(self.silent)):
            silence = 0.0 if worker.last_heartbeat is None else (now - worker.last_heartbeat).total_seconds()
            name = one_line(worker.name or "unnamed")
            self.silent[worker_id] = f"{name} ({str(worker_id)[:8]}, silent for {silence:.0f} s)"


class Heartbeat(NamedTuple):
    """A heartbeat: the next is due in `interval` seconds.

    `named` are the tasks that the worker names as its own; None if the heartbeat has no list. Those in
    `refused` count as lost: their jobs are of rooms that the caller may not serve. Without
    `records_unnamed`, it is not recorded which tasks the list omits.
    """

    caller: Identity
    worker_id: UUID
    interval: float
    named: Sequence[NamedTask] | None = None
    max_tasks: int | None = None
    records_unnamed: bool = True
    refused: Collection[UUID] = ()

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"worker {self.worker_id}"

    @property
    def weight(self) -> int:
        """Return how many tasks without a log it takes as long as."""
        return sum(1 + rules_details.weight(task.log) for task in self.named or ())


async def create(
    tx: Transaction, caller: Identity, interval: float, info: WorkerInfo | None = None
) -> WorkerResponse:
    """Create a worker that belongs to the caller."""
    worker_id = await sql_workers.add(tx, caller.id, info=info)
    return WorkerResponse(id=worker_id, last_heartbeat=await tx.now(), heartbeat_interval_seconds=interval)


async def heartbeat(
    tx: Transaction, items: Sequence[Heartbeat], limits: Callable[[], LogLimits] = LogLimits
) -> list[WorkerResponse | ProblemException]:
    """Record heartbeats, which only the owner of a worker may send. Return verdicts on the named tasks.

    `limits()` is how much is kept of the logs that they bring.
    """
    workers = await sql_workers.lock(tx, list(dict.fromkeys(item.worker_id for item in items)))
    problems = [_problem(item, workers.get(item.worker_id)) for item in items]
    valid = [item for item, problem in zip(items, problems, strict=True) if problem is None]
    await _record_details(tx, valid, limits())
    states = await _states(tx, valid)
    await sql_workers.heartbeat(tx, [item.worker_id for item in valid])
    for item in valid:
        if item.max_tasks is not None and item.max_tasks != workers[item.worker_id].max_tasks:
            await sql_workers.set_max_tasks(tx, item.worker_id, item.max_tasks)
            tx.wake(worker_key(item.worker_id))
    now = await tx.now()
    return [
        problem or _response(item, workers[item.worker_id], states, now)
        for item, problem in zip(items, problems, strict=True)
    ]


async def _record_details(tx: Transaction, items: Sequence[Heartbeat], limits: LogLimits) -> None:
    """Record the details of held tasks. A task that the worker does not hold gets its verdict instead."""
    detailed = [
        (item.worker_id, task)
        for item in items
        for task in item.named or ()
        if task.has_details and task.id not in item.refused
    ]
    if detailed:
        records = await sql_tasks.lock(tx, list({task.id for _, task in detailed}), 0)
        held = {
            (id_, task.worker_id, task.attempt): HeldAttempt.of(task)
            for id_, task in records.items()
            if task.status in HELD
        }
        tokens = [(held.get((task.id, worker_id, task.attempt)), task) for worker_id, task in detailed]
        await rules_details.record(tx, [(task, named) for task, named in tokens if task is not None], limits)


async def _states(tx: Transaction, items: Sequence[Heartbeat]) -> dict[UUID, TaskState]:
    """Return the states of all named tasks, and record which held tasks are not named."""
    named: dict[UUID, set[tuple[UUID, int]]] = {}
    for item in items:
        if item.named is not None and item.records_unnamed:
            pairs = {(task.id, task.attempt) for task in item.named if task.id not in item.refused}
            named.setdefault(item.worker_id, set()).update(pairs)
    # A list of the maximum length may be incomplete.
    full = {
        item.worker_id
        for item in items
        if item.worker_id in named and len(item.named or ()) >= MAX_NAMED_TASKS
    }
    await sql_expiry.unmark_held_by(tx, list(full))
    complete = {worker_id: pairs for worker_id, pairs in named.items() if worker_id not in full}
    states = await _compare(tx, complete) if complete else {}
    ids = dict.fromkeys(task.id for item in items for task in item.named or ())
    others = [task_id for task_id in ids if task_id not in states]
    if not others:
        return states
    read = await sql_tasks.states(tx, others)
    # Held tasks beyond the limit of `_compare`.
    await sql_expiry.unmark(
        tx, [task_id for task_id, state in read.items() if _is_named(task_id, state, complete)]
    )
    return states | read


async def _compare(tx: Transaction, named: Mapping[UUID, set[tuple[UUID, int]]]) -> dict[UUID, TaskState]:
    """Record which of the tasks that these workers hold are not named. Return the states of those read."""
    held = await sql_expiry.named_tasks_of(tx, list(named), MAX_HELD + sum(map(len, named.values())))
    now = await tx.now()
    is_named = {task: (task.id, task.attempt) in named[task.worker_id] for task in held}
    await sql_expiry.unmark(tx, [task.id for task in held if is_named[task] and task.unnamed_since])
    # A time in the future was recorded before the clock was set back.
    new = [task for task in held if not is_named[task] and (task.unnamed_since or _NEVER) > now]
    await sql_expiry.mark(tx, new)
    return {task.id: TaskState(task.status, task.worker_id, task.attempt) for task in held}


def _is_named(task_id: UUID, state: TaskState, named: Mapping[UUID, set[tuple[UUID, int]]]) -> bool:
    is_holder = state.status in HELD and state.worker_id in named
    return is_holder and state.worker_id is not None and (task_id, state.attempt) in named[state.worker_id]


def _problem(item: Heartbeat, worker: WorkerRecord | None) -> ProblemException | None:
    if worker is None:
        return WorkerNotFound(f"Worker {item.worker_id} not found")
    if worker.owner_id != item.caller.id:
        return Forbidden("Not authorized: the worker belongs to another user")
    return None


def _response(
    item: Heartbeat, worker: WorkerRecord, states: Mapping[UUID, TaskState], now: datetime
) -> WorkerResponse:
    return WorkerResponse.model_construct(
        id=item.worker_id,
        last_heartbeat=now,
        heartbeat_interval_seconds=item.interval,
        drain=worker.draining,
        tasks=[
            TaskVerdict.model_construct(
                id=task.id,
                verdict=rules_transitions.verdict(
                    None if task.id in item.refused else states.get(task.id), item.worker_id, task.attempt
                ),
            )
            for task in item.named or ()
        ],
    )


async def describe(tx: Transaction, worker_id: UUID, info: WorkerInfo) -> None:
    """Record what a worker says about itself, after a heartbeat of it was accepted."""
    if await sql_workers.lock(tx, [worker_id]):
        await rules_jobs.describe(tx, worker_id, info)


async def keep_alive(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Record heartbeats for workers whose requests are open. Workers that do not exist are skipped."""
    await sql_workers.heartbeat(tx, worker_ids)


async def remove(tx: Transaction, caller: Identity, worker_id: UUID) -> None:
    """Remove a worker at the request of its owner or a superuser."""
    worker = await _owned(tx, caller, worker_id)
    await _record_if_of_others(tx, caller, "worker.remove", worker_id, worker)
    await retire(tx, [worker_id])


async def remove_some_of(tx: Transaction, owner_id: str) -> int:
    """Remove some workers of a user whose access has ended. Return their number; 0 at the end."""
    ids = await sql_workers.lock_of_owner(tx, owner_id, _REMOVED_AT_ONCE)
    await retire(tx, ids)
    return len(ids)


async def remove_if_silent(tx: Transaction, worker_id: UUID, since: datetime) -> SilentWorker | None:
    """Remove a worker without a heartbeat since a time. Return it if it was removed."""
    stale = await sql_workers.lock_if_stale(tx, since, 1, only=worker_id)
    await retire(tx, list(stale))
    return stale.get(worker_id)


async def check_serves(tx: Transaction, worker_id: UUID, name: JobName) -> None:
    """Raise `JobNotFound` unless the worker serves the job."""
    if name not in (await sql_workers.served_jobs(tx, [worker_id]))[worker_id]:
        raise JobNotFound(f"Worker {worker_id} does not serve {str(name)!r}")


async def retire(
    tx: Transaction, worker_ids: Sequence[UUID], counts: Counts | None = None, cost: int | None = None
) -> None:
    """Remove workers, which the caller has locked; `cost` as in `store.lock_if_stale`.

    Their tasks fail, or are requeued if the job's policy says so. Their links and provider registrations
    are deleted. Jobs that have no worker and no pending task then are soft-deleted.
    """
    if not worker_ids:
        return
    error, code = rules_transitions.DISCONNECTED, WorkerLost.problem_id()
    lost = await sql_transitions.fail_held_by(tx, worker_ids, error, code)
    # A task that may be retried costs more than one, and their workers claim no others.
    held = [] if cost == len(lost) else await sql_expiry.lock_held_by(tx, worker_ids)
    await rules_providers.remove_workers(tx, worker_ids)
    job_ids = await sql_workers.unlink_all(tx, worker_ids)
    locked = await sql_jobs.lock_with_versions(tx, {*job_ids, *(task.job_id for task in held)})
    if job_ids and not tx.is_sqlite:
        # A submit that has made a queue until now has linked it to its workers.
        await sql_workers.unlink_all(tx, worker_ids)
    if lost:
        await sql_transitions.count(tx, lost, locked)
        rules_answers.publish_changed(tx, lost)
    if counts is not None:
        counts.failed += len(lost)
    await recover_tasks(tx, held, rules_transitions.worker_lost, counts)
    await sql_workers.remove(tx, worker_ids)
    for room_id in await sql_jobs.rooms(tx, job_ids) if job_ids else []:
        rules_answers.publish_jobs_changed(tx, room_id)
    await rules_jobs.record_unserved(tx, job_ids)
    for worker_id in worker_ids:
        tx.wake(worker_key(worker_id))


async def recover_tasks(
    tx: Transaction, tasks: Sequence[TaskRecord], decide: Decide, counts: Counts | None = None
) -> int:
    """Fail or requeue held tasks, which the caller has locked, as `decide` returns. Return their number."""
    now = await tx.now()
    moves = [(task, decide(task, now, random.random())) for task in tasks]  # noqa: S311 - jitter
    await sql_transitions.move(tx, moves)
    await rules_jobs.restore_needed(tx, [after for _, after in moves])
    queue_positions = await positions(tx, [after for _, after in moves])
    for _, after in moves:
        rules_answers.publish_status(tx, after, queue_positions.get(after.id))
    if counts is not None:
        requeued = sum(after.status == TaskStatus.PENDING for _, after in moves)
        counts.released += requeued
        counts.failed += len(moves) - requeued
    return len(moves)


async def drain(tx: Transaction, caller: Identity, worker_id: UUID, interval: float) -> WorkerResponse:
    """Ask a worker, at the request of its owner or a superuser, to claim no more tasks and to leave.

    Raises `Conflict` for the worker of an internal-worker process: a drained one could not be resumed.
    """
    worker = await _owned(tx, caller, worker_id)
    if worker.owner_id == INTERNAL:
        raise Conflict(
            f"Worker {worker_id} runs internal tasks and cannot be drained. To stop it after its running "
            "tasks, send SIGTERM to its internal-worker process; to keep new tasks waiting, pause their jobs"
        )
    await sql_workers.set_draining(tx, worker_id)
    await _record_if_of_others(tx, caller, "worker.drain", worker_id, worker)
    tx.wake(worker_key(worker_id))
    return WorkerResponse(
        id=worker_id, last_heartbeat=worker.last_heartbeat, heartbeat_interval_seconds=interval, drain=True
    )


async def unlink_job(tx: Transaction, caller: Identity, worker_id: UUID, name: JobName) -> None:
    """Unregister a worker from one job. Raises `JobNotFound` if it does not serve it."""
    await _owned(tx, caller, worker_id)
    versions = await sql_jobs.versions(tx, name)
    if not await sql_workers.unlink_job(tx, worker_id, [version.id for version in versions]):
        raise JobNotFound(f"Worker {worker_id} does not serve {str(name)!r}")
    # `sql_claims.lock_with_queues` sees by the heartbeat that a job was unlinked.
    await sql_workers.heartbeat(tx, [worker_id])
    rules_answers.publish_jobs_changed(tx, name.room_id)
    job_ids = [version.id for version in versions]
    await sql_jobs.lock_with_versions(tx, job_ids)
    # A submit may have made a queue meanwhile, and linked it to the worker.
    job_ids = [version.id for version in await sql_jobs.versions(tx, name)]
    await sql_workers.unlink_job(tx, worker_id, job_ids)
    await rules_jobs.record_unserved(tx, job_ids)
    # Waiting claims of the worker now exclude this job.
    tx.wake(worker_key(worker_id))


async def _record_if_of_others(
    tx: Transaction, caller: Identity, action: str, worker_id: UUID, worker: WorkerRecord
) -> None:
    """Record an operator's action; what owners do with their workers is none."""
    if caller.id != worker.owner_id:
        await rules_audit.record(tx, caller, action, str(worker_id))


async def _owned(tx: Transaction, caller: Identity, worker_id: UUID) -> WorkerRecord:
    worker = (await sql_workers.lock(tx, [worker_id])).get(worker_id)
    if worker is None:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    if worker.owner_id != caller.id and not caller.is_superuser:
        raise Forbidden("Not authorized: the worker belongs to another user")
    return worker


# Which rooms a worker serves, and in which room the job of a task is.


class ServedRooms(NamedTuple):
    """The rooms of a worker's jobs, of the jobs of the tasks that it holds, and of its providers."""

    jobs: frozenset[str]
    held: frozenset[str]
    providers: frozenset[str]


async def served(tx: Transaction, caller: Identity, worker_id: UUID) -> ServedRooms:
    """Return the rooms of the jobs, held tasks and providers of a worker of the caller; of others none."""
    rooms = await sql_workers.served(tx, worker_id, caller.id)
    return ServedRooms(
        *(frozenset(room for kind, room in rooms if kind == field) for field in ServedRooms._fields)
    )


async def first_unnamed(tx: Transaction, caller: Identity, worker_id: UUID) -> str | None:
    """Return a job of a worker of the caller that the caller may not name; None without one."""
    names = await sql_workers.served_names(tx, worker_id, caller.id)
    return next((name for name in names if not caller.names_job(name)), None)


async def of_own_tasks(tx: Transaction, caller: Identity, task_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the rooms of the jobs of those of these tasks that a worker of the caller has or had last."""
    return await sql_workers.job_rooms(tx, task_ids, caller.id)
