"""Counts that the writers of tasks keep: of rooms by job and status, and of blocks of a queue.

A reader sums few rows instead of counting tasks. Held tasks are few; they are counted when they are read. The
last part reads the first tasks of queues and rooms.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import CTE

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, INTEGER, TEXT, UUID_TYPE, as_sql, statement
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    TASK_IS_HELD,
    TASK_IS_PENDING,
    TASK_IS_QUEUED,
    TaskRecord,
    TaskRow,
    of_status,
)
from zndraw_joblib.wire.statuses import HELD, StatusCounts, TaskStatus

# 4,096 tasks are a block: a million queued tasks are 245 rows, and a rank in a block takes 0.5 ms.
BLOCK_BITS = 12
# The part of the transactions that delete tasks, and the number of parts that other writers share.
PRUNED = -1
_PARTS = 4
_writers = count()
_COLUMN_OF = {TaskStatus.PENDING: 1, TaskStatus.FAILED: 2, TaskStatus.CANCELLED: 3}
_ROOM_COLUMNS = ("room_id", "job_id", "part", "total", "pending", "failed", "cancelled")
_BLOCK_COLUMNS = ("job_id", "lane", "block", "queued")
# The ends of an INSERT that adds its counts to those of rows that exist.
ADD_TO_ROOM = """ON CONFLICT (room_id, job_id, part) DO UPDATE SET
        total = joblib_room_count.total + excluded.total,
        pending = joblib_room_count.pending + excluded.pending,
        failed = joblib_room_count.failed + excluded.failed,
        cancelled = joblib_room_count.cancelled + excluded.cancelled"""
ADD_TO_BLOCK = """ON CONFLICT (job_id, lane, block) DO UPDATE SET
        queued = joblib_queue_block.queued + excluded.queued"""
# Parts of statements for PostgreSQL. The jobs are locked.
# They count the new tasks that `added` returns: `job_id`, `room_id`, `lane`, `seq`, `status` and `run_at`.
COUNT_ADDED = f"""
counted_rooms AS (
    INSERT INTO joblib_room_count (room_id, job_id, part, total, pending, failed, cancelled)
    SELECT room_id, job_id, 0, count(*),
        count(*) FILTER (WHERE status = '{TaskStatus.PENDING}'),
        count(*) FILTER (WHERE status = '{TaskStatus.FAILED}'),
        count(*) FILTER (WHERE status = '{TaskStatus.CANCELLED}')
    FROM added GROUP BY room_id, job_id
    {ADD_TO_ROOM}
),
counted_blocks AS (
    INSERT INTO joblib_queue_block (job_id, lane, block, queued)
    SELECT job_id, lane, seq >> {BLOCK_BITS}, count(*)
    FROM added WHERE status = '{TaskStatus.PENDING}' AND run_at IS NULL
    GROUP BY job_id, lane, seq >> {BLOCK_BITS}
    {ADD_TO_BLOCK}
)"""


def _count_claimed(number: str, by_room: str = "", by_block: str = "") -> str:
    return f"""
counted_rooms AS (
    INSERT INTO joblib_room_count (room_id, job_id, part, total, pending, failed, cancelled)
    SELECT room_id, job_id, 0, 0, -{number}, 0, 0
    FROM claimed {by_room}
    {ADD_TO_ROOM}
),
counted_blocks AS (
    INSERT INTO joblib_queue_block (job_id, lane, block, queued)
    SELECT job_id, lane, seq >> {BLOCK_BITS}, -{number}
    FROM claimed {by_block}
    {ADD_TO_BLOCK}
)"""


# It counts the only task that `added` returns, which is in its queue.
COUNT_ADDED_ONE = f"""
counted_rooms AS (
    INSERT INTO joblib_room_count (room_id, job_id, part, total, pending, failed, cancelled)
    SELECT room_id, job_id, 0, 1, 1, 0, 0 FROM added
    {ADD_TO_ROOM}
),
counted_blocks AS (
    INSERT INTO joblib_queue_block (job_id, lane, block, queued)
    SELECT job_id, lane, seq >> {BLOCK_BITS}, 1 FROM added
    {ADD_TO_BLOCK}
)"""
# They count the tasks of one job that `claimed` returns, which left its queue: all, or the only one.
COUNT_CLAIMED = _count_claimed(
    "count(*)", "GROUP BY room_id, job_id", f"GROUP BY job_id, lane, seq >> {BLOCK_BITS}"
)
COUNT_CLAIMED_ONE = _count_claimed("1")


class CountChanges:
    """By how much the counts change, added up for each row."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, UUID], list[int]] = {}
        self._blocks: dict[tuple[UUID, int, int], int] = {}

    def enter(self, task: TaskRecord) -> None:
        """Count a new task."""
        counts = self._rooms.setdefault((task.room_id, task.job_id), [0, 0, 0, 0])
        counts[0] += 1
        if task.status in _COLUMN_OF:
            counts[_COLUMN_OF[task.status]] += 1
        if task.is_queued:
            self._count_queued(task, 1)

    def move(self, before: TaskRecord, after: TaskRecord) -> None:
        """Count a task that changes its status or its `run_at`."""
        if before.status != after.status:
            old, new = _COLUMN_OF.get(before.status), _COLUMN_OF.get(after.status)
            if old is not None or new is not None:
                counts = self._rooms.setdefault((after.room_id, after.job_id), [0, 0, 0, 0])
                if old is not None:
                    counts[old] -= 1
                if new is not None:
                    counts[new] += 1
        if before.is_queued != after.is_queued:
            self._count_queued(after, 1 if after.is_queued else -1)

    def leave(self, task: TaskRecord) -> None:
        """Count a pending task that leaves for another version of its job."""
        self.delete(task.room_id, task.job_id, task.status)
        if task.is_queued:
            self._count_queued(task, -1)

    def fail_held(self, room_id: str, job_id: UUID) -> None:
        """Count a held task that fails."""
        self._rooms.setdefault((room_id, job_id), [0, 0, 0, 0])[_COLUMN_OF[TaskStatus.FAILED]] += 1

    def delete(self, room_id: str, job_id: UUID, status: TaskStatus) -> None:
        """Count a task that is deleted."""
        counts = self._rooms.setdefault((room_id, job_id), [0, 0, 0, 0])
        counts[0] -= 1
        if status in _COLUMN_OF:
            counts[_COLUMN_OF[status]] -= 1

    def _count_queued(self, task: TaskRecord, number: int) -> None:
        key = (task.job_id, task.lane, task.seq >> BLOCK_BITS)
        self._blocks[key] = self._blocks.get(key, 0) + number

    def __bool__(self) -> bool:
        return bool(self._rooms or self._blocks)

    @property
    def keys(self) -> list[tuple[str, UUID]]:
        """The rooms and jobs whose counts change, in order."""
        return sorted(self._rooms)

    def rooms(self, locked: Collection[UUID] | None, part: int) -> list[tuple[Any, ...]]:
        """Return the rows of rooms, sorted by key: part 0 for `locked` jobs, None for all jobs."""
        return [
            (key[0], key[1], 0 if locked is None or key[1] in locked else part, *self._rooms[key])
            for key in self.keys
        ]

    def blocks(self) -> list[tuple[Any, ...]]:
        """Return the rows of blocks in the order of their keys."""
        return [(*key, queued) for key, queued in sorted(self._blocks.items())]

    def parameters(self, locked: Collection[UUID] | None) -> dict[str, Any]:
        """Return the parameters of `change_ctes`; `locked` has the jobs that are locked, None for all."""
        is_shared = locked is not None and any(job_id not in locked for _, job_id in self._rooms)
        part = _next_part() if is_shared else 0
        return _by_column("room", _ROOM_COLUMNS, self.rooms(locked, part)) | _by_column(
            "block", _BLOCK_COLUMNS, self.blocks()
        )


def _by_column(kind: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {f"all_{kind}_{name}": [row[index] for row in rows] for index, name in enumerate(columns)}


def _next_part() -> int:
    """Return the part of a writer without the lock of a job. They take turns, so that few share one."""
    return 1 + next(_writers) % _PARTS


async def write(tx: Transaction, changes: CountChanges, locked: Collection[UUID] | None = None) -> None:
    """Write changes after the tasks and the jobs; `locked` has the jobs that are locked, None for all."""
    if not tx.is_sqlite:
        if changes:
            await tx.execute(_WRITE_CHANGES, changes.parameters(locked))
        return
    for sql, columns, rows in (
        (_ADD_ROOM, _ROOM_COLUMNS, changes.rooms(None, 0)),
        (_ADD_BLOCK, _BLOCK_COLUMNS, changes.blocks()),
    ):
        if rows:
            await tx.execute(sql, [dict(zip(columns, row, strict=True)) for row in rows])


async def write_pruned(tx: Transaction, changes: CountChanges) -> None:
    """Write the changes of deleted tasks, and delete the rows of rooms without tasks, but not locked ones.

    These changes have a part of their own, so that no submit or claim waits for it.
    """
    if not changes:
        return
    part = 0 if tx.is_sqlite else PRUNED
    changed = [dict(zip(_ROOM_COLUMNS, row, strict=True)) for row in changes.rooms((), part)]
    await tx.execute(_ADD_ROOM, changed)
    parts_of: dict[tuple[str, UUID], list[Any]] = {}
    for start in range(0, len(changes.keys), CHUNK):
        room_ids, job_ids = zip(*changes.keys[start : start + CHUNK], strict=True)
        params = {"all_room_id": padded(room_ids), "all_job_id": padded(sorted(set(job_ids)))}
        for row in await tx.execute(_LOCK_ROOMS, params):
            parts_of.setdefault((row.room_id, row.job_id), []).append(row)
    empty = [
        {"room_id": row.room_id, "job_id": row.job_id, "part": row.part}
        for parts in parts_of.values()
        if not any(sum(values) for values in zip(*[row[3:] for row in parts], strict=True))
        for row in parts
    ]
    if empty:
        await tx.execute(_DELETE_ROOM, empty)


def _changes(after: str) -> tuple[str, str]:
    join = f"CROSS JOIN {after}" if after else ""
    of_rooms = f"""
    INSERT INTO joblib_room_count (room_id, job_id, part, total, pending, failed, cancelled)
    SELECT room_id, job_id, part, total, pending, failed, cancelled
    FROM unnest(
        (SELECT :all_room_room_id), (SELECT :all_room_job_id), (SELECT :all_room_part),
        (SELECT :all_room_total), (SELECT :all_room_pending), (SELECT :all_room_failed),
        (SELECT :all_room_cancelled)
    ) WITH ORDINALITY AS changed (room_id, job_id, part, total, pending, failed, cancelled, position)
    {join}
    ORDER BY position
    {ADD_TO_ROOM}"""
    of_blocks = f"""
    INSERT INTO joblib_queue_block (job_id, lane, block, queued)
    SELECT job_id, lane, block, queued
    FROM unnest(
        (SELECT :all_block_job_id), (SELECT :all_block_lane), (SELECT :all_block_block),
        (SELECT :all_block_queued)
    ) WITH ORDINALITY AS changed (job_id, lane, block, queued, position)
    {join}
    ORDER BY position
    {ADD_TO_BLOCK}"""
    return of_rooms, of_blocks


def change_ctes(after: str = "") -> tuple[CTE, CTE]:
    """Return the parts of a statement for PostgreSQL that write the parameters of `CountChanges`.

    With `after` they run once the part of this name, which returns one row, has locked the job.
    """
    of_rooms, of_blocks = (statement(sql, **_CHANGE_TYPES) for sql in _changes(after))
    return of_rooms.cte("counted_rooms"), of_blocks.cte("counted_blocks")


async def write_appended(tx: Transaction, job_id: UUID, of_rooms: Mapping[str, int]) -> None:
    """Count the tasks that SQLite inserted last into the queue of a job: how many of each room."""
    changed = [
        {"room_id": room_id, "job_id": job_id, "part": 0, "failed": 0, "cancelled": 0}
        | dict.fromkeys(("total", "pending"), number)
        for room_id, number in of_rooms.items()
    ]
    await tx.execute(_ADD_ROOM, changed)
    await tx.execute(_ADD_LAST_TO_BLOCKS, {"job_id": job_id, "count": sum(of_rooms.values())})


async def write_claimed(tx: Transaction, job_id: UUID, tasks: Iterable[tuple[int, TaskRow]]) -> None:
    """Count tasks that SQLite has claimed from the queue of a job, each with its `seq`."""
    rooms: Counter[str] = Counter()
    blocks: Counter[tuple[int, int]] = Counter()
    for seq, task in tasks:
        rooms[task.room_id] -= 1
        blocks[task.lane, seq >> BLOCK_BITS] -= 1
    none = {"job_id": job_id, "part": 0, "total": 0, "failed": 0, "cancelled": 0}
    await tx.execute(_ADD_ROOM, [{**none, "room_id": room, "pending": rooms[room]} for room in sorted(rooms)])
    await tx.execute(
        _ADD_BLOCK,
        [
            {"job_id": job_id, "lane": lane, "block": block, "queued": blocks[lane, block]}
            for lane, block in sorted(blocks)
        ],
    )


def of_job(job_ids: Sequence[UUID]) -> str:
    """Return the condition on the job of tasks: of any, of one, or of one in several versions."""
    if not job_ids:
        return ""
    return "= :job_id" if len(job_ids) == 1 else "= ANY (:all_job_id)"


def job_params(room_id: str, job_ids: Sequence[UUID]) -> dict[str, Any]:
    """Return the parameters of a statement with a room and the condition of `of_job`."""
    if len(job_ids) > 1:
        return {"room_id": room_id, "all_job_id": padded(job_ids)}
    return {"room_id": room_id, "job_id": job_ids[0]} if job_ids else {"room_id": room_id}


async def total(
    tx: Transaction, room_id: str, status: TaskStatus | None, job_ids: Sequence[UUID] = ()
) -> int:
    """Return the number of a room's tasks, optionally of one status and of one job, by its versions."""
    params = job_params(room_id, job_ids)
    number: int = (await tx.execute(_TOTALS[status, of_job(job_ids)], params)).scalar_one()
    return max(0, number)


async def prune_blocks(tx: Transaction, limit: int) -> int:
    """Delete up to `limit` rows of blocks without tasks, but not locked ones. Return how many."""
    empty = [row._asdict() for row in await tx.execute(_LOCK_EMPTY_BLOCKS, {"limit": limit})]
    if empty:
        await tx.execute(_DELETE_BLOCK, empty)
    return len(empty)


_CHANGE_TYPES = {
    **{f"room_{name}": INTEGER for name in _ROOM_COLUMNS},
    **{f"block_{name}": INTEGER for name in _BLOCK_COLUMNS},
    **{"room_room_id": TEXT, "room_job_id": UUID_TYPE, "block_job_id": UUID_TYPE, "block_block": BIG_INTEGER},
}


def _total(status: TaskStatus | None, condition: str) -> Any:
    of_job = condition and f"AND job_id {condition}"
    # The index of the job has its whole backlog.
    held = f"""
    SELECT count(*) FROM joblib_task
    WHERE room_id = :room_id {condition and f"AND unindexed(job_id) {condition}"}"""
    if status in HELD:
        return statement(f"{held} AND {as_sql(of_status([status]))}", "number")
    number = {None: "total", TaskStatus.COMPLETED: "total - pending - failed - cancelled"}.get(status, status)
    # Held tasks are neither: they are few, and all in one snapshot with the sums.
    less = f"- ({held} AND {TASK_IS_HELD})" if status == TaskStatus.COMPLETED else ""
    return statement(
        f"""
SELECT coalesce(sum({number}), 0) {less}
FROM joblib_room_count WHERE room_id = :room_id {of_job}
""",
        "number",
    )


_ADD_ROOM = statement(
    f"""
INSERT INTO joblib_room_count (room_id, job_id, part, total, pending, failed, cancelled)
VALUES (:room_id, :job_id, :part, :total, :pending, :failed, :cancelled)
{ADD_TO_ROOM}
"""
)
_ADD_BLOCK = statement(
    f"""
INSERT INTO joblib_queue_block (job_id, lane, block, queued)
VALUES (:job_id, :lane, :block, :queued)
{ADD_TO_BLOCK}
"""
)
_ADD_LAST_TO_BLOCKS = statement(
    f"""
INSERT INTO joblib_queue_block (job_id, lane, block, queued)
SELECT :job_id, 0, seq >> {BLOCK_BITS}, count(*)
FROM joblib_task
WHERE seq > (SELECT max(seq) FROM joblib_task) - :count
GROUP BY seq >> {BLOCK_BITS}
{ADD_TO_BLOCK}
"""
)
_WRITE_CHANGES = statement(
    "WITH counted_rooms AS ({}), counted_blocks AS ({}) SELECT 1".format(*_changes("")), **_CHANGE_TYPES
)
_LOCK_ROOMS = statement(
    """
SELECT room_id, job_id, part, total, pending, failed, cancelled
FROM joblib_room_count
WHERE room_id = ANY (:all_room_id) AND job_id = ANY (:all_job_id)
FOR UPDATE SKIP LOCKED
""",
    *_ROOM_COLUMNS,
)
_DELETE_ROOM = statement(
    "DELETE FROM joblib_room_count WHERE room_id = :room_id AND job_id = :job_id AND part = :part"
)
_LOCK_EMPTY_BLOCKS = statement(
    """
SELECT job_id, lane, block FROM joblib_queue_block WHERE queued = 0 LIMIT :limit
FOR UPDATE SKIP LOCKED
""",
    *("job_id", "lane", "block"),
)
_DELETE_BLOCK = statement(
    "DELETE FROM joblib_queue_block WHERE job_id = :job_id AND lane = :lane AND block = :block"
)
_TOTALS = {
    (status, condition): _total(status, condition)
    for status in (None, *TaskStatus)
    for condition in ("", "= :job_id", "= ANY (:all_job_id)")
}


# Counts of tasks by status: of all tasks, of jobs and of rooms. No backlog and no history is counted.
#
# Read them in a snapshot: held tasks are counted, all others are kept counts.

NO_COUNTS = StatusCounts()
_SUMS = "sum(total), sum(pending), sum(failed), sum(cancelled)"
_STATUSES = ("total", "pending", "failed", "cancelled")


def _held_by(*keys: str) -> Any:
    # All held tasks, which are few. With a condition on the key, its whole history might be read.
    groups = ", ".join([*[f"unindexed({key})" for key in keys], "status"])
    columns = ", ".join([*keys, "status"])
    return statement(
        f"SELECT {columns}, count(*) FROM joblib_task WHERE {TASK_IS_HELD} GROUP BY {groups}",
        *(*keys, "status", "number"),
    )


_ALL = statement(f"SELECT {_SUMS} FROM joblib_room_count", *_STATUSES)
_HELD = _held_by()
_HELD_BY_JOB, _HELD_BY_ROOM = _held_by("job_id"), _held_by("room_id")
_HELD_BY_ROOM_AND_JOB = _held_by("room_id", "job_id")
_ALL_BY_JOB = statement(
    f"SELECT job_id, {_SUMS} FROM joblib_room_count GROUP BY job_id", *("job_id", *_STATUSES)
)
_BY_JOB = statement(
    f"""
SELECT job_id, {_SUMS} FROM joblib_room_count WHERE job_id = ANY (:all_job_id) GROUP BY job_id
""",
    *("job_id", *_STATUSES),
)
_IN_ROOM = statement(
    f"SELECT job_id, {_SUMS} FROM joblib_room_count WHERE room_id = :room_id GROUP BY job_id",
    *("job_id", *_STATUSES),
)
_BY_ROOM = statement(
    f"""
SELECT room_id, {_SUMS} FROM joblib_room_count WHERE room_id = ANY (:all_room_id) GROUP BY room_id
""",
    *("room_id", *_STATUSES),
)


async def of_all(tx: Transaction) -> StatusCounts:
    """Return the counts of all tasks."""
    held = {TaskStatus(status): number for status, number in await tx.execute(_HELD)}
    return _counts([number or 0 for number in (await tx.execute(_ALL)).one()], held)


async def of_jobs(tx: Transaction, job_ids: Sequence[UUID] | None = None) -> dict[UUID, StatusCounts]:
    """Return the counts of these jobs, or of all; a job without tasks is missing."""
    held = await _held(tx, _HELD_BY_JOB)
    if job_ids is None:
        rows = await tx.execute(_ALL_BY_JOB)
    else:
        rows = await tx.execute(_BY_JOB, {"all_job_id": padded(job_ids)})
    return {job_id: _counts(sums, held.get(job_id, {})) for job_id, *sums in rows}


_PENDING_OF_JOBS = statement(
    "SELECT id, pending + scheduled AS number FROM joblib_job WHERE id = ANY (:all_id)",
    *("id", "number"),
    number=INTEGER,
)
_PENDING_IN_ROOMS = statement(
    """
SELECT job_id, room_id, CAST(sum(pending) AS integer) AS number FROM joblib_room_count
WHERE job_id = ANY (:all_job_id) AND room_id = ANY (:all_room_id) GROUP BY job_id, room_id
""",
    *("job_id", "room_id", "number"),
    number=INTEGER,
)


async def of_jobs_in_room(tx: Transaction, room_id: str) -> dict[UUID, StatusCounts]:
    """Return the counts of a room's tasks by job."""
    held: dict[UUID, dict[TaskStatus, int]] = {}
    for room, job_id, status, number in await tx.execute(_HELD_BY_ROOM_AND_JOB):
        if room == room_id:
            held.setdefault(job_id, {})[TaskStatus(status)] = number
    rows = await tx.execute(_IN_ROOM, {"room_id": room_id})
    return {job_id: _counts(sums, held.get(job_id, {})) for job_id, *sums in rows}


async def pending(
    tx: Transaction, job_ids: Sequence[UUID], room_ids: Sequence[str]
) -> tuple[dict[UUID, int], dict[tuple[UUID, str], int]]:
    """Return how many tasks of locked jobs are pending or scheduled: of each job, and from each room."""
    of_jobs = await tx.execute(_PENDING_OF_JOBS, {"all_id": padded(job_ids)})
    params = {"all_job_id": padded(job_ids), "all_room_id": padded(room_ids)}
    of_rooms = await tx.execute(_PENDING_IN_ROOMS, params)
    return {row.id: row.number for row in of_jobs}, {
        (row.job_id, row.room_id): row.number for row in of_rooms
    }


async def of_rooms(tx: Transaction, room_ids: Sequence[str]) -> tuple[dict[str, StatusCounts], int]:
    """Return the counts of these rooms, and how many tasks are held in all."""
    held = await _held(tx, _HELD_BY_ROOM)
    rows = await tx.execute(_BY_ROOM, {"all_room_id": padded(room_ids)})
    counts = {room_id: _counts(sums, held.get(room_id, {})) for room_id, *sums in rows}
    return counts, sum(sum(by_status.values()) for by_status in held.values())


async def _held(tx: Transaction, grouped: Any) -> dict[Any, dict[TaskStatus, int]]:
    numbers: dict[Any, dict[TaskStatus, int]] = {}
    for key, status, number in await tx.execute(grouped):
        numbers.setdefault(key, {})[TaskStatus(status)] = number
    return numbers


def _counts(sums: Sequence[int], held: Mapping[TaskStatus, int]) -> StatusCounts:
    total, pending, failed, cancelled = map(int, sums)
    claimed, running = held.get(TaskStatus.CLAIMED, 0), held.get(TaskStatus.RUNNING, 0)
    return StatusCounts(
        pending=max(0, pending),
        claimed=claimed,
        running=running,
        completed=max(0, total - pending - failed - cancelled - claimed - running),
        failed=max(0, failed),
        cancelled=max(0, cancelled),
    )


# The first tasks of queues: of each job and priority, and the oldest of each room.

# How many queues, one for each job and priority, are read for their first task: those with the oldest ones.
_MAX_QUEUES = 1000
# How many of the first pending tasks of a room are read: scheduled ones may precede the first queued one.
_FIRST_OF_ROOM = 16


class WaitingTask(NamedTuple):
    """The first task in a queue; `since` is when it entered the queue, `job` the name of its job."""

    id: UUID
    job_id: UUID
    job: str
    room_id: str
    created_at: datetime
    since: datetime


def _first(column: str, keys: Mapping[str, str], *, is_sqlite: bool) -> str:
    """Return a subquery for a column of the first queued task whose other columns have these values.

    PostgreSQL gets a range, so that only the index of these columns has the order: with equalities it may
    read the history along the primary key. SQLite finds the task by equalities only.
    """
    columns, values = ", ".join(keys), ", ".join(keys.values())
    is_there = f"({columns}) >= ({values}) AND ({columns}) <= ({values})"
    if is_sqlite:
        is_there = " AND ".join(f"{name} = {value}" for name, value in keys.items())
    return f"""(
    SELECT {column} FROM joblib_task
    WHERE {is_there} AND {TASK_IS_QUEUED}
    ORDER BY {columns}, joblib_task.seq LIMIT 1
)"""


def _first_of_queues(queues: str, *, is_sqlite: bool) -> Any:
    keys = {"joblib_task.job_id": "queues.job_id", "joblib_task.lane": "queues.lane"}
    first = _first("joblib_task.seq", keys, is_sqlite=is_sqlite)
    return statement(f"SELECT {first} FROM ({queues}) AS queues", "seq")


_OLDEST_QUEUES = f"""
    SELECT job_id, lane FROM joblib_queue_block WHERE queued > 0
    GROUP BY job_id, lane ORDER BY min(block) LIMIT {_MAX_QUEUES}
"""
_QUEUES_OF_JOBS = """
    SELECT job_id, lane FROM joblib_queue_block WHERE queued > 0 AND job_id = ANY (:all_job_id)
    GROUP BY job_id, lane
"""
_BOTH = (False, True)
_FIRST_OF_OLDEST = {kind: _first_of_queues(_OLDEST_QUEUES, is_sqlite=kind) for kind in _BOTH}
_FIRST_OF_JOBS = {kind: _first_of_queues(_QUEUES_OF_JOBS, is_sqlite=kind) for kind in _BOTH}
_WAITING = statement(
    """
SELECT joblib_task.id, joblib_task.job_id, joblib_job.full_name, joblib_task.room_id, joblib_task.created_at,
    coalesce(joblib_task.queued_at, joblib_task.created_at)
FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
WHERE joblib_task.seq = ANY (:all_seq)
""",
    *("id", "job_id", "full_name", "room_id", "created_at", "queued_at"),
)
_OLDEST_OF_ROOMS = statement(
    f"""
SELECT rooms.room_id, (
    SELECT min(created_at)
    FROM (
        SELECT created_at, run_at FROM joblib_task
        WHERE joblib_task.room_id = rooms.room_id AND {TASK_IS_PENDING}
        ORDER BY created_at, seq LIMIT {_FIRST_OF_ROOM}
    ) AS first_tasks
    WHERE run_at IS NULL
)
FROM (SELECT DISTINCT room_id FROM joblib_room_queue WHERE room_id = ANY (:all_room_id)) AS rooms
""",
    *("room_id", "created_at"),
)


def _oldest_by_queue(*, is_sqlite: bool) -> Any:
    keys = {
        "joblib_task.job_id": "joblib_room_queue.job_id",
        "joblib_task.room_id": "joblib_room_queue.room_id",
        "joblib_task.lane": "lanes.lane",
    }
    return statement(
        f"""
SELECT joblib_room_queue.room_id, {_first("joblib_task.created_at", keys, is_sqlite=is_sqlite)}
FROM joblib_room_queue
JOIN (SELECT DISTINCT job_id, lane FROM joblib_queue_block WHERE queued > 0) AS lanes
    ON lanes.job_id = joblib_room_queue.job_id
WHERE joblib_room_queue.room_id = ANY (:all_room_id)
""",
        *("room_id", "created_at"),
    )


_OLDEST_BY_QUEUE = {kind: _oldest_by_queue(is_sqlite=kind) for kind in _BOTH}


async def of_queues(tx: Transaction, job_ids: Sequence[UUID] | None = None) -> list[WaitingTask]:
    """Return the first task of each queue, one for each priority: the oldest submitted one.

    Without jobs, those of the 1000 queues with the oldest tasks.
    """
    if job_ids is None:
        firsts = await tx.execute(_FIRST_OF_OLDEST[tx.is_sqlite])
    else:
        firsts = await tx.execute(_FIRST_OF_JOBS[tx.is_sqlite], {"all_job_id": padded(job_ids)})
    seqs = [seq for seq in firsts.scalars() if seq is not None]
    tasks: list[WaitingTask] = []
    for start in range(0, len(seqs), CHUNK):
        rows = await tx.execute(_WAITING, {"all_seq": padded(seqs[start : start + CHUNK])})
        tasks += [WaitingTask(*row) for row in rows]
    return tasks


async def oldest_of_rooms(tx: Transaction, room_ids: Sequence[str]) -> dict[str, datetime]:
    """Return when the oldest task of each room in any queue was created. Rooms without one are missing."""
    if not tx.is_sqlite:
        # A look at each queue is fast, and without statistics PostgreSQL would read the history of the room.
        return await oldest_by_queue(tx, room_ids)
    rows = list(await tx.execute(_OLDEST_OF_ROOMS, {"all_room_id": padded(room_ids)}))
    times: dict[str, datetime] = {room_id: at for room_id, at in rows if at is not None}
    # Rooms whose first tasks are all scheduled, or which have none.
    if others := [room_id for room_id, at in rows if at is None]:
        times |= await oldest_by_queue(tx, others)
    return times


async def oldest_by_queue(tx: Transaction, room_ids: Sequence[str]) -> dict[str, datetime]:
    """Return the same by one look for each queue, so that scheduled tasks are never read."""
    times: dict[str, datetime] = {}
    for room_id, at in await tx.execute(_OLDEST_BY_QUEUE[tx.is_sqlite], {"all_room_id": padded(room_ids)}):
        if at is not None:
            times[room_id] = min(at, times.get(room_id, at))
    return times
