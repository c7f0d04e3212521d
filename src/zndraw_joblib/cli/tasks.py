"""Commands for tasks: submit, tasks, task, explain, cancel."""

from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from zndraw_joblib.cli import following
from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import Row, print_json, print_rows
from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.cli.jobs import find_job
from zndraw_joblib.cli.options import DEFAULT_ROOM, AsJson, Limit, Room, TaskId, Url
from zndraw_joblib.cli.payload import check_key, check_payload, parse_object, parse_options, parse_values
from zndraw_joblib.cli.task_file import checked_file, encoder, submit_file
from zndraw_joblib.cli.task_output import check_completed, print_history, print_log, print_task, write_result
from zndraw_joblib.contract.logs import LogConfig
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.names import RESERVED
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import DEFAULT_URL

JobOfTask = Annotated[
    str | None,
    typer.Argument(metavar="JOB", help="room:category:Name, or Name alone if the room sees one such job."),
]
TasksFile = Annotated[
    str | None,
    typer.Option("--from", metavar="FILE", help="Submit a task for each line; - reads standard input."),
]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="The payload's fields. A value is JSON, else text."),
]
Payload = Annotated[
    str | None,
    typer.Option("--json", metavar="JSON", help="The payload as a JSON object; - reads standard input."),
]
TaskRoom = Annotated[
    str | None,
    typer.Option(
        "--room",
        metavar="ROOM",
        help=f"The task's room. Default: the job's room, or {DEFAULT_ROOM!r} for a global job.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the task ends, and print its result.")]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", metavar="N", help="Higher values are claimed first. Default: the job's priority."
    ),
]
Delay = Annotated[
    float | None, typer.Option("--delay", metavar="SECONDS", help="Queue the task after this time.")
]
RunAt = Annotated[
    str | None,
    typer.Option(
        "--run-at", metavar="TIME", help="Queue the task at this time, like 2030-01-31T18:00 (local time)."
    ),
]
ExpiresIn = Annotated[
    float | None,
    typer.Option("--expires-in", metavar="SECONDS", help="Fail the task if it is not claimed in this time."),
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", metavar="N", help="The number of attempts. Default: the job's policy."),
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Submits with the same key, payload and options submit one task. Default: a new key.",
    ),
]
WaitSeconds = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        help="With --wait: stop waiting after this time, exit code 124.",
    ),
]
History = Annotated[
    bool, typer.Option("--history", help="List the task's status changes and the details of each attempt.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Show the progress and print the log until the task ends.")
]
Logs = Annotated[bool, typer.Option("--logs", help="Print the log of the current or last attempt.")]
AttemptOfLog = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="With --logs: the log of this attempt.")
]
Result = Annotated[
    bool, typer.Option("--result", help="Write the result: JSON, or the bytes that the job stored.")
]
Status = Annotated[
    TaskStatus | None,
    typer.Option(
        "--status", metavar="STATUS", help=f"List only tasks with this status: {', '.join(TaskStatus)}."
    ),
]


def submit(  # noqa: PLR0913 - each is an option
    job: JobOfTask = None,
    values: Values = None,
    *,
    payload: Payload = None,
    file: TasksFile = None,
    room: TaskRoom = None,
    wait: Wait = False,
    timeout: WaitSeconds = None,
    priority: Priority = None,
    delay: Delay = None,
    run_at: RunAt = None,
    expires_in: ExpiresIn = None,
    max_attempts: MaxAttempts = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Submit a task, and print its id.

    With --wait, write the result instead. The exit code is 1 if the task fails or is cancelled, 124 after
    --timeout, and 130 after Ctrl-C; in these two cases the task goes on.

    With --from, submit a task for each line of a file, and print its id, or an empty line and exit code 1 if
    it was refused. JOB and the options are defaults. A line is an object like {"payload": {"key": 1}}, and
    may have job, room, priority, run_at, delay_seconds, expires_in_seconds and max_attempts.
    """
    LogConfig().apply()
    check_key(idempotency_key)
    given: dict[str, Any] = {"delay_seconds": delay, "run_at": run_at, "expires_in_seconds": expires_in}
    options = parse_options(priority=priority, max_attempts=max_attempts, **given)
    if file is not None:
        _check_alone(values=values, payload=payload, wait=wait, timeout=timeout)
        with open_client(url) as client, checked_file(file, encoder(client, job, room, options)) as checked:
            submit_file(client, checked, idempotency_key or str(uuid4()))
        return
    body = _body(payload, values)
    _check_timeout(timeout, wait=wait)
    with open_client(url) as client:
        task_id = _submit_one(client, job, room, body, idempotency_key, options)
        _finish(client, UUID(task_id), timeout) if wait else typer.echo(task_id)


def _body(payload: str | None, values: list[str] | None) -> dict[str, Any]:
    body = parse_object(payload) | parse_values(values or [])
    check_payload(body)
    return body


def _check_timeout(timeout: float | None, *, wait: bool) -> None:
    if timeout is not None and not wait:
        raise UsageError("--timeout limits --wait. Add --wait, or remove --timeout")


def _finish(client: AdminClient, task_id: UUID, timeout: float | None) -> None:
    """Wait for a task and write its result."""
    task = following.follow(client, task_id, timeout=timeout)
    check_completed(task)
    write_result(client, task)


def _submit_one(
    client: AdminClient,
    job: str | None,
    room: str | None,
    body: dict[str, Any],
    key: str | None,
    options: dict[str, Any],
) -> str:
    if job is None:
        raise UsageError("JOB is missing. Pass the name of a job, or --from FILE")
    name = find_job(client, job, room)
    task_room = room or (DEFAULT_ROOM if name.room_id in RESERVED else name.room_id)
    return client.submit(str(name), body, room=task_room, idempotency_key=key, **options)


def _check_alone(*, values: list[str] | None, payload: str | None, wait: bool, timeout: float | None) -> None:
    """Raise `UsageError` if an option is given that has no meaning with --from."""
    given = {
        "KEY=VALUE": bool(values),
        "--json": payload is not None,
        "--wait": wait,
        "--timeout": timeout is not None,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(f"{wrong[0]} cannot be combined with --from. Write the payloads into the file")


def tasks(
    *,
    room: Room = DEFAULT_ROOM,
    status: Status = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List a room's tasks, newest first."""
    with open_client(url) as client:
        page = client.tasks(room, status=status, limit=limit)
    if as_json:
        print_json(page.items)
        return
    columns = ["task", "job", "status", "created", "took", "error"]
    caption = f"{len(page.items)} of {page.total:,} tasks in room {room}"
    print_rows(
        [_task_row(task) for task in page.items], columns, wide=["job", "error", "took"], caption=caption
    )


def task(  # noqa: PLR0913 - each is an option
    task_id: TaskId,
    *,
    history: History = False,
    follow: Follow = False,
    logs: Logs = False,
    attempt: AttemptOfLog = None,
    result: Result = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show or follow a task, or print its history, log or result.

    With --follow, the exit code is 1 if the task fails or is cancelled, and 130 after Ctrl-C, which does not
    end the task.
    """
    LogConfig().apply()
    _check_views(
        {"--history": history, "--follow": follow, "--logs": logs, "--result": result}, as_json=as_json
    )
    if attempt is not None and not logs:
        raise UsageError("--attempt selects a log. Add --logs, or remove --attempt")
    with open_client(url) as client:
        if history:
            print_history(client.history(task_id), as_json=as_json)
        elif follow:
            check_completed(following.follow(client, task_id, prints_lines=True))
        elif logs:
            print_log(client.log_parts(task_id, attempt, 0), as_json=as_json)
        elif result:
            write_result(client, client.get_task(task_id))
        else:
            print_task(client.get_task(task_id), as_json=as_json)


def _check_views(views: dict[str, bool], *, as_json: bool) -> None:
    """Raise `UsageError` for options that exclude each other."""
    given = [name for name, is_given in views.items() if is_given]
    given += ["--json"] if as_json and {"--follow", "--result"} & set(given) else []
    if len(given) > 1:
        raise UsageError(f"{given[0]} cannot be combined with {given[1]}. Remove one of them")


def explain(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Explain a task's status, most important reason first."""
    with open_client(url) as client:
        explanation = client.explain(task_id)
    if as_json:
        print_json(explanation)
        return
    position = f", number {explanation.queue_position} in its queue" if explanation.queue_position else ""
    caption = f"Task {explanation.id} is {explanation.status}{position}."
    rows = [reason.model_dump() for reason in explanation.reasons]
    print_rows(rows, ["code", "detail"], wide=["detail"], caption=caption)


def cancel(task_id: TaskId, *, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Cancel a task that has not ended."""
    with open_client(url) as client:
        print_task(client.cancel(task_id), as_json=as_json)


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
