"""Workers: how they come, show that they live, and leave. Every way of leaving ends in `retire`."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import (
    NamedTask,
    PaginatedResponse,
    TaskVerdict,
    WorkerResponse,
    WorkerSummary,
)
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.problems import Conflict, Forbidden, JobNotFound, ProblemException, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity, Page, worker_key
from zndraw_joblib.server.service import jobs as job_service
from zndraw_joblib.server.service import providers, retry_policy, rules, serializers
from zndraw_joblib.server.store import expiry
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import tasks as task_store
from zndraw_joblib.server.store import workers as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.positions import positions
from zndraw_joblib.server.store.tasks import TaskRecord, TaskState


@dataclass(slots=True)
class Counts:
    """How many held tasks went back to their queues, and how many ended."""

    released: int = 0
    failed: int = 0


class Heartbeat(NamedTuple):
    """A worker shows that it lives. `interval` seconds until the next beat is due.

    `named` are the tasks that it takes itself to hold.
    """

    caller: Identity
    worker_id: UUID
    interval: float
    named: Sequence[NamedTask] = ()
    max_tasks: int | None = None


async def create(tx: Transaction, caller: Identity, interval: float) -> WorkerResponse:
    """Make a worker that belongs to the caller."""
    worker_id = await store.add(tx, caller.id)
    return WorkerResponse(id=worker_id, last_heartbeat=await tx.now(), heartbeat_interval_seconds=interval)


async def heartbeat(tx: Transaction, items: Sequence[Heartbeat]) -> list[WorkerResponse | ProblemException]:
    """Note that workers live; only their owners may say so. The tasks that they name get their verdicts."""
    workers = await store.lock(tx, list(dict.fromkeys(item.worker_id for item in items)))
    now = await tx.now()
    owners = {worker_id: row.owner_id for worker_id, row in workers.items()}
    heard = [item for item in items if owners.get(item.worker_id) == item.caller.id]
    named = dict.fromkeys(task.id for item in heard for task in item.named)
    tasks = await task_store.states(tx, list(named)) if named else {}
    answers: list[WorkerResponse | ProblemException] = []
    for item in items:
        if item.worker_id not in owners:
            answers.append(WorkerNotFound(f"Worker {item.worker_id} not found"))
        elif owners[item.worker_id] != item.caller.id:
            answers.append(Forbidden("Not authorized: the worker belongs to somebody else"))
        else:
            answers.append(
                WorkerResponse.model_construct(
                    id=item.worker_id,
                    last_heartbeat=now,
                    heartbeat_interval_seconds=item.interval,
                    drain=workers[item.worker_id].draining,
                    tasks=_verdicts(item, tasks),
                )
            )
    await store.heartbeat(tx, [item.worker_id for item in heard])
    for item in heard:
        if item.max_tasks is not None and item.max_tasks != workers[item.worker_id].max_tasks:
            await store.update_row(tx, item.worker_id, max_tasks=item.max_tasks)
            tx.wake(worker_key(item.worker_id))
    return answers


async def keep_alive(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Note that workers live whose requests are open. Those that are gone are passed over."""
    await store.heartbeat(tx, worker_ids)


def _verdicts(item: Heartbeat, tasks: Mapping[UUID, TaskState]) -> list[TaskVerdict]:
    return [
        TaskVerdict.model_construct(
            id=task.id, verdict=rules.verdict(tasks.get(task.id), item.worker_id, task.attempt)
        )
        for task in item.named
    ]


async def remove(tx: Transaction, caller: Identity, worker_id: UUID) -> None:
    """Remove a worker at the wish of its owner or a superuser."""
    await _owned(tx, caller, worker_id)
    await retire(tx, [worker_id])


async def remove_if_silent(tx: Transaction, worker_id: UUID, since: datetime) -> bool:
    """Remove a worker that gave no sign of life from `since` on. Tell whether it was so."""
    silent = await store.lock_if_stale(tx, since, 1, only=worker_id)
    await retire(tx, silent)
    return bool(silent)


async def check_serves(tx: Transaction, worker_id: UUID, name: JobName) -> None:
    """Raise `JobNotFound` unless the worker serves the job."""
    if name not in (await store.served_jobs(tx, [worker_id]))[worker_id].names:
        raise JobNotFound(f"Worker {worker_id} does not serve {str(name)!r}")


async def retire(tx: Transaction, worker_ids: Sequence[UUID], counts: Counts | None = None) -> None:
    """Remove workers, which the caller has locked.

    What they hold fails, or goes back to its queue where its job wants that. Jobs that nobody serves any
    more, and that have nothing to do, are hidden. Source: the cascade of seed 000.
    """
    if not worker_ids:
        return
    await recover_tasks(tx, await expiry.lock_held_by(tx, worker_ids), retry_policy.lost, counts)
    await providers.remove_workers(tx, worker_ids)
    job_ids = await store.remove(tx, worker_ids)
    for room_id in await job_store.rooms(tx, job_ids) if job_ids else []:
        serializers.publish_jobs_changed(tx, room_id)
    await job_service.soft_delete_orphans(tx, job_ids)
    for worker_id in worker_ids:
        tx.wake(worker_key(worker_id))


async def recover_tasks(
    tx: Transaction,
    found: Sequence[TaskRecord],
    decide: Callable[[TaskRecord, datetime, float], TaskRecord],
    counts: Counts | None = None,
) -> int:
    """Let `decide` say what becomes of held tasks, which the caller has locked. Return how many there are."""
    now = await tx.now()
    moves = [(task, decide(task, now, random.random())) for task in found]  # noqa: S311 - jitter
    await task_store.move_alike(tx, moves)
    await job_service.restore_needed(tx, [after for _, after in moves])
    standing = await positions(tx, [after for _, after in moves])
    for _, after in moves:
        serializers.publish_status(tx, after, standing.get(after.id))
    if counts is not None:
        back = sum(after.status == TaskStatus.PENDING for _, after in moves)
        counts.released, counts.failed = counts.released + back, counts.failed + len(moves) - back
    return len(moves)


async def drain(tx: Transaction, caller: Identity, worker_id: UUID, interval: float) -> WorkerResponse:
    """Ask a worker, at the wish of its owner or a superuser, to claim no more and to leave.

    Raises `Conflict` for one that runs internal tasks: nobody could tell its process to begin again.
    """
    row = await _owned(tx, caller, worker_id)
    if row.owner_id == INTERNAL:
        raise Conflict(
            f"Worker {worker_id} runs internal tasks and cannot be drained: SIGTERM lets a process of "
            "internal-worker finish what it runs; a pause of their jobs keeps new tasks waiting"
        )
    await store.update_row(tx, worker_id, draining=True)
    tx.wake(worker_key(worker_id))
    return WorkerResponse(
        id=worker_id, last_heartbeat=row.last_heartbeat, heartbeat_interval_seconds=interval, drain=True
    )


async def unlink_job(tx: Transaction, caller: Identity, worker_id: UUID, name: JobName) -> None:
    """Take one job off a worker. Raises `JobNotFound` where it does not serve it."""
    await _owned(tx, caller, worker_id)
    job = await job_store.by_name_with_deleted(tx, name)
    if job is None or not await store.unlink(tx, worker_id, job.id):
        raise JobNotFound(f"Worker {worker_id} does not serve {str(name)!r}")
    await store.heartbeat(
        tx, [worker_id]
    )  # a claim that waits for the worker's lock learns of the change by it
    serializers.publish_jobs_changed(tx, name.room_id)
    await job_service.soft_delete_orphans(tx, [job.id])
    # Open claims of the worker look again at what it may claim.
    tx.wake(worker_key(worker_id))


async def _owned(tx: Transaction, caller: Identity, worker_id: UUID) -> Any:
    row = (await store.lock(tx, [worker_id])).get(worker_id)
    if row is None:
        raise WorkerNotFound(f"Worker {worker_id} not found")
    if row.owner_id != caller.id and not caller.is_superuser:
        raise Forbidden("Not authorized: the worker belongs to somebody else")
    return row


async def page(tx: Transaction, room_id: str | None, part: Page) -> PaginatedResponse[WorkerSummary]:
    """Return one page of all workers, or of those that serve a job which a room sees."""
    rows, total = await store.page(tx, room_id, part)
    items = [WorkerSummary(**row._mapping) for row in rows]
    return PaginatedResponse[WorkerSummary](items=items, total=total, limit=part.limit, offset=part.offset)
