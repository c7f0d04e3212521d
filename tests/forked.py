"""Processes of this package for the tests: forks of a process that has loaded it, on Linux."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from fork_server import FIRST_DESCRIPTOR

_PREFIX = "ZNDRAW_JOBLIB_"


class _Server(NamedTuple):
    """The process that forks: a socket for requests, and the environment that it was started with."""

    control: socket.socket
    environment: dict[str, str]
    process: "subprocess.Popen[bytes]"


def _others(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are no settings of this package, nor pytest's."""
    return {name: value for name, value in environment.items() if not name.startswith((_PREFIX, "PYTEST_"))}


@cache
def _server() -> _Server:
    """Start the process that forks. It ends when the last process with the other end of its socket ends."""
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = _others(os.environ)
    with other:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(other.fileno())],
            pass_fds=[other.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return _Server(control, environment, process)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether a fork has the variables that Python and libraries read when they start."""
    return hasattr(os, "pidfd_open") and _others(environment) == _server().environment


class ForkedProcess:
    """A process that runs a module or code, with the methods of `subprocess.Popen`.

    `output` is a file for both outputs, or `subprocess.PIPE`; without it the process has those of this one.
    `descriptors` have the numbers from `FIRST_DESCRIPTOR` in the process.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        module: str | None = None,
        code: str | None = None,
        cwd: Path | str = ".",
        output: IO[str] | int | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.args = [module or "-c", *arguments]
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr, outputs = None, *_outputs(output)
        request = {"arguments": arguments, "env": dict(environment), "module": module, "code": code}
        request["cwd"] = str(Path(cwd).resolve())
        self._status, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other, open(os.devnull) as nothing:
            sent = [other.fileno(), nothing.fileno(), *outputs, *descriptors]
            socket.send_fds(_server().control, [json.dumps(request).encode()], sent)
        if output == subprocess.PIPE:
            for descriptor in outputs:
                os.close(descriptor)
        weakref.finalize(self, self._status.close)  # several threads may wait for the end
        self.pid = int(self._status.recv(20))

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.recv(20, socket.MSG_PEEK))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both outputs to their ends, and wait for the end of the process."""
        with ThreadPoolExecutor(2) as pool:
            reads = [pool.submit(_read, pipe) for pipe in (self.stdout, self.stderr)]
            try:
                out, err = (read.result(timeout) for read in reads)
            except TimeoutError:
                self.kill()
                raise subprocess.TimeoutExpired(self.args, timeout) from None
        self.wait(timeout)
        return out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def _read(pipe: IO[str]) -> str:
    if pipe.closed:
        return ""
    with pipe:
        return pipe.read()


def _outputs(output: IO[str] | int | None) -> tuple[Any, Any, list[int]]:
    """Return the ends of pipes to read, and the descriptors of standard output and error."""
    if output is None:
        return None, None, [1, 2]
    if output != subprocess.PIPE:
        return None, None, [output.fileno()] * 2
    (out, write_out), (err, write_err) = os.pipe(), os.pipe()
    return open(out, encoding="utf-8"), open(err, encoding="utf-8"), [write_out, write_err]


__all__ = ["FIRST_DESCRIPTOR", "ForkedProcess", "can_fork"]
