"""List all jobs for operators."""

from datetime import datetime
from uuid import UUID

from zndraw_joblib.contract.operations import JobEntries, JobEntry
from zndraw_joblib.contract.searches import StatusCounts
from zndraw_joblib.server.ports import CursorPage, JobFilter
from zndraw_joblib.server.service import cursors
from zndraw_joblib.server.store import job_list as store
from zndraw_joblib.server.store import worker_list
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.jobs import JobRecord
from zndraw_joblib.server.store.tasks import heads, kept
from zndraw_joblib.server.store.worker_list import Service

_KIND = "jobs"


async def page(tx: Transaction, wanted: JobFilter, part: CursorPage) -> JobEntries:
    """Return jobs by full name, with their counts. Read it in a snapshot."""
    after = None if part.cursor is None else cursors.decode(_KIND, part.cursor, [str])[0]
    found = await store.page(tx, wanted, after, part.limit + 1)
    listed = found[: part.limit]
    last = str(listed[-1][0].name) if len(found) > part.limit else None
    return JobEntries(
        items=await entries(tx, listed), next=None if last is None else cursors.encode(_KIND, last)
    )


async def entries(tx: Transaction, found: list[tuple[JobRecord, int]]) -> list[JobEntry]:
    """Return jobs with their counts; each is given with its number of scheduled tasks."""
    ids = [job.id for job, _ in found]
    if not ids:
        return []
    services, counts = await worker_list.services(tx, ids), await kept.of_jobs(tx, ids)
    waiting = [job.id for job, _ in found if job.pending]
    oldest: dict[UUID, datetime] = {}
    for task in await heads.of_queues(tx, waiting) if waiting else []:
        oldest[task.job_id] = min(task.created_at, oldest.get(task.job_id, task.created_at))
    return [
        entry(
            job,
            services.get(job.id),
            counts.get(job.id, kept.NO_COUNTS),
            queued=job.pending,
            scheduled=scheduled,
            oldest_waiting_at=oldest.get(job.id),
        )
        for job, scheduled in found
    ]


def entry(
    job: JobRecord,
    service: Service | None,
    counts: StatusCounts,
    *,
    queued: int,
    scheduled: int = 0,
    oldest_waiting_at: datetime | None = None,
) -> JobEntry:
    """Return a job with its workers and counts."""
    workers, slots = service or (0, 0)
    return JobEntry(
        id=job.id,
        full_name=str(job.name),
        schema_=job.schema,
        paused=job.paused,
        deleted=job.deleted,
        created_at=job.created_at,
        workers=workers,
        slots=slots,
        queued=queued,
        scheduled=scheduled,
        counts=counts,
        oldest_waiting_at=oldest_waiting_at,
        **job.name._asdict(),
        **dict(job.policy),
    )
