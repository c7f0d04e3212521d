"""Know which task a thread works for, and log what the code of a task prints."""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import wraps
from typing import Any

from zndraw_joblib.contract.progress import LogLevel, LogSource
from zndraw_joblib.contract.task_channel import Line
from zndraw_joblib.contract.task_context import TaskContext, running_task

_KEPT_STREAMS = 16


class CapturedStream:
    """Stands in for `sys.stdout` or `sys.stderr`: writes through, and logs what a task's code writes."""

    def __init__(self, stream: Any, source: LogSource) -> None:
        self.uncaptured = stream
        self.source = source

    def write(self, text: str) -> Any:
        """Write text, also to the log of the task that runs in this thread or coroutine."""
        task = running_task.get()
        if task is None or not task.channel.captures:
            return self._write(text)
        task.channel.write(text, self.source)
        # The stream may be another library's that writes to an earlier captured one.
        token = running_task.set(None)
        try:
            return self._write(text)
        finally:
            running_task.reset(token)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream."""
        if self.uncaptured is not None:
            self.uncaptured.flush()

    def _write(self, text: str) -> Any:
        return len(text) if self.uncaptured is None else self.uncaptured.write(text)  # None: in a daemon

    def __getattr__(self, name: str) -> Any:
        return getattr(self.uncaptured, name)


class _WarningsHandler(logging.Handler):
    """Logs the warnings that `logging.captureWarnings` takes from stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        task = running_task.get()
        if task is not None and task.channel.captures:
            lines = record.getMessage().rstrip("\n").split("\n")
            task.channel.add(
                [Line(record.created, line, LogLevel.WARNING, LogSource.STDERR) for line in lines]
            )


class _Streams:
    """Replaces the streams of this process while it runs tasks whose output is captured."""

    def __init__(self) -> None:
        # `print` holds no reference to its stream: one must not be freed while a thread writes to it.
        self._kept: deque[CapturedStream] = deque(maxlen=_KEPT_STREAMS)
        self.reset()

    def reset(self) -> None:
        """Start anew, in a forked process: its output is no longer captured."""
        self._lock = threading.Lock()
        self._users = 0
        self._restore()

    def acquire(self) -> None:
        """Capture output until `release` is called as often."""
        with self._lock:
            self._users += 1
            # Another library may have replaced them meanwhile.
            if type(sys.stdout) is not CapturedStream:
                sys.stdout = self._captured(sys.stdout, LogSource.STDOUT)
            if type(sys.stderr) is not CapturedStream:
                sys.stderr = self._captured(sys.stderr, LogSource.STDERR)

    def release(self) -> None:
        """Capture output no longer, if no other task needs it."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._restore()

    def _captured(self, stream: Any, source: LogSource) -> CapturedStream:
        for kept in self._kept:
            if kept.uncaptured is stream and kept.source is source:
                return kept
        captured = CapturedStream(stream, source)
        self._kept.append(captured)
        return captured

    def _restore(self) -> None:
        if type(sys.stdout) is CapturedStream:
            sys.stdout = sys.stdout.uncaptured
        if type(sys.stderr) is CapturedStream:
            sys.stderr = sys.stderr.uncaptured


_streams = _Streams()
if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_streams.reset)


class running:
    """Let the code of a block, and the threads that it starts, be that of `task`; capture its output.

    A class, not a generator, because each task pays for it.
    """

    __slots__ = ("_pid", "_task", "_token")

    def __init__(self, task: TaskContext) -> None:
        self._task = task

    def __enter__(self) -> None:
        if not _follows_threads:
            _follow_threads()
        self._token = running_task.set(self._task)
        if self._task.channel.captures:
            self._pid = os.getpid()
            _streams.acquire()

    def __exit__(self, *_: object) -> None:
        running_task.reset(self._token)
        channel = self._task.channel
        if channel.captures and os.getpid() == self._pid:
            _streams.release()
        channel.finish()


def outside_tasks(call: Callable[[], Any]) -> Any:
    """Return what `call` returns; it, and threads that it starts, belong to no task."""
    return Context().run(call)


_follow_lock = threading.Lock()
_follows_threads = False


def _call_for_task(task: TaskContext | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = running_task.set(task)
    try:
        return fn(*args, **kwargs)
    finally:
        running_task.reset(token)


def _follow_threads() -> None:
    """Let each thread, and each call in a pool of threads, know the task that started it; log warnings.

    Python does so itself only with `thread_inherit_context`, from version 3.14 on.
    """
    global _follows_threads  # noqa: PLW0603 - it concerns the process
    with _follow_lock:
        if _follows_threads:
            return
        _follows_threads = True
    logging.getLogger("py.warnings").addHandler(_WarningsHandler())
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    @wraps(start)
    def start_for_task(self: threading.Thread) -> None:
        task = running_task.get()
        if task is not None:
            run = self.run

            def run_for_task() -> None:
                del self.run  # a thread that refers to itself would live until the garbage collector runs
                _call_for_task(task, run)

            self.run = run_for_task  # type: ignore[method-assign]
        start(self)

    @wraps(submit)  # type: ignore[arg-type]
    def submit_for_task(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        return submit(self, _call_for_task, running_task.get(), fn, *args, **kwargs)

    threading.Thread.start = start_for_task  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_for_task  # type: ignore[method-assign,assignment]
