"""The options that select tasks, for lists and for actions on several tasks."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import AdminClient
from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.cli.ids import parse_id
from zndraw_joblib.cli.options import check_room
from zndraw_joblib.client.calls import validated
from zndraw_joblib.contract.names import DEFAULT_ROOM
from zndraw_joblib.contract.searches import TaskFilter
from zndraw_joblib.contract.status import TaskStatus

AllRooms = Annotated[bool, typer.Option("--all-rooms", help="Tasks of all rooms, for a superuser.")]
Rooms = Annotated[
    list[str] | None,
    typer.Option(
        "--room",
        callback=check_room,
        metavar="ROOM",
        help=f"Tasks of this room; repeatable. Default: {DEFAULT_ROOM}.",
    ),
]
Statuses = Annotated[
    list[TaskStatus] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Only tasks with this status; repeatable: {', '.join(TaskStatus)}.",
    ),
]
Jobs = Annotated[
    list[str] | None,
    typer.Option(
        "--job", metavar="JOB", help="Only tasks of this job; repeatable. Full name, or Name alone."
    ),
]
WorkerOf = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="WORKER",
        parser=parse_id,
        help="Only tasks whose current or last worker has this id, or one that begins so.",
    ),
]
CreatedBy = Annotated[
    str | None, typer.Option("--created-by", metavar="USER", help="Only tasks that this user submitted.")
]
ErrorCodes = Annotated[
    list[str] | None,
    typer.Option("--error-code", metavar="CODE", help="Only tasks with this error code; repeatable."),
]
Text = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="Only tasks with this text in payload or error.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only tasks submitted since a time, or like 90s, 30m, 1h, 7d ago."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Only tasks submitted before a time, or like 1h ago."),
]

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Selection:
    """The options as they are given. `rooms` is empty for all rooms."""

    rooms: list[str]
    statuses: list[TaskStatus]
    jobs: list[str]
    worker: str | None
    fields: dict[str, Any]

    @property
    def needs_search(self) -> bool:
        """Whether a list of one room, with one status, is not enough."""
        return bool(len(self.rooms) != 1 or len(self.statuses) > 1 or self.jobs or self.worker or self.fields)

    def resolve(self, client: AdminClient) -> TaskFilter:
        """Return the filter with full names and ids. Raises `CommandError` for an unknown job or worker."""
        room = self.rooms[0] if self.rooms else None
        given = {
            "status": self.statuses,
            "room": self.rooms,
            "job": [str(client.find_job(job, room)) for job in self.jobs],
            "worker": client.find_worker(self.worker) if self.worker else None,
            **self.fields,
        }
        wanted = {name: value for name, value in given.items() if value}
        try:
            return validated(TaskFilter, wanted)
        except ValueError as error:
            raise UsageError(
                re.sub(r"^(\w+)", lambda name: f"--{name[0].replace('_', '-')}", str(error))
            ) from error


def select(  # noqa: PLR0913 - one for each option
    rooms: list[str] | None,
    statuses: list[TaskStatus] | None,
    jobs: list[str] | None,
    worker: str | None,
    since: str | None,
    until: str | None,
    *,
    all_rooms: bool,
    **others: str | list[str] | None,
) -> Selection:
    """Return what the options select. Raises `UsageError`."""
    if all_rooms and rooms:
        raise UsageError("--all-rooms and --room cannot be combined. Pass one of them")
    given = {**others, "since": parse_moment(since, "--since"), "until": parse_moment(until, "--until")}
    fields = {name: value for name, value in given.items() if value}
    chosen = [] if all_rooms else rooms or [DEFAULT_ROOM]
    return Selection(chosen, list(statuses or ()), list(jobs or ()), worker, fields)


def parse_duration(text: float | str) -> float:
    """Return the seconds of a number, or of a text like 90s, 5m, 1h, 7d. Raises `BadParameter`."""
    if isinstance(text, float):
        return text
    try:
        if found := _AGO.fullmatch(text.strip()):
            return timedelta(**{_UNITS[found[2]]: float(found[1])}).total_seconds()
        return float(text)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{text[:100]!r} is not a duration. Pass seconds, or 90s, 5m, 1h, 7d"
        ) from error


def parse_moment(text: str | None, option: str) -> datetime | None:
    """Return a time like 2030-01-31T18:00 (local time), or like 90s, 30m, 1h, 7d before now."""
    if text is None:
        return None
    try:
        if ago := _AGO.fullmatch(text.strip()):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option} {text[:100]!r} is not a time. Pass a time like 2030-01-31T18:00, or 90s, 30m, 1h, 7d"
        ) from error
