"""Configure the log of a process: its level, its format, and the ids that each record carries."""

import asyncio
import logging
import re
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from zndraw_joblib.contract.task_context import running_task
from zndraw_joblib.contract.terminal import clean_text
from zndraw_joblib.contract.traces import current_ids

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
_TASK_LOG = "zndraw_joblib.worker.task_log"
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


class LogLevel(StrEnum):
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
    found = {field: getattr(task, name, None) for field, name in _TASK_FIELDS.items()}
    return {field: str(value) for field, value in found.items() if value is not None}


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

    The traceback of an unexpected error is a field of the line; on a terminal it follows on lines of its own.
    """

    def __init__(self, form: str, *, is_terminal: bool) -> None:
        super().__init__(form)
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        line, _, rest = super().format(record).partition("\n")
        if not rest:
            return line
        return f"{line}\n{clean_text(rest)}" if self._is_terminal else f"{line} exception={_escaped(rest)}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _escaped(record.message.rstrip("\n"))
        for name in _IDS:
            value = record.__dict__.get(name)
            if value is not None and str(value) not in record.message:
                record.message += f" {name}={_escaped(str(value))}"
        return super().formatMessage(record)


def _escaped(text: str) -> str:
    """Return text without line ends and without commands to a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log level of this package, the format, and whether uvicorn logs requests.

    With `quiet`, a worker does not log the start and the end of each task, only failures.
    """

    level: LogLevel = LogLevel.WARNING
    format: LogFormat = LogFormat.TEXT
    access_log: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "LogConfig":
        """Return the configuration that another process sent as JSON."""
        return cls(
            LogLevel(values["level"]), LogFormat(values["format"]), values["access_log"], values["quiet"]
        )

    def apply(self, *, with_pid: bool = False) -> None:
        """Log this package from `level` on, and all libraries from WARNING on, to standard error.

        A line of text has the process id only `with_pid`.
        """
        global _applied  # noqa: PLW0603 - it concerns the process
        _applied = self
        handler = logging.StreamHandler()
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
            logging.getLogger(_TASK_LOG).setLevel(
                max(logging.WARNING, logging.getLevelNamesMapping()[self.level.upper()])
            )
        if self.access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)


_applied: LogConfig | None = None


def applied_config() -> LogConfig | None:
    """Return the configuration that this process applied, for its child processes; None if it has none."""
    return _applied
