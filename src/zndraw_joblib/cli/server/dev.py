"""The command `serve --dev`: a server, its page and a worker that is reloaded, in one program."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from zndraw_joblib.cli.display import CommandError, UsageError, logs_json, print_note, warn_of_unknown
from zndraw_joblib.cli.server import database, processes, serve, tokens
from zndraw_joblib.client import connection
from zndraw_joblib.jobs.loading import missing_file_text
from zndraw_joblib.jobs.logs import LogConfig
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue.rules_tokens import new_token
from zndraw_joblib.worker import serving
from zndraw_joblib.worker.reloading import EXTRA, CannotWatch, folders_of, import_watchfiles, while_watching
from zndraw_joblib.worker.serving import ProcessConfig
from zndraw_joblib.worker.supervisor import ChildExit, Supervisor, handle_signals

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_LONGEST_LINE = 65_536
_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What `serve --dev` runs: the jobs of `target` if there is one, or only those that `jobs` names."""

    target: str | None = None
    jobs: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    database_url: str | None = None
    allows_remote: bool = False
    is_reloaded: bool = True
    concurrency: int = 1
    log: LogConfig = field(default_factory=LogConfig)


def run(options: DevOptions) -> None:
    """Run a server and a worker until SIGINT or SIGTERM. Raises `CommandError` if they cannot start."""
    _check(options)
    config = database.load_settings(options.database_url, processes=1)
    warn_of_unknown(ServerSettings.model_fields)
    with serve.listen(options.host, options.port) as listener:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        url = serve.url_of(options.host, listener)
        with serve.only_server(database.locate(config.database_url).file, url):
            token = _prepare_token(config, url)
            folders = _folders(options)
            with _prefixed("server | ") as server_output, _prefixed("worker | ") as worker_output:
                parts = Parts(
                    processes.supervisor_of(config, listener, options.log, **server_output),
                    _worker(options, url, token, reloads=bool(folders), output=worker_output),
                    folders,
                    lambda: _print_banner(url, config, token, options, folders),
                )
                failed = asyncio.run(parts.run())
            if failed is not None:
                raise CommandError(str(failed))


def _check(options: DevOptions) -> None:
    if options.host not in _LOOPBACK and not options.allows_remote:
        raise UsageError(
            f"--host {options.host!r}: --dev prints a superuser's token, so it listens on 127.0.0.1 only. "
            "Leave --host out, or add --allow-remote where other machines may reach the server"
        )
    target = options.target
    if target is not None and target.endswith(".py") and not Path(target).is_file():
        raise CommandError(missing_file_text(target))


def _folders(options: DevOptions) -> list[Path]:
    """Return the folders to watch; none without a worker, or where the library for it is not installed."""
    if options.target is None or not options.is_reloaded:
        return []
    try:
        import_watchfiles()
    except CannotWatch:
        print_note(
            "The worker is not reloaded when its code changes: the module 'watchfiles' is not installed. "
            f"Run: pip install 'zndraw-joblib[{EXTRA}]', or start this command again after each change."
        )
        return []
    return folders_of(options.target)


def _prepare_token(config: ServerSettings, url: str) -> str:
    """Upgrade the schema; return a superuser's token, which the commands of this user find too."""
    if config.admin_token is not None:
        database.run(config.database_url, schema.prepare)
        return config.admin_token.get_secret_value()
    if not database.locate(config.database_url).is_in_memory:
        prepared = database.run(config.database_url, lambda base: tokens.prepare(base, url))
        if token := prepared.created or (prepared.saved_in and connection.load_tokens().get(url)):
            return token
    # The database has tokens, of which this user has none. This one ends with the server.
    token = new_token()
    config.admin_token = type(config).model_validate({"admin_token": token}).admin_token
    tokens.save(url, token)
    return token


def _worker(
    options: DevOptions, url: str, token: str, *, reloads: bool, output: Mapping[str, Any]
) -> Supervisor | None:
    if options.target is None:
        return None
    config = ProcessConfig(
        options.target,
        url,
        token,
        options={"concurrency": options.concurrency},
        jobs=list(options.jobs),
        is_reloaded=reloads,
        log=options.log,
    )
    return serving.supervisor_of(config, 1, **output)


@dataclass(slots=True)
class Parts:
    """A server and perhaps a worker, which start and stop together: the worker last, and first."""

    server: Supervisor
    worker: Supervisor | None
    folders: Sequence[Path]
    on_ready: Callable[[], object]
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _is_stopping: bool = False

    async def run(self) -> ChildExit | None:
        """Run until a signal; return what went wrong, if something did."""
        handle_signals(self._stop)
        self.server.on_ready = self._begin
        serving = asyncio.create_task(self.server.keep())
        working = asyncio.create_task(self._work())
        failed = await serving
        if self.worker is not None and not self._is_stopping:
            self.worker.stop()
        self._ready.set()
        return failed or await working

    def _begin(self) -> None:
        self.on_ready()
        self._ready.set()

    async def _work(self) -> ChildExit | None:
        await self._ready.wait()
        if self.worker is None:
            return None
        work = self.worker.keep()
        failed = await (while_watching(self.worker, self.folders, work) if self.folders else work)
        # A worker that an operator has drained leaves the server alone.
        if failed is not None or self._is_stopping:
            self.server.stop()
        return failed

    def _stop(self) -> None:
        """Stop the worker, which reports its last tasks, and then the server; at a second signal both."""
        is_second, self._is_stopping = self._is_stopping, True
        if self.worker is not None:
            self.worker.stop()
        if self.worker is None or is_second or not self._ready.is_set():
            self.server.stop()


_WRITING = threading.Lock()


@contextmanager
def _prefixed(prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the options of a `Supervisor` with which each line of its children gets a prefix.

    Records as JSON get none.
    """
    if logs_json():
        yield {}
        return
    reading, writing = os.pipe()
    copying = threading.Thread(target=_copy_lines, args=(reading, prefix.encode()), daemon=True)
    copying.start()
    try:
        # Without it, what a job prints would stay in the buffer of its process.
        yield {"output": writing, "environment": {**os.environ, "PYTHONUNBUFFERED": "1"}}
    finally:
        os.close(writing)
        copying.join(_JOIN_SECONDS)  # a program that a job has left running may hold the other end


def _copy_lines(descriptor: int, prefix: bytes) -> None:
    with open(descriptor, "rb") as lines:
        while line := lines.readline(_LONGEST_LINE):
            with _WRITING:
                sys.stderr.buffer.write(prefix + line.removesuffix(b"\n") + b"\n")
                sys.stderr.buffer.flush()


def _print_banner(
    url: str, config: ServerSettings, token: str, options: DevOptions, folders: Sequence[Path]
) -> None:
    location = database.locate(config.database_url).text
    if logs_json():  # a log has no secrets
        print_note(f"zndraw-joblib {version('zndraw-joblib')} serves {url} (database={location})")
        return
    lines = [
        f"zndraw-joblib {version('zndraw-joblib')} serves {url}  (Ctrl-C stops it)",
        f"  database  {location}",
        f"  page      {url}/ shows the queue in a browser",
        f"  token     {token}",
    ]
    if options.target is not None:
        watched = f", reloaded at changes in {', '.join(map(str, folders))}" if folders else ""
        lines.append(f"  worker    {options.target}{watched}")
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()
