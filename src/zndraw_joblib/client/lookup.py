"""Find a job by the last part of its full name, as a room sees it."""

from collections.abc import Sequence
from difflib import get_close_matches

from zndraw_joblib.client import operations
from zndraw_joblib.client.calls import quoted
from zndraw_joblib.client.failures import AmbiguousJob
from zndraw_joblib.client.flows import Flow, read
from zndraw_joblib.client.retry import RetryRule
from zndraw_joblib.client.task_id import table
from zndraw_joblib.contract.messages import MAX_PAGE, JobSummary, PaginatedResponse
from zndraw_joblib.contract.names import GLOBAL, INTERNAL, JobName, parse_job_name
from zndraw_joblib.contract.problems import JobNotFound

_MAX_NAMES = 10


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
    raise missing(f"Room {room!r} sees no job {name!r}", name, room, seen)


def missing(what: str, name: str, room: str, seen: Sequence[JobName]) -> JobNotFound:
    """Return the error for a job that a room does not see, with the nearest names that it sees."""
    if not seen:
        return JobNotFound(
            f"{what}: no worker has registered a job that room {room!r} sees. "
            "Start a worker with 'zndraw-joblib worker FILE', or name another room"
        )
    by_name = {job.name: str(job) for job in reversed(seen)}
    near = [by_name[each] for each in get_close_matches(name.rpartition(":")[2], by_name, n=3)]
    more = ", ..." if len(seen) > _MAX_NAMES else ""
    known = f"Room {room!r} sees {', '.join(map(str, seen[:_MAX_NAMES]))}{more}"
    hint = f"Did you mean {' or '.join(near)}?" if near else f"{known}."
    return JobNotFound(
        f"{what}. {hint} Check the name, start a worker that serves the job, or name another room"
    )
