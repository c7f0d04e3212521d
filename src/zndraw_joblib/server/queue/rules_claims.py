"""Claim the oldest pending tasks for workers, within the limits of jobs, rooms and workers."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from cachetools import LRUCache

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.batcher import ItemDeclined
from zndraw_joblib.server.process.ports import QUEUES, Identity, job_key, kept_key, slot_key, worker_key
from zndraw_joblib.server.process.waiters import KeySet
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_fairness,
    rules_limits,
    rules_slots,
    rules_transitions,
    sql_claims,
    sql_expiry,
    sql_jobs,
    sql_pauses,
    sql_tasks,
    sql_transitions,
    sql_worker_tokens,
    sql_workers,
)
from zndraw_joblib.server.queue.rules_allocations import NONE_LONG, LongQueues
from zndraw_joblib.server.queue.rules_fairness import ClaimOrder, ClaimSlot
from zndraw_joblib.server.queue.rules_slots import Kept, Reservations
from zndraw_joblib.server.queue.sql_claim_statements import (
    ClaimAnswer,
    Claimant,
    Demand,
    claim_single_statement,
)
from zndraw_joblib.server.queue.sql_claims import QueueHead, WorkerQueues
from zndraw_joblib.server.queue.sql_pauses import NO_PAUSES, Pauses
from zndraw_joblib.server.queue.sql_task_rows import Move, Place, TaskRecord, TaskRow
from zndraw_joblib.server.queue.sql_workers import WorkerRecord
from zndraw_joblib.wire.messages import EmptyReason, TaskResponse
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName, split_name
from zndraw_joblib.wire.problems import Forbidden, ProblemException, WorkerNotFound
from zndraw_joblib.wire.statuses import HELD

# A claim delays all other writes on SQLite, so it fails at most this many expired tasks.
_MAX_EXPIRED = 500
# All claims of a transaction together get about this many tasks, if they ask for more.
MAX_CLAIMED = 2000
# A claim reads a few more queues than it needs: the first ones may be paused, or others hold their tasks.
_SPARE_QUEUES = sql_claims.FIRST_QUEUES - 1
_ALL_QUEUES = 2**31 - 1
# After the positions of all tasks.
_LAST: Place = (2**31, 0)
# How many times more is read if that was too little.
_GROWTH = 8
# How many sets without some rooms or queues are known of a set of jobs.
_MAX_REDUCED = 4


class JobSet:
    """The queues of a worker, and the keys on which its claims wait. Workers of the same queues share it.

    A queue has the name of its job, or of a version of it.
    """

    __slots__ = ("_reduced", "keys", "names")

    def __init__(self, names: Iterable[JobName]) -> None:
        self.names = tuple(names)
        self.keys = KeySet(map(job_key, self.names))
        self._reduced: dict[tuple[frozenset[str], frozenset[JobName]], JobSet] = {}

    def without(self, rooms: Collection[str], queues: frozenset[JobName] = frozenset()) -> "JobSet":
        """Return the set without the jobs of these rooms, and without these queues."""
        if not rooms and not queues:
            return self
        key = frozenset(rooms), queues
        reduced = self._reduced.get(key)
        if reduced is None:
            names = [name for name in self.names if name.room_id not in key[0] and name not in queues]
            if len(self._reduced) >= _MAX_REDUCED:
                del self._reduced[next(iter(self._reduced))]
            reduced = self if len(names) == len(self.names) else JobSet(names)
            self._reduced[key] = reduced
        return reduced

    @property
    def is_global(self) -> bool:
        """Whether all jobs, and at least one, are those of ``@global``."""
        return bool(self.names) and all(name.room_id == GLOBAL for name in self.names)


NO_JOBS = JobSet(())


class JobSets:
    """The sets of jobs that this server has read, by the digests of the ids of their jobs.

    They have up to `max_names` names of jobs together.
    """

    def __init__(self, max_names: int = 200_000) -> None:
        self._sets: LRUCache[str, JobSet] = LRUCache(max_names, lambda jobs: 1 + len(jobs.names))
        # The digest that each worker had last.
        self._digests: LRUCache[UUID, str] = LRUCache(max_names // 10)
        self._with_many_queues: LRUCache[UUID, bool] = LRUCache(max_names // 10)
        self.reservations = Reservations()

    def of_workers(self, worker_ids: Iterable[UUID]) -> dict[str, JobSet]:
        """Return the sets that these workers had last by their digests, as far as they are known."""
        digests = (self._digests.get(worker_id, "") for worker_id in worker_ids)
        return {digest: jobs for digest in digests if (jobs := self._sets.get(digest)) is not None}

    def get(self, worker_id: UUID, digest: str, names: Iterable[str] | None = None) -> JobSet | None:
        """Return the set of a digest, with these names if it is not known; None without them."""
        self._digests[worker_id] = digest
        jobs = self._sets.get(digest)
        if jobs is None and names is not None:
            jobs = JobSet(map(split_name, names))
            if len(jobs.names) < self._sets.maxsize:
                self._sets[digest] = jobs
        return jobs

    def has_many_queues(self, worker_id: UUID) -> bool:
        """Return whether a worker had tasks in many queues at its last claim."""
        return self._with_many_queues.get(worker_id, False)

    def record_many_queues(self, worker_id: UUID, *, is_many: bool) -> None:
        """Record whether a worker has tasks in many queues."""
        if is_many:
            self._with_many_queues[worker_id] = True
        else:
            self._with_many_queues.pop(worker_id, None)

    async def read(self, tx: Transaction, worker_ids: Sequence[UUID]) -> dict[UUID, JobSet]:
        """Return the jobs of each of these workers. Names are read only for unknown sets."""
        digests = await sql_workers.job_digests(tx, worker_ids)
        sets = {worker_id: self.get(worker_id, digest) for worker_id, digest in digests.items()}
        unknown = [worker_id for worker_id, jobs in sets.items() if jobs is None]
        names = await sql_workers.served_queues(tx, unknown) if unknown else {}
        for worker_id in unknown:
            sets[worker_id] = self.get(worker_id, digests[worker_id], names[worker_id])
        return {worker_id: sets.get(worker_id) or NO_JOBS for worker_id in worker_ids}


class QueueChoice(NamedTuple):
    """The only queues that a claim may take from; with `is_excluded`, all but these."""

    ids: frozenset[UUID]
    is_excluded: bool = False


class OpenTo(NamedTuple):
    """What decides from which queues a claim may take."""

    worker_id: UUID
    refused_rooms: frozenset[str]
    choice: QueueChoice | None
    long_ids: frozenset[UUID]


class Claim(NamedTuple):
    """A request of a worker for up to `task_limit` tasks. `interval`: seconds between its heartbeats.

    A repeated claim with the same `claim_id` gets the same tasks. `order` comes from the server's settings.
    With `start`, the tasks are also started. The caller may not serve the jobs of the rooms `refused_rooms`.
    A claim with a `choice` of queues, or one that passes over those in `long`, is never plain. Until its
    first task has waited for `fill_for`, it takes as many tasks as it can get, or raises `NotFull`. If it
    `is_batch`, its tasks are run together, and take slots as one.
    """

    caller: Identity
    worker_id: UUID
    interval: float
    claim_id: UUID | None = None
    order: ClaimOrder = ClaimOrder()
    task_limit: int = 1
    start: bool = False
    refused_rooms: Collection[str] = frozenset()
    choice: QueueChoice | None = None
    fill_for: timedelta = timedelta()
    is_batch: bool = False
    long: LongQueues = NONE_LONG

    @property
    def has_choice(self) -> bool:
        """Whether it may not take from all queues of its worker."""
        return self.choice is not None or bool(self.long.ids)

    @property
    def needs(self) -> str:
        """Return the name of the row that the item locks."""
        return f"worker {self.worker_id}"

    @property
    def queues(self) -> OpenTo:
        """Return what decides from which queues it may take."""
        return OpenTo(self.worker_id, frozenset(self.refused_rooms), self.choice, self.long.ids)

    def is_open(self, head: QueueHead) -> bool:
        """Return whether it may take from a queue."""
        is_chosen = self.choice is None or (head.job_id in self.choice.ids) != self.choice.is_excluded
        return is_chosen and self.is_open_to_worker(head)

    def is_open_to_worker(self, head: QueueHead) -> bool:
        """Return whether its worker may take from a queue, by this claim or another."""
        return (
            head.job_id not in self.long.ids
            and not head.paused
            and head.room_id != INTERNAL
            and head.room_id not in self.refused_rooms
        )

    def problem(self, worker: WorkerRecord | None) -> ProblemException | None:
        """Return why its caller may not claim for a worker; None if it may."""
        if worker is None:
            return WorkerNotFound(f"Worker {self.worker_id} not found")
        if worker.owner_id != self.caller.id:
            return Forbidden("Not authorized: the worker belongs to another user")
        return None

    def empty(
        self,
        jobs: JobSet,
        reason: EmptyReason,
        *,
        is_contended: bool,
        passed: frozenset[JobName] = frozenset(),
    ) -> "ClaimResult | ProblemException":
        """Return the result without tasks for a worker of these jobs; a refusal if it may serve none."""
        if reason != EmptyReason.DRAINING and jobs.is_global and not jobs.without(self.refused_rooms).names:
            return rules_transitions.cannot_serve(self.caller, GLOBAL)
        waits_for = self.waits_for(jobs)
        if reason != EmptyReason.DRAINING and self.long.ids and not waits_for.names:
            reason = EmptyReason.NO_TIME
        return ClaimResult(jobs=waits_for.without((), passed), is_contended=is_contended, reason=reason)

    def waits_for(self, jobs: JobSet) -> JobSet:
        """Return those queues of its worker, which has these jobs, that it may take from."""
        return jobs.without(self.refused_rooms, self.long.names)


class NotFull(ItemDeclined):
    """A claim may take fewer tasks than it asks for, and the oldest has waited for `age`: none is claimed."""

    def __init__(self, age: timedelta) -> None:
        super().__init__(f"fewer tasks than for a batch, the oldest for {age}")
        self.age = age


@dataclass(slots=True)
class ClaimResult:
    """The tasks of a claim, or why there is none, and the jobs whose queues to wait for.

    `is_contended`: a task was pending, but another transaction held it; claim again. `is_left_out`:
    large tasks of other claims filled this transaction; claim again at once. `kept_for`: the queue of the
    task for which the worker keeps its free slots. `required` are the tasks whose requirements are to be
    read after the commit.
    """

    tasks: list[TaskResponse] = field(default_factory=list)
    jobs: JobSet = NO_JOBS
    is_contended: bool = False
    is_left_out: bool = False
    reason: EmptyReason | None = None
    kept_for: UUID | None = None
    required: Sequence[TaskRow] = ()

    @property
    def is_final(self) -> bool:
        """Whether waiting cannot change the result."""
        return bool(self.tasks) or self.reason in {EmptyReason.DRAINING, EmptyReason.NO_TIME}

    def keys(self, worker_id: UUID) -> tuple[list[str], KeySet]:
        """Return the keys that an empty claim waits on: its own, and those of its worker's jobs.

        A worker at its `max_tasks`, or with slots that are kept, does not wait on jobs: a wake-up for a new
        task would be lost on it.
        """
        if self.kept_for is not None:
            return [worker_key(worker_id), slot_key(worker_id), kept_key(self.kept_for)], NO_JOBS.keys
        if self.reason == EmptyReason.MAX_TASKS:
            return [worker_key(worker_id), slot_key(worker_id)], NO_JOBS.keys
        if self.reason == EmptyReason.NO_SLOTS:
            return [worker_key(worker_id), slot_key(worker_id)], self.jobs.keys
        return [worker_key(worker_id)], self.jobs.keys


@dataclass(slots=True, kw_only=True)
class _WorkerSlot(ClaimSlot):
    """The slots of a claim. `gave_way`: other claims of its worker took the last free ones."""

    claim: Claim
    gave_way: bool = False
    may_claim_again: bool = False


class _OpenQueues:
    """The queues that the claims of a transaction may get tasks from: those with the first tasks.

    The `count` first tasks that a claim may get are in its `count` first queues. More are read where queues
    are paused, refused or at their limit, or where other transactions have locked their tasks.
    """

    def __init__(
        self,
        tx: Transaction,
        by_worker: dict[UUID, WorkerQueues],
        workers: Mapping[UUID, WorkerRecord],
        reservations: Reservations,
    ) -> None:
        self._tx = tx
        self._by_worker = by_worker
        self._workers = workers
        self._reservations = reservations
        # Of workers with queues whose tasks take several slots: their free slots, the queues whose tasks take
        # more, and the task for which a worker keeps its free slots.
        self._free_slots: dict[UUID, int] = {}
        self._passed: dict[OpenTo, set[UUID]] = {}
        self.kept_for: dict[OpenTo, Kept] = {}
        # The jobs that are locked, once one of them has a limit, and how many more of its tasks may be held.
        self._locked: set[UUID] = set()
        self._free: dict[UUID, int] = {}
        self._busy: set[UUID] = set()
        self._checked: set[UUID] = set()
        self.shared = rules_fairness.VersionSlots()
        self.limiter: rules_limits.Limiter | None = None

    async def demand(self, item: Claim, count: int) -> dict[UUID, int]:
        """Return how many tasks a claim may get from each of `count` queues, or of all if it has fewer.

        The queues are in the order of their first tasks.
        """
        while True:
            heads, is_all = self._by_worker[item.worker_id]
            demand = {
                head.job_id: min(head.pending, self._free.get(head.job_id, head.pending))
                for head in heads
                if item.is_open(head)
            }
            demand = {job_id: number for job_id, number in demand.items() if number}
            if any(head.cost for head in heads):
                demand = await self._fitting(item, heads, demand)
                # Queues that were not read have later tasks than the one for which slots are kept.
                if (kept := self.kept_for.get(item.queues)) is not None and kept.place <= heads[-1].place:
                    return demand
            if is_all or len(demand) >= count:
                return demand
            limit = min(_GROWTH * len(heads), _ALL_QUEUES)
            self._by_worker |= await sql_claims.queues(self._tx, [item.worker_id], limit)

    async def _fitting(
        self, item: Claim, heads: Sequence[QueueHead], demand: dict[UUID, int]
    ) -> dict[UUID, int]:
        """Return the demand without queues whose tasks take more slots than are free.

        If the worker keeps its free slots for a task of one, it gets none that comes later.
        """
        free, fitting, passed = await self._free_slots_of(item), dict[UUID, int](), set[UUID]()
        kept: Kept | None = None
        for head in heads:
            if kept is not None and head.place >= kept.place:
                break
            if head.cost is None or head.cost <= free:
                if head.job_id in demand:
                    fitting[head.job_id] = demand[head.job_id]
            elif head.room_id in item.refused_rooms:
                self._reservations.pass_over(head.job_id, item.worker_id)
            elif item.is_open_to_worker(head):
                passed.add(head.job_id)
                about = self._tx, head, item.worker_id, item.order.room_cap
                kept = rules_slots.first_kept(kept, await self._reservations.kept_for(*about))
        self._passed[item.queues] = passed
        self.kept_for.pop(item.queues, None)
        if kept is not None:
            self.kept_for[item.queues] = kept
        return fitting

    async def _free_slots_of(self, item: Claim) -> int:
        """Return how many slots of its worker the tasks that it holds leave."""
        worker_id = item.worker_id
        if worker_id not in self._free_slots:
            slots = self._workers[worker_id].slots
            # The claims of a worker with batches choose their queues.
            has_batches = item.choice is not None
            free = await rules_slots.free(self._tx, worker_id, slots, has_batches=has_batches)
            self._free_slots[worker_id] = free
        return self._free_slots[worker_id]

    def until(self, key: OpenTo) -> Place | None:
        """Return the position of the task for which a worker keeps its free slots."""
        return None if (kept := self.kept_for.get(key)) is None else kept.place

    def notice_claimed(self, job_ids: AbstractSet[UUID]) -> None:
        """Wake the claims whose workers kept slots free for tasks of these queues, which are claimed now."""
        costly = job_ids & {
            head.job_id for heads, _ in self._by_worker.values() for head in heads if head.cost
        }
        self._reservations.forget_first(costly)
        for job_id in costly:
            self._tx.wake(kept_key(job_id))

    def share_slots(self, slots: Sequence[_WorkerSlot]) -> None:
        """Let one claim of a worker take tasks of several slots, and only one task, or one batch."""
        with_cost = set[UUID]()
        for slot in slots:
            worker_id = slot.claim.worker_id
            heads = self._by_worker[worker_id].heads
            if not any(head.cost and head.job_id in slot.demand for head in heads):
                continue
            if worker_id in with_cost:
                slot.demand, slot.may_claim_again = {}, True
            else:
                with_cost.add(worker_id)
                slot.task_limit = slot.task_limit if slot.claim.is_batch else 1

    async def set_demand(self, slots: Sequence[_WorkerSlot], count: int) -> None:
        """Set the demand of each slot to that of `count` queues, within the limits of their jobs.

        If a job has a limit, all jobs are locked: those of the first queues in order, others only if they are
        free, so that no two transactions wait for each other.
        """
        while True:
            shared: dict[OpenTo, dict[UUID, int]] = {}
            for slot in slots:
                key = slot.claim.queues
                if key not in shared:
                    shared[key] = await self.demand(slot.claim, count)
                slot.demand, slot.until = shared[key], self.until(key)
            job_ids = {job_id for demand in shared.values() for job_id in demand}
            limited = {
                head.job_id: head
                for worker_id, *_ in shared
                for head in self._by_worker[worker_id].heads
                if head.is_limited and head.job_id in job_ids and head.job_id not in self._checked
            }
            if not limited and not (self._locked and job_ids - self._locked):
                break
            await self._apply(limited, job_ids - self._locked, count)
        for slot in slots:
            heads = [head for head in self._by_worker[slot.claim.worker_id].heads if slot.claim.is_open(head)]
            pending = {head.job_id: head.pending for head in heads} if self.shared else {}
            for head in heads:
                if self._free.get(head.job_id, head.pending) < head.pending or self.shared.is_exceeded(
                    head.job_id, pending
                ):
                    slot.refusal = EmptyReason.AT_CAPACITY
                    slot.may_claim_again = slot.may_claim_again or head.job_id in self._busy
        self.share_slots(slots)

    async def _apply(self, limited: Mapping[UUID, QueueHead], job_ids: AbstractSet[UUID], count: int) -> None:
        self._checked |= limited.keys()
        # All versions of a job share its limit.
        versioned = [job_id for job_id, head in limited.items() if head.has_versions]
        versions = await sql_jobs.versions_of(self._tx, versioned) if versioned else {}
        all_ids = set(job_ids).union(*versions.values()) - self._locked
        locked = await sql_jobs.lock(self._tx, all_ids, skip_locked=bool(self._locked))
        self._locked |= locked
        busy = {job_id for job_id in job_ids if not self._locked.issuperset(versions.get(job_id, [job_id]))}
        self._busy |= busy
        self._free |= dict.fromkeys(busy, 0)
        free = {
            job_id: head.max_in_flight
            for job_id, head in limited.items()
            if head.max_in_flight is not None and job_id not in busy
        }
        # A queue may have appeared while the claim waited for a lock. It is not in `versions`, but counts.
        all_versions = await sql_jobs.versions_of(self._tx, free) if free else {}
        self._free |= await rules_fairness.free_slots(self._tx, free, all_versions)
        for job_id in free.keys() & versioned:
            self.shared.add(versions[job_id], self._free[job_id])
        limits = {
            job_id: head.limits
            for job_id, head in limited.items()
            if head.limits is not None and job_id not in busy
        }
        if limits:
            self.limiter = self.limiter or rules_limits.Limiter(self._tx)
            busy = await self.limiter.add(limits, count, versions)
            self._busy |= busy
            self._free |= dict.fromkeys(busy, 0)

    def end(self, slot: _WorkerSlot) -> Place | None:
        """Return the place after which queues that were not read may have tasks; None if all were read."""
        heads, is_all = self._by_worker[slot.claim.worker_id]
        return None if is_all else (heads[-1].lane, heads[-1].seq)

    async def read_more(self, slots: Iterable[_WorkerSlot]) -> None:
        """Read the queues again, and more of them, because the tasks of the first ones are gone."""
        for worker_id in sorted({slot.claim.worker_id for slot in slots}):
            heads, is_all = self._by_worker[worker_id]
            if not is_all:
                limit = min(_GROWTH * len(heads), _ALL_QUEUES)
                self._by_worker |= await sql_claims.queues(self._tx, [worker_id], limit)

    def are_all(self, slots: Iterable[_WorkerSlot]) -> bool:
        """Return whether there are no other queues for these slots."""
        return all(self._by_worker[slot.claim.worker_id].is_all for slot in slots)

    def first(self, slot: _WorkerSlot) -> int:
        """Return the `seq` of the first task that a slot may get."""
        heads = self._by_worker[slot.claim.worker_id].heads
        return next(head.seq for head in heads if head.job_id in slot.demand)

    def are_used_up(self, slot: _WorkerSlot, count: int) -> bool:
        """Return whether the limits of its jobs allow a slot no more than the `count` tasks that it has."""
        free = sum(self._free.get(job_id, count + 1) for job_id in slot.demand)
        has_shared = not self.shared or any(map(self.shared.has_free, slot.demand))
        is_closed = self.limiter is not None and all(map(self.limiter.is_closed, slot.demand))
        return free <= count or not has_shared or is_closed

    async def read_all(self, slots: Iterable[_WorkerSlot]) -> None:
        """Read all queues, because the first ones may have tasks of paused rooms alone."""
        for worker_id in sorted({slot.claim.worker_id for slot in slots}):
            if not self._by_worker[worker_id].is_all:
                self._by_worker |= await sql_claims.queues(self._tx, [worker_id], _ALL_QUEUES)

    async def pauses(self) -> Pauses:
        """Return the pauses of rooms and of the whole queue."""
        may_be_paused = any(
            queues.heads and queues.heads[0].has_pauses for queues in self._by_worker.values()
        )
        return await sql_pauses.active(self._tx) if may_be_paused else NO_PAUSES

    async def names_of_passed(self, slots: Iterable[_WorkerSlot]) -> dict[OpenTo, frozenset[JobName]]:
        """Return the names of the queues whose tasks take more slots than are free, of these claims."""
        keys = {slot.claim.queues for slot in slots}
        ids_of = {key: ids for key in keys if (ids := self._passed.get(key))}
        if not ids_of:
            return {}
        names = await sql_jobs.queue_names(self._tx, set().union(*ids_of.values()))
        return {key: frozenset(split_name(names[job_id]) for job_id in ids) for key, ids in ids_of.items()}

    def has_paused(self, worker_id: UUID) -> bool:
        """Return whether a job of a worker is paused and has pending tasks."""
        return any(head.paused and head.room_id != INTERNAL for head in self._by_worker[worker_id].heads)


async def claim(
    tx: Transaction,
    items: Sequence[Claim],
    sets: JobSets | None = None,
    first_queues: Mapping[UUID, WorkerQueues] = MappingProxyType({}),
) -> list[ClaimResult | ProblemException]:
    """Give each worker the oldest tasks that it may have, in the order of the claims.

    `first_queues` has what this transaction has read of the workers' queues.
    """
    ids = list(dict.fromkeys(item.worker_id for item in items))
    needed = min(MAX_CLAIMED, sum(item.task_limit for item in items))
    limit = _ALL_QUEUES if items[0].order.is_by_room else needed + _SPARE_QUEUES
    sets = sets or JobSets()
    workers, by_worker = await sql_claims.lock_with_queues(tx, ids, limit, first_queues)
    queues = _OpenQueues(tx, by_worker, workers, sets.reservations)
    slots = await _slots(items, workers, queues, needed)
    valid = list({id(slot): slot for slot in slots if isinstance(slot, _WorkerSlot)}.values())
    await _record_heartbeats(tx, valid, workers)
    tasks = await _repeated(tx, valid)
    queues.share_slots(valid)
    await _apply_worker_limits(tx, valid, workers)
    are_counted = await _apply_token_limits(tx, valid)
    pauses = await queues.pauses()
    if pauses.is_all:
        _pause(valid)
    _share([slot for slot in valid if slot.demand])
    tasks |= (new := await _claim_new(tx, [slot for slot in valid if slot.demand], queues, pauses))
    await _record_claims(tx, new.values(), are_counted=are_counted)
    jobs, passed = await _jobs_of_empty(tx, valid, tasks, sets, queues)
    claimed_of = Counter(task.job_id for task in new.values())
    claimed_by = {task.worker_id for task in new.values()}
    for slot in valid:
        # The claim that it gave way to got no task in the end.
        slot.may_claim_again |= slot.gave_way and slot.claim.worker_id not in claimed_by
    return [
        _result(slot, tasks, claimed_of, jobs, queues, passed) if isinstance(slot, _WorkerSlot) else slot
        for slot in slots
    ]


async def _jobs_of_empty(
    tx: Transaction,
    slots: Iterable[_WorkerSlot],
    tasks: Mapping[int, TaskRecord],
    sets: JobSets,
    queues: _OpenQueues,
) -> tuple[dict[UUID, JobSet], dict[OpenTo, frozenset[JobName]]]:
    """Return the jobs of workers that got no task, and their queues that need more slots than are free."""
    empty = [slot for slot in slots if tasks.keys().isdisjoint(slot.seqs)]
    worker_ids = list(dict.fromkeys(slot.claim.worker_id for slot in empty))
    jobs = await sets.read(tx, worker_ids) if worker_ids else {}
    return jobs, await queues.names_of_passed(empty)


def _pause(slots: Iterable[_WorkerSlot]) -> None:
    for slot in slots:
        if slot.demand:
            slot.demand, slot.refusal = {}, EmptyReason.PAUSED


async def _record_claims(tx: Transaction, tasks: Collection[TaskRecord], *, are_counted: bool) -> None:
    """Record claims that have ids, and how many tasks tokens with a limit have claimed."""
    if are_counted:
        await sql_worker_tokens.add_claims(tx, Counter(str(task.worker_owner_id) for task in tasks))
    marked = {task.worker_id for task in tasks if task.worker_id and task.claim_id}
    await sql_workers.mark_claims(tx, sorted(marked))


async def _slots(
    items: Sequence[Claim], workers: Mapping[UUID, WorkerRecord], queues: _OpenQueues, needed: int
) -> list[_WorkerSlot | ProblemException]:
    """Return the slots of each claim, or a problem. A claim and its repeat in one batch share their slots."""
    by_claim: dict[tuple[UUID, UUID], _WorkerSlot] = {}
    slots: list[_WorkerSlot | ProblemException] = []
    for item in items:
        problem = item.problem(workers.get(item.worker_id))
        if problem is not None:
            slots.append(problem)
            continue
        demand, refusal = {}, None
        if workers[item.worker_id].draining:
            refusal = EmptyReason.DRAINING
        else:
            demand = await queues.demand(item, needed)
        slot = _WorkerSlot(claim=item, demand=demand, task_limit=item.task_limit, refusal=refusal)
        slot.until = queues.until(item.queues)
        if item.claim_id is not None:
            slot = by_claim.setdefault((item.worker_id, item.claim_id), slot)
        slots.append(slot)
    return slots


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
        slot.task_limit = min(slot.task_limit, free[worker_id])
        free[worker_id] -= slot.task_limit
        if not slot.task_limit:
            slot.demand, slot.refusal = {}, EmptyReason.MAX_TASKS
            slot.gave_way = held[worker_id] < limits[worker_id]


async def _apply_token_limits(tx: Transaction, slots: Sequence[_WorkerSlot]) -> bool:
    """Reduce claims to the tasks that the tokens of their callers may still claim.

    A token that has claimed all of its tasks drains its workers. Return whether a token has a limit.
    """
    limited = [slot for slot in slots if slot.demand and slot.claim.caller.max_claims is not None]
    if not limited:
        return False
    free = await sql_worker_tokens.lock_free(tx, {slot.claim.caller.id for slot in limited})
    used_up = {slot.claim.caller.id for slot in limited if not free.get(slot.claim.caller.id)}
    for slot in limited:
        name = slot.claim.caller.id
        if name in used_up:
            slot.demand, slot.refusal = {}, EmptyReason.DRAINING
            continue
        slot.task_limit = min(slot.task_limit, free[name])
        free[name] -= slot.task_limit
        if not slot.task_limit:
            # Other claims of this transaction may take the last ones.
            slot.demand, slot.refusal, slot.gave_way = {}, EmptyReason.MAX_TASKS, True
    return True


def _share(slots: Sequence[_WorkerSlot]) -> None:
    """Reduce the largest claims to the same number of tasks, so that one transaction is bounded."""
    free = MAX_CLAIMED
    for index, slot in enumerate(sorted(slots, key=attrgetter("task_limit"))):
        slot.task_limit = min(slot.task_limit, max(1, free // (len(slots) - index)))
        free -= slot.task_limit


async def _claim_new(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: _OpenQueues, pauses: Pauses
) -> dict[int, TaskRecord]:
    """Claim tasks for each slot and return the claimed tasks by `seq`."""
    locked = await _choose(tx, slots, queues, pauses)
    now, limiter = await tx.now(), queues.limiter
    _check_full(slots, locked, queues, now)
    moves: list[Move] = []
    for slot in slots:
        item = slot.claim
        holder = {"worker_id": item.worker_id, "worker_owner_id": item.caller.id, "claim_id": item.claim_id}
        for seq in slot.seqs:
            if task := locked.get(seq):
                if limiter is not None:
                    holder["limit_key"] = limiter.key_of(task)
                moves.append((task, rules_transitions.claimed(task, now, start=item.start, **holder)))
    expired = {before.job_id for before, after in moves if after.status not in HELD}
    if expired:
        # Where one task has expired, others have too. The claim that found one is repeated.
        seqs = [task.seq for task, _ in moves]
        rest = await sql_expiry.lock_expired_of_jobs(tx, now, _MAX_EXPIRED, sorted(expired), seqs)
        moves += [(task, rules_transitions.expired(task, now)) for task in rest]
    await sql_transitions.claim(tx, moves)
    queues.notice_claimed({task.job_id for task, _ in moves})
    if limiter is not None:
        await limiter.write([after for _, after in moves if after.status in HELD])
    for _, after in moves:
        rules_answers.publish_status(tx, after)
    return {after.seq: after for _, after in moves if after.status in HELD}


def _check_full(
    slots: Iterable[_WorkerSlot], locked: Mapping[int, TaskRecord], queues: _OpenQueues, now: datetime
) -> None:
    """Raise `NotFull` if a claim is to wait for more tasks. The transaction is rolled back.

    It does not wait if a limit of the job, the size of the payloads, or kept slots allow no further task.
    """
    for slot in slots:
        if not slot.claim.fill_for:
            continue
        tasks = [locked[seq] for seq in slot.seqs if seq in locked]
        is_final = slot.is_cut or slot.until is not None or queues.are_used_up(slot, len(tasks))
        if not tasks or is_final or len(tasks) >= slot.task_limit:
            continue
        age = now - min(task.queued_at or task.created_at for task in tasks)
        if age < slot.claim.fill_for:
            raise NotFull(max(age, timedelta()))


async def _choose(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: _OpenQueues, pauses: Pauses
) -> dict[int, TaskRecord]:
    """Choose the tasks of each slot and return the locked tasks by `seq`."""
    order = slots[0].claim.order if slots else ClaimOrder()
    if not order.is_by_room:
        locked = await _choose_first(tx, slots, queues, order._replace(skips_paused=bool(pauses.rooms)))
        if not any(pauses.has(task.room_id) for task in locked.values()):
            return locked
        await queues.read_all(slots)
        for slot in slots:
            slot.seqs, slot.is_left_out = [], False
    await queues.set_demand(slots, sum(slot.task_limit for slot in slots))
    demand = _demand(slots)
    if not demand:
        return {}
    order = order._replace(skips_paused=bool(pauses.rooms))
    open_slots = [slot for slot in slots if slot.demand]
    return await rules_fairness.assign(tx, open_slots, demand, order, queues.limiter, queues.shared)


async def _choose_first(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: _OpenQueues, order: ClaimOrder
) -> dict[int, TaskRecord]:
    """Choose the first tasks of all rooms; of jobs with limits, the first that these allow."""
    await queues.set_demand(slots, sum(slot.task_limit for slot in slots))
    demand = _demand(slots)
    if not demand:
        return {}
    if queues.limiter is not None:
        return await _choose_within_limits(tx, slots, queues, order)
    is_small = rules_fairness.has_few(slots)
    if len(demand) == 1 and queues.are_all(slots):
        [(job_id, count)] = demand.items()
        oldest = await sql_claims.lock_oldest(tx, job_id, count, bodies=is_small)
        locked = {task.seq: task for task in oldest}
        _assign_oldest(slots, {job_id: [task.place for task in oldest]}, {}, queues.shared)
    else:
        locked = await _choose_of_several(tx, slots, queues, bodies=is_small)
    if not is_small and locked:
        await rules_fairness.fit(tx, slots, locked)
    return locked


async def _choose_within_limits(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: _OpenQueues, order: ClaimOrder
) -> dict[int, TaskRecord]:
    while True:
        open_slots = [slot for slot in slots if slot.demand]
        locked = await rules_fairness.assign(
            tx, open_slots, _demand(slots), order, queues.limiter, queues.shared
        )
        places = {seq: task.place for seq, task in locked.items()}
        # Queues that were not read may have tasks that come first.
        if not any(_may_be_late(slot, places, queues.end(slot)) for slot in open_slots):
            return locked
        await queues.read_more(slots)
        await queues.set_demand(slots, sum(slot.task_limit for slot in slots))


def _demand(slots: Iterable[_WorkerSlot]) -> dict[UUID, int]:
    """Return how many tasks of each job the slots may get together."""
    demand: Counter[UUID] = Counter()
    for slot in slots:
        for job_id, pending in slot.demand.items():
            demand[job_id] = min(pending, demand[job_id] + slot.task_limit)
    return demand


async def _choose_of_several(
    tx: Transaction, slots: Sequence[_WorkerSlot], queues: _OpenQueues, *, bodies: bool
) -> dict[int, TaskRecord]:
    count = sum(slot.task_limit for slot in slots)

    async def choose(skipped: AbstractSet[int]) -> tuple[list[int], list[int]]:
        if count == 1 and not skipped:
            slots[0].seqs = [queues.first(slots[0])]
            return slots[0].seqs, []
        if skipped:
            await queues.set_demand(slots, count + len(skipped))
        while (places := await _assign(tx, slots, count, skipped, queues)) is None:
            await queues.read_more(slots)
            await queues.set_demand(slots, count + len(skipped))
        seqs = [seq for slot in slots for seq in slot.seqs]
        own_seqs = set(seqs)
        return seqs, [seq for _, seq in sorted(places) if seq not in own_seqs]

    return await sql_claims.lock_chosen(tx, choose, bodies=bodies)


async def _assign(
    tx: Transaction, slots: Sequence[_WorkerSlot], count: int, skipped: AbstractSet[int], queues: _OpenQueues
) -> list[Place] | None:
    """Set the tasks of each slot, without a lock. Return the places that were read, without skipped ones.

    Return None if queues that were not read may have earlier tasks.
    """
    demand, spare = _demand(slots), len(skipped)
    per_job = 2 + (count + spare) // max(len(demand), 1)
    while True:
        sizes = {job_id: min(limit + spare, per_job) for job_id, limit in demand.items()}
        oldest = await sql_claims.oldest(tx, sizes)
        # Tasks that were not read come after the last one that was read of their job.
        ends = {
            job_id: places[-1]
            for job_id, places in oldest.items()
            if len(places) == sizes[job_id] < demand[job_id] + spare
        }
        free = {
            job_id: [place for place in places if place[1] not in skipped][: demand[job_id]]
            for job_id, places in oldest.items()
        }
        if _assign_oldest(slots, free, ends, queues.shared):
            places_of = {place[1]: place for places in free.values() for place in places}
            if any(slot.demand and _may_be_late(slot, places_of, queues.end(slot)) for slot in slots):
                return None
            return [place for places in free.values() for place in places]
        per_job *= _GROWTH


def _may_be_late(slot: _WorkerSlot, places: Mapping[int, Place], end: Place | None) -> bool:
    """Return whether tasks after `end`, which were not read, may come before those of a slot."""
    if end is None or (slot.until is not None and slot.until <= end):
        return False
    return len(slot.seqs) < slot.task_limit or any(places.get(seq, end) > end for seq in slot.seqs)


def _assign_oldest(
    slots: Sequence[_WorkerSlot],
    places: Mapping[UUID, Sequence[Place]],
    ends: Mapping[UUID, Place],
    shared: rules_fairness.VersionSlots,
) -> bool:
    """Give each slot the first places of its jobs, up to the first end of a job with more tasks.

    Return whether these were enough.
    """
    merged: dict[int, tuple[deque[int], bool]] = {}
    assigned: set[int] = set()
    shared.reset()
    job_of = {place[1]: job_id for job_id, own in places.items() for place in own} if shared else {}
    is_enough = True
    for slot in slots:
        if id(slot.demand) not in merged:
            until = slot.until or _LAST
            end = min((ends[job_id] for job_id in slot.demand if job_id in ends), default=_LAST)
            own = sorted(place for job_id in slot.demand for place in places[job_id])
            seqs = deque(place[1] for place in own if place <= end and place < until)
            merged[id(slot.demand)] = seqs, end >= until
        seqs, is_all = merged[id(slot.demand)]
        slot.seqs = []
        while seqs and len(slot.seqs) < slot.task_limit:
            seq = seqs.popleft()
            if seq in assigned or (shared and not shared.has_free(job_of[seq])):
                continue
            slot.seqs.append(seq)
            if shared:
                shared.reserve(job_of[seq])
        assigned.update(slot.seqs)
        is_enough = is_enough and (is_all or len(slot.seqs) == slot.task_limit)
    return is_enough


def _claimed(rows: Sequence[TaskRow]) -> ClaimResult:
    return ClaimResult(
        [rules_answers.task_response(task, traceparent=task.traceparent, reveal=True) for task in rows],
        required=[task for task in rows if task.job_version >= QUEUES],
    )


def _result(
    slot: _WorkerSlot,
    tasks: Mapping[int, TaskRecord],
    claimed_of: Counter[UUID],
    jobs: Mapping[UUID, JobSet],
    queues: _OpenQueues,
    passed: Mapping[OpenTo, frozenset[JobName]],
) -> ClaimResult | ProblemException:
    records = [tasks[seq] for seq in slot.seqs if seq in tasks]
    if records:
        result = _claimed(records)
        for task, record in zip(result.tasks, records, strict=True):
            if record.policy.cost > 1:
                task.cost = record.policy.cost
        return result
    if slot.is_left_out:
        return ClaimResult(is_contended=True, is_left_out=True)
    worker_id = slot.claim.worker_id
    # Tasks that are pending and were not claimed here are locked by another transaction.
    is_left = any(
        pending > claimed_of[job_id] and queues.shared.has_free(job_id, claimed_of)
        for job_id, pending in slot.demand.items()
    )
    reason = slot.refusal or (EmptyReason.PAUSED if queues.has_paused(worker_id) else EmptyReason.EMPTY)
    names = passed.get(slot.claim.queues, frozenset())
    if names and reason not in {EmptyReason.DRAINING, EmptyReason.MAX_TASKS}:
        reason = EmptyReason.NO_SLOTS
    is_contended = is_left or slot.may_claim_again
    empty = slot.claim.empty(jobs[worker_id], reason, is_contended=is_contended, passed=names)
    if isinstance(empty, ClaimResult):
        kept = queues.kept_for.get(slot.claim.queues)
        empty.kept_for = None if kept is None else kept.queue_id
    return empty


# Claim for workers of one queue without limits, as most workers are: with one statement on PostgreSQL.
#
# If a claim is not plain, `claim` takes the whole batch.

# For how many batches at most the statement is skipped after it could not serve one.
_MAX_SKIPPED = 16
_ONLY_GLOBAL = frozenset({GLOBAL})


class PlainClaims:
    """Claims in batches, with one statement unless it could not serve the last batches."""

    def __init__(self) -> None:
        self._failed = self._left_out = 0
        self.sets = JobSets()

    async def claim(self, tx: Transaction, items: Sequence[Claim]) -> list[ClaimResult | ProblemException]:
        """Do what `claim` does."""
        first_queues: dict[UUID, WorkerQueues] = {}
        if _may_be_plain(items):
            # SQLite's first statement costs little.
            if not tx.is_sqlite and self._left_out < min(self._failed, _MAX_SKIPPED):
                self._left_out += 1
            else:
                self._left_out = 0
                results = await claim_with_one_statement(tx, items, self.sets, first_queues)
                if results is not None:
                    self._failed = 0
                    return results
                self._failed += 1
        return await claim(tx, items, self.sets, first_queues)

    async def claim_chosen(
        self, tx: Transaction, items: Sequence[Claim]
    ) -> list[ClaimResult | ProblemException]:
        """Claim from the queues that each claim has chosen."""
        return await claim(tx, items, self.sets)


async def claim_with_one_statement(
    tx: Transaction,
    items: Sequence[Claim],
    sets: JobSets | None = None,
    first_queues: dict[UUID, WorkerQueues] | None = None,
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
    demands = [
        Demand(item.worker_id, item.caller.id, item.claim_id, item.start, item.task_limit) for item in items
    ]
    most_bytes = (
        None
        if rules_fairness.are_few(item.task_limit for item in items)
        else rules_fairness.MAX_PAYLOAD_BYTES
    )
    sets = sets or JobSets()
    last = sets.of_workers(claimants)
    had_many_queues = len(items) == 1 and sets.has_many_queues(items[0].worker_id)
    answers = await claim_single_statement(
        *(tx, list(claimants.values()), demands, list(last), most_bytes, first_queues),
        had_many_queues=had_many_queues,
    )
    if answers is None:
        return None
    if len(items) == 1 and answers[0] is not None:
        sets.record_many_queues(items[0].worker_id, is_many=answers[0].has_many_queues)
    rest = [item for item, answer in zip(items, answers, strict=True) if answer is None]
    others = iter(await claim(tx, rest, sets) if rest else [])
    return [
        next(others) if answer is None else _plain_result(tx, item, answer, sets, last)
        for item, answer in zip(items, answers, strict=True)
    ]


def _may_be_plain(items: Sequence[Claim]) -> bool:
    callers = {item.worker_id: (item.caller.id, item.refused_rooms) for item in items}
    ids = [(item.worker_id, item.claim_id) for item in items if item.claim_id is not None]
    return (
        not items[0].order.is_by_room
        and all(item.caller.max_claims is None for item in items)
        and all(_ONLY_GLOBAL.issuperset(item.refused_rooms) for item in items)
        and sum(item.task_limit for item in items) <= MAX_CLAIMED
        and len(set(ids)) == len(ids)
        and all(callers[item.worker_id] == (item.caller.id, item.refused_rooms) for item in items)
    )


def _plain_result(
    tx: Transaction, item: Claim, answer: ClaimAnswer, sets: JobSets, last: Mapping[str, JobSet]
) -> ClaimResult | ProblemException:
    if answer.tasks:
        result = _claimed(answer.tasks)
        rules_answers.publish_changed(tx, result.tasks)
        return result
    reason = EmptyReason.PAUSED if answer.is_paused else EmptyReason.EMPTY
    jobs = None
    if answer.jobs_digest is not None:
        # The answer has no names of the sets in `last`, which may be forgotten by now.
        jobs = sets.get(item.worker_id, answer.jobs_digest, answer.job_names) or last.get(answer.jobs_digest)
    return item.empty(jobs or NO_JOBS, reason, is_contended=answer.is_contended)
