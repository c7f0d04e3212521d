"""Append events to the logs of watched rooms, before the commit of the transaction that caused them.

Only watched rooms have a row in `joblib_room_stream`. On PostgreSQL the statements that write tasks return
`is_watched(room)`, so that other rooms cost no statement; a statement that is a transaction of its own has
``NOT is_watched(room)`` as a guard and writes nothing in a watched room: its other form, without the guard,
is used while there are events. A client that begins to watch a room
waits for the transactions that have read this table before (`streams.transactions_under_way`).
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, delete, func, select, update

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.column_types import sqlite_text
from zndraw_joblib.server.db.statements import TEXT, one_row, statement
from zndraw_joblib.server.db.tables import RoomEvent, RoomStream

streams = RoomStream.__table__
events = RoomEvent.__table__
Execute = Callable[..., Awaitable[Any]]

# The oldest events are deleted together, once the log exceeds a limit by a tenth.
_SLACK = 1.1


class NewEvent(NamedTuple):
    """An event of a task, with data as JSON."""

    room_id: str
    task_id: UUID
    kind: str
    data: str


class Appended(NamedTuple):
    """The stored events of watched rooms, and which rooms have webhooks."""

    rows: dict[str, list["EventRow"]]
    hooked: list[str]


class EventRow(NamedTuple):
    """A stored event; `data` is JSON."""

    n: int
    task_id: UUID
    at: datetime
    kind: str
    data: str


def is_watched(room: str) -> str:
    """Return the SQL condition that a room is watched: one in a column, or in ``ANY (…)`` of an array."""
    return f"EXISTS (SELECT 1 FROM joblib_room_stream WHERE joblib_room_stream.room_id = {room})"


_LIMITS = ("room_id", "first_n", "last_n", "size", "max_events", "max_bytes", "webhook_events")
_FIRST = select(streams.c.room_id).limit(1)
_LOCK = (
    select(streams)
    .where(among(streams.c.room_id, bindparam("rooms")))
    .order_by(streams.c.room_id)
    .with_for_update(key_share=True)
)
_COUNT = (
    update(streams)
    .where(streams.c.room_id == bindparam("room"))
    .values(last_n=bindparam("new_last"), size=bindparam("new_size"))
)
# Values as SQLite stores them: to convert those of each event costs more than to insert it.
_ADD = statement(
    f"INSERT INTO joblib_room_event {one_row(('room_id', 'n', 'task_id', 'at', 'kind', 'data', 'size'))}",
    **{name: TEXT for name in ("task_id", "at", "data")},
)
_SIZES = select(events.c.n, func.sum(events.c.size).over(order_by=events.c.n.desc()).label("newer"))
_SIZES_OF_ROOM = _SIZES.where(events.c.room_id == bindparam("room")).subquery()
_OVERSIZED = select(func.max(_SIZES_OF_ROOM.c.n)).where(_SIZES_OF_ROOM.c.newer > bindparam("most"))
_OLD = (events.c.room_id == bindparam("room"), events.c.n <= bindparam("upto"))
_DELETE = delete(events).where(*_OLD)
_DELETED_SIZE = select(func.coalesce(func.sum(events.c.size), 0)).where(*_OLD)
_TRIM = (
    update(streams)
    .where(streams.c.room_id == bindparam("room"))
    .values(first_n=bindparam("upto"), size=streams.c.size - bindparam("freed"))
)
# It locks the rooms in their order, and numbers the events by the newest versions of their rows.
_APPEND = statement(
    f"""
WITH locked AS (
    SELECT room_id, last_n FROM joblib_room_stream WHERE room_id = ANY (:all_room_id)
    ORDER BY room_id
    FOR NO KEY UPDATE
), added AS (
    SELECT locked.room_id, task_id, kind, data, octet_length(data) AS size,
        locked.last_n + row_number() OVER (PARTITION BY new.room_id ORDER BY position) AS n
    FROM unnest({", ".join(f"(SELECT :all_{name})" for name in NewEvent._fields)})
        WITH ORDINALITY AS new ({", ".join(NewEvent._fields)}, position)
    JOIN locked ON locked.room_id = new.room_id
), inserted AS (
    INSERT INTO joblib_room_event (room_id, n, task_id, at, kind, data, size)
    SELECT room_id, n, task_id, :at, kind, data, size FROM added
)
UPDATE joblib_room_stream SET last_n = last_n + sums.number, size = joblib_room_stream.size + sums.size
FROM (SELECT room_id, count(*) AS number, sum(size) AS size FROM added GROUP BY room_id) AS sums
WHERE joblib_room_stream.room_id = sums.room_id
RETURNING {", ".join(f"joblib_room_stream.{name}" for name in _LIMITS)}
""",
    *_LIMITS,
    data=TEXT,
)


async def is_any_watched(execute: Execute) -> bool:
    """Return whether any room is watched."""
    return (await execute(_FIRST)).first() is not None


async def append(execute: Execute, new: Sequence[NewEvent], at: datetime, *, is_sqlite: bool) -> Appended:
    """Number and store the events of watched rooms among these.

    The rooms stay locked until the commit, in the order of their ids.
    """
    if not is_sqlite:
        return await _append_on_postgresql(execute, new, at)
    rooms = sorted({event.room_id for event in new})
    watched = {row.room_id: row for row in await execute(_LOCK, {"rooms": padded(rooms)})}
    if not watched:
        return Appended({}, [])
    appended: dict[str, list[EventRow]] = {room_id: [] for room_id in watched}
    last = {room_id: row.last_n for room_id, row in watched.items()}
    size = {room_id: row.size for room_id, row in watched.items()}
    rows, stored_at = [], sqlite_text(at)
    for room_id, task_id, kind, data in new:
        if room_id in watched:
            last[room_id] += 1
            n, length = last[room_id], len(data.encode())
            size[room_id] += length
            appended[room_id].append(EventRow(n, task_id, at, kind, data))
            rows.append(
                {
                    "room_id": room_id,
                    "n": n,
                    "task_id": task_id.hex,
                    "at": stored_at,
                    "kind": kind,
                    "data": data,
                    "size": length,
                }
            )
    counted = [{"room": room, "new_last": last[room], "new_size": size[room]} for room in watched]
    await execute(_COUNT, counted)
    await execute(_ADD, rows)
    for room_id, row in watched.items():
        await _trim_if_full(execute, row, last[room_id], size[room_id])
    return Appended(appended, _hooked(watched.values()))


async def _append_on_postgresql(execute: Execute, new: Sequence[NewEvent], at: datetime) -> Appended:
    columns = zip(NewEvent._fields, zip(*new, strict=True), strict=True)
    params = {f"all_{name}": list(values) for name, values in columns}
    rows = (await execute(_APPEND, {**params, "at": at})).all()
    events_of: dict[str, list[NewEvent]] = {row.room_id: [] for row in rows}
    for event in new:
        if event.room_id in events_of:
            events_of[event.room_id].append(event)
    appended = {}
    for row in rows:
        added = events_of[row.room_id]
        first = row.last_n - len(added) + 1
        appended[row.room_id] = [
            EventRow(n, event.task_id, at, event.kind, event.data) for n, event in enumerate(added, first)
        ]
        await _trim_if_full(execute, row, row.last_n, row.size)
    return Appended(appended, _hooked(rows))


def _hooked(rows: Iterable[Any]) -> list[str]:
    return [row.room_id for row in rows if row.webhook_events is not None]


async def _trim_if_full(execute: Execute, row: Any, last: int, size: int) -> None:
    if last - row.first_n > row.max_events * _SLACK or size > row.max_bytes * _SLACK:
        await _drop_oldest(execute, row, last)


async def _drop_oldest(execute: Execute, row: Any, last: int) -> None:
    """Delete the events of a room beyond its limits."""
    params = {"room": row.room_id, "most": row.max_bytes}
    oversized = (await execute(_OVERSIZED, params)).scalar_one()
    await trim(execute, row.room_id, max(last - row.max_events, oversized or 0, row.first_n))


async def trim(execute: Execute, room_id: str, upto: int) -> int:
    """Delete the events of a locked room with the numbers up to `upto`. Return how many bytes they had."""
    params = {"room": room_id, "upto": upto}
    freed: int = (await execute(_DELETED_SIZE, params)).scalar_one()
    await execute(_DELETE, params)
    await execute(_TRIM, {**params, "freed": freed})
    return freed
