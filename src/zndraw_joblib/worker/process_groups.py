"""The process groups of a worker's task processes: signals to them, and their end with the worker."""

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.context import SpawnProcess
from pathlib import Path

from zndraw_joblib.client.retry import describe

log = logging.getLogger(__name__)

_HAS_GROUPS = sys.platform != "win32"
_GUARDIAN = Path(__file__).with_name("guardian.py")


def lead_group() -> None:
    """Make this process the leader of a process group of its own, which its programs belong to."""
    if sys.platform != "win32":
        os.setpgid(0, 0)


def end_own_group() -> None:
    """End this process and its group at once."""
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def terminate_group(process: SpawnProcess) -> None:
    """Send SIGTERM to the group of a process."""
    if sys.platform != "win32":
        _send(process, signal.SIGTERM)


def kill_group(process: SpawnProcess) -> None:
    """Send SIGKILL to the group of a process; on Windows, end the process."""
    if sys.platform != "win32":
        _send(process, signal.SIGKILL)
    elif process.exitcode is None:
        process.kill()


def _send(process: SpawnProcess, number: signal.Signals) -> None:
    if sys.platform == "win32" or process.pid is None:
        return
    with suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            # It has ended with all of its group, or does not lead one yet.
            if process.exitcode is None:
                os.kill(process.pid, number)


class Guardian:
    """Ends the groups of processes that are left when this process ends, also after a SIGKILL.

    A program of its own does so, which starts with the first process. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[int, SpawnProcess] = {}
        self._program: subprocess.Popen[bytes] | None = None

    def add(self, process: SpawnProcess) -> None:
        """End a process with this one."""
        if process.pid is None:
            return
        with self._lock:
            self._processes[process.pid] = process
            self._write(process.pid, "+")

    def remove(self, process: SpawnProcess) -> None:
        """Forget a process, which has ended."""
        with self._lock:
            if process.pid is not None and self._processes.pop(process.pid, None) is not None:
                self._write(process.pid, "-")

    def end(self) -> None:
        """Kill the groups that are left, and the program."""
        for process in list(self._processes.values()):
            kill_group(process)
        if (program := self._program) is not None:
            program.kill()
            # It closes the pipe too.
            program.communicate()

    def _write(self, pid: int, sign: str) -> None:
        if not _HAS_GROUPS:
            return
        try:
            if self._program is None or self._program.poll() is not None:
                self._program = _start()
                lines = [f"+{known}\n" for known in self._processes]
            else:
                lines = [f"{sign}{pid}\n"]
            if self._program.stdin is not None:
                self._program.stdin.write("".join(lines).encode())
        except OSError as error:
            log.warning("If this worker is killed, the processes of its tasks go on: %s", describe(error))


def _start() -> subprocess.Popen[bytes]:
    # Without the packages of the environment it starts in 10 ms and needs 9 MB.
    command = [spawn.get_executable(), "-I", "-S", str(_GUARDIAN), str(os.getpid())]
    return subprocess.Popen(  # noqa: S603 - our own program
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


guardian = Guardian()
# A second signal ends the worker at once, but multiprocessing would wait at exit for running processes.
# Its own exit handler is registered by an import above, so this one is called before it.
atexit.register(guardian.end)
