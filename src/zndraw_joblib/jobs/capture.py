"""The task for which a thread works, and the capture of what the code of a task prints."""

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

from zndraw_joblib.jobs.task_channel import Line
from zndraw_joblib.jobs.task_context import TaskContext, running_task
from zndraw_joblib.wire.progress import LogLevel, LogSource

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
        """Stop capturing, in a forked process."""
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
        for captured in self._kept:
            if captured.uncaptured is stream and captured.source is source:
                return captured
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
        self._pid = os.getpid()
        _threads.acquire()
        self._token = running_task.set(self._task)
        if self._task.channel.captures:
            _streams.acquire()

    def __exit__(self, *_: object) -> None:
        running_task.reset(self._token)
        channel = self._task.channel
        if os.getpid() == self._pid:
            _threads.release()
            if channel.captures:
                _streams.release()
        channel.finish()


def outside_tasks(call: Callable[[], Any]) -> Any:
    """Return what `call` returns; it, and threads that it starts, belong to no task."""
    return Context().run(call)


def _call_for_task(task: TaskContext | None, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    token = running_task.set(task)
    try:
        return fn(*args, **kwargs)
    finally:
        running_task.reset(token)


class _Threads:
    """Passes the running task to the threads, and calls in pools of threads, that it starts; logs warnings.

    Python does so itself only with `thread_inherit_context`, from version 3.14 on. Calls outside of tasks
    are passed on unchanged.
    """

    def __init__(self) -> None:
        self._warnings = _WarningsHandler()
        self._former: _Methods | None = None
        self._own: _Methods | None = None
        self.reset()

    def reset(self) -> None:
        """Forget all tasks in a forked process: its only thread runs no task of a worker."""
        self._lock = threading.Lock()
        self._tasks = 0

    def acquire(self) -> None:
        """Follow threads while a task runs, which ends with `release`."""
        with self._lock:
            self._tasks += 1
            if self._own is None:
                logging.getLogger("py.warnings").addHandler(self._warnings)
                self._former = start, submit = _methods()
                self._own = _starts_for_task(start), _submits_for_task(submit)
                _set_methods(self._own)

    def release(self) -> None:
        """Note that a task has ended."""
        with self._lock:
            self._tasks -= 1

    def restore(self) -> None:
        """Follow threads no longer, unless a task runs or another library has wrapped the same methods."""
        with self._lock:
            if self._former is not None and not self._tasks and _methods() == self._own:
                logging.getLogger("py.warnings").removeHandler(self._warnings)
                _set_methods(self._former)
                self._former = self._own = None


def _methods() -> "_Methods":
    return threading.Thread.start, ThreadPoolExecutor.submit


def _set_methods(methods: "_Methods") -> None:
    threading.Thread.start, ThreadPoolExecutor.submit = methods  # type: ignore[assignment,method-assign]


_Start = Callable[[threading.Thread], None]
_Submit = Callable[..., "Future[Any]"]
_Methods = tuple[_Start, _Submit]


def _starts_for_task(start: _Start) -> _Start:
    @wraps(start)
    def start_for_task(self: threading.Thread) -> None:
        task = running_task.get()
        if task is None:
            start(self)
            return
        # Not by `setattr`, which a subclass may define.
        own, run = vars(self).get("run"), self.run

        def restore() -> None:  # a thread that refers to itself would live until the garbage collector runs
            vars(self).pop("run", None)
            if own is not None:
                vars(self)["run"] = own

        def run_for_task() -> None:
            restore()
            _call_for_task(task, run)

        vars(self)["run"] = run_for_task
        try:
            start(self)
        except BaseException:
            restore()
            raise

    return start_for_task


def _submits_for_task(submit: _Submit) -> _Submit:
    @wraps(submit)
    def submit_for_task(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "Future[Any]":
        task = running_task.get()
        if task is None:
            return submit(self, fn, *args, **kwargs)
        # A new thread of the pool will serve other tasks, too.
        return _call_for_task(None, submit, self, _call_for_task, task, fn, *args, **kwargs)  # type: ignore[no-any-return]

    return submit_for_task


_threads = _Threads()
if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_threads.reset)


def stop_following_threads() -> None:
    """Undo what a worker of this process has changed for its tasks, if none runs; call it when it ends."""
    _threads.restore()
