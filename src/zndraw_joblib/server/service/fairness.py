"""Choose which task each free slot gets, within the limits of jobs and rooms."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import EmptyReason
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tasks import Place, fetch, read

_NEVER = datetime.min.replace(tzinfo=UTC)


class ClaimOrder(NamedTuple):
    """The order in which tasks are claimed. `room_cap` limits how many tasks of a room may be held."""

    is_fair: bool = False
    room_cap: int | None = None

    @property
    def is_by_room(self) -> bool:
        """Whether the room of a task matters."""
        return self.is_fair or self.room_cap is not None


@dataclass(slots=True, kw_only=True)
class ClaimSlot:
    """Capacity for one task. `demand` is how many tasks of each job may be claimed now; `seq` the choice."""

    demand: dict[UUID, int]
    seq: int | None = None
    refusal: EmptyReason | None = None


@dataclass(slots=True)
class _RoomQueue:
    """The first tasks of one room in the queue of one job. `served` grows with every claim of the room."""

    job_id: UUID
    room_id: str
    places: deque[Place]
    served: tuple[int, datetime]


async def lock_rooms(tx: Transaction, order: ClaimOrder) -> None:
    """Wait until no other transaction counts the held tasks of rooms, before any job is locked."""
    if order.room_cap is not None:
        await fetch.lock_counts(tx)


async def free_slots(tx: Transaction, limits: Mapping[UUID, int], job_ids: Iterable[UUID]) -> dict[UUID, int]:
    """Return how many more tasks of each limited job may be held.

    All jobs from which this transaction claims are locked, in order. No other transaction can claim from
    them until the commit, so the count stays true, and two such transactions cannot deadlock.
    """
    if not limits:
        return {}
    await job_store.lock(tx, job_ids)
    held = await read.held_of_jobs(tx, list(limits))
    return {job_id: max(0, limit - held[job_id]) for job_id, limit in limits.items()}


async def assign(
    tx: Transaction, slots: Sequence[ClaimSlot], demand: Mapping[UUID, int], order: ClaimOrder
) -> None:
    """Choose a task for each slot by room, and set its `seq`."""
    queues = await _room_queues(tx, demand)
    held: Counter[str] = Counter()
    if order.room_cap is not None:
        held = await read.held_in_rooms(tx, sorted({queue.room_id for queue in queues}))
    left = dict(demand)
    for turn, slot in enumerate(slots, 1):
        open_queues = [q for q in queues if q.job_id in slot.demand and left[q.job_id] and q.places]
        free = [q for q in open_queues if order.room_cap is None or held[q.room_id] < order.room_cap]
        if not free:
            if open_queues:
                slot.refusal, slot.demand = EmptyReason.AT_CAPACITY, {}
            continue
        queue = min(free, key=lambda q: (q.served, q.places[0]) if order.is_fair else q.places[0])
        slot.seq = queue.places.popleft()[1]
        left[queue.job_id] -= 1
        held[queue.room_id] += 1
        queue.served = turn, _NEVER


async def _room_queues(tx: Transaction, demand: Mapping[UUID, int]) -> list[_RoomQueue]:
    queues: dict[tuple[UUID, str], _RoomQueue] = {}
    for job_id, count in demand.items():
        for head in await fetch.queue_heads(tx, job_id, count):
            new = _RoomQueue(job_id, head.room_id, deque(), (0, head.served_at or _NEVER))
            queues.setdefault((job_id, head.room_id), new).places.append((head.lane, head.seq))
    return list(queues.values())
