"""The server: `zndraw-joblib serve` in a process of its own, which is stopped, killed and frozen."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TOKEN = "token-of-the-chaos-run"
COMMAND = ("-m", "zndraw_joblib")
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Server:
    """One place for a server process. `command` follows the interpreter; settings come as keywords."""

    def __init__(
        self, database_url: str, log: Path, command: Sequence[str] = COMMAND, **settings: object
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        given = {"database_url": database_url, "admin_token": TOKEN, **settings}
        self._environment = {f"ZNDRAW_JOBLIB_{name.upper()}": str(value) for name, value in given.items()}
        self._command = [sys.executable, *command, "serve", "--port", str(self.port)]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines = asyncio.Condition()
        self._said: list[str] = []

    async def start(self) -> float:
        """Start it, and wait until it serves; return the time before which it cannot have done anything."""
        began = time.time()
        heard = len(self._said)
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE, env={**os.environ, **self._environment}
        )
        self._reading = asyncio.create_task(self._read(self._process))
        await self.says(" serves http", since=heard)
        return began

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal, and wait until it is gone."""
        if self._process is None or self._reading is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(number)
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            raise
        await self._reading
        self._process = None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def has_died(self) -> bool:
        """Whether it has ended by itself."""
        return self._process is not None and self._process.returncode is not None

    @property
    def lines_said(self) -> int:
        """How many lines it has written so far."""
        return len(self._said)

    async def says(self, text: str, since: int = 0) -> str:
        """Wait for a line with `text` in it, from line number `since` on; return it."""

        def found() -> str | None:
            return next((line for line in self._said[since:] if text in line), None)

        async with self._lines, asyncio.timeout(_START_SECONDS):
            await self._lines.wait_for(lambda: found() is not None or self.has_died)
        line = found()
        if line is None:
            raise RuntimeError(f"the server ended before it said {text!r}; see {self._log}")
        return line

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with self._log.open("a", encoding="utf-8") as log:
            async for raw in process.stderr:
                line = raw.decode(errors="replace")
                log.write(line)
                log.flush()
                async with self._lines:
                    self._said.append(line)
                    self._lines.notify_all()
        await process.wait()
        async with self._lines:
            self._lines.notify_all()
