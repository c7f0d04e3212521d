"""The queues of rooms: the rooms with tasks in a job's queue, and a bound of each room's first task."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy import (
    Executable,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    delete,
    func,
    literal,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.server.db.bulk import among, arrays, by_column, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import Job, RoomQueue, Task
from zndraw_joblib.server.queue.sql_jobs import lock as lock_jobs
from zndraw_joblib.server.queue.sql_task_rows import IS_HELD, QUEUED, Place, TaskRecord
from zndraw_joblib.wire.names import JobName

queues = RoomQueue.__table__
tasks = Task.__table__
jobs = Job.__table__

_MAX_JOBS = 100
# Sorts before all rows.
FIRST = (UUID(int=0), "")
# Distinguishes the locks of rooms from those of other applications on the same database.
_LOCK_SEED = 4961402731120482811
COLUMNS = ("job_id", "room_id", "lane", "seq")


class Turn(NamedTuple):
    """The turn of a room: rooms are served in the order of their names, round by round."""

    round: int
    room_id: str


class Head(NamedTuple):
    """One of the first tasks of a room in the queue of a job."""

    room_id: str
    lane: int
    seq: int

    @property
    def place(self) -> Place:
        """Return the sort key of the task in its queue."""
        return self.lane, self.seq


def upsert_from(entered: Select[Any]) -> postgresql.Insert:
    """Return PostgreSQL's statement that adds the rows for the tasks that `entered` selects.

    It does not write a row that is already a lower bound.
    """
    each = entered.subquery()
    firsts = [func.min(each.c.lane).label("lane"), func.min(each.c.seq).label("seq")]
    new = select(each.c.job_id, each.c.room_id, *firsts).group_by(each.c.job_id, each.c.room_id).subquery()
    same = and_(queues.c.job_id == new.c.job_id, queues.c.room_id == new.c.room_id)
    is_early = tuple_(queues.c.lane, queues.c.seq) <= tuple_(new.c.lane, new.c.seq)
    missing = select(*new.c).where(~select(queues.c.job_id).where(same, is_early).exists())
    added = postgresql.insert(queues).from_select(COLUMNS, missing)
    moved = {name: added.excluded[name] for name in ("lane", "seq")}
    return added.on_conflict_do_update(index_elements=["job_id", "room_id"], set_=moved)


async def add(tx: Transaction, entered: Iterable[TaskRecord]) -> None:
    """Add the rows of tasks that enter their queues. Call it after the jobs' counts are written."""
    rows = [{name: getattr(task, name) for name in COLUMNS} for task in entered]
    if not rows:
        return
    if tx.is_sqlite:
        firsts: dict[Any, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: (row["lane"], row["seq"])):
            firsts.setdefault((row["job_id"], row["room_id"]), row)
        await tx.execute(_UPSERT, list(firsts.values()))
    else:
        await tx.execute(_UPSERT_MANY, by_column(rows))


async def last_seq(tx: Transaction) -> int:
    """Return the `seq` of the task that SQLite inserted last."""
    found: int = (await tx.execute(_LAST_SEQ)).scalar_one()
    return found


async def by_place(tx: Transaction, job_id: UUID, limit: int, room_cap: int | None) -> list[Head]:
    """Return the first rows of a job in the order of their places, without those of full rooms."""
    statement = _BY_PLACE if room_cap is None else _OPEN_BY_PLACE
    given = {"job": job_id, "limit": limit, "cap": room_cap}
    return [Head(*row) for row in await tx.execute(statement, given if room_cap else _without_cap(given))]


async def after(tx: Transaction, job_id: UUID, last: str, limit: int, room_cap: int | None) -> list[str]:
    """Return the rooms of a job that follow a name, in the database's order of names, without full ones."""
    return await _by_name(tx, _AFTER, job_id, last, limit, room_cap)


async def until(tx: Transaction, job_id: UUID, last: str, limit: int, room_cap: int | None) -> list[str]:
    """Return the rooms of a job from the first name to this one, in the same order, without full ones."""
    return await _by_name(tx, _UNTIL, job_id, last, limit, room_cap)


async def _by_name(
    tx: Transaction, rooms: Select[Any], job_id: UUID, last: str, limit: int, room_cap: int | None
) -> list[str]:
    statement = rooms if room_cap is None else rooms.where(_IS_OPEN)
    given = {"job": job_id, "last": last, "limit": limit, "cap": room_cap}
    return list((await tx.execute(statement, given if room_cap else _without_cap(given))).scalars())


def _without_cap(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "cap"}


async def heads(tx: Transaction, job_id: UUID, rooms: Sequence[str], count: int) -> list[Head]:
    """Return the first `count` tasks of each of these rooms in the queue of a job."""
    if tx.is_sqlite:
        given = {"job": job_id, "count": count, "rooms": to_json(rooms).decode()}
        rows = await tx.execute(_HEADS_ON_SQLITE, given)
    else:
        rows = await tx.execute(_HEADS, {"job": job_id, "count": count, "all_room": list(rooms)})
    return [Head(*row) for row in rows]


async def move(tx: Transaction, job_id: UUID, moved: Sequence[Head]) -> None:
    """Set the places of rows to the first tasks of their rooms. The caller has locked the job."""
    rows = [{"job": job_id, "room": room, "new_lane": lane, "new_seq": seq} for room, lane, seq in moved]
    if rows:
        await tx.execute(_MOVE, rows)


async def remove(tx: Transaction, job_id: UUID, rooms: Sequence[str]) -> None:
    """Delete the rows of rooms without queued tasks. The caller has locked the job."""
    if rooms:
        await tx.execute(_REMOVE, {"job": job_id, "rooms": padded(sorted(rooms))})


async def lock_rooms(tx: Transaction, rooms: Sequence[str]) -> list[str]:
    """Lock rooms before their held tasks are counted; skip locked rooms, and return the others.

    No transaction waits for a room, so the lock order does not include rooms.
    """
    if tx.is_sqlite or not rooms:
        return list(rooms)
    return list((await tx.execute(_LOCK_ROOMS, {"all_room": list(rooms)})).scalars())


async def jobs_queued_in(tx: Transaction, rooms: Sequence[str]) -> list[JobName]:
    """Return the jobs whose queues contain tasks of these rooms, at most a hundred."""
    return [JobName(*row) for row in await tx.execute(_JOBS, {"rooms": padded(rooms)})]


async def find_empty(
    tx: Transaction, after: tuple[UUID, str], limit: int
) -> tuple[dict[UUID, list[str]], tuple[UUID, str]]:
    """Return the rooms without queued tasks, by job, among the `limit` rows that follow `after`.

    Also return the row to continue from: `FIRST` at the end. No row is locked.
    """
    tested = select(queues.c.job_id, queues.c.room_id, _IS_FILLED).order_by(queues.c.job_id, queues.c.room_id)
    tested = tested.where(tuple_(queues.c.job_id, queues.c.room_id) > tuple_(literal(after[0]), after[1]))
    rows = (await tx.execute(tested.limit(limit))).all()
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
    job_id: UUID | None = (await tx.execute(_LOCK_NEXT, {"after": after})).scalar_one_or_none()
    if job_id is not None:
        await tx.execute(_RESTORE, {"job": job_id})
    return job_id


async def restore(tx: Transaction, job_ids: Iterable[UUID]) -> bool:
    """Add the rows of those of these jobs that have none. Return whether there are any.

    The caller has locked the jobs.
    """
    is_any = False
    for job_id in [] if tx.is_sqlite else job_ids:
        if not await by_place(tx, job_id, 1, None):
            await tx.execute(_RESTORE, {"job": job_id})
            is_any = is_any or bool(await by_place(tx, job_id, 1, None))
    return is_any


def _upsert_row() -> Executable:
    added = sqlite.insert(queues)
    moved = {name: added.excluded[name] for name in ("lane", "seq")}
    is_later = tuple_(*moved.values()) < tuple_(queues.c.lane, queues.c.seq)
    statement: Executable = added.on_conflict_do_update(
        index_elements=["job_id", "room_id"], set_=moved, where=is_later
    )
    return statement


def _heads_of(room: Any) -> Select[Any]:
    # A range instead of an equality: with an equality SQLite may sort all tasks of the job in the room.
    queue = select(tasks.c.room_id, tasks.c.lane, tasks.c.seq)
    queue = queue.where(tasks.c.job_id == _JOB, tasks.c.room_id >= room, tasks.c.room_id <= room, QUEUED)
    return queue.order_by(tasks.c.room_id, tasks.c.lane, tasks.c.seq).limit(bindparam("count"))


def _same_room() -> Select[Any]:
    same = and_(queues.c.job_id == tasks.c.job_id, queues.c.room_id == tasks.c.room_id)
    return select(queues.c.job_id).where(same).correlate(tasks)


_JOB = bindparam("job", type_=queues.c.job_id.type)
_UPSERT = _upsert_row()
_NEW = arrays({name: queues.c[name].type for name in COLUMNS})
_RESTORE = upsert_from(select(*[tasks.c[name] for name in COLUMNS]).where(tasks.c.job_id == _JOB, QUEUED))
_UNLISTED = (
    select(tasks.c.seq)
    .where(tasks.c.job_id == jobs.c.id, QUEUED)
    .where(~_same_room().exists())
    .correlate(jobs)
)
_LOCK_NEXT = (
    select(jobs.c.id)
    .where(jobs.c.id > bindparam("after"), jobs.c.pending > 0, _UNLISTED.exists())
    .order_by(jobs.c.id)
    .limit(1)
    .with_for_update(key_share=True)
)
_UPSERT_MANY = upsert_from(select(*[_NEW.c[name] for name in COLUMNS]))
_LAST_SEQ = select(func.last_insert_rowid())
_HELD = select(func.count()).where(tasks.c.room_id == queues.c.room_id, IS_HELD).correlate(queues)
_IS_FILLED = (
    select(tasks.c.seq)
    .where(tasks.c.job_id == queues.c.job_id, tasks.c.room_id == queues.c.room_id, QUEUED)
    .correlate(queues)
    .exists()
)
_IS_OPEN = _HELD.scalar_subquery() < bindparam("cap", type_=Integer())
_BY_PLACE = (
    select(queues.c.room_id, queues.c.lane, queues.c.seq)
    .where(queues.c.job_id == _JOB)
    .order_by(queues.c.lane, queues.c.seq)
    .limit(bindparam("limit"))
)
_OPEN_BY_PLACE = _BY_PLACE.where(_IS_OPEN)
_BY_NAME = select(queues.c.room_id).where(queues.c.job_id == _JOB).order_by(queues.c.room_id)
_LAST = bindparam("last", type_=queues.c.room_id.type)
_AFTER = _BY_NAME.where(queues.c.room_id > _LAST).limit(bindparam("limit"))
_UNTIL = _BY_NAME.where(queues.c.room_id <= _LAST).limit(bindparam("limit"))
_ROOMS = arrays({"room": queues.c.room_id.type})
_HEADS = select(_heads_of(_ROOMS.c.room).lateral()).select_from(_ROOMS)
_LISTED = func.json_each(bindparam("rooms", type_=Text())).table_valued("value", name="listed")
_first = tasks.alias("first")
_FIRST_SEQS = _heads_of(_LISTED.c.value).with_only_columns(tasks.c.seq).correlate(_LISTED)
_HEADS_ON_SQLITE = (
    select(_first.c.room_id, _first.c.lane, _first.c.seq)
    .select_from(_LISTED)
    .join(_first, _first.c.seq.in_(_FIRST_SEQS))
)
_MOVE = (
    update(queues)
    .where(queues.c.job_id == _JOB, queues.c.room_id == bindparam("room"))
    .values(lane=bindparam("new_lane"), seq=bindparam("new_seq"))
)
_REMOVE = delete(queues).where(queues.c.job_id == _JOB, among(queues.c.room_id, bindparam("rooms")))
_LOCK_ROOMS = select(_ROOMS.c.room).where(
    func.pg_try_advisory_xact_lock(func.hashtextextended(_ROOMS.c.room, _LOCK_SEED))
)
_JOBS = (
    select(jobs.c.room_id, jobs.c.category, jobs.c.name)
    .join_from(queues, jobs, queues.c.job_id == jobs.c.id)
    .where(among(queues.c.room_id, bindparam("rooms")))
    .distinct()
    .limit(_MAX_JOBS)
)
