"""The tables for operators: statistics, servers, cycles of their sweepers, and the audit trail."""

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import BigInteger, Column, Float, Index, Text, text
from sqlmodel import Field

from zndraw_joblib.server.db.column_types import JsonText, UtcDateTime, Uuid
from zndraw_joblib.server.db.table_base import SEQUENCE, Base, id_column, moment


def _count() -> Any:
    return Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))


def _seconds() -> Any:
    return Field(default=0.0, sa_column=Column(Float, nullable=False, server_default=text("0")))


def _json() -> Any:
    return Field(sa_column=Column(JsonText, nullable=False))


class Statistic(Base, table=True):
    """What happened to the tasks of a job in `resolution` seconds from `start`; 0 is since the first start.

    The job 0 stands for all jobs. `waiting` and `running` are histograms with the sums of their values;
    `causes` counts failed and lost attempts by error code.
    """

    __tablename__ = "joblib_statistic"
    __table_args__: ClassVar[Any] = (
        Index("ix_joblib_statistic_start", "resolution", "start"),
        {"sqlite_with_rowid": False},
    )

    resolution: int = Field(primary_key=True)
    job_id: UUID = Field(sa_column=Column(Uuid, primary_key=True))
    start: datetime = Field(sa_column=Column(UtcDateTime, primary_key=True))
    submitted: int = _count()
    completed: int = _count()
    failed: int = _count()
    cancelled: int = _count()
    retried: int = _count()
    lost: int = _count()
    waiting_seconds: float = _seconds()
    running_seconds: float = _seconds()
    waiting: list[int] = _json()
    running: list[int] = _json()
    causes: dict[str, int] = _json()


class StatisticPosition(Base, table=True):
    """Until which moment of the database's clock the statistics have read; one row, with the key 1.

    Tasks and earlier attempts after `until` have greater numbers than `task_floor` and `attempt_floor`. The
    next floors were the last numbers at `next_at`. The pass that updates the statistics locks the row.
    """

    __tablename__ = "joblib_statistic_position"

    key: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    until: datetime = moment()
    task_floor: int = _count()
    attempt_floor: int = _count()
    next_at: datetime = moment()
    next_task_floor: int = _count()
    next_attempt_floor: int = _count()


class Server(Base, table=True):
    """A server process, as its sweeper reported it last, at `seen_at` of the database's clock."""

    __tablename__ = "joblib_server"

    id: UUID = id_column()
    host: str = Field(max_length=255)
    pid: int
    version: str = Field(max_length=64)
    started_at: datetime = moment()
    seen_at: datetime = moment()
    sweeper_mode: str | None = Field(default=None, max_length=16)
    sweep_interval_seconds: float
    grace_remaining_seconds: float
    last_good_at: datetime | None = moment(nullable=True)


class SweepCycle(Base, table=True):
    """The summary of a cycle of a server's sweeper; see `SweeperCycle`."""

    __tablename__ = "joblib_sweep_cycle"
    __table_args__ = (Index(None, "at"),)

    n: int | None = Field(default=None, sa_column=Column(SEQUENCE, primary_key=True, autoincrement=True))
    server_id: UUID = Field(sa_column=Column(Uuid, nullable=False))
    at: datetime = moment()
    mode: str | None = Field(default=None, max_length=16)
    scanned: int
    stale: int
    expired: int
    released: int
    failed: int
    pruned: int
    errors: int
    elapsed: float
    held_back: bool


class AuditEntry(Base, table=True):
    """An action of an operator or of a room's user, written in the transaction of the action.

    `target` is what the action changed: the id of a task or worker, the name of a job, or a filter.
    """

    __tablename__ = "joblib_audit"
    __table_args__ = (Index(None, "at"), Index(None, "room_id", "n"))

    n: int | None = Field(default=None, sa_column=Column(SEQUENCE, primary_key=True, autoincrement=True))
    at: datetime = moment()
    actor: str
    action: str = Field(max_length=64)
    room_id: str | None = Field(default=None, max_length=128)
    target: str = Field(sa_column=Column(Text, nullable=False))
    detail: dict[str, Any] | None = Field(default=None, sa_column=Column(JsonText, nullable=True))
    request_id: str | None = Field(default=None, max_length=128)
