"""Pass the progress and the log of a task from the process that runs it to the worker."""

import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zndraw_joblib.contract.capture import outside_tasks
from zndraw_joblib.contract.task_channel import Line, TaskChannel

_INTERVAL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The progress and the lines of a `LiveReport`, numbered as in the process of the task."""

    progress: dict[str, Any] | None
    first: int
    lines: list[Line]


class Forwarder:
    """Sends what the channel of a task holds, a fifth of a second after it arrives, and with the outcome.

    `send` sends a message to the worker. The thread starts with the first content, so most tasks need none.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._channel: TaskChannel | None = None
        self._thread: threading.Thread | None = None

    def begin(self, channel: TaskChannel) -> None:
        """Send the content of the channel of the next task."""
        with self._lock:
            self._channel = channel
        channel.on_content = self._notice

    def end(self, outcome: object) -> None:
        """Send what is left, and the outcome of the task."""
        with self._lock:
            self._forward()
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            self._send(pickle.dumps(outcome))

    def _notice(self, channel: TaskChannel) -> None:
        with self._lock:
            # A thread of a task that has ended may still print.
            if channel is self._channel and self._thread is None:
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
                    channel = self._channel
                    self._forward()
                if channel is not None:
                    channel.notice_again()

    def _forward(self) -> None:
        if self._channel is None:
            return
        for report in self._channel.take_all():
            self._send(pickle.dumps(Forwarded(report.progress, report.first, list(report.lines))))
            self._channel.acknowledge(report)


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
