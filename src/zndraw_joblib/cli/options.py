"""Options that several commands have."""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.contract.messages import MAX_PAGE

ROOM = "default"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Url = Annotated[
    str, typer.Option("--url", envvar="ZNDRAW_JOBLIB_URL", metavar="URL", help="Where the server is.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskId = Annotated[UUID, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)]
Job = Annotated[
    str, typer.Argument(metavar="JOB", help="room:category:Name; Name alone if it is the only one.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=MAX_PAGE, help="How many to list.")]
Log = Annotated[
    LogLevel,
    typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="ZNDRAW_JOBLIB_DATABASE_URL",
        metavar="URL",
        help="sqlite:///file.db or postgresql://user:password@host/name; "
        "unless told, zndraw-joblib.db in the working directory.",
    ),
]


def show_help_if_bare(context: typer.Context) -> None:
    """Print the help of a group of commands that was called without one."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
