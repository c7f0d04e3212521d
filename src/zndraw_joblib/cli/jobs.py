"""Commands for jobs: jobs, pause, resume."""

from typing import Annotated

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import Row, print_fields, print_json, print_rows
from zndraw_joblib.cli.job_output import print_job
from zndraw_joblib.cli.options import AsJson, Job, Room, Url, check_room
from zndraw_joblib.cli.table import Layout
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.contract.messages import JobResponse, JobSummary
from zndraw_joblib.contract.names import DEFAULT_ROOM
from zndraw_joblib.contract.operations import JobEntry

JobRoom = Annotated[
    str | None,
    typer.Option("--room", callback=check_room, metavar="ROOM", help="The room to look for the job in."),
]
JobToShow = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The job to show: its full name, or Name alone.")
]
AllRooms = Annotated[bool, typer.Option("--all-rooms", help="Jobs of all rooms with their counts.")]
JOB_COLUMNS = ["job", "state", "workers", "queued", "oldest", "held", "failed"]
JOB_LAYOUT = Layout(wide=["job"], optional=["oldest", "failed"])


def jobs(
    name: JobToShow = None,
    *,
    all_rooms: AllRooms = False,
    room: Room = DEFAULT_ROOM,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List jobs, or show a job's parameters and policy."""
    with open_client(url) as client:
        if name is not None:
            job = client.job(client.find_job(name, room))
            print_json(job) if as_json else print_job(job)
        elif all_rooms:
            _print_entries(client.all_job_entries(), as_json=as_json)
        else:
            _print_summaries(client.all_jobs(room), room, as_json=as_json)


def _print_summaries(jobs: list[JobSummary], room: str, *, as_json: bool) -> None:
    if as_json:
        print_json(jobs)
        return
    rows = [{"job": job.full_name, "workers": len(job.workers)} for job in jobs]
    caption = f"Room {room} sees {len(rows):,} job{'' if len(rows) == 1 else 's'}"
    print_rows(rows, ["job", "workers"], Layout(wide=["job"]), caption=caption)


def _print_entries(jobs: list[JobEntry], *, as_json: bool) -> None:
    if as_json:
        print_json(jobs)
        return
    print_rows(list(map(job_row, jobs)), JOB_COLUMNS, JOB_LAYOUT, caption=f"{len(jobs):,} jobs in all rooms")


def job_row(job: JobEntry) -> Row:
    """Return the cells of a job with its counts."""
    counts = job.counts
    return {
        "job": job.full_name,
        "state": "paused" if job.paused else "",
        "workers": job.workers,
        "queued": job.queued,
        "oldest": job.oldest_waiting_at,
        "held": counts.claimed + counts.running,
        "failed": counts.failed,
    }


def pause(job: Job, *, room: JobRoom = None, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Stop handing out a job's tasks; running tasks continue."""
    with open_client(url) as client:
        _print_job(client.pause(client.find_job(job, room)), as_json=as_json)


def resume(job: Job, *, room: JobRoom = None, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Hand out the tasks of a paused job again."""
    with open_client(url) as client:
        _print_job(client.resume(client.find_job(job, room)), as_json=as_json)


def _print_job(job: JobResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        print_fields({"job": job.full_name, "paused": job.paused, "workers": len(job.workers)})
