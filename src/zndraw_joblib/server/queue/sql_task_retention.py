"""Tasks that ended before a time: read them in the order of their ends, and count them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, INTEGER, statement
from zndraw_joblib.server.queue import sql_groups
from zndraw_joblib.server.queue.sql_task_rows import IS_NEEDED_BY_SUCCESSOR
from zndraw_joblib.wire.statuses import TaskStatus

# Before the end of each task.
START = datetime.min.replace(tzinfo=UTC), 0
# For how much longer than others a task is kept whose function `on_end` no server has called.
_HOOK_TIME = timedelta(days=7)
# What others still need of a task that has ended, so that it is not deleted yet: conditions joined by OR.
_IS_NEEDED = f"""(
    joblib_task.on_end IS NOT NULL AND joblib_task.completed_at >= :since
    OR joblib_task.group_id IS NOT NULL AND {sql_groups.IS_NEEDED}
    OR {IS_NEEDED_BY_SUCCESSOR}
)"""
_ENDED_AFTER = statement(
    f"""
SELECT seq, completed_at, job_id, status, {_IS_NEEDED} AS is_needed FROM joblib_task
WHERE completed_at IS NOT NULL AND (completed_at, seq) > (:completed_at, :seq) AND completed_at < :at
ORDER BY completed_at, seq
LIMIT :limit
""",
    *("seq", "completed_at", "job_id", "status", "is_needed"),
    is_needed=BOOLEAN,
)
_COUNT_ENDED = statement(
    f"""
SELECT job_id, status, sum(is_old), count(*) FROM (
    SELECT job_id, status, CASE WHEN {_IS_NEEDED} THEN 0 ELSE 1 END AS is_old FROM joblib_task
    WHERE completed_at IS NOT NULL AND (completed_at, seq) > (:completed_at, :seq) AND completed_at < :at
    ORDER BY completed_at, seq
    LIMIT :limit
) AS ended
GROUP BY job_id, status
""",
    *("job_id", "status", "old", "count"),
    old=INTEGER,
)
_COUNT_ENDED_OF_JOBS = statement(
    f"""
SELECT status, sum(is_old), count(*) FROM (
    SELECT status, CASE WHEN completed_at < :at AND NOT {_IS_NEEDED} THEN 1 ELSE 0 END AS is_old
    FROM joblib_task WHERE job_id = ANY (:all_job_id)
    ORDER BY job_id, room_id, created_at, seq
    LIMIT :limit
) AS of_jobs
GROUP BY status
""",
    *("status", "old", "count"),
    old=INTEGER,
)


class EndedTask(NamedTuple):
    """A task that has ended. `is_needed`: others still need it, so it is not deleted."""

    seq: int
    completed_at: datetime
    job_id: UUID
    status: str
    is_needed: bool


async def ended_after(
    tx: Transaction, after: tuple[datetime, int], before: datetime, limit: int
) -> list[EndedTask]:
    """Return the first tasks that ended before a time, in the order of their ends, behind an end and `seq`.

    A function `on_end` that was not called yet needs its task for a week longer.
    """
    params = {"completed_at": after[0], "seq": after[1], "at": before, "since": before - _HOOK_TIME}
    rows = await tx.execute(_ENDED_AFTER, {**params, "limit": limit})
    return [EndedTask(*row) for row in rows]


async def count_ended(
    tx: Transaction, before: datetime, limit: int
) -> tuple[dict[tuple[UUID, TaskStatus], int], bool]:
    """Count the tasks to delete among the first that ended before a time, by job and status.

    Return whether these are all that ended before it.
    """
    # With a lower bound PostgreSQL takes the index, also without statistics.
    params = {"completed_at": START[0], "seq": START[1], "at": before, "since": before - _HOOK_TIME}
    rows = (await tx.execute(_COUNT_ENDED, {**params, "limit": limit})).all()
    counts = {(row.job_id, TaskStatus(row.status)): int(row.old) for row in rows}
    return counts, sum(row[3] for row in rows) < limit


async def count_ended_of_jobs(
    tx: Transaction, job_ids: Sequence[UUID], before: datetime, limit: int
) -> tuple[dict[TaskStatus, int], bool]:
    """Count the tasks of jobs to delete before a time, among `limit`; return whether these are all."""
    params = {"all_job_id": padded(job_ids), "at": before, "since": before - _HOOK_TIME, "limit": limit}
    rows = (await tx.execute(_COUNT_ENDED_OF_JOBS, params)).all()
    return {TaskStatus(row.status): int(row.old) for row in rows}, sum(row[2] for row in rows) < limit
