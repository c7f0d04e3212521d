"""The context of a running job: report progress, write to its log, and notice its end."""

import asyncio
import inspect
import json
import logging
import math
import operator
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from time import time
from typing import Any, ClassVar, TypeVar

from zndraw_joblib.jobs.failures import encode, text_of
from zndraw_joblib.jobs.task_channel import Line, TaskChannel, clean_text
from zndraw_joblib.wire.progress import MAX_PROGRESS_DATA_BYTES, LogLevel

Result = TypeVar("Result")


class CancelEvent(threading.Event):
    """A `threading.Event` that can call a function when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._call: Callable[[], object] | None = None

    def set(self) -> None:
        """Set the event, and call the function."""
        super().set()
        if (call := self._call) is not None:
            call()

    def call_when_set(self, call: Callable[[], object] | None) -> None:
        """Call a function once the event is set, perhaps twice and in any thread; None: no function."""
        self._call = call
        if call is not None and self.is_set():
            call()


async def await_until_set(work: Coroutine[Any, Any, Result], event: CancelEvent) -> Result:
    """Return what a coroutine returns; once the event is set, it gets one `CancelledError`."""
    loop = asyncio.get_running_loop()
    this: Any = asyncio.current_task()
    is_over = is_cancelled = False

    def cancel() -> None:
        nonlocal is_cancelled
        if not (is_over or is_cancelled):
            is_cancelled = this.cancel()

    def cancel_soon() -> None:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(cancel)

    event.call_when_set(cancel_soon)
    try:
        return await work
    finally:
        is_over = True
        event.call_when_set(None)
        if is_cancelled:
            this.uncancel()


# What a job may do with its task while it runs: report progress, and write to the task's log.

Item = TypeVar("Item")
_MAX_UNIT, _MAX_MESSAGE = 64, 1000
_MAX_EXACT = 2**53

running_task: "ContextVar[TaskContext | None]" = ContextVar("zndraw_joblib.current_task", default=None)


def current_task() -> "TaskContext | None":
    """Return the task that runs here: in this thread, or a thread that it started, or this coroutine."""
    return running_task.get()


class TaskContext:
    """A running task, as its job sees it. All methods are thread-safe, cost microseconds, and never wait.

    What is reported reaches the server at most twice a second, and with the end of the task. It has no effect
    once the task has ended or is lost to this worker, and in a process that the job forked. `cancelled`, a
    `threading.Event`, is set when the task is cancelled or lost: a job that checks it can stop early. A
    coroutine also gets `asyncio.CancelledError` at its next ``await``. `task_id` and `room_id` are text; the
    id is the same in each `attempt`, which is the number of the claim.
    """

    __slots__ = ()

    # The server that has the task; None where it is not known, as for a batch.
    server_url: ClassVar[Any] = None
    task_id: str
    room_id: str
    attempt: int
    cancelled: CancelEvent
    channel: TaskChannel

    def progress(
        self,
        current: float | None = None,
        total: float | None = None,
        *,
        unit: str | None = None,
        message: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Report how far the task is: `current` of `total` units. What is left out keeps its last value.

        NaN, infinite numbers and integers above 2^53 become unknown; a `unit` is cut at 64 characters and a
        `message` at 1,000.
        `data` is a JSON object of at most 16 KiB for the job's own front-end; if it is not, it is left out,
        and the task's log says so. Raises TypeError for a `current` or `total` that is not a number.
        """
        changes: dict[str, Any] = {}
        if current is not None:
            changes["current"] = _number("current", current)
        if total is not None:
            changes["total"] = _number("total", total)
        if unit is not None:
            changes["unit"] = clean_text(str(unit)[:_MAX_UNIT])[:_MAX_UNIT]
        if message is not None:
            changes["message"] = clean_text(str(message)[:_MAX_MESSAGE])[:_MAX_MESSAGE]
        if data is not None:
            self._add_data(changes, data)
        self.channel.set_progress(changes)

    def track(
        self,
        iterable: Iterable[Item],
        total: float | None = None,
        *,
        unit: str | None = None,
        message: str | None = None,
    ) -> Iterator[Item]:
        """Yield the items, and report after each one how many are done.

        `total` is the number of items; by default that of `iterable`, if it knows.
        """
        if total is None:
            total = operator.length_hint(iterable, -1)
            total = None if total < 0 else total
        self.progress(0, total, unit=unit, message=message)
        for number, item in enumerate(iterable, 1):
            yield item
            self.channel.set_progress({"current": number})

    def tqdm(self, iterable: Iterable[Any] | None = None, **options: Any) -> Any:
        """Return a bar of tqdm with its usual options, which also reports the task's progress.

        Raises ImportError if tqdm is not installed.
        """
        return _bar_class()(self, iterable, **options)

    def log(self, text: object, level: LogLevel | str = LogLevel.INFO) -> None:
        """Write to the task's log; each line of `text` is a line of the log, cut at 8,192 characters.

        Of what waits to be reported, at most 10,000 lines or 1 MiB are kept; the oldest are dropped, and
        readers of the log see how many. Raises ValueError for an unknown `level`.
        """
        checked, now = LogLevel(level), time()
        self.channel.add([Line(now, line, checked) for line in _lines(text_of(text))])

    def submit(self, job: Any, payload: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Submit a task below this one, from its room by default; return its handle.

        The arguments are those of `Queue.submit`. It waits for the server: a coroutine awaits `submit_async`.
        What is returned may be `after` of a later submit. Raises `Conflict` once this task is cancelled, and
        RuntimeError where no worker runs the task.
        """
        raise no_server(self)

    async def submit_async(self, job: Any, payload: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Submit a task below this one as `submit` does, from a coroutine."""
        raise no_server(self)

    @property
    def client(self) -> Any:
        """A `Queue` with the rights of this task alone, for as long as it runs.

        It submits tasks below this one in its room, also in groups, and cancels them. It reads this task, its
        predecessors and what it has submitted, and the jobs and providers of its room.

        Raises RuntimeError where no worker runs the task.
        """
        raise no_server(self)

    def log_handler(self) -> "TaskLogHandler":
        """Return the handler of `logging` that writes to the log of the task in which a record is made.

        It is one for all tasks of this process, so it may be added to a logger in each task.
        """
        return _handler

    def _add_data(self, changes: dict[str, Any], data: Mapping[str, Any]) -> None:
        try:
            encoded = encode(dict(data))
            if len(encoded) > MAX_PROGRESS_DATA_BYTES:
                raise ValueError(f"it has {len(encoded):,} bytes")
        except (TypeError, ValueError, RecursionError) as error:
            fault = text_of(error)
            self.log(
                f"progress: data was left out; it must be JSON of at most 16 KiB: {fault}", LogLevel.WARNING
            )
        else:
            changes["data"] = json.loads(encoded)


def no_server(task: TaskContext) -> RuntimeError:
    """Return the error of a task that cannot submit others."""
    return RuntimeError(
        f"task {task.task_id} runs without a worker's connection to a server: submit with "
        "JobLib.submit(…, parent=task.task_id) in the server, and in a batch with one of its tasks"
    )


@cache
def _bar_class() -> type[Any]:
    """Return the class of bars that report progress. Raises ImportError if tqdm is not installed."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]  # noqa: PLC0415 - it is optional
    except ImportError as error:
        raise ImportError("task.tqdm needs tqdm: pip install tqdm, or use task.track", name="tqdm") from error

    class TaskBar(tqdm):  # type: ignore[misc]
        """A bar of tqdm, shown in the worker's terminal and not in the task's log, that reports progress."""

        def __init__(self, task: TaskContext, iterable: Any = None, **options: Any) -> None:
            self._task = task
            if options.get("file") is None:
                options["file"] = getattr(sys.stderr, "uncaptured", sys.stderr)
            super().__init__(iterable, **options)
            self._report()

        def display(self, msg: str | None = None, pos: int | None = None) -> Any:
            """Report the progress too whenever the bar is drawn."""
            self._report()
            return super().display(msg, pos)

        def close(self) -> None:
            """Report the final value too."""
            self._report()
            super().close()

        def _report(self) -> None:
            # A disabled bar counts nothing.
            if not self.disable:
                label = (self.desc or "").removesuffix(": ") or None
                self._task.progress(self.n, self.total, unit=self.unit.strip(), message=label)

    return TaskBar


class TaskLogHandler(logging.Handler):
    """Writes records of `logging` to the log of the task in which they are made, and others nowhere."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; each of its lines is a line of the log."""
        task = running_task.get()
        if task is None:
            return
        try:
            level = _level_of(record.levelno)
            task.channel.add([Line(record.created, line, level) for line in _lines(self.format(record))])
        except Exception:
            self.handleError(record)


_handler = TaskLogHandler()


def call_run(extension: Any, context: Any, task: TaskContext) -> Any:
    """Call the `run` of an extension; it gets `task` if it has an argument of this name."""
    if _takes_task(type(extension).run):
        return extension.run(context, task=task)
    return extension.run(context)


@cache
def _takes_task(run: Callable[..., Any]) -> bool:
    try:
        argument = inspect.signature(run).parameters.get("task")
    except (TypeError, ValueError):
        return False
    return argument is not None and argument.kind in {
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    }


def _number(name: str, value: Any) -> int | float | None:
    """Return a plain number, None if it is not finite; numbers of NumPy are numbers too."""
    try:
        whole = operator.index(value)
    except TypeError:
        whole = None
    if whole is not None:
        return whole if abs(whole) <= _MAX_EXACT else None
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"progress: {name} must be a number, not {value!r}")
    number = float(value)
    return number if math.isfinite(number) else None


def _lines(text: str) -> list[str]:
    return [line.rstrip("\r") for line in text.rstrip("\n").split("\n")]


def _level_of(number: int) -> LogLevel:
    levels = (
        (logging.CRITICAL, LogLevel.CRITICAL),
        (logging.ERROR, LogLevel.ERROR),
        (logging.WARNING, LogLevel.WARNING),
        (logging.INFO, LogLevel.INFO),
    )
    return next((level for least, level in levels if number >= least), LogLevel.DEBUG)
