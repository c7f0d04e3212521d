"""The standalone server in a process of its own, on a port of its own, that can be stopped and killed."""

import os
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Self

import httpx

_SERVE = """
import socket, sys
from contextlib import suppress
import uvicorn
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings

config = uvicorn.Config(create_app(ServerSettings()), log_level="warning")
with suppress(KeyboardInterrupt):
    uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
"""


class ServerProcess:
    """Runs while the `with` block does; settings come as keywords."""

    def __init__(self, database_url: str, **settings: object) -> None:
        given = {"database_url": database_url, "admin_token": "a-token-for-a-real-server", **settings}
        self.token = given["admin_token"]
        environment = {f"ZNDRAW_JOBLIB_{name.upper()}": str(value) for name, value in given.items()}
        # What is sent before the server listens waits in the socket: nobody has to poll for its start.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env={**os.environ, **environment},
            )

    def client(self) -> httpx.AsyncClient:
        """Return a superuser's client."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(10)
