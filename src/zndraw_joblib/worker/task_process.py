"""Processes that run tasks, one after the other: their messages, live reports, start and end."""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.context import SpawnProcess
from socket import socket, socketpair
from struct import Struct
from typing import Any, NamedTuple

from zndraw_joblib.client.retry import describe
from zndraw_joblib.jobs.batches import BatchContext, await_batch, run_batch
from zndraw_joblib.jobs.capture import outside_tasks
from zndraw_joblib.jobs.failures import error_text
from zndraw_joblib.jobs.forks import default_signals_in_forks
from zndraw_joblib.jobs.logs import LogConfig, applied_config, task_fields
from zndraw_joblib.jobs.run import Outcome, failed, run_settled, run_to_end
from zndraw_joblib.jobs.task_channel import Line, TaskChannel
from zndraw_joblib.jobs.traces import continued, current_traceparent
from zndraw_joblib.worker.process_groups import (
    end_own_group,
    guardian,
    kill_group,
    lead_group,
    terminate_group,
)
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

    def send(self, message: bytes, on_pause: Callable[[], None] = lambda: None) -> None:
        """Send a message; with `is_over`, call `on_pause` as often."""
        view = memoryview(_LENGTH.pack(len(message)) + message)
        while view:
            view = view[self._transfer(self._socket.send, view, on_pause) :]

    def receive(self, on_pause: Callable[[], None] = lambda: None) -> bytes:
        """Wait for a message and return it; with `is_over`, call `on_pause` as often."""
        (length,) = _LENGTH.unpack(self.receive_exactly(_LENGTH.size, on_pause))
        return self.receive_exactly(length, on_pause)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def receive_exactly(self, length: int, on_pause: Callable[[], None] = lambda: None) -> bytes:
        """Wait for a number of bytes and return them, without a message around them."""
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
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_JOIN_SECONDS = 5.0
# The number of a call, which of its tasks the message is about, and how long the new token is that follows.
# Without a token the task was cancelled.
_CHANGE = Struct("!QIH")
_CHECK_CANCELLED_SECONDS = 0.1
DEFAULT_CANCEL_GRACE = 5.0
_EXIT_CODE_BASE = 128
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
    changes: "_Changes"


class _Changes:
    """Sends what changed of running tasks: their cancellations and new tokens. It never waits."""

    def __init__(self, end: socket) -> None:
        self._socket = end
        self._unsent = bytearray()
        end.setblocking(False)

    def send(self, number: int, index: int, token: bytes = b"") -> None:
        """Send that a task was cancelled, or its new token."""
        self._unsent += _CHANGE.pack(number, index, len(token)) + token
        self.send_rest()

    def send_rest(self) -> None:
        """Send what is left of it."""
        # It is full if native code holds Python's lock for long, and closed if the process has ended.
        with suppress(OSError):
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class TaskProcess:
    """A process that runs one task or batch at a time.

    It starts with the first one, and again after it has ended. Once its tasks are cancelled or lost, it has
    `cancel_grace` seconds to end them, before its group gets SIGTERM and then SIGKILL.
    """

    def __init__(self, execute: Execute, cancel_grace: float = DEFAULT_CANCEL_GRACE) -> None:
        self._execute = execute
        self._grace = cancel_grace
        self._number = 0
        self._started: _Started | None = None

    def run(self, task: ClaimedTask) -> Outcome:
        """Return the outcome of a task, whose copy in the process is cancelled within half a second."""
        return self._run(self._execute, [task])[0]

    def run_batch(self, tasks: list[ClaimedTask]) -> list[Outcome]:
        """Return the outcomes of the tasks of a batch; a coroutine is cancelled with the last of them."""
        return self._run(None, tasks)

    def _run(self, execute: Execute | None, tasks: list[ClaimedTask]) -> list[Outcome]:
        self._number += 1
        tokens = [_token(task) for task in tasks]
        try:
            work = pickle.dumps((self._number, execute, tasks, current_traceparent()))
            sent = self._send_to_running(work, tasks, tokens)
            call = sent or _Call(self._start(), self._number, tasks, tokens, self._grace)
        except Exception as error:
            text = error_text(f"The task could not be sent to a process: {describe(error)}")
            return [Outcome(error=text)] * len(tasks)
        try:
            if sent is None:
                call.send(work)
            outcomes = call.receive_outcomes()
        except (EOFError, OSError):
            code = self.close(kills=True)
            text = f"The process that ran the task ended with exit code {code}{_signal_text(code)}"
            return [Outcome(error=text)] * len(tasks)
        if call.signals:
            self.close(kills=True)
        return outcomes

    def close(self, *, kills: bool = False) -> int | None:
        """End the process, and return its exit code; `kills` its whole group at once."""
        if self._started is None:
            return None
        process, channel, changes = self._started
        self._started = None
        if kills:
            kill_group(process)
        channel.close()
        process.join(_JOIN_SECONDS)
        if process.exitcode is None:
            kill_group(process)
            process.join()
        changes.close()
        guardian.remove(process)
        return process.exitcode

    def _send_to_running(self, work: bytes, tasks: list[ClaimedTask], tokens: list[str]) -> "_Call | None":
        """Send tasks to the process of the call before; None if it has ended since."""
        if self._started is not None and self._started.process.exitcode is None:
            call = _Call(self._started, self._number, tasks, tokens, self._grace)
            try:
                call.send(work)
                return call
            # It has not received all tasks.
            except (EOFError, OSError) as error:
                log.info("The process of tasks has ended: %s", describe(error))
                if call.signals:
                    raise
        self.close(kills=True)
        return None

    def _start(self) -> _Started:
        ours, theirs = socketpair()
        changes, received = socketpair()
        arguments = theirs, received, applied_config(), self._grace
        process = _context.Process(target=_serve, args=arguments, name="zndraw-joblib-task")
        with theirs, received, _blocked_signals():
            process.start()
        channel = Channel(ours, lambda: process.exitcode is not None)
        self._started = _Started(process, channel, _Changes(changes))
        guardian.add(process)
        return self._started


class _Call:
    """The tasks that a process runs, as its worker sees them: it gets their reports, and may cancel them.

    It has these tokens of the tasks, and gets those that heartbeats return.

    Once all of them are cancelled or lost, the process has `grace` seconds to end the call. Then its group
    gets SIGTERM, and as many seconds later SIGKILL.
    """

    def __init__(
        self, started: _Started, number: int, tasks: Sequence[ClaimedTask], tokens: list[str], grace: float
    ) -> None:
        self._started = started
        self._number = number
        self._tasks = tasks
        self._tokens = tokens
        self._grace = grace
        self._uncancelled = dict(enumerate(tasks))
        self._check_at = 0.0
        self._cancelled_at: float | None = None
        self.signals: list[str] = []

    def send(self, work: bytes) -> None:
        """Send the tasks. Raises EOFError, OSError if the process has ended."""
        self._started.channel.send(work, self._check)

    def receive_outcomes(self) -> list[Outcome]:
        """Return the outcomes. Raises EOFError, OSError if the process has ended."""
        reports = [ForwardedReports(task.channel) for task in self._tasks]
        while True:
            self._check()
            received = self._started.channel.receive(self._check)
            message: list[Outcome] | Outcome | Forwarded = pickle.loads(received)  # noqa: S301 - our process
            if isinstance(message, list):
                return message
            if isinstance(message, Outcome):
                return [message] * len(self._tasks)
            reports[message.index].add(message)

    def _check(self) -> None:
        """Pass on which tasks are cancelled and the new tokens, and send the signal that is due."""
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + _CHECK_CANCELLED_SECONDS
        changes = self._started.changes
        changes.send_rest()
        for index, task in list(self._uncancelled.items()):
            if task.cancelled.is_set():
                changes.send(self._number, index)
                del self._uncancelled[index]
            elif (token := _token(task)) != self._tokens[index]:
                changes.send(self._number, index, token.encode())
                self._tokens[index] = token
        if self._cancelled_at is None and all(task.cancelled.is_set() for task in self._tasks):
            self._cancelled_at = now
        if self._cancelled_at is not None:
            self._end(now - self._cancelled_at)

    def _end(self, seconds: float) -> None:
        process, task = self._started.process, self._tasks[0]
        if not self.signals and seconds >= self._grace:
            terminate_group(process)
            self.signals.append("SIGTERM")
        elif len(self.signals) == 1 and seconds >= 2 * self._grace:
            kill_group(process)
            self.signals.append("SIGKILL")
        else:
            return
        log.info(
            "Process %s still runs %.1f s after task %s ended: %s to its process group (cancel_grace=%g)",
            *(process.pid, seconds, task.task_id, self.signals[-1], self._grace),
            extra=task_fields(task),
        )


def _signal_text(code: int | None) -> str:
    """Return the name of the signal in an exit code, and for SIGKILL what most often sends it."""
    try:
        name = signal.Signals(-code).name if code is not None and code < 0 else ""
    except ValueError:
        name = ""
    if name == "SIGKILL":
        return " (SIGKILL, as when the machine or the allocation has no memory left)"
    return f" ({name})" if name else ""


def _token(task: ClaimedTask) -> str:
    return "" if task.credential is None else task.credential.token


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


class _ReceivedChanges:
    """Sets the events of the tasks that this process runs when they are cancelled, and renews their tokens.

    When the worker has ended, all are cancelled, and this process ends with its group after `grace` seconds.
    """

    def __init__(self, received: socket, grace: float) -> None:
        self._received = received
        self._grace = grace
        self._lock = threading.Lock()
        self._number = 0
        self._tasks: list[ClaimedTask] = []
        # They may arrive before the tasks do.
        self._early: list[tuple[int, int, str]] = []

    def begin(self, number: int, tasks: list[ClaimedTask]) -> None:
        """Apply the changes of these tasks from now on."""
        with self._lock:
            self._number, self._tasks = number, tasks
            for at, index, token in self._early:
                if at == number:
                    _change(tasks[index], token)
            self._early = []

    def run(self) -> None:
        """Apply changes until the worker has ended; then end this process."""
        channel = Channel(self._received)
        with suppress(EOFError, OSError):
            while True:
                number, index, length = _CHANGE.unpack(channel.receive_exactly(_CHANGE.size))
                self._apply(number, index, channel.receive_exactly(length).decode())
        for task in self._tasks:
            task.cancelled.set()
        time.sleep(self._grace)
        end_own_group()

    def _apply(self, number: int, index: int, token: str) -> None:
        with self._lock:
            if number > self._number:
                self._early.append((number, index, token))
            tasks = self._tasks if number == self._number else []
        if tasks:
            _change(tasks[index], token)

    def handle_signal(self, *_: object) -> None:
        """Exit if all tasks are cancelled, so that the job cleans up.

        Otherwise the worker decides what SIGTERM to all of its processes means: running tasks finish.
        """
        if self._tasks and all(task.cancelled.is_set() for task in self._tasks):
            raise SystemExit(_EXIT_CODE_BASE + signal.SIGTERM)


def _change(task: ClaimedTask, token: str) -> None:
    """Cancel a task, or renew its token."""
    if not token:
        task.cancelled.set()
    elif task.credential is not None:
        task.credential.renew(token)


def _serve(end: socket, received: socket, log_config: LogConfig | None, cancel_grace: float) -> None:
    """Run tasks until the worker closes the connection or ends."""
    lead_group()
    changes = _ReceivedChanges(received, cancel_grace)
    # Not SIG_IGN: programs that a job starts would inherit it.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, changes.handle_signal)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if log_config is not None:
        log_config.apply(with_pid=True)
    threading.Thread(target=changes.run, name="zndraw-joblib-changes", daemon=True).start()
    channel = Channel(end)
    forwarder = Forwarder(channel.send)
    with suppress(EOFError, OSError), default_signals_in_forks():
        while True:
            forwarder.end(_run(channel.receive(), forwarder, changes))


def _run(work: bytes, forwarder: Forwarder, changes: _ReceivedChanges) -> list[Outcome] | Outcome:
    """Return the outcome of each task, or one for all of them."""
    pid = os.getpid()
    try:
        number, execute, tasks, traceparent = pickle.loads(work)  # noqa: S301 - the worker sent it
    except BaseException as error:
        text = error_text(f"The task cannot run in another process: {describe(error)}. {_ADVICE}")
        return Outcome(error=text)
    changes.begin(number, tasks)
    forwarder.begin([task.channel for task in tasks])
    with continued(traceparent):
        outcomes = run_tasks(execute, tasks, pid)
    return [_in_file(task, outcome) for task, outcome in zip(tasks, outcomes, strict=True)]


def run_tasks(execute: Execute | None, tasks: list[ClaimedTask], pid: int) -> list[Outcome]:
    """Run one task with `execute`, or a batch without, in the program `pid`; return the outcome of each."""
    if execute is not None:
        [task] = tasks
        return [run_to_end(partial(execute, task), task, task.extension, pid)]
    batch = BatchContext(tasks)
    outcomes = run_batch(batch, pid)
    if isinstance(outcomes, list):
        return outcomes
    return run_settled(await_batch(outcomes, batch, pid), batch.fail, pid)


def _in_file(task: ClaimedTask, outcome: Outcome) -> Outcome:
    """Return an outcome with its content in a file: the worker would hold all bytes of a large one twice."""
    if outcome.content is None:
        return outcome
    try:
        return replace(outcome, content=outcome.content.in_file())
    except Exception as error:
        return failed(task, task.extension, error)
