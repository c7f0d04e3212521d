"""Serve on a socket: in this process, or in several child processes, each of which runs this module."""

import asyncio
import gc
import importlib
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from pydantic import BaseModel, SecretStr

from zndraw_joblib.cli.display import CommandError, UsageError
from zndraw_joblib.cli.server import database
from zndraw_joblib.jobs.logs import LogConfig
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.internal.registry import CannotLoadJobs
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.worker.supervisor import READY, ChildExit, Next, Parent, Supervisor

# The longest time a stop may take: uvicorn waits for open requests, then the last writes finish.
STOP_SECONDS = 20.0
# Longer than httpx keeps an idle connection, so that no request is sent on a connection the server closes.
KEEP_ALIVE_SECONDS = 60
_OPEN_REQUESTS_SECONDS = 5
_START_SECONDS = 60.0
_SETTLED_SECONDS = 10.0
_OF_SOCKETIO = frozenset({"aiohttp", "redis", "requests", "tornado", "valkey", "websocket"})
# -P: a module in the working directory cannot replace an installed one.
_COMMAND = (sys.executable, "-P", "-m", "zndraw_joblib.cli.server.processes")


class ChildConfig(BaseModel):
    """The configuration of a child process, sent as one line of JSON with secrets in clear text."""

    listener: int
    log: LogConfig
    settings: dict[str, Any]

    @classmethod
    def of(cls, settings: ServerSettings, listener: socket.socket, log: LogConfig) -> "ChildConfig":
        """Return the configuration for serving on a socket with all of these settings."""
        values = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in settings
        }
        return cls(listener=listener.fileno(), log=log, settings=values)


class _Server(uvicorn.Server):
    """A uvicorn server that calls `on_ready` after its start."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call `on_ready`."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def load_app(settings: ServerSettings) -> Any:
    """Import and return the module of the standalone app.

    Socket.IO imports the libraries of its clients and of its queues where they are installed: 28 MiB that
    only the code of internal jobs could use. Without such jobs it gets none; others can import them later.
    """
    hidden = [] if settings.internal_extensions else _OF_SOCKETIO - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        importlib.import_module("socketio")
    finally:
        for name in hidden:
            del sys.modules[name]
    return importlib.import_module("zndraw_joblib.server.host.app")


def serve_one(
    settings: ServerSettings,
    listener: socket.socket,
    log: LogConfig,
    on_ready: Callable[[], object],
    *,
    clock: TestClock | None = None,
) -> None:
    """Serve in this process until SIGINT or SIGTERM; call `on_ready` when it answers requests.

    With `clock`, a superuser advances the time of the queue. Raises `UsageError` if an internal extension
    cannot be loaded.
    """
    module = load_app(settings)
    try:
        app = module.create_app(settings, clock=clock)
    except CannotLoadJobs as error:
        raise UsageError(str(error)) from error
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=log.access_log,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_OPEN_REQUESTS_SECONDS,
        ws_max_size=module.MAX_EVENT_BYTES,
        # A compressed message may be a thousand times larger when it is unpacked, before any limit counts.
        ws_per_message_deflate=False,
    )
    importlib.import_module("zndraw_joblib.cli.server.connections").limit_connections(
        config, lambda: settings.request_timeout_seconds, lambda: settings.stream_send_timeout_seconds
    )
    # The garbage collector skips frozen objects; scanning them would pause the server for 0.1 s.
    gc.collect()
    gc.freeze()
    gc.enable()
    with suppress(KeyboardInterrupt):
        _Server(config, on_ready).run([listener])


def serve_several(
    settings: ServerSettings, listener: socket.socket, log: LogConfig, on_ready: Callable[[], object]
) -> None:
    """Serve in `settings.processes` child processes until SIGINT or SIGTERM, see `Supervisor`.

    Call `on_ready` when all children answer requests. A second signal kills them. A child that ends later
    is replaced. Raises `CommandError` if a child cannot start.
    """
    gc.enable()
    failed = asyncio.run(supervisor_of(settings, listener, log, on_ready=on_ready).run())
    if failed is not None:
        raise CommandError(str(failed))


def supervisor_of(
    settings: ServerSettings, listener: socket.socket, log: LogConfig, **options: Any
) -> Supervisor:
    """Return the parent of `settings.processes` processes that serve; `options` are those of `Supervisor`."""
    return Supervisor(
        _COMMAND,
        ChildConfig.of(settings, listener, log).model_dump_json(),
        settings.processes,
        _after,
        pass_fds=(listener.fileno(),),
        start_seconds=_START_SECONDS,
        stop_seconds=STOP_SECONDS,
        settled_seconds=_SETTLED_SECONDS,
        # Children close their copies too, so that the port refuses new connections at once.
        on_stop=listener.close,
        **options,
    )


def _after(ended: ChildExit) -> Next:
    return Next.RESTART if ended.all_were_ready else Next.ABORT


def _serve_in_child() -> None:
    """Serve as the supervisor configured, and report `READY` or the reason for a failed start."""
    parent = Parent(exit_seconds=STOP_SECONDS)
    config = ChildConfig.model_validate_json(parent.config)
    config.log.apply(with_pid=True)
    settings = ServerSettings(**config.settings)
    try:
        database.run(settings.database_url, schema.prepare)
        listener = socket.socket(fileno=config.listener)
        listener.set_inheritable(False)
        serve_one(settings, listener, config.log, lambda: parent.report(READY))
    except CommandError as error:
        parent.report(error.format_message())
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _serve_in_child()
