"""A parent that starts child processes, replaces them when they end, and drains or stops them together."""

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from zndraw_joblib.jobs.logs import ExponentialBackoff

log = logging.getLogger(__name__)

READY = "ready"
_DRAIN = "drain"
# After a drain that takes too long: for what a child still does at its end.
_DRAIN_GRACE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 30.0
_LAST_ANSWER_SECONDS = 1.0
_MAX_ANSWER = 10_000
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})


class Next(Enum):
    """What the supervisor does after a child has ended."""

    RESTART = auto()  # start another one in its place
    DONE = auto()  # leave the place empty
    WAIT = auto()  # start another one after the next call of `replace`
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

    `replace` asks the children to drain; those that are left 5 s after `drain_seconds` are killed. Standard
    output and standard error of the children are those of the parent, or the file descriptor `output`.
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
    drain_seconds: float = 10.0
    output: int | None = None
    environment: Mapping[str, str] | None = None
    on_start: Callable[[], object] | None = None
    on_ready: Callable[[], object] | None = None
    on_stop: Callable[[], object] | None = None
    # Each with the generation that it belongs to, and what writes to it.
    _children: dict[Process, "_Child"] = field(default_factory=dict, init=False)
    _generation: int = field(default=0, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _ready_count: int = field(default=0, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _aborted: ChildExit | None = field(default=None, init=False)

    async def run(self) -> ChildExit | None:
        """Do what `keep` does, until a signal."""
        handle_signals(self.stop)
        return await self.keep()

    async def keep(self) -> ChildExit | None:
        """Keep the children running until `stop`; return the exit that made `after` abort, if one did.

        A child is replaced at once, and after 1 s, doubling to 30 s, while children end within
        `settled_seconds` of their start, or cannot be started because the system has no process, file or
        memory left. If one cannot be started for another reason, all are stopped.
        """
        if self.on_start is not None:
            self.on_start()
        await asyncio.gather(*(self._keep_running() for _ in range(self.count)))
        return self._aborted

    def stop(self) -> None:
        """Stop the children; a second call sends them `second_signal`."""
        if self._stopping.is_set():
            self._send_all(self.second_signal)
        else:
            self._stop()

    def replace(self) -> None:
        """Let all children drain, and start new ones once the last of them has ended.

        Another call meanwhile changes nothing for children that drain; one that has just started drains too.
        """
        if self._stopping.is_set():
            return
        self._generation += 1
        for child in self._children.values():
            child.drain()
        late = self.drain_seconds + _DRAIN_GRACE_SECONDS
        asyncio.get_running_loop().call_later(late, self._kill_older_than, self._generation)
        self._notify()

    def _stop(self) -> None:
        self._stopping.set()
        if self.on_stop is not None:
            self.on_stop()
        self._send_all(signal.SIGTERM)
        if self.stop_seconds is not None:
            asyncio.get_running_loop().call_later(self.stop_seconds, self._send_all, signal.SIGKILL)
        self._notify()

    def _send_all(self, number: signal.Signals) -> None:
        for process in self._children:
            _send(process, number)

    def _kill_older_than(self, generation: int) -> None:
        for process, child in self._children.items():
            if child.generation < generation:
                log.warning(
                    "Process %s did not drain within %g s: it is killed", process.pid, self.drain_seconds
                )
                _send(process, signal.SIGKILL)

    def _notify(self) -> None:
        """Wake all that wait for a change: a replacement, a stop, the end of a child."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_until(self, is_over: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until a condition holds or the supervisor stops, at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self._stopping.is_set() or is_over()):
                    await self._changed.wait()

    async def _may_start(self) -> bool:
        """Wait until the children of earlier generations have ended; return False after a stop."""
        await self._wait_until(lambda: not any(self._is_replaced(c) for c in self._children.values()))
        return not self._stopping.is_set()

    async def _keep_running(self) -> None:
        pauses = _Pauses(self.settled_seconds)
        while await self._may_start():
            generation = self._generation
            is_replaced = partial(self._is_newer_than, generation)
            pauses.start()
            try:
                ended = await self._run_one(generation)
            except (OSError, RuntimeError, MemoryError) as error:
                await self._pause_or_abort(error, pauses.longer(), is_replaced)
                continue
            action = Next.RESTART if is_replaced() else self._decide(ended)
            if action == Next.DONE:
                return
            if action == Next.WAIT:
                log.error("%s", ended)
                await self._wait_until(is_replaced)
            elif not is_replaced():
                pause = pauses.after_crash()
                log.error("%s; another one starts in %g s", ended, pause)
                await self._wait_until(is_replaced, pause)
            if is_replaced():
                pauses.forget()

    def _decide(self, ended: ChildExit) -> Next:
        """Return what follows the end of a child, after `Next.ABORT` that its place stays empty."""
        if self._stopping.is_set():
            return Next.DONE
        action = self.after(ended)
        if action == Next.ABORT:
            self._abort(ended)
        return Next.DONE if action == Next.ABORT else action

    async def _pause_or_abort(self, error: Exception, pause: float, is_replaced: Callable[[], bool]) -> None:
        """Pause if the system lacked something for a process, else stop all children."""
        if not _is_shortage(error):
            self._abort(ChildExit(0, 1, f"A process cannot be started: {error}", False))
            return
        log.error("A process could not be started: %r; trying again in %g s", error, pause)
        await self._wait_until(is_replaced, pause)

    def _is_newer_than(self, generation: int) -> bool:
        return self._generation > generation

    def _abort(self, cause: ChildExit) -> None:
        if not self._stopping.is_set():
            self._aborted = cause
            self._stop()

    async def _run_one(self, generation: int) -> ChildExit:
        """Start one child, and return how it ended."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=theirs.fileno(),
                    stdout=self.output,
                    stderr=self.output,
                    pass_fds=self.pass_fds,
                    start_new_session=True,
                    env=self.environment,
                )
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # a child that was started reads no configuration and ends
            raise
        self._children[process] = child = _Child(generation, writer)
        try:
            self._configure(process, child)
            answering = asyncio.create_task(self._answer_of(process, reader))
            code = await process.wait()
            # Processes that the child forked may keep its end of the socket open.
            await asyncio.wait([answering], timeout=_LAST_ANSWER_SECONDS)
            answer = answering.result() if answering.done() else ""
            answering.cancel()
        finally:
            del self._children[process]
            self._notify()
            writer.close()
        all_were_ready = self._ready_count >= self.count
        return ChildExit(process.pid, code, "" if answer == READY else answer, all_were_ready)

    def _configure(self, process: Process, child: "_Child") -> None:
        """Send a new child its configuration, and what it missed before it was a child."""
        if self._stopping.is_set():
            _send(process, signal.SIGTERM)
        child.writer.write(self.config.encode() + b"\n")
        if self._is_replaced(child):
            child.drain()

    def _is_replaced(self, child: "_Child") -> bool:
        return child.generation < self._generation

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


class _Pauses:
    """How long the place of a child stays empty after a crash."""

    def __init__(self, settled_seconds: float) -> None:
        self._settled_seconds = settled_seconds
        self._backoff = ExponentialBackoff(1.0, _LONGEST_PAUSE_SECONDS, jitter=0.0)
        self._crashes, self._started = 0, 0.0

    def forget(self) -> None:
        """Forget the crashes so far."""
        self._crashes = 0

    def start(self) -> None:
        """Record that a child starts now."""
        self._started = time.monotonic()

    def longer(self) -> float:
        """Return the next longer pause."""
        return self._backoff.next()

    def after_crash(self) -> float:
        """Return the pause after a crash: none after the first one, or if the child had settled."""
        has_settled = time.monotonic() - self._started > self._settled_seconds
        self._crashes = 1 if has_settled else self._crashes + 1
        if self._crashes == 1:
            self._backoff.reset()
        return 0.0 if self._crashes == 1 else self._backoff.next()


@dataclass(frozen=True, slots=True)
class _Child:
    """A child process as its supervisor sees it."""

    generation: int
    writer: asyncio.StreamWriter

    def drain(self) -> None:
        """Ask the child to end its running tasks and then itself; once or more."""
        with suppress(OSError):
            self.writer.write(_DRAIN.encode() + b"\n")


def handle_signals(act: Callable[[], object]) -> None:
    """Call `act` for each SIGINT and SIGTERM, on the running event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell makes its background jobs ignore SIGINT.
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, act)


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

    When the parent asks for a drain, `on_drain` is called on a thread; without it this process ends at once.
    When the parent ends, this process gets SIGTERM, and exits at the latest `exit_seconds` later.
    """

    def __init__(self, exit_seconds: float | None = None) -> None:
        self._channel = socket.socket(fileno=os.dup(0))
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        self._lines = self._channel.makefile("r", encoding="utf-8")
        self.config = self._lines.readline().strip()
        self.on_drain: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGTERM)
        threading.Thread(target=self._follow_parent, args=(exit_seconds,), daemon=True).start()

    def report(self, answer: str) -> None:
        """Send one line: `READY`, or why this process cannot begin."""
        with suppress(OSError):
            self._channel.sendall(" ".join(answer.split())[:_MAX_ANSWER].encode() + b"\n")

    def _follow_parent(self, exit_seconds: float | None) -> None:
        # A parent that sends what is no text has a defect, and is treated as one that has ended.
        with suppress(OSError, ValueError):
            for line in self._lines:
                if line.strip() == _DRAIN:
                    threading.Thread(target=self.on_drain, daemon=True).start()
        os.kill(os.getpid(), signal.SIGTERM)
        if exit_seconds is not None:
            time.sleep(exit_seconds)
            os._exit(1)
