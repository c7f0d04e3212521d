"""Find a job by the last part of its full name, as a room sees it."""

from zndraw_joblib.client import operations
from zndraw_joblib.client.calls import quoted
from zndraw_joblib.client.failures import AmbiguousJob
from zndraw_joblib.client.flows import Flow, read
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.task_id import table
from zndraw_joblib.contract.messages import MAX_PAGE, JobSummary, PaginatedResponse
from zndraw_joblib.contract.names import GLOBAL, INTERNAL, JobName, parse_job_name
from zndraw_joblib.contract.near_names import missing_text
from zndraw_joblib.contract.problems import JobNotFound


class JobList(list[JobSummary]):
    """Jobs; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = [{"job": job.full_name, "workers": f"{len(job.workers):,}"} for job in self]
        return table(rows) if rows else "<p>no jobs</p>"


def all_jobs(room: str, rule: RetryRule) -> Flow[JobList]:
    """Return all jobs that a room sees."""
    found = JobList()
    path = f"/rooms/{quoted(room)}/jobs"
    while True:
        call = operations.get(path, PaginatedResponse[JobSummary], limit=MAX_PAGE, offset=len(found))
        page = yield from read(call, f"Listing the jobs of room {room}", rule)
        found += page.items
        if not page.items or len(found) >= page.total:
            return found


def find_job(name: str, category: str | None, room: str, rule: RetryRule) -> Flow[JobName]:
    """Return the job that a name means in a room: its own one, or one of ``@global`` or ``@internal``.

    Raises `JobNotFound` with the nearest names, and `AmbiguousJob` for several categories.
    """
    seen = [parse_job_name(job.full_name) for job in (yield from all_jobs(room, rule))]
    for owner in (room, GLOBAL, INTERNAL):
        found = [
            job
            for job in seen
            if job.room_id == owner and job.name == name and category in {None, job.category}
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise AmbiguousJob(
                f"The name {name!r} is ambiguous: room {room!r} sees {', '.join(map(str, found))}. "
                "Pass the full name"
            )
    raise JobNotFound(missing_text(f"Room {room!r} sees no job {name!r}", name, room, seen))
