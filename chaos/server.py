"""The server process `zndraw-joblib serve`: start, stop, kill and pause it."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TOKEN = "token-of-the-chaos-run"
COMMAND = ("-m", "zndraw_joblib")
_OUTPUT_SECONDS = 60.0
_STOP_SECONDS = 20.0


def free_port() -> int:
    """Return an unused TCP port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Server:
    """One server process at a time, on one port. `settings` become environment variables of the process."""

    def __init__(
        self,
        database_url: str,
        log: Path,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {"database_url": database_url, "admin_token": TOKEN, **settings}
        self.environment = {**os.environ, **(environment or {})}
        self.environment |= {f"ZNDRAW_JOBLIB_{name.upper()}": str(value) for name, value in settings.items()}
        self._command = [sys.executable, *command, "serve", "--port", str(self.port)]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self.output: list[str] = []

    @property
    def pid(self) -> int:
        """The id of the current process."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start the process and wait until it serves. Return the time just before the start."""
        started_at = time.time()
        lines = len(self.output)
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stderr=asyncio.subprocess.PIPE, env=self.environment
        )
        self._reading = asyncio.create_task(self._read_output(self._process))
        await self.wait_for_output(" serves http", since=lines)
        return started_at

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end of the process."""
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
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def wait_for_output(self, text: str, since: int) -> str:
        """Return the first line of output that contains `text`, from line number `since` on."""

        def find() -> str | None:
            return next((line for line in self.output[since:] if text in line), None)

        def has_ended() -> bool:
            return self._process is not None and self._process.returncode is not None

        async with self._changed, asyncio.timeout(_OUTPUT_SECONDS):
            await self._changed.wait_for(lambda: find() is not None or has_ended())
        line = find()
        if line is None:
            raise RuntimeError(f"The server ended before it wrote {text!r}. See {self._log}.")
        return line

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with self._log.open("a", encoding="utf-8") as log:
            async for raw in process.stderr:
                line = raw.decode(errors="replace")
                log.write(line)
                log.flush()
                async with self._changed:
                    self.output.append(line)
                    self._changed.notify_all()
        await process.wait()
        async with self._changed:
            self._changed.notify_all()
