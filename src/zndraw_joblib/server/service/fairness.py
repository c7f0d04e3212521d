"""Which room's task goes next, where rooms take turns or may have only so many tasks under way."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from zndraw_joblib.contract.messages import EmptyReason
from zndraw_joblib.server.store import fairness as store
from zndraw_joblib.server.store.database import Transaction

_NEVER = datetime.min.replace(tzinfo=UTC)


class ClaimOrder(NamedTuple):
    """In which order tasks are claimed. `is_fair`: rooms take turns. `room_cap`: tasks of a room at once."""

    is_fair: bool = False
    room_cap: int | None = None

    @property
    def is_by_room(self) -> bool:
        """Whether rooms make a difference."""
        return self.is_fair or self.room_cap is not None


class ClaimSlot(Protocol):
    """Somebody who may have one task of these jobs."""

    waiting: dict[UUID, int]
    seq: int | None
    refusal: EmptyReason | None


@dataclass(slots=True)
class _Line:
    """The first tasks of one room in the queue of one job, and when the room had its last turn."""

    job_id: UUID
    room_id: str
    places: deque[tuple[int, int]]
    turn: tuple[int, datetime]


async def assign(
    tx: Transaction, askers: Sequence[ClaimSlot], demand: Mapping[UUID, int], order: ClaimOrder
) -> None:
    """Choose a task for each asker, by its `seq`, or none."""
    if order.room_cap is not None:
        await store.lock_room_counts(tx)
    lines = await _lines(tx, demand)
    rooms = sorted({line.room_id for line in lines})
    held: Counter[str] = await store.count_held_in(tx, rooms) if order.room_cap is not None else Counter()
    left = dict(demand)
    for turn, asker in enumerate(askers, 1):
        mine = [line for line in lines if line.job_id in asker.waiting and left[line.job_id] and line.places]
        free = [line for line in mine if order.room_cap is None or held[line.room_id] < order.room_cap]
        if not free:
            if mine:
                asker.refusal, asker.waiting = EmptyReason.AT_CAPACITY, {}
            continue
        line = min(free, key=lambda one: (one.turn, one.places[0]) if order.is_fair else one.places[0])
        asker.seq = line.places.popleft()[1]
        left[line.job_id] -= 1
        held[line.room_id] += 1
        line.turn = turn, _NEVER


async def _lines(tx: Transaction, demand: Mapping[UUID, int]) -> list[_Line]:
    lines: dict[tuple[UUID, str], _Line] = {}
    for job_id, count in demand.items():
        for head in await store.heads(tx, job_id, count):
            new = _Line(job_id, head.room_id, deque(), (0, head.served or _NEVER))
            lines.setdefault((job_id, head.room_id), new).places.append((head.lane, head.seq))
    return list(lines.values())
