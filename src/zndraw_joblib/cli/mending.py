"""Commands for who keeps a queue going: retry, release, fail, drain, pause, resume, sweeper."""

from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.cli import calling, client
from zndraw_joblib.cli.display import note, show_fields, show_json, show_rows
from zndraw_joblib.cli.options import AsJson, Job, TaskId, Url
from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.contract.messages import SweeperMode, SweeperPreview, SweeperState
from zndraw_joblib.worker.api import DEFAULT_URL

WorkerId = Annotated[UUID, typer.Argument(metavar="WORKER", help="The worker's id.", show_default=False)]
Reason = Annotated[str | None, typer.Argument(metavar="[REASON]", help="Reason; the task's owner reads it.")]
Room = Annotated[str | None, typer.Option("--room", metavar="ROOM", help="The room to look for it from.")]
WantedMode = Annotated[
    SweeperMode | None,
    typer.Option("--mode", metavar="MODE", help="enforce; observe changes nothing; off does nothing."),
]
Preview = Annotated[bool, typer.Option("--preview", help="Show what enforcing would do now.")]


def retry(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Put a task that ended without success into its queue once more."""
    with client.asking(url) as server:
        calling.show_task(server.retry(task_id), as_json=as_json)


def release(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Take a task from its worker, and put it back into its queue."""
    with client.asking(url) as server:
        calling.show_task(server.act(task_id, "release"), as_json=as_json)


def fail(task_id: TaskId, reason: Reason = None, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """End a task as failed, for good."""
    with client.asking(url) as server:
        calling.show_task(server.act(task_id, "fail", reason), as_json=as_json)


def drain(worker_id: WorkerId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Let a worker claim no more, finish what it runs, and leave."""
    with client.asking(url) as server:
        told = server.drain(worker_id)
    if as_json:
        show_json(told)
    else:
        show_fields({"worker": told.id, "drain": told.drain, "last heartbeat": told.last_heartbeat})


def pause(job: Job, *, room: Room = None, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Hand out no more tasks of a job; those that run go on."""
    _switch(job, room, "pause", as_json=as_json, url=url)


def resume(job: Job, *, room: Room = None, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Hand out the tasks of a paused job again."""
    _switch(job, room, "resume", as_json=as_json, url=url)


def sweeper(
    *,
    mode: WantedMode = None,
    preview: Preview = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show how the sweeper works; change it with --mode."""
    if mode and preview:
        raise Misuse("--mode and --preview do not go together")
    with client.asking(url) as server:
        told = server.preview() if preview else server.sweeper(mode)
    if as_json:
        show_json(told)
    elif isinstance(told, SweeperPreview):
        _show_preview(told)
    else:
        _show_state(told)


def _switch(job: str, room: str | None, action: str, *, as_json: bool, url: str) -> None:
    with client.asking(url) as server:
        told = server.switch(calling.find_job(server, job, room), action)
    if as_json:
        show_json(told)
    else:
        show_fields({"job": told.full_name, "paused": told.paused, "workers": len(told.workers)})


def _show_state(state: SweeperState) -> None:
    show_fields(state.model_dump(exclude={"cycles"}))
    for cycle in state.cycles[:1]:
        show_fields({"last cycle": cycle.at, **cycle.model_dump(exclude={"at", "mode"})})


def _show_preview(preview: SweeperPreview) -> None:
    note(f"Of {preview.scanned} workers {preview.stale} are silent for too long.")
    gone = [{"what": "worker", "id": id, "before": None, "after": "removed"} for id in preview.workers]
    moved = [{"what": "task", **change.model_dump()} for change in preview.tasks]
    rows = [{"reason": None, "run_at": None, **row} for row in [*gone, *moved]]
    show_rows(rows, ["what", "id", "before", "after", "reason", "run_at"], wide=["reason"])
