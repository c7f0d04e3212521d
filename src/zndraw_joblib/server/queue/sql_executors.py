"""For which internal jobs the servers that run have executors, and what waits without one."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from pydantic_core import from_json

from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.queue.sql_pauses import is_job_paused
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_QUEUED
from zndraw_joblib.wire.names import INTERNAL

# A server is silent when its sweeper has not reported for this many intervals.
SILENT_SWEEPS = 3
_LISTED = timedelta(hours=1)
# So many internal jobs and schedules are looked at.
_MAX_ROWS = 500


class WaitingJob(NamedTuple):
    """An internal job with queued tasks, and since when the first one waits."""

    id: UUID
    full_name: str
    queued: int
    waits_since: datetime | None


class InternalSchedule(NamedTuple):
    """A schedule of the room of internal jobs."""

    name: str
    job_name: str


_SERVERS = statement(
    """
SELECT seen_at, sweep_interval_seconds, internal_jobs FROM joblib_server WHERE seen_at >= :at
""",
    *("seen_at", "interval_seconds", "internal_jobs"),
)
_JOBS = statement(
    f"""
SELECT id, full_name, pending, (
    SELECT coalesce(joblib_task.queued_at, joblib_task.created_at) FROM joblib_task
    WHERE joblib_task.job_id >= joblib_job.id AND joblib_task.job_id <= joblib_job.id AND {TASK_IS_QUEUED}
    ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq LIMIT 1
)
FROM joblib_job
WHERE room_id = '{INTERNAL}' AND pending > 0 AND (NOT deleted OR superseded) AND NOT {is_job_paused(":now")}
ORDER BY full_name, id LIMIT :limit
""",
    *WaitingJob._fields,
    waits_since=UtcDateTime(),
)
_SCHEDULES = statement(
    f"""
SELECT name, job_name FROM joblib_schedule
WHERE room_id = '{INTERNAL}' AND NOT paused AND next_due_at IS NOT NULL
ORDER BY name LIMIT :limit
""",
    *InternalSchedule._fields,
)


async def known(tx: Transaction) -> frozenset[str] | None:
    """Return the internal jobs for which a server that runs has an executor.

    None if a server has not reported its jobs yet, such as one of an earlier release, or no server runs.
    """
    now, names, is_known = await tx.now(), set[str](), False
    for row in await tx.execute(_SERVERS, {"at": now - _LISTED}):
        if row.seen_at < now - timedelta(seconds=SILENT_SWEEPS * row.interval_seconds + 1):
            continue
        if row.internal_jobs is None:
            return None
        is_known = True
        names.update(from_json(row.internal_jobs))
    return frozenset(names) if is_known else None


async def waiting_jobs(tx: Transaction, executors: Collection[str], since: datetime) -> list[WaitingJob]:
    """Return the internal jobs without an executor that have a task which waits since then or longer."""
    rows = await tx.execute(_JOBS, {"limit": _MAX_ROWS, "now": await tx.now()})
    jobs = [WaitingJob(*row) for row in rows]
    return [
        job
        for job in jobs
        if job.full_name not in executors and job.waits_since is not None and job.waits_since <= since
    ]


async def schedules(tx: Transaction, executors: Collection[str]) -> list[InternalSchedule]:
    """Return the schedules of the room of internal jobs whose job has no executor."""
    rows = await tx.execute(_SCHEDULES, {"limit": _MAX_ROWS})
    return [InternalSchedule(*row) for row in rows if row.job_name not in executors]
