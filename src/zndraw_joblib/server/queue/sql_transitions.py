"""The statements that change the status of tasks: they write only the columns that change."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic_core import to_json
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Select,
    Update,
    bindparam,
    func,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.server.db.bulk import among, arrays, by_column, json_rows, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.statements import BOOLEAN, TEXT, as_sql, one_row, statement
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.process.ports import job_key, queue_name
from zndraw_joblib.server.queue import (
    sql_counts,
    sql_details,
    sql_groups,
    sql_jobs,
    sql_limits,
    sql_occurrences,
    sql_payloads,
    sql_results,
    sql_room_queues,
    sql_successors,
    sql_trees,
    sql_webhooks,
)
from zndraw_joblib.server.queue.sql_counts import CountChanges
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    COLUMNS,
    IS_NEEDED_BY_SUCCESSOR,
    ROW_NAMES,
    TASK_IS_HELD,
    TASK_IS_PENDING,
    WAITING,
    Move,
    TaskRecord,
    TaskRow,
    of_status,
    row_columns,
    row_of,
)
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

tasks = Task.__table__

_GUARDED = ("status", "attempt")
_WRITTEN = (
    *("status", "worker_id", "worker_owner_id", "attempt", "claimed_at", "started_at", "completed_at"),
    *("error", "error_code", "result", "run_at", "expires_at", "deadline", "failures", "crashes", "claim_id"),
    *("queued_at", "unstarted", "limit_key"),
)
_OLD = {f"old_{name}": tasks.c[name] for name in _GUARDED}
_NEW_VALUES = {f"new_{name}": tasks.c[name] for name in _WRITTEN}
_GIVEN = {"seq": tasks.c.seq, **_OLD, **_NEW_VALUES}
_IS_WATCHED = literal_column(is_watched("joblib_task.room_id"), Boolean()).label("is_watched")
# Made before the statement runs: then SQLAlchemy has memoized its columns without those of RETURNING.
_COUNTED = statement(
    f"{sql_jobs.ADD_TO_COUNTS} RETURNING paused, paused_until",
    *("paused", "paused_until"),
    **sql_jobs.COUNT_TYPES,
).cte("counted")


def move_statement(tx: Transaction, moves: Sequence[Move]) -> tuple[Update | None, dict[str, Any]]:
    """Return the statement that writes moves, with its parameters; None if no column changes.

    It has the guards on status and attempt, and returns the `seq` of each task that it has written, on
    PostgreSQL also whether its room is watched. A value that is the same for all tasks is one parameter.
    """
    before, after = [vars(old) for old, _ in moves], [vars(new) for _, new in moves]
    columns = {f"old_{name}": [old[name] for old in before] for name in _GUARDED}
    pairs = list(zip(before, after, strict=True))
    is_any = False
    for name in _WRITTEN:
        if any(old[name] is not new[name] for old, new in pairs):
            columns[f"new_{name}"] = [new[name] for new in after]
            is_any = True
    if not is_any:
        return None, {}
    same = {
        name: values[0] for name, values in columns.items() if all(value is values[0] for value in values)
    }
    if not tx.is_sqlite and len(same) < len(columns):
        # As parameters the guards seem to match few tasks, so PostgreSQL may look for these first, in the
        # whole table. In the list they cannot.
        same = {name: value for name, value in same.items() if name not in _OLD}
    each = {"seq": [old["seq"] for old in before]}
    each |= {name: values for name, values in columns.items() if name not in same}
    # SQLite takes a limited number of parameters. A list in one of them costs more for few tasks.
    is_listed = len(each) == 1 and not (tx.is_sqlite and len(moves) > CHUNK)
    made = _updating(tuple(same), tuple(each), is_listed=is_listed, is_sqlite=tx.is_sqlite)
    if is_listed:
        return made, {**same, "seqs": padded(each["seq"]) if tx.is_sqlite else each["seq"]}
    if tx.is_sqlite:
        return made, {**same, "rows": list(each.values())}
    return made, same | {f"all_{name}": values for name, values in each.items()}


@lru_cache(maxsize=512)
def _updating(same: tuple[str, ...], each: tuple[str, ...], *, is_listed: bool, is_sqlite: bool) -> Update:
    parameters: dict[str, ColumnElement[Any]] = {
        name: bindparam(name, type_=_GIVEN[name].type) for name in same
    }
    if is_listed:
        condition: ColumnElement[bool] = among(tasks.c.seq, bindparam("seqs"))
    else:
        kinds = {name: _GIVEN[name].type for name in each}
        parameters |= json_rows(kinds) if is_sqlite else dict(arrays(kinds).c)
        condition = tasks.c.seq == parameters["seq"]
    guards = [column == parameters[name] for name, column in _OLD.items()]
    values = {column.name: parameters[name] for name, column in _NEW_VALUES.items() if name in parameters}
    made = update(tasks).where(condition, *guards).values(values).returning(tasks.c.seq)
    return made if is_sqlite else made.returning(_IS_WATCHED)


@lru_cache(maxsize=512)
def counting_statement(written: Update, *, is_of_one_job: bool) -> Select[Any]:
    """Return PostgreSQL's statement that also keeps the counts: one round trip less.

    It returns how many tasks it has written, whether one of their rooms is watched, and whether, and until
    when, their job is paused: None unless all are of one job whose counts change.
    """
    rows = written.cte("written")
    count = select(func.count()).select_from(rows).scalar_subquery().label("written")
    watched = select(func.bool_or(rows.c.is_watched)).scalar_subquery().label("is_watched")
    if not is_of_one_job:
        unknown = null().label("paused"), null().label("paused_until")
        return select(count, watched, *unknown).add_cte(rows, *sql_counts.change_ctes())
    changes = sql_counts.change_ctes(after="counted")
    return select(count, watched, *_COUNTED.c).add_cte(rows, _COUNTED, *changes)


# Fail held tasks whose worker is removed, in one statement, without reading them first.


async def fail_held_by(tx: Transaction, worker_ids: Sequence[UUID], error: str, code: str) -> list[TaskRow]:
    """Fail the tasks of these workers that the default policy does not retry. Return them, to `count` them.

    They have neither payload nor result. On PostgreSQL the other tasks of these workers are locked too: all
    in one order.
    """
    params = {"all_worker_id": padded(worker_ids), "now": await tx.now(), "error": error, "error_code": code}
    rows = (await tx.execute(_FAIL_ON_SQLITE if tx.is_sqlite else _FAIL, params)).all()
    if not tx.is_sqlite:
        _record_watched(tx, rows)
    tasks = [row_of(row) for row in rows]
    for row, task in zip(rows, tasks, strict=True):
        tx.record_freed(task.room_id, None)  # their workers' claims end
        tx.record_end(row.seq, task.status, row.group_id, linked=row.linked)
    return tasks


async def count(tx: Transaction, lost: Sequence[TaskRow], locked: Collection[UUID]) -> None:
    """Count tasks that have failed, after the jobs and the other tasks are locked: `locked` has the jobs."""
    changes = CountChanges()
    for task in lost:
        changes.fail_held(task.room_id, task.job_id)
    await sql_counts.write(tx, changes, locked)


_IS_OF_WORKERS = f"{TASK_IS_HELD} AND joblib_task.worker_id = ANY (:all_worker_id)"
# The default policy does not retry it.
_FAILS_AT_ONCE = """(joblib_task.max_attempts IS NULL OR joblib_task.max_attempts = 1)
    AND joblib_task.limit_key IS NULL AND EXISTS (
        SELECT 1 FROM joblib_job WHERE joblib_job.id = joblib_task.job_id AND joblib_job.policy IS NULL
    )"""
# What it costs to recover a task, compared with one that fails without a retry: a task that may be retried is
# read first, and gets a row in its history.
COST_IF_LOST = f"CASE WHEN {_FAILS_AT_ONCE} THEN 1 ELSE 3 END"
_FAIL_HELD = f"""
UPDATE joblib_task SET
    status = '{TaskStatus.FAILED}', completed_at = :now, error = :error, error_code = :error_code,
    crashes = joblib_task.crashes + 1, deadline = NULL, run_at = NULL"""
# Without the plus sign a subquery of RETURNING scans all jobs.
_FAILED = f"""RETURNING {
    row_columns(
        **{
            name: f"(SELECT {column} FROM joblib_job WHERE joblib_job.id = unindexed(joblib_task.job_id))"
            for name, column in (("job_name", "full_name"), ("job_version", "job_version"))
        },
        payload="NULL",
        result="NULL",
    )
}, joblib_task.linked, joblib_task.group_id, joblib_task.seq"""
_FAILED_NAMES = (*ROW_NAMES, "linked", "group_id", "seq")
_FAIL = statement(
    f"""
WITH held AS (
    SELECT joblib_task.seq, {_FAILS_AT_ONCE} AS fails FROM joblib_task WHERE {_IS_OF_WORKERS}
    ORDER BY joblib_task.seq + 0
    FOR UPDATE
)
{_FAIL_HELD}
FROM held
WHERE joblib_task.seq = held.seq AND held.fails AND {_IS_OF_WORKERS}
{_FAILED}, {is_watched("joblib_task.room_id")}
""",
    *(*_FAILED_NAMES, "is_watched"),
)
_FAIL_ON_SQLITE = statement(
    f"""{_FAIL_HELD}
WHERE {_IS_OF_WORKERS} AND {_FAILS_AT_ONCE}
{_FAILED}
""",
    *_FAILED_NAMES,
)


# Insert tasks, change their status and delete them.

_INSERTED = [name for name in COLUMNS if name not in {"seq", "queued_at"}]


# How many jobs the end of tasks wakes, whose limits they shared.
_MAX_WOKEN = 100
_UNIQUE_VIOLATION = "23505"
_UNCHANGED = sql_jobs.CountChange(0, 0)
_INSERT_ON_SQLITE = statement(f"INSERT INTO joblib_task {one_row(_INSERTED)}", payload=TEXT)
_ADDED_TO_QUEUES = f"added WHERE status = '{TaskStatus.PENDING}' AND run_at IS NULL"
_ADD = f"""
WITH added AS (
    INSERT INTO joblib_task ({", ".join(_INSERTED)})
    SELECT {", ".join(_INSERTED)}
    FROM unnest({", ".join(f"(SELECT :all_{name})" for name in _INSERTED)})
        WITH ORDINALITY AS new ({", ".join(_INSERTED)}, position)
    ORDER BY position
    RETURNING job_id, room_id, lane, seq, status, run_at, limit_key
),{sql_counts.COUNT_ADDED},
listed_rooms AS ({sql_room_queues.list_rooms(_ADDED_TO_QUEUES)}
),
listed_keys AS ({sql_limits.list_keys(f"{_ADDED_TO_QUEUES} AND limit_key IS NOT NULL")}
)"""
_ADD_OF_SEVERAL_JOBS = statement(f"{_ADD} SELECT {is_watched('ANY (:all_room_id)')}", "is_watched")
# If all tasks are of one job, the same statement updates that job's counts: one round trip less.
_ADD_AND_COUNT = statement(
    f"""{_ADD}
{sql_jobs.ADD_TO_COUNTS}
RETURNING {is_watched("ANY (:all_room_id)")}
""",
    "is_watched",
    **sql_jobs.COUNT_TYPES,
)
_ATTEMPT_COLUMNS = (
    *("task_seq", "attempt", "status", "worker_id", "claimed_at", "started_at", "completed_at", "ended_at"),
    *("run_at", "error_code", "error", "reason", "queued_at"),
)
_ADD_ATTEMPT = statement(f"INSERT INTO joblib_attempt {one_row(_ATTEMPT_COLUMNS)}")
_LOCK_ENDED = statement(
    f"""
SELECT seq, room_id, job_id, status, tags IS NOT NULL AS has_tags, linked FROM joblib_task
WHERE seq = ANY (:all_seq) AND completed_at < :at AND {as_sql(of_status(TERMINAL))}
    AND (group_id IS NULL OR NOT {sql_groups.IS_NEEDED}) AND NOT ({IS_NEEDED_BY_SUCCESSOR})
FOR UPDATE SKIP LOCKED
""",
    *("seq", "room_id", "job_id", "status", "has_tags", "linked"),
    linked=BOOLEAN,
)
# After a wait for the lock of a submit, the statement above has not seen the edge that this has added.
_NEEDED = statement(
    f"SELECT seq FROM joblib_task WHERE seq = ANY (:all_seq) AND {IS_NEEDED_BY_SUCCESSOR}", "seq"
)
_REMOVE_ATTEMPTS = statement("DELETE FROM joblib_attempt WHERE task_seq = ANY (:all_task_seq)")
_REMOVE = statement("DELETE FROM joblib_task WHERE seq = ANY (:all_seq)")


async def add(tx: Transaction, new: Sequence[TaskRecord]) -> None:
    """Insert tasks in their order. The caller holds locks on their jobs, so no job is deleted meanwhile."""
    rows = [{name: getattr(task, name) for name in _INSERTED} for task in new]
    inserted = [(None, task) for task in new]
    job_counts = _count_changes(inserted)
    if tx.is_sqlite:
        first = await _insert_on_sqlite(tx, rows)
        await sql_jobs.add_to_counts(tx, job_counts)
        numbered = [task.changed(seq=first + index) for index, task in enumerate(new)]
        queued = [task for task in numbered if task.is_queued]
        await sql_room_queues.add(tx, queued)
        await sql_limits.add(tx, [task for task in queued if task.limit_key is not None])
        changes = CountChanges()
        for task in numbered:
            changes.enter(task)
        await sql_counts.write(tx, changes)
    else:
        try:
            await _add_on_postgresql(tx, rows, job_counts)
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            # An earlier attempt, whose connection was lost, has inserted these tasks meanwhile.
            raise RepeatTransaction("The tasks were inserted meanwhile") from error
    await sql_trees.add_tags(tx, new)
    _record_effects(tx, inserted)


async def _insert_on_sqlite(tx: Transaction, rows: Sequence[dict[str, Any]]) -> int:
    """Insert rows of tasks with their payloads, and return the `seq` of the first."""
    payloads = [to_json(row["payload"]).decode() for row in rows]
    columns = map(sql_payloads.column, payloads)
    stored = [row | {"payload": column} for row, column in zip(rows, columns, strict=True)]
    await tx.execute(_INSERT_ON_SQLITE, stored)
    first = await sql_room_queues.last_seq(tx) - len(rows) + 1
    await sql_payloads.write(tx, enumerate(payloads, first))
    return first


async def _add_on_postgresql(
    tx: Transaction, rows: Sequence[dict[str, Any]], changes: Mapping[UUID, sql_jobs.CountChange]
) -> None:
    if len(changes) == 1:
        [(job_id, change)] = changes.items()
        params = {**by_column(rows), "job": job_id, **change._asdict()}
        added = await tx.execute(_ADD_AND_COUNT, params)
    else:
        added = await tx.execute(_ADD_OF_SEVERAL_JOBS, by_column(rows))
        await sql_jobs.add_to_counts(tx, changes)
    _record_watched(tx, added.all())


def _record_watched(tx: Transaction, rows: Sequence[Any]) -> None:
    if rows and not tx.is_sqlite:
        tx.record_watched(is_watched=any(row.is_watched for row in rows))


async def move(tx: Transaction, moves: Sequence[Move]) -> None:
    """Write new states over old ones. The caller has read the old ones under a lock in this transaction.

    A task may move several times: its first and its last state are used. A row that differs from the old
    state does not change, because the statement compares status and attempt.
    """
    await _move(tx, moves)


async def claim(tx: Transaction, moves: Sequence[Move]) -> None:
    """Do what `move` does for tasks that leave their queues.

    Raises `RepeatTransaction` if one of their jobs was paused after it was read. The job is locked now, so
    a pause commits either before this check or after the claim's commit.
    """
    is_paused = await _move(tx, moves)
    ids = {before.job_id for before, _ in moves if before.is_queued}
    if is_paused is None and ids and not tx.is_sqlite:
        is_paused = await sql_jobs.are_paused(tx, ids)
    if is_paused:
        raise RepeatTransaction("A job was paused during the claim")


_RETARGET = statement(
    f"UPDATE joblib_task SET job_id = :job_id WHERE seq = ANY (:all_seq) AND {TASK_IS_PENDING}"
)


async def retarget(tx: Transaction, moves: Sequence[Move]) -> None:
    """Move pending tasks to other queues. The caller has locked them and the jobs."""
    seqs: dict[UUID, list[int]] = {}
    changes: dict[UUID, sql_jobs.CountChange] = {}
    counts = sql_counts.CountChanges()
    for before, after in moves:
        seqs.setdefault(after.job_id, []).append(after.seq)
        counts.leave(before)
        counts.enter(after)
        for job_id, sign in ((before.job_id, -1), (after.job_id, 1)):
            queued, later = changes.get(job_id, sql_jobs.CountChange(0, 0))
            changes[job_id] = sql_jobs.CountChange(
                queued + sign * after.is_queued, later + sign * after.is_scheduled
            )
    for job_id in sorted(seqs):
        await tx.execute(_RETARGET, {"job_id": job_id, "all_seq": padded(sorted(seqs[job_id]))})
    await sql_jobs.add_to_counts(tx, changes)
    await sql_counts.write(tx, counts)
    await _add_to_queues(tx, [after for _, after in moves if after.is_queued])


async def replace(tx: Transaction, moves: Sequence[Move]) -> None:
    """Do what `move` does for pending tasks, which may get another version of their job and limit key.

    The caller has locked them and the jobs.
    """
    retargeted = [
        (before, before.changed(job_id=after.job_id, job_version=after.job_version))
        for before, after in moves
        if before.job_id != after.job_id
    ]
    await retarget(tx, retargeted)
    current = {before.seq: before for _, before in retargeted}
    moves = [(current.get(before.seq, before), after) for before, after in moves]
    await move(tx, moves)
    stayed = [(before, after) for before, after in moves if before.is_queued and after.is_queued]
    await _add_to_queues(tx, [after for before, after in stayed if before.limit_key != after.limit_key])


async def _move(tx: Transaction, moves: Sequence[Move]) -> bool | None:
    if not moves:
        return None
    moves = await _with_queue_times(tx, moves)
    merged: dict[int, Move] = {}
    for before, after in moves:
        first, _ = merged.get(before.seq, (before, after))
        merged[before.seq] = (first, after)
    is_paused = await _write(tx, list(merged.values()))
    entered = [after for before, after in merged.values() if after.is_queued and not before.is_queued]
    await _add_to_queues(tx, entered)
    left = [before for before, after in merged.values() if before.status in HELD and after.status not in HELD]
    if slots := [task for task in left if task.limit_key is not None]:
        await _free_slots(tx, slots)
    _record_effects(tx, merged.values())
    if reopened := [before for before, after in merged.values() if _reopens(before, after)]:
        await sql_groups.reopen(tx, [(task.group_id, task.status) for task in reopened if task.group_id])
    # The versions of a job share its slots.
    shared = {task.job_id for task in left if _has_limit(task)}
    for name in await sql_jobs.other_queues(tx, shared) if shared else ():
        tx.wake(job_key(name), sum(task.job_id in shared for task in left))
    ended = [_attempt(before, after, await tx.now()) for before, after in moves if _requeues(before, after)]
    if ended:
        await tx.execute(_ADD_ATTEMPT, ended)
    return is_paused


async def _add_to_queues(tx: Transaction, entered: Sequence[TaskRecord]) -> None:
    limited = await sql_room_queues.add(tx, entered)
    # Of a task that has a key, although its job has no limits now, the key counts if it has some again.
    keyed = [task for task in entered if task.limit_key is not None or task.job_id in limited]
    await sql_limits.add(tx, keyed)


async def _free_slots(tx: Transaction, ended: Sequence[TaskRecord]) -> None:
    """Free the slots of tasks that are no longer claimed or running, and wake claims of other jobs."""
    freed = await sql_limits.free(tx, sorted(task.seq for task in ended))
    own = {queue_name(task.job_name, task.job_version) for task in ended}
    for name in await sql_limits.waiting_jobs(tx, freed, _MAX_WOKEN):
        if name not in own:
            tx.wake(job_key(name), 1)


async def _with_queue_times(tx: Transaction, moves: Sequence[Move]) -> Sequence[Move]:
    """Return moves in which tasks that enter their queues have the time of this transaction."""
    entering: set[int] = set()
    timed: list[Move] = []
    for before, after in moves:
        if after.is_queued and not before.is_queued:
            entering.add(after.seq)
        is_timed = after.seq in entering
        timed.append((before, after.changed(queued_at=await tx.now()) if is_timed else after))
    return timed if entering else moves


def _record_effects(tx: Transaction, moves: Iterable[tuple[TaskRecord | None, TaskRecord]]) -> None:
    """Record what follows: ends that concern others, due times and free slots."""
    for before, after in moves:
        if before is not None and before.status != after.status:
            tx.record_end(after.seq, after.status, after.group_id, linked=after.linked)
        if after.is_scheduled and after.run_at is not None and not after.is_waiting:
            tx.record_due(after.run_at)
        if before is not None and before.status in HELD and after.status not in HELD:
            tx.record_freed(before.room_id, before.worker_id)
            # A task that returns to its queue wakes a claim itself: one wake-up for one free slot.
            if _has_limit(before) and not after.is_queued:
                tx.wake(before.job_key, 1)


def _has_limit(task: TaskRecord) -> bool:
    return task.policy.max_in_flight is not None or task.limit_key is not None


def _reopens(before: TaskRecord, after: TaskRecord) -> bool:
    is_retried = before.status in TERMINAL and after.status not in TERMINAL
    return is_retried and after.group_id is not None


def _requeues(before: TaskRecord, after: TaskRecord) -> bool:
    return after.status == TaskStatus.PENDING and before.status != TaskStatus.PENDING


def _attempt(before: TaskRecord, after: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return the history row of an attempt: the task's own row loses these values when it is requeued."""
    source = before if before.status in TERMINAL else after
    return {
        "task_seq": before.seq,
        "attempt": before.attempt,
        "status": before.status.value,
        "worker_id": before.worker_id,
        "claimed_at": before.claimed_at,
        "started_at": before.started_at,
        "completed_at": before.completed_at,
        "ended_at": after.ended_at or now,
        "run_at": None if after.run_at == WAITING else after.run_at,
        "error_code": source.error_code,
        "error": source.error,
        "reason": after.reason or "released",
        "queued_at": before.queued_at or before.created_at,
    }


async def _write(tx: Transaction, moves: Sequence[Move]) -> bool | None:
    """Write moves and counts. Return whether the job is paused, None if that is unknown.

    Raises `RepeatTransaction` if a row differs from its old state.
    """
    job_counts, changes = _count_changes(moves), _kept_changes(moves)
    statement, params = move_statement(tx, moves)
    is_paused = None
    if statement is not None and not tx.is_sqlite and len(job_counts) < 2 and (changes or job_counts):
        params |= changes.parameters(job_counts)
        for job_id, change in job_counts.items():
            params |= {"job": job_id, **change._asdict()}
        counting = counting_statement(statement, is_of_one_job=bool(job_counts))
        row = (await tx.execute(counting, params)).one()
        written, is_paused = row.written, row.paused
        if is_paused and row.paused_until is not None:
            is_paused = row.paused_until > await tx.now()
        _record_watched(tx, [row])
    else:
        rows = [] if statement is None else (await tx.execute(statement, params)).all()
        written = len(moves) if statement is None else len(rows)
        _record_watched(tx, rows)
        await sql_jobs.add_to_counts(tx, job_counts)
        await sql_counts.write(tx, changes, job_counts)
    if written != len(moves):
        raise RepeatTransaction(f"{len(moves) - written} of {len(moves)} tasks changed since they were read")
    return is_paused


def _kept_changes(moves: Iterable[Move]) -> CountChanges:
    changes = CountChanges()
    for before, after in moves:
        changes.move(before, after)
    return changes


def _count_changes(moves: Iterable[tuple[TaskRecord | None, TaskRecord]]) -> dict[UUID, sql_jobs.CountChange]:
    """Return the changes of the jobs' counts, also those that cancel out: they lock the jobs, in order."""
    changes: dict[UUID, sql_jobs.CountChange] = {}
    for before, after in moves:
        queued = after.is_queued - (before is not None and before.is_queued)
        later = after.is_scheduled - (before is not None and before.is_scheduled)
        if queued or later:
            so_far = changes.get(after.job_id, _UNCHANGED)
            changes[after.job_id] = sql_jobs.CountChange(so_far.queued + queued, so_far.later + later)
    return changes


async def _lock_ended(tx: Transaction, params: dict[str, Any]) -> list[Any]:
    """Lock the tasks that may be deleted, and return their rows."""
    rows = (await tx.execute(_LOCK_ENDED, params)).all()
    linked = [row.seq for row in rows if row.linked]
    needed = set((await tx.execute(_NEEDED, {"all_seq": padded(linked)})).scalars()) if linked else set()
    return [row for row in rows if row.seq not in needed]


async def delete_ended(tx: Transaction, seqs: Sequence[int], before: datetime) -> int:
    """Delete those of these tasks that ended before a time, with all that belongs to them. Return how many.

    It skips tasks that another transaction has locked, those that the statistics have not read yet, those of
    groups that have not ended, or whose last task still needs them, and those that a task which has not ended
    waited for: a later call deletes them.
    """
    unread = await sql_occurrences.unread_since(tx)
    before = before if unread is None else min(before, unread)
    deleted, changes = 0, CountChanges()
    for start in range(0, len(seqs), CHUNK):
        params = {"all_seq": padded(seqs[start : start + CHUNK]), "at": before}
        rows = await _lock_ended(tx, params)
        if not rows:
            continue
        chunk = [row.seq for row in rows]
        deleted += len(chunk)
        for row in rows:
            changes.delete(row.room_id, row.job_id, TaskStatus(row.status))
        await sql_details.prune(tx, chunk)
        await tx.execute(_REMOVE_ATTEMPTS, {"all_task_seq": padded(chunk)})
        await sql_results.detach(tx, chunk)
        await sql_payloads.remove(tx, chunk)
        await sql_trees.remove_tags(tx, [row.seq for row in rows if row.has_tags])
        await sql_webhooks.unlink(tx, chunk)
        await sql_successors.remove(tx, chunk)
        await tx.execute(_REMOVE, {"all_seq": padded(chunk)})
    if deleted:
        await sql_counts.write_pruned(tx, changes)
        await sql_occurrences.lower_floors(tx)
    return deleted
