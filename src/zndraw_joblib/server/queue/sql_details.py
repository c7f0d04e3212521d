"""The details of attempts: progress, logs and failures. Writers hold the locks of the tasks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Insert,
    Integer,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.server.db.bulk import among, arrays, by_column, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.db.tables import AttemptDetailRecord, Task, TaskLogPart
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    RECORD_COLUMNS,
    RECORD_NAMES,
    TASKS_AND_JOBS,
    TaskRecord,
    record_of,
)
from zndraw_joblib.wire.progress import MAX_LOG_LINES

tasks = Task.__table__
details = AttemptDetailRecord.__table__
log = TaskLogPart.__table__

_MAX_PRUNED_LINES = 50_000


class LogCounts(NamedTuple):
    """The number of a log's last line, and how many lines and bytes of it are kept."""

    last: int = 0
    lines: int = 0
    size: int = 0


class StoredLogPart(NamedTuple):
    """Consecutive lines of a log: a JSON list of `size` bytes."""

    first: int
    last: int
    size: int
    lines: str


class Detail(NamedTuple):
    """The details of an attempt. The full traceback is None where it was not read."""

    attempt: int
    progress: dict[str, Any] | None
    progress_at: datetime | None
    log_last: int
    log_lines: int
    failure: dict[str, Any] | None
    full_traceback: str | None = None


class Change(NamedTuple):
    """A change of an attempt's details: None leaves a value as it is; numbers are added to the counts."""

    task_seq: int
    attempt: int
    progress: dict[str, Any] | None
    progress_at: datetime | None
    failure: dict[str, Any] | None
    full_traceback: str | None
    log_last: int
    log_lines: int
    log_bytes: int


_COLUMNS = [details.c[name] for name in Detail._fields if name != "full_traceback"]
_GIVEN = (among(details.c.task_seq, bindparam("seqs")), among(details.c.attempt, bindparam("attempts")))
_OF_TASKS = select(details.c.task_seq, *_COLUMNS).where(*_GIVEN)
_COUNTS = select(
    details.c.task_seq, details.c.attempt, details.c.log_last, details.c.log_lines, details.c.log_bytes
).where(*_GIVEN)
_DETAIL_COLUMNS = Detail._fields[:-1]
_BY_ID = statement(
    f"""
SELECT {RECORD_COLUMNS[True]},
    {", ".join(f"joblib_attempt_detail.{name} AS detail_{name}" for name in _DETAIL_COLUMNS)},
    joblib_task_result.n
FROM {TASKS_AND_JOBS}
LEFT JOIN joblib_attempt_detail ON joblib_attempt_detail.task_seq = joblib_task.seq
    AND joblib_attempt_detail.attempt = joblib_task.attempt
LEFT JOIN joblib_task_result ON joblib_task_result.task_seq = joblib_task.seq
WHERE joblib_task.id = :id
""",
    *(*RECORD_NAMES, *(f"detail_{name}" for name in _DETAIL_COLUMNS), "result_n"),
    **{f"detail_{column.name}": column.type for column in _COLUMNS},
)
_FIRST, _LAST = [bindparam(name, type_=BigInteger()) for name in ("first", "last")]
_LINES_OF_TASKS = (
    select(details.c.task_seq, func.sum(details.c.log_lines))
    # Without statistics, PostgreSQL scans the whole table for a long list alone.
    .where(details.c.task_seq.between(_FIRST, _LAST), among(details.c.task_seq, bindparam("seqs")))
    .group_by(details.c.task_seq)
)
_SEQ, _ATTEMPT = bindparam("seq", type_=BigInteger()), bindparam("number", type_=Integer())
_ALL = select(*_COLUMNS, details.c.full_traceback).where(details.c.task_seq == _SEQ)
_OF_ATTEMPT = and_(log.c.task_seq == _SEQ, log.c.attempt == _ATTEMPT)
_AFTER = bindparam("after", type_=BigInteger())
_PARTS = (
    select(log.c.first, log.c.last, log.c.size, log.c.lines)
    # A part has at most this number of lines: with the bound, the index finds the first one.
    .where(_OF_ATTEMPT, log.c.last > _AFTER, log.c.first > _AFTER - MAX_LOG_LINES)
    .order_by(log.c.first)
    .limit(bindparam("limit", type_=BigInteger()))
)


async def current(tx: Transaction, records: Sequence[TaskRecord]) -> dict[UUID, Detail]:
    """Return the details of the current or last attempts of tasks, by the ids of the tasks that have any."""
    ids = {(task.seq, task.attempt): task.id for task in records if task.attempt}
    rows = await _select(tx, _OF_TASKS, list(ids))
    return {ids[seq, rest[0]]: Detail(*rest) for seq, *rest in rows if (seq, rest[0]) in ids}


async def by_id(tx: Transaction, task_id: UUID) -> tuple[TaskRecord, Detail | None, bool] | None:
    """Return a task, the details of its current or last attempt, and whether it has a stored result."""
    row = (await tx.execute(_BY_ID, {"id": task_id})).one_or_none()
    if row is None:
        return None
    *columns, result_n = row
    record, detail = columns[: -len(_COLUMNS)], columns[-len(_COLUMNS) :]
    return record_of(record), None if detail[0] is None else Detail(*detail), result_n is not None


async def of_task(tx: Transaction, seq: int) -> list[Detail]:
    """Return the details of the attempts of a task, oldest first, with the full tracebacks."""
    rows = await tx.execute(_ALL.order_by(details.c.attempt), {"seq": seq})
    return [Detail(*row) for row in rows]


async def parts(tx: Transaction, seq: int, attempt: int, after: int, limit: int) -> list[StoredLogPart]:
    """Return the parts of a log that have lines after a number, in order, at most `limit` parts."""
    params = {"seq": seq, "number": attempt, "after": after, "limit": limit}
    return [StoredLogPart(*row) for row in await tx.execute(_PARTS, params)]


async def log_counts(tx: Transaction, attempts: Mapping[int, int]) -> dict[int, LogCounts]:
    """Return the counts of the logs of attempts, given and returned by the `seq` of their tasks."""
    rows = await _select(tx, _COUNTS, list(attempts.items()))
    return {seq: LogCounts(*counts) for seq, attempt, *counts in rows if attempts[seq] == attempt}


async def _select(tx: Transaction, statement: Any, pairs: Sequence[tuple[int, int]]) -> list[Any]:
    rows: list[Any] = []
    for start in range(0, len(pairs), CHUNK):
        seqs, attempts = zip(*pairs[start : start + CHUNK], strict=True)
        params = {"seqs": padded(seqs), "attempts": padded(sorted(set(attempts)))}
        rows += (await tx.execute(statement, params)).all()
    return rows


def _from_list(table: Table) -> postgresql.Insert:
    """Return PostgreSQL's statement that inserts the rows of a list."""
    names = table.c.keys()
    columns = arrays({name: table.c[name].type for name in names})
    return postgresql.insert(table).from_select(names, select(*[columns.c[name] for name in names]))


_ADD_PARTS = _from_list(log)


async def add_parts(tx: Transaction, new: Iterable[tuple[int, int, StoredLogPart]]) -> None:
    """Add parts to the logs of attempts, given by the `seq` of their tasks and their numbers."""
    rows = [{"task_seq": seq, "attempt": attempt, **part._asdict()} for seq, attempt, part in new]
    if rows and tx.is_sqlite:
        await tx.execute(insert(log), rows)
    elif rows:
        await tx.execute(_ADD_PARTS, by_column(rows))


_RANKED = (
    select(
        log.c.first,
        func.sum(log.c.size).over(order_by=log.c.first.desc()).label("size"),
        func.sum(log.c.last - log.c.first + 1).over(order_by=log.c.first.desc()).label("lines"),
    )
    .where(_OF_ATTEMPT)
    .subquery()
)
_IS_TOO_MUCH = or_(
    _RANKED.c.size > bindparam("most_bytes", type_=BigInteger()),
    _RANKED.c.lines > bindparam("most_lines", type_=BigInteger()),
)
_TRIM = (
    delete(log)
    .where(
        _OF_ATTEMPT, log.c.first <= select(func.max(_RANKED.c.first)).where(_IS_TOO_MUCH).scalar_subquery()
    )
    .returning(log.c.last - log.c.first + 1, log.c.size)
)


async def trim_log(
    tx: Transaction, seq: int, attempt: int, *, most_lines: int, most_bytes: int
) -> tuple[int, int]:
    """Delete the oldest parts of a log beyond these bounds; return the deleted lines and bytes."""
    params = {"seq": seq, "number": attempt, "most_lines": most_lines, "most_bytes": most_bytes}
    rows = (await tx.execute(_TRIM, params)).all()
    return sum(lines for lines, _ in rows), sum(size for _, size in rows)


def _upsert(statement: Any) -> Insert:
    """Return a statement that adds changes to the rows of attempts."""
    replaced = ("progress", "progress_at", "failure", "full_traceback")
    values = {name: func.coalesce(statement.excluded[name], details.c[name]) for name in replaced}
    for name in ("log_last", "log_lines", "log_bytes"):
        values[name] = details.c[name] + statement.excluded[name]
    upsert: Insert = statement.on_conflict_do_update(index_elements=["task_seq", "attempt"], set_=values)
    return upsert


_UPSERT = _upsert(sqlite.insert(details))
_UPSERT_MANY = _upsert(_from_list(details))


async def write(tx: Transaction, changes: Sequence[Change]) -> None:
    """Write changes of the details of attempts of different tasks."""
    rows = [change._asdict() for change in changes]
    if tx.is_sqlite:
        await tx.execute(_UPSERT, rows)
    else:
        await tx.execute(_UPSERT_MANY, by_column(rows))


async def forget(tx: Transaction, seq: int, newest: int) -> None:
    """Delete the details of the attempts of a task up to the number `newest`."""
    for table in (log, details):
        await tx.execute(delete(table).where(table.c.task_seq == seq, table.c.attempt <= newest))


async def first_to_prune(tx: Transaction, seqs: Sequence[int]) -> Sequence[int]:
    """Return the first of these tasks whose logs are deleted in a short time: at least one."""
    lines: dict[int, int] = {}
    for start in range(0, len(seqs), CHUNK):
        chunk = seqs[start : start + CHUNK]
        params = {"seqs": padded(chunk), "first": min(chunk), "last": max(chunk)}
        lines |= {seq: count for seq, count in await tx.execute(_LINES_OF_TASKS, params)}
    total = 0
    for place, seq in enumerate(seqs):
        total += lines.get(seq, 0)
        if total > _MAX_PRUNED_LINES:
            return seqs[: max(place, 1)]
    return seqs


async def prune(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete the details of all attempts of these tasks, whose values of `seq` are close to each other."""
    for table in (log, details):
        # As for `_LINES_OF_TASKS`.
        is_near = table.c.task_seq.between(min(seqs), max(seqs))
        await tx.execute(delete(table).where(is_near, table.c.task_seq.in_(padded(seqs))))


# The functions of a host to call after the end of a task: their names, leases and attempts.

_HOOKED = and_(tasks.c.on_end.is_not(None), tasks.c.completed_at.is_not(None))


class Lease(NamedTuple):
    """One call of a function for the end of a task; `attempt` counts from 1."""

    task_id: UUID
    name: str
    attempt: int
    completed_at: datetime


async def attach(tx: Transaction, names: Mapping[UUID, str], now: datetime) -> None:
    """Set the function to call after the end of each of these new tasks."""
    for name in sorted(set(names.values())):
        ids = [task_id for task_id, function in names.items() if function == name]
        values = {"on_end": name, "on_end_attempts": 0, "on_end_due_at": now}
        await tx.execute(update(tasks).where(tasks.c.id.in_(padded(ids))).values(values))


async def take(
    tx: Transaction, names: Mapping[str, int], limit: int, now: datetime, until: datetime
) -> list[Lease]:
    """Lease due calls until a time, after which another server takes them again.

    At most `limit`, and of each function at most as many as `names` has.
    """
    leases: list[Lease] = []
    # One by one, so that none reads the calls of functions that this server does not know.
    for name, free in names.items():
        due = select(tasks.c.id, tasks.c.on_end_attempts, tasks.c.completed_at)
        due = due.where(_HOOKED, tasks.c.on_end == name, tasks.c.on_end_due_at <= now)
        due = (
            due.order_by(tasks.c.on_end_due_at)
            .limit(min(free, limit - len(leases)))
            .with_for_update(skip_locked=True)
        )
        rows = (await tx.execute(due)).all()
        leases += [Lease(row.id, name, row.on_end_attempts + 1, row.completed_at) for row in rows]
        if len(leases) == limit:
            break
    if leases:
        ids = padded([lease.task_id for lease in leases])
        values = {"on_end_attempts": tasks.c.on_end_attempts + 1, "on_end_due_at": until}
        await tx.execute(update(tasks).where(tasks.c.id.in_(ids)).values(values))
    return leases


async def next_due(tx: Transaction, names: Collection[str]) -> datetime | None:
    """Return when the next call of these functions is due; None without one."""
    times: list[datetime] = []
    for name in names:
        first = select(func.min(tasks.c.on_end_due_at)).where(_HOOKED, tasks.c.on_end == name)
        if (due := (await tx.execute(first)).scalar()) is not None:
            times.append(due)
    return min(times, default=None)


async def finish(tx: Transaction, lease: Lease) -> None:
    """Record that there is no further call; not if the task has got another end since."""
    values = {"on_end": None, "on_end_attempts": None, "on_end_due_at": None}
    await tx.execute(update(tasks).where(_is_current(lease)).values(values))


async def postpone(tx: Transaction, lease: Lease, until: datetime) -> None:
    """Set when to call the function again."""
    await tx.execute(update(tasks).where(_is_current(lease)).values(on_end_due_at=until))


def _is_current(lease: Lease) -> ColumnElement[bool]:
    return and_(
        tasks.c.id == lease.task_id,
        tasks.c.on_end_attempts == lease.attempt,
        tasks.c.completed_at == lease.completed_at,
    )
