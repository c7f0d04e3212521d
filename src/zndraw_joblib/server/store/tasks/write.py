"""Insert tasks, change their status and delete them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import any_, delete, insert, literal_column, select
from sqlalchemy.exc import IntegrityError

from zndraw_joblib.contract.status import HELD, TERMINAL, TaskStatus
from zndraw_joblib.server.ports import job_key
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store import room_events, statistic_position
from zndraw_joblib.server.store.bulk import arrays, by_column, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.errors import RepeatTransaction
from zndraw_joblib.server.store.tables import Attempt, Task
from zndraw_joblib.server.store.tasks import counts, details, moving, room_queues
from zndraw_joblib.server.store.tasks import stored_results as task_results
from zndraw_joblib.server.store.tasks.counts import CountChanges
from zndraw_joblib.server.store.tasks.records import CHUNK, COLUMNS, Move, TaskRecord, of_status

tasks = Task.__table__
attempts = Attempt.__table__

_INSERTED = [column.name for column in COLUMNS if column.name not in {"seq", "queued_at"}]


_UNIQUE_VIOLATION = "23505"
_UNCHANGED = job_store.CountChange(0, 0)
_NEW = arrays({name: tasks.c[name].type for name in _INSERTED})
_ADD = insert(tasks)
_ADD_MANY = insert(tasks).from_select(
    _INSERTED, select(*[_NEW.c[name] for name in _INSERTED]).order_by(_NEW.c.place)
)
_PLACED = [tasks.c[name] for name in (*room_queues.COLUMNS, "status", "run_at")]
_ADDED = _ADD_MANY.returning(*_PLACED).cte("written")
_ENTERED = select(*[_ADDED.c[name] for name in room_queues.COLUMNS]).where(
    _ADDED.c.status == literal_column(f"'{TaskStatus.PENDING}'"), _ADDED.c.run_at.is_(None)
)
_ADD_MANY_AND_ROOMS = room_queues.upsert_from(_ENTERED).add_cte(*counts.keep_inserted(_ADDED))
# If all tasks are of one job, the same statement updates that job's counts: one round trip less.
_ADDED_TO_ROOMS = _ADD_MANY_AND_ROOMS.returning(room_queues.queues.c.room_id).cte("entered")
_IS_WATCHED = room_events.is_watched(any_(room_events.ROOMS)).label("is_watched")
_ADD_AND_COUNT = job_store.ADD_TO_COUNTS.add_cte(_ADDED_TO_ROOMS).returning(_IS_WATCHED)
_ADD_OF_SEVERAL_JOBS = select(_IS_WATCHED).add_cte(_ADDED_TO_ROOMS)
# For how much longer than others a task is kept whose function `on_end` no server has called.
_HOOK_TIME, _NO_TIME = timedelta(days=7), timedelta()


async def add(tx: Transaction, new: Sequence[TaskRecord]) -> None:
    """Insert tasks in their order. The caller holds locks on their jobs, so no job is deleted meanwhile."""
    rows = [{name: getattr(task, name) for name in _INSERTED} for task in new]
    inserted = [(None, task) for task in new]
    job_counts = _count_changes(inserted)
    if tx.is_sqlite:
        await tx.execute(_ADD, rows)
        await job_store.add_to_counts(tx, job_counts)
        first = await room_queues.last_seq(tx) - len(new) + 1
        numbered = [task.changed(seq=first + index) for index, task in enumerate(new)]
        await room_queues.add(tx, [task for task in numbered if task.is_queued])
        kept = CountChanges()
        for task in numbered:
            kept.enter(task)
        await counts.write(tx, kept)
    else:
        try:
            await _add_on_postgresql(tx, rows, job_counts)
        except IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            # An earlier attempt, whose connection was lost, has inserted these tasks meanwhile.
            raise RepeatTransaction("The tasks were inserted meanwhile") from error
    _record_effects(tx, inserted)


async def _add_on_postgresql(
    tx: Transaction, rows: Sequence[dict[str, Any]], changes: Mapping[UUID, job_store.CountChange]
) -> None:
    if len(changes) == 1:
        [(job_id, change)] = changes.items()
        given = {**by_column(rows), "job": job_id, **change._asdict()}
        added = await tx.execute(_ADD_AND_COUNT, given)
    else:
        added = await tx.execute(_ADD_OF_SEVERAL_JOBS, by_column(rows))
        await job_store.add_to_counts(tx, changes)
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
        is_paused = await job_store.are_paused(tx, ids)
    if is_paused:
        raise RepeatTransaction("A job was paused during the claim")


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
    await room_queues.add(tx, entered)
    _record_effects(tx, merged.values())
    ended = [_attempt(before, after, await tx.now()) for before, after in moves if _requeues(before, after)]
    if ended:
        await tx.execute(insert(attempts), ended)
    return is_paused


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
    """Record what to announce after the commit: due times and free slots."""
    for before, after in moves:
        if after.status == TaskStatus.PENDING and after.run_at is not None:
            tx.record_due(after.run_at)
        if before is not None and before.status in HELD and after.status not in HELD:
            tx.record_freed(before.room_id, before.worker_id)
            # A task that returns to its queue wakes a claim itself: one wake-up for one free slot.
            if before.policy.max_in_flight is not None and not after.is_queued:
                tx.wake(job_key(before.job), 1)


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
        "ended_at": now,
        "run_at": after.run_at,
        "error_code": source.error_code,
        "error": source.error,
        "reason": after.reason or "released",
        "queued_at": before.queued_at or before.created_at,
    }


async def _write(tx: Transaction, moves: Sequence[Move]) -> bool | None:
    """Write moves and counts. Return whether the job is paused, None if that is unknown.

    Raises `RepeatTransaction` if a row differs from its old state.
    """
    job_counts, kept = _count_changes(moves), _kept_changes(moves)
    statement, given = moving.statement(tx, moves)
    is_paused = None
    if statement is not None and not tx.is_sqlite and len(job_counts) < 2 and (kept or job_counts):
        given |= kept.parameters(job_counts)
        for job_id, change in job_counts.items():
            given |= {"job": job_id, **change._asdict()}
        counting = moving.counting(statement, is_of_one_job=bool(job_counts))
        row = (await tx.execute(counting, given)).one()
        written, is_paused = row.written, row.paused
        _record_watched(tx, [row])
    else:
        rows = [] if statement is None else (await tx.execute(statement, given)).all()
        written = len(moves) if statement is None else len(rows)
        _record_watched(tx, rows)
        await job_store.add_to_counts(tx, job_counts)
        await counts.write(tx, kept, job_counts)
    if written != len(moves):
        raise RepeatTransaction(f"{len(moves) - written} of {len(moves)} tasks changed since they were read")
    return is_paused


def _kept_changes(moves: Iterable[Move]) -> CountChanges:
    kept = CountChanges()
    for before, after in moves:
        kept.move(before, after)
    return kept


def _count_changes(
    moves: Iterable[tuple[TaskRecord | None, TaskRecord]],
) -> dict[UUID, job_store.CountChange]:
    """Return the changes of the jobs' counts, also those that cancel out: they lock the jobs, in order."""
    changes: dict[UUID, job_store.CountChange] = {}
    for before, after in moves:
        queued = after.is_queued - (before is not None and before.is_queued)
        later = after.is_scheduled - (before is not None and before.is_scheduled)
        if queued or later:
            so_far = changes.get(after.job_id, _UNCHANGED)
            changes[after.job_id] = job_store.CountChange(so_far.queued + queued, so_far.later + later)
    return changes


async def prune(tx: Transaction, before: datetime, after: int, limit: int) -> tuple[int, int | None]:
    """Delete the tasks that ended before a time, among the `limit` tasks that follow the `seq` `after`.

    Tasks with long logs are deleted fewer at a time; tasks whose function `on_end` was not called yet are
    kept for a week longer. Return how many, and the `seq` to continue from: None once the tasks are younger
    than that time.
    """
    columns = (tasks.c.seq, tasks.c.created_at, tasks.c.completed_at, tasks.c.on_end)
    chunk = select(*columns).where(tasks.c.seq > after)
    rows = (await tx.execute(chunk.order_by(tasks.c.seq).limit(limit))).all()
    if not rows or rows[0].created_at >= before:
        return 0, None
    ended = [row for row in rows if row.completed_at is not None]
    old = [row.seq for row in ended if row.completed_at < before - (_HOOK_TIME if row.on_end else _NO_TIME)]
    within = await details.first_to_prune(tx, old)
    deleted = await delete_ended(tx, within, before)
    return deleted, rows[-1].seq if len(within) == len(old) else within[-1]


async def delete_ended(tx: Transaction, seqs: Sequence[int], before: datetime) -> int:
    """Delete those of these tasks that ended before a time, with all that belongs to them. Return how many.

    It skips tasks that another transaction has locked, and those that the statistics have not read yet: a
    later call deletes them.
    """
    unread = await statistic_position.unread_since(tx)
    before = before if unread is None else min(before, unread)
    deleted, kept = 0, CountChanges()
    for start in range(0, len(seqs), CHUNK):
        chosen = (tasks.c.seq.in_(padded(seqs[start : start + CHUNK])), tasks.c.completed_at < before)
        free = select(tasks.c.seq, tasks.c.room_id, tasks.c.job_id, tasks.c.status).where(*chosen)
        found = (await tx.execute(free.where(of_status(TERMINAL)).with_for_update(skip_locked=True))).all()
        if not found:
            continue
        chunk = [row.seq for row in found]
        deleted += len(chunk)
        for row in found:
            kept.delete(row.room_id, row.job_id, TaskStatus(row.status))
        await details.prune(tx, chunk)
        await tx.execute(delete(attempts).where(attempts.c.task_seq.in_(padded(chunk))))
        await task_results.detach(tx, chunk)
        await tx.execute(delete(tasks).where(tasks.c.seq.in_(padded(chunk))))
    if deleted:
        await counts.write_pruned(tx, kept)
        await statistic_position.lower_floors(tx)
    return deleted
