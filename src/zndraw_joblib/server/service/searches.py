"""Search tasks across rooms, and count them by status."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from zndraw_joblib.contract.problems import InvalidRequest
from zndraw_joblib.contract.searches import FoundTask, FoundTasks, StatusCounts, TaskFilter
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import CursorPage
from zndraw_joblib.server.service import cursors
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import searches as store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.searches import Budget, Filter, FoundRow, Place

_KIND, _KIND_OF_ROOMS = "tasks", "tasks of rooms"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


async def find(
    tx: Transaction, wanted: TaskFilter, page: CursorPage, budget: Budget | None = None
) -> FoundTasks:
    """Return the tasks that match a filter, newest first, after a cursor.

    Once the budget is spent, `next` of the response reads on. Raises `InvalidRequest` for a wrong cursor.
    """
    after = None if page.cursor is None else _place(page.cursor, is_by_time=bool(wanted.room))
    resolved = await resolve(tx, wanted)
    if resolved is None:
        return FoundTasks(items=[])
    part = await store.find(tx, resolved, after, page.limit, budget)
    following = None if part.after is None else _cursor(part.after, is_by_time=bool(wanted.room))
    return FoundTasks(items=await entries(tx, part.rows), next=following)


async def resolve(tx: Transaction, wanted: TaskFilter) -> Filter | None:
    """Return a filter with the ids of its jobs; None if no task can match."""
    job_ids = await store.job_ids(tx, sorted(set(wanted.job))) if wanted.job else []
    if wanted.job and not job_ids:
        return None
    return Filter(
        statuses=frozenset(wanted.status),
        jobs=job_ids,
        rooms=sorted(set(wanted.room)),
        worker=wanted.worker,
        created_by=wanted.created_by,
        error_codes=sorted(set(wanted.error_code)),
        text=wanted.text,
        since=wanted.since,
        until=wanted.until,
    )


async def entries(tx: Transaction, rows: Sequence[FoundRow]) -> list[FoundTask]:
    """Return found tasks as responses contain them."""
    names = await job_store.full_names(tx, {row.job_id for row in rows}) if rows else {}
    return [_entry(row, names[row.job_id]) for row in rows]


def _entry(row: FoundRow, job_name: str) -> FoundTask:
    fields = row._asdict()
    for name in ("seq", "job_id", "lane", "unstarted"):
        del fields[name]
    fields |= {
        "job_name": job_name,
        "attempts": row.attempts,
        "status": TaskStatus(row.status),
        "priority": -row.lane,
    }
    return FoundTask.model_construct(**fields)


def _place(cursor: str, *, is_by_time: bool) -> Place:
    if not is_by_time:
        return Place(*cursors.decode(_KIND, cursor, [int]))
    seq, microseconds = cursors.decode(_KIND_OF_ROOMS, cursor, [int, int])
    try:
        return Place(seq, _EPOCH + microseconds * _MICROSECOND)
    except OverflowError as error:
        raise InvalidRequest("query.cursor: it has a time that no task has") from error


def _cursor(place: Place, *, is_by_time: bool) -> str:
    if not is_by_time or place.at is None:
        return cursors.encode(_KIND, place.seq)
    return cursors.encode(_KIND_OF_ROOMS, place.seq, (place.at - _EPOCH) // _MICROSECOND)


async def count(tx: Transaction, rooms: Sequence[str]) -> StatusCounts:
    """Return how many tasks of some rooms, or of all, have each status, from kept counts."""
    found = await store.count(tx, sorted(set(rooms)))
    return StatusCounts(**{status.value: number for status, number in found.items()})
