"""Watch rooms, and read and delete the events of watched rooms. `room_events` writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self
from uuid import UUID

from sqlalchemy import Interval

from zndraw_joblib.server.db import room_events
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import EventRow
from zndraw_joblib.server.db.statements import BIG_INTEGER, BOOLEAN, TEXT, one_row, statement
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue.sql_task_rows import ROW_NAMES, TaskRow, row_columns, row_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PRUNED_ROWS = 1000
# A room without tasks has no events to keep for those who read it later.
_KEEP_EMPTY = timedelta(minutes=2)


class Bounds(NamedTuple):
    """For how long a room stays watched, how many events and bytes are kept of it, and how many rooms are.

    `max_share` is how many rooms are watched for one user.
    """

    keep: timedelta
    max_events: int
    max_bytes: int
    max_rooms: int
    max_share: int

    @classmethod
    def of(cls, settings: JobLibSettings) -> Self:
        """Return the bounds that the settings set."""
        keep = timedelta(seconds=settings.event_retention_seconds)
        rooms = settings.max_watched_rooms
        share = settings.share_of(rooms)
        return cls(keep, settings.max_room_events, settings.max_room_event_bytes, rooms, share)


class TooManyRooms(Exception):
    """As many rooms are watched as may be: in all, or with `is_share` for one user."""

    def __init__(self, *, is_share: bool) -> None:
        super().__init__(is_share)
        self.is_share = is_share


class Watched(NamedTuple):
    """The events with the numbers after `first`, up to `last`, are kept. The room is watched for `keep`."""

    first: int
    last: int
    keep: timedelta


class Range(NamedTuple):
    """The events with the numbers after `first`, up to `last`, are kept."""

    first: int
    last: int


_NUMBERS = ("first_n", "last_n")
_KEEP = statement(
    """
UPDATE joblib_room_stream SET
    watched_until = CASE WHEN webhook_events IS NULL THEN :watched_until ELSE watched_until END,
    max_events = :max_events, max_bytes = :max_bytes,
    watched_by = coalesce(:watched_by, watched_by)
WHERE room_id = :room_id
RETURNING first_n, last_n
""",
    *_NUMBERS,
)
_COLUMNS = (
    *("room_id", "first_n", "last_n", "size", "max_events", "max_bytes", "watched_until", "watched_by"),
)
# Another server may have begun to watch the room meanwhile.
_ADD = statement(
    f"""
INSERT INTO joblib_room_stream {one_row(_COLUMNS)}
ON CONFLICT (room_id) DO UPDATE SET
    watched_until = CASE WHEN joblib_room_stream.webhook_events IS NULL THEN excluded.watched_until
        ELSE joblib_room_stream.watched_until END,
    max_events = excluded.max_events, max_bytes = excluded.max_bytes,
    watched_by = coalesce(excluded.watched_by, joblib_room_stream.watched_by)
RETURNING first_n, last_n
""",
    *_NUMBERS,
)
_COUNT, _COUNT_OF_USER = (
    statement(
        "SELECT count(*) FROM (SELECT room_id FROM joblib_room_stream "
        f"WHERE webhook_events IS NULL{condition} LIMIT :limit) AS watched",
        "number",
    )
    for condition in ("", " AND watched_by = :watched_by")
)
_HAS_TASKS = statement(
    "SELECT EXISTS (SELECT 1 FROM joblib_task WHERE room_id = :room_id)", "has_tasks", has_tasks=BOOLEAN
)
# Of PostgreSQL.
_HOLDERS = statement(
    """
SELECT pg_locks.virtualtransaction
FROM pg_locks LEFT JOIN pg_stat_activity ON pg_stat_activity.pid = pg_locks.pid
WHERE pg_locks.locktype = 'relation'
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND pg_locks.relation = to_regclass('joblib_room_stream')
    AND pg_locks.pid <> pg_backend_pid()
    AND (
        pg_stat_activity.backend_xid IS NOT NULL OR pg_stat_activity.xact_start IS NULL
        OR pg_stat_activity.xact_start > clock_timestamp() - :longest
    )
""",
    "virtualtransaction",
    longest=Interval(),
)
_RANGE = statement("SELECT first_n, last_n FROM joblib_room_stream WHERE room_id = :room_id", *_NUMBERS)
_PAGES = {
    is_of_task: statement(
        f"""
SELECT {", ".join(EventRow._fields)} FROM (
    SELECT {", ".join(EventRow._fields)}, sum(size) OVER (ORDER BY n) - size AS earlier_bytes
    FROM joblib_room_event
    WHERE room_id = :room_id AND n > :after{" AND task_id = :task_id" if is_of_task else ""}
    ORDER BY n LIMIT :limit
) AS numbered
WHERE earlier_bytes < :max_bytes ORDER BY n
""",
        *EventRow._fields,
        after=BIG_INTEGER,
        data=TEXT,
    )
    for is_of_task in (True, False)
}
_NEWEST = statement(
    f"""
SELECT {
        row_columns(
            job_name="joblib_job.full_name",
            job_version="joblib_job.job_version",
            payload="NULL",
            result="NULL",
        )
    }
FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
WHERE joblib_task.room_id = :room_id
ORDER BY joblib_task.room_id, joblib_task.created_at DESC, joblib_task.seq DESC
LIMIT :limit
""",
    *ROW_NAMES,
)
_OVERDUE = statement(
    """
SELECT room_id, first_n, last_n, watched_until FROM joblib_room_stream
WHERE room_id > :previous AND (watched_until < :now OR :before > (
    SELECT at FROM joblib_room_event
    WHERE joblib_room_event.room_id = joblib_room_stream.room_id AND n > joblib_room_stream.first_n
    ORDER BY n LIMIT 1
))
ORDER BY room_id LIMIT 1
FOR UPDATE OF joblib_room_stream SKIP LOCKED
""",
    *("room_id", "first_n", "last_n", "watched_until"),
    previous=TEXT,
    before=UtcDateTime(),
)
_OLD = statement(
    f"""
SELECT count(*), max(n) FROM (
    SELECT n, at FROM joblib_room_event WHERE room_id = :room_id ORDER BY n LIMIT {_PRUNED_ROWS}
) AS first_events
WHERE at < :before
""",
    *("count", "n"),
    before=UtcDateTime(),
)
_REMOVE = (
    statement("DELETE FROM joblib_room_event WHERE room_id = :room_id"),
    statement("DELETE FROM joblib_room_stream WHERE room_id = :room_id"),
)


async def watch(tx: Transaction, room_id: str, bounds: Bounds, user: str | None = None) -> Watched:
    """Record the events of a room for a user from the commit on, and for `keep` longer.

    A room without tasks is watched for 2 minutes at most. Raises `TooManyRooms`. The numbers of a new log
    begin at the current time in microseconds, so that no number of an earlier log, which was deleted, means
    another event.
    """
    now, keep = await tx.now(), bounds.keep
    if not (await tx.execute(_HAS_TASKS, {"room_id": room_id})).scalar_one():
        keep = min(keep, _KEEP_EMPTY)
    row: dict[str, Any] = {"room_id": room_id, "watched_until": now + keep, "watched_by": user}
    row |= {"max_events": bounds.max_events, "max_bytes": bounds.max_bytes}
    numbers = (await tx.execute(_KEEP, row)).first()
    if numbers is None:
        await _check_bounds(tx, bounds, user)
        first = (now - _EPOCH) // timedelta(microseconds=1)
        numbers = (await tx.execute(_ADD, {**row, "first_n": first, "last_n": first, "size": 0})).one()
    return Watched(numbers.first_n, numbers.last_n, keep)


async def _check_bounds(tx: Transaction, bounds: Bounds, user: str | None) -> None:
    if (await tx.execute(_COUNT, {"limit": bounds.max_rooms})).scalar_one() >= bounds.max_rooms:
        raise TooManyRooms(is_share=False)
    params = {"limit": bounds.max_share, "watched_by": user}
    if user is not None and (await tx.execute(_COUNT_OF_USER, params)).scalar_one() >= bounds.max_share:
        raise TooManyRooms(is_share=True)


# A room with webhooks is watched until it has none. Servers of an earlier schema know no other sign.
_HOOKED_UNTIL = datetime(9999, 1, 1, tzinfo=UTC)
_SET_HOOKS = statement(
    """
UPDATE joblib_room_stream SET webhook_events = :webhook_events,
    watched_until = CASE WHEN :webhook_events IS NULL THEN :watched_until ELSE :hooked_until END
WHERE room_id = :room_id
""",
    hooked_until=UtcDateTime(),
)
_LOCK_ROOM = statement(
    f"""
INSERT INTO joblib_room_stream {one_row(_COLUMNS)}
ON CONFLICT (room_id) DO UPDATE SET room_id = excluded.room_id
"""
)


async def lock_for_webhooks(tx: Transaction, room_id: str, settings: JobLibSettings) -> None:
    """Lock the row of a room, before its webhooks; make it if the room is not watched."""
    now, bounds = await tx.now(), Bounds.of(settings)
    first = (now - _EPOCH) // timedelta(microseconds=1)
    row = {"room_id": room_id, "watched_until": now, "watched_by": None, "first_n": first, "last_n": first}
    await tx.execute(
        _LOCK_ROOM, {**row, "size": 0, "max_events": bounds.max_events, "max_bytes": bounds.max_bytes}
    )


async def set_webhook_events(tx: Transaction, room_id: str, events: str | None, keep: timedelta) -> None:
    """Set which events the webhooks of a locked room want; None for a room without one."""
    times = {"watched_until": await tx.now() + keep, "hooked_until": _HOOKED_UNTIL}
    await tx.execute(_SET_HOOKS, {"room_id": room_id, "webhook_events": events, **times})


async def transactions_under_way(tx: Transaction, longest: timedelta) -> set[str]:
    """Return the transactions that have read or written which rooms are watched, and have not ended.

    A transaction locks the table before its statement sees a state of it, so those that do not know a room
    that was committed before this call are among them. Transactions that have run for longer than `longest`
    without a write are not of a server: a dump, for example. On SQLite there are none besides this one.
    """
    if tx.is_sqlite:
        return set()
    return set((await tx.execute(_HOLDERS, {"longest": longest})).scalars())


async def kept(tx: Transaction, room_id: str) -> Range | None:
    """Return which events of a room are kept, None if it is not watched."""
    row = (await tx.execute(_RANGE, {"room_id": room_id})).first()
    return None if row is None else Range(*row)


async def after(
    tx: Transaction, room_id: str, n: int, task_id: UUID | None, limit: int, max_bytes: int
) -> list[EventRow]:
    """Return the next events after a number: of a room, or of one of its tasks. At least one, if there is."""
    params = {"room_id": room_id, "after": n, "limit": limit, "max_bytes": max_bytes, "task_id": task_id}
    return [EventRow(*row) for row in await tx.execute(_PAGES[task_id is not None], params)]


async def newest_tasks(tx: Transaction, room_id: str, limit: int) -> list[TaskRow]:
    """Return the newest tasks of a room, newest first, without payload and result."""
    return [row_of(row) for row in await tx.execute(_NEWEST, {"room_id": room_id, "limit": limit})]


async def prune(tx: Transaction, before: datetime, after_room: str) -> tuple[int, str | None]:
    """Delete old events of the next room after one: all, if the room is no longer watched.

    Return the number of deleted rows, and that room; None if no further room has old events.
    """
    now = await tx.now()
    params = {"previous": after_room, "now": now, "before": before}
    row = (await tx.execute(_OVERDUE, params)).first()
    if row is None:
        return 0, None
    room = {"room_id": row.room_id}
    if row.watched_until < now:
        for removes in _REMOVE:
            await tx.execute(removes, room)
        return 1 + row.last_n - row.first_n, row.room_id
    count, upto = (await tx.execute(_OLD, {**room, "before": before})).one()
    if count:
        await room_events.trim(tx.execute, row.room_id, upto)
    return count, row.room_id
