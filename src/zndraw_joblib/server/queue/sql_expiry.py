"""Find tasks that lost their worker or exceeded a time limit or lease, and tasks that are due."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import as_sql, statement
from zndraw_joblib.server.queue.sql_pauses import is_job_paused, is_room_paused
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    IS_SCHEDULED,
    RECORD_NAMES,
    SELECT_RECORDS,
    TASK_IS_HELD,
    TASK_IS_PENDING,
    WAITING,
    TaskRecord,
    fetch_records,
)
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.statuses import TaskStatus

# A statement that locks tasks, and skips those of other transactions, and one without a lock.
Reads = dict[bool, Any]
# `+ 0` and `coalesce` keep the planner off an index. Few tasks are held, but without statistics SQLite
# would scan all tasks in `seq` order or start from the jobs.
_BY_SEQ = "ORDER BY joblib_task.seq + 0"
_ROOM_OF_JOB = "coalesce(joblib_job.room_id, '')"
_LOCK = "\nFOR UPDATE OF joblib_task"
_LOCK_FREE = f"{_LOCK} SKIP LOCKED"
_IS_OF_WORKERS = f"{TASK_IS_HELD} AND joblib_task.worker_id = ANY (:all_worker_id)"
_IS_OF_OTHER_JOBS = "NOT (joblib_task.job_id = ANY (:all_job_id))"
# A held task that has not started is claimed. Comparing the status would select other indexes.
_IS_UNDISPATCHED = "joblib_task.worker_id IS NULL AND joblib_task.started_at IS NULL"
# Without a deadline a broker has confirmed the task: it may start, whether or not its job is paused.
_WAITS_FOR_RESUME = f"""(
        {is_job_paused(":now", "joblib_job.")} OR {is_room_paused("joblib_task.room_id", ":now")}
    ) AND {_IS_UNDISPATCHED} AND joblib_task.deadline IS NOT NULL"""
_IS_MARKED = """joblib_unnamed_task.task_seq = joblib_task.seq
    AND joblib_unnamed_task.attempt = joblib_task.attempt"""


def _records(rest: str, *, bodies: bool = False) -> Any:
    return statement(f"{SELECT_RECORDS[bodies]}\nWHERE {rest}", *RECORD_NAMES)


def _reads(rest: str) -> Reads:
    return {True: _records(f"{rest}{_LOCK_FREE}"), False: _records(rest)}


def _held(condition: str) -> Reads:
    return _reads(f"{TASK_IS_HELD} AND {condition} AND {_IS_OF_OTHER_JOBS}\n{_BY_SEQ}\nLIMIT :limit")


# Held tasks that a sweep recovers, by their times compared with `at`. Those of internal jobs that started
# before it, or were claimed or created before it, and may start:
STUCK_INTERNAL = _held(
    f"""{_ROOM_OF_JOB} = '{INTERNAL}'
    AND coalesce(joblib_task.started_at, joblib_task.claimed_at, joblib_task.created_at) < :at
    AND NOT ({_WAITS_FOR_RESUME})"""
)
# Tasks of paused internal jobs that have not started although their next dispatch is due.
PAUSED_INTERNAL = _held(
    f"{_ROOM_OF_JOB} = '{INTERNAL}' AND {_WAITS_FOR_RESUME} AND joblib_task.deadline <= :at"
)
# Tasks whose deadline to start or to end has passed. An unstarted internal task is dispatched again instead.
OVERDUE = _held(
    f"""joblib_task.deadline <= :at
    AND ({_ROOM_OF_JOB} <> '{INTERNAL}' OR joblib_task.status = '{TaskStatus.RUNNING}')"""
)
# Tasks whose worker does not exist. An internal task needs no worker.
ABANDONED = _held(
    f"""(joblib_task.worker_id IS NULL AND {_ROOM_OF_JOB} <> '{INTERNAL}'
        OR joblib_task.worker_id IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM joblib_worker WHERE joblib_worker.id = joblib_task.worker_id))"""
)
# Tasks that were last named before `at`, by workers that have sent a heartbeat after it.
UNNAMED = _held(
    f"""EXISTS (
        SELECT 1 FROM joblib_unnamed_task WHERE {_IS_MARKED} AND joblib_unnamed_task.unnamed_since <= :at
    ) AND EXISTS (
        SELECT 1 FROM joblib_worker
        WHERE joblib_worker.id = joblib_task.worker_id AND joblib_worker.last_heartbeat > :at
    )"""
)
_HELD_BY = _records(f"{_IS_OF_WORKERS}\n{_BY_SEQ}\nLIMIT :limit")
_LOCK_HELD_BY = _records(f"{_IS_OF_WORKERS}\n{_BY_SEQ}{_LOCK}")
_IS_DUE = f"{as_sql(IS_SCHEDULED)} AND joblib_task.run_at"
_LOCK_DUE = _records(
    f"{_IS_DUE} <= :now AND {_IS_OF_OTHER_JOBS}\nORDER BY joblib_task.run_at LIMIT :limit{_LOCK_FREE}"
)
_NEXT_DUE = statement(
    f"SELECT run_at FROM joblib_task WHERE {_IS_DUE} > :at ORDER BY joblib_task.run_at LIMIT 1", "run_at"
)
_HAS_EXPIRED = f"{TASK_IS_PENDING} AND joblib_task.expires_at <= :now"
_BY_EXPIRY = "\nORDER BY joblib_task.expires_at LIMIT :limit"
_EXPIRED = _reads(f"{_HAS_EXPIRED} AND {_IS_OF_OTHER_JOBS}{_BY_EXPIRY}")
_LOCK_EXPIRED_OF_JOBS = _records(
    f"""{_HAS_EXPIRED} AND joblib_task.job_id = ANY (:all_job_id)
    AND NOT (joblib_task.seq = ANY (:all_seq)){_BY_EXPIRY}{_LOCK_FREE}"""
)
_LOCK_DUE_DISPATCHES = _records(
    f"""{TASK_IS_HELD} AND {_IS_UNDISPATCHED} AND coalesce(joblib_task.job_id, NULL) = ANY (:all_job_id)
    AND joblib_task.deadline <= :now AND NOT {is_room_paused("joblib_task.room_id", ":now")}
ORDER BY joblib_task.lane, joblib_task.seq + 0
LIMIT :limit{_LOCK_FREE}""",
    bodies=True,
)
_LOCK_UNDISPATCHED = _records(
    f"{TASK_IS_HELD} AND {_IS_UNDISPATCHED} AND joblib_task.id = ANY (:all_id)\n{_BY_SEQ}{_LOCK}"
)
_BEGINNING = datetime.min.replace(tzinfo=UTC)


async def held(
    tx: Transaction,
    reads: Reads,
    at: datetime,
    limit: int,
    *,
    lock: bool = True,
    but_of: Collection[UUID] = (),
) -> list[TaskRecord]:
    """Return held tasks of a condition, except those of the jobs `but_of`, without payload and result.

    With `lock` they are locked; a task that another transaction has locked is skipped.
    """
    params = {"at": at, "limit": limit, "all_job_id": padded(sorted(but_of)), "now": await tx.now()}
    return await fetch_records(tx, reads[lock], **params)


async def held_by(tx: Transaction, worker_ids: Sequence[UUID], limit: int) -> list[TaskRecord]:
    """Return tasks that these workers hold, at most `limit`, without a lock, payload and result."""
    return await fetch_records(tx, _HELD_BY, all_worker_id=padded(worker_ids), limit=limit)


async def lock_held_by(tx: Transaction, worker_ids: Sequence[UUID]) -> list[TaskRecord]:
    """Lock and return the tasks that these workers hold, without payload and result."""
    return await fetch_records(tx, _LOCK_HELD_BY, all_worker_id=padded(worker_ids))


async def lock_due(
    tx: Transaction, now: datetime, limit: int, *, but_of: Collection[UUID] = ()
) -> list[TaskRecord]:
    """Lock scheduled tasks whose `run_at` has passed, the earliest first; skip locked ones.

    Those of the jobs `but_of` are left out.
    """
    return await fetch_records(tx, _LOCK_DUE, now=now, limit=limit, all_job_id=padded(sorted(but_of)))


async def next_due(tx: Transaction, after: datetime = _BEGINNING) -> datetime | None:
    """Return the earliest `run_at` of a scheduled task, or the earliest after a time."""
    earliest: datetime | None = (await tx.execute(_NEXT_DUE, {"at": after})).scalar_one_or_none()
    return None if earliest == WAITING else earliest


async def expired(
    tx: Transaction, now: datetime, limit: int, *, lock: bool = True, but_of: Collection[UUID] = ()
) -> list[TaskRecord]:
    """Return pending tasks whose `expires_at` has passed, the earliest first, locked if `lock`.

    Those of the jobs `but_of` are left out.
    """
    return await fetch_records(tx, _EXPIRED[lock], now=now, limit=limit, all_job_id=padded(sorted(but_of)))


async def lock_expired_of_jobs(
    tx: Transaction, now: datetime, limit: int, job_ids: Sequence[UUID], but: Sequence[int]
) -> list[TaskRecord]:
    """Lock tasks of these jobs whose `expires_at` has passed, the earliest first; skip locked ones.

    Those with a `seq` in `but` are left out.
    """
    params = {"now": now, "limit": limit, "all_job_id": padded(job_ids), "all_seq": padded(but)}
    return await fetch_records(tx, _LOCK_EXPIRED_OF_JOBS, **params)


async def lock_due_dispatches(
    tx: Transaction, job_ids: Sequence[UUID], now: datetime, limit: int
) -> list[TaskRecord]:
    """Lock internal tasks that are due to be dispatched, by priority and age.

    Those of paused rooms and locked ones are skipped.
    """
    return await fetch_records(tx, _LOCK_DUE_DISPATCHES, all_job_id=padded(job_ids), now=now, limit=limit)


async def lock_undispatched(tx: Transaction, ids: Sequence[UUID]) -> list[TaskRecord]:
    """Lock those of these internal tasks that no worker has started, without payload and result."""
    records: list[TaskRecord] = []
    for start in range(0, len(ids), CHUNK):
        records += await fetch_records(tx, _LOCK_UNDISPATCHED, all_id=padded(ids[start : start + CHUNK]))
    return records


# Record held tasks that their worker does not name in its heartbeats, and since when.


class HeldTask(NamedTuple):
    """A held task, and the time since which its worker's heartbeats have not named it."""

    seq: int
    id: UUID
    status: TaskStatus
    worker_id: UUID
    attempt: int
    unnamed_since: datetime | None


_HELD_TASKS = statement(
    f"""
SELECT seq, id, status, worker_id, joblib_task.attempt, unnamed_since
FROM joblib_task LEFT JOIN joblib_unnamed_task ON {_IS_MARKED}
WHERE {_IS_OF_WORKERS}
LIMIT :limit
""",
    *HeldTask._fields,
)
_MARK = statement(
    """
INSERT INTO joblib_unnamed_task (task_seq, attempt, unnamed_since)
VALUES (:task_seq, :attempt, :unnamed_since)
ON CONFLICT (task_seq) DO UPDATE SET attempt = excluded.attempt, unnamed_since = excluded.unnamed_since
"""
)
_UNMARK = "DELETE FROM joblib_unnamed_task WHERE task_seq IN (SELECT seq FROM joblib_task WHERE {})"
_UNMARK_BY_ID = statement(_UNMARK.format("id = ANY (:all_id)"))
_UNMARK_HELD_BY = statement(_UNMARK.format(_IS_OF_WORKERS))
_UNMARK_ENDED = statement(
    f"""
DELETE FROM joblib_unnamed_task
WHERE unnamed_since <= :at AND NOT EXISTS (SELECT 1 FROM joblib_task WHERE {_IS_MARKED} AND {TASK_IS_HELD})
"""
)


async def named_tasks_of(tx: Transaction, worker_ids: Sequence[UUID], limit: int) -> list[HeldTask]:
    """Return tasks that these workers hold, at most `limit`, without a lock."""
    rows = await tx.execute(_HELD_TASKS, {"all_worker_id": padded(worker_ids), "limit": limit})
    return [HeldTask(seq, id_, TaskStatus(status), *rest) for seq, id_, status, *rest in rows]


async def mark(tx: Transaction, held: Iterable[HeldTask]) -> None:
    """Record that the heartbeats of their workers do not name these tasks from now on."""
    now = await tx.now()
    rows = [{"task_seq": task.seq, "attempt": task.attempt, "unnamed_since": now} for task in held]
    if rows:
        await tx.execute(_MARK, rows)


async def unmark(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Delete the records of these tasks, because their workers name them again."""
    for start in range(0, len(ids), CHUNK):
        await tx.execute(_UNMARK_BY_ID, {"all_id": padded(ids[start : start + CHUNK])})


async def unmark_held_by(tx: Transaction, worker_ids: Sequence[UUID]) -> None:
    """Delete the records of the tasks that these workers hold."""
    if worker_ids:
        await tx.execute(_UNMARK_HELD_BY, {"all_worker_id": padded(worker_ids)})


async def forget_ended(tx: Transaction, cutoff: datetime) -> None:
    """Delete the records, older than `cutoff`, of attempts that have ended."""
    await tx.execute(_UNMARK_ENDED, {"at": cutoff})
