"""The commands for jobs and pauses: jobs, register, forget, pause, resume, pauses."""

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import (
    ItemTable,
    MissingOperation,
    UsageError,
    counted,
    format_duration,
    kept_text,
    print_fields,
    print_json,
    print_note,
)
from zndraw_joblib.cli.limits import limit_text
from zndraw_joblib.cli.options import AsJson, Room, Url, check_room
from zndraw_joblib.cli.times import future_time, local_now
from zndraw_joblib.client.calls import validated
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.jobs.logs import clean_line
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire import requirements
from zndraw_joblib.wire.messages import JobPutRequest, JobResponse, JobSummary
from zndraw_joblib.wire.names import DEFAULT_ROOM, RESERVED, JobName, parse_job_name, unknown_text
from zndraw_joblib.wire.operations import Operation
from zndraw_joblib.wire.operators import JobEntry, PauseRequest, PauseState
from zndraw_joblib.wire.policy import JobBatch, JobPolicy
from zndraw_joblib.wire.problems import JobNotFound

Schema = Mapping[str, Any]
_NO_EXAMPLE = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
_MAX_DEPTH = 5


def print_job(job: JobResponse) -> None:
    """Print a job: its state, its parameters, its policy and an example call."""
    schema = job.schema_
    summary = str(schema.get("description") or "").split("\n\n")[0] or None
    print_fields(
        {"job": job.full_name, "about": summary, "paused": job.paused, "until": job.paused_until}
        | {"workers": _workers(job)}
        | ({"versions": _versions(job)} if len(job.versions) > 1 else {})
        | _policy(job)
    )
    parameters = [_parameter(schema, name, field) for name, field in _fields(schema).items()]
    if parameters:
        typer.echo()
        _PARAMETERS.print(parameters)
    typer.echo(f"\nExample: {clean_line(example_call(job))}")


def _workers(job: JobResponse) -> str:
    """Return how many workers serve a job, and how long it has had none."""
    if job.unserved_since is None:
        return f"{len(job.workers):,}"
    since = datetime.now(UTC) - job.unserved_since
    return "0" + (f", none for {format_duration(since)}" if since >= timedelta(seconds=1) else "")


def _versions(job: JobResponse) -> str:
    return "; ".join(
        f"{one.version}{' (current)' if one.current else ''}: {counted(one.workers, 'worker')}, "
        f"{one.pending:,} waiting"
        for one in job.versions
    )


def example_call(job: JobResponse) -> str:
    """Return a submit with a value for each required parameter, or for the first one."""
    fields = _fields(job.schema_)
    required = [name for name in fields if name in job.schema_.get("required", ())] or list(fields)[:1]
    values = [f"{name}={_written(_example(job.schema_, fields[name]))}" for name in required]
    return shlex.join(["zndraw-joblib", "submit", job.full_name, *values, "--wait"])


def _policy(job: JobResponse) -> dict[str, Any]:
    """Return the fields of the policy that the job has set, with durations to read."""
    fields = job.model_dump(include=set(JobPolicy.model_fields), exclude_defaults=True)
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name.endswith("_seconds") and value:
            shown[name.removesuffix("_seconds")] = format_duration(timedelta(seconds=value))
        elif name in {"requires", "prefer"} and value:
            shown[name] = requirements.shown(value)
        else:
            shown[name] = value
    if job.limits:
        shown["limits"] = "; ".join(map(limit_text, job.limits))
    if job.keep is not None:
        times = job.keep.model_dump(exclude_none=True)
        shown["keep"] = ", ".join(f"{status} {kept_text(time)}" for status, time in times.items())
    if job.batch is not None:
        shown["batch"] = batch_text(job.batch)
    return shown


def batch_text(batch: JobBatch) -> str:
    """Return how tasks are put together: "up to 32 with equal /model, waits 0.2 s for more"."""
    key = f" with equal {batch.key}" if batch.key else ""
    return f"up to {batch.max:,}{key}, waits {batch.wait_seconds:g} s for more"


def _fields(schema: Schema) -> Mapping[str, Schema]:
    fields = schema.get("properties")
    return {str(name): _mapping(field) for name, field in fields.items()} if isinstance(fields, dict) else {}


def _parameter(schema: Schema, name: str, field: Schema) -> dict[str, Any]:
    is_required = name in schema.get("required", ())
    default = "(required)" if is_required else json.dumps(field.get("default"), ensure_ascii=False)
    return {
        "parameter": name,
        "type": _type(schema, field),
        "default": default,
        "description": field.get("description") or _resolved(schema, field).get("description"),
    }


def _type(schema: Schema, field: Schema, depth: int = 0) -> str:
    """Return a type like "integer", "array of number", "'a' or 'b'"."""
    field = _resolved(schema, field)
    values = (
        field["enum"] if isinstance(field.get("enum"), list) else [field[k] for k in ("const",) if k in field]
    )
    if values:
        return " or ".join(map(_written, values))
    choices = field.get("anyOf") or field.get("oneOf")
    if isinstance(choices, list) and depth < _MAX_DEPTH:
        return " or ".join(dict.fromkeys(_type(schema, _mapping(choice), depth + 1) for choice in choices))
    kinds = field.get("type", "any")
    text = " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)
    items = field.get("items")
    if text == "array" and isinstance(items, dict) and depth < _MAX_DEPTH:
        text = f"array of {_type(schema, items, depth + 1)}"
    bounds = [f"{sign} {field[key]}" for key, sign in _BOUNDS.items() if key in field]
    return " ".join([text, *bounds])


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _example(schema: Schema, field: Schema, depth: int = 0) -> Any:
    """Return a value for a parameter: one of its examples, its default, or one of its type."""
    field = _resolved(schema, field)
    for values in (field.get("examples"), field.get("enum")):
        if isinstance(values, list) and values:
            return values[0]
    for key in ("default", "const", "minimum"):
        if field.get(key) is not None:
            return field[key]
    choices = field.get("anyOf") or field.get("oneOf")
    if isinstance(choices, list) and choices and depth < _MAX_DEPTH:
        return _example(schema, _mapping(choices[0]), depth + 1)
    kind = field.get("type")
    return _NO_EXAMPLE.get(kind[0] if isinstance(kind, list) and kind else str(kind), "text")


def _resolved(schema: Schema, field: Schema) -> Schema:
    """Follow references inside the schema."""
    for _ in range(_MAX_DEPTH):
        reference = field.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return field
        target: Any = schema
        for part in reference[2:].split("/"):
            target = _mapping(target).get(part)
        field = {**_mapping(target), **{key: value for key, value in field.items() if key != "$ref"}}
    return field


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, dict) else {}


def _written(value: Any) -> str:
    """Return a value as it is typed after KEY=."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FullName = Annotated[str, typer.Argument(metavar="JOB", help="The full name, room:category:Name.")]
JobToShow = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The job to show: its full name, or Name alone.")
]
AllRooms = Annotated[bool, typer.Option("--all-rooms", help="Jobs of all rooms with their counts.")]


def _state(job: JobSummary | JobEntry) -> str:
    return "paused" if job.paused else ""


JOBS = ItemTable(
    {
        "job": "full_name",
        "state": _state,
        "until": "paused_until",
        "workers": "workers",
        "queued": "queued",
        "oldest": "oldest_waiting_at",
        "held": lambda job: job.counts.claimed + job.counts.running,
        "failed": lambda job: job.counts.failed,
    },
    wide=["job"],
    optional=["oldest", "failed"],
    sparse=["until"],
)
_JOBS_OF_ROOM = ItemTable(
    {
        "job": "full_name",
        "state": _state,
        "until": "paused_until",
        "workers": lambda job: len(job.workers),
        "unserved": "unserved_since",
    },
    wide=["job"],
    sparse=["state", "until", "unserved"],
)
_PAUSED = ItemTable(
    {
        "job": "full_name",
        "paused": "paused",
        "until": "paused_until",
        "workers": lambda job: len(job.workers),
    },
    optional=["until"],
)
_PARAMETERS = ItemTable(
    {name: name for name in ("parameter", "type", "default", "description")},
    wide=["type", "default", "description"],
    optional=["description"],
)


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
            job = client.job(client.find_job(name, room), room)
            print_json(job) if as_json else print_job(job)
        elif all_rooms:
            entries = client.all_job_entries()
            JOBS.print(entries, caption=f"{counted(len(entries), 'job')} in all rooms", as_json=as_json)
        else:
            summaries = client.all_jobs(room)
            caption = f"Room {room} sees {counted(len(summaries), 'job')}"
            _JOBS_OF_ROOM.print(summaries, caption=caption, as_json=as_json)


SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        dir_okay=False,
        help="A file with the JSON Schema of the payload; any by default.",
    ),
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="JSON", help="An object with fields of the job's policy.")
]


def register(
    job: FullName,
    *,
    schema: SchemaFile = None,
    policy: Policy = "{}",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Register a job without a worker, or change one.

    Tasks of it wait for a worker, unless its policy has another `without_workers`.
    """
    name = _full_name(job)
    body = validated(JobPutRequest, {**_schema_in(schema), **_policy_of(policy)})
    with open_client(url) as client:
        registered = client.post(ops.PUT_JOB, body, room_id=name.room_id, name=name)
        print_json(registered) if as_json else print_job(registered)


def _schema_in(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--schema {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--schema {str(path)!r} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--schema {str(path)!r} is not a JSON object")
    return {"schema": content}


def _policy_of(text: str) -> dict[str, Any]:
    """Return the fields of a policy that are set. Raises `UsageError`."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--policy {text[:100]!r} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise UsageError('--policy is not an object. Pass one like {"max_attempts": 3}')
    names = list(JobPolicy.model_fields)
    if unknown := set(fields).difference(names):
        raise UsageError(unknown_text("--policy", unknown, names))
    try:
        return validated(JobPolicy, fields).model_dump(exclude_unset=True)
    except ValueError as error:
        raise UsageError(f"--policy.{error}") from error


def forget(job: FullName, *, url: Url = DEFAULT_URL) -> None:
    """Forget a job without workers and pending tasks."""
    name = _full_name(job)
    with open_client(url) as client:
        client.forget(name)
        schedules = _schedules_of(client, name)
    print_note(f"The job {name} is forgotten. Its tasks stay, and a worker that registers it restores it.")
    if schedules:
        rest = f" and {len(schedules) - _MAX_SCHEDULES:,} more" if len(schedules) > _MAX_SCHEDULES else ""
        print_note(
            f"{counted(len(schedules), 'schedule')} of it cannot submit tasks until then: "
            f"{', '.join(schedules[:_MAX_SCHEDULES])}{rest}. 'schedules delete NAME --room ROOM' deletes one."
        )


# The most schedules that are named.
_MAX_SCHEDULES = 5


def _schedules_of(client: AdminClient, name: JobName) -> list[str]:
    """Return the schedules of a job; none for a server that has no list of them."""
    query = {} if name.room_id in RESERVED else {"room": name.room_id}
    try:
        items, _ = client.items(ops.LIST_ALL_SCHEDULES, "the list of all schedules", None, query)
    except MissingOperation:
        return []
    of_job = [schedule for schedule in items if schedule.job == str(name)]
    return [f"{schedule.name} in room {schedule.room_id}" for schedule in of_job]


def _full_name(job: str) -> JobName:
    try:
        return parse_job_name(job)
    except JobNotFound as error:
        raise UsageError(f"{error}; pass a full name like @global:jobs:area") from error


PausedJob = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="The job: its full name, or Name alone. None for a room."),
]
PausedRoom = Annotated[
    str | None,
    typer.Option(
        "--room", callback=check_room, metavar="ROOM", help="The room, or the one to look for the job in."
    ),
]
PausedRooms = Annotated[bool, typer.Option("--all-rooms", help="The whole queue.")]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="When it ends by itself: a time, or like 30m, 2h from now."),
]
_PAUSES = ItemTable(
    {
        "room": lambda pause: pause.room or "(all rooms)",
        "until": "until",
        "paused": "paused_at",
        "by": "paused_by",
    },
    wide=["room", "by"],
    optional=["until"],
)
_ALL_PAUSES = ItemTable(
    {
        "room": lambda pause: pause["room"] or "(all rooms)",
        "job": "job",
        "until": "until",
        "paused": "paused_at",
        "by": "paused_by",
    },
    wide=["job", "room", "by"],
    optional=["until", "paused"],
    sparse=["job", "until", "paused", "by"],
)


def pause(
    job: PausedJob = None,
    *,
    room: PausedRoom = None,
    all_rooms: PausedRooms = False,
    until: Until = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Stop handing out the tasks of a job, a room or all rooms.

    Running tasks continue. Schedules of a paused room wait; what is due meanwhile follows their catch_up.
    """
    end = future_time(until, "--until")
    if end is not None and end <= local_now():
        raise UsageError(f"--until {until!r} is over: it was {end:%Y-%m-%d %H:%M:%S}. Pass a later time")
    body = PauseRequest(until=end)
    _change((ops.PAUSE_JOB, ops.PAUSE_ROOM, ops.PAUSE_ALL_ROOMS), body, (job, room, all_rooms), url, as_json)


def resume(
    job: PausedJob = None,
    *,
    room: PausedRoom = None,
    all_rooms: PausedRooms = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Hand out the tasks of a paused job, room or queue again."""
    operations = ops.RESUME_JOB, ops.RESUME_ROOM, ops.RESUME_ALL_ROOMS
    _change(operations, None, (job, room, all_rooms), url, as_json)


def _change(
    operations: tuple[Operation[JobResponse], Operation[PauseState], Operation[PauseState]],
    body: PauseRequest | None,
    what: tuple[str | None, str | None, bool],
    url: str,
    as_json: bool,
) -> None:
    job, room, all_rooms = what
    of_job, of_room, of_all = operations
    if (job is not None or room is not None) == all_rooms:
        raise UsageError("Name a job, or pass --room ROOM, or --all-rooms")
    with open_client(url) as client:
        if job is not None:
            name = client.find_job(job, room)
            if room is not None and name.room_id != room:
                raise UsageError(
                    f"{name} is a job of all rooms, so --room {room} would pause it nowhere else: leave out "
                    "--room to pause it everywhere, or JOB to pause the room"
                )
            with client.near_jobs(name):
                changed = client.post(of_job, body, room_id=name.room_id, name=name)
            _PAUSED.print_one(changed, as_json=as_json)
            return
        state = client.post(of_all, body) if room is None else client.post(of_room, body, room_id=room)
        if as_json:
            print_json(state)
        else:
            _PAUSES.print(state.pauses, caption=f"{room or 'The queue'} {_is_paused(state)}")


def _is_paused(state: PauseState) -> str:
    return "is paused" if state.paused else "is not paused"


def pauses(*, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """List what is paused: the whole queue, rooms and jobs.

    The audit trail has who paused a job.
    """
    with open_client(url) as client:
        rooms = client.items(ops.LIST_PAUSES, "the list of pauses", None, {})[0]
        paused = client.items(ops.LIST_ALL_JOBS, "the list of all jobs", None, {"paused": "true"})[0]
    items: list[dict[str, Any]] = [{**pause.model_dump(), "job": None} for pause in rooms]
    of_jobs = dict.fromkeys(("paused_at", "paused_by"))
    items += [
        {"room": job.room_id, "until": job.paused_until, **of_jobs, "job": job.full_name} for job in paused
    ]
    number = f"{counted(len(rooms), 'pause')} of rooms, {counted(len(paused), 'paused job')}"
    _ALL_PAUSES.print(items, caption=number, as_json=as_json)
