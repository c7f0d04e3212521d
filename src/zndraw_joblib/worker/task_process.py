"""Processes that run tasks, one after the other: their messages, live reports, start and end."""

import asyncio
import atexit
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.context import SpawnProcess
from socket import socket, socketpair
from struct import Struct
from typing import Any, NamedTuple
from weakref import WeakSet

from zndraw_joblib.client.retry import describe
from zndraw_joblib.jobs.batches import BatchContext, await_batch, run_batch
from zndraw_joblib.jobs.capture import outside_tasks
from zndraw_joblib.jobs.failures import error_text
from zndraw_joblib.jobs.forks import default_signals_in_forks
from zndraw_joblib.jobs.logs import LogConfig, applied_config
from zndraw_joblib.jobs.run import Outcome, await_job, failed, run_settled, run_to_end
from zndraw_joblib.jobs.task_channel import Line, TaskChannel
from zndraw_joblib.jobs.task_context import TaskContext
from zndraw_joblib.jobs.traces import continued, current_traceparent
from zndraw_joblib.worker.tasks import ClaimedTask, Execute

_CHECK_SECONDS = 0.5
_LENGTH = Struct("!Q")


class Channel:
    """One end of a pair of sockets, for messages of any length.

    While the other end neither sends nor receives, `is_over` is called twice a second. Once it returns true,
    and nothing is left to receive, EOFError is raised: processes that a job forked may keep the other end
    open.
    """

    def __init__(self, end: socket, is_over: Callable[[], bool] | None = None) -> None:
        self._socket = end
        self._is_over = is_over
        end.settimeout(_CHECK_SECONDS if is_over else None)

    def send(self, message: bytes) -> None:
        """Send a message."""
        view = memoryview(_LENGTH.pack(len(message)) + message)
        while view:
            view = view[self._transfer(self._socket.send, view) :]

    def receive(self, on_pause: Callable[[], None] = lambda: None) -> bytes:
        """Wait for a message and return it; with `is_over`, call `on_pause` as often."""
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, on_pause))
        return self._receive(length, on_pause)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _receive(self, length: int, on_pause: Callable[[], None]) -> bytes:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            count = self._transfer(self._socket.recv_into, view, on_pause)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(content)

    def _transfer(
        self, call: Callable[[memoryview], int], view: memoryview, on_pause: Callable[[], None] = lambda: None
    ) -> int:
        is_last = False
        while True:
            try:
                return call(view)
            except TimeoutError:
                if is_last:
                    raise EOFError from None
                is_last = self._is_over is not None and self._is_over()
                on_pause()


# Pass the progress and the log of a task from the process that runs it to the worker.

_INTERVAL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The progress and the lines of a `LiveReport`, numbered as in the process of the task.

    `index` says which of the tasks of the call it is.
    """

    progress: dict[str, Any] | None
    first: int
    lines: list[Line]
    index: int = 0


class Forwarder:
    """Sends what the channels of tasks hold, a fifth of a second after it arrives, and with the outcomes.

    `send` sends a message to the worker. The thread starts with the first content, so most tasks need none.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._channels: list[TaskChannel] = []
        self._thread: threading.Thread | None = None

    def begin(self, channels: list[TaskChannel]) -> None:
        """Send the content of the channels of the next tasks."""
        with self._lock:
            self._channels = channels
        for channel in channels:
            channel.on_content = self._notice

    def end(self, outcomes: list[Outcome] | Outcome) -> None:
        """Send what is left, and the outcomes of the tasks."""
        with self._lock:
            self._forward()
            for channel in self._channels:
                channel.close()
            self._channels = []
            self._send(pickle.dumps(outcomes))

    def _notice(self, channel: TaskChannel) -> None:
        with self._lock:
            # A thread of a task that has ended may still print.
            if channel in self._channels and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="zndraw-joblib-live-reports", daemon=True
                )
                outside_tasks(self._thread.start)
        self._arrived.set()

    def _run(self) -> None:
        # The worker has ended.
        with suppress(OSError):
            while True:
                self._arrived.wait()
                time.sleep(_INTERVAL_SECONDS)
                self._arrived.clear()
                with self._lock:
                    channels = self._channels
                    self._forward()
                for channel in channels:
                    channel.notice_again()

    def _forward(self) -> None:
        for index, channel in enumerate(self._channels):
            for report in channel.take_all():
                self._send(pickle.dumps(Forwarded(report.progress, report.first, list(report.lines), index)))
                channel.acknowledge(report)


class ForwardedReports:
    """Adds what a process forwards to the channel of its task, and counts the lines that it dropped."""

    def __init__(self, channel: TaskChannel) -> None:
        self._channel = channel
        self._next = 1

    def add(self, forwarded: Forwarded) -> None:
        """Add what was forwarded."""
        if forwarded.progress is not None:
            self._channel.set_progress(forwarded.progress)
        if forwarded.lines:
            self._channel.add(forwarded.lines, dropped=forwarded.first - self._next)
            self._next = forwarded.first + len(forwarded.lines)


# Run tasks in a process of their own, one after the other.

log = logging.getLogger(__name__)

# Not fork: the worker has threads.
_context = get_context("spawn")
_processes: WeakSet[SpawnProcess] = WeakSet()
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_JOIN_SECONDS = 5.0
# Sent to a process that runs a task; a task is never empty.
_CANCEL = b""
_ADVICE = "Define it at the top level of a module that can be imported, or use executor='thread'"


def check_importable(value: Any) -> None:
    """Raise TypeError if another process cannot import `value`."""
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - it is our own
    except Exception as error:
        name = getattr(value, "__qualname__", type(value).__name__)
        raise TypeError(f"{name} cannot run in another process: {describe(error)}. {_ADVICE}") from error


class _Started(NamedTuple):
    process: SpawnProcess
    channel: Channel


class TaskProcess:
    """A process that runs one task or batch at a time.

    It starts with the first one, and again after it has ended.
    """

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._started: _Started | None = None

    def run(self, task: ClaimedTask) -> Outcome:
        """Return the outcome of a task; a coroutine is cancelled with its task, within half a second."""
        return self._run(self._execute, [task])[0]

    def run_batch(self, tasks: list[ClaimedTask]) -> list[Outcome]:
        """Return the outcomes of the tasks of a batch; a coroutine is cancelled with the last of them."""
        return self._run(None, tasks)

    def _run(self, execute: Execute | None, tasks: list[ClaimedTask]) -> list[Outcome]:
        try:
            work = pickle.dumps((execute, tasks, current_traceparent()))
            running = self._send_to_running(work)
            channel = (running or self._start()).channel
        except Exception as error:
            text = error_text(f"The task could not be sent to a process: {describe(error)}")
            return [Outcome(error=text)] * len(tasks)
        try:
            if running is None:
                channel.send(work)
            return _receive_outcomes(channel, tasks)
        except (EOFError, OSError):
            text = f"The process that ran the task ended with exit code {self.close()}"
            return [Outcome(error=text)] * len(tasks)

    def close(self) -> int | None:
        """End the process, and return its exit code."""
        if self._started is None:
            return None
        process, channel = self._started
        self._started = None
        channel.close()
        process.join(_JOIN_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        return process.exitcode

    def _send_to_running(self, work: bytes) -> _Started | None:
        """Send a task to the process of the task before; None if it has ended since."""
        if self._started is not None and self._started.process.exitcode is None:
            try:
                self._started.channel.send(work)
                return self._started
            # It has not received the whole task.
            except (EOFError, OSError) as error:
                log.info("The process of tasks has ended: %s", describe(error))
        self.close()
        return None

    def _start(self) -> _Started:
        ours, theirs = socketpair()
        process = _context.Process(target=_serve, args=(theirs, applied_config()), name="zndraw-joblib-task")
        with theirs, _blocked_signals():
            process.start()
        _processes.add(process)
        self._started = _Started(process, Channel(ours, lambda: process.exitcode is not None))
        return self._started


def _receive_outcomes(channel: Channel, tasks: list[ClaimedTask]) -> list[Outcome]:
    reports, is_notified = [ForwardedReports(task.channel) for task in tasks], False

    def pass_cancellation() -> None:
        nonlocal is_notified
        if not is_notified and all(task.cancelled.is_set() for task in tasks):
            is_notified = True
            channel.send(_CANCEL)

    while True:
        pass_cancellation()
        received = channel.receive(pass_cancellation)
        message: list[Outcome] | Outcome | Forwarded = pickle.loads(received)  # noqa: S301 - from our process
        if isinstance(message, list):
            return message
        if isinstance(message, Outcome):
            return [message] * len(tasks)
        reports[message.index].add(message)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Let a process that starts in this block receive signals only when it is ready for them."""
    if sys.platform == "win32":
        yield
        return
    # Its first start, which the first process would cause, lets signals through again.
    resource_tracker.ensure_running()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _kill_all() -> None:
    for process in list(_processes):
        if process.is_alive():
            process.kill()


# A second signal ends the worker at once, but multiprocessing would wait at exit for running processes.
# Its own exit handler was registered by an import above, so this one is called before it.
atexit.register(_kill_all)


def _serve(end: socket, log_config: LogConfig | None) -> None:
    """Run tasks until the worker closes the connection or ends."""
    # The worker decides what Ctrl-C and SIGTERM to the whole group mean: it lets running tasks finish.
    # Not SIG_IGN: programs that a job starts would inherit it.
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if log_config is not None:
        log_config.apply(with_pid=True)
    channel = Channel(end)
    forwarder = Forwarder(channel.send)
    with suppress(EOFError, OSError), default_signals_in_forks():
        while True:
            # A cancellation may arrive after its task has ended.
            if work := channel.receive():
                forwarder.end(_run(work, forwarder, end))


def _run(work: bytes, forwarder: Forwarder, end: socket) -> list[Outcome] | Outcome:
    """Return the outcome of each task, or one for all of them."""
    pid = os.getpid()
    try:
        execute, tasks, traceparent = pickle.loads(work)  # noqa: S301 - the worker sent it
    except BaseException as error:
        text = error_text(f"The task cannot run in another process: {describe(error)}. {_ADVICE}")
        return Outcome(error=text)
    forwarder.begin([task.channel for task in tasks])
    with continued(traceparent):
        outcomes = _run_tasks(execute, tasks, pid, end)
    return [_in_file(task, outcome) for task, outcome in zip(tasks, outcomes, strict=True)]


def _run_tasks(execute: Execute | None, tasks: list[ClaimedTask], pid: int, end: socket) -> list[Outcome]:
    if execute is not None:
        [task] = tasks
        call = partial(execute, task)
        return [run_to_end(call, task, task.extension, pid, partial(_await_job, end))]
    batch = BatchContext(tasks)
    outcomes = run_batch(batch, pid)
    if isinstance(outcomes, list):
        return outcomes
    return run_settled(_await_batch(end, outcomes, batch, pid), batch.fail, pid)


def _in_file(task: ClaimedTask, outcome: Outcome) -> Outcome:
    """Return an outcome with its content in a file: the worker would hold all bytes of a large one twice."""
    if outcome.content is None:
        return outcome
    try:
        return replace(outcome, content=outcome.content.in_file())
    except Exception as error:
        return failed(task, task.extension, error)


async def _await_job(
    end: socket, work: Coroutine[Any, Any, Any], task: ClaimedTask, extension: Any, pid: int
) -> Outcome:
    """Return the outcome of a coroutine."""
    with _cancelled_by(end, task):
        return await await_job(work, task, extension, pid)


async def _await_batch(
    end: socket, work: Coroutine[Any, Any, Any], batch: BatchContext, pid: int
) -> list[Outcome]:
    with _cancelled_by(end, batch):
        return await await_batch(work, batch, pid)


@contextmanager
def _cancelled_by(end: socket, context: TaskContext) -> Iterator[None]:
    """Cancel a coroutine when the worker sends something: it does so only if the task is cancelled."""
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        loop.remove_reader(end)
        context.cancelled.set()

    with suppress(NotImplementedError):  # the event loop of Windows
        loop.add_reader(end, cancel)
    yield
