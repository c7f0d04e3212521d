"""Options that several commands share."""

from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.contract.logs import LogFormat, LogLevel
from zndraw_joblib.contract.messages import MAX_PAGE

DEFAULT_ROOM = "default"

Url = Annotated[
    str, typer.Option("--url", envvar="ZNDRAW_JOBLIB_URL", metavar="URL", help="The server's URL.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskId = Annotated[UUID, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)]
Job = Annotated[
    str,
    typer.Argument(metavar="JOB", help="room:category:Name, or Name alone if the room sees one such job."),
]
Room = Annotated[str, typer.Option("--room", metavar="ROOM", help="The room to look in.")]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=MAX_PAGE, help="The number of rows to list.")
]
Log = Annotated[LogLevel, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]
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


def show_help_without_command(context: typer.Context) -> None:
    """Print the help of a command group if no command follows its name."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
