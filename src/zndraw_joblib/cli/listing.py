"""Commands that list what a server has: tasks, jobs, workers."""

from typing import Annotated

import typer

from zndraw_joblib.cli import client
from zndraw_joblib.cli.display import Row, show_json, show_rows
from zndraw_joblib.cli.options import ROOM, AsJson, Limit, Url
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import DEFAULT_URL

Room = Annotated[str, typer.Option("--room", metavar="ROOM", help="The room to look from.")]
OneRoom = Annotated[
    str | None, typer.Option("--room", metavar="ROOM", help="Only those that serve a job this room sees.")
]
Status = Annotated[
    TaskStatus | None,
    typer.Option("--status", metavar="STATUS", help=f"Only these: {', '.join(TaskStatus)}."),
]


def tasks(
    *,
    room: Room = ROOM,
    status: Status = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List a room's tasks, newest first."""
    with client.asking(url) as server:
        page = server.tasks(room, status=status, limit=limit)
    if as_json:
        show_json(page.items)
        return
    columns = ["task", "job", "status", "created", "took", "error"]
    caption = f"{len(page.items)} of {page.total:,} tasks in room {room}"
    show_rows([_task_row(task) for task in page.items], columns, wide=["job", "error"], caption=caption)


def jobs(*, room: Room = ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List the jobs that can be called from a room."""
    with client.asking(url) as server:
        found = server.every_job(room)
    if as_json:
        show_json(found)
        return
    rows = [{"job": job.full_name, "workers": len(job.workers)} for job in found]
    show_rows(rows, ["job", "workers"], wide=["job"], caption=f"{len(rows):,} jobs seen from room {room}")


def workers(
    *, room: OneRoom = None, limit: Limit = 20, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """List the workers, newest first."""
    with client.asking(url) as server:
        page = server.workers(room, limit=limit)
    if as_json:
        show_json(page.items)
        return
    rows = [
        {"worker": worker.id, "jobs": worker.job_count, "last heartbeat": worker.last_heartbeat}
        for worker in page.items
    ]
    caption = f"{len(rows)} of {page.total:,} workers"
    show_rows(rows, ["worker", "jobs", "last heartbeat"], wide=[], caption=caption)


def _task_row(task: TaskResponse) -> Row:
    took = task.completed_at - task.started_at if task.started_at and task.completed_at else None
    return {
        "task": task.id,
        "job": task.job_name,
        "status": task.status,
        "created": task.created_at,
        "took": took,
        "error": task.error,
    }
