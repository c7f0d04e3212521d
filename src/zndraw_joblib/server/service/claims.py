"""Hand the oldest pending tasks to the workers that ask, within what jobs, rooms and workers may hold."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import EmptyReason, TaskResponse
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import Forbidden, ProblemException, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import Identity, job_key, slot_key, worker_key
from zndraw_joblib.server.service import fairness, retry_policy, serializers
from zndraw_joblib.server.store import expiry, fetch
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import tasks as store
from zndraw_joblib.server.store import workers as worker_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import TaskRecord
from zndraw_joblib.server.store.workers import Queue, Served

# A claim may hold up everything else, and is short.
_LATE_AT_ONCE = 500


class Claim(NamedTuple):
    """A worker asks for one task. `interval`: seconds between the heartbeats it owes.

    `claim_id` marks the claim: who repeats it gets what it got. `order` is that of the server's settings.
    """

    caller: Identity
    worker_id: UUID
    interval: float
    claim_id: UUID | None = None
    order: fairness.ClaimOrder = fairness.ClaimOrder()


@dataclass(slots=True)
class ClaimResult:
    """What a claim got: a task, or none, and then the jobs to sleep for, and the reason.

    `is_contended`: a task was pending, but a rival held it just then; ask again.
    """

    task: TaskResponse | None = None
    jobs: list[JobName] = field(default_factory=list)
    is_contended: bool = False
    reason: EmptyReason | None = None

    @property
    def is_final(self) -> bool:
        """Whether it is of no use to wait for more."""
        return self.task is not None or self.reason == EmptyReason.DRAINING

    def keys(self, worker_id: UUID) -> list[str]:
        """Return what a claim that got nothing sleeps on.

        Who may not have a task, however many there are, is not woken for one: it would keep that from others.
        """
        if self.reason == EmptyReason.MAX_TASKS:
            return [worker_key(worker_id), slot_key(worker_id)]
        return [worker_key(worker_id), *map(job_key, self.jobs)]


@dataclass(slots=True)
class _Asker:
    """A claim that may be served: the queues that wait for it, and how many of each it may have now."""

    claim: Claim
    waiting: dict[UUID, int]
    seq: int | None = None
    refusal: EmptyReason | None = None
    gave_way: bool = False
    may_ask_again: bool = False


async def claim(tx: Transaction, items: Sequence[Claim]) -> list[ClaimResult | ProblemException]:
    """Give each worker the oldest task it may have, first come, first served."""
    asking = list(dict.fromkeys(item.worker_id for item in items))
    workers, queues = await worker_store.lock_with_queues(tx, asking)
    askers = _askers(items, workers, queues)
    served = list({id(asker): asker for asker in askers if isinstance(asker, _Asker)}.values())
    await _note_life(tx, served, workers)
    got = await _repeated(tx, served)
    await _bound_workers(tx, served, workers)
    new = await _serve(tx, served, queues)
    got |= new
    idle = [asker.claim.worker_id for asker in served if asker.seq not in got]
    jobs = await worker_store.served_jobs(tx, idle) if idle else {}
    taken = Counter(task.job_id for task in new.values())
    served_now = {task.worker_id for task in new.values()}
    for asker in served:
        # It gave way to another claim of its worker, which then got nothing.
        asker.may_ask_again = asker.gave_way and asker.claim.worker_id not in served_now
    return [_answer(asker, got, taken, jobs) if isinstance(asker, _Asker) else asker for asker in askers]


def _askers(
    items: Sequence[Claim], workers: dict[UUID, Any], queues: dict[UUID, dict[UUID, Queue]]
) -> list[_Asker | ProblemException]:
    """Return who asks. A claim and its repeat, both unanswered yet, are one."""
    known: dict[tuple[UUID, UUID], _Asker] = {}
    askers: list[_Asker | ProblemException] = []
    for item in items:
        asker = _asker(item, workers.get(item.worker_id), queues)
        if isinstance(asker, _Asker) and item.claim_id is not None:
            asker = known.setdefault((item.worker_id, item.claim_id), asker)
        askers.append(asker)
    return askers


def _asker(item: Claim, worker: Any, queues: dict[UUID, dict[UUID, Queue]]) -> _Asker | ProblemException:
    if worker is None:
        return WorkerNotFound(f"Worker {item.worker_id} not found")
    if worker.owner_id != item.caller.id:
        return Forbidden("Not authorized: the worker belongs to somebody else")
    if worker.draining:
        return _Asker(item, {}, refusal=EmptyReason.DRAINING)
    return _Asker(item, {job_id: queue.pending for job_id, queue in queues[item.worker_id].items()})


async def _note_life(tx: Transaction, askers: Sequence[_Asker], workers: dict[UUID, Any]) -> None:
    # Whoever claims lives; written at most four times in the interval of its heartbeats.
    now = await tx.now()
    ids = {asker.claim.worker_id: timedelta(seconds=asker.claim.interval / 4) for asker in askers}
    late = [worker_id for worker_id, age in ids.items() if workers[worker_id].last_heartbeat < now - age]
    await worker_store.heartbeat(tx, late)


async def _repeated(tx: Transaction, askers: Sequence[_Asker]) -> dict[int | None, TaskRecord]:
    """Give those their tasks again whose answer was lost."""
    marked = [
        (asker, (asker.claim.worker_id, asker.claim.claim_id))
        for asker in askers
        if asker.claim.claim_id is not None
    ]
    if not marked:
        return {}
    known = await store.by_claims(tx, [mark for _, mark in marked])
    held: dict[int | None, TaskRecord] = {}
    for asker, mark in marked:
        task = known.get(mark)
        if task is not None:
            asker.seq, asker.waiting = task.seq, {}
            held[task.seq] = task
    return held


async def _bound_workers(tx: Transaction, askers: Sequence[_Asker], workers: dict[UUID, Any]) -> None:
    """Refuse those that hold as many tasks as they said they would at most."""
    asking = [asker for asker in askers if asker.seq is None and asker.waiting]
    bounds = {
        asker.claim.worker_id: most
        for asker in asking
        if (most := workers[asker.claim.worker_id].max_tasks) is not None
    }
    if not bounds:
        return
    held = await expiry.count_held(tx, expiry.held_by(list(bounds)), "worker_id")
    expected = held.copy()
    for asker in asking:
        worker_id = asker.claim.worker_id
        if worker_id not in bounds:
            continue
        if expected[worker_id] >= bounds[worker_id]:
            asker.waiting, asker.refusal = {}, EmptyReason.MAX_TASKS
            asker.gave_way = held[worker_id] < bounds[worker_id]
        expected[worker_id] += 1


async def _serve(
    tx: Transaction, askers: Sequence[_Asker], queues: Mapping[UUID, Mapping[UUID, Queue]]
) -> dict[int | None, TaskRecord]:
    asking = [asker for asker in askers if asker.seq is None]
    await _bound_jobs(tx, asking, queues)
    locked = await _pick(tx, asking)
    now = await tx.now()
    moves = []
    for asker in asking:
        task = locked.get(asker.seq) if asker.seq is not None else None
        if task is None:
            continue
        is_late = task.expires_at is not None and task.expires_at <= now
        moves.append((task, retry_policy.expired(task, now) if is_late else _claimed(task, asker.claim, now)))
    late = {before.job_id for before, after in moves if after.status != TaskStatus.CLAIMED}
    if late:
        # One that is late is seldom alone. Whoever gets nothing for it looks again, for a good one.
        rest = await expiry.expired(tx, now, _LATE_AT_ONCE, only=sorted(late), but=[t.seq for t, _ in moves])
        moves += [(task, retry_policy.expired(task, now)) for task in rest]
    await store.move(tx, moves)
    for _, after in moves:
        serializers.publish_status(tx, after)
    return {after.seq: after for _, after in moves if after.status == TaskStatus.CLAIMED}


def _claimed(task: TaskRecord, claim: Claim, now: datetime) -> TaskRecord:
    return replace(
        task,
        status=TaskStatus.CLAIMED,
        worker_id=claim.worker_id,
        worker_owner_id=claim.caller.id,
        attempt=task.attempt + 1,
        claimed_at=now,
        claim_id=claim.claim_id,
        deadline=retry_policy.start_deadline(task, now),
        expires_at=None,
    )


async def _bound_jobs(
    tx: Transaction, askers: Sequence[_Asker], queues: Mapping[UUID, Mapping[UUID, Queue]]
) -> None:
    """Leave each asker of a queue no more than may be under way of its job."""
    caps = {
        job_id: queue.max_in_flight
        for asker in askers
        for job_id, queue in queues[asker.claim.worker_id].items()
        if queue.max_in_flight is not None and job_id in asker.waiting
    }
    if not caps:
        return
    # Counted while nobody else can claim of these jobs: no counter that leaks, no overshoot. The other jobs
    # whose rows these claims may write are locked with them, in order: else two could wait for each other.
    await job_store.lock_limited(tx, sorted({job_id for asker in askers for job_id in asker.waiting}))
    held = await expiry.count_held(tx, expiry.of_jobs(list(caps)), "job_id")
    for asker in askers:
        for job_id, most in caps.items():
            left = max(0, most - held[job_id])
            if asker.waiting.get(job_id, 0) > left:
                asker.waiting[job_id] = left
                asker.refusal = EmptyReason.AT_CAPACITY
            if asker.waiting.get(job_id) == 0:
                del asker.waiting[job_id]


async def _pick(tx: Transaction, askers: Sequence[_Asker]) -> dict[int, TaskRecord]:
    demand: Counter[UUID] = Counter()
    for asker in askers:
        for job_id, pending in asker.waiting.items():
            demand[job_id] = min(pending, demand[job_id] + 1)
    if not demand:
        return {}
    order = next(asker.claim.order for asker in askers)
    if order.is_by_room:
        await fairness.assign(tx, [asker for asker in askers if asker.waiting], demand, order)
    elif len(demand) == 1:
        [(job_id, count)] = demand.items()
        locked = {task.seq: task for task in await fetch.lock_oldest(tx, job_id, count)}
        _assign(askers, {job_id: deque(task.place for task in locked.values())})
        return locked
    else:
        oldest = await fetch.oldest(tx, demand)
        _assign(askers, {job_id: deque(places) for job_id, places in oldest.items()})
    chosen = [asker.seq for asker in askers if asker.seq is not None]
    return await fetch.lock_pending(tx, chosen) if chosen else {}


def _assign(askers: Sequence[_Asker], queues: dict[UUID, deque[store.Place]]) -> None:
    for asker in askers:
        open_queues = [queues[job_id] for job_id in asker.waiting if queues[job_id]]
        if open_queues:
            asker.seq = min(open_queues, key=lambda queue: queue[0]).popleft()[1]


def _answer(
    asker: _Asker, got: dict[int | None, TaskRecord], taken: Counter[UUID], jobs: Mapping[UUID, Served]
) -> ClaimResult:
    task = got.get(asker.seq)
    if task is not None:
        return ClaimResult(task=serializers.task_response(task))
    served = jobs[asker.claim.worker_id]
    # What is left of a queue that was not empty is in the hands of a rival just now.
    is_left = any(pending > taken[job_id] for job_id, pending in asker.waiting.items())
    is_contended = is_left or asker.may_ask_again
    reason = asker.refusal or (EmptyReason.PAUSED if served.is_paused else EmptyReason.EMPTY)
    return ClaimResult(jobs=served.names, is_contended=is_contended, reason=reason)
