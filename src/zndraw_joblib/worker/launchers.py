"""Launchers: they start workers in allocations, which are processes of this machine or jobs of a cluster."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Protocol

# The name of the workers of an allocation, by which the scaler knows that they have registered.
NAME_VARIABLE = "ZNDRAW_JOBLIB_WORKER_NAME"
# The random bytes in the name of an allocation, as digits behind the prefix of its scaler.
NAME_BYTES = 4
_MAX_OUTPUT = 4096
_CHECK_SECONDS = 120.0
_LOAD = """
import json, sys
from zndraw_joblib.jobs.extensions import job_name_of, job_room_of
from zndraw_joblib.jobs.loading import CannotLoad, load_extensions
target, room = sys.argv[1:]
try:
    names = [str(job_name_of(cls, room or job_room_of(cls))) for cls in load_extensions(target)]
except CannotLoad as error:
    sys.exit(str(error))
print()
print(json.dumps(names))
"""


class AllocationState(StrEnum):
    """The state of an allocation: in the queue of the cluster, running, or over."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"


class LauncherError(Exception):
    """The system refuses an allocation; the text is its reason, for the user."""


class Launcher(Protocol):
    """Starts allocations of workers.

    The workers of an allocation get their URL, token and name from the environment (`URL_VARIABLE`,
    `TOKEN_VARIABLE`, `NAME_VARIABLE`), never from arguments, which other users of the machine can read. They
    leave by themselves when they are idle, also after the launcher has ended.
    """

    @property
    def about(self) -> str:
        """What one allocation runs, for the log: a command without secrets."""

    @property
    def jobs(self) -> Sequence[str]:
        """The full names of the jobs of its workers, after `check`; empty if they are unknown."""

    async def check(self) -> None:
        """Let the system check an allocation without starting it. Raises `LauncherError` with its reason."""

    async def submit(self, environment: Mapping[str, str]) -> str:
        """Start one allocation with these variables added to its environment, and return its id.

        Raises `LauncherError`.
        """

    async def earlier(self, prefix: str) -> Mapping[str, tuple[str, AllocationState]]:
        """Return the names and states of allocations that wait or run from an earlier run of this command.

        Their names begin with `prefix`; from now on they count as started by this object. Raises
        `LauncherError` if the system does not answer.
        """

    async def states(self) -> Mapping[str, AllocationState]:
        """Return the states of the allocations that it has started.

        One that has ended is there at least once. Raises `LauncherError` if the system does not answer.
        """

    async def reason(self, allocation: str) -> str:
        """Return why an allocation has ended, as its exit code and last line; empty if that is unknown."""

    async def drain(self, allocation: str) -> None:
        """End an allocation without loss: cancel it while it waits; a worker finishes its tasks."""


def jobs_of(target: str, room: str | None = None) -> list[str]:
    """Return the full names of the jobs that a worker serves, which registers them in `room` if it is given.

    A process of its own loads them. Raises `LauncherError` if they cannot be loaded.
    """
    command = [sys.executable, "-c", _LOAD, target, room or ""]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own jobs
            command, capture_output=True, timeout=_CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"{target!r} cannot be loaded: {error}") from error
    if done.returncode:
        raise LauncherError(last_line(done.stderr) or f"exit code {done.returncode}")
    names: list[str] = json.loads(last_line(done.stdout))
    return names


def worker_command(
    arguments: Sequence[str], *, idle: float, per_allocation: int, lifetime: float
) -> list[str]:
    """Return the command of one allocation on this machine; `arguments` are those of `worker`."""
    command = [sys.executable, "-m", "zndraw_joblib", "worker", *arguments, "--idle-exit", f"{idle:g}"]
    command += ["--walltime", f"{lifetime:g}", "--requeue"]
    return [*command, "--processes", str(per_allocation)] if per_allocation > 1 else command


class LocalLauncher:
    """Starts workers as processes of this machine, in sessions of their own: Ctrl-C does not reach them.

    `command` runs the workers of one allocation, and `target` is the module or file with their jobs. What
    they print is in files of `folder`, by default a new one. `room` is that in which all jobs are registered.
    """

    def __init__(
        self, command: Sequence[str], target: str, folder: Path | None = None, room: str | None = None
    ) -> None:
        self._command, self._target, self._folder, self._room = list(command), target, folder, room
        self._jobs: Sequence[str] = ()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def about(self) -> str:
        """The command."""
        return " ".join(["zndraw-joblib", *self._command[3:]])

    @property
    def jobs(self) -> Sequence[str]:
        """The jobs of the target."""
        return self._jobs

    async def check(self) -> None:
        """Load the jobs, as a worker does, in a process of its own."""
        self._jobs = await asyncio.to_thread(jobs_of, self._target, self._room)
        self._output("x")

    async def submit(self, environment: Mapping[str, str]) -> str:
        """Start a process. Its id names the file with its output."""
        return await asyncio.to_thread(self._start, environment)

    def _start(self, environment: Mapping[str, str]) -> str:
        allocation = environment[NAME_VARIABLE]
        try:
            with self._output(allocation).open("wb") as output:
                self._processes[allocation] = subprocess.Popen(  # noqa: S603 - see `jobs_of`
                    self._command,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LauncherError(f"A process cannot be started: {error}") from error
        return allocation

    async def earlier(self, prefix: str) -> Mapping[str, tuple[str, AllocationState]]:
        """Return nothing: a process never waits, and its worker counts as soon as it has registered."""
        return {}

    async def states(self) -> Mapping[str, AllocationState]:
        """Return whether each process runs, or how it ended."""
        return {allocation: _state(process.poll()) for allocation, process in self._processes.items()}

    async def reason(self, allocation: str) -> str:
        """Return the exit code of a process, and the last line that it printed."""
        process = self._processes[allocation]
        text = await asyncio.to_thread(output_tail, self._output(allocation))
        return f"exit code {process.returncode}: {text}" if text else f"exit code {process.returncode}"

    async def drain(self, allocation: str) -> None:
        """Send SIGTERM: the worker claims no more, and finishes its tasks."""
        process = self._processes[allocation]
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def _output(self, allocation: str) -> Path:
        """Return the file for the output of an allocation; its folder is made before."""
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="zndraw-joblib-scale-"))
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LauncherError(f"The folder for the output of workers cannot be made: {error}") from error
        return self._folder / f"{allocation}.log"


def _state(code: int | None) -> AllocationState:
    if code is None:
        return AllocationState.RUNNING
    return AllocationState.FAILED if code else AllocationState.ENDED


def output_tail(path: Path) -> str:
    """Return the last line of a file that is not empty; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MAX_OUTPUT))
            return last_line(file.read())
    except OSError:
        return ""


def last_line(output: bytes) -> str:
    """Return the last line of some output that is not empty."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")
