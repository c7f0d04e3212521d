"""The ends of the workers' allocations, and the durations of the tasks of their jobs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import TEXT, UUID_TYPE, statement
from zndraw_joblib.server.queue.sql_jobs import QUEUE_NAME
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_QUEUED
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.operators import HOUR


class WorkerQueue(NamedTuple):
    """A queue of a worker: `queue` is its name, `job_id` the id of its job's first version."""

    id: UUID
    job_id: UUID
    queue: str
    policy: str | None


class BriefJob(NamedTuple):
    """A queue with tasks whose workers all have an end, and the last of these ends."""

    id: UUID
    job_id: UUID
    full_name: str
    queued: int
    policy: str | None
    waits_since: datetime | None
    last_end: datetime


_QUEUES = statement(
    f"""
SELECT joblib_worker.ends_at, joblib_job.id, coalesce(joblib_job.first_id, joblib_job.id) AS job_id,
    {QUEUE_NAME} AS queue, joblib_job.policy, CURRENT_TIMESTAMP AS now
FROM joblib_worker
LEFT JOIN joblib_worker_job ON joblib_worker_job.worker_id = joblib_worker.id
LEFT JOIN joblib_job ON joblib_job.id = joblib_worker_job.job_id
WHERE joblib_worker.id = :worker_id AND joblib_worker.owner_id = :owner_id
""",
    *("ends_at", *WorkerQueue._fields, "now"),
    queue=TEXT,
)
_SET_END = statement(
    "UPDATE joblib_worker SET ends_at = :ends_at WHERE id = :worker_id AND owner_id = :owner_id"
)
_RUNS = statement(
    f"""
SELECT job_id, running, running_seconds FROM joblib_statistic
WHERE resolution = {HOUR} AND job_id = ANY (:all_job_id) AND start >= :since
""",
    *("job_id", "running", "running_seconds"),
)
_HAS_ENDS = statement("SELECT id FROM joblib_worker WHERE ends_at IS NOT NULL LIMIT 1", "id")
_FIRST_WAITS = f"""SELECT coalesce(joblib_task.queued_at, joblib_task.created_at) FROM joblib_task
        WHERE joblib_task.job_id >= joblib_job.id AND joblib_task.job_id <= joblib_job.id
            AND {TASK_IS_QUEUED}
        ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq LIMIT 1"""
_BRIEF = statement(
    f"""
SELECT joblib_job.id, coalesce(joblib_job.first_id, joblib_job.id) AS job_id, joblib_job.full_name,
    joblib_job.pending, joblib_job.policy, ({_FIRST_WAITS}) AS waits_since, ends.last_end
FROM (
    SELECT joblib_worker_job.job_id, max(joblib_worker.ends_at) AS last_end
    FROM joblib_worker_job JOIN joblib_worker ON joblib_worker.id = joblib_worker_job.worker_id
    GROUP BY joblib_worker_job.job_id
    HAVING count(*) = count(joblib_worker.ends_at)
) AS ends
JOIN joblib_job ON joblib_job.id = ends.job_id
WHERE joblib_job.pending > 0 AND joblib_job.room_id <> '{INTERNAL}'
ORDER BY joblib_job.pending DESC, joblib_job.full_name LIMIT :limit
""",
    *BriefJob._fields,
    waits_since=UtcDateTime(),
    last_end=UtcDateTime(),
    job_id=UUID_TYPE,
)


async def queues_of(
    tx: Transaction, worker_id: UUID, owner_id: str
) -> tuple[datetime | None, list[WorkerQueue]]:
    """Return when a worker of this owner ends, as far as that is stored, and its queues."""
    rows = (await tx.execute(_QUEUES, {"worker_id": worker_id, "owner_id": owner_id})).all()
    tx.record_now(rows)
    ends_at = rows[0].ends_at if rows else None
    return ends_at, [WorkerQueue(*row[1:-1]) for row in rows if row.id is not None]


async def set_end(tx: Transaction, worker_id: UUID, owner_id: str, ends_at: datetime) -> None:
    """Store when the allocation of a worker of this owner ends."""
    await tx.execute(_SET_END, {"worker_id": worker_id, "owner_id": owner_id, "ends_at": ends_at})


async def runs(tx: Transaction, job_ids: Sequence[UUID], age: timedelta) -> list[tuple[UUID, Any, float]]:
    """Return the histograms of the run times of jobs, with their sums, of the hours in the last `age`."""
    since = await tx.now() - age
    rows = await tx.execute(_RUNS, {"all_job_id": padded(sorted(job_ids)), "since": since})
    return [(job_id, buckets, seconds) for job_id, buckets, seconds in rows]


async def brief_jobs(tx: Transaction, limit: int) -> list[BriefJob]:
    """Return the queues with tasks whose workers all have an end, those with most tasks first."""
    if (await tx.execute(_HAS_ENDS)).first() is None:
        return []
    return [BriefJob(*row) for row in await tx.execute(_BRIEF, {"limit": limit})]
