"""Commands for who calls jobs: submit, task, explain, cancel."""

import json
from typing import Annotated, Any

import typer

from zndraw_joblib.cli import client, logs
from zndraw_joblib.cli.client import Client
from zndraw_joblib.cli.display import console, note, show_fields, show_json, show_rows, span
from zndraw_joblib.cli.options import ROOM, AsJson, Job, TaskId, Url
from zndraw_joblib.cli.payload import read_object, read_values, read_wishes
from zndraw_joblib.cli.refusal import Refusal
from zndraw_joblib.contract.messages import TaskHistory, TaskResponse
from zndraw_joblib.contract.names import RESERVED, JobName, parse_job_name
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import DEFAULT_URL

Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="The payload. A value is JSON, else text."),
]
Payload = Annotated[
    str | None,
    typer.Option("--json", metavar="JSON", help="The payload as an object; - reads standard input."),
]
Room = Annotated[
    str | None,
    typer.Option("--room", metavar="ROOM", help=f"Where the task belongs: the job's room, else {ROOM!r}."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end, and print the result.")]
Priority = Annotated[
    int | None, typer.Option("--priority", metavar="N", help="A higher one goes first; the job's own, else.")
]
Delay = Annotated[
    float | None, typer.Option("--delay", metavar="SECONDS", help="Let it wait before it enters the queue.")
]
RunAt = Annotated[
    str | None,
    typer.Option("--run-at", metavar="TIME", help="When it enters the queue: 2030-01-31T18:00, local time."),
]
ExpiresIn = Annotated[
    float | None,
    typer.Option("--expires-in", metavar="SECONDS", help="It fails unless it is claimed in this time."),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", metavar="N", help="How often it is tried, not as the job says."),
]
History = Annotated[bool, typer.Option("--history", help="Show all that has happened to it.")]


def submit(  # noqa: PLR0913 - each is an option
    job: Job,
    values: Values = None,
    *,
    payload: Payload = None,
    room: Room = None,
    wait: Wait = False,
    priority: Priority = None,
    delay: Delay = None,
    run_at: RunAt = None,
    expires_in: ExpiresIn = None,
    max_attempts: MaxAttempts = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Call a job, and print the task's id.

    With --wait, the result is printed as JSON once there is one; the exit code is 1 if the task did not
    complete.
    """
    logs.set_up()
    body = read_object(payload) | read_values(values or [])
    wishes = read_wishes(
        priority=priority,
        delay_seconds=delay,
        run_at=run_at,
        expires_in_seconds=expires_in,
        max_attempts=max_attempts,
    )
    with client.asking(url) as server:
        name = find_job(server, job, room)
        place = room or (ROOM if name.room_id in RESERVED else name.room_id)
        task_id = server.submit(str(name), body, room=place, **wishes)
        if not wait:
            typer.echo(task_id)
            return
        task = _wait_for(server, task_id)
    _tell_end(task)


def task(
    task_id: TaskId, *, history: History = False, as_json: AsJson = False, url: Url = DEFAULT_URL
) -> None:
    """Show a task, or with --history all that has happened to it."""
    with client.asking(url) as server:
        if history:
            _show_history(server.history(task_id), as_json=as_json)
        else:
            show_task(server.get_task(task_id), as_json=as_json)


def explain(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Say why a task is where it is, the first reason to mend first."""
    with client.asking(url) as server:
        told = server.explain(task_id)
    if as_json:
        show_json(told)
        return
    place = f", number {told.queue_position} in its queue" if told.queue_position else ""
    rows = [reason.model_dump() for reason in told.reasons]
    show_rows(rows, ["code", "detail"], wide=["detail"], caption=f"Task {told.id} is {told.status}{place}.")


def cancel(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Cancel a task that has not ended."""
    with client.asking(url) as server:
        show_task(server.cancel(task_id), as_json=as_json)


def find_job(server: Client, job: str, room: str | None) -> JobName:
    """Return a job by its full name, or by its own name where the room sees one such job."""
    if ":" in job:
        return parse_job_name(job)
    place = room or ROOM
    seen = [parse_job_name(known.full_name) for known in server.every_job(place)]
    found = [name for name in seen if name.name == job]
    if len(found) == 1:
        return found[0]
    if found:
        raise Refusal(f"There are several jobs {job!r}, give the full name: {', '.join(map(str, found))}")
    others = f"it sees {', '.join(map(str, seen[:10]))}" if seen else "no worker serves any job there"
    raise Refusal(f"Room {place!r} sees no job {job!r}: {others}")


def _wait_for(server: Client, task_id: str) -> TaskResponse:
    terminal = console(stderr=True)
    try:
        if not terminal.is_terminal:
            return server.wait_for(task_id)
        with terminal.status(f"Waiting for task {task_id}"):
            return server.wait_for(task_id)
    except KeyboardInterrupt:
        note(f"Task {task_id} goes on; 'zndraw-joblib task {task_id}' shows it, 'cancel' ends it.")
        raise


def _tell_end(task: TaskResponse) -> None:
    """Say how a task ended. Raises `Refusal` unless it was completed."""
    if task.status != TaskStatus.COMPLETED:
        raise Refusal(f"Task {task.id} {task.status}" + (f": {task.error}" if task.error else ""))
    took = f" in {span(task.completed_at - task.started_at)}" if task.completed_at and task.started_at else ""
    note(f"Task {task.id} completed{took}.")
    show_json(task.result)


def _show_history(history: TaskHistory, *, as_json: bool) -> None:
    if as_json:
        show_json(history)
        return
    columns = {
        "at": "at",
        "status": "status",
        "attempt": "attempt",
        "worker": "worker_id",
        "until": "run_at",
        "reason": "reason",
        "error": "error",
    }
    rows = [{name: getattr(step, field) for name, field in columns.items()} for step in history.transitions]
    show_rows(rows, list(columns), wide=["worker", "error"])


def show_task(task: TaskResponse, *, as_json: bool) -> None:
    """Print a task."""
    if as_json:
        show_json(task)
        return
    shown = task.model_dump()
    show_fields({**shown, "payload": _inline(task.payload), "result": _inline(task.result)})


def _inline(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
