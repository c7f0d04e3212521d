"""Schedules, and the tasks that they have submitted."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import check_listed, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import INTEGER, statement
from zndraw_joblib.server.queue.sql_pauses import is_room_paused
from zndraw_joblib.wire.names import JobName, split_name
from zndraw_joblib.wire.schedules import ScheduleResponse, ScheduleTimes
from zndraw_joblib.wire.statuses import TaskStatus


@lru_cache(maxsize=1024)
def times_of(spec: str) -> ScheduleTimes:
    """Return the times of a schedule from the text in its column `spec`."""
    return ScheduleTimes.model_validate_json(spec)


class ScheduleRecord(NamedTuple):
    """A schedule's row."""

    id: UUID
    room_id: str
    name: str
    owner_id: str
    job_name: str
    spec: str
    paused: bool
    created_at: datetime
    updated_at: datetime
    anchor_at: datetime
    next_due_at: datetime | None
    last_due_at: datetime | None
    last_task_id: UUID | None
    error: str | None
    error_at: datetime | None
    masked: str | None = None

    @property
    def times(self) -> ScheduleTimes:
        """When it is due, and how its tasks are submitted."""
        return times_of(self.spec)

    @property
    def job(self) -> JobName:
        """The name of its job."""
        return split_name(self.job_name)

    def shown(self) -> dict[str, Any]:
        """Return the fields of a `ScheduleResponse`."""
        values = {**self._asdict(), "created_by": self.owner_id, "job": self.job_name, **dict(self.times)}
        return {name: value for name, value in values.items() if name in ScheduleResponse.model_fields}


class LiveTasks(NamedTuple):
    """How many tasks of a schedule have not ended, up to 2, and how many of them wait."""

    number: int
    waiting: int


class FailedRun(NamedTuple):
    """A schedule whose last task failed, with the error code of the task."""

    room_id: str
    name: str
    job_name: str
    task_id: UUID
    error_code: str | None
    failed_at: datetime


# Of so many schedules, those that were due last, an overview reads the last tasks.
_RAN = 500
COLUMNS = ScheduleRecord._fields
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM joblib_schedule"
_OF_NAME = "WHERE room_id = :room_id AND name = :name"
_GET = statement(f"{_SELECT} {_OF_NAME}", *COLUMNS)
_LOCK_NAMED = statement(f"{_SELECT} {_OF_NAME}\nFOR UPDATE", *COLUMNS)
_ADD = statement(
    f"""
INSERT INTO joblib_schedule ({", ".join(COLUMNS)})
VALUES ({", ".join(f":{name}" for name in COLUMNS)})
ON CONFLICT DO NOTHING
RETURNING id
""",
    "id",
)
_REPLACE = statement(
    f"UPDATE joblib_schedule SET {', '.join(f'{name} = :{name}' for name in COLUMNS[3:])} WHERE id = :id"
)
_DELETE = statement(f"DELETE FROM joblib_schedule {_OF_NAME} RETURNING id", "id")
_PAUSE = statement(
    f"""
UPDATE joblib_schedule SET paused = :paused, updated_at = :now {_OF_NAME}
RETURNING {", ".join(COLUMNS)}
""",
    *COLUMNS,
)
_PAGE = statement(f"{_SELECT} WHERE room_id = :room_id ORDER BY name LIMIT :limit OFFSET :offset", *COLUMNS)
_LISTED_BYTES = statement(
    """
SELECT coalesce(sum(octet_length(spec)), 0) FROM (
    SELECT spec FROM joblib_schedule WHERE room_id = :room_id ORDER BY name LIMIT :limit OFFSET :offset
) AS listed
""",
    "size",
)
_COUNT = statement("SELECT count(*) FROM joblib_schedule WHERE room_id = :room_id", "number")
# Those of a paused room are due when its pause ends.
_WAITS = f"""next_due_at IS NOT NULL AND NOT paused
    AND NOT {is_room_paused("joblib_schedule.room_id", ":now")}"""
_DUE = statement(
    f"{_SELECT} WHERE {_WAITS} AND next_due_at <= :now ORDER BY next_due_at LIMIT :limit", *COLUMNS
)
_NEXT = statement(
    f"SELECT next_due_at FROM joblib_schedule WHERE {_WAITS} ORDER BY next_due_at LIMIT 1", "next_due_at"
)
_FAILING = statement(
    f"{_SELECT} WHERE error IS NOT NULL AND NOT paused ORDER BY error_at DESC LIMIT :limit", *COLUMNS
)
_RAN_LAST, _RAN_IN_ROOM = (
    statement(
        f"""
SELECT room_id, name, job_name, last_task_id FROM joblib_schedule
WHERE {condition} last_task_id IS NOT NULL AND NOT paused ORDER BY {order} LIMIT :limit
""",
        *("room_id", "name", "job_name", "last_task_id"),
    )
    for condition, order in (("", "last_due_at DESC"), ("room_id = :room_id AND", "name"))
)
_FAILING_IN_ROOM = statement(
    f"""
{_SELECT} WHERE room_id = :room_id AND error IS NOT NULL AND NOT paused ORDER BY name LIMIT :limit
""",
    *COLUMNS,
)
# By nothing but their ids: PostgreSQL would read the failed tasks of a long history otherwise.
_ENDS = statement(
    "SELECT id, error_code, completed_at, status FROM joblib_task WHERE id = ANY (:all_id)",
    *("id", "error_code", "completed_at", "status"),
)
_LOCK_FREE = statement(f"{_SELECT} WHERE id = ANY (:all_id) ORDER BY id\nFOR UPDATE SKIP LOCKED", *COLUMNS)
_ADVANCE = statement(
    """
UPDATE joblib_schedule SET next_due_at = :next_due_at, last_due_at = :last_due_at,
    last_task_id = :last_task_id, error = :error, error_at = :error_at
WHERE id = :id
"""
)
# SQLite finds them by the index only if the condition is that of the index.
_LIVE_OF = """SELECT 1 FROM joblib_task WHERE joblib_task.room_id = joblib_schedule.room_id
            AND joblib_task.schedule = joblib_schedule.name
            AND schedule IS NOT NULL AND joblib_task.completed_at IS NULL"""
_LIVE = statement(
    f"""
SELECT id,
    (SELECT count(*) FROM ({_LIVE_OF} LIMIT 2) AS live) AS number,
    (SELECT count(*) FROM (
        {_LIVE_OF} AND joblib_task.status = '{TaskStatus.PENDING}' LIMIT 1
    ) AS waiting) AS waiting
FROM joblib_schedule WHERE id = ANY (:all_id)
""",
    *("id", "number", "waiting"),
    number=INTEGER,
    waiting=INTEGER,
)
_SUBMITTED = statement(
    """
SELECT joblib_schedule.id, joblib_task.due_at
FROM joblib_schedule JOIN joblib_task
    ON joblib_task.room_id = joblib_schedule.room_id AND joblib_task.schedule = joblib_schedule.name
WHERE joblib_schedule.id = ANY (:all_id) AND joblib_task.schedule IS NOT NULL
    AND joblib_task.due_at >= joblib_schedule.next_due_at
""",
    *("id", "due_at"),
)


async def get(tx: Transaction, room_id: str, name: str, *, lock: bool = False) -> ScheduleRecord | None:
    """Return a schedule, with `lock` locked until the commit."""
    row = (await tx.execute(_LOCK_NAMED if lock else _GET, {"room_id": room_id, "name": name})).first()
    return None if row is None else ScheduleRecord(*row)


async def add(tx: Transaction, schedule: ScheduleRecord) -> bool:
    """Insert a schedule. Return whether its room had none of this name."""
    return (await tx.execute(_ADD, schedule._asdict())).first() is not None


async def replace(tx: Transaction, schedule: ScheduleRecord) -> None:
    """Replace a schedule, which is locked."""
    await tx.execute(_REPLACE, schedule._asdict())


async def delete(tx: Transaction, room_id: str, name: str) -> bool:
    """Delete a schedule. Return whether there was one."""
    return (await tx.execute(_DELETE, {"room_id": room_id, "name": name})).first() is not None


async def pause(tx: Transaction, room_id: str, name: str, *, paused: bool) -> ScheduleRecord | None:
    """Pause or resume a schedule. Return its new state."""
    params = {"room_id": room_id, "name": name, "paused": paused, "now": await tx.now()}
    row = (await tx.execute(_PAUSE, params)).first()
    return None if row is None else ScheduleRecord(*row)


async def page(tx: Transaction, room_id: str, limit: int, offset: int) -> tuple[list[ScheduleRecord], int]:
    """Return one page of a room's schedules by name, and the count of all. Raises `ContentTooLarge`."""
    params = {"room_id": room_id, "limit": limit, "offset": offset}
    check_listed((await tx.execute(_LISTED_BYTES, params)).scalar_one(), limit)
    rows = (await tx.execute(_PAGE, params)).all()
    return [ScheduleRecord(*row) for row in rows], await count(tx, room_id)


async def count(tx: Transaction, room_id: str) -> int:
    """Return how many schedules a room has."""
    number: int = (await tx.execute(_COUNT, {"room_id": room_id})).scalar_one()
    return number


async def due(tx: Transaction, limit: int) -> list[ScheduleRecord]:
    """Return schedules that are due, the longest due first."""
    rows = await tx.execute(_DUE, {"now": await tx.now(), "limit": limit})
    return [ScheduleRecord(*row) for row in rows]


async def next_due(tx: Transaction) -> datetime | None:
    """Return when the next schedule is due."""
    moment: datetime | None = (await tx.execute(_NEXT, {"now": await tx.now()})).scalar_one_or_none()
    return moment


async def failing(tx: Transaction, limit: int, room_id: str | None = None) -> list[ScheduleRecord]:
    """Return schedules whose last due time has no task: the latest first, or those of a room by name."""
    query = _FAILING if room_id is None else _FAILING_IN_ROOM
    return [ScheduleRecord(*row) for row in await tx.execute(query, {"limit": limit, "room_id": room_id})]


async def failed_runs(tx: Transaction, limit: int, room_id: str | None = None) -> list[FailedRun]:
    """Return schedules whose last task failed, the latest first.

    It looks at the 500 schedules that were due last, or at the first 500 of a room; not at paused ones.
    """
    query = _RAN_LAST if room_id is None else _RAN_IN_ROOM
    ran = {row.last_task_id: row for row in await tx.execute(query, {"limit": _RAN, "room_id": room_id})}
    if not ran:
        return []
    rows = (await tx.execute(_ENDS, {"all_id": padded(sorted(ran))})).all()
    failed = [FailedRun(*ran[row.id], *row[1:3]) for row in rows if row.status == TaskStatus.FAILED]
    return sorted(failed, key=lambda run: run.failed_at, reverse=True)[:limit]


async def lock_free(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, ScheduleRecord]:
    """Lock schedules until the commit, without those that another transaction has locked."""
    rows = await tx.execute(_LOCK_FREE, {"all_id": padded(sorted(set(ids)))})
    return {row.id: ScheduleRecord(*row) for row in rows}


async def advance(tx: Transaction, schedules: Sequence[ScheduleRecord]) -> None:
    """Write when schedules are due next, and what became of the last due time."""
    names = ("id", "next_due_at", "last_due_at", "last_task_id", "error", "error_at")
    rows = [{name: getattr(schedule, name) for name in names} for schedule in schedules]
    if rows:
        await tx.execute(_ADVANCE, rows)


async def live_tasks(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, LiveTasks]:
    """Return how many tasks of each schedule have not ended."""
    if not ids:
        return {}
    rows = await tx.execute(_LIVE, {"all_id": padded(ids)})
    return {schedule_id: LiveTasks(number, waiting) for schedule_id, number, waiting in rows}


async def submitted(tx: Transaction, ids: Sequence[UUID]) -> set[tuple[UUID, datetime]]:
    """Return the due times from the next one on for which schedules have tasks already."""
    return {(row.id, row.due_at) for row in await tx.execute(_SUBMITTED, {"all_id": padded(ids)})}
