"""The command serve: run until a signal. A lock allows one server per SQLite file."""

import asyncio
import errno
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from zndraw_joblib.cli.display import CommandError, UsageError, logs_json, print_note, warn_of_unknown
from zndraw_joblib.cli.server import database, processes, tokens
from zndraw_joblib.cli.server.tokens import BootstrapToken
from zndraw_joblib.client.connection import DEFAULT_URL, canonical_url
from zndraw_joblib.jobs.logs import LogConfig
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import sql_copy

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.getLogger(__name__)
_SUFFIX = "-server"
_MAX_OWNER_BYTES = 300
# On Windows no other process can read locked bytes, so the lock is on a byte after the text.
_LOCKED_BYTE = 1 << 20
_ANOTHER_DATABASE = (
    ", or name another database with --database-url: another file, or postgresql://user:password@host/name "
    "for several servers"
)
_TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})


@contextmanager
def only_server(database: Path | None, url: str, remedy: str = _ANOTHER_DATABASE) -> Iterator[None]:
    """Hold the lock of an SQLite file for the server at `url`; do nothing for any other database.

    Raises `CommandError` while another server process holds the lock. On a file system without locks, it
    only logs a warning.
    """
    if database is None or not database.parent.is_dir():
        yield
        return
    file = database.resolve()
    descriptor = os.open(f"{file}{_SUFFIX}", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, file, remedy)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()}, {url}".encode()[:_MAX_OWNER_BYTES])
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, file: Path, remedy: str) -> None:
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno not in _TAKEN:
            logger.warning("Cannot lock %s%s: %s. Start only one server on this file", file, _SUFFIX, error)
            return
        os.lseek(descriptor, 0, os.SEEK_SET)
        owner = os.read(descriptor, _MAX_OWNER_BYTES).decode(errors="replace").strip()
        raise CommandError(
            f"The SQLite file {file} is in use by another server ({owner or 'starting'}). SQLite allows one "
            f"server process. Stop that server{remedy}"
        ) from error


def _lock(descriptor: int) -> None:
    # A forked child, which may outlive the server, does not inherit locks of fcntl.
    if sys.platform == "win32":
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_ALL_ADDRESSES = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound to


def run(
    host: str,
    port: int,
    database_url: str | None,
    server_processes: int | None,
    log: LogConfig,
    *,
    has_test_clock: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises `CommandError` if the server cannot start."""
    config = database.load_settings(database_url, processes=server_processes)
    warn_of_unknown(ServerSettings.model_fields)
    if has_test_clock:
        check_test_clock(config)
    if config.processes > 1:
        check_several_processes(config)
    with listen(host, port) as listener:
        # uvicorn handles SIGTERM only while it runs; before and after, SIGTERM acts like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        url = url_of(host, listener)
        with only_server(database.locate(config.database_url).file, url):
            token = _prepare_database(config, url)
            if has_test_clock:
                _check_no_other_server(config.database_url)
            on_ready = partial(_print_banner, url, config, token, network=network_url(host, listener))
            if config.processes > 1:
                processes.serve_several(config, listener, log, on_ready)
            else:
                clock = TestClock() if has_test_clock else None
                processes.serve_one(config, listener, log, on_ready, clock=clock)


def check_test_clock(config: ServerSettings) -> None:
    """Raise `UsageError` if other processes would use the queue with another time than this one."""
    others = {
        f"--processes {config.processes}": config.processes > 1,
        "ZNDRAW_JOBLIB_REDIS_URL": config.redis_url is not None,
        "ZNDRAW_JOBLIB_OIDC_ISSUER": config.oidc_issuer is not None,
    }
    if refused := [name for name, is_set in others.items() if is_set]:
        raise UsageError(
            f"--test-clock cannot be used with {' and '.join(refused)}: only this process has the clock, and "
            "what others do would be at another time. Leave one of them out; --test-clock is for tests"
        )


def _check_no_other_server(url: str) -> None:
    """Raise `UsageError` if a server uses a database of PostgreSQL: an advance would remove its workers."""
    if database.locate(url).is_sqlite:
        return
    try:
        asyncio.run(sql_copy.check_unused(url))
    except sql_copy.CopyRefused as error:
        raise UsageError(f"--test-clock needs a database of its own. {error}") from error


def check_several_processes(config: ServerSettings) -> None:
    """Raise `UsageError` if several processes cannot work, and choose a transport that works with them."""
    if sys.platform == "win32":
        raise UsageError("--processes must be 1 on Windows: processes cannot share a port there")
    if database.locate(config.database_url).is_sqlite:
        raise UsageError(
            f"--processes {config.processes} cannot use SQLite, which allows one server process. Set "
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
    return database.run(config.database_url, partial(tokens.prepare, url=url))


def _print_banner(
    url: str, config: ServerSettings, token: BootstrapToken | None, *, network: str | None
) -> None:
    if logs_json():
        _log_start(url, config, token, network)
        return
    lines = [
        f"zndraw-joblib {version('zndraw-joblib')} serves {url}  (Ctrl-C stops it)",
        f"  database  {database.locate(config.database_url).text}",
    ]
    if network is not None:
        lines.append(f"  network   {network} from other machines, or any other name or address of this one")
    if config.dashboard != "off":
        lines.append(f"  page      {url}/ shows the queue in a browser; it asks for a token")
    if config.processes > 1:
        lines.append(f"  processes {config.processes}")
    if token is not None:
        # A database named on this command line has to be named for `token create` too.
        is_default = config.database_url == database.load_settings(None).database_url
        create = f"zndraw-joblib token create NAME{'' if is_default else ' --database-url URL'}"
        lines += (
            _first_start(url, token, create) if token.created else [f"  token     {_saved(token, create)}"]
        )
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()


def _log_start(url: str, config: ServerSettings, token: BootstrapToken | None, network: str | None) -> None:
    """Log what the banner shows, without a new token: logs have no secrets."""
    location = database.locate(config.database_url).text
    print_note(
        f"zndraw-joblib {version('zndraw-joblib')} serves {url} "
        f"(database={location} processes={config.processes}{f' network={network}' if network else ''})"
    )
    if token is not None and token.created:
        where = f"saved in {token.saved_in}" if token.saved_in else f"not shown in a log. {token.problem}"
        print_note(
            f"The server created a superuser's token, which is {where}. "
            "'zndraw-joblib token create NAME --superuser' creates another one"
        )


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


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that no other process can take the port before the server starts."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        family, _, _, _, resolved = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        dual = family == socket.AF_INET6 and address in _ALL_ADDRESSES and socket.has_dualstack_ipv6()
        return socket.create_server(resolved[:2], family=family, dualstack_ipv6=dual)
    except socket.gaierror as error:
        raise UsageError(
            f"Cannot listen on --host {host!r}: {error.strerror}. Pass an address of this machine"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"Port {port} of {host} is taken by another process. Choose another one with --port"
            ) from error
        raise CommandError(
            f"Cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}. "
            "Choose another --port or --host"
        ) from error


def url_of(host: str, listener: socket.socket) -> str:
    """Return the URL of the server on this machine."""
    address = "127.0.0.1" if host in _ALL_ADDRESSES else host
    return canonical_url(
        f"http://{f'[{address}]' if ':' in address else address}:{listener.getsockname()[1]}"
    )


def network_url(host: str, listener: socket.socket) -> str | None:
    """Return the URL for other machines, by the name of this one; None for a server on one address."""
    if host not in _ALL_ADDRESSES:
        return None
    return f"http://{socket.gethostname().lower()}:{listener.getsockname()[1]}"
