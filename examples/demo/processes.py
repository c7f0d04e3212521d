"""A server and four workers, each a process of its own, in a temporary folder."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from examples.demo import jobs

WORKERS = 4
# With a shorter one, the server would remove workers that are only slow on a busy machine.
WORKER_TIMEOUT_SECONDS = 5.0
SWEEPER_INTERVAL_SECONDS = 1.0
_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Process = subprocess.Popen[bytes]


class DemoFailed(Exception):
    """The demo cannot continue; the text is one line for the user."""


class DemoProcesses:
    """A context manager that starts all processes on entry and stops them on exit."""

    def __init__(self) -> None:
        self.workers: dict[int, Process] = {}
        self.url = ""
        self.token = ""
        self._processes: list[Process] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zndraw-joblib-")))
            self._stack.callback(self._stop)
            self._start_server()
            for _ in range(WORKERS):
                worker = self._start("worker", jobs.__file__)
                self.workers[worker.pid] = worker
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, pid: int) -> None:
        """Kill a worker with SIGKILL, so that it cannot report."""
        del self.workers[pid]
        os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """Raise `DemoFailed` if the server or a worker ended unexpectedly."""
        for process in (self._processes[0], *self.workers.values()):
            if process.poll() is not None:
                raise DemoFailed(
                    f"A process of the demo ended with exit code {process.returncode}: {self._log_tail()}"
                )

    def _start_server(self) -> None:
        """Start a server without configuration, and read its token from the credentials file."""
        database = f"sqlite:///{self._home / 'demo.db'}"
        self._start("serve", "--port", "0", "--database-url", database)
        deadline = time.monotonic() + _START_SECONDS
        while not self._credentials.exists():
            self.check()
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"The demo's server did not start within {_START_SECONDS:g} s: {self._log_tail()}"
                )
            time.sleep(0.02)
        [(self.url, self.token)] = json.loads(self._credentials.read_text()).items()

    @property
    def _credentials(self) -> Path:
        return self._home / "credentials.json"

    def _start(self, *arguments: str) -> Process:
        # In a session of its own a child does not get the terminal's Ctrl-C; `_stop` ends it in order.
        with (self._home / "log.txt").open("ab") as log, _signals_deferred():
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "zndraw_joblib", *arguments],
                cwd=self._home,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        """Return this process's environment with the demo's settings instead of the user's."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("ZNDRAW_JOBLIB_")}
        return {
            **others,
            "ZNDRAW_JOBLIB_CREDENTIALS": str(self._credentials),
            "ZNDRAW_JOBLIB_URL": self.url,
            "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": str(WORKER_TIMEOUT_SECONDS),
            "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": str(SWEEPER_INTERVAL_SECONDS),
        }

    def _log_tail(self) -> str:
        lines = (self._home / "log.txt").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]).removeprefix("Error: ") or "its log is empty"

    def _stop(self) -> None:
        """Stop the workers, then the server; kill a process that does not stop in time."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for group in (self._processes[1:], self._processes[:1]):
            for process in group:
                process.terminate()
            deadline = time.monotonic() + _STOP_SECONDS
            for process in group:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
                process.kill()
                process.wait()


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the block ends, so that a process just started is not left behind."""
    received: list[int] = []
    former = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt
