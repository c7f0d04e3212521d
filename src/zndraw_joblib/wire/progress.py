"""The details of an attempt: its progress, its log, why it failed, and the result that it stored."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator
from pydantic_core import to_json

from zndraw_joblib.wire.bodies import RequestBody, ResponseBody
from zndraw_joblib.wire.policy import MAX_ERROR_TYPE

MAX_LOG_LINES = 1000
MAX_LINE_CHARACTERS = 8192
MAX_LINE_NUMBER = 2_000_000_000
MAX_TRACEBACK_CHARACTERS = 32 * 1024
MAX_PROGRESS_DATA_BYTES = 16 * 1024

Amount = Annotated[float, Field(allow_inf_nan=False)]


class Progress(RequestBody):
    """How far a task is: `current` of `total` units, and what it does now. Each field may be unknown.

    `data` is any JSON object of at most 16 KiB, for the job's own front-end.
    """

    current: int | Amount | None = None
    total: int | Amount | None = None
    unit: Annotated[str, Field(max_length=64)] | None = None
    message: Annotated[str, Field(max_length=1000)] | None = None
    data: dict[str, Any] | None = None

    @field_validator("data")
    @classmethod
    def _bounded(cls, data: dict[str, Any] | None) -> dict[str, Any] | None:
        if data is not None and (size := len(to_json(data))) > MAX_PROGRESS_DATA_BYTES:
            raise ValueError(f"data has {size} bytes of JSON; at most {MAX_PROGRESS_DATA_BYTES} are allowed")
        return data


class LogLevel(StrEnum):
    """The level of a line, as in Python's `logging`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogSource(StrEnum):
    """Where a line comes from: written to the log by the job, or captured from one of its streams."""

    LOG = "log"
    STDOUT = "stdout"
    STDERR = "stderr"


class LogLine(RequestBody):
    """One line of a task's log, without its line break."""

    model_config = ConfigDict(frozen=True)

    at: datetime
    text: Annotated[str, Field(max_length=MAX_LINE_CHARACTERS)]
    level: LogLevel = LogLevel.INFO
    source: LogSource = LogSource.LOG


class LogPart(RequestBody):
    """Consecutive lines of an attempt's log. `first` is the number of the first one, counted from 1.

    The server ignores lines that it has, so a part may be sent again. Numbers that it never got are lines
    that were dropped.
    """

    first: Annotated[int, Field(ge=1, le=MAX_LINE_NUMBER)]
    lines: Annotated[list[LogLine], Field(min_length=1, max_length=MAX_LOG_LINES, fail_fast=True)]


class Failure(RequestBody):
    """The exception that ended an attempt.

    - `type`: the exception's class, like ``KeyError`` or ``package.module.OwnError``.
    - `traceback`: the frames of the job's own code, the innermost last.
    - `full_traceback`: all frames, with the exceptions that caused it.
    - `notes`: what was added to the exception with ``add_note``.
    """

    type: Annotated[str, Field(max_length=MAX_ERROR_TYPE)]
    traceback: Annotated[str, Field(max_length=MAX_TRACEBACK_CHARACTERS)] = ""
    full_traceback: Annotated[str, Field(max_length=MAX_TRACEBACK_CHARACTERS)] = ""
    notes: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=20, fail_fast=True)] = (
        Field(default_factory=list)
    )


class StoredResult(ResponseBody):
    """A result that is kept as bytes: read it with ``GET /tasks/{id}/result``. `size` is in bytes."""

    content_type: str
    size: int
    etag: str
    filename: str | None = None
    expires_at: datetime | None = None
