"""The tables of the details of attempts: progress, log and failure. Most attempts have no row."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, Text, text
from sqlmodel import Field

from zndraw_joblib.server.store.column_types import JsonText
from zndraw_joblib.server.store.table_base import Base, moment


def _task() -> Any:
    return Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))


def _number() -> Any:
    return Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))


def _count() -> Any:
    return Field(default=0, sa_column=Column(Integer, nullable=False, server_default=text("0")))


def _json() -> Any:
    return Field(default=None, sa_column=Column(JsonText, nullable=True))


class AttemptDetail(Base, table=True):
    """The progress of an attempt, the counts of its log, and the failure that ended it.

    `log_last` is the number of the log's last line. `log_lines` and `log_bytes` count what `TaskLogPart` has.
    `failure` is a `Failure` as JSON without its full traceback. Writers hold the lock of the task.
    """

    __tablename__ = "joblib_attempt_detail"

    task_seq: int = _task()
    attempt: int = _number()
    progress: dict[str, Any] | None = _json()
    progress_at: datetime | None = moment(nullable=True)
    log_last: int = _count()
    log_lines: int = _count()
    log_bytes: int = _count()
    failure: dict[str, Any] | None = _json()
    full_traceback: str | None = _json()


class TaskLogPart(Base, table=True):
    """Consecutive lines of an attempt's log, with the numbers `first` to `last`.

    `lines` is a JSON list of `size` bytes.
    """

    __tablename__ = "joblib_task_log"

    task_seq: int = _task()
    attempt: int = _number()
    first: int = _number()
    last: int
    size: int
    lines: str = Field(sa_column=Column(Text, nullable=False))


class UnnamedTask(Base, table=True):
    """An attempt of a held task that its worker's heartbeats have not named since `unnamed_since`.

    Rows are rare: they are deleted when the worker names the task again, or the attempt has ended.
    """

    __tablename__ = "joblib_unnamed_task"

    task_seq: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int
    unnamed_since: datetime = moment()
