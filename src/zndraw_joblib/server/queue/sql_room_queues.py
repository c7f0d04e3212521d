"""The queues of rooms: the rooms with tasks in a job's queue, and a bound of each room's first task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import INTEGER, TEXT, statement
from zndraw_joblib.server.queue.sql_jobs import QUEUE_NAME
from zndraw_joblib.server.queue.sql_jobs import lock as lock_jobs
from zndraw_joblib.server.queue.sql_pauses import is_room_paused
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_HELD, TASK_IS_QUEUED, Place, TaskRecord

_MAX_JOBS = 100
# Sorts before all rows.
FIRST = (UUID(int=0), "")
# Distinguishes the locks of rooms from those of other applications on the same database.
_LOCK_SEED = 4961402731120482811
_COLUMNS = ("job_id", "room_id", "lane", "seq")


class RoundPosition(NamedTuple):
    """The position of a room in fair scheduling: rooms take turns by name, round by round."""

    round: int
    room_id: str


class OpenRooms(NamedTuple):
    """The rooms whose tasks may be claimed: those that hold fewer than `cap` tasks, and have no pause."""

    cap: int | None = None
    skips_paused: bool = False


_ANY_ROOM = OpenRooms()


class QueuedTask(NamedTuple):
    """One of the first tasks of a room in the queue of a job."""

    room_id: str
    lane: int
    seq: int

    @property
    def place(self) -> Place:
        """Return the sort key of the task in its queue."""
        return self.lane, self.seq


def list_rooms(entered: str) -> str:
    """Return PostgreSQL's INSERT of the rows for tasks that enter their queues: `entered` selects the tasks.

    It does not write a row that is already a lower bound.
    """
    return f"""
    INSERT INTO joblib_room_queue (job_id, room_id, lane, seq)
    SELECT job_id, room_id, lane, seq
    FROM (
        SELECT job_id, room_id, min(lane) AS lane, min(seq) AS seq FROM {entered} GROUP BY job_id, room_id
    ) AS firsts
    WHERE NOT EXISTS (
        SELECT 1 FROM joblib_room_queue AS listed
        WHERE listed.job_id = firsts.job_id AND listed.room_id = firsts.room_id
            AND (listed.lane, listed.seq) <= (firsts.lane, firsts.seq)
    )
    ON CONFLICT (job_id, room_id) DO UPDATE SET lane = excluded.lane, seq = excluded.seq"""


async def add(tx: Transaction, entered: Sequence[TaskRecord]) -> set[UUID]:
    """Add the rows of tasks that enter their queues. Call it after the jobs' counts are written.

    Return which of their jobs have limits now.
    """
    rows = [{name: getattr(task, name) for name in _COLUMNS} for task in entered]
    if not rows:
        return set()
    if tx.is_sqlite:
        firsts: dict[Any, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: (row["lane"], row["seq"])):
            firsts.setdefault((row["job_id"], row["room_id"]), row)
        await tx.execute(_ADD_ON_SQLITE, list(firsts.values()))
        return {task.job_id for task in entered if task.policy.limits}
    return set((await tx.execute(_ADD_MANY, by_column(rows))).scalars())


async def last_seq(tx: Transaction) -> int:
    """Return the `seq` of the task that SQLite inserted last."""
    seq: int = (await tx.execute(_LAST_SEQ)).scalar_one()
    return seq


async def by_place(tx: Transaction, job_id: UUID, limit: int, open_rooms: OpenRooms) -> list[QueuedTask]:
    """Return the first rows of a job in the order of their places, without those of other rooms."""
    rows = await select_open(tx, _BY_PLACE, open_rooms, job_id=job_id, limit=limit)
    return [QueuedTask(*row) for row in rows]


async def after(tx: Transaction, job_id: UUID, last: str, limit: int, open_rooms: OpenRooms) -> list[str]:
    """Return the open rooms of a job that follow a name, in the database's order of names."""
    rows = await select_open(tx, _AFTER, open_rooms, job_id=job_id, room_id=last, limit=limit)
    return list(rows.scalars())


async def until(tx: Transaction, job_id: UUID, last: str, limit: int, open_rooms: OpenRooms) -> list[str]:
    """Return the open rooms of a job from the first name to this one, in the same order."""
    rows = await select_open(tx, _UNTIL, open_rooms, job_id=job_id, room_id=last, limit=limit)
    return list(rows.scalars())


async def select_open(
    tx: Transaction, selects: Mapping[tuple[bool, bool], Any], open_rooms: OpenRooms, **params: Any
) -> Any:
    """Run the one of these statements that selects from open rooms."""
    if open_rooms.cap is not None:
        params["cap"] = open_rooms.cap
    if open_rooms.skips_paused:
        params["now"] = await tx.now()
    return await tx.execute(selects[open_rooms.cap is not None, open_rooms.skips_paused], params)


async def heads(tx: Transaction, job_id: UUID, rooms: Sequence[str], count: int) -> list[QueuedTask]:
    """Return the first `count` tasks of each of these rooms in the queue of a job."""
    if tx.is_sqlite:
        params = {"job_id": job_id, "count": count, "rooms": to_json(rooms).decode()}
        rows = await tx.execute(_HEADS_ON_SQLITE, params)
    else:
        rows = await tx.execute(_HEADS, {"job_id": job_id, "count": count, "all_room_id": list(rooms)})
    return [QueuedTask(*row) for row in rows]


async def move(tx: Transaction, job_id: UUID, moved: Sequence[QueuedTask]) -> None:
    """Set the places of rows to the first tasks of their rooms. The caller has locked the job."""
    rows = [{"job_id": job_id, "room_id": room, "lane": lane, "seq": seq} for room, lane, seq in moved]
    if rows:
        await tx.execute(_MOVE, rows)


async def remove(tx: Transaction, job_id: UUID, rooms: Sequence[str]) -> None:
    """Delete the rows of rooms without queued tasks. The caller has locked the job."""
    if rooms:
        await tx.execute(_REMOVE, {"job_id": job_id, "all_room_id": padded(sorted(rooms))})


async def lock_rooms(tx: Transaction, rooms: Sequence[str]) -> list[str]:
    """Lock rooms before their held tasks are counted; skip locked rooms, and return the others.

    No transaction waits for a room, so the lock order does not include rooms.
    """
    if tx.is_sqlite or not rooms:
        return list(rooms)
    return list((await tx.execute(_LOCK_ROOMS, {"all_room_id": list(rooms)})).scalars())


async def jobs_queued_in(tx: Transaction, rooms: Sequence[str]) -> list[str]:
    """Return the names of queues that contain tasks of these rooms, at most a hundred."""
    return list((await tx.execute(_JOBS, {"all_room_id": padded(rooms)})).scalars())


async def find_empty(
    tx: Transaction, after: tuple[UUID, str], limit: int
) -> tuple[dict[UUID, list[str]], tuple[UUID, str]]:
    """Return the rooms without queued tasks, by job, among the `limit` rows that follow `after`.

    Also return the row to continue from: `FIRST` at the end. No row is locked.
    """
    params = {"job_id": after[0], "room_id": after[1], "limit": limit}
    rows = (await tx.execute(_FIND_EMPTY, params)).all()
    empty: dict[UUID, list[str]] = {}
    for job_id, room_id, is_filled in rows:
        if not is_filled:
            empty.setdefault(job_id, []).append(room_id)
    return empty, (rows[-1][0], rows[-1][1]) if len(rows) == limit else FIRST


async def prune(tx: Transaction, job_id: UUID, rooms: Sequence[str]) -> int:
    """Delete the rows of those of these rooms that have no queued tasks. Return how many.

    A job that another transaction has locked is skipped.
    """
    if not await lock_jobs(tx, [job_id], skip_locked=True):
        return 0
    filled = {head.room_id for head in await heads(tx, job_id, rooms, 1)}
    empty = [room for room in rooms if room not in filled]
    await remove(tx, job_id, empty)
    return len(empty)


async def restore_next(tx: Transaction, after: UUID) -> UUID | None:
    """Add the missing rows of the next job without all of them. Return its id, None at the end.

    A server of an earlier version, which may still run during an upgrade on PostgreSQL, adds no rows.
    """
    if tx.is_sqlite:
        return None
    job_id: UUID | None = (await tx.execute(_LOCK_NEXT, {"id": after})).scalar_one_or_none()
    if job_id is not None:
        await tx.execute(_RESTORE, {"job_id": job_id})
    return job_id


async def restore(tx: Transaction, job_ids: Iterable[UUID]) -> bool:
    """Add the rows of those of these jobs that have none. Return whether there are any.

    The caller has locked the jobs.
    """
    is_any = False
    for job_id in [] if tx.is_sqlite else job_ids:
        if not await by_place(tx, job_id, 1, _ANY_ROOM):
            await tx.execute(_RESTORE, {"job_id": job_id})
            is_any = is_any or bool(await by_place(tx, job_id, 1, _ANY_ROOM))
    return is_any


_ADD_ON_SQLITE = statement(
    """
INSERT INTO joblib_room_queue (job_id, room_id, lane, seq) VALUES (:job_id, :room_id, :lane, :seq)
ON CONFLICT (job_id, room_id) DO UPDATE SET lane = excluded.lane, seq = excluded.seq
WHERE (excluded.lane, excluded.seq) < (joblib_room_queue.lane, joblib_room_queue.seq)
"""
)
_ENTERED = """unnest((SELECT :all_job_id), (SELECT :all_room_id), (SELECT :all_lane), (SELECT :all_seq))
            AS entered (job_id, room_id, lane, seq)"""
_ADD_MANY = statement(
    f"""
WITH listed AS ({list_rooms(_ENTERED)}
)
SELECT id FROM joblib_job WHERE id = ANY (:all_job_id) AND limits IS NOT NULL
""",
    "id",
)
_RESTORE = statement(list_rooms(f"joblib_task WHERE job_id = :job_id AND {TASK_IS_QUEUED}"))
_LOCK_NEXT = statement(
    f"""
SELECT id FROM joblib_job
WHERE id > :id AND pending > 0 AND EXISTS (
    SELECT 1 FROM joblib_task
    WHERE joblib_task.job_id = joblib_job.id AND {TASK_IS_QUEUED} AND NOT EXISTS (
        SELECT 1 FROM joblib_room_queue AS listed
        WHERE listed.job_id = joblib_task.job_id AND listed.room_id = joblib_task.room_id
    )
)
ORDER BY id LIMIT 1
FOR NO KEY UPDATE
""",
    "id",
)
_LAST_SEQ = statement("SELECT last_insert_rowid()", "seq")
_FIND_EMPTY = statement(
    f"""
SELECT job_id, room_id, EXISTS (
    SELECT 1 FROM joblib_task
    WHERE joblib_task.job_id = joblib_room_queue.job_id AND joblib_task.room_id = joblib_room_queue.room_id
        AND {TASK_IS_QUEUED}
)
FROM joblib_room_queue
WHERE (job_id, room_id) > (:job_id, :room_id)
ORDER BY job_id, room_id LIMIT :limit
""",
    *("job_id", "room_id", "is_filled"),
)
_HAS_FREE_SLOT = f"""(
    SELECT count(*) FROM joblib_task WHERE joblib_task.room_id = joblib_room_queue.room_id AND {TASK_IS_HELD}
) < :cap"""


def _of_job(columns: str, condition: str, order: str) -> dict[tuple[bool, bool], Any]:
    """Return the statements by whether rooms have a limit, and whether some may be paused."""

    def of_rooms(*, has_cap: bool, skips_paused: bool) -> Any:
        conditions = [condition]
        if has_cap:
            conditions.append(_HAS_FREE_SLOT)
        if skips_paused:
            conditions.append(f"NOT {is_room_paused('joblib_room_queue.room_id', ':now')}")
        sql = f"""
SELECT {columns} FROM joblib_room_queue
WHERE job_id = :job_id AND {" AND ".join(conditions)}
ORDER BY {order} LIMIT :limit
"""
        return statement(sql, *columns.split(", "), cap=INTEGER)

    both = (True, False)
    return {(cap, paused): of_rooms(has_cap=cap, skips_paused=paused) for cap in both for paused in both}


_BY_PLACE = _of_job("room_id, lane, seq", "true", "lane, seq")
_AFTER = _of_job("room_id", "room_id > :room_id", "room_id")
_UNTIL = _of_job("room_id", "room_id <= :room_id", "room_id")


def _first_tasks(columns: str, room: str) -> str:
    # A range instead of an equality: with an equality SQLite may sort all tasks of the job in the room.
    return f"""(
    SELECT {columns} FROM joblib_task
    WHERE joblib_task.job_id = :job_id AND {TASK_IS_QUEUED}
        AND joblib_task.room_id >= {room} AND joblib_task.room_id <= {room}
    ORDER BY joblib_task.room_id, joblib_task.lane, joblib_task.seq LIMIT :count
)"""


_HEADS = statement(
    f"""
SELECT first_tasks.room_id, first_tasks.lane, first_tasks.seq
FROM unnest((SELECT :all_room_id)) AS rooms (room_id)
CROSS JOIN LATERAL {_first_tasks("room_id, lane, seq", "rooms.room_id")} AS first_tasks
""",
    *("room_id", "lane", "seq"),
)
_HEADS_ON_SQLITE = statement(
    f"""
SELECT first_tasks.room_id, first_tasks.lane, first_tasks.seq
FROM json_each(:rooms) AS rooms
JOIN joblib_task AS first_tasks ON first_tasks.seq IN {_first_tasks("seq", "rooms.value")}
""",
    *("room_id", "lane", "seq"),
    rooms=TEXT,
)
_MOVE = statement(
    "UPDATE joblib_room_queue SET lane = :lane, seq = :seq WHERE job_id = :job_id AND room_id = :room_id"
)
_REMOVE = statement("DELETE FROM joblib_room_queue WHERE job_id = :job_id AND room_id = ANY (:all_room_id)")
_LOCK_ROOMS = statement(
    f"""
SELECT room_id FROM unnest((SELECT :all_room_id)) AS rooms (room_id)
WHERE pg_try_advisory_xact_lock(hashtextextended(room_id, {_LOCK_SEED}))
""",
    "room_id",
)
_JOBS = statement(
    f"""
SELECT DISTINCT {QUEUE_NAME}
FROM joblib_room_queue JOIN joblib_job ON joblib_job.id = joblib_room_queue.job_id
WHERE joblib_room_queue.room_id = ANY (:all_room_id)
LIMIT {_MAX_JOBS}
""",
    "queue",
)
