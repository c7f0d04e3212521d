"""The commands of those who work for a server: worker, share."""

from typing import Annotated

import typer

from zndraw_joblib.cli import client, logs
from zndraw_joblib.cli.options import Log, LogLevel, Url
from zndraw_joblib.contract.names import GLOBAL
from zndraw_joblib.worker.api import DEFAULT_URL

Target = Annotated[str, typer.Argument(metavar="MODULE_OR_FILE", help="Where the extensions are.")]
Processes = Annotated[int, typer.Option("--processes", metavar="N", min=1, help="How many workers to be.")]
Concurrency = Annotated[int, typer.Option("--concurrency", metavar="N", min=1, help="Tasks at once in each.")]
Room = Annotated[str, typer.Option("--room", metavar="ROOM", help="The room to register the jobs in.")]
Place = Annotated[str, typer.Argument(metavar="DIR", help="A folder, or a URL that fsspec knows.")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="What to call it.")]
ShareRoom = Annotated[str, typer.Option("--room", metavar="ROOM", help="The room that may read it.")]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="MODULE:FUNCTION", help="Makes what each `run` gets as `vis`."),
]


def worker(  # noqa: PLR0913 - each is an option
    target: Target,
    *,
    processes: Processes = 1,
    concurrency: Concurrency = 1,
    room: Room = GLOBAL,
    context: Context = None,
    url: Url = DEFAULT_URL,
    log_level: Log = LogLevel.INFO,
) -> None:
    """Serve the extensions of a module or a .py file.

    Ctrl-C stops it once the running tasks have ended, a second Ctrl-C at once.
    """
    # Socket.IO takes half a second to load.
    from zndraw_joblib.cli import row  # noqa: PLC0415
    from zndraw_joblib.worker.serving import ProcessConfig  # noqa: PLC0415

    logs.set_up(log_level)
    access = client.find(url)
    plan = ProcessConfig(target, access.url, access.token, room, context, concurrency)
    if processes == 1:
        row.run_one(access, plan)
    elif row.run_several(access, plan, processes, log_level):
        raise typer.Exit(1)


def share(
    place: Place,
    *,
    name: Name,
    room: ShareRoom = GLOBAL,
    url: Url = DEFAULT_URL,
    log_level: Log = LogLevel.INFO,
) -> None:
    """Let a room look into a folder and read its files, until Ctrl-C.

    Nothing outside of the folder can be read, and nothing is written.
    """
    from zndraw_joblib.cli import row  # noqa: PLC0415

    logs.set_up(log_level)
    row.share(client.find(url), place, name, room)
