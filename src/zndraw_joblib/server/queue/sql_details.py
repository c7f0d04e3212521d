"""The details of attempts: progress, logs and failures. Writers hold the locks of the tasks."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, listed_rows, one_row, statement
from zndraw_joblib.server.db.tables import AttemptDetailRecord
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    RECORD_COLUMNS,
    RECORD_NAMES,
    TASKS_AND_JOBS,
    TaskRecord,
    record_of,
)
from zndraw_joblib.wire.progress import MAX_LOG_LINES

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


class DetailedTask(NamedTuple):
    """A task with the details of its current or last attempt.

    It may have a stored result, and predecessors.
    """

    record: TaskRecord
    detail: Detail | None
    has_stored: bool
    has_predecessors: bool


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


_DETAIL_COLUMNS = Detail._fields[:-1]
_OF_ATTEMPTS = "WHERE task_seq = ANY (:all_task_seq) AND attempt = ANY (:all_attempt)"
_OF_TASKS = statement(
    f"SELECT task_seq, {', '.join(_DETAIL_COLUMNS)} FROM joblib_attempt_detail {_OF_ATTEMPTS}",
    *("task_seq", *_DETAIL_COLUMNS),
)
_COUNTS = statement(
    f"SELECT task_seq, attempt, log_last, log_lines, log_bytes FROM joblib_attempt_detail {_OF_ATTEMPTS}",
    *("task_seq", "attempt", "log_last", "log_lines", "log_bytes"),
)
_BY_ID = statement(
    f"""
SELECT {RECORD_COLUMNS[True]},
    {", ".join(f"joblib_attempt_detail.{name} AS detail_{name}" for name in _DETAIL_COLUMNS)},
    joblib_task_result.n, joblib_successor.task_seq
FROM {TASKS_AND_JOBS}
LEFT JOIN joblib_attempt_detail ON joblib_attempt_detail.task_seq = joblib_task.seq
    AND joblib_attempt_detail.attempt = joblib_task.attempt
LEFT JOIN joblib_task_result ON joblib_task_result.task_seq = joblib_task.seq
LEFT JOIN joblib_successor ON joblib_successor.task_seq = joblib_task.seq
WHERE joblib_task.id = :id
""",
    *(*RECORD_NAMES, *(f"detail_{name}" for name in _DETAIL_COLUMNS), "result_n", "task_seq"),
    **{f"detail_{name}": AttemptDetailRecord.__table__.c[name].type for name in _DETAIL_COLUMNS},
)
# Without statistics, PostgreSQL scans the whole table for a long list alone.
_IS_NEAR = "task_seq BETWEEN :first AND :last AND task_seq = ANY (:all_task_seq)"
_MAX_GAP = 10_000
_NEAR_TYPES = {"first": BIG_INTEGER, "last": BIG_INTEGER}
_LINES_OF_TASKS = statement(
    f"SELECT task_seq, sum(log_lines) FROM joblib_attempt_detail WHERE {_IS_NEAR} GROUP BY task_seq",
    *("task_seq", "log_lines"),
    **_NEAR_TYPES,
)
_PRUNE = [
    statement(f"DELETE FROM {table} WHERE {_IS_NEAR}", **_NEAR_TYPES)
    for table in ("joblib_task_log", "joblib_attempt_detail")
]
_FORGET = [
    statement(f"DELETE FROM {table} WHERE task_seq = :task_seq AND attempt <= :attempt")
    for table in ("joblib_task_log", "joblib_attempt_detail")
]
_ALL = statement(
    f"""
SELECT {", ".join(Detail._fields)} FROM joblib_attempt_detail WHERE task_seq = :task_seq ORDER BY attempt
""",
    *Detail._fields,
)
_OF_ATTEMPT = "task_seq = :task_seq AND attempt = :attempt"
# A part has at most this number of lines: with the bound, the index finds the first one.
_PARTS = statement(
    f"""
SELECT first, last, size, lines FROM joblib_task_log
WHERE {_OF_ATTEMPT} AND last > :after AND first > :after - {MAX_LOG_LINES}
ORDER BY first LIMIT :limit
""",
    *StoredLogPart._fields,
    after=BIG_INTEGER,
)
_LOG_COLUMNS = ("task_seq", "attempt", *StoredLogPart._fields)
_ADD_PART = statement(f"INSERT INTO joblib_task_log {one_row(_LOG_COLUMNS)}")
_ADD_PARTS = statement(f"INSERT INTO joblib_task_log {listed_rows(_LOG_COLUMNS)}")
_TRIM = statement(
    f"""
DELETE FROM joblib_task_log
WHERE {_OF_ATTEMPT} AND first <= (
    SELECT max(ranked.first) FROM (
        SELECT first, sum(size) OVER (ORDER BY first DESC) AS size,
            sum(last - first + 1) OVER (ORDER BY first DESC) AS lines
        FROM joblib_task_log WHERE {_OF_ATTEMPT}
    ) AS ranked
    WHERE ranked.size > :most_bytes OR ranked.lines > :most_lines
)
RETURNING last - first + 1, size
""",
    *("count", "size"),
    most_bytes=BIG_INTEGER,
    most_lines=BIG_INTEGER,
)
_REPLACED = ("progress", "progress_at", "failure", "full_traceback")
_COUNTED = ("log_last", "log_lines", "log_bytes")
_ADD_TO_DETAIL = f"""
ON CONFLICT (task_seq, attempt) DO UPDATE SET
    {", ".join(f"{name} = coalesce(excluded.{name}, joblib_attempt_detail.{name})" for name in _REPLACED)},
    {", ".join(f"{name} = joblib_attempt_detail.{name} + excluded.{name}" for name in _COUNTED)}"""
_WRITE_ONE = statement(f"INSERT INTO joblib_attempt_detail {one_row(Change._fields)} {_ADD_TO_DETAIL}")
_WRITE = statement(f"INSERT INTO joblib_attempt_detail {listed_rows(Change._fields)} {_ADD_TO_DETAIL}")


async def current(tx: Transaction, records: Sequence[TaskRecord]) -> dict[UUID, Detail]:
    """Return the details of the current or last attempts of tasks, by the ids of the tasks that have any."""
    ids = {(task.seq, task.attempt): task.id for task in records if task.attempt}
    rows = await _select(tx, _OF_TASKS, list(ids))
    return {ids[seq, rest[0]]: Detail(*rest) for seq, *rest in rows if (seq, rest[0]) in ids}


async def by_id(tx: Transaction, task_id: UUID) -> DetailedTask | None:
    """Return a task with the details of its current or last attempt."""
    row = (await tx.execute(_BY_ID, {"id": task_id})).one_or_none()
    if row is None:
        return None
    *columns, result_n, successor_seq = row
    record, detail = columns[: -len(_DETAIL_COLUMNS)], columns[-len(_DETAIL_COLUMNS) :]
    return DetailedTask(
        record_of(record),
        None if detail[0] is None else Detail(*detail),
        result_n is not None,
        successor_seq is not None,
    )


async def of_task(tx: Transaction, seq: int) -> list[Detail]:
    """Return the details of the attempts of a task, oldest first, with the full tracebacks."""
    return [Detail(*row) for row in await tx.execute(_ALL, {"task_seq": seq})]


async def parts(tx: Transaction, seq: int, attempt: int, after: int, limit: int) -> list[StoredLogPart]:
    """Return the parts of a log that have lines after a number, in order, at most `limit` parts."""
    params = {"task_seq": seq, "attempt": attempt, "after": after, "limit": limit}
    return [StoredLogPart(*row) for row in await tx.execute(_PARTS, params)]


async def log_counts(tx: Transaction, attempts: Mapping[int, int]) -> dict[int, LogCounts]:
    """Return the counts of the logs of attempts, given and returned by the `seq` of their tasks."""
    rows = await _select(tx, _COUNTS, list(attempts.items()))
    return {seq: LogCounts(*counts) for seq, attempt, *counts in rows if attempts[seq] == attempt}


async def _select(tx: Transaction, statement: Any, pairs: Sequence[tuple[int, int]]) -> list[Any]:
    rows: list[Any] = []
    for start in range(0, len(pairs), CHUNK):
        seqs, attempts = zip(*pairs[start : start + CHUNK], strict=True)
        params = {"all_task_seq": padded(seqs), "all_attempt": padded(sorted(set(attempts)))}
        rows += (await tx.execute(statement, params)).all()
    return rows


async def add_parts(tx: Transaction, new: Iterable[tuple[int, int, StoredLogPart]]) -> None:
    """Add parts to the logs of attempts, given by the `seq` of their tasks and their numbers."""
    rows = [{"task_seq": seq, "attempt": attempt, **part._asdict()} for seq, attempt, part in new]
    if rows and tx.is_sqlite:
        await tx.execute(_ADD_PART, rows)
    elif rows:
        await tx.execute(_ADD_PARTS, by_column(rows))


async def trim_log(
    tx: Transaction, seq: int, attempt: int, *, most_lines: int, most_bytes: int
) -> tuple[int, int]:
    """Delete the oldest parts of a log beyond these bounds; return the deleted lines and bytes."""
    params = {"task_seq": seq, "attempt": attempt, "most_lines": most_lines, "most_bytes": most_bytes}
    rows = (await tx.execute(_TRIM, params)).all()
    return sum(lines for lines, _ in rows), sum(size for _, size in rows)


async def write(tx: Transaction, changes: Sequence[Change]) -> None:
    """Write changes of the details of attempts of different tasks."""
    rows = [change._asdict() for change in changes]
    if tx.is_sqlite:
        await tx.execute(_WRITE_ONE, rows)
    else:
        await tx.execute(_WRITE, by_column(rows))


async def forget(tx: Transaction, seq: int, newest: int) -> None:
    """Delete the details of the attempts of a task up to the number `newest`."""
    for forget_rows in _FORGET:
        await tx.execute(forget_rows, {"task_seq": seq, "attempt": newest})


async def first_to_prune(tx: Transaction, seqs: Sequence[int]) -> Sequence[int]:
    """Return the first of these tasks whose logs are deleted in a short time: at least one."""
    lines: dict[int, int] = {}
    for chunk in _near_parts(seqs):
        lines |= {seq: count for seq, count in await tx.execute(_LINES_OF_TASKS, _near(chunk))}
    total = 0
    for place, seq in enumerate(seqs):
        total += lines.get(seq, 0)
        if total > _MAX_PRUNED_LINES:
            return seqs[: max(place, 1)]
    return seqs


async def prune(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete the details of all attempts of these tasks."""
    for part in _near_parts(seqs):
        for prune_rows in _PRUNE:
            await tx.execute(prune_rows, _near(part))


def _near_parts(seqs: Sequence[int]) -> Iterator[list[int]]:
    """Yield these tasks in parts whose values of `seq` are close to each other."""
    part: list[int] = []
    for seq in sorted(seqs):
        if part and (len(part) == CHUNK or seq - part[-1] > _MAX_GAP):
            yield part
            part = []
        part.append(seq)
    if part:
        yield part


def _near(seqs: Sequence[int]) -> dict[str, Any]:
    return {"all_task_seq": padded(seqs), "first": min(seqs), "last": max(seqs)}


# The functions of a host to call after the end of a task: their names, leases and attempts.

_HOOKED = "on_end IS NOT NULL AND completed_at IS NOT NULL AND on_end = :on_end"
_IS_CURRENT = "id = :id AND on_end_attempts = :on_end_attempts AND completed_at = :completed_at"
_ATTACH = statement(
    """
UPDATE joblib_task SET on_end = :on_end, on_end_attempts = 0, on_end_due_at = :on_end_due_at
WHERE id = ANY (:all_id)
"""
)
_LOCK_DUE = statement(
    f"""
SELECT id, on_end_attempts, completed_at FROM joblib_task WHERE {_HOOKED} AND on_end_due_at <= :now
ORDER BY on_end_due_at LIMIT :limit
FOR UPDATE SKIP LOCKED
""",
    *("id", "on_end_attempts", "completed_at"),
)
_TAKE = statement(
    """
UPDATE joblib_task SET on_end_attempts = on_end_attempts + 1, on_end_due_at = :on_end_due_at
WHERE id = ANY (:all_id)
"""
)
_NEXT_DUE = statement(f"SELECT min(on_end_due_at) FROM joblib_task WHERE {_HOOKED}", "on_end_due_at")
_FINISH = statement(
    f"""
UPDATE joblib_task SET on_end = NULL, on_end_attempts = NULL, on_end_due_at = NULL WHERE {_IS_CURRENT}
"""
)
_POSTPONE = statement(f"UPDATE joblib_task SET on_end_due_at = :on_end_due_at WHERE {_IS_CURRENT}")


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
        await tx.execute(_ATTACH, {"all_id": padded(ids), "on_end": name, "on_end_due_at": now})


async def take(
    tx: Transaction, names: Mapping[str, int], limit: int, now: datetime, until: datetime
) -> list[Lease]:
    """Lease due calls until a time, after which another server takes them again.

    At most `limit`, and of each function at most as many as `names` has.
    """
    leases: list[Lease] = []
    # One by one, so that none reads the calls of functions that this server does not know.
    for name, free in names.items():
        params = {"on_end": name, "now": now, "limit": min(free, limit - len(leases))}
        rows = await tx.execute(_LOCK_DUE, params)
        leases += [Lease(row.id, name, row.on_end_attempts + 1, row.completed_at) for row in rows]
        if len(leases) == limit:
            break
    if leases:
        ids = padded([lease.task_id for lease in leases])
        await tx.execute(_TAKE, {"all_id": ids, "on_end_due_at": until})
    return leases


async def next_due(tx: Transaction, names: Collection[str]) -> datetime | None:
    """Return when the next call of these functions is due; None without one."""
    times: list[datetime] = []
    for name in names:
        if (due := (await tx.execute(_NEXT_DUE, {"on_end": name})).scalar()) is not None:
            times.append(due)
    return min(times, default=None)


async def finish(tx: Transaction, lease: Lease) -> None:
    """Record that there is no further call; not if the task has got another end since."""
    await tx.execute(_FINISH, _as_params(lease))


async def postpone(tx: Transaction, lease: Lease, until: datetime) -> None:
    """Set when to call the function again."""
    await tx.execute(_POSTPONE, {**_as_params(lease), "on_end_due_at": until})


def _as_params(lease: Lease) -> dict[str, Any]:
    return {"id": lease.task_id, "on_end_attempts": lease.attempt, "completed_at": lease.completed_at}
