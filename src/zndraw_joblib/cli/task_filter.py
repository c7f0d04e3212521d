"""The tasks that a command is for: the options that select tasks, and the filter that the server gets."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from zndraw_joblib.cli.client import AdminClient, parse_id
from zndraw_joblib.cli.display import UsageError
from zndraw_joblib.cli.options import check_room
from zndraw_joblib.cli.times import local_now, past_time
from zndraw_joblib.client.calls import validated
from zndraw_joblib.wire.names import DEFAULT_ROOM, RESERVED, JobName, parse_reference
from zndraw_joblib.wire.operators import TaskFilter
from zndraw_joblib.wire.problems import TaskNotFound
from zndraw_joblib.wire.statuses import TaskStatus

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
Versions = Annotated[
    list[int] | None,
    typer.Option(
        "--version",
        metavar="N",
        help="Only tasks of this version of the job of --job; repeatable. 'jobs NAME' lists the versions.",
    ),
]
WorkerOf = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="WORKER",
        help="Only tasks whose current or last worker has this id, one that begins so, or this name.",
    ),
]
CreatedBy = Annotated[
    str | None, typer.Option("--created-by", metavar="USER", help="Only tasks that this user submitted.")
]
ErrorCodes = Annotated[
    list[str] | None,
    typer.Option("--error-code", metavar="CODE", help="Only tasks with this error code; repeatable."),
]
Exceptions = Annotated[
    list[str] | None,
    typer.Option(
        "--exception",
        metavar="NAME",
        help="Only tasks whose error begins with this class of exception, like ValueError; repeatable.",
    ),
]
Text = Annotated[
    str | None, typer.Option("--text", metavar="TEXT", help="Only tasks with this text in payload or error.")
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Only tasks with this tag; repeatable.")
]
Parent = Annotated[
    str | None,
    typer.Option("--parent", metavar="TASK", help="Only tasks that this one has submitted, of its room."),
]
Root = Annotated[
    str | None, typer.Option("--root", metavar="TASK", help="Only tasks below this one, the first of a tree.")
]
GroupOf = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only tasks of the group with this id.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only tasks submitted since a time: a duration ago, like 30m or 7d, or like 18:00, yesterday.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Only tasks submitted before a time: like 1h ago, or like 18:00, yesterday.",
    ),
]


# The options that are not fields of a filter as they are.
_NO_FIELDS = {"all_rooms", "room", "status", "job", "worker"}


@dataclass(frozen=True, slots=True)
class Selection:
    """The options as they are given. `rooms` is empty for all rooms."""

    rooms: list[str]
    statuses: list[TaskStatus]
    jobs: list[str]
    worker: str | None
    fields: dict[str, Any]
    is_default_room: bool = False

    @property
    def needs_search(self) -> bool:
        """Whether a list of one room, with one status, is not enough."""
        return bool(len(self.rooms) != 1 or len(self.statuses) > 1 or self.jobs or self.worker or self.fields)

    def located(self, client: AdminClient) -> "Selection":
        """Return the same with whole ids of group, parent and root. The default room is theirs."""
        ids: dict[str, Any] = {
            name: client.find_task(parse_id(self.fields[name]))
            for name in ("parent", "root")
            if name in self.fields
        }
        if "group" in self.fields:
            ids["group"] = client.find_group(self.fields["group"])
        if not ids:
            return self
        located = replace(self, fields={**self.fields, **ids})
        if not self.is_default_room:
            return located
        if "group" in ids:
            return replace(located, rooms=[client.get_group(ids["group"]).room])
        with suppress(TaskNotFound):  # the tasks below one that was deleted are still there
            located = replace(located, rooms=[client.get_task(next(iter(ids.values()))).room_id])
        return located

    def resolve(self, client: AdminClient) -> TaskFilter:
        """Return the filter with full names and ids. Raises `CommandError` for an unknown job or worker."""
        room = self.rooms[0] if self.rooms else None
        options = {
            "status": self.statuses,
            "room": self.rooms,
            "job": [str(client.find_job(job, room)) for job in self.jobs],
            "worker": client.find_worker(self.worker) if self.worker else None,
            **self.fields,
        }
        filters = {name: value for name, value in options.items() if value}
        try:
            return validated(TaskFilter, filters)
        except ValueError as error:
            raise UsageError(
                re.sub(r"^(\w+)", lambda name: f"--{name[0].replace('_', '-')}", str(error))
            ) from error


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The options that select tasks."""

    all_rooms: AllRooms = False
    room: Rooms = None
    status: Statuses = None
    job: Jobs = None
    worker: WorkerOf = None
    created_by: CreatedBy = None
    error_code: ErrorCodes = None
    exception: Exceptions = None
    text: Text = None
    version: Versions = None
    tag: Tags = None
    parent: Parent = None
    root: Root = None
    group: GroupOf = None
    since: Since = None
    until: Until = None

    def selection(self) -> Selection:
        """Return what the options select. Raises `UsageError`."""
        if self.all_rooms and self.room:
            raise UsageError("--all-rooms and --room cannot be combined. Pass one of them")
        begin, end = past_time(self.since, "--since"), past_time(self.until, "--until")
        if begin is not None and begin > local_now():
            raise UsageError(
                f"--since {self.since!r} is in the future: {begin:%Y-%m-%d %H:%M:%S}. Pass an earlier time"
            )
        if begin is not None and end is not None and begin >= end:
            raise UsageError(
                f"--since {self.since!r} is not before --until {self.until!r}: no task is between them"
            )
        values = {**vars(self), "since": begin, "until": end}
        named = self.room or _rooms_of(self.job or ())
        return Selection(
            rooms=[] if self.all_rooms else named or [DEFAULT_ROOM],
            statuses=list(self.status or ()),
            jobs=list(self.job or ()),
            worker=self.worker,
            fields={name: value for name, value in values.items() if value and name not in _NO_FIELDS},
            is_default_room=not (self.all_rooms or named),
        )


def _rooms_of(jobs: Sequence[str]) -> list[str]:
    """Return the rooms in the full names of jobs; none if a job is of all rooms or has a short name."""
    names = [name for job in jobs if isinstance(name := parse_reference(job), JobName)]
    rooms = {name.room_id for name in names}
    return [] if len(names) < len(jobs) or rooms & set(RESERVED) else sorted(rooms)


def where(rooms: Sequence[str]) -> str:
    """Return in which rooms tasks were looked for, to end a sentence with."""
    return f"in room {', '.join(rooms)}" if rooms else "in all rooms"
