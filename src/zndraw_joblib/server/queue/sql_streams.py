"""Watch rooms, and read and delete the events of watched rooms. `room_events` writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Integer,
    Interval,
    Select,
    String,
    Text,
    bindparam,
    column,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    table,
    update,
)

from zndraw_joblib.server.db import room_events
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.room_events import EventRow, events, streams
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue.sql_task_rows import ROW_NAMES, TaskRow, row_columns, row_of

tasks = Task.__table__

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


_NUMBERS = (streams.c.first_n, streams.c.last_n)
_KEEP = update(streams).where(streams.c.room_id == bindparam("room")).returning(*_NUMBERS)
_ROOMS = select(streams.c.room_id).limit(bindparam("most", type_=BigInteger()))
_COUNT = select(func.count()).select_from(_ROOMS.subquery())
_OF_USER = _ROOMS.where(streams.c.watched_by == bindparam("user"))
_COUNT_OF_USER = select(func.count()).select_from(_OF_USER.subquery())
_HAS_TASKS = select(exists().where(tasks.c.room_id == bindparam("room")))


async def watch(tx: Transaction, room_id: str, bounds: Bounds, user: str | None = None) -> Watched:
    """Record the events of a room for a user from the commit on, and for `keep` longer.

    A room without tasks is watched for 2 minutes at most. Raises `TooManyRooms`. The numbers of a new log
    begin at the current time in microseconds, so that no number of an earlier log, which was deleted, means
    another event.
    """
    now, keep = await tx.now(), bounds.keep
    if not (await tx.execute(_HAS_TASKS, {"room": room_id})).scalar_one():
        keep = min(keep, _KEEP_EMPTY)
    row = {"watched_until": now + keep, "max_events": bounds.max_events, "max_bytes": bounds.max_bytes}
    if user is not None:
        row["watched_by"] = user
    found = (await tx.execute(_KEEP.values(row), {"room": room_id})).first()
    if found is None:
        await _check_bounds(tx, bounds, user)
        first = (now - _EPOCH) // timedelta(microseconds=1)
        new = dialect(tx).insert(streams).values(**row, room_id=room_id, first_n=first, last_n=first, size=0)
        # Another server may have begun to watch the room meanwhile.
        added = new.on_conflict_do_update(index_elements=["room_id"], set_=row)
        found = (await tx.execute(added.returning(*_NUMBERS))).one()
    return Watched(found.first_n, found.last_n, keep)


async def _check_bounds(tx: Transaction, bounds: Bounds, user: str | None) -> None:
    if (await tx.execute(_COUNT, {"most": bounds.max_rooms})).scalar_one() >= bounds.max_rooms:
        raise TooManyRooms(is_share=False)
    params = {"most": bounds.max_share, "user": user}
    if user is not None and (await tx.execute(_COUNT_OF_USER, params)).scalar_one() >= bounds.max_share:
        raise TooManyRooms(is_share=True)


_locks = table(
    "pg_locks",
    *(column(name, String()) for name in ("locktype", "virtualtransaction")),
    *(column(name, Integer()) for name in ("pid", "relation", "database")),
)
_activity = table(
    "pg_stat_activity", column("pid", Integer()), column("backend_xid"), column("xact_start", UtcDateTime())
)
_databases = table("pg_database", column("oid", Integer()), column("datname", String()))
_IS_CURRENT = _databases.c.datname == func.current_database(type_=String())
_HOLDERS = (
    select(_locks.c.virtualtransaction)
    .select_from(_locks.outerjoin(_activity, _activity.c.pid == _locks.c.pid))
    .where(
        _locks.c.locktype == literal_column("'relation'"),
        _locks.c.database == select(_databases.c.oid).where(_IS_CURRENT).scalar_subquery(),
        _locks.c.relation == func.to_regclass(literal_column(f"'{streams.name}'"), type_=Integer()),
        _locks.c.pid != func.pg_backend_pid(type_=Integer()),
        or_(
            _activity.c.backend_xid.is_not(None),
            _activity.c.xact_start.is_(None),
            _activity.c.xact_start > func.clock_timestamp() - bindparam("longest", type_=Interval()),
        ),
    )
)


async def transactions_under_way(tx: Transaction, longest: timedelta) -> set[str]:
    """Return the transactions that have read or written which rooms are watched, and have not ended.

    A transaction locks the table before its statement sees a state of it, so those that do not know a room
    that was committed before this call are among them. Transactions that have run for longer than `longest`
    without a write are not of a server: a dump, for example. On SQLite there are none besides this one.
    """
    if tx.is_sqlite:
        return set()
    return set((await tx.execute(_HOLDERS, {"longest": longest})).scalars())


_RANGE = select(*_NUMBERS).where(streams.c.room_id == bindparam("room"))


async def kept(tx: Transaction, room_id: str) -> Range | None:
    """Return which events of a room are kept, None if it is not watched."""
    row = (await tx.execute(_RANGE, {"room": room_id})).first()
    return None if row is None else Range(*row)


def _page(*, is_of_task: bool) -> Select[Any]:
    conditions = [events.c.room_id == bindparam("room"), events.c.n > bindparam("after")]
    if is_of_task:
        conditions.append(events.c.task_id == bindparam("task"))
    before = (func.sum(events.c.size).over(order_by=events.c.n) - events.c.size).label("before")
    limit = bindparam("limit", type_=BigInteger())
    numbered = select(events, before).where(*conditions).order_by(events.c.n).limit(limit).subquery()
    columns = [numbered.c[name] for name in EventRow._fields]
    return select(*columns).where(numbered.c.before < bindparam("most")).order_by(numbered.c.n)


_PAGES = {is_of_task: _page(is_of_task=is_of_task) for is_of_task in (True, False)}


async def after(
    tx: Transaction, room_id: str, n: int, task_id: UUID | None, limit: int, max_bytes: int
) -> list[EventRow]:
    """Return the next events after a number: of a room, or of one of its tasks. At least one, if there is."""
    params = {"room": room_id, "after": n, "limit": limit, "most": max_bytes}
    if task_id is not None:
        params["task"] = task_id
    return [EventRow(*row) for row in await tx.execute(_PAGES[task_id is not None], params)]


_NEWEST = statement(
    f"""
SELECT {row_columns(job_name="joblib_job.full_name", payload="NULL", result="NULL")}
FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
WHERE joblib_task.room_id = :room_id
ORDER BY joblib_task.room_id, joblib_task.created_at DESC, joblib_task.seq DESC
LIMIT :limit
""",
    *ROW_NAMES,
)


async def newest_tasks(tx: Transaction, room_id: str, limit: int) -> list[TaskRow]:
    """Return the newest tasks of a room, newest first, without payload and result."""
    return [row_of(row) for row in await tx.execute(_NEWEST, {"room_id": room_id, "limit": limit})]


_OLDEST_AT = (
    select(events.c.at)
    .where(events.c.room_id == streams.c.room_id, events.c.n > streams.c.first_n)
    .order_by(events.c.n)
    .limit(1)
    .scalar_subquery()
)
_OVERDUE = (
    select(streams.c.room_id, streams.c.first_n, streams.c.last_n, streams.c.watched_until)
    .where(
        streams.c.room_id > bindparam("previous", type_=Text()),
        or_(streams.c.watched_until < bindparam("now"), bindparam("before") > _OLDEST_AT),
    )
    .order_by(streams.c.room_id)
    .limit(1)
    .with_for_update(skip_locked=True, of=streams)
)
_FIRST_EVENTS = (
    select(events.c.n, events.c.at)
    .where(events.c.room_id == bindparam("room"))
    .order_by(events.c.n)
    .limit(_PRUNED_ROWS)
    .subquery()
)
_OLD = select(func.count(), func.max(_FIRST_EVENTS.c.n)).where(_FIRST_EVENTS.c.at < bindparam("before"))
_DELETE_EVENTS = delete(events).where(events.c.room_id == bindparam("room"))
_DELETE = delete(streams).where(streams.c.room_id == bindparam("room"))


async def prune(tx: Transaction, before: datetime, after_room: str) -> tuple[int, str | None]:
    """Delete old events of the next room after one: all, if the room is no longer watched.

    Return the number of deleted rows, and that room; None if no further room has old events.
    """
    now = await tx.now()
    params = {"previous": after_room, "now": now, "before": before}
    row = (await tx.execute(_OVERDUE, params)).first()
    if row is None:
        return 0, None
    room = {"room": row.room_id}
    if row.watched_until < now:
        await tx.execute(_DELETE_EVENTS, room)
        await tx.execute(_DELETE, room)
        return 1 + row.last_n - row.first_n, row.room_id
    count, upto = (await tx.execute(_OLD, {**room, "before": before})).one()
    if count:
        await room_events.trim(tx.execute, row.room_id, upto)
    return count, row.room_id
