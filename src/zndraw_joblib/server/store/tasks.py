"""Tasks. Nothing outside this module writes a task's status, and each writer has its guard in the WHERE."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    Update,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    union_all,
    update,
)

from zndraw_joblib.contract.messages import MAX_JSON_BYTES
from zndraw_joblib.contract.names import INTERNAL, JobName
from zndraw_joblib.contract.problems import ContentTooLarge
from zndraw_joblib.contract.status import HELD, TERMINAL, TaskStatus
from zndraw_joblib.server.ports import Page
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.lists import among, arrays, by_column, padded
from zndraw_joblib.server.store.tables import Job, Task, Worker

tasks = Task.__table__
jobs = Job.__table__
workers = Worker.__table__


def _among(statuses: Iterable[TaskStatus]) -> ColumnElement[bool]:
    # Literals: neither database uses a partial index where the status is a parameter.
    return tasks.c.status.in_([literal_column(f"'{status}'") for status in sorted(statuses)])


_PENDING = tasks.c.status == literal_column(f"'{TaskStatus.PENDING}'")
_HELD = _among(HELD)
_CHUNK = 512
# SQLite takes 32766 parameters.
_IDS = 16_384
# Expressions that no index serves: few tasks are held, but without statistics SQLite would rather walk
# all tasks in their order, or start from the jobs.
_BY_ARRIVAL = tasks.c.seq + 0
_ROOM_OF_JOB = func.coalesce(jobs.c.room_id, "")
MAX_PAGE_CHARACTERS = 32 * 1024**2
_SURELY_SMALL = MAX_PAGE_CHARACTERS // (2 * MAX_JSON_BYTES)
# SQLite takes 500 branches of a compound select.
_BRANCHES = 100
_GUARDED = ("seq", "status", "attempt")
_WRITTEN = (
    "status",
    "worker_id",
    "worker_owner_id",
    "attempt",
    "claimed_at",
    "started_at",
    "completed_at",
    "error",
    "result",
)


@dataclass(slots=True)
class Record:
    """A task as it stands in the database, with the name of its job."""

    seq: int
    id: UUID
    job_id: UUID
    job: JobName
    room_id: str
    status: TaskStatus
    created_by: str
    payload: dict[str, Any]
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: UUID | None = None
    worker_owner_id: str | None = None
    attempt: int = 0
    error: str | None = None
    result: Any = None


class Standing(NamedTuple):
    """Where a task stands, and who holds it or held it last, by which claim."""

    status: TaskStatus
    worker_id: UUID | None
    attempt: int


_FIELDS = [tasks.c[name] for name in Record.__dataclass_fields__ if name != "job"]
_INSERTED = [column.name for column in _FIELDS if column.name != "seq"]
_NAME = [jobs.c.room_id.label("job_room"), jobs.c.category, jobs.c.name]


def _record(row: Sequence[Any]) -> Record:
    seq, task_id, job_id, room_id, status, *rest, job_room, category, name = row
    job = JobName(job_room, category, name)
    return Record(seq, task_id, job_id, job, room_id, TaskStatus(status), *rest)


def _select(*, bodies: bool = True) -> Select[Any]:
    """Select whole records, or with payload and result left out: a sweep has no use for them."""
    bulky = {"payload", "result"}
    columns = [null().label(c.name) if not bodies and c.name in bulky else c for c in _FIELDS]
    return select(*columns, *_NAME).join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)


def in_queue(job_id: Any) -> ColumnElement[bool]:
    """Match the pending tasks of a job; order them by `job_id` and `seq`.

    A range, so that only the index of the queues has that order. With an equality PostgreSQL may walk
    the primary key instead, through all of the history, if it takes the pending tasks to be everywhere.
    """
    return and_(tasks.c.job_id >= job_id, tasks.c.job_id <= job_id, _PENDING)


def _moving(given: Mapping[str, ColumnElement[Any]]) -> Update:
    old = [tasks.c[name] == given[f"old_{name}"] for name in _GUARDED]
    return update(tasks).where(*old).values({name: given[f"new_{name}"] for name in _WRITTEN})


_FULL = _select()
_NEW = arrays({name: tasks.c[name].type for name in _INSERTED})
_ADD = insert(tasks)
_ADD_MANY = insert(tasks).from_select(
    _INSERTED, select(*[_NEW.c[name] for name in _INSERTED]).order_by(_NEW.c.place)
)
_MOVED = {f"old_{name}": tasks.c[name].type for name in _GUARDED} | {
    f"new_{name}": tasks.c[name].type for name in _WRITTEN
}
_MOVE = _moving({name: bindparam(name) for name in _MOVED})
_MOVE_MANY = _moving(dict(arrays(_MOVED).c))
# With the count of the one job that they concern: a statement less.
_ADD_AND_COUNT, _MOVE_AND_COUNT = (
    job_store.COUNT.add_cte(many.cte("written")) for many in (_ADD_MANY, _MOVE_MANY)
)
_BY_ID = _FULL.where(tasks.c.id == bindparam("task"))
_LOCK = (
    _FULL.add_columns(func.now().label("now"))
    .where(among(tasks.c.id, bindparam("ids")))
    .order_by(tasks.c.seq)
    .with_for_update(of=tasks)
)
_STANDINGS = select(tasks.c.id, tasks.c.status, tasks.c.worker_id, tasks.c.attempt).where(
    among(tasks.c.id, bindparam("ids"))
)
_LOCK_OLDEST = (
    _FULL.where(in_queue(bindparam("job")))
    .order_by(tasks.c.job_id, tasks.c.seq)
    .limit(bindparam("count"))
    .with_for_update(of=tasks, skip_locked=True)
)
_LOCK_PENDING = (
    _FULL.where(among(tasks.c.seq, bindparam("seqs")), _PENDING)
    .order_by(tasks.c.seq)
    .with_for_update(of=tasks, skip_locked=True)
)


async def _records(tx: Transaction, statement: Select[Any], **parameters: Any) -> list[Record]:
    return [_record(row) for row in await tx.execute(statement, parameters)]


async def add(tx: Transaction, new: Sequence[Record]) -> None:
    """Add tasks in their order. Their jobs are locked: else one could be hidden meanwhile."""
    rows = [{name: getattr(task, name) for name in _INSERTED} for task in new]
    changes = Counter(task.job_id for task in new if task.status == TaskStatus.PENDING)
    await _write(tx, (_ADD, _ADD_MANY, _ADD_AND_COUNT), rows, changes)


async def move(tx: Transaction, moves: Sequence[tuple[Record, Record]]) -> None:
    """Write new states over old ones. The old ones were read under a lock in this transaction.

    A task may move several times: its first and its last state count.

    The guard stands in the statement all the same: a row that is not as it was read stays.
    """
    if not moves:
        return
    ways: dict[int, tuple[Record, Record]] = {}
    for before, after in moves:
        first, _ = ways.get(before.seq, (before, after))
        ways[before.seq] = (first, after)
    changes: Counter[UUID] = Counter()
    for before, after in ways.values():
        changes[before.job_id] += (after.status == TaskStatus.PENDING) - (before.status == TaskStatus.PENDING)
    rows = [_parameters(before, after) for before, after in ways.values()]
    await _write(tx, (_MOVE, _MOVE_MANY, _MOVE_AND_COUNT), rows, changes)


async def _write(
    tx: Transaction,
    statements: tuple[Executable, Executable, Executable],
    rows: Sequence[Mapping[str, Any]],
    changes: Mapping[UUID, int],
) -> None:
    each, many, and_count = statements
    counted = [(job_id, change) for job_id, change in changes.items() if change]
    if tx.is_sqlite:
        await tx.execute(each, rows)
    elif len(counted) == 1:
        [(job_id, change)] = counted
        await tx.execute(and_count, {**by_column(rows), "job": job_id, "change": change})
        return
    else:
        await tx.execute(many, by_column(rows))
    await job_store.count_pending(tx, changes)


def _parameters(before: Record, after: Record) -> dict[str, Any]:
    old = {f"old_{name}": getattr(before, name) for name in _GUARDED}
    return old | {f"new_{name}": getattr(after, name) for name in _WRITTEN}


async def fail_held(
    tx: Transaction, wanted: ColumnElement[bool], error: str, *, limit: int | None = None
) -> list[Record]:
    """Fail those held tasks that match. Return them as they are now, without payload and result."""
    statement = _select(bodies=False).where(_HELD, wanted).order_by(_BY_ARRIVAL).limit(limit)
    found = await _records(tx, statement.with_for_update(of=tasks))
    now = await tx.now()
    values = {"status": TaskStatus.FAILED.value, "completed_at": now, "error": error}
    for start in range(0, len(found), _CHUNK):
        part = [record.seq for record in found[start : start + _CHUNK]]
        await tx.execute(update(tasks).where(tasks.c.seq.in_(padded(part)), _HELD).values(values))
    for record in found:
        record.status, record.completed_at, record.error = TaskStatus.FAILED, now, error
    return found


def held_by(worker_ids: Sequence[UUID]) -> ColumnElement[bool]:
    """Match the tasks of these workers."""
    return tasks.c.worker_id.in_(padded(worker_ids))


def stuck_inside(cutoff: datetime) -> ColumnElement[bool]:
    """Match the tasks of internal jobs that started, or else were made, before `cutoff`."""
    since = func.coalesce(tasks.c.started_at, tasks.c.created_at)
    return and_(_ROOM_OF_JOB == INTERNAL, since < cutoff)


def abandoned() -> ColumnElement[bool]:
    """Match the tasks of remote jobs whose worker does not exist."""
    known = select(workers.c.id).where(workers.c.id == tasks.c.worker_id).exists()
    return and_(_ROOM_OF_JOB != INTERNAL, or_(tasks.c.worker_id.is_(None), ~known))


async def by_id(tx: Transaction, task_id: UUID) -> Record | None:
    """Return one task."""
    found = await _records(tx, _BY_ID, task=task_id)
    return found[0] if found else None


async def lock(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Record]:
    """Return the tasks that exist, by id, and keep them as they are until the commit."""
    rows = (await tx.execute(_LOCK, {"ids": padded(ids)})).all()
    tx.note_now(rows)
    found = [_record(row[:-1]) for row in rows]
    return {record.id: record for record in found}


async def standings(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Standing]:
    """Return where those of these tasks stand that exist, by id, without a lock."""
    found: dict[UUID, Standing] = {}
    for start in range(0, len(ids), _IDS):
        rows = await tx.execute(_STANDINGS, {"ids": padded(ids[start : start + _IDS])})
        found |= {row.id: Standing(TaskStatus(row.status), row.worker_id, row.attempt) for row in rows}
    return found


async def lock_oldest(tx: Transaction, job_id: UUID, count: int) -> list[Record]:
    """Lock the oldest pending tasks of a job, passing over those a rival has locked."""
    return await _records(tx, _LOCK_OLDEST, job=job_id, count=count)


async def lock_pending(tx: Transaction, seqs: Sequence[int]) -> dict[int, Record]:
    """Lock those of these tasks that are pending and that no rival has locked, by `seq`."""
    found = await _records(tx, _LOCK_PENDING, seqs=padded(seqs))
    return {record.seq: record for record in found}


async def oldest(tx: Transaction, demand: dict[UUID, int]) -> dict[UUID, list[int]]:
    """Return the `seq` of each job's oldest pending tasks, as many as asked for, without a lock.

    Each queue is walked by itself: a condition over several jobs makes PostgreSQL sort the whole backlog.
    """
    found: dict[UUID, list[int]] = {job_id: [] for job_id in demand}
    if tx.is_sqlite:
        branches = [select(_oldest_of(job_id, count).subquery()) for job_id, count in demand.items()]
        for start in range(0, len(branches), _BRANCHES):
            for job_id, seq in await tx.execute(union_all(*branches[start : start + _BRANCHES])):
                found[job_id].append(seq)
    else:
        asked = by_column([{"job": job_id, "count": count} for job_id, count in demand.items()])
        for job_id, seq in await tx.execute(_OLDEST_OF_EACH, asked):
            found[job_id].append(seq)
    return {job_id: sorted(seqs) for job_id, seqs in found.items()}


def _oldest_of(job_id: Any, count: Any) -> Select[Any]:
    queue = select(tasks.c.job_id, tasks.c.seq).where(in_queue(job_id))
    return queue.order_by(tasks.c.job_id, tasks.c.seq).limit(count)


_DEMAND = arrays({"job": tasks.c.job_id.type, "count": tasks.c.attempt.type})
_OLDEST_OF_EACH = select(_oldest_of(_DEMAND.c.job, _DEMAND.c.count).lateral()).select_from(_DEMAND)


async def finished(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these tasks that have ended."""
    found: list[UUID] = []
    for start in range(0, len(ids), _CHUNK):
        part = tasks.c.id.in_(padded(ids[start : start + _CHUNK]))
        found += (await tx.execute(select(tasks.c.id).where(part, _among(TERMINAL)))).scalars()
    return found


def in_room(room_id: str, status: TaskStatus | None, job_id: UUID | None = None) -> list[ColumnElement[bool]]:
    """Match a room's tasks, of one status and of one job where these are given."""
    wanted = [tasks.c.room_id == room_id]
    if job_id is not None:
        wanted.append(tasks.c.job_id == job_id)
    if status is not None:
        wanted.append(_among([status]))
    return wanted


async def page(tx: Transaction, wanted: list[ColumnElement[bool]], part: Page) -> tuple[list[Record], int]:
    """Return one page, newest first, and the count of all that match.

    Raises `ContentTooLarge` for one with more than 32 MiB of payloads and results.
    """
    order = tasks.c.created_at.desc(), tasks.c.seq.desc()
    await _check_bulk(tx, select(tasks.c.seq).where(*wanted).order_by(*order), part)
    found = await _records(tx, _FULL.where(*wanted).order_by(*order).limit(part.limit).offset(part.offset))
    total = await tx.execute(select(func.count()).select_from(tasks).where(*wanted))
    return found, total.scalar_one()


async def _check_bulk(tx: Transaction, found: Select[Any], part: Page) -> None:
    if part.limit <= _SURELY_SMALL:
        return
    size = func.length(tasks.c.payload) + func.coalesce(func.length(tasks.c.result), 0)
    some = found.add_columns(size.label("size")).limit(part.limit).offset(part.offset).subquery()
    bulk = (await tx.execute(select(func.coalesce(func.sum(some.c.size), 0)))).scalar_one()
    if bulk > MAX_PAGE_CHARACTERS:
        raise ContentTooLarge(
            f"limit: {part.limit} tasks hold {bulk} characters of payloads and results here; a page takes "
            f"{MAX_PAGE_CHARACTERS}: ask for fewer at once"
        )
