"""The queues of jobs room by room, without walking the whole of a backlog."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, bindparam, func, literal, select, text, tuple_, union_all

from zndraw_joblib.server.store.bulk import arrays
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.expiry import count_held, in_rooms
from zndraw_joblib.server.store.fetch import BRANCHES
from zndraw_joblib.server.store.tables import Attempt, Task
from zndraw_joblib.server.store.tasks import QUEUED

tasks = Task.__table__
_before = tasks.alias("before")
_attempts = Attempt.__table__

# Whoever counts the tasks of rooms does so alone: two at once would both find the last free place.
_ALONE = text("SELECT pg_advisory_xact_lock(4961402731120482811)")


class Head(NamedTuple):
    """One of the first tasks of a room in the queue of a job. `served`: when the room had its last turn."""

    room_id: str
    lane: int
    seq: int
    served: datetime | None


async def lock_room_counts(tx: Transaction) -> None:
    """Wait until nobody else counts what is under way in rooms."""
    if not tx.is_sqlite:
        await tx.execute(_ALONE)


async def count_held_in(tx: Transaction, rooms: Sequence[str]) -> Counter[Any]:
    """Count the tasks of rooms that are under way."""
    return await count_held(tx, in_rooms(rooms), "room_id") if rooms else Counter()


async def heads(tx: Transaction, job_id: UUID, count: int) -> list[Head]:
    """Return the first tasks of each room in the queue of a job, `count` of a room at most."""
    rooms = [room for room in (await tx.execute(_ROOMS, {"job": job_id})).scalars() if room is not None]
    if not rooms:
        return []
    if not tx.is_sqlite:
        given = {"job": job_id, "count": count, "all_room": rooms}
        return [Head(*row) for row in await tx.execute(_HEADS, given)]
    found: list[Head] = []
    branches = [select(_heads_of(literal(job_id), literal(room), count).subquery()) for room in rooms]
    for start in range(0, len(branches), BRANCHES):
        found += [Head(*row) for row in await tx.execute(union_all(*branches[start : start + BRANCHES]))]
    return found


def _heads_of(job_id: Any, room: Any, count: Any) -> Select[Any]:
    # Within a room tasks go mostly in the order they came in: the one before the head had the last turn, or
    # the head itself had it, if it came back. Of one that came back its last attempt tells when.
    earlier = select(func.max(_attempts.c.claimed_at)).where(_attempts.c.task_seq == _before.c.seq)
    served = (
        select(func.coalesce(_before.c.claimed_at, earlier.scalar_subquery()))
        .where(
            _before.c.job_id == tasks.c.job_id,
            _before.c.room_id == tasks.c.room_id,
            tuple_(_before.c.created_at, _before.c.seq) <= tuple_(tasks.c.created_at, tasks.c.seq),
            _before.c.attempt > 0,
        )
        .order_by(_before.c.created_at.desc(), _before.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    head = select(tasks.c.room_id, tasks.c.lane, tasks.c.seq, served.label("served"))
    head = head.where(tasks.c.job_id == job_id, tasks.c.room_id == room, QUEUED)
    return head.order_by(tasks.c.lane, tasks.c.seq).limit(count)


def _rooms_of(job_id: Any) -> Select[Any]:
    """Jump from one room of a queue to the next, along the index."""
    mine = (tasks.c.job_id == job_id, QUEUED)
    rooms = select(func.min(tasks.c.room_id).label("room_id")).where(*mine).cte("rooms", recursive=True)
    following = select(func.min(tasks.c.room_id)).where(*mine, tasks.c.room_id > rooms.c.room_id)
    rooms = rooms.union_all(
        select(following.correlate(rooms).scalar_subquery()).where(rooms.c.room_id.is_not(None))
    )
    return select(rooms.c.room_id)


_JOB = bindparam("job", type_=tasks.c.job_id.type)
_ROOMS = _rooms_of(_JOB)
_GIVEN = arrays({"room": tasks.c.room_id.type})
_HEADS = select(_heads_of(_JOB, _GIVEN.c.room, bindparam("count")).lateral()).select_from(_GIVEN)
