"""A parent that starts child processes, replaces them when they end, and stops them together."""

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from zndraw_joblib.jobs.logs import ExponentialBackoff

log = logging.getLogger(__name__)

READY = "ready"
_LONGEST_PAUSE_SECONDS = 30.0
_LAST_ANSWER_SECONDS = 1.0
_MAX_ANSWER = 10_000
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class Next(Enum):
    """What the supervisor does after a child has ended."""

    RESTART = auto()  # start another one in its place
    DONE = auto()  # leave the place empty
    ABORT = auto()  # stop all children


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a child ended.

    `answer` is the line that the child reported, empty without one. `all_were_ready` is whether all
    children had reported `READY` once.
    """

    pid: int
    code: int
    answer: str
    all_were_ready: bool

    def __str__(self) -> str:
        """Return the fault that the child reported, or else its exit code."""
        return self.answer or f"Process {self.pid} ended ({self.code})"


@dataclass(slots=True)
class Supervisor:
    """A parent of `count` processes that run `command`.

    Each child gets `config`, one line, over a socket that is its standard input, and a session of its own:
    Ctrl-C reaches only the parent. `after` decides what follows the end of a child. A child that is not
    ready within `start_seconds` is killed. `on_start` is called once signals are handled, and
    `on_ready` once all children are ready.

    The first SIGINT or SIGTERM calls `on_stop` and sends SIGTERM to the children; after `stop_seconds` they
    are killed. The second signal sends them `second_signal`. All times are seconds, None for no limit.
    """

    command: Sequence[str]
    config: str
    count: int
    after: Callable[[ChildExit], Next]
    pass_fds: Sequence[int] = ()
    start_seconds: float | None = None
    stop_seconds: float | None = None
    second_signal: signal.Signals = signal.SIGKILL
    settled_seconds: float = 60.0
    on_start: Callable[[], object] | None = None
    on_ready: Callable[[], object] | None = None
    on_stop: Callable[[], object] | None = None
    _processes: set[Process] = field(default_factory=set, init=False)
    _ready_count: int = field(default=0, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _aborted: ChildExit | None = field(default=None, init=False)

    async def run(self) -> ChildExit | None:
        """Keep the children running until a signal; return the exit that made `after` abort, if one did.

        A child is replaced at once, and after 1 s, doubling to 30 s, while children end within
        `settled_seconds` of their start, or cannot be started because the system has no process, file or
        memory left. If one cannot be started for another reason, all are stopped.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell makes its background jobs ignore SIGINT.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._handle_signal)
        if self.on_start is not None:
            self.on_start()
        await asyncio.gather(*(self._keep_running() for _ in range(self.count)))
        return self._aborted

    def _handle_signal(self) -> None:
        if self._stopping.is_set():
            self._send_all(self.second_signal)
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        if self.on_stop is not None:
            self.on_stop()
        self._send_all(signal.SIGTERM)
        if self.stop_seconds is not None:
            asyncio.get_running_loop().call_later(self.stop_seconds, self._send_all, signal.SIGKILL)

    def _send_all(self, number: signal.Signals) -> None:
        for process in self._processes:
            _send(process, number)

    async def _keep_running(self) -> None:
        backoff = ExponentialBackoff(1.0, _LONGEST_PAUSE_SECONDS, jitter=0.0)
        crashes = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                ended = await self._run_one()
            except (OSError, RuntimeError, MemoryError) as error:
                if not _is_shortage(error):
                    self._abort(ChildExit(0, 1, f"A process cannot be started: {error}", False))
                    return
                pause = backoff.next()
                log.error("A process could not be started: %r; trying again in %g s", error, pause)
                await self._sleep(pause)
                continue
            if self._stopping.is_set() or (action := self.after(ended)) == Next.DONE:
                return
            if action == Next.ABORT:
                self._abort(ended)
                return
            crashes = 1 if time.monotonic() - started > self.settled_seconds else crashes + 1
            if crashes == 1:
                backoff.reset()
            pause = 0.0 if crashes == 1 else backoff.next()
            log.error("%s; another one starts in %g s", ended, pause)
            await self._sleep(pause)

    def _abort(self, cause: ChildExit) -> None:
        if not self._stopping.is_set():
            self._aborted = cause
            self._stop()

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the supervisor stops, at most `seconds`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _run_one(self) -> ChildExit:
        """Start one child, and return how it ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self.command, stdin=theirs.fileno(), pass_fds=self.pass_fds, start_new_session=True
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # a child that was started reads no configuration and ends
            raise
        self._processes.add(process)
        try:
            if self._stopping.is_set():
                _send(process, signal.SIGTERM)
            writer.write(self.config.encode() + b"\n")
            answering = asyncio.create_task(self._answer_of(process, reader))
            code = await process.wait()
            # Processes that the child forked may keep its end of the socket open.
            await asyncio.wait([answering], timeout=_LAST_ANSWER_SECONDS)
            answer = answering.result() if answering.done() else ""
            answering.cancel()
        finally:
            self._processes.discard(process)
            writer.close()
        all_were_ready = self._ready_count >= self.count
        return ChildExit(process.pid, code, "" if answer == READY else answer, all_were_ready)

    async def _answer_of(self, process: Process, reader: asyncio.StreamReader) -> str:
        """Return the line that a child reports, empty if it ends without one."""
        try:
            async with asyncio.timeout(self.start_seconds):
                answer = (await reader.readline()).decode(errors="replace").strip()
        except TimeoutError:
            _send(process, signal.SIGKILL)
            return f"Process {process.pid} was not ready within {self.start_seconds:g} s"
        except ConnectionError:
            return ""
        except ValueError:  # nothing reads the rest, so the child may wait forever
            _send(process, signal.SIGKILL)
            return f"Process {process.pid} reported a line that is too long"
        if answer == READY:
            self._ready_count += 1
            if self._ready_count == self.count and self.on_ready and not self._stopping.is_set():
                self.on_ready()
        return answer


def _is_shortage(error: Exception) -> bool:
    """Return whether a process could not be started because the system lacked something for it."""
    if isinstance(error, OSError):
        return error.errno in _SHORTAGES
    # RuntimeError: asyncio cannot start the thread that waits for the process.
    return isinstance(error, MemoryError) or "start new thread" in str(error)


def _send(process: Process, number: signal.Signals) -> None:
    # Not by `Process.send_signal`: it polls the process, and so takes its exit code from asyncio.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


class Parent:
    """The supervisor, as one of its children sees it; `config` is the line that it sent.

    When the parent ends, this process gets SIGTERM, and exits at the latest `exit_seconds` later.
    """

    def __init__(self, exit_seconds: float | None = None) -> None:
        self._channel = socket.socket(fileno=os.dup(0))
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        with self._channel.makefile("r", encoding="utf-8") as lines:
            self.config = lines.readline().strip()
        threading.Thread(target=self._end_with_parent, args=(exit_seconds,), daemon=True).start()

    def report(self, answer: str) -> None:
        """Send one line: `READY`, or why this process cannot begin."""
        with suppress(OSError):
            self._channel.sendall(" ".join(answer.split())[:_MAX_ANSWER].encode() + b"\n")

    def _end_with_parent(self, exit_seconds: float | None) -> None:
        with suppress(OSError):
            self._channel.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)
        if exit_seconds is not None:
            time.sleep(exit_seconds)
            os._exit(1)
