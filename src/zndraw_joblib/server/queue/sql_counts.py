"""Counts that the writers of tasks keep: of rooms by job and status, and of blocks of a queue.

A reader sums few rows instead of counting tasks. Held tasks are few; they are counted when they are read.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Select,
    Table,
    TableValuedAlias,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.server.db.bulk import ONE, among, arrays, padded, places, unindexed
from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.tables import Job, QueueBlock, RoomCount, RoomQueue, Task
from zndraw_joblib.server.queue.sql_task_rows import CHUNK, IS_HELD, IS_PENDING, QUEUED, TaskRecord, of_status
from zndraw_joblib.wire.operators import StatusCounts
from zndraw_joblib.wire.statuses import HELD, TaskStatus

tasks = Task.__table__
rooms = RoomCount.__table__
blocks = QueueBlock.__table__

# 4,096 tasks are a block: a million queued tasks are 245 rows, and a rank in a block takes 0.5 ms.
BLOCK_BITS = 12
# The part of the transactions that delete tasks, and the number of parts that other writers share.
PRUNED = -1
_PARTS = 4
_turns = count()
_PLACE_OF = {TaskStatus.PENDING: 1, TaskStatus.FAILED: 2, TaskStatus.CANCELLED: 3}


class CountChanges:
    """By how much the counts change, added up for each row."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, UUID], list[int]] = {}
        self._blocks: dict[tuple[UUID, int, int], int] = {}

    def enter(self, task: TaskRecord) -> None:
        """Count a new task."""
        counts = self._rooms.setdefault((task.room_id, task.job_id), [0, 0, 0, 0])
        counts[0] += 1
        if task.status in _PLACE_OF:
            counts[_PLACE_OF[task.status]] += 1
        if task.is_queued:
            self._count_queued(task, 1)

    def move(self, before: TaskRecord, after: TaskRecord) -> None:
        """Count a task that changes its status or its `run_at`."""
        if before.status != after.status:
            old, new = _PLACE_OF.get(before.status), _PLACE_OF.get(after.status)
            if old is not None or new is not None:
                counts = self._rooms.setdefault((after.room_id, after.job_id), [0, 0, 0, 0])
                if old is not None:
                    counts[old] -= 1
                if new is not None:
                    counts[new] += 1
        if before.is_queued != after.is_queued:
            self._count_queued(after, 1 if after.is_queued else -1)

    def fail_held(self, room_id: str, job_id: UUID) -> None:
        """Count a held task that fails."""
        self._rooms.setdefault((room_id, job_id), [0, 0, 0, 0])[_PLACE_OF[TaskStatus.FAILED]] += 1

    def delete(self, room_id: str, job_id: UUID, status: TaskStatus) -> None:
        """Count a task that is deleted."""
        counts = self._rooms.setdefault((room_id, job_id), [0, 0, 0, 0])
        counts[0] -= 1
        if status in _PLACE_OF:
            counts[_PLACE_OF[status]] -= 1

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
        """Return the parameters of `keep_given`; `locked` has the jobs that are locked then, None for all."""
        is_shared = locked is not None and any(job_id not in locked for _, job_id in self._rooms)
        part = next_part() if is_shared else 0
        return _by_column("room", rooms, self.rooms(locked, part)) | _by_column(
            "block", blocks, self.blocks()
        )


def _by_column(kind: str, table: Table, rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {f"all_{kind}_{name}": [row[place] for row in rows] for place, name in enumerate(_names(table))}


def block_of(seq: ColumnElement[int]) -> ColumnElement[int]:
    """Return the block of a task."""
    return seq.op(">>", return_type=BigInteger())(literal_column(str(BLOCK_BITS)))


def next_part() -> int:
    """Return the part of a writer without the lock of a job. They take turns, so that few share one."""
    return 1 + next(_turns) % _PARTS


async def write(tx: Transaction, changes: CountChanges, locked: Collection[UUID] | None = None) -> None:
    """Write changes after the tasks and the jobs; `locked` has the jobs that are locked, None for all."""
    if not tx.is_sqlite:
        if changes:
            await tx.execute(_KEEP, changes.parameters(locked))
        return
    for statement, table, rows_ in (
        (_KEEP_ROOMS, rooms, changes.rooms(None, 0)),
        (_KEEP_BLOCKS, blocks, changes.blocks()),
    ):
        if rows_:
            await tx.execute(statement, [dict(zip(_names(table), row, strict=True)) for row in rows_])


async def write_pruned(tx: Transaction, changes: CountChanges) -> None:
    """Write the changes of deleted tasks, and delete the rows of rooms without tasks, but not locked ones.

    These changes have a part of their own, so that no submit or claim waits for it.
    """
    if not changes:
        return
    part = 0 if tx.is_sqlite else PRUNED
    listed = [dict(zip(_names(rooms), row, strict=True)) for row in changes.rooms((), part)]
    await tx.execute(adding(rooms, dialect(tx).insert(rooms)), listed)
    found: dict[tuple[str, UUID], list[Any]] = {}
    for start in range(0, len(changes.keys), CHUNK):
        room_ids, job_ids = zip(*changes.keys[start : start + CHUNK], strict=True)
        near = and_(rooms.c.room_id.in_(padded(room_ids)), rooms.c.job_id.in_(padded(sorted(set(job_ids)))))
        for row in await tx.execute(select(rooms).where(near).with_for_update(skip_locked=True)):
            found.setdefault((row.room_id, row.job_id), []).append(row)
    empty = [
        {"room": row.room_id, "job": row.job_id, "own_part": row.part}
        for parts in found.values()
        if not any(sum(values) for values in zip(*[row[3:] for row in parts], strict=True))
        for row in parts
    ]
    if empty:
        await tx.execute(_DELETE_ROOM, empty)


def keep_given(after: CTE | None = None) -> tuple[CTE, CTE]:
    """Return the parts of a statement for PostgreSQL that write the parameters of `CountChanges`.

    With `after` they run once that part of the statement, which returns one row, has locked the job.
    """
    return (
        _upsert_from(rooms, _selected(_NEW_ROOMS, after)).cte("kept_rooms"),
        _upsert_from(blocks, _selected(_NEW_BLOCKS, after)).cte("kept_blocks"),
    )


def keep_inserted(written: CTE) -> tuple[CTE, CTE]:
    """Return the parts of a statement for PostgreSQL that count the tasks that `written` returns.

    It returns their `room_id`, `job_id`, `lane` and `seq`, and their `status` and `run_at` unless all are
    queued. The jobs are locked.
    """
    each, block = written.c, block_of(written.c.seq)
    counted: list[ColumnElement[int]] = [func.count(), literal_column("0"), literal_column("0")]
    of_blocks = select(each.job_id, each.lane, block, func.count()).group_by(each.job_id, each.lane, block)
    if "status" in each:
        counted = [func.count().filter(each.status == literal_column(f"'{status}'")) for status in _PLACE_OF]
        is_pending = each.status == literal_column(f"'{TaskStatus.PENDING}'")
        of_blocks = of_blocks.where(is_pending, each.run_at.is_(None))
    of_rooms = select(each.room_id, each.job_id, literal_column("0"), func.count(), *counted)
    of_rooms = of_rooms.group_by(each.room_id, each.job_id)
    return (
        _upsert_from(rooms, of_rooms).cte("kept_rooms"),
        _upsert_from(blocks, of_blocks).cte("kept_blocks"),
    )


def keep_claimed(written: CTE) -> tuple[CTE, CTE]:
    """Return the parts of a statement for PostgreSQL that count the tasks of one job that left its queue.

    `written` returns their `room_id`, `job_id`, `lane` and `seq`. The job is locked.
    """
    each, block = written.c, block_of(written.c.seq)
    zero: ColumnElement[int] = literal_column("0")
    of_rooms = select(each.room_id, each.job_id, zero, zero, -func.count(), zero, zero)
    of_blocks = select(each.job_id, each.lane, block, -func.count()).group_by(each.job_id, each.lane, block)
    return (
        _upsert_from(rooms, of_rooms.group_by(each.room_id, each.job_id)).cte("kept_rooms"),
        _upsert_from(blocks, of_blocks).cte("kept_blocks"),
    )


async def write_appended(tx: Transaction, job_id: UUID, of_rooms: Mapping[str, int]) -> None:
    """Count the tasks that SQLite inserted last into the queue of a job: how many of each room."""
    listed = [
        {"room_id": room_id, "job_id": job_id, "part": 0, "failed": 0, "cancelled": 0}
        | dict.fromkeys(("total", "pending"), number)
        for room_id, number in of_rooms.items()
    ]
    await tx.execute(_KEEP_ROOMS, listed)
    await tx.execute(_KEEP_LAST_BLOCKS, {"job": job_id, "count": sum(of_rooms.values())})


async def total(tx: Transaction, room_id: str, status: TaskStatus | None, job_id: UUID | None) -> int:
    """Return the number of a room's tasks, optionally of one status and of one job."""
    given = {"room": room_id} if job_id is None else {"room": room_id, "job": job_id}
    found: int = (await tx.execute(_TOTALS[status, job_id is None], given)).scalar_one()
    return max(0, found)


async def prune_blocks(tx: Transaction, limit: int) -> int:
    """Delete up to `limit` rows of blocks without tasks, but not locked ones. Return how many."""
    empty = select(*blocks.primary_key).where(blocks.c.queued == 0).limit(limit)
    rows = await tx.execute(empty.with_for_update(skip_locked=True))
    found = [{"job": job_id, "own_lane": lane, "own_block": block} for job_id, lane, block in rows]
    if found:
        await tx.execute(_DELETE_BLOCK, found)
    return len(found)


def adding(table: Table, added: Any) -> Any:
    """Return an INSERT that adds its counts to those of rows that exist."""
    values = {
        column.name: column + added.excluded[column.name] for column in table.c if not column.primary_key
    }
    return added.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)


def _upsert_from(table: Table, source: Select[Any]) -> Any:
    return adding(table, postgresql.insert(table).from_select(_names(table), source))


def _selected(new: TableValuedAlias, after: CTE | None) -> Select[Any]:
    listed = select(*[column for column in new.c if column is not new.c.place]).order_by(new.c.place)
    return listed if after is None else listed.select_from(new.join(after, true()))


@cache
def _names(table: Table) -> list[str]:
    return [column.name for column in table.c]


def _new(kind: str, table: Table) -> TableValuedAlias:
    return arrays({f"{kind}_{column.name}": column.type for column in table.c})


def _total(status: TaskStatus | None, *, is_of_room: bool) -> Select[Any]:
    kept, counted = [rooms.c.room_id == bindparam("room")], [tasks.c.room_id == bindparam("room")]
    if not is_of_room:
        kept.append(rooms.c.job_id == bindparam("job"))
        # The index of the job has its whole backlog.
        counted.append(unindexed(tasks.c.job_id) == bindparam("job", type_=tasks.c.job_id.type))
    held = select(func.count()).select_from(tasks).where(*counted)
    if status in HELD:
        return held.where(of_status([status]))
    others = rooms.c.total - rooms.c.pending - rooms.c.failed - rooms.c.cancelled
    number = others if status == TaskStatus.COMPLETED else rooms.c[status or "total"]
    found = func.coalesce(func.sum(number), 0)
    if status == TaskStatus.COMPLETED:
        # Held tasks are neither: they are few, and all in one snapshot with the sums.
        return select(found - held.where(of_status(HELD)).scalar_subquery()).where(*kept)
    return select(found).where(*kept)


_NEW_ROOMS, _NEW_BLOCKS = _new("room", rooms), _new("block", blocks)
_KEEP_ROOMS = adding(rooms, sqlite.insert(rooms))
_KEEP_BLOCKS = adding(blocks, sqlite.insert(blocks))
_LAST = select(func.max(tasks.c.seq)).scalar_subquery() - bindparam("count", type_=BigInteger())
_LAST_BLOCKS = (
    select(
        bindparam("job", type_=blocks.c.job_id.type), literal_column("0"), block_of(tasks.c.seq), func.count()
    )
    .where(tasks.c.seq > _LAST)
    .group_by(block_of(tasks.c.seq))
)
_KEEP_LAST_BLOCKS = adding(blocks, sqlite.insert(blocks).from_select(_names(blocks), _LAST_BLOCKS))
_KEPT_ROOMS, _KEPT_BLOCKS = keep_given()
_KEEP: Select[Any] = select(literal_column("1")).add_cte(_KEPT_ROOMS, _KEPT_BLOCKS)
_DELETE_ROOM = delete(rooms).where(
    rooms.c.room_id == bindparam("room"),
    rooms.c.job_id == bindparam("job"),
    rooms.c.part == bindparam("own_part"),
)
_DELETE_BLOCK = delete(blocks).where(
    blocks.c.job_id == bindparam("job"),
    blocks.c.lane == bindparam("own_lane"),
    blocks.c.block == bindparam("own_block"),
)
_TOTALS = {
    (status, is_of_room): _total(status, is_of_room=is_of_room)
    for status in (None, *TaskStatus)
    for is_of_room in (True, False)
}


# Counts of tasks by status: of all tasks, of jobs and of rooms. No backlog and no history is counted.
#
# Read them in a snapshot: held tasks are counted, all others are kept counts.

kept = RoomCount.__table__

NO_COUNTS = StatusCounts()
_SUMS = [func.sum(kept.c[name]) for name in ("total", "pending", "failed", "cancelled")]


def _held_by(*keys: ColumnElement[Any]) -> Select[Any]:
    # All held tasks, which are few. With a condition on the key, its whole history might be read.
    unread = [unindexed(key) for key in keys]
    return select(*keys, tasks.c.status, func.count()).where(IS_HELD).group_by(*unread, tasks.c.status)


_ALL, _HELD = select(*_SUMS), _held_by()
_ALL_BY_JOB = select(kept.c.job_id, *_SUMS).group_by(kept.c.job_id)
_BY_JOB, _HELD_BY_JOB = _ALL_BY_JOB.where(among(kept.c.job_id, bindparam("keys"))), _held_by(tasks.c.job_id)
_IN_ROOM = _ALL_BY_JOB.where(kept.c.room_id == bindparam("room"))
_HELD_BY_ROOM_AND_JOB = _held_by(tasks.c.room_id, tasks.c.job_id)
_BY_ROOM = (
    select(kept.c.room_id, *_SUMS).where(among(kept.c.room_id, bindparam("keys"))).group_by(kept.c.room_id)
)
_HELD_BY_ROOM = _held_by(tasks.c.room_id)


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
        rows = await tx.execute(_BY_JOB, {"keys": padded(job_ids)})
    return {job_id: _counts(sums, held.get(job_id, {})) for job_id, *sums in rows}


async def of_jobs_in_room(tx: Transaction, room_id: str) -> dict[UUID, StatusCounts]:
    """Return the counts of a room's tasks by job."""
    held: dict[UUID, dict[TaskStatus, int]] = {}
    for room, job_id, status, number in await tx.execute(_HELD_BY_ROOM_AND_JOB):
        if room == room_id:
            held.setdefault(job_id, {})[TaskStatus(status)] = number
    rows = await tx.execute(_IN_ROOM, {"room": room_id})
    return {job_id: _counts(sums, held.get(job_id, {})) for job_id, *sums in rows}


async def of_rooms(tx: Transaction, room_ids: Sequence[str]) -> tuple[dict[str, StatusCounts], int]:
    """Return the counts of these rooms, and how many tasks are held in all."""
    held = await _held(tx, _HELD_BY_ROOM)
    rows = await tx.execute(_BY_ROOM, {"keys": padded(room_ids)})
    found = {room_id: _counts(sums, held.get(room_id, {})) for room_id, *sums in rows}
    return found, sum(sum(by_status.values()) for by_status in held.values())


async def _held(tx: Transaction, statement: Select[Any]) -> dict[Any, dict[TaskStatus, int]]:
    found: dict[Any, dict[TaskStatus, int]] = {}
    for key, status, number in await tx.execute(statement):
        found.setdefault(key, {})[TaskStatus(status)] = number
    return found


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


# The heads of the queues: the first waiting task of each job and priority, and the oldest of each room.

jobs = Job.__table__


queues = RoomQueue.__table__

# How many queues, one for each job and priority, are read for their first task: those with the oldest ones.
_MAX_QUEUES: ColumnElement[int] = literal_column("1000")
# How many of the first pending tasks of a room are read: scheduled ones may precede the first queued one.
_FIRST: ColumnElement[int] = literal_column("16")


class WaitingTask(NamedTuple):
    """The first task in a queue; `since` is when it entered the queue, `job` the name of its job."""

    id: UUID
    job_id: UUID
    job: str
    room_id: str
    created_at: datetime
    since: datetime


def _first(
    column: ColumnElement[Any], *wanted: tuple[ColumnElement[Any], ColumnElement[Any]]
) -> ColumnElement[Any]:
    """Select a column of the first queued task whose other columns have these values."""
    columns, values = zip(*wanted, strict=True)
    first = select(column).where(places(*columns, *values), QUEUED).order_by(*columns, tasks.c.seq).limit(ONE)
    return first.correlate_except(tasks).scalar_subquery()


def _heads(lanes: Select[Any]) -> Select[Any]:
    lane = lanes.subquery("lanes")
    first = _first(tasks.c.seq, (tasks.c.job_id, lane.c.job_id), (tasks.c.lane, lane.c.lane))
    return select(first).select_from(lane)


_LANES = select(blocks.c.job_id, blocks.c.lane).where(blocks.c.queued > 0)
_EACH = _LANES.group_by(blocks.c.job_id, blocks.c.lane)
_HEADS = _heads(_EACH.order_by(func.min(blocks.c.block)).limit(_MAX_QUEUES))
_HEADS_OF_JOBS = _heads(_EACH.where(among(blocks.c.job_id, bindparam("jobs"))))
_WAITING = select(
    *(tasks.c.id, tasks.c.job_id, jobs.c.full_name, tasks.c.room_id, tasks.c.created_at),
    func.coalesce(tasks.c.queued_at, tasks.c.created_at),
).join_from(tasks, jobs, jobs.c.id == tasks.c.job_id)
_rooms = select(queues.c.room_id).where(among(queues.c.room_id, bindparam("rooms"))).distinct().subquery()
_first_of_room = (
    select(tasks.c.created_at, tasks.c.run_at)
    .where(tasks.c.room_id == _rooms.c.room_id, IS_PENDING)
    .order_by(tasks.c.created_at, tasks.c.seq)
    .limit(_FIRST)
    .correlate_except(tasks)
    .subquery()
)
_OLDEST_OF_ROOMS = select(
    _rooms.c.room_id,
    select(func.min(_first_of_room.c.created_at))
    .where(_first_of_room.c.run_at.is_(None))
    .correlate(_rooms)
    .scalar_subquery(),
)
_lanes = _LANES.distinct().subquery("lanes")
_OLDEST_BY_QUEUE = (
    select(
        queues.c.room_id,
        _first(
            tasks.c.created_at,
            (tasks.c.job_id, queues.c.job_id),
            (tasks.c.room_id, queues.c.room_id),
            (tasks.c.lane, _lanes.c.lane),
        ),
    )
    .join_from(queues, _lanes, queues.c.job_id == _lanes.c.job_id)
    .where(among(queues.c.room_id, bindparam("rooms")))
)


async def of_queues(tx: Transaction, job_ids: Sequence[UUID] | None = None) -> list[WaitingTask]:
    """Return the first task of each queue, one for each priority: the oldest submitted one.

    Without jobs, those of the 1000 queues with the oldest tasks.
    """
    if job_ids is None:
        heads = await tx.execute(_HEADS)
    else:
        heads = await tx.execute(_HEADS_OF_JOBS, {"jobs": padded(job_ids)})
    known = [seq for seq in heads.scalars() if seq is not None]
    found: list[WaitingTask] = []
    for start in range(0, len(known), CHUNK):
        wanted = _WAITING.where(tasks.c.seq.in_(padded(known[start : start + CHUNK])))
        found += [WaitingTask(*row) for row in await tx.execute(wanted)]
    return found


async def oldest_of_rooms(tx: Transaction, room_ids: Sequence[str]) -> dict[str, datetime]:
    """Return when the oldest task of each room in any queue was created. Rooms without one are missing."""
    if not tx.is_sqlite:
        # A look at each queue is fast, and without statistics PostgreSQL would read the history of the room.
        return await oldest_by_queue(tx, room_ids)
    rows = list(await tx.execute(_OLDEST_OF_ROOMS, {"rooms": padded(room_ids)}))
    found: dict[str, datetime] = {room_id: at for room_id, at in rows if at is not None}
    # Rooms whose first tasks are all scheduled, or which have none.
    if others := [room_id for room_id, at in rows if at is None]:
        found |= await oldest_by_queue(tx, others)
    return found


async def oldest_by_queue(tx: Transaction, room_ids: Sequence[str]) -> dict[str, datetime]:
    """Return the same by one look for each queue, so that scheduled tasks are never read."""
    found: dict[str, datetime] = {}
    for room_id, at in await tx.execute(_OLDEST_BY_QUEUE, {"rooms": padded(room_ids)}):
        if at is not None:
            found[room_id] = min(at, found.get(room_id, at))
    return found
