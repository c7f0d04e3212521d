"""Pauses of rooms and of the whole queue, and the conditions that a job or a room is paused.

A pause ends at its `until`, whether or not its row is still there: all conditions compare it with the time.
"""

from datetime import datetime
from typing import NamedTuple

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import statement

# The id of the row that pauses all rooms.
ALL_ROOMS = ""


class PauseRecord(NamedTuple):
    """The pause of a room, or of all rooms."""

    room_id: str
    until: datetime | None
    paused_at: datetime
    paused_by: str


class Pauses(NamedTuple):
    """The paused rooms, whether all are, and when the first of these pauses ends."""

    rooms: frozenset[str] = frozenset()
    is_all: bool = False
    until: datetime | None = None

    def has(self, room_id: str) -> bool:
        """Return whether a room is paused."""
        return self.is_all or room_id in self.rooms


NO_PAUSES = Pauses()


def is_job_paused(now: str, table: str = "") -> str:
    """Return the SQL condition that a job, a row of `table`, is paused at a time."""
    return f"({table}paused AND coalesce({table}paused_until > {now}, true))"


def may_be_paused(room: str) -> str:
    """Return the SQL condition that a room, one in a column, has a pause, which may be over."""
    return f"EXISTS (SELECT 1 FROM joblib_pause WHERE joblib_pause.room_id IN ('{ALL_ROOMS}', {room}))"


def is_room_paused(room: str, now: str) -> str:
    """Return the SQL condition that a room is paused at a time."""
    return f"""EXISTS (
        SELECT 1 FROM joblib_pause
        WHERE joblib_pause.room_id IN ('{ALL_ROOMS}', {room}) AND coalesce(joblib_pause.until > {now}, true)
    )"""


HAS_PAUSES = "EXISTS (SELECT 1 FROM joblib_pause)"
_COLUMNS = PauseRecord._fields
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM joblib_pause"
_IS_ACTIVE = "coalesce(until > :now, true)"
_PUT = statement(
    f"""
INSERT INTO joblib_pause ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)})
ON CONFLICT (room_id) DO UPDATE SET
    until = excluded.until, paused_at = excluded.paused_at, paused_by = excluded.paused_by
"""
)
_DELETE = statement("DELETE FROM joblib_pause WHERE room_id = :room_id RETURNING room_id", "room_id")
_ACTIVE = statement(f"SELECT room_id, until FROM joblib_pause WHERE {_IS_ACTIVE}", *("room_id", "until"))
_OF_ROOMS = statement(
    f"{_SELECT} WHERE room_id = ANY (:all_room_id) AND {_IS_ACTIVE} ORDER BY room_id", *_COLUMNS
)
_FIRST = statement(f"{_SELECT} WHERE {_IS_ACTIVE} ORDER BY room_id LIMIT :limit", *_COLUMNS)
_COUNT = statement(
    f"SELECT count(*) FROM joblib_pause WHERE room_id <> '{ALL_ROOMS}' AND {_IS_ACTIVE}", "number"
)
_DELETE_OVER = statement("DELETE FROM joblib_pause WHERE until <= :now RETURNING room_id", "room_id")
_NEXT_END = statement("SELECT min(until) FROM joblib_pause", "until")


async def put(tx: Transaction, pause: PauseRecord) -> None:
    """Pause a room, or replace its pause."""
    await tx.execute(_PUT, pause._asdict())


async def delete(tx: Transaction, room_id: str) -> bool:
    """End the pause of a room. Return whether it had one."""
    return (await tx.execute(_DELETE, {"room_id": room_id})).first() is not None


async def active(tx: Transaction) -> Pauses:
    """Return the pauses of this moment."""
    rows = (await tx.execute(_ACTIVE, {"now": await tx.now()})).all()
    rooms = frozenset(row.room_id for row in rows)
    until = min((row.until for row in rows if row.until is not None), default=None)
    return Pauses(rooms - {ALL_ROOMS}, ALL_ROOMS in rooms, until)


async def of_room(tx: Transaction, room_id: str) -> list[PauseRecord]:
    """Return the pauses that concern a room: first that of all rooms, then its own."""
    params = {"all_room_id": padded([ALL_ROOMS, room_id]), "now": await tx.now()}
    return [PauseRecord(*row) for row in await tx.execute(_OF_ROOMS, params)]


async def first(tx: Transaction, limit: int) -> list[PauseRecord]:
    """Return the first pauses by room; that of all rooms comes first."""
    rows = await tx.execute(_FIRST, {"limit": limit, "now": await tx.now()})
    return [PauseRecord(*row) for row in rows]


async def count(tx: Transaction) -> int:
    """Return how many rooms are paused by themselves."""
    return int((await tx.execute(_COUNT, {"now": await tx.now()})).scalar_one())


async def delete_over(tx: Transaction) -> list[str]:
    """Delete the pauses that are over. Return their rooms."""
    return list((await tx.execute(_DELETE_OVER, {"now": await tx.now()})).scalars())


async def next_end(tx: Transaction) -> datetime | None:
    """Return when the first pause ends; None if none does by itself."""
    until: datetime | None = (await tx.execute(_NEXT_END)).scalar_one()
    return until
