"""Choose which task each free slot gets, within the limits of jobs and rooms."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import sql_claims, sql_jobs, sql_limits, sql_room_queues, sql_tasks
from zndraw_joblib.server.queue.rules_limits import Limiter
from zndraw_joblib.server.queue.sql_limits import LimitHead
from zndraw_joblib.server.queue.sql_room_queues import OpenRooms, QueuedTask, RoundPosition
from zndraw_joblib.server.queue.sql_task_rows import Place, TaskRecord
from zndraw_joblib.wire.messages import EmptyReason

# A claim reads a few more rooms than it needs, and a bounded number of tasks.
_SPARE_ROOMS = 7
_MAX_READ = 4096
# The factor by which a claim reads more queues if limits refuse the first ones.
_LIMITED_FACTORS = (1, 8, 64, 512)
# So few slots, and so few more tasks than one for each, cannot exceed the bytes much.
_FEW_SLOTS = 32
_FEW = 8
MAX_PAYLOAD_BYTES = 8 * 1024**2
_MAX_FIRST_BYTES = 32 * 1024**2


class ClaimOrder(NamedTuple):
    """The order in which tasks are claimed. `room_cap` limits how many tasks of a room may be held.

    With `skips_paused`, those of paused rooms stay in their queues.
    """

    is_fair: bool = False
    room_cap: int | None = None
    skips_paused: bool = False

    @property
    def is_by_room(self) -> bool:
        """Whether the room of a task matters."""
        return self.is_fair or self.room_cap is not None

    @property
    def open_rooms(self) -> OpenRooms:
        """The rooms from which tasks are claimed."""
        return OpenRooms(self.room_cap, self.skips_paused)


@dataclass(slots=True, kw_only=True)
class ClaimSlot:
    """Capacity for `task_limit` tasks. `demand`: how many of each job may be claimed now; `seqs`: the choice.

    `until`: the position of the task for which its worker keeps slots free; it gets none that comes later.
    `is_cut`: payloads took all bytes of this transaction, so some of the choice is left out. `is_left_out`:
    all of it is, for the payloads of other slots.
    """

    demand: dict[UUID, int]
    task_limit: int = 1
    seqs: list[int] = field(default_factory=list)
    refusal: EmptyReason | None = None
    is_cut: bool = False
    is_left_out: bool = False
    until: Place | None = None


class _Candidate(NamedTuple):
    """A task that a slot may get: the one with the smallest `key` first."""

    key: tuple[Any, ...]
    room_id: str
    seq: int
    turn: RoundPosition | None = None
    queue: LimitHead | None = None

    @property
    def place(self) -> Place:
        """Return the position of the task in its queue."""
        place: Place = self.key if self.turn is None else self.key[1]
        return place


class _JobCandidates(NamedTuple):
    """The next tasks of a job. `is_all`: no other room has a task of the job that may be claimed now."""

    candidates: deque[_Candidate]
    is_all: bool

    def is_all_before(self, until: Place | None) -> bool:
        """Return whether no other task may be claimed that comes before a position."""
        return self.is_all or (
            until is not None and any(candidate.place >= until for candidate in self.candidates)
        )


class VersionSlots:
    """The free slots of jobs with `max_in_flight` that have several versions: these share them."""

    def __init__(self) -> None:
        self._free: dict[UUID, int] = {}
        self._versions: dict[UUID, Sequence[UUID]] = {}
        self._reserved: Counter[UUID] = Counter()

    def __bool__(self) -> bool:
        return bool(self._versions)

    def add(self, versions: Sequence[UUID], free: int) -> None:
        """Let the versions of a job share its free slots."""
        self._free |= dict.fromkeys(versions, free)
        self._versions |= dict.fromkeys(versions, versions)

    def reset(self) -> None:
        """Return all slots, before other tasks are chosen."""
        self._reserved.clear()

    def reserve(self, job_id: UUID) -> None:
        """Reserve a slot for a task of a version."""
        self._reserved[job_id] += 1

    def has_free(self, job_id: UUID, reserved: Mapping[UUID, int] | None = None) -> bool:
        """Return whether a slot is free for a version beyond the reserved ones."""
        return job_id not in self._versions or (
            self._sum(job_id, self._reserved if reserved is None else reserved) < self._free[job_id]
        )

    def is_exceeded(self, job_id: UUID, pending: Mapping[UUID, int]) -> bool:
        """Return whether the versions of a job have more pending tasks than free slots."""
        return job_id in self._versions and self._sum(job_id, pending) > self._free[job_id]

    def _sum(self, job_id: UUID, numbers: Mapping[UUID, int]) -> int:
        return sum(numbers.get(version, 0) for version in self._versions[job_id])


async def free_slots(
    tx: Transaction,
    limits: Mapping[UUID, int],
    versions: Mapping[UUID, Sequence[UUID]] = MappingProxyType({}),
) -> dict[UUID, int]:
    """Return how many more tasks of each limited job may be held, of all `versions` that it has together.

    All jobs from which this transaction claims are locked, in order. No other transaction can claim from
    them until the commit, so the count stays true, and two such transactions cannot deadlock.
    """
    if not limits:
        return {}
    ids_of = {job_id: versions.get(job_id, [job_id]) for job_id in limits}
    held = await sql_tasks.held_of_jobs(tx, sorted({id_ for ids in ids_of.values() for id_ in ids}))
    return {
        job_id: max(0, limit - sum(held[id_] for id_ in ids_of[job_id])) for job_id, limit in limits.items()
    }


async def assign(
    tx: Transaction,
    slots: Sequence[ClaimSlot],
    demand: Mapping[UUID, int],
    order: ClaimOrder,
    limiter: Limiter | None = None,
    shared: VersionSlots | None = None,
) -> dict[int, TaskRecord]:
    """Choose the tasks of each slot by room, and set its `seqs`; return the locked tasks by `seq`.

    `limiter` has the limits of those jobs that have some, `shared` the slots of those with several versions.

    The jobs are locked, so that their claims run one after the other. If a slot gets no task, although
    another room may have one, it keeps its demand; then the caller repeats its claim.
    """
    turns: dict[UUID, list[tuple[int, RoundPosition]]] = {}

    async def choose(skipped: AbstractSet[int]) -> tuple[list[int], list[int]]:
        cap, spare = order.room_cap, len(skipped)
        by_job: dict[UUID, _JobCandidates] = {}
        # Queues that a limit refuses are blocked, and others are read.
        for factor in _LIMITED_FACTORS if limiter else (1,):
            by_job = await _find(tx, demand, order, skipped, limiter, factor)
            empty = [id_ for id_ in by_job if not (by_job[id_].candidates or (limiter and limiter.has(id_)))]
            if not skipped and await sql_room_queues.restore(tx, empty):
                by_job = await _find(tx, demand, order, skipped, limiter, factor)
            free = None if cap is None else await _lock_rooms(tx, by_job, demand, cap, spare)
            turns.clear()
            turns.update(
                _fill(slots, by_job, dict(demand), free, order, limiter, shared=shared or VersionSlots())
            )
            if limiter is None or not await limiter.block() or all(map(_is_filled, slots)):
                break
        seqs = [seq for slot in slots for seq in slot.seqs]
        return seqs, [candidate.seq for queue, _ in by_job.values() for candidate in islice(queue, spare)]

    is_small = has_few(slots)
    locked = await sql_claims.lock_chosen(tx, choose, bodies=is_small)
    if not is_small and locked:
        await fit(tx, slots, locked)
    await _write_turns(tx, turns, set(locked).difference(*[slot.seqs for slot in slots]))
    return locked


async def _write_turns(
    tx: Transaction, turns: Mapping[UUID, Sequence[tuple[int, RoundPosition]]], left_out: AbstractSet[int]
) -> None:
    for job_id, seqs in sorted(turns.items()):
        # A room whose task is left out keeps its turn.
        passed = list(takewhile(lambda entry: entry[0] not in left_out, seqs))
        if passed:
            await sql_jobs.set_turn(tx, job_id, passed[-1][1])


def _is_filled(slot: ClaimSlot) -> bool:
    return not slot.demand or len(slot.seqs) >= slot.task_limit


def has_few(slots: Sequence[ClaimSlot]) -> bool:
    """Return whether the payloads of the slots' tasks need no bound."""
    return are_few(slot.task_limit for slot in slots if slot.demand)


def are_few(numbers: Iterable[int]) -> bool:
    """Return whether claims of these numbers of tasks need no bound of their payloads."""
    counts = list(numbers)
    return len(counts) <= _FEW_SLOTS and sum(counts) - len(counts) <= _FEW


async def fit(tx: Transaction, slots: Sequence[ClaimSlot], locked: Mapping[int, TaskRecord]) -> None:
    """Load the payloads of the chosen tasks; leave out those beyond about 8 MiB in all.

    The first tasks of the slots are left out only beyond about 32 MiB.
    """
    sizes = await sql_claims.payload_sizes(tx, list(locked))
    free_bytes, free_bytes_of_firsts = MAX_PAYLOAD_BYTES, _MAX_FIRST_BYTES
    for slot in slots:
        locked_seqs = [seq for seq in slot.seqs if seq in locked]
        slot.seqs = []
        for seq in locked_seqs:
            free_bytes -= sizes[seq]
            if not slot.seqs:
                free_bytes_of_firsts -= sizes[seq]
                slot.is_left_out = free_bytes_of_firsts < 0
            if slot.is_left_out or (slot.seqs and free_bytes < 0):
                slot.is_cut = True
                break
            slot.seqs.append(seq)
    await sql_claims.load_payloads(tx, {seq: locked[seq] for slot in slots for seq in slot.seqs})


async def load_repeated(tx: Transaction, slots: Sequence[ClaimSlot], held: Mapping[int, TaskRecord]) -> None:
    """Load the payloads of tasks that the slots got before; leave out slots beyond about 32 MiB in all."""
    sizes = await sql_claims.payload_sizes(tx, list(held))
    free_bytes, is_first = _MAX_FIRST_BYTES, True
    for slot in slots:
        free_bytes -= sum(sizes[seq] for seq in slot.seqs)
        if slot.seqs and free_bytes < 0 and not is_first:
            slot.seqs, slot.is_left_out = [], True
        is_first = is_first and not slot.seqs
    await sql_claims.load_payloads(tx, {seq: held[seq] for slot in slots for seq in slot.seqs})


async def _find(
    tx: Transaction,
    demand: Mapping[UUID, int],
    order: ClaimOrder,
    skipped: AbstractSet[int],
    limiter: Limiter | None,
    factor: int,
) -> dict[UUID, _JobCandidates]:
    if limiter is not None:
        limiter.reset()
    find = _in_turn if order.is_fair else _in_order
    by_job = await find(tx, demand, order.open_rooms, skipped, limiter, factor)
    if skipped:  # another transaction may return them to their queues
        return {
            job_id: _JobCandidates(candidates, is_all=False) for job_id, (candidates, _) in by_job.items()
        }
    return by_job


def _fill(  # noqa: PLR0913 - what limits a claim
    slots: Sequence[ClaimSlot],
    by_job: Mapping[UUID, _JobCandidates],
    demand: dict[UUID, int],
    free: Counter[str] | None,
    order: ClaimOrder,
    limiter: Limiter | None,
    *,
    shared: VersionSlots,
) -> dict[UUID, list[tuple[int, RoundPosition]]]:
    """Set the tasks of each slot. Return the turns of their rooms, by job."""
    shared.reset()
    turns: dict[UUID, list[tuple[int, RoundPosition]]] = {}
    for slot in slots:
        slot.seqs = []
        open_jobs = [job_id for job_id in slot.demand if demand[job_id] and shared.has_free(job_id)]
        while len(slot.seqs) < slot.task_limit:
            open_queues = {job_id: by_job[job_id].candidates for job_id in open_jobs if demand[job_id]}
            choice = _choose(open_queues, free, limiter, slot.until)
            if choice is None:
                break
            job_id, candidate = choice
            slot.seqs.append(candidate.seq)
            demand[job_id] -= 1
            if shared:
                shared.reserve(job_id)
                open_jobs = list(filter(shared.has_free, open_jobs))
            if candidate.turn is not None:
                turns.setdefault(job_id, []).append((candidate.seq, candidate.turn))
        is_unlimited = order.open_rooms == OpenRooms() and limiter is None and slot.until is None
        if slot.seqs or not open_jobs or is_unlimited:
            continue
        if all(
            by_job[job_id].is_all_before(slot.until) or (limiter is not None and limiter.is_closed(job_id))
            for job_id in open_jobs
        ):
            is_limited = free is not None or (limiter is not None and any(map(limiter.has, open_jobs)))
            slot.refusal, slot.demand = EmptyReason.AT_CAPACITY if is_limited else EmptyReason.PAUSED, {}
    return turns


def _choose(
    queues: Mapping[UUID, deque[_Candidate]],
    free: Counter[str] | None,
    limiter: Limiter | None,
    until: Place | None,
) -> tuple[UUID, _Candidate] | None:
    """Remove and return the first candidate, of all queues, with a free slot in its room and its limits.

    With `until` it comes before this position.
    """
    first: UUID | None = None
    first_index = 0
    for job_id, queue in queues.items():
        while queue and not _is_allowed(queue[0], free, limiter):
            queue.popleft()
            if limiter is not None and limiter.is_closed(job_id):
                queue.clear()
        index = 0 if until is None else _index_before(queue, until, free, limiter)
        if index < len(queue) and (first is None or queue[index].key < queues[first][first_index].key):
            first, first_index = job_id, index
    if first is None:
        return None
    candidate = queues[first][first_index]
    del queues[first][first_index]
    if free is not None:
        free[candidate.room_id] -= 1
    if limiter is not None and candidate.queue is not None:
        limiter.take(candidate.queue)
    return first, candidate


def _index_before(
    queue: deque[_Candidate], until: Place, free: Counter[str] | None, limiter: Limiter | None
) -> int:
    """Return the index of the first candidate before a position; the length of the queue for none."""
    for index, candidate in enumerate(queue):
        if candidate.place < until and _is_allowed(candidate, free, limiter):
            return index
    return len(queue)


def _is_allowed(candidate: _Candidate, free: Counter[str] | None, limiter: Limiter | None) -> bool:
    if free is not None and free[candidate.room_id] <= 0:
        return False
    return limiter is None or candidate.queue is None or limiter.allows(candidate.queue)


async def _lock_rooms(
    tx: Transaction, by_job: dict[UUID, _JobCandidates], demand: Mapping[UUID, int], cap: int, spare: int
) -> Counter[str]:
    """Lock the rooms of the next candidates; return the number of free slots of each.

    Without the lock, claims of different jobs could both take a room's last slot. It skips locked rooms.
    """
    rooms: set[str] = set()
    for job_id, (candidates, is_all) in by_job.items():
        near = deque(islice(candidates, 2 * demand[job_id] + spare))
        if candidates and candidates[0].queue is not None:
            near = candidates  # the first ones may be beyond a limit
        by_job[job_id] = _JobCandidates(near, is_all and len(near) == len(candidates))
        rooms |= {candidate.room_id for candidate in near}
    locked = await sql_room_queues.lock_rooms(tx, sorted(rooms))
    if len(locked) < len(rooms):
        for job_id, (candidates, _) in by_job.items():
            by_job[job_id] = _JobCandidates(candidates, is_all=False)
    held = await sql_tasks.held_in_rooms(tx, locked)
    return Counter({room: cap - held[room] for room in locked})


async def _in_order(
    tx: Transaction,
    demand: Mapping[UUID, int],
    rooms: OpenRooms,
    skipped: AbstractSet[int],
    limiter: Limiter | None,
    factor: int,
) -> dict[UUID, _JobCandidates]:
    """Return the first tasks of each job by priority and age, without those of full and paused rooms."""
    await sql_jobs.lock(tx, demand)
    by_job: dict[UUID, _JobCandidates] = {}
    for job_id, count in demand.items():
        if limiter is not None and limiter.has(job_id):
            size = factor * (count + len(skipped) + _SPARE_ROOMS)
            heads = await sql_limits.by_place(tx, job_id, size, rooms)
            by_job[job_id] = await _first_of_limited(limiter, heads, size, count, skipped)
        else:
            by_job[job_id] = await _first_of(tx, job_id, count, rooms, skipped)
    return by_job


async def _first_of_limited(
    limiter: Limiter, heads: Sequence[LimitHead], size: int, count: int, skipped: AbstractSet[int]
) -> _JobCandidates:
    if not heads:
        return _JobCandidates(deque(), is_all=True)
    per_queue = _per_room(count, len(heads), None)
    tasks = await limiter.first_tasks(heads[0].job_id, heads, per_queue + len(skipped))
    # Tasks that were not read come after the last queue of this page and after a queue's last read task.
    ends = [heads[-1].place] if len(heads) == size else []
    ends += [places[-1] for places in tasks.values() if len(places) == per_queue + len(skipped)]
    end = min(ends, default=None)
    candidates = sorted(
        _Candidate(place, head.room_id, place[1], None, head)
        for head, places in tasks.items()
        for place in places
        if place[1] not in skipped and (end is None or place <= end)
    )
    return _JobCandidates(deque(candidates), is_all=end is None)


async def _first_of(
    tx: Transaction, job_id: UUID, count: int, rooms: OpenRooms, skipped: AbstractSet[int]
) -> _JobCandidates:
    cap = rooms.cap
    for size in _sizes(count + len(skipped)):
        rows = await sql_room_queues.by_place(tx, job_id, size, rooms)
        per_room = _per_room(count, len(rows), cap)
        tasks = await _heads(tx, job_id, [row.room_id for row in rows], per_room, skipped)
        firsts = [heads[0] for heads in tasks.values() if not skipped]
        await sql_room_queues.move(tx, job_id, sorted(set(firsts) - set(rows)))
        # Tasks that were not read come after the last room of this page and after a room's last read task.
        ends = [rows[-1].place] if len(rows) == size else []
        if per_room < min(count, cap or count):
            ends += [heads[-1].place for heads in tasks.values() if len(heads) == per_room]
        end = min(ends, default=None)
        near = [head for heads in tasks.values() for head in heads if end is None or head.place <= end]
        if end is None or len(near) >= count:
            break
    candidates = sorted(_Candidate(head.place, head.room_id, head.seq) for head in near)
    return _JobCandidates(deque(candidates), is_all=end is None)


async def _in_turn(
    tx: Transaction,
    demand: Mapping[UUID, int],
    rooms: OpenRooms,
    skipped: AbstractSet[int],
    limiter: Limiter | None,
    factor: int,
) -> dict[UUID, _JobCandidates]:
    """Return the tasks of the next rooms, room by room, without full and paused rooms.

    A job that had no claims for a while catches up by at most one round.
    """
    turns = {job_id: RoundPosition(*turn) for job_id, turn in (await sql_jobs.lock_turns(tx, demand)).items()}
    oldest = max(turn.round for turn in turns.values()) - 1
    by_job: dict[UUID, _JobCandidates] = {}
    for job_id, count in demand.items():
        last = turns[job_id]._replace(round=max(turns[job_id].round, oldest))
        if limiter is not None and limiter.has(job_id):
            size = factor * (count + len(skipped) + _SPARE_ROOMS)
            by_job[job_id] = await _next_of_limited(
                tx, limiter, job_id, count, last, size=size, open_rooms=rooms, skipped=skipped
            )
        else:
            by_job[job_id] = await _next_of(tx, job_id, count, last, rooms, skipped)
    return by_job


async def _next_of_limited(  # noqa: PLR0913 - what limits a claim
    tx: Transaction,
    limiter: Limiter,
    job_id: UUID,
    count: int,
    last: RoundPosition,
    *,
    size: int,
    open_rooms: OpenRooms,
    skipped: AbstractSet[int],
) -> _JobCandidates:
    after = await sql_limits.rooms(tx, job_id, last.room_id, size, open_rooms, is_after=True)
    before = []
    if len(after) < size:
        before = await sql_limits.rooms(tx, job_id, last.room_id, size, open_rooms, is_after=False)
    rooms = [*after, *before]
    if not rooms:
        return _JobCandidates(deque(), is_all=True)
    is_cut = size in (len(after), len(before))
    per_room = _per_room(count, len(rooms), open_rooms.cap) + len(skipped) + _SPARE_ROOMS
    heads = await sql_limits.of_rooms(tx, job_id, rooms, per_room)
    tasks = await limiter.first_tasks(job_id, heads, per_room)
    of_room: dict[str, list[tuple[Place, LimitHead]]] = {room_id: [] for room_id in rooms}
    for head, places in tasks.items():
        of_room[head.room_id] += [(place, head) for place in places if place[1] not in skipped]
    # A room has its second turn only after the first turns of all others.
    per_turn = 1 if is_cut else per_room
    candidates = [
        _Candidate((turn := RoundPosition(first + number, room_id), place), room_id, place[1], turn, head)
        for number in range(per_turn)
        for first, names in ((last.round, after), (last.round + 1, before))
        for room_id in names
        for place, head in sorted(of_room[room_id])[number : number + 1]
    ]
    is_all = not is_cut and all(len(places) < per_room for places in tasks.values())
    is_all = is_all and max(Counter(head.room_id for head in heads).values()) < per_room
    return _JobCandidates(deque(candidates), is_all)


async def _next_of(
    tx: Transaction,
    job_id: UUID,
    count: int,
    last: RoundPosition,
    open_rooms: OpenRooms,
    skipped: AbstractSet[int],
) -> _JobCandidates:
    for size in _sizes(count + len(skipped)):
        # Only the database compares names: its collation may differ from the order of Python.
        after = await sql_room_queues.after(tx, job_id, last.room_id, size, open_rooms)
        before = (
            []
            if len(after) == size
            else await sql_room_queues.until(tx, job_id, last.room_id, size, open_rooms)
        )
        is_cut = size in (len(after), len(before))
        # A room has its second turn only after the first turns of all others.
        per_room = 1 if is_cut else _per_room(count, len(after) + len(before), open_rooms.cap)
        tasks = await _heads(tx, job_id, [*after, *before], per_room, skipped)
        candidates = [
            _Candidate((turn := RoundPosition(first + number, room_id), head.place), room_id, head.seq, turn)
            for number in range(per_room)
            for first, rooms in ((last.round, after), (last.round + 1, before))
            for room_id in rooms
            for head in tasks.get(room_id, [])[number : number + 1]
        ]
        if not is_cut or len(candidates) >= count:
            break
    is_all = not is_cut and (per_room >= count or all(len(heads) < per_room for heads in tasks.values()))
    return _JobCandidates(deque(candidates), is_all)


async def _heads(
    tx: Transaction, job_id: UUID, rooms: Sequence[str], per_room: int, skipped: AbstractSet[int]
) -> dict[str, list[QueuedTask]]:
    """Return the first tasks of these rooms by room, and delete the rows of rooms without tasks."""
    tasks: dict[str, list[QueuedTask]] = {}
    for head in await sql_room_queues.heads(tx, job_id, rooms, per_room + len(skipped)) if rooms else []:
        tasks.setdefault(head.room_id, []).append(head)
    await sql_room_queues.remove(tx, job_id, [room for room in rooms if room not in tasks])
    near = {room: [head for head in heads if head.seq not in skipped] for room, heads in tasks.items()}
    return {
        room: sorted(heads, key=lambda head: head.place)[:per_room] for room, heads in near.items() if heads
    }


def _sizes(count: int) -> list[int]:
    """Return how many rooms to read for `count` tasks; a later value is used if rows were outdated."""
    return [times * (count + _SPARE_ROOMS) for times in (1, 8, 64)]


def _per_room(count: int, rooms: int, cap: int | None) -> int:
    """Return how many tasks of each room to read, so that `count` are found and the work is bounded."""
    return max(1, min(count, cap or count, _MAX_READ // max(rooms, 1)))
