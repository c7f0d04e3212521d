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
    """A claim that may be served: its worker, the queues it may take from."""

    claim: Claim
    owner_id: str
    jobs: dict[UUID, JobName] = field(default_factory=dict)
    waiting: dict[UUID, int] = field(default_factory=dict)
    seq: int | None = None


async def claim(tx: Transaction, items: Sequence[Claim]) -> list[Claimed | ProblemException]:
    """Give each worker the oldest task it may have, first come, first served."""
    workers = await worker_store.lock(tx, list(dict.fromkeys(item.worker_id for item in items)))
    askers: list[_Asker | ProblemException] = []
    for item in items:
        row = workers.get(item.worker_id)
        if row is None:
            askers.append(WorkerNotFound(f"Worker {item.worker_id} not found"))
        elif row.owner_id != item.caller.id:
            askers.append(Forbidden("Not authorized: the worker belongs to somebody else"))
        else:
            askers.append(_Asker(item, row.owner_id))
    served = [asker for asker in askers if isinstance(asker, _Asker)]
    await _note_life(tx, served, workers)
    got = await _serve(tx, served) if served else {}
    taken = Counter(task.job_id for task in got.values())
    return [_answer(asker, got, taken) if isinstance(asker, _Asker) else asker for asker in askers]


async def _note_life(tx: Transaction, askers: Sequence[_Asker], workers: dict[UUID, Any]) -> None:
    # Whoever claims lives; written at most four times in the interval of its heartbeats.
    now = await tx.now()
    ids = {asker.claim.worker_id: timedelta(seconds=asker.claim.interval / 4) for asker in askers}
    late = [worker_id for worker_id, age in ids.items() if workers[worker_id].last_heartbeat < now - age]
    if late:
        await worker_store.beat(tx, late)


async def _serve(tx: Transaction, askers: Sequence[_Asker]) -> dict[int, Record]:
    links = await worker_store.claimable_jobs(tx, list(dict.fromkeys(a.claim.worker_id for a in askers)))
    for asker in askers:
        mine = [row for row in links if row.worker_id == asker.claim.worker_id]
        asker.jobs = {row.id: JobName(row.room_id, row.category, row.name) for row in mine}
        asker.waiting = {row.id: row.pending for row in mine if row.pending}
    locked = await _pick(tx, askers)
    now = await tx.now()
    moves = [
        (task, _claimed(task, asker, now))
        for asker in askers
        if asker.seq is not None and (task := locked.get(asker.seq)) is not None
    ]
    await store.move(tx, moves)
    for _, after in moves:
        views.tell(tx, after)
    return {after.seq: after for _, after in moves}


def _claimed(task: Record, asker: _Asker, now: datetime) -> Record:
    return replace(
        task,
        status=TaskStatus.CLAIMED,
        worker_id=asker.claim.worker_id,
        worker_owner_id=asker.owner_id,
        attempt=task.attempt + 1,
        claimed_at=now,
    )


async def _pick(tx: Transaction, askers: Sequence[_Asker]) -> dict[int, Record]:
    demand: dict[UUID, int] = {}
    for asker in askers:
        for job_id in asker.waiting:
            demand[job_id] = demand.get(job_id, 0) + 1
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
    return await store.lock_pending(tx, chosen) if chosen else {}


def _assign(askers: Sequence[_Asker], queues: dict[UUID, deque[int]]) -> None:
    for asker in askers:
        open_queues = [queues[job_id] for job_id in asker.waiting if queues[job_id]]
        if open_queues:
            asker.seq = min(open_queues, key=lambda queue: queue[0]).popleft()


def _answer(asker: _Asker, got: dict[int, Record], taken: Counter[UUID]) -> Claimed:
    task = got.get(asker.seq) if asker.seq is not None else None
    if task is not None:
        return Claimed(task=views.response(task))
    is_contended = any(pending > taken[job_id] for job_id, pending in asker.waiting.items())
    return Claimed(jobs=list(asker.jobs.values()), is_contended=is_contended)
