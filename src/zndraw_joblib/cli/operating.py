"""Commands for operators: serve, token, db. The server's libraries are loaded when one of them runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from zndraw_joblib.cli import logs
from zndraw_joblib.cli.options import DatabaseUrl, Log, LogLevel, show_help_if_bare
from zndraw_joblib.cli.refusal import Refusal

token = typer.Typer(
    help="Make, list and revoke the tokens of a standalone server.",
    callback=show_help_if_bare,
    invoke_without_command=True,
)
db = typer.Typer(
    help="Look at the database's schema, and upgrade it.",
    callback=show_help_if_bare,
    invoke_without_command=True,
)

TokenName = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose token it is; tasks carry it as created_by.")
]


Superuser = Annotated[
    bool, typer.Option("--superuser", help="May register jobs in @global and move anybody's tasks.")
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="0 takes a free one.")]
Processes = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        max=64,
        help="How many server processes share the port; more than 1 need PostgreSQL. 1 unless told.",
    ),
]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]


@contextmanager
def _needs_server() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zndraw_joblib"):
            raise
        raise Refusal(
            f"The server is not installed here ({error.name} is missing): pip install 'zndraw-joblib[server]'"
        ) from error


def serve(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    database_url: DatabaseUrl = None,
    workers: Processes = None,
    log_level: Log = LogLevel.INFO,
    access_log: AccessLog = False,
) -> None:
    """Serve the queue over HTTP until Ctrl-C.

    The first start makes a superuser's token, and keeps it where the other commands find it.
    """
    with _needs_server():
        from zndraw_joblib.cli.operator import serving  # noqa: PLC0415 - a worker's install has no server
    logs.set_up(log_level, access_log=access_log)
    serving.run(host, port, database_url, workers, logs.Speech(log_level, access_log=access_log))


def internal_worker(
    *,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=1, max=1000, help="Tasks at once.")
    ] = None,
    database_url: DatabaseUrl = None,
    log_level: Log = LogLevel.INFO,
) -> None:
    """Run internal jobs for servers that share this database and ZNDRAW_JOBLIB_REDIS_URL.

    Ctrl-C gives the running tasks some seconds, and hands the others back; a second one ends at once.
    """
    with _needs_server():
        from zndraw_joblib.cli.operator import inside  # noqa: PLC0415 - see above
    logs.set_up(log_level, is_one_of_many=True)
    inside.run(database_url, concurrency)


@token.command("create")
def create_token(name: TokenName, *, superuser: Superuser = False, database_url: DatabaseUrl = None) -> None:
    """Make a token, and print it once; only its hash is stored."""
    with _needs_server():
        from zndraw_joblib.cli.operator import tokens  # noqa: PLC0415 - see above
    tokens.create(name, database_url, is_superuser=superuser)


@token.command("list")
def list_tokens(*, database_url: DatabaseUrl = None) -> None:
    """List the names of the tokens."""
    with _needs_server():
        from zndraw_joblib.cli.operator import tokens  # noqa: PLC0415 - see above
    tokens.show(database_url)


@token.command("revoke")
def revoke_token(name: TokenName, *, database_url: DatabaseUrl = None) -> None:
    """Revoke a token; a running server refuses it within 5 seconds."""
    with _needs_server():
        from zndraw_joblib.cli.operator import tokens  # noqa: PLC0415 - see above
    tokens.revoke(name, database_url)


@db.command("upgrade")
def upgrade_database(*, database_url: DatabaseUrl = None) -> None:
    """Bring the schema to the version that this server needs."""
    with _needs_server():
        from zndraw_joblib.cli.operator import database  # noqa: PLC0415 - see above
    database.upgrade(database_url)


@db.command("current")
def show_current(*, database_url: DatabaseUrl = None) -> None:
    """Show the schema's version."""
    with _needs_server():
        from zndraw_joblib.cli.operator import database  # noqa: PLC0415 - see above
    database.current(database_url)
