"""A server and four workers, each a process of its own, in a folder that goes away with them."""

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

from zndraw_joblib.cli.client import Access
from zndraw_joblib.cli.demo import modules
from zndraw_joblib.cli.refusal import Refusal

WORKERS = 4
TIMEOUT_SECONDS = 3.0
INTERVAL_SECONDS = 1.0
_START_SECONDS = 30.0
_STOP_SECONDS = 5.0
_ENDINGS = (signal.SIGINT, signal.SIGTERM)

Process = subprocess.Popen[bytes]


class Stage:
    """Starts everything on entry, and ends every process on exit, whatever happened."""

    def __init__(self) -> None:
        self.workers: dict[int, Process] = {}
        self.url = ""
        self._token = ""
        self._processes: list[Process] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="zndraw-joblib-")))
            self._stack.callback(self._end)
            self._start_server()
            for _ in range(WORKERS):
                worker = self._start("worker", modules.__name__)
                self.workers[worker.pid] = worker
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def access(self) -> Access:
        """The server, for a superuser."""
        return Access(self.url, self._token, str(self._credentials))

    def kill(self, pid: int) -> None:
        """Kill a worker the hard way: it cannot say goodbye."""
        del self.workers[pid]
        os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """Raise `Refusal` if a process ended that should not."""
        for process in (self._processes[0], *self.workers.values()):
            if process.poll() is not None:
                raise Refusal(f"A process of the demo ended ({process.returncode}): {self._tail()}")

    def _start_server(self) -> None:
        """Start a server that has nothing configured, and find its token as a user's commands do."""
        database = f"sqlite:///{self._home / 'demo.db'}"
        self._start("serve", "--port", "0", "--database-url", database)
        deadline = time.monotonic() + _START_SECONDS
        while not self._credentials.exists():
            self.check()
            if time.monotonic() > deadline:
                raise Refusal(f"The server did not start in {_START_SECONDS:g} s: {self._tail()}")
            time.sleep(0.02)
        [(self.url, self._token)] = json.loads(self._credentials.read_text()).items()

    @property
    def _credentials(self) -> Path:
        return self._home / "credentials.json"

    def _start(self, *arguments: str) -> Process:
        # A session of its own: the terminal's Ctrl-C is for us, who end the others in order.
        with (self._home / "log.txt").open("ab") as log, _uninterrupted():
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
        """Return this process's environment, with our own settings in place of the user's."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("ZNDRAW_JOBLIB_")}
        return {
            **others,
            "ZNDRAW_JOBLIB_CREDENTIALS": str(self._credentials),
            "ZNDRAW_JOBLIB_URL": self.url,
            "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
            "ZNDRAW_JOBLIB_SWEEPER_INTERVAL_SECONDS": str(INTERVAL_SECONDS),
        }

    def _tail(self) -> str:
        lines = (self._home / "log.txt").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]).removeprefix("Error: ") or "it said nothing"

    def _end(self) -> None:
        """End the workers, then the server; whoever takes long is killed. A second Ctrl-C changes nothing."""
        for number in _ENDINGS:
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
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back: a process that is just being started would be left behind."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt
