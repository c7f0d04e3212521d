"""The command serve: run the standalone server until a signal."""

import shlex
import signal
import sys
from functools import partial
from importlib.metadata import version

from zndraw_joblib.cli.errors import UsageError
from zndraw_joblib.cli.logs import LogConfig
from zndraw_joblib.cli.server import bootstrap_token, database, processes, settings
from zndraw_joblib.cli.server.bootstrap_token import BootstrapToken
from zndraw_joblib.cli.server.sockets import listen, url_of
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema
from zndraw_joblib.worker.api import DEFAULT_URL


def run(host: str, port: int, database_url: str | None, workers: int | None, log: LogConfig) -> None:
    """Serve until SIGINT or SIGTERM. Raises `CommandError` if the server cannot start."""
    config = settings.load(database_url, workers=workers)
    if config.workers > 1:
        check_several_processes(config)
    with listen(host, port) as listener:
        # uvicorn handles SIGTERM only while it runs; before and after, SIGTERM acts like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        url = url_of(host, listener)
        token = _prepare_database(config, url)
        serve = processes.serve_several if config.workers > 1 else processes.serve_one
        serve(config, listener, log, partial(_print_banner, url, config, token))


def check_several_processes(config: ServerSettings) -> None:
    """Raise `UsageError` if several processes cannot work, and choose a transport that works with them."""
    if sys.platform == "win32":
        raise UsageError("--workers must be 1 on Windows: processes cannot share a port there")
    if database.locate(config.database_url).is_sqlite:
        raise UsageError(
            f"--workers {config.workers} cannot use SQLite, which allows one server process. Set "
            "--database-url postgresql://user:password@host/name (or ZNDRAW_JOBLIB_DATABASE_URL)"
        )
    if "socketio_transports" not in config.model_fields_set:
        # Long-polling sends a client's requests to processes that do not know the client.
        config.socketio_transports = ["websocket"]


def _prepare_database(config: ServerSettings, url: str) -> BootstrapToken | None:
    """Upgrade the schema and create a token on a first start; return None if the operator set a token."""
    if config.admin_token is not None:
        database.run(config.database_url, schema.prepare)
        return None
    if database.locate(config.database_url).is_in_memory:
        raise UsageError(
            "A database in memory needs ZNDRAW_JOBLIB_ADMIN_TOKEN, because no other process can create a "
            "token in it. Set the variable"
        )
    return database.run(config.database_url, partial(bootstrap_token.prepare, url=url))


def _print_banner(url: str, config: ServerSettings, token: BootstrapToken | None) -> None:
    lines = [
        f"zndraw-joblib {version('zndraw-joblib')} serves {url}  (Ctrl-C stops it)",
        f"  database  {database.locate(config.database_url).text}",
    ]
    if config.workers > 1:
        lines.append(f"  processes {config.workers}")
    if token is not None:
        # A database named on this command line has to be named for `token create` too.
        is_default = config.database_url == settings.load(None).database_url
        create = f"zndraw-joblib token create NAME{'' if is_default else ' --database-url URL'}"
        lines += (
            _first_start(url, token, create) if token.created else [f"  token     {_saved(token, create)}"]
        )
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()


def _first_start(url: str, token: BootstrapToken, create: str) -> list[str]:
    option = "" if url == DEFAULT_URL else f" --url {shlex.quote(url)}"
    saved = f"It is saved in {token.saved_in}, where the commands of this user find it."
    return [
        "",
        "This is the first start. The server created a superuser's token and shows it only once:",
        f"  {token.created}",
        saved if token.saved_in else f"{token.problem}",
        "",
        "Run a worker, submit a task, create a token for another user:",
        f"  zndraw-joblib worker my_jobs.py{option}",
        f"  zndraw-joblib submit MyJob key=value --wait{option}",
        f"  {create}",
        "",
    ]


def _saved(token: BootstrapToken, create: str) -> str:
    if token.saved_in:
        return f"in {token.saved_in}"
    return token.problem or f"none is saved on this machine; '{create}' creates one"
