"""Hand the oldest pending tasks to the workers that ask."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import Forbidden, ProblemException, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity
from zndraw_joblib.server.service import views
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import Record


class Claim(NamedTuple):
    """A worker asks for one task. `interval`: seconds between the heartbeats it owes."""

    caller: Identity
    worker_id: UUID
    interval: float


@dataclass(slots=True)
class Claimed:
    """What a claim got: a task, or none, and then the jobs to sleep for.

    `is_contended`: a task was pending, but a rival held it just then; ask again.
    """

    task: TaskResponse | None = None
    jobs: list[JobName] = field(default_factory=list)
    is_contended: bool = False


@dataclass(slots=True)
class _Asker:
    """A claim that may be served: the queues that wait for it, and how long they are."""

    claim: Claim
    waiting: dict[UUID, int]
    seq: int | None = None


async def claim(tx: Transaction, items: Sequence[Claim]) -> list[Claimed | ProblemException]:
    """Give each worker the oldest task it may have, first come, first served."""
    asking = list(dict.fromkeys(item.worker_id for item in items))
    workers, queues = await worker_store.lock_askers(tx, asking)
    askers = [_asker(item, workers.get(item.worker_id), queues) for item in items]
    served = [asker for asker in askers if isinstance(asker, _Asker)]
    await _note_life(tx, served, workers)
    got = await _serve(tx, served)
    idle = [asker.claim.worker_id for asker in served if asker.seq not in got]
    jobs = await worker_store.served_jobs(tx, idle) if idle else {}
    taken = Counter(task.job_id for task in got.values())
    return [_answer(asker, got, taken, jobs) if isinstance(asker, _Asker) else asker for asker in askers]


def _asker(item: Claim, worker: Any, queues: dict[UUID, dict[UUID, int]]) -> _Asker | ProblemException:
    if worker is None:
        return WorkerNotFound(f"Worker {item.worker_id} not found")
    if worker.owner_id != item.caller.id:
        return Forbidden("Not authorized: the worker belongs to somebody else")
    return _Asker(item, queues[item.worker_id])


async def _note_life(tx: Transaction, askers: Sequence[_Asker], workers: dict[UUID, Any]) -> None:
    # Whoever claims lives; written at most four times in the interval of its heartbeats.
    now = await tx.now()
    ids = {asker.claim.worker_id: timedelta(seconds=asker.claim.interval / 4) for asker in askers}
    late = [worker_id for worker_id, age in ids.items() if workers[worker_id].last_heartbeat < now - age]
    await worker_store.beat(tx, late)


async def _serve(tx: Transaction, askers: Sequence[_Asker]) -> dict[int | None, Record]:
    locked = await _pick(tx, askers)
    now = await tx.now()
    moves = [
        (task, _claimed(task, asker.claim, now))
        for asker in askers
        if asker.seq is not None and (task := locked.get(asker.seq)) is not None
    ]
    await store.move(tx, moves)
    for _, after in moves:
        views.tell(tx, after)
    return {after.seq: after for _, after in moves}


def _claimed(task: Record, claim: Claim, now: datetime) -> Record:
    return replace(
        task,
        status=TaskStatus.CLAIMED,
        worker_id=claim.worker_id,
        worker_owner_id=claim.caller.id,
        attempt=task.attempt + 1,
        claimed_at=now,
    )


async def _pick(tx: Transaction, askers: Sequence[_Asker]) -> dict[int, Record]:
    demand = Counter(job_id for asker in askers for job_id in asker.waiting)
    if not demand:
        return {}
    if len(demand) == 1:
        [(job_id, count)] = demand.items()
        locked = {task.seq: task for task in await store.lock_oldest(tx, job_id, count)}
        _assign(askers, {job_id: deque(locked)})
        return locked
    oldest = await store.oldest(tx, demand)
    _assign(askers, {job_id: deque(seqs) for job_id, seqs in oldest.items()})
    chosen = [asker.seq for asker in askers if asker.seq is not None]
    return await store.lock_pending(tx, chosen)


def _assign(askers: Sequence[_Asker], queues: dict[UUID, deque[int]]) -> None:
    for asker in askers:
        open_queues = [queues[job_id] for job_id in asker.waiting if queues[job_id]]
        if open_queues:
            asker.seq = min(open_queues, key=lambda queue: queue[0]).popleft()


def _answer(
    asker: _Asker, got: dict[int | None, Record], taken: Counter[UUID], jobs: dict[UUID, list[JobName]]
) -> Claimed:
    task = got.get(asker.seq)
    if task is not None:
        return Claimed(task=views.response(task))
    # What is left of a queue that was not empty is in the hands of a rival just now.
    is_contended = any(pending > taken[job_id] for job_id, pending in asker.waiting.items())
    return Claimed(jobs=jobs[asker.claim.worker_id], is_contended=is_contended)
