"""The command submit: one task, or a task for each line of a JSON Lines file."""

import json
import re
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import IO, Annotated, Any, NamedTuple
from uuid import UUID, uuid4

import typer
from pydantic import ConfigDict, ValidationError

from zndraw_joblib.cli import following
from zndraw_joblib.cli.client import AdminClient, open_client, parse_id
from zndraw_joblib.cli.display import CommandError, UsageError, counted, print_json, print_note
from zndraw_joblib.cli.groups import sealed_group
from zndraw_joblib.cli.options import AsJson, Url, check_room, with_options
from zndraw_joblib.cli.payloads import check_payload, fitting, parse_object, parse_values
from zndraw_joblib.cli.task_output import check_completed, write_result
from zndraw_joblib.cli.times import TIME_FORMS, future_time, local_now, parse_duration
from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.client.queue import TaskHandle
from zndraw_joblib.client.submits import task_body
from zndraw_joblib.jobs.failures import describe_errors
from zndraw_joblib.jobs.logs import LogConfig, one_line
from zndraw_joblib.wire.messages import MAX_BATCH_BYTES, TaskSubmitRequest
from zndraw_joblib.wire.names import DEFAULT_ROOM, IDEMPOTENCY_KEY, JobName, format_key, task_room
from zndraw_joblib.wire.problems import JobNotFound, ProblemException
from zndraw_joblib.wire.requirements import parsed_requirements
from zndraw_joblib.wire.successors import OnFailure

_OPTIONS = {
    "after.tasks": "--after",
    "after.groups": "--after group",
    "debounce": "--debounce",
    "delay_seconds": "--delay",
    "expires_in_seconds": "--expires-in",
    "max_attempts": "--max-attempts",
    "priority": "--priority",
    "parent": "--parent",
    "run_at": "--run-at",
    "tags": "--tag",
    "unique": "--unique",
    "webhook": "--webhook",
}


def parse_options(*, run_at: str | None, key: str | None, **options: Any) -> dict[str, Any]:
    """Return the submit options that were given. Raises `UsageError`, also for an invalid `Idempotency-Key`.

    A `run_at` without a time zone is local time.
    """
    check_key(key)
    moment = future_time(run_at, "--run-at")
    if moment is not None and moment < local_now():
        print_note(f"--run-at {run_at} is past ({moment:%Y-%m-%d %H:%M:%S %Z}): the task is queued now.")
    fields = {name: value for name, value in {**options, "run_at": moment}.items() if value is not None}
    try:
        validated(TaskSubmitRequest, fields)
    except ValueError as error:
        text = re.sub("|".join(_OPTIONS), lambda field: _OPTIONS[field[0]], str(error))
        raise UsageError(text) from error
    return fields


def parse_unique(text: str) -> dict[str, Any]:
    """Return the rule that `--unique` gives: a key, or an object with the fields of `Unique`."""
    return _object_of("--unique", text) if text.startswith("{") else {"key": text}


def parse_webhook(text: str) -> dict[str, Any]:
    """Return the webhook that `--webhook` gives: a URL, or an object with the fields of `TaskWebhook`."""
    return _object_of("--webhook", text) if text.startswith("{") else {"url": text}


def parse_debounce(text: str) -> dict[str, Any]:
    """Return the rule that `--debounce` gives: a duration, or an object with the fields of `Debounce`."""
    return _object_of("--debounce", text) if text.startswith("{") else {"seconds": parse_duration(text)}


def _object_of(option: str, text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text[:100]!r} is not valid JSON: {error}") from error
    return fields


def check_key(key: str | None) -> None:
    """Raise `UsageError` for an invalid `Idempotency-Key`."""
    try:
        if key is not None:
            format_key(key)
    except ValueError as error:
        raise UsageError(str(error).replace(f"header.{IDEMPOTENCY_KEY}", "--idempotency-key")) from error


# Submit the tasks of a JSON Lines file: one object per line, with the task's payload and options.

STDIN = "-"
_SHOWN_FAULTS = 10
_TIMES = {"run_at", "delay_seconds"}
EncodeLine = Callable[[bytes], bytes]


class TaskLine(TaskSubmitRequest):
    """A line of the file. Without `job` or `room`, those of the command line are used."""

    model_config = ConfigDict(extra="forbid")

    job: str | None = None
    room: str | None = None


class CheckedFile(NamedTuple):
    """The valid tasks of a file, with the numbers of their lines, in a temporary file."""

    name: str
    tasks: int
    bodies: IO[bytes]

    def read(self, numbers: deque[int], group_id: UUID | None) -> Iterator[bytes]:
        """Yield the tasks, those of a group with its id; append the number of each line to `numbers`."""
        self.bodies.seek(0)
        head = b"{" if group_id is None else b'{"group":"%s",' % str(group_id).encode()
        for line in self.bodies:
            number, _, body = line.partition(b" {")
            numbers.append(int(number))
            yield head + body.rstrip(b"\n")


@contextmanager
def checked_file(path: str, encode_line: EncodeLine) -> Iterator[CheckedFile]:
    """Yield the tasks of a file, or of standard input for "-"; the memory does not grow with it.

    Raises `UsageError` that names the invalid lines.
    """
    name = "standard input" if path == STDIN else path
    count = invalid = 0
    faults: list[str] = []
    with tempfile.TemporaryFile() as bodies:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open_file(path) as source:
            for number, line in _lines(source):
                count += 1
                try:
                    bodies.write(b"%d %s\n" % (number, encode_line(line)))
                except (ValueError, CommandError, JobNotFound) as error:
                    invalid += 1
                    faults += [f"line {number}: {error}"] if invalid <= _SHOWN_FAULTS else []
        if invalid:
            more = f"; and {invalid - _SHOWN_FAULTS:,} more" if invalid > _SHOWN_FAULTS else ""
            raise UsageError(
                f"{invalid:,} of the {count:,} lines of {name} are invalid, so nothing was submitted: "
                f"{'; '.join(faults)}{more}"
            )
        if not count:
            raise UsageError(f'{name} has no tasks. Write one per line, like {{"payload": {{"key": 1}}}}')
        yield CheckedFile(name, count, bodies)


def open_file(path: str) -> IO[bytes]:
    """Open a file of lines. Raises `UsageError`."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"The file {path!r} cannot be read: {error.strerror}. Pass a file, or -") from error


def _lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers. Raises `UsageError` for an endless line."""
    number = 0
    while line := source.readline(MAX_BATCH_BYTES + 1):
        number += 1
        if len(line) > MAX_BATCH_BYTES:
            raise UsageError(
                f"line {number} has more than {MAX_BATCH_BYTES:,} bytes, so nothing was submitted. "
                "Write one task per line"
            )
        if line.strip():
            yield number, line


def encoder(
    client: AdminClient,
    job: str | None,
    room: str | None,
    defaults: dict[str, Any],
    *,
    is_grouped: bool = False,
) -> EncodeLine:
    """Return a function that turns a line into the body of its task; `defaults` are options.

    If `is_grouped`, all lines become tasks of one group, and none may name another.
    """

    @cache
    def find(name: str, searched: str | None) -> JobName | CommandError:
        # An unknown name is remembered too: it may stand in every line.
        try:
            return client.find_job(name, searched)
        except CommandError as error:
            return error

    def resolve(name: str, searched: str | None) -> JobName:
        name_or_error = find(name, searched)
        if isinstance(name_or_error, CommandError):
            raise name_or_error
        return name_or_error

    def encode_line(line: bytes) -> bytes:
        task = _task_of(line, is_grouped=is_grouped)
        fields = task.model_dump(exclude_unset=True, exclude={"job", "room", "payload"})
        if (job_name := task.job or job) is None:
            raise ValueError("job is missing: add it to the line, or pass JOB for all lines")
        name = resolve(job_name, task.room or room)
        options = {
            key: value for key, value in defaults.items() if not (key in _TIMES and _TIMES & set(fields))
        }
        return task_body(task_room(task.room or room, name), str(name), task.payload, {**options, **fields})

    return encode_line


def _task_of(line: bytes, *, is_grouped: bool) -> TaskLine:
    try:
        task = TaskLine.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(_explain(error)) from None
    if is_grouped and task.group is not None:
        raise ValueError("group: --group makes the group of all lines; remove one of them")
    return task


def _explain(error: ValidationError) -> str:
    unknown = [str(fault["loc"][0]) for fault in error.errors() if fault["type"] == "extra_forbidden"]
    if unknown:
        names = ", ".join(TaskLine.model_fields)
        return f"{', '.join(unknown)}: unknown field; a line has the fields {names}"
    return describe_errors(error)


def submit_file(client: AdminClient, file: CheckedFile, key: str, group_id: UUID | None = None) -> None:
    """Submit the tasks, all to a group if there is one; print one line for each.

    The line is its id, or empty if it was refused.
    The reasons of refusals go to standard error, with the numbers of the lines. Raises `CommandError` if a
    task was refused.
    """
    from zndraw_joblib.cli import terminal  # noqa: PLC0415 - see `terminal`

    numbers: deque[int] = deque()
    submitted = refused = 0
    with terminal.file_progress() as progress:
        bar = progress.add_task("Submitting", total=file.tasks)
        try:
            for results in client.submit_bodies(file.read(numbers, group_id), key):
                refused += _print_results(results, numbers)
                submitted += len(results)
                progress.update(bar, completed=submitted)
        except KeyboardInterrupt:
            print_note(
                f"Stopped after {submitted:,} of {counted(file.tasks, 'task')}. To submit the others, repeat "
                f"the command with --idempotency-key {key}"
            )
            raise
    print_note(f"Submitted {submitted - refused:,} of {counted(file.tasks, 'task')} of {file.name}.")
    if refused:
        raise CommandError(f"{counted(refused, 'task')} refused; the lines are named above")


def _print_results(results: Sequence[str | ProblemException], numbers: deque[int]) -> int:
    """Print a line for each result. Return how many are problems."""
    refused = 0
    for result in results:
        number = numbers.popleft()
        if isinstance(result, str):
            typer.echo(result)
        else:
            refused += 1
            typer.echo("")
            print_note(f"line {number}: {one_line(str(result))}")
    sys.stdout.flush()
    return refused


_GROUP = "group:"


def _relations(names: list[str] | None, on_failure: OnFailure | None, parent: str | None) -> dict[str, Any]:
    """Return the parent and what a task waits for, as given. Raises `UsageError` for --on-failure alone."""
    if on_failure is not None and not names:
        raise UsageError("--on-failure is about other tasks. Add --after, or remove it")
    after = {"tasks": names, "on_failure": on_failure or OnFailure.FAIL} if names else None
    return {name: value for name, value in (("parent", parent), ("after", after)) if value is not None}


def with_ids(client: AdminClient, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with whole ids of `parent` and `after`. Raises `CommandError` for an unknown one."""
    if "parent" in options:
        options = {**options, "parent": client.find_task(parse_id(options["parent"]))}
    if "after" not in options:
        return options
    names: list[str] = options["after"]["tasks"]
    groups = [client.find_group(name.removeprefix(_GROUP)) for name in names if name.startswith(_GROUP)]
    tasks = [client.find_task(name) for name in names if not name.startswith(_GROUP)]
    after = {**options["after"], "tasks": tasks, "groups": groups}
    return {**options, **parse_options(run_at=None, key=None, after=after)}


JobOfTask = Annotated[
    str | None,
    typer.Argument(metavar="JOB", help="room:category:Name, or category:Name or Name if the room sees one."),
]
TasksFile = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help='Submit a task for each line, like {"payload": {}}; JOB and options are defaults. - is stdin.',
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="The payload's fields. A value is JSON, or text where the job needs text."
    ),
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
    str | None, typer.Option("--run-at", metavar="TIME", help=f"Queue the task at this time, {TIME_FORMS}.")
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
UniqueKey = Annotated[
    dict[str, Any] | None,
    typer.Option(
        "--unique",
        metavar="KEY|JSON",
        parser=parse_unique,
        help='Submit no second task with this key in the room: its text, or an object like {"scope": "job"}.',
    ),
]
DebounceTime = Annotated[
    dict[str, Any] | None,
    typer.Option(
        "--debounce",
        metavar="DURATION|JSON",
        parser=parse_debounce,
        help="With --unique: queue the task this time after the last submit with its key.",
    ),
]
WebhookOfTask = Annotated[
    dict[str, Any] | None,
    typer.Option(
        "--webhook",
        metavar="URL|JSON",
        parser=parse_webhook,
        help='Send the end of the task there: a URL, or an object like {"url": "https://…", "secret": "…"}.',
    ),
]
TagsOfTask = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="A text by which the task is found; repeatable, up to 10."),
]


def _requirement(text: str) -> str:
    try:
        validated(TaskSubmitRequest, {"requires": parsed_requirements([text])})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


PreferencesOfTask = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer",
        metavar="CONDITION",
        parser=_requirement,
        help="Which workers get it first if they wait, as host=node7; repeatable.",
    ),
]
CostOfTask = Annotated[
    int | None,
    typer.Option(
        "--cost",
        metavar="N",
        min=1,
        max=1000,
        help="How many slots of its worker it takes, if not the job's.",
    ),
]
RequirementsOfTask = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="CONDITION",
        parser=_requirement,
        help="A condition on the labels of its worker, as gpu=a100 or 'memory_gb>=40'; repeatable.",
    ),
]
ParentOfTask = Annotated[
    str | None,
    typer.Option("--parent", metavar="TASK", help="The task of the same room that this one is below."),
]
AfterOthers = Annotated[
    list[str] | None,
    typer.Option(
        "--after", metavar="ID", help="A task of the same room to wait for, or group:ID; repeatable."
    ),
]
OnFailureOfOthers = Annotated[
    OnFailure | None,
    typer.Option(
        "--on-failure",
        help="With --after: if one of them does not complete, fail (default), run all the same, or hold "
        "until it is retried and completes.",
    ),
]
GroupName = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="NAME", help="With --from: make a group of this name of the tasks, and seal it."
    ),
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
        metavar="DURATION",
        parser=parse_duration,
        help="With --wait: stop waiting after this time, like 90s or 5m, exit code 124.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """The options of a task, whether it is submitted now or by a schedule."""

    priority: Priority = None
    expires_in: ExpiresIn = None
    max_attempts: MaxAttempts = None
    unique: UniqueKey = None
    debounce: DebounceTime = None
    tag: TagsOfTask = None
    require: RequirementsOfTask = None
    cost: CostOfTask = None
    prefer: PreferencesOfTask = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the request, None for those that are not given, without `requirements`."""
        names = ("priority", "max_attempts", "unique", "debounce", "cost")
        fields = {name: getattr(self, name) for name in names}
        return {**fields, "expires_in_seconds": self.expires_in, "tags": self.tag}

    @property
    def requirements(self) -> dict[str, Any]:
        """What the task requires, and prefers, of the labels of its worker."""
        options = {"requires": self.require, "prefer": self.prefer}
        return {name: parsed_requirements(texts) for name, texts in options.items() if texts}


@with_options(SubmitOptions)
def submit(  # noqa: PLR0913 - each is an option
    job: JobOfTask = None,
    values: Values = None,
    *,
    payload: Payload = None,
    file: TasksFile = None,
    room: TaskRoom = None,
    wait: Wait = False,
    timeout: WaitSeconds = None,
    delay: Delay = None,
    run_at: RunAt = None,
    options: SubmitOptions,
    webhook: WebhookOfTask = None,
    parent: ParentOfTask = None,
    after: AfterOthers = None,
    on_failure: OnFailureOfOthers = None,
    group: GroupName = None,
    idempotency_key: IdempotencyKey = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Submit a task, and print its id.

    With --wait, write the result instead; exit code 1 if the task fails or is cancelled, 124 after --timeout,
    130 after Ctrl-C, when it goes on. With --from, print an id or, with exit code 1, an empty line for each.
    """
    LogConfig().apply()
    fields = {"delay_seconds": delay, "webhook": webhook, **options.fields}
    fields = parse_options(run_at=run_at, key=idempotency_key, **fields)
    fields |= _relations(after, on_failure, parent) | options.requirements
    if file is not None:
        _check_alone(values=values, payload=payload, wait=wait, timeout=timeout, as_json=as_json)
        _submit_lines(file, job, room, fields, idempotency_key or str(uuid4()), url, group)
        return
    body = _body(payload, values, timeout, group, wait=wait)
    _submit_task(url, job, room, body, values, idempotency_key, fields, timeout, wait=wait, as_json=as_json)


def _submit_task(  # noqa: PLR0913, PLR0917 - the options of the command
    url: str,
    job: str | None,
    room: str | None,
    body: dict[str, Any],
    values: list[str] | None,
    key: str | None,
    options: dict[str, Any],
    timeout: float | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    with open_client(url) as client:
        options = with_ids(client, options)
        task = _submit_one(client, job, room, body, values, key, options)
        _finish(client, task.id, timeout, wait=wait, as_json=as_json)


def _submit_lines(  # noqa: PLR0913, PLR0917 - the options of the command
    file: str,
    job: str | None,
    room: str | None,
    options: dict[str, Any],
    key: str,
    url: str,
    group: str | None,
) -> None:
    with open_client(url) as client:
        defaults = with_ids(client, options)
        encode_line = encoder(client, job, room, defaults, is_grouped=group is not None)
        # An invalid line makes no group: all lines are checked before.
        with checked_file(file, encode_line) as checked, sealed_group(client, group, room, key) as group_id:
            submit_file(client, checked, key, group_id)


def _body(
    payload: str | None, values: list[str] | None, timeout: float | None, group: str | None, *, wait: bool
) -> dict[str, Any]:
    """Return the payload. Raises `UsageError`, also for --timeout without --wait, and for --group."""
    if group is not None:
        raise UsageError("--group makes a group of the tasks of a file. Add --from, or remove --group")
    if timeout is not None and not wait:
        raise UsageError("--timeout limits --wait. Add --wait, or remove --timeout")
    body = parse_object(payload) | parse_values(values or [])
    check_payload(body)
    return body


def _finish(client: AdminClient, task_id: UUID, timeout: float | None, *, wait: bool, as_json: bool) -> None:
    """Print the id of a task, or with `wait` its result at its end; as JSON print the task."""
    if not wait:
        print_json(client.get_task(task_id)) if as_json else typer.echo(task_id)
        sys.stdout.flush()
        following.note_reasons(client, task_id)
        if sys.stdout.isatty() and not as_json and (link := client.task_link(task_id)):
            print_note(f"See {link}")
        return
    task = following.follow(client, task_id, timeout=timeout)
    if as_json:
        print_json(task)
    check_completed(task)
    if not as_json:
        write_result(client, task, may_be_unseen=True)


def _submit_one(  # noqa: PLR0913, PLR0917 - the options of the command
    client: AdminClient,
    job: str | None,
    room: str | None,
    body: dict[str, Any],
    values: list[str] | None,
    key: str | None,
    options: dict[str, Any],
) -> TaskHandle:
    if job is None:
        raise UsageError("JOB is missing. Pass the name of a job, or --from FILE")
    name = client.find_job(job, room)
    payload = fitting(client, name, room, body, values)
    task = client.submit(str(name), payload, room=room, idempotency_key=key, **options)
    if task.duplicate:
        print_note("No new task: the task below holds this unique key.")
    return task


def _check_alone(
    *, values: list[str] | None, payload: str | None, wait: bool, timeout: float | None, as_json: bool
) -> None:
    """Raise `UsageError` if an option is given that has no meaning with --from."""
    conflicts = {
        "KEY=VALUE": bool(values),
        "--payload": payload is not None,
        "--wait": wait,
        "--timeout": timeout is not None,
        "--json": as_json,
    }
    wrong = [name for name, is_given in conflicts.items() if is_given]
    if wrong:
        raise UsageError(
            f"{wrong[0]} cannot be combined with --from. "
            "A file has the payloads, and the output is an id for each line"
        )
