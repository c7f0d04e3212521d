"""The commands that list, show and drain workers."""

from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import AdminClient, open_client, parse_id
from zndraw_joblib.cli.display import Layout, print_fields, print_json, print_rows
from zndraw_joblib.cli.options import AsJson, Limit, Url, WorkerId, check_room
from zndraw_joblib.cli.tasks import print_tasks
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.wire.operators import WorkerSummary

WorkersRoom = Annotated[
    str | None,
    typer.Option(
        "--room",
        callback=check_room,
        metavar="ROOM",
        help="List only workers that serve a job this room sees.",
    ),
]
WorkerToShow = Annotated[
    str | None,
    typer.Argument(metavar="WORKER", parser=parse_id, help="The worker to show: its id, or its beginning."),
]
WORKER_COLUMNS = ["worker", "name", "host", "state", "running", "claimed", "slots", "jobs", "last heartbeat"]
WORKER_LAYOUT = Layout(
    wide=["name", "host"],
    ids=["worker"],
    optional=["jobs", "host", "slots", "claimed", "last heartbeat"],
    paths=["host"],
)


def workers(
    worker: WorkerToShow = None,
    *,
    room: WorkersRoom = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List workers, newest first, or show one with its tasks."""
    with open_client(url) as client:
        if worker is not None:
            _show(client, worker, as_json=as_json)
            return
        page = client.workers(room, limit=limit)
    if as_json:
        print_json(page.items)
        return
    rows = list(map(worker_row, page.items))
    print_rows(rows, WORKER_COLUMNS, WORKER_LAYOUT, caption=f"{len(rows)} of {page.total:,} workers")


def drain(worker_id: WorkerId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Let a worker finish its tasks, claim no more, and leave."""
    with open_client(url) as client:
        drained = client.drain(client.find_worker(worker_id))
    if as_json:
        print_json(drained)
    else:
        print_fields({"worker": drained.id, "drain": drained.drain, "last heartbeat": drained.last_heartbeat})


def worker_row(worker: WorkerSummary) -> dict[str, Any]:
    """Return the cells of a worker. What an older server does not return is empty."""
    fields = worker.model_dump(include={"name", "host", "state", "slots", "running"})
    claimed = None if worker.held is None or worker.running is None else worker.held - worker.running
    times = {"claimed": claimed or None, "jobs": worker.job_count, "last heartbeat": worker.last_heartbeat}
    return {"worker": worker.id, **fields, **times}


def _show(client: AdminClient, worker: str, *, as_json: bool) -> None:
    detail = client.worker_detail(client.find_worker(worker))
    if as_json:
        print_json(detail)
        return
    print_fields({**detail.model_dump(exclude={"jobs", "tasks"}), "jobs": ", ".join(detail.jobs)})
    if detail.tasks:
        typer.echo()
        print_tasks(detail.tasks, with_rooms=True, caption=f"{len(detail.tasks)} tasks")
