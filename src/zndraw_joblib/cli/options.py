"""Options that several commands share, and the logging that they configure."""

import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from zndraw_joblib.contract.messages import MAX_PAGE

DEFAULT_ROOM = "default"
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_FORMAT_WITH_PID = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


class LogLevel(StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log level of this package, and whether uvicorn logs requests."""

    level: LogLevel = LogLevel.WARNING
    access_log: bool = False

    def apply(self, *, with_pid: bool = False) -> None:
        """Log this package from `level` on, and all libraries from WARNING on."""
        logging.basicConfig(format=_FORMAT_WITH_PID if with_pid else _FORMAT, level=logging.WARNING)
        logging.captureWarnings(capture=True)
        logging.getLogger("zndraw_joblib").setLevel(self.level.upper())
        if self.access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)


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
