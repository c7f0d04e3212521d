"""Logs of a process: format, level, ids of records, repeated failures; safe text; pauses of retries."""

import asyncio
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TextIO, TypeVar
from weakref import WeakKeyDictionary

from zndraw_joblib.jobs.task_context import running_task
from zndraw_joblib.jobs.traces import current_ids
from zndraw_joblib.wire.names import short_name

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Control characters, and those that change the direction or the end of a line.
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def clean_text(text: str) -> str:
    """Return text with its line breaks and tabs, each control character as a space."""
    return _CONTROL_CHARACTERS.sub(" ", _ESCAPE.sub("", text.replace("\r\n", "\n")))


def clean_line(text: str) -> str:
    """Return text as one line with its tabs, without characters that are not printable."""
    return "".join(
        letter if letter.isprintable() or letter == "\t" else " " for letter in _ESCAPE.sub("", text)
    )


def one_line(text: str) -> str:
    """Return text as one line, with one space for each run of white space."""
    return " ".join(clean_line(text).split())


def escape_json(text: str) -> str:
    """Return JSON that means the same, in which every control character of a text is an escape."""
    return _CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def duration_text(seconds: float) -> str:
    """Return a duration like 0.42 ms, 350 ms, 2.45 s or 3,600 s."""
    milliseconds = seconds * 1000
    if milliseconds < 999.5:
        digits = 0 if milliseconds >= 10 else 1 if milliseconds >= 1 else 2
        return f"{round(milliseconds, digits):g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


# Configure the log of a process: its level, its format, and the ids that each record carries.

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_TEXT_WITH_PID = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
_JSON = ("levelname", "name", "message", "process")
_JSON_NAMES = {
    "levelname": "level",
    "name": "logger",
    "process": "pid",
    "exc_info": "exception",
    "stack_info": "stack",
}
TASK_LOG = "zndraw_joblib.worker.task_log"
# An id of a task begins with its time; this many characters of it have 12 random bits in addition.
ID_CHARACTERS = 18
# uvicorn's own copy of the message.
_LEFT_OUT = "color_message"
# What a terminal or a reader of the file takes as the end of a line, or as a command.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# The fields of records that lines of text have, too.
_IDS = ("request_id", "task_id", "worker_id", "job", "trace_id")
# The fields of a record that name a task, and the attributes of a task.
_TASK_FIELDS = {"task_id": "task_id", "worker_id": "worker_id", "job": "job_name"}

_NONE: Mapping[str, str] = {}
# What `log_fields` sets, for code that each request pays for.
fields_here: ContextVar[Mapping[str, str]] = ContextVar("zndraw_joblib.log_fields", default=_NONE)
Result = TypeVar("Result")


class LogThreshold(StrEnum):
    """The least severe level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a record is written: as a line of text, or as a JSON object on one line."""

    TEXT = "text"
    JSON = "json"


@contextmanager
def log_fields(**added: str) -> Iterator[None]:
    """Add fields to the records of a block, such as ``task_id``, also in tasks of asyncio that it starts."""
    token = fields_here.set({**fields_here.get(), **added})
    try:
        yield
    finally:
        fields_here.reset(token)


def create_shared_task(work: Coroutine[Any, Any, Result], name: str | None = None) -> asyncio.Task[Result]:
    """Return a task of asyncio that works for several requests: its records have no ids of the first one."""
    token = fields_here.set(_NONE)
    try:
        return asyncio.create_task(work, name=name)
    finally:
        fields_here.reset(token)


def task_fields(task: Any) -> dict[str, str]:
    """Return the fields that name a task, its worker and its job, for `extra` of a record."""
    values = {field: getattr(task, name, None) for field, name in _TASK_FIELDS.items()}
    return {field: str(value) for field, value in values.items() if value is not None}


class LogFields(logging.Filter):
    """Adds the ids of the request and the task to each record: a filter for a handler.

    The attributes are ``request_id``, ``task_id``, ``worker_id`` and ``job``, and ``trace_id`` and
    ``span_id`` in a span of OpenTelemetry; a record has those that are known.
    Those that its call names in `extra` stay.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, and return true."""
        task = running_task.get()
        added = {**current_ids(), **fields_here.get(), **({} if task is None else task_fields(task))}
        for name, value in added.items():
            record.__dict__.setdefault(name, value)
        return True


class _TextFormatter(logging.Formatter):
    """Writes a record as one line, with the ids that its message does not name.

    A line about a task of a worker is short: it has no logger, and the beginning of the task's id alone.
    The traceback of an unexpected error is a field of the line; on a terminal it follows on lines of its own.
    """

    def __init__(self, form: str, *, is_terminal: bool) -> None:
        super().__init__(form)
        self._is_terminal = is_terminal
        self._form_of_tasks = form.replace(" %(name)s:", "")

    def format(self, record: logging.LogRecord) -> str:
        line, _, rest = super().format(record).partition("\n")
        if not rest:
            return line
        return f"{line}\n{clean_text(rest)}" if self._is_terminal else f"{line} exception={_escaped(rest)}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _escaped(record.message.rstrip("\n"))
        if record.name == TASK_LOG:
            return self._form_of_tasks % record.__dict__
        for name in _IDS:
            value = record.__dict__.get(name)
            if value is not None and str(value) not in record.message:
                record.message += f" {name}={_escaped(str(value))}"
        return super().formatMessage(record)


def _escaped(text: str) -> str:
    """Return text without line ends and without commands to a terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _json_formatter() -> logging.Formatter:
    # Imported here, because most processes write text.
    from pythonjsonlogger.core import RESERVED_ATTRS  # noqa: PLC0415
    from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415

    class JsonLines(JsonFormatter):
        def add_fields(
            self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
        ) -> None:
            time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
            log_data["time"] = time.replace("+00:00", "Z")
            super().add_fields(log_data, record, message_dict)

    return JsonLines(_JSON, rename_fields=_JSON_NAMES, reserved_attrs=[*RESERVED_ATTRS, _LEFT_OUT])


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to `sys.stderr` as it is at each record: a progress bar replaces it, to stay below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.stream = sys.stderr
        super().emit(record)


# Completed tasks that took less time than this are counted, for this time.
_SHORT_SECONDS = _COUNT_SECONDS = 1.0


class _TaskCounter(_StderrHandler):
    """Writes one line a second about short tasks that complete: a task, or how many of a job.

    Longer tasks, failures and all other records have a line each.
    """

    def __init__(self) -> None:
        super().__init__()
        self._until = 0.0
        # For each job the last record, and how long all its tasks took.
        self._counted: dict[str, tuple[logging.LogRecord, list[float]]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it for the next line. The caller holds the lock of the handler."""
        seconds = record.__dict__.get("seconds", _SHORT_SECONDS)
        now = time.monotonic()
        if record.name != TASK_LOG or record.levelno != logging.INFO or seconds >= _SHORT_SECONDS:
            super().emit(record)
        elif now >= self._until:
            self._until = now + _COUNT_SECONDS
            super().emit(record)
        else:
            if not self._counted:
                timer = threading.Timer(self._until - now, self._write_counts)
                timer.daemon = True
                timer.start()
            job = record.__dict__.get("job", "")
            times = self._counted[job][1] if job in self._counted else []
            times.append(seconds)
            self._counted[job] = record, times

    def close(self) -> None:
        """Write what was counted."""
        self._write_counts()
        super().close()

    def _write_counts(self) -> None:
        with self.lock or threading.RLock():
            counted, self._counted = self._counted, {}
            self._until = time.monotonic() + _COUNT_SECONDS
            for job, (record, times) in counted.items():
                if len(times) > 1:
                    mean = duration_text(sum(times) / len(times))
                    record.msg = f"{len(times):,} tasks of %s completed, on average in {mean}"
                    record.args = (short_name(job),)
                super().emit(record)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log level of this package, the format, and whether uvicorn logs requests.

    With `quiet`, a worker does not log the end of each task, only failures.
    """

    level: LogThreshold = LogThreshold.WARNING
    format: LogFormat = LogFormat.TEXT
    access_log: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "LogConfig":
        """Return the configuration that another process sent as JSON."""
        return cls(
            LogThreshold(values["level"]), LogFormat(values["format"]), values["access_log"], values["quiet"]
        )

    def apply(self, *, with_pid: bool = False) -> None:
        """Log this package from `level` on, and all libraries from WARNING on, to standard error.

        A line of text has the process id only `with_pid`.
        """
        global _applied  # noqa: PLW0603 - it concerns the process
        _applied = self
        handler = _StderrHandler() if self.format == LogFormat.JSON else _TaskCounter()
        handler.addFilter(LogFields())
        if self.format == LogFormat.JSON:
            handler.setFormatter(_json_formatter())
        else:
            form, is_terminal = _TEXT_WITH_PID if with_pid else _TEXT, handler.stream.isatty()
            handler.setFormatter(_TextFormatter(form, is_terminal=is_terminal))
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
        logging.captureWarnings(capture=True)
        logging.getLogger("zndraw_joblib").setLevel(self.level.upper())
        if self.quiet:
            logging.getLogger(TASK_LOG).setLevel(
                max(logging.WARNING, logging.getLevelNamesMapping()[self.level.upper()])
            )
        if self.access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)


_applied: LogConfig | None = None


def applied_config() -> LogConfig | None:
    """Return the configuration that this process applied, for its child processes; None if it has none."""
    return _applied


# Log an expected failure once, and then how often it was repeated.

_SECONDS = 10.0


class RepeatedFailure:
    """Logs a failure that may come with each request: the first, then one line each 10 s with their number.

    The text of a later line is that of the last failure. Use it in one event loop at a time.
    """

    def __init__(self, logger: logging.Logger, seconds: float = _SECONDS) -> None:
        self._logger = logger
        self._seconds = seconds
        self._text = ""
        self._count = 0
        self._until = 0.0

    def log(self, text: str, **fields: str) -> None:
        """Log a failure now, with fields of its record, or count it for the next line. Call it in a loop."""
        # The count of an interval ends with the event loop that began it.
        if time.monotonic() > self._until + self._seconds:
            self._logger.error("%s", text, extra=fields)
            self._open()
        else:
            self._text = text
            self._count += 1

    def _open(self) -> None:
        self._count = 0
        self._until = time.monotonic() + self._seconds
        asyncio.get_running_loop().call_later(self._seconds, self._close)

    def _close(self) -> None:
        if self._count:
            self._logger.error("%s (%d times in %g s)", self._text, self._count, self._seconds)
            self._open()
        else:
            self._until = 0.0


# Expected failures of repeated work, by the event loop and the name of the logger.
_failed_work: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, RepeatedFailure]] = WeakKeyDictionary()


def log_failed_work(logger: logging.Logger, error: Exception, text: str, **fields: str) -> None:
    """Log that repeated work failed: one line, with a traceback if `error` is unexpected.

    Expected are an unavailable database or service, and a time limit. Of these a logger logs the first, then
    one line each 10 s with their number. `fields` are fields of the record of the first.
    """
    if isinstance(error, OSError | TimeoutError):
        # The work is repeated by itself: what a client has to do about its request is left out.
        reason = str(error).partition("\n")[0].partition(". The request ")[0] or type(error).__name__
        of_loop = _failed_work.setdefault(asyncio.get_running_loop(), {})
        of_loop.setdefault(logger.name, RepeatedFailure(logger)).log(f"{text}: {reason}", **fields)
    else:
        logger.error("%s", text, exc_info=error, extra=fields)


# Environment variables with the prefix of the settings: which of them no setting has.

PREFIX = "ZNDRAW_JOBLIB_"
# What clients and workers read; a server in the same environment reads its settings too.
CLIENT_NAMES = frozenset({"URL", "TOKEN", "CREDENTIALS", "LOG_FORMAT", "RUN_SPANS", "WORKER_NAME"})


def unknown_variables(settings: Collection[str]) -> dict[str, str | None]:
    """Return the variables that are no setting, each with the nearest known name or None."""
    names = {name.upper() for name in settings} | CLIENT_NAMES
    variables = sorted(name for name in os.environ if name.upper().startswith(PREFIX))
    return {
        name: _nearest(name, names) for name in variables if name.upper().removeprefix(PREFIX) not in names
    }


def describe(name: str, nearest: str | None) -> str:
    """Return what is wrong with a variable, and what to do."""
    meant = f"Did you mean {nearest}?" if nearest else "Remove it, or see the list of settings"
    return f"The variable {name} has no effect, because there is no such setting. {meant}"


def _nearest(name: str, names: Collection[str]) -> str | None:
    matches = get_close_matches(name.upper().removeprefix(PREFIX), names, n=1, cutoff=0.72)
    return PREFIX + matches[0] if matches else None


# Growing pauses between attempts: the one backoff of the SDK, the server and the command line.


class ExponentialBackoff:
    """Pauses in seconds: `first`, then `growth` times the one before, `longest` at most.

    Each pause is shortened at random by up to the share `jitter`, so that many clients do not retry at
    the same moment.
    """

    def __init__(self, first: float, longest: float, jitter: float = 0.3, growth: float = 2.0) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._growth = growth
        self.failures = 0

    def next(self) -> float:
        """Count one more failure and return the pause that follows it."""
        pause = min(self._longest, self._first * self._growth ** min(self.failures, 60))
        self.failures += 1
        return pause * (1 - self._jitter * random.random())  # noqa: S311 - no secret depends on it

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.failures = 0
