"""The commands serve, internal-worker, token and db. Each imports the server when it runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from zndraw_joblib.cli import show_help_without_command
from zndraw_joblib.cli.display import CommandError, UsageError
from zndraw_joblib.cli.options import AsJson, DatabaseUrl, Format, Log, Url
from zndraw_joblib.cli.times import parse_duration
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.jobs.failures import missing_extra
from zndraw_joblib.jobs.logs import LogConfig, LogFormat, LogThreshold
from zndraw_joblib.wire.scopes import ANY_SCOPE, AccessRole

ScopeName = StrEnum("ScopeName", ANY_SCOPE.names)  # type: ignore[misc]

token = typer.Typer(
    help="Create, list, change and revoke the tokens of a server.",
    callback=show_help_without_command,
    invoke_without_command=True,
)
db = typer.Typer(
    help="Upgrade, copy or check the database.",
    callback=show_help_without_command,
    invoke_without_command=True,
)

TokenName = Annotated[
    str, typer.Argument(metavar="NAME", help="The user's name, which tasks carry as created_by.")
]
Superuser = Annotated[bool, typer.Option("--superuser", help="The same as --role admin.")]
Role = Annotated[
    AccessRole | None,
    typer.Option("--role", help="What the user may do. Default: read, submit, and serve jobs of rooms."),
]
Scopes = Annotated[
    list[ScopeName] | None,
    typer.Option("--scope", help="A right besides those of the role, or alone. Repeatable."),
]
TokenRooms = Annotated[
    str | None,
    typer.Option(
        "--rooms", metavar="ROOMS", help="The rooms of these rights, like lab,lab2,@global. Default: all."
    ),
]
TokenJobs = Annotated[
    str | None,
    typer.Option(
        "--jobs", metavar="PATTERNS", help="The jobs to submit and serve, like 'lab:*,@global:jobs:fit'."
    ),
]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="When the token ends: 90d, 12h, or a time.")
]
NewRooms = Annotated[
    str | None, typer.Option("--rooms", metavar="ROOMS", help="The rooms of these rights; '*' for all.")
]
NewJobs = Annotated[
    str | None, typer.Option("--jobs", metavar="PATTERNS", help="The jobs to submit and serve; '*' for all.")
]
NewEnd = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="When the token ends: 90d, 12h, a time, or never."),
]
IssuedJobs = Annotated[
    str, typer.Option("--jobs", metavar="PATTERNS", help="The jobs to serve, like 'lab:*,@global:jobs:fit'.")
]
IssuedRooms = Annotated[str, typer.Option("--rooms", metavar="ROOMS", help="The rooms of these jobs.")]
Lifetime = Annotated[
    float,
    typer.Option(
        "--expires", metavar="DURATION", parser=parse_duration, help="How long it is valid: 12h, at most 30d."
    ),
]
MaxClaims = Annotated[
    int | None,
    typer.Option("--max-tasks", metavar="N", min=1, help="How many tasks its workers may claim in all."),
]
IssuedLabels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label of its workers, as gpu=a100; repeatable."),
]
CreateDatabase = Annotated[
    bool,
    typer.Option(
        "--create-database", help="Create the database in the working directory if it does not exist."
    ),
]
CopySource = Annotated[
    str, typer.Option("--from", metavar="URL", help="The database to copy, which no server uses.")
]
CopyTarget = Annotated[str, typer.Option("--to", metavar="URL", help="The empty database to write to.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check both databases and count rows; write nothing.")
]
Repair = Annotated[bool, typer.Option("--repair", help="Correct wrong counts.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="The port; 0 takes a free one.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        "--workers",
        metavar="N",
        min=1,
        max=64,
        help="The number of server processes on this port; more than 1 need PostgreSQL. Default: 1. "
        "--workers is the old name.",
    ),
]
Target = Annotated[
    str | None,
    typer.Argument(metavar="[MODULE_OR_FILE]", help="With --dev: the module or .py file of a worker's jobs."),
]
Dev = Annotated[
    bool,
    typer.Option(
        "--dev",
        help="While you write jobs: run a worker too, start it anew when the jobs change, and print a token. "
        "Not for production.",
    ),
]
AllowRemote = Annotated[
    bool, typer.Option("--allow-remote", help="With --dev: permit a --host that other machines can reach.")
]
HasTestClock = Annotated[
    bool,
    typer.Option(
        "--test-clock",
        help="For tests: POST /clock/advance moves the time of the queue forward. One process only. Not for "
        "production.",
    ),
]
AccessLog = Annotated[bool, typer.Option("--access-log", help="Log every request.")]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", min=1, max=1000, help="The number of tasks to run at once."),
]


@contextmanager
def needs_server() -> Iterator[None]:
    """Explain a missing library of the server."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zndraw_joblib"):
            raise
        raise CommandError(missing_extra("This command", "server", error)) from error


def serve(  # noqa: PLR0913 - each is an option
    target: Target = None,
    *,
    dev: Dev = False,
    allow_remote: AllowRemote = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    database_url: DatabaseUrl = None,
    processes: Processes = None,
    log_level: Log = LogThreshold.INFO,
    log_format: Format = LogFormat.TEXT,
    access_log: AccessLog = False,
    test_clock: HasTestClock = False,
) -> None:
    """Run a server until Ctrl-C.

    The first start creates a superuser's token and saves it for the other commands.

    A stop gives open requests and running internal tasks 5 seconds each to finish.
    """
    # Loading frees nothing, so the garbage collector would find nothing. `serve` enables it again.
    gc.disable()
    with needs_server():
        from zndraw_joblib.cli.server import serve  # noqa: PLC0415 - a worker's install has no server
    log = LogConfig(log_level, log_format, access_log=access_log)
    log.apply()
    if dev and test_clock:
        raise UsageError(
            "--test-clock is not for --dev: run a worker beside 'zndraw-joblib serve --test-clock'"
        )
    if dev:
        _serve_dev(target, host, port, database_url, processes, log, allows_remote=allow_remote)
    elif target is not None or allow_remote:
        what = "--allow-remote" if target is None else f"{target!r}: serving jobs"
        raise UsageError(f"{what} needs --dev. Without it, run 'zndraw-joblib worker' beside the server")
    else:
        serve.run(host, port, database_url, processes, log, has_test_clock=test_clock)


def _serve_dev(  # noqa: PLR0913 - as above
    target: str | None,
    host: str,
    port: int,
    database_url: str | None,
    processes: int | None,
    log: LogConfig,
    *,
    allows_remote: bool,
) -> None:
    from zndraw_joblib.cli.server import dev  # noqa: PLC0415 - as above

    if processes is not None:
        raise UsageError("--processes is not for --dev, which runs one server process")
    dev.run(
        dev.DevOptions(
            target=target,
            host=host,
            port=port,
            database_url=database_url,
            allows_remote=allows_remote,
            log=log,
        )
    )


def internal_worker(
    *,
    concurrency: Concurrency = None,
    database_url: DatabaseUrl = None,
    log_level: Log = LogThreshold.INFO,
    log_format: Format = LogFormat.TEXT,
) -> None:
    """Run the internal tasks of servers that use Redis.

    The servers share this database and ZNDRAW_JOBLIB_REDIS_URL.

    Ctrl-C or SIGTERM lets the running tasks finish, however long they take; a second one stops at once.
    """
    with needs_server():
        from zndraw_joblib.cli.server import internal_worker as process  # noqa: PLC0415 - see above
    LogConfig(log_level, log_format).apply(with_pid=True)
    process.run(database_url, concurrency)


@token.command("create")
def create_token(  # noqa: PLR0913 - each is an option
    name: TokenName,
    *,
    role: Role = None,
    rooms: TokenRooms = None,
    jobs: TokenJobs = None,
    expires: Expires = None,
    scope: Scopes = None,
    superuser: Superuser = False,
    database_url: DatabaseUrl = None,
    create_database: CreateDatabase = False,
) -> None:
    """Create a token and print it once; the server stores only its hash."""
    with needs_server():
        from zndraw_joblib.cli.server import tokens  # noqa: PLC0415 - see above
    names = [str(each) for each in ([] if role is None else [role]) + (scope or [])]
    rights = tokens.rights(names, rooms, jobs, expires)
    tokens.create(name, database_url, rights, is_superuser=superuser, allow_new=create_database)


@token.command("worker")
def issue_worker_token(  # noqa: PLR0913 - each is an option
    *,
    jobs: IssuedJobs,
    rooms: IssuedRooms,
    expires: Lifetime,
    max_tasks: MaxClaims = None,
    label: IssuedLabels = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Issue a short-lived token of workers over HTTP, and print it once.

    The caller has to operate the rooms. A job scheduler passes it to the workers of one allocation.
    """
    from zndraw_joblib.cli import worker_tokens  # noqa: PLC0415 - the other commands need no client

    worker_tokens.issue(jobs, rooms, expires, max_tasks, label, url, as_json=as_json)


@token.command("list")
def list_tokens(*, database_url: DatabaseUrl = None) -> None:
    """List the tokens: name, role, rooms, end and last use."""
    with needs_server():
        from zndraw_joblib.cli.server import tokens  # noqa: PLC0415 - see above
    tokens.show(database_url)


@token.command("update")
def update_token(  # noqa: PLR0913 - each is an option
    name: TokenName,
    *,
    role: Role = None,
    rooms: NewRooms = None,
    jobs: NewJobs = None,
    expires: NewEnd = None,
    scope: Scopes = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Change a token; running servers apply it within 5 seconds.

    What no option names stays. --role and --scope replace the role and all scopes.
    """
    with needs_server():
        from zndraw_joblib.cli.server import tokens  # noqa: PLC0415 - see above
    names = [str(each) for each in ([] if role is None else [role]) + (scope or [])]
    tokens.update(name, database_url, tokens.changes(names, rooms, jobs, expires))


@token.command("revoke")
def revoke_token(name: TokenName, *, database_url: DatabaseUrl = None) -> None:
    """Revoke a token; running servers reject it within 5 seconds.

    The tokens of workers that it has issued end too.
    """
    with needs_server():
        from zndraw_joblib.cli.server import tokens  # noqa: PLC0415 - see above
    tokens.revoke(name, database_url)


@db.command("upgrade")
def upgrade_database(*, create_database: CreateDatabase = False, database_url: DatabaseUrl = None) -> None:
    """Upgrade the schema to the version that this release needs."""
    with needs_server():
        from zndraw_joblib.cli.server import database  # noqa: PLC0415 - see above
    database.upgrade(database_url, allow_new=create_database)


@db.command("check-counts")
def check_counts(*, repair: Repair = False, database_url: DatabaseUrl = None) -> None:
    """Compare the kept counts with tasks and results.

    Totals of lists, queue positions, numbers of attempts and the bytes of each user's results come from
    these counts. Servers may run meanwhile.
    """
    with needs_server():
        from zndraw_joblib.cli.server import database  # noqa: PLC0415 - see above
    database.check_counts(database_url, repair=repair)


@db.command("copy")
def copy_database(*, source: CopySource, target: CopyTarget, dry_run: DryRun = False) -> None:
    """Copy the queue to another database.

    It may be of the other kind. Ids, tokens and results stay as they are. Stop the servers before. After an
    interruption, run the command again: it continues. At the end it compares all rows.
    """
    with needs_server():
        from zndraw_joblib.cli.server import database_copy  # noqa: PLC0415 - see above
    database_copy.copy(source, target, is_dry_run=dry_run)


@db.command("current")
def show_current(*, database_url: DatabaseUrl = None) -> None:
    """Show the version of the schema."""
    with needs_server():
        from zndraw_joblib.cli.server import database  # noqa: PLC0415 - see above
    database.current(database_url)
