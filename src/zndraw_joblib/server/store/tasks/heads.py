"""The heads of the queues: the first waiting task of each job and priority, and the oldest of each room."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Select, bindparam, func, literal_column, select

from zndraw_joblib.server.store.bulk import ONE, among, padded, places
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Job, QueueBlock, RoomQueue, Task
from zndraw_joblib.server.store.tasks.records import CHUNK, IS_PENDING, QUEUED

jobs = Job.__table__
tasks = Task.__table__
blocks = QueueBlock.__table__
queues = RoomQueue.__table__

# How many queues, one for each job and priority, are read for their first task: those with the oldest ones.
_MAX_QUEUES: ColumnElement[int] = literal_column("1000")
# How many of the first pending tasks of a room are read: scheduled ones may precede the first queued one.
_FIRST: ColumnElement[int] = literal_column("16")


class WaitingTask(NamedTuple):
    """The first task in a queue; `since` is when it entered the queue, `job` the name of its job."""

    id: UUID
    job_id: UUID
    job: str
    room_id: str
    created_at: datetime
    since: datetime


def _first(
    column: ColumnElement[Any], *wanted: tuple[ColumnElement[Any], ColumnElement[Any]]
) -> ColumnElement[Any]:
    """Select a column of the first queued task whose other columns have these values."""
    columns, values = zip(*wanted, strict=True)
    first = select(column).where(places(*columns, *values), QUEUED).order_by(*columns, tasks.c.seq).limit(ONE)
    return first.correlate_except(tasks).scalar_subquery()


def _heads(lanes: Select[Any]) -> Select[Any]:
    lane = lanes.subquery("lanes")
    first = _first(tasks.c.seq, (tasks.c.job_id, lane.c.job_id), (tasks.c.lane, lane.c.lane))
    return select(first).select_from(lane)


_LANES = select(blocks.c.job_id, blocks.c.lane).where(blocks.c.queued > 0)
_EACH = _LANES.group_by(blocks.c.job_id, blocks.c.lane)
_HEADS = _heads(_EACH.order_by(func.min(blocks.c.block)).limit(_MAX_QUEUES))
_HEADS_OF_JOBS = _heads(_EACH.where(among(blocks.c.job_id, bindparam("jobs"))))
_WAITING = select(
    *(tasks.c.id, tasks.c.job_id, jobs.c.full_name, tasks.c.room_id, tasks.c.created_at),
    func.coalesce(tasks.c.queued_at, tasks.c.created_at),
).join_from(tasks, jobs, jobs.c.id == tasks.c.job_id)
_rooms = select(queues.c.room_id).where(among(queues.c.room_id, bindparam("rooms"))).distinct().subquery()
_first_of_room = (
    select(tasks.c.created_at, tasks.c.run_at)
    .where(tasks.c.room_id == _rooms.c.room_id, IS_PENDING)
    .order_by(tasks.c.created_at, tasks.c.seq)
    .limit(_FIRST)
    .correlate_except(tasks)
    .subquery()
)
_OLDEST_OF_ROOMS = select(
    _rooms.c.room_id,
    select(func.min(_first_of_room.c.created_at))
    .where(_first_of_room.c.run_at.is_(None))
    .correlate(_rooms)
    .scalar_subquery(),
)
_lanes = _LANES.distinct().subquery("lanes")
_OLDEST_BY_QUEUE = (
    select(
        queues.c.room_id,
        _first(
            tasks.c.created_at,
            (tasks.c.job_id, queues.c.job_id),
            (tasks.c.room_id, queues.c.room_id),
            (tasks.c.lane, _lanes.c.lane),
        ),
    )
    .join_from(queues, _lanes, queues.c.job_id == _lanes.c.job_id)
    .where(among(queues.c.room_id, bindparam("rooms")))
)


async def of_queues(tx: Transaction, job_ids: Sequence[UUID] | None = None) -> list[WaitingTask]:
    """Return the first task of each queue, one for each priority: the oldest submitted one.

    Without jobs, those of the 1000 queues with the oldest tasks.
    """
    if job_ids is None:
        heads = await tx.execute(_HEADS)
    else:
        heads = await tx.execute(_HEADS_OF_JOBS, {"jobs": padded(job_ids)})
    known = [seq for seq in heads.scalars() if seq is not None]
    found: list[WaitingTask] = []
    for start in range(0, len(known), CHUNK):
        wanted = _WAITING.where(tasks.c.seq.in_(padded(known[start : start + CHUNK])))
        found += [WaitingTask(*row) for row in await tx.execute(wanted)]
    return found


async def oldest_of_rooms(tx: Transaction, room_ids: Sequence[str]) -> dict[str, datetime]:
    """Return when the oldest task of each room in any queue was created. Rooms without one are missing."""
    if not tx.is_sqlite:
        # A look at each queue is fast, and without statistics PostgreSQL would read the history of the room.
        return await oldest_by_queue(tx, room_ids)
    rows = list(await tx.execute(_OLDEST_OF_ROOMS, {"rooms": padded(room_ids)}))
    found: dict[str, datetime] = {room_id: at for room_id, at in rows if at is not None}
    # Rooms whose first tasks are all scheduled, or which have none.
    if others := [room_id for room_id, at in rows if at is None]:
        found |= await oldest_by_queue(tx, others)
    return found


async def oldest_by_queue(tx: Transaction, room_ids: Sequence[str]) -> dict[str, datetime]:
    """Return the same by one look for each queue, so that scheduled tasks are never read."""
    found: dict[str, datetime] = {}
    for room_id, at in await tx.execute(_OLDEST_BY_QUEUE, {"rooms": padded(room_ids)}):
        if at is not None:
            found[room_id] = min(at, found.get(room_id, at))
    return found
