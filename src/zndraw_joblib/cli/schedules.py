"""The commands for schedules."""

from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from zndraw_joblib.cli.client import open_client
from zndraw_joblib.cli.display import (
    ItemTable,
    UsageError,
    counted,
    print_fields,
    print_json,
    print_note,
    usage_errors,
)
from zndraw_joblib.cli.options import AsJson, Room, Url, refuse_options_before, with_options
from zndraw_joblib.cli.payloads import check_payload, fitting, parse_object, parse_values
from zndraw_joblib.cli.submit import JobOfTask, Payload, SubmitOptions, TaskRoom, Values
from zndraw_joblib.cli.times import TIME_FORMS, future_time, parse_duration
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.names import DEFAULT_ROOM
from zndraw_joblib.wire.schedules import MAX_NEXT, CatchUp, Overlap, ScheduleResponse

AllRooms = Annotated[bool, typer.Option("--all-rooms", help="Schedules of all rooms.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Cron = Annotated[
    str | None,
    typer.Option("--cron", metavar="CRON", help="Minute, hour, day, month and weekday: '0 3 * * *'."),
]
Every = Annotated[
    list[float] | None,
    typer.Option(
        "--every", metavar="DURATION", parser=parse_duration, help="An interval: seconds, or like 5m, 1h."
    ),
]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help=f"Once, {TIME_FORMS}.")]
TimeZone = Annotated[
    str, typer.Option("--time-zone", metavar="ZONE", help="The time zone of --cron, like Europe/Berlin.")
]
Jitter = Annotated[
    float,
    typer.Option(
        "--jitter", metavar="DURATION", parser=parse_duration, help="Queue each task up to so much later."
    ),
]
OverlapOption = Annotated[
    Overlap,
    typer.Option("--overlap", metavar="RULE", help="While a task has not ended: allow, skip or queue_one."),
]
CatchUpOption = Annotated[
    CatchUp, typer.Option("--catch-up", metavar="RULE", help="Which missed times run: none, last or all.")
]
MaxCatchUp = Annotated[
    int, typer.Option("--max-catch-up", metavar="N", min=1, help="How many missed times run with 'all'.")
]
StartsAt = Annotated[str | None, typer.Option("--starts-at", metavar="TIME", help="The first time.")]
EndsAt = Annotated[str | None, typer.Option("--ends-at", metavar="TIME", help="The last time.")]
Paused = Annotated[
    bool | None, typer.Option("--paused/--not-paused", help="Default: as it is; a new one is not.")
]
Count = Annotated[
    int, typer.Option("--count", "-n", metavar="N", min=1, max=MAX_NEXT, help="How many times.")
]


def _rule(schedule: ScheduleResponse) -> str:
    if schedule.cron is not None:
        return f"{schedule.cron} {schedule.time_zone}"
    if schedule.every_seconds is not None:
        return f"every {schedule.every_seconds:g} s"
    return "once" if schedule.at is None else f"at {schedule.at.isoformat()}"


_SCHEDULES = ItemTable(
    {
        "name": "name",
        "room": "room_id",
        "job": "job",
        "rule": _rule,
        "state": lambda schedule: "paused" if schedule.paused else "",
        "next": "next_due_at",
        "last": "last_due_at",
        "error": "error",
    },
    wide=["job", "name", "error"],
    optional=["last", "error"],
)
_TIMES = ItemTable({"due": "due", "local": "local"})

app = typer.Typer(invoke_without_command=True)


@app.callback()
def schedules(
    context: typer.Context,
    *,
    all_rooms: AllRooms = False,
    room: Room = DEFAULT_ROOM,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List the schedules of a room, or change one."""
    if refuse_options_before(context):
        return
    with open_client(url) as client:
        if all_rooms:
            items, _ = client.items(ops.LIST_ALL_SCHEDULES, "the list of all schedules", None, {})
        else:
            items = client.schedules.all(room)
    number = counted(len(items), "schedule")
    if all_rooms:
        _SCHEDULES.print(items, caption=f"{number} in all rooms", as_json=as_json)
    else:
        _SCHEDULES.without("room").print(items, caption=f"Room {room} has {number}", as_json=as_json)


@app.command()
@with_options(SubmitOptions)
def put(  # noqa: PLR0913 - each is an option
    name: Name,
    job: JobOfTask,
    values: Values = None,
    *,
    payload: Payload = None,
    room: TaskRoom = None,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    time_zone: TimeZone = "UTC",
    jitter: Jitter = 0.0,
    overlap: OverlapOption = Overlap.ALLOW,
    catch_up: CatchUpOption = CatchUp.LAST,
    max_catch_up: MaxCatchUp = 100,
    starts_at: StartsAt = None,
    ends_at: EndsAt = None,
    options: SubmitOptions,
    paused: Paused = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create or replace a schedule.

    For example: schedules put nightly relax steps=50 --cron '0 3 * * *'
    """
    check_payload(body := parse_object(payload) | parse_values(values or []))
    fields = _times(cron, every, at) | {
        **{"starts_at": future_time(starts_at, "--starts-at"), "ends_at": future_time(ends_at, "--ends-at")},
        **{"time_zone": time_zone, "jitter_seconds": jitter, "overlap": overlap, "catch_up": catch_up},
        **{"max_catch_up": max_catch_up, "paused": paused, **options.fields},
    }
    fields = {name: value for name, value in fields.items() if value is not None} | options.requirements
    with open_client(url) as client, usage_errors():
        full_name = client.find_job(str(job), room)
        payload_of_job = fitting(client, full_name, room, body, values)
        _print(
            client.schedules.put(name, str(full_name), payload_of_job, room=room, **fields), as_json=as_json
        )


def _times(cron: str | None, every: list[float] | None, at: str | None) -> dict[str, Any]:
    """Return when a schedule is due. Raises `UsageError` unless it is said in one way."""
    if every and len(every) > 1:
        raise UsageError(f"--every has {len(every)} values. Give it once, or make a schedule for each")
    if sum(bool(value) for value in (cron, every, at)) != 1:
        raise UsageError("Give one of --cron, --every and --at, like --cron '0 3 * * *'")
    return {"cron": cron, "every_seconds": every[0] if every else None, "at": future_time(at, "--at")}


@app.command()
def show(name: Name, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show a schedule."""
    with open_client(url) as client, client.near_schedules(name, room):
        _print(client.schedules.get(name, room=room), as_json=as_json)


@app.command("next")
def following(
    name: Name,
    *,
    count: Count = 5,
    room: Room = DEFAULT_ROOM,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """List when a schedule is due next."""
    with open_client(url) as client, client.near_schedules(name, room):
        schedule = client.schedules.get(name, room=room, next=count)
    zone = ZoneInfo(schedule.time_zone)
    rows = [
        {"due": due, "local": f"{due.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"}
        for due in schedule.next or []
    ]
    (_TIMES.without("local") if schedule.time_zone == "UTC" else _TIMES).print(rows, as_json=as_json)


@app.command()
def pause(name: Name, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Submit no more tasks of a schedule."""
    with open_client(url) as client, client.near_schedules(name, room):
        _print(client.schedules.pause(name, room=room), as_json=as_json)


@app.command()
def resume(name: Name, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Submit tasks of a paused schedule again."""
    with open_client(url) as client, client.near_schedules(name, room):
        _print(client.schedules.resume(name, room=room), as_json=as_json)


@app.command()
def run(name: Name, *, room: Room = DEFAULT_ROOM, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Submit a task of a schedule now, and print its id."""
    with open_client(url) as client, client.near_schedules(name, room):
        task = client.schedules.run(name, room=room)
    print_json(task) if as_json else typer.echo(task.id)


@app.command()
def delete(name: Name, *, room: Room = DEFAULT_ROOM, url: Url = DEFAULT_URL) -> None:
    """Delete a schedule; its tasks stay."""
    with open_client(url) as client, client.near_schedules(name, room):
        client.schedules.delete(name, room=room)
    print_note(f"Schedule {name} of room {room} is deleted. Its tasks stay.")


def _print(schedule: ScheduleResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    fields = schedule.model_dump(
        exclude_defaults=True, exclude={"cron", "every_seconds", "time_zone", "next"}
    )
    print_fields({"name": fields.pop("name"), "rule": _rule(schedule), **fields})
