"""A real server on a real port, with a test clock, which scenarios kill and start again."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from zndraw_joblib.wire.operations import PREFIX

HEARTBEAT_SECONDS = 1.0
# The sweeper runs when the clock is advanced, and not between.
_SETTINGS = {"HEARTBEAT_INTERVAL_SECONDS": HEARTBEAT_SECONDS, "SWEEPER_INTERVAL_SECONDS": 3600}
_START_SECONDS = 60.0
_LINES = 20


class CannotStart(Exception):
    """The server or the command of the worker did not start."""


def tail(path: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LINES:]) if path.is_file() else ""


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables of this package."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ZNDRAW_JOBLIB_")}


class Server:
    """`zndraw-joblib serve --test-clock`, by default on an SQLite file in `folder`."""

    def __init__(self, folder: Path, database_url: str | None = None) -> None:
        self._folder, self._log = folder, folder / "server.log"
        self._database_url = database_url or f"sqlite:///{folder / 'server.db'}"
        self._token = secrets.token_urlsafe()
        self._ahead = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(
            headers={"Authorization": f"Bearer {self._token}"}, timeout=60, trust_env=False
        )
        self.port = 0

    @contextmanager
    def running(self) -> Iterator["Server"]:
        """Run the server during the block."""
        try:
            self.start()
            yield self
        finally:
            self.kill()
            self.client.close()

    def start(self) -> None:
        """Start the server with the clock as far ahead as it was. Raises `CannotStart`."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        own = {"ADMIN_TOKEN": self._token, "DATABASE_URL": self._database_url, **_SETTINGS}
        environment = {f"ZNDRAW_JOBLIB_{name}": str(value) for name, value in own.items()}
        command = [sys.executable, "-m", "zndraw_joblib", "serve", "--test-clock", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this package
                command,
                cwd=self._folder,
                env=clean_environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait(self._process)
        if self._ahead:
            ahead, self._ahead = self._ahead, 0.0
            self.advance(ahead, keep_workers=True)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and process.poll() is None:
            try:
                self.client.get(f"http://127.0.0.1:{self.port}/health/live").raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.05)
            else:
                return
        raise CannotStart(f"The server did not start:\n{tail(self._log)}")

    def kill(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def is_running(self) -> bool:
        """Whether the server runs."""
        return self._process is not None

    def request(self, method: str, path: str, body: Any = None, wait: float | None = None) -> Any:
        """Send a request as the administrator; return the answer. Raises `httpx.HTTPStatusError`."""
        url = f"http://127.0.0.1:{self.port}{path if path.startswith('/clock') else PREFIX + path}"
        headers = {} if wait is None else {"Prefer": f"wait={max(1, round(wait))}"}
        response = self.client.request(method, url, json=body, headers=headers)
        response.raise_for_status()
        return response.json() if response.content else None

    def read_result(self, task_id: str) -> httpx.Response:
        """Return the stored result of a task."""
        return self.client.get(f"http://127.0.0.1:{self.port}{PREFIX}/tasks/{task_id}/result")

    def advance(self, seconds: float, *, keep_workers: bool = False) -> None:
        """Advance the clock of the server."""
        self.request("POST", "/clock/advance", {"seconds": seconds, "keep_workers": keep_workers})
        self._ahead += seconds
