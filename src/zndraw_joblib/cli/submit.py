"""The command submit: one task, or a task for each line of a file."""

from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from zndraw_joblib.cli import following
from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import print_json
from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.cli.options import AsJson, Url, check_room
from zndraw_joblib.cli.payload import check_key, check_payload, parse_object, parse_options, parse_values
from zndraw_joblib.cli.task_file import checked_file, encoder, submit_file
from zndraw_joblib.cli.task_filter import parse_duration
from zndraw_joblib.cli.task_output import check_completed, write_result
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.contract.logs import LogConfig
from zndraw_joblib.contract.names import DEFAULT_ROOM

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
    typer.Option("--payload", metavar="JSON", help="The payload as a JSON object; - reads standard input."),
]
TaskRoom = Annotated[
    str | None,
    typer.Option(
        "--room",
        callback=check_room,
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
    float | None,
    typer.Option(
        "--delay",
        metavar="DURATION",
        parser=parse_duration,
        help="Queue the task after this time: seconds, or like 5m, 1h.",
    ),
]
RunAt = Annotated[
    str | None,
    typer.Option(
        "--run-at", metavar="TIME", help="Queue the task at this time, like 2030-01-31T18:00 (local time)."
    ),
]
ExpiresIn = Annotated[
    float | None,
    typer.Option(
        "--expires-in",
        metavar="DURATION",
        parser=parse_duration,
        help="Fail the task if it is not claimed in this time: seconds, or like 5m, 1h.",
    ),
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
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Submit a task, and print its id.

    With --wait, write the result instead. The exit code is 1 if the task fails or is cancelled, 124 after
    --timeout, and 130 after Ctrl-C; in these two cases the task goes on. With --json, print the task.

    With --from, submit a task for each line of a file, and print its id, or an empty line and exit code 1 if
    it was refused. JOB and the options are defaults. A line is an object like {"payload": {"key": 1}}, and
    may have job, room, priority, run_at, delay_seconds, expires_in_seconds and max_attempts.
    """
    LogConfig().apply()
    check_key(idempotency_key)
    seconds = {"delay_seconds": delay, "expires_in_seconds": expires_in}
    options = parse_options(run_at=run_at, priority=priority, max_attempts=max_attempts, **seconds)
    if file is not None:
        _check_alone(values=values, payload=payload, wait=wait, timeout=timeout, as_json=as_json)
        with open_client(url) as client, checked_file(file, encoder(client, job, room, options)) as checked:
            submit_file(client, checked, idempotency_key or str(uuid4()))
        return
    body = _body(payload, values, timeout, wait=wait)
    with open_client(url) as client:
        task_id = _submit_one(client, job, room, body, idempotency_key, options)
        _finish(client, UUID(task_id), timeout, wait=wait, as_json=as_json)


def _body(
    payload: str | None, values: list[str] | None, timeout: float | None, *, wait: bool
) -> dict[str, Any]:
    """Return the payload. Raises `UsageError`, also for --timeout without --wait."""
    if timeout is not None and not wait:
        raise UsageError("--timeout limits --wait. Add --wait, or remove --timeout")
    body = parse_object(payload) | parse_values(values or [])
    check_payload(body)
    return body


def _finish(client: AdminClient, task_id: UUID, timeout: float | None, *, wait: bool, as_json: bool) -> None:
    """Print the id of a task, or with `wait` its result at its end; as JSON print the task."""
    if not wait:
        print_json(client.get_task(task_id)) if as_json else typer.echo(task_id)
        return
    task = following.follow(client, task_id, timeout=timeout)
    if as_json:
        print_json(task)
    check_completed(task)
    if not as_json:
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
    return client.submit(str(client.find_job(job, room)), body, room=room, idempotency_key=key, **options)


def _check_alone(
    *, values: list[str] | None, payload: str | None, wait: bool, timeout: float | None, as_json: bool
) -> None:
    """Raise `UsageError` if an option is given that has no meaning with --from."""
    given = {
        "KEY=VALUE": bool(values),
        "--payload": payload is not None,
        "--wait": wait,
        "--timeout": timeout is not None,
        "--json": as_json,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(
            f"{wrong[0]} cannot be combined with --from. "
            "A file has the payloads, and the output is an id for each line"
        )
