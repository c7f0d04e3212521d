"""Claim the oldest pending tasks for workers, within the limits of jobs, rooms and workers."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter, itemgetter
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import Identity, job_key, slot_key, worker_key
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_fairness,
    rules_transitions,
    sql_claims,
    sql_expiry,
    sql_tasks,
    sql_transitions,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder, ClaimSlot
from zndraw_joblib.server.queue.sql_claims import ClaimAnswer, Claimant, Demand, claim_single_statement
from zndraw_joblib.server.queue.sql_task_rows import Move, Place, TaskRecord
from zndraw_joblib.server.queue.sql_workers import ServedJobs, ServedQueue, WorkerRecord
from zndraw_joblib.wire.messages import EmptyReason, TaskResponse
from zndraw_joblib.wire.names import GLOBAL, JobName, parse_job_name
from zndraw_joblib.wire.problems import Forbidden, ProblemException, WorkerNotFound
from zndraw_joblib.wire.statuses import HELD

# A claim delays all other writes on SQLite, so it fails at most this many expired tasks.
_MAX_EXPIRED = 500
# All claims of a transaction together get about this many tasks, if they ask for more.
MAX_CLAIMED = 2000


class Claim(NamedTuple):
    """A request of a worker for up to `most` tasks. `interval`: seconds between its heartbeats.

    A repeated claim with the same `claim_id` gets the same tasks. `order` comes from the server's settings.
    With `start`, the tasks are also started. The caller may not serve the jobs of the rooms `refused_rooms`.
    """

    caller: Identity
    worker_id: UUID
    interval: float
    claim_id: UUID | None = None
    order: ClaimOrder = ClaimOrder()
    most: int = 1
    start: bool = False
    refused_rooms: Collection[str] = frozenset()

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"worker {self.worker_id}"

    def empty(
        self, names: Sequence[JobName], reason: EmptyReason, *, is_contended: bool
    ) -> "ClaimResult | ProblemException":
        """Return the result without tasks for a worker of these jobs; a refusal if it may serve none."""
        allowed = [name for name in names if name.room_id not in self.refused_rooms]
        is_global = bool(names) and not allowed and all(name.room_id == GLOBAL for name in names)
        if is_global and reason != EmptyReason.DRAINING:
            return rules_transitions.only_superusers()
        return ClaimResult(jobs=allowed, is_contended=is_contended, reason=reason)


@dataclass(slots=True)
class ClaimResult:
    """The tasks of a claim, or why there is none, and the jobs whose queues to wait for.

    `is_contended`: a task was pending, but another transaction held it; claim again. `is_left_out`:
    large tasks of other claims filled this transaction; claim again at once.
    """

    tasks: list[TaskResponse] = field(default_factory=list)
    jobs: list[JobName] = field(default_factory=list)
    is_contended: bool = False
    is_left_out: bool = False
    reason: EmptyReason | None = None

    @property
    def is_final(self) -> bool:
        """Whether waiting cannot change the result."""
        return bool(self.tasks) or self.reason == EmptyReason.DRAINING

    def keys(self, worker_id: UUID) -> list[str]:
        """Return the keys that an empty claim waits on.

        A worker at its `max_tasks` does not wait on jobs: a wake-up for a new task would be lost on it.
        """
        if self.reason == EmptyReason.MAX_TASKS:
            return [worker_key(worker_id), slot_key(worker_id)]
        return [worker_key(worker_id), *map(job_key, self.jobs)]


@dataclass(slots=True, kw_only=True)
class _WorkerSlot(ClaimSlot):
    """The slots of a claim. `gave_way`: other claims of its worker took the last free ones."""

    claim: Claim
    gave_way: bool = False
    may_claim_again: bool = False


async def claim(tx: Transaction, items: Sequence[Claim]) -> list[ClaimResult | ProblemException]:
    """Give each worker the oldest tasks that it may have, in the order of the claims."""
    ids = list(dict.fromkeys(item.worker_id for item in items))
    workers, queues = await sql_workers.lock_with_queues(tx, ids)
    slots = _slots(items, workers, queues)
    valid = list({id(slot): slot for slot in slots if isinstance(slot, _WorkerSlot)}.values())
    await _record_heartbeats(tx, valid, workers)
    tasks = await _repeated(tx, valid)
    await _apply_worker_limits(tx, valid, workers)
    _share([slot for slot in valid if slot.demand])
    new = await _claim_new(tx, [slot for slot in valid if slot.demand], queues)
    tasks |= new
    marked = {task.worker_id for task in new.values() if task.worker_id and task.claim_id}
    await sql_workers.mark_claims(tx, sorted(marked))
    empty = list(dict.fromkeys(slot.claim.worker_id for slot in valid if tasks.keys().isdisjoint(slot.seqs)))
    jobs = await sql_workers.served_jobs(tx, empty) if empty else {}
    claimed_of = Counter(task.job_id for task in new.values())
    claimed_by = {task.worker_id for task in new.values()}
    for slot in valid:
        # The claim that it gave way to got no task in the end.
        slot.may_claim_again = slot.gave_way and slot.claim.worker_id not in claimed_by
    return [
        _result(slot, tasks, claimed_of, jobs) if isinstance(slot, _WorkerSlot) else slot for slot in slots
    ]


def _slots(
    items: Sequence[Claim],
    workers: Mapping[UUID, WorkerRecord],
    queues: Mapping[UUID, Mapping[UUID, ServedQueue]],
) -> list[_WorkerSlot | ProblemException]:
    """Return the slots of each claim, or a problem. A claim and its repeat in one batch share their slots."""
    by_claim: dict[tuple[UUID, UUID], _WorkerSlot] = {}
    slots: list[_WorkerSlot | ProblemException] = []
    for item in items:
        problem = _problem(item, workers.get(item.worker_id))
        if problem is not None:
            slots.append(problem)
            continue
        demand = {
            job_id: queue.pending
            for job_id, queue in queues[item.worker_id].items()
            if queue.room_id not in item.refused_rooms
        }
        refusal = None
        if workers[item.worker_id].draining:
            demand, refusal = {}, EmptyReason.DRAINING
        slot = _WorkerSlot(claim=item, demand=demand, most=item.most, refusal=refusal)
        if item.claim_id is not None:
            slot = by_claim.setdefault((item.worker_id, item.claim_id), slot)
        slots.append(slot)
    return slots


def _problem(item: Claim, worker: WorkerRecord | None) -> ProblemException | None:
    if worker is None:
        return WorkerNotFound(f"Worker {item.worker_id} not found")
    if worker.owner_id != item.caller.id:
        return Forbidden("Not authorized: the worker belongs to another user")
    return None


async def _record_heartbeats(
    tx: Transaction, slots: Sequence[_WorkerSlot], workers: Mapping[UUID, WorkerRecord]
) -> None:
    # A claim counts as a heartbeat. It is written at most four times per heartbeat interval.
    now = await tx.now()
    ages = {slot.claim.worker_id: timedelta(seconds=slot.claim.interval / 4) for slot in slots}
    late = [worker_id for worker_id, age in ages.items() if workers[worker_id].last_heartbeat < now - age]
    await sql_workers.heartbeat(tx, late)


async def _repeated(tx: Transaction, slots: Sequence[_WorkerSlot]) -> dict[int, TaskRecord]:
    """Return the tasks of repeated claims, whose first response may have been lost, by `seq`."""
    marked: dict[tuple[UUID | None, UUID | None], _WorkerSlot] = {
        (slot.claim.worker_id, slot.claim.claim_id): slot for slot in slots if slot.claim.claim_id
    }
    held = {task.seq: task for task in await sql_tasks.by_claims(tx, list(marked))} if marked else {}
    for task in held.values():
        slot = marked[task.worker_id, task.claim_id]
        slot.demand = {}
        slot.seqs.append(task.seq)
    if held:
        await rules_fairness.load_repeated(tx, slots, held)
    return held


async def _apply_worker_limits(
    tx: Transaction, slots: Sequence[_WorkerSlot], workers: Mapping[UUID, WorkerRecord]
) -> None:
    """Reduce the claims of workers to the tasks that they may hold by their `max_tasks`."""
    limits = {
        slot.claim.worker_id: limit
        for slot in slots
        if slot.demand and (limit := workers[slot.claim.worker_id].max_tasks) is not None
    }
    held = await sql_tasks.held_by_workers(tx, list(limits))
    free = {worker_id: max(0, limit - held[worker_id]) for worker_id, limit in limits.items()}
    for slot in slots:
        worker_id = slot.claim.worker_id
        if not slot.demand or worker_id not in limits:
            continue
        slot.most = min(slot.most, free[worker_id])
        free[worker_id] -= slot.most
        if not slot.most:
            slot.demand, slot.refusal = {}, EmptyReason.MAX_TASKS
            slot.gave_way = held[worker_id] < limits[worker_id]


def _share(slots: Sequence[_WorkerSlot]) -> None:
    """Reduce the largest claims to the same number of tasks, so that one transaction is bounded."""
    free = MAX_CLAIMED
    for index, slot in enumerate(sorted(slots, key=attrgetter("most"))):
        slot.most = min(slot.most, max(1, free // (len(slots) - index)))
        free -= slot.most


async def _claim_new(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: Mapping[UUID, Mapping[UUID, ServedQueue]]
) -> dict[int, TaskRecord]:
    """Claim tasks for each slot and return the claimed tasks by `seq`."""
    await _apply_job_limits(tx, slots, queues)
    locked = await _choose(tx, slots)
    now = await tx.now()
    moves: list[Move] = []
    for slot in slots:
        item = slot.claim
        holder = {"worker_id": item.worker_id, "worker_owner_id": item.caller.id, "claim_id": item.claim_id}
        for seq in slot.seqs:
            if task := locked.get(seq):
                moves.append((task, rules_transitions.claimed(task, now, start=item.start, **holder)))
    expired = {before.job_id for before, after in moves if after.status not in HELD}
    if expired:
        # Where one task has expired, others have too. The claim that found one is repeated.
        seqs = [task.seq for task, _ in moves]
        rest = await sql_expiry.lock_expired_of_jobs(tx, now, _MAX_EXPIRED, sorted(expired), seqs)
        moves += [(task, rules_transitions.expired(task, now)) for task in rest]
    await sql_transitions.claim(tx, moves)
    for _, after in moves:
        rules_answers.publish_status(tx, after)
    return {after.seq: after for _, after in moves if after.status in HELD}


async def _apply_job_limits(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: Mapping[UUID, Mapping[UUID, ServedQueue]]
) -> None:
    """Reduce the demand of each slot to what the limits of the jobs leave."""
    limits = {
        job_id: queue.max_in_flight
        for slot in slots
        for job_id, queue in queues[slot.claim.worker_id].items()
        if queue.max_in_flight is not None and job_id in slot.demand
    }
    free = await rules_fairness.free_slots(tx, limits, {job_id for slot in slots for job_id in slot.demand})
    for slot in slots:
        for job_id, job_free in free.items():
            if slot.demand.get(job_id, 0) > job_free:
                slot.demand[job_id] = job_free
                slot.refusal = EmptyReason.AT_CAPACITY
            if slot.demand.get(job_id) == 0:
                del slot.demand[job_id]


async def _choose(tx: Transaction, slots: Sequence[_WorkerSlot]) -> dict[int, TaskRecord]:
    """Choose the tasks of each slot and return the locked tasks by `seq`."""
    demand: Counter[UUID] = Counter()
    for slot in slots:
        for job_id, pending in slot.demand.items():
            demand[job_id] = min(pending, demand[job_id] + slot.most)
    if not demand:
        return {}
    order = slots[0].claim.order
    if order.is_by_room:
        return await rules_fairness.assign(tx, [slot for slot in slots if slot.demand], demand, order)
    is_small = rules_fairness.has_few(slots)
    if len(demand) == 1:
        [(job_id, count)] = demand.items()
        oldest = await sql_claims.lock_oldest(tx, job_id, count, bodies=is_small)
        locked = {task.seq: task for task in oldest}
        _assign_oldest(slots, {job_id: deque(sorted(task.place for task in oldest))})
    else:
        locked = await _choose_of_several(tx, slots, demand, bodies=is_small)
    if not is_small and locked:
        await rules_fairness.fit(tx, slots, locked)
    return locked


async def _choose_of_several(
    tx: Transaction, slots: Sequence[_WorkerSlot], demand: Mapping[UUID, int], *, bodies: bool
) -> dict[int, TaskRecord]:

    async def choose(skipped: AbstractSet[int]) -> tuple[list[int], list[int]]:
        oldest = await sql_claims.oldest(
            tx, {job_id: count + len(skipped) for job_id, count in demand.items()}
        )
        free = {job_id: [place for place in oldest[job_id] if place[1] not in skipped] for job_id in demand}
        _assign_oldest(slots, {job_id: deque(places[: demand[job_id]]) for job_id, places in free.items()})
        seqs = [seq for slot in slots for seq in slot.seqs]
        own_seqs = set(seqs)
        others = sorted(place for places in free.values() for place in places if place[1] not in own_seqs)
        return seqs, [seq for _, seq in others]

    return await sql_claims.lock_chosen(tx, choose, bodies=bodies)


def _assign_oldest(slots: Sequence[_WorkerSlot], queues: Mapping[UUID, deque[Place]]) -> None:
    for slot in slots:
        slot.seqs = []
        open_queues = [queues[job_id] for job_id in slot.demand if queues[job_id]]
        while open_queues and len(slot.seqs) < slot.most:
            first = min(open_queues, key=itemgetter(0)) if len(open_queues) > 1 else open_queues[0]
            slot.seqs.append(first.popleft()[1])
            if not first:
                open_queues = [queue for queue in open_queues if queue]


def _result(
    slot: _WorkerSlot,
    tasks: Mapping[int, TaskRecord],
    claimed_of: Counter[UUID],
    jobs: Mapping[UUID, ServedJobs],
) -> ClaimResult | ProblemException:
    records = [tasks[seq] for seq in slot.seqs if seq in tasks]
    if records:
        return ClaimResult(
            [rules_answers.task_response(task, traceparent=task.traceparent) for task in records]
        )
    if slot.is_left_out:
        return ClaimResult(is_contended=True, is_left_out=True)
    served = jobs[slot.claim.worker_id]
    # Tasks that are pending and were not claimed here are locked by another transaction.
    is_left = any(pending > claimed_of[job_id] for job_id, pending in slot.demand.items())
    reason = slot.refusal or (EmptyReason.PAUSED if served.is_paused else EmptyReason.EMPTY)
    return slot.claim.empty(served.names, reason, is_contended=is_left or slot.may_claim_again)


# Claim for workers of one queue without limits, as most workers are, with one statement on PostgreSQL.
#
# If a claim is not plain, `claims.claim` takes the whole batch.

# For how many batches at most the statement is skipped after it could not serve one.
_MAX_SKIPPED = 16
_ONLY_GLOBAL = frozenset({GLOBAL})


class PlainClaims:
    """Claims in batches, with one statement unless it could not serve the last batches."""

    def __init__(self) -> None:
        self._failed = self._left_out = 0

    async def claim(self, tx: Transaction, items: Sequence[Claim]) -> list[ClaimResult | ProblemException]:
        """Do what `claims.claim` does."""
        if not tx.is_sqlite and _may_be_plain(items):
            if self._left_out < min(self._failed, _MAX_SKIPPED):
                self._left_out += 1
            else:
                self._left_out = 0
                if (results := await claim_with_one_statement(tx, items)) is not None:
                    self._failed = 0
                    return results
                self._failed += 1
        return await claim(tx, items)


async def claim_with_one_statement(
    tx: Transaction, items: Sequence[Claim]
) -> list[ClaimResult | ProblemException] | None:
    """Give each worker the oldest tasks of its queue. Return None if a claim is not plain."""
    claimants: dict[UUID, Claimant] = {}
    for item in items:
        claimant = claimants.get(item.worker_id)
        is_marked = item.claim_id is not None or (claimant is not None and claimant.is_marked)
        serves_global = GLOBAL not in item.refused_rooms
        claimants[item.worker_id] = Claimant(
            *(item.worker_id, item.caller.id, serves_global, item.interval / 4, is_marked)
        )
    demands = [Demand(item.worker_id, item.caller.id, item.claim_id, item.start, item.most) for item in items]
    most_bytes = (
        None if rules_fairness.are_few(item.most for item in items) else rules_fairness.MAX_PAYLOAD_BYTES
    )
    answers = await claim_single_statement(tx, list(claimants.values()), demands, most_bytes)
    if answers is None:
        return None
    return [_plain_result(tx, item, answer) for item, answer in zip(items, answers, strict=True)]


def _may_be_plain(items: Sequence[Claim]) -> bool:
    callers = {item.worker_id: (item.caller.id, item.refused_rooms) for item in items}
    ids = [(item.worker_id, item.claim_id) for item in items if item.claim_id is not None]
    return (
        not items[0].order.is_by_room
        and all(_ONLY_GLOBAL.issuperset(item.refused_rooms) for item in items)
        and sum(item.most for item in items) <= MAX_CLAIMED
        and len(set(ids)) == len(ids)
        and all(callers[item.worker_id] == (item.caller.id, item.refused_rooms) for item in items)
    )


def _plain_result(tx: Transaction, item: Claim, answer: ClaimAnswer) -> ClaimResult | ProblemException:
    if answer.tasks:
        tasks = [rules_answers.task_response(task, traceparent=task.traceparent) for task in answer.tasks]
        rules_answers.publish_changed(tx, tasks)
        return ClaimResult(tasks)
    reason = EmptyReason.PAUSED if answer.is_paused else EmptyReason.EMPTY
    names = [parse_job_name(name) for name in answer.job_names]
    return item.empty(names, reason, is_contended=answer.is_contended)
