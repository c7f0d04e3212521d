"""Commands for who keeps a queue going: retry, release, fail, drain, pause, resume, sweeper."""

import json
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.cli import calling, client
from zndraw_joblib.cli.client import Told
from zndraw_joblib.cli.display import show_fields, show_json
from zndraw_joblib.cli.options import AsJson, Job, TaskId, Url
from zndraw_joblib.cli.refusal import Misuse
from zndraw_joblib.worker.api import DEFAULT_URL


class Mode(StrEnum):
    """What the sweeper does with what it finds."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


WorkerId = Annotated[UUID, typer.Argument(metavar="WORKER", help="The worker's id.", show_default=False)]
Reason = Annotated[str | None, typer.Argument(metavar="[REASON]", help="Why; the task's owner reads it.")]
Room = Annotated[str | None, typer.Option("--room", metavar="ROOM", help="The room to look for it from.")]
WantedMode = Annotated[
    Mode | None,
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
        _show(server.drain(worker_id), as_json=as_json)


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
        _show(server.preview() if preview else server.sweeper(mode), as_json=as_json)


def _switch(job: str, room: str | None, action: str, *, as_json: bool, url: str) -> None:
    with client.asking(url) as server:
        told = server.switch(calling.find_job(server, job, room), action)
    if as_json:
        show_json(told)
    else:
        show_fields({"job": told.full_name, "paused": told.paused, "workers": len(told.workers)})


def _show(told: Told, *, as_json: bool) -> None:
    if as_json:
        show_json(told)
        return
    plain = told.model_dump()
    show_fields(
        {
            name: json.dumps(value) if isinstance(value, list | dict) else value
            for name, value in plain.items()
        }
    )
