"""Options that several commands share."""

from collections.abc import Callable, Collection
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, Any, TypeVar, get_origin

import typer

from zndraw_joblib.cli.client import parse_id
from zndraw_joblib.cli.display import UsageError
from zndraw_joblib.jobs.logs import LogFormat, LogThreshold
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.names import validate_room_id
from zndraw_joblib.wire.problems import InvalidRoomId

_Rooms = TypeVar("_Rooms", str | None, list[str] | None)

Url = Annotated[
    str, typer.Option("--url", envvar="ZNDRAW_JOBLIB_URL", metavar="URL", help="The server's URL.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskId = Annotated[
    str,
    typer.Argument(
        metavar="TASK", parser=parse_id, help="The task's id, or its beginning.", show_default=False
    ),
]
TaskIds = Annotated[
    list[str],
    typer.Argument(metavar="TASK...", help="The ids of tasks, or their beginnings.", show_default=False),
]
WorkerId = Annotated[
    str,
    typer.Argument(metavar="WORKER", help="The worker's id, its beginning, or its name.", show_default=False),
]
Job = Annotated[
    str,
    typer.Argument(metavar="JOB", help="room:category:Name, or category:Name or Name if the room sees one."),
]


def check_room(rooms: _Rooms) -> _Rooms:
    """Return the value of `--room`. Raises `UsageError` for what can be the id of no room."""
    for room in [rooms] if isinstance(rooms, str) else rooms or ():
        try:
            validate_room_id(room)
        except InvalidRoomId as problem:
            raise UsageError(str(problem)) from problem
    return rooms


def refuse_options_before(context: typer.Context) -> bool:
    """Return whether a command of the group follows. Raises `UsageError` for options before its name."""
    command = context.invoked_subcommand
    if command is None:
        return False
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if named:
        options = ", ".join(f"--{name.removeprefix('as_').replace('_', '-')}" for name in named)
        raise UsageError(f"{options} before {command!r} would have no effect: write it after {command!r}")
    return True


Room = Annotated[
    str, typer.Option("--room", callback=check_room, metavar="ROOM", help="The room to look in.")
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=MAX_PAGE, help="The number of rows to list.")
]
Log = Annotated[
    LogThreshold, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
]
Format = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="ZNDRAW_JOBLIB_LOG_FORMAT",
        metavar="FORMAT",
        help="text, or json with one object a line.",
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="ZNDRAW_JOBLIB_DATABASE_URL",
        metavar="URL",
        help="sqlite:///file.db or postgresql://user:password@host/name. "
        "Default: zndraw-joblib.db in the working directory.",
    ),
]


def with_options(
    kind: Callable[..., Any], *, without: Collection[str] = (), **changed: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a dataclass as options, in the place of its parameter `options`.

    The command has no option for the fields in `without`. `changed` are other defaults, or other annotations.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(signature(command).parameters.values())
        place = [parameter.name for parameter in own].index("options")
        shared = {
            name: option.replace(annotation=changed[name])
            if get_origin(changed.get(name)) is Annotated
            else option.replace(default=changed.get(name, option.default))
            for name, option in signature(kind).parameters.items()
            if name not in without
        }

        @wraps(command)
        def run(**values: Any) -> None:
            options = kind(**{name: values.pop(name) for name in shared})
            command(**values, options=options)

        run.__signature__ = Signature([*own[:place], *shared.values(), *own[place + 1 :]])  # type: ignore[attr-defined]
        return run

    return decorate
