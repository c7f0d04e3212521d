"""All rooms by id, for operators: those that have tasks or active jobs."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, String, bindparam, func, literal_column, select, union

from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Job, RoomCount

jobs = Job.__table__
kept = RoomCount.__table__


async def page(tx: Transaction, after: str, limit: int) -> list[str]:
    """Return the rooms that follow a room in the database's order of names."""
    return list((await tx.execute(_PAGE, {"after": after, "limit": limit})).scalars())


async def job_counts(tx: Transaction, room_ids: Sequence[str]) -> dict[str, int]:
    """Return how many active jobs each room has; a room without one is missing."""
    return {room_id: number for room_id, number in await tx.execute(_JOBS, {"rooms": padded(room_ids)})}


def _following(rooms: Select[Any]) -> Select[Any]:
    [column] = rooms.selected_columns
    found = rooms.where(column > bindparam("after", type_=String())).distinct().order_by(column)
    return select(found.limit(bindparam("limit")).subquery())


_PAGE = (
    union(_following(select(kept.c.room_id)), _following(select(jobs.c.room_id).where(~jobs.c.deleted)))
    .order_by(literal_column("1"))
    .limit(bindparam("limit"))
)
_JOBS = (
    select(jobs.c.room_id, func.count())
    .where(among(jobs.c.room_id, bindparam("rooms")), ~jobs.c.deleted)
    .group_by(jobs.c.room_id)
)
