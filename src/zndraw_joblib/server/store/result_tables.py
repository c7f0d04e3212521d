"""The tables of task results, whose content is in a `ContentStore`, and of the database's result backend."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Text, text
from sqlmodel import Field

from zndraw_joblib.server.store.table_base import SEQUENCE, Base, moment

_HAS_CONTENT = text("content_key IS NOT NULL")
_IS_OPEN = text("check_at IS NOT NULL")
_IS_LOOSE = text("task_seq IS NULL AND content_key IS NOT NULL")


class TaskResult(Base, table=True):
    """The stored result of a task; or, without `task_seq`, content that is being uploaded or to be deleted.

    The content is `size` bytes under `content_key`, which is null after the content was deleted. The sweeper
    deletes the content after `expires_at`; a running upload postpones this time. At `check_at` the sweeper
    checks whether the attempt has completed; `check_at` is null once it has. A transaction that sets
    `task_seq` holds the lock of the task. The bytes count for `user_id`, who submitted the task.
    """

    __tablename__ = "joblib_task_result"
    __table_args__ = (
        Index(
            "ix_joblib_task_result_expiring",
            "expires_at",
            sqlite_where=_HAS_CONTENT,
            postgresql_where=_HAS_CONTENT,
        ),
        Index("ix_joblib_task_result_check", "check_at", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
        Index("ix_joblib_task_result_loose", "n", sqlite_where=_IS_LOOSE, postgresql_where=_IS_LOOSE),
    )

    n: int | None = Field(default=None, sa_column=Column(SEQUENCE, primary_key=True, autoincrement=True))
    task_seq: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True, unique=True))
    attempt: int
    content_key: str | None = Field(default=None, max_length=64)
    size: int = Field(sa_column=Column(BigInteger, nullable=False))
    content_type: str = Field(max_length=255)
    etag: str = Field(max_length=64)
    filename: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    expires_at: datetime = moment()
    check_at: datetime | None = moment(nullable=True)
    user_id: str | None = Field(default=None, sa_column=Column(Text, nullable=True))


class TaskResultTotal(Base, table=True):
    """The sum of the sizes of all `TaskResult` with content, in one row."""

    __tablename__ = "joblib_task_result_total"
    __table_args__ = (CheckConstraint("size >= 0", "size_counts"),)

    id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    size: int = Field(sa_column=Column(BigInteger, nullable=False))


class TaskResultShare(Base, table=True):
    """The sum of the sizes of all `TaskResult` with content that count for a user."""

    __tablename__ = "joblib_task_result_share"
    __table_args__ = (CheckConstraint("size >= 0", "size_counts"),)

    user_id: str = Field(sa_column=Column(Text, primary_key=True))
    size: int = Field(sa_column=Column(BigInteger, nullable=False))


class Result(Base, table=True):
    """A value of the database's result backend: bytes in parts or, without `size`, a lock."""

    __tablename__ = "joblib_result"
    __table_args__ = (Index(None, "expires_at"),)

    n: int | None = Field(default=None, sa_column=Column(SEQUENCE, primary_key=True, autoincrement=True))
    key: str = Field(sa_column=Column(Text, nullable=False, unique=True))
    size: int | None = Field(default=None, sa_column=Column(BigInteger, nullable=True))
    expires_at: datetime = moment()


class ResultPart(Base, table=True):
    """A part of the bytes of a `Result`, ordered by `part`."""

    __tablename__ = "joblib_result_part"

    result_n: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    part: int = Field(primary_key=True)
    data: bytes
