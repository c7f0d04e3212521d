"""The events of watched rooms: watch a room, read a snapshot or what follows a position, delete old ones."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import EventRow
from zndraw_joblib.server.queue import rules_tasks, sql_counts, sql_streams
from zndraw_joblib.server.queue.rules_answers import status_event
from zndraw_joblib.server.queue.sql_streams import Bounds, Range, TooManyRooms, Watched
from zndraw_joblib.wire.history import Resync, ResyncReason, RoomSnapshot
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.problems import ProblemException, ServiceUnavailable, TooManyRequests
from zndraw_joblib.wire.statuses import TERMINAL

_PAGE = 500
_PAGE_BYTES = 256 * 1024
_SNAPSHOT_TASKS = 100
_LIMIT = "max_watched_rooms"


class Item(NamedTuple):
    """An event with its JSON, as clients get it."""

    n: int
    task_id: UUID
    kind: str
    json: str


class Part(NamedTuple):
    """What a client gets next. `next` is its position after that.

    `is_last`: nothing else was committed before it was read. `ended`: the task had ended by then.
    """

    events: Sequence[Item]
    next: int
    is_last: bool = True
    ended: bool = False
    snapshot: TaskResponse | RoomSnapshot | None = None
    resync: Resync | None = None


async def watch(tx: Transaction, room_id: str, wanted: Bounds, user: str | None = None) -> Watched:
    """Record the events of a room for a user from the commit on. Return the numbers of those that are kept.

    Raises `ServiceUnavailable` if too many other rooms are watched, `TooManyRequests` if the user's are.
    """
    try:
        return await sql_streams.watch(tx, room_id, wanted, user)
    except TooManyRooms as error:
        kind: type[ProblemException] = ServiceUnavailable
        count, limit = wanted.max_rooms, _LIMIT
        if error.is_share:
            kind, count, limit = TooManyRequests, wanted.max_share, f"max_share_per_user of {_LIMIT}"
        raise kind(
            f"The events of {count} other rooms are recorded already ({limit}); close streams that are not "
            f"needed, and retry {wanted.keep.total_seconds():g} s later (event_retention_seconds)",
            headers={"Retry-After": "60"},
        ) from error


async def transactions_under_way(tx: Transaction, longest: timedelta) -> set[str]:
    """Return the transactions that may not know yet which rooms are watched."""
    return await sql_streams.transactions_under_way(tx, longest)


async def new_events(tx: Transaction, room_id: str, after: int) -> list[Item]:
    """Return the next events of a room after a number: none, if it returned the last ones before."""
    return list(map(item_of, await sql_streams.after(tx, room_id, after, None, _PAGE, _PAGE_BYTES)))


async def read(tx: Transaction, room_id: str, task_id: UUID | None, after: int | None) -> Part:
    """Return a snapshot of a room or of one of its tasks, or the events after a position.

    All statements must see the same commits. Raises `TaskNotFound`.
    """
    kept = await sql_streams.kept(tx, room_id) or Range(0, 0)
    task = None if task_id is None else await rules_tasks.get(tx, task_id)
    has_ended = task is not None and task.status in TERMINAL
    resync = None
    if after is not None:
        if kept.first <= after <= kept.last:
            rows = await sql_streams.after(tx, room_id, after, task_id, _PAGE, _PAGE_BYTES)
            is_last = len(rows) < _PAGE and (not rows or await _is_last(tx, room_id, task_id, rows[-1].n))
            following = kept.last if is_last else rows[-1].n
            return Part(list(map(item_of, rows)), following, is_last, has_ended and is_last)
        reason = ResyncReason.UNKNOWN if after > kept.last else ResyncReason.PRUNED
        resync = Resync(reason=reason, after=after)
    snapshot = await _room_snapshot(tx, room_id) if task is None else task
    return Part([], kept.last, ended=has_ended, snapshot=snapshot, resync=resync)


async def _is_last(tx: Transaction, room_id: str, task_id: UUID | None, n: int) -> bool:
    return not await sql_streams.after(tx, room_id, n, task_id, 1, 1)


async def _room_snapshot(tx: Transaction, room_id: str) -> RoomSnapshot:
    tasks = [status_event(task) for task in await sql_streams.newest_tasks(tx, room_id, _SNAPSHOT_TASKS)]
    total = await sql_counts.total(tx, room_id, None)
    return RoomSnapshot.model_construct(tasks=tasks, total=total)


def item_of(row: EventRow) -> Item:
    """Return an event as clients get it."""
    head = f'{{"n":{row.n},"kind":"{row.kind}","task_id":"{row.task_id}","at":{_time(row.at)},"data":'
    return Item(row.n, row.task_id, row.kind, f"{head}{row.data}}}")


# The events of a transaction have the same time.
@lru_cache(maxsize=64)
def _time(at: datetime) -> str:
    return to_json(at).decode()
