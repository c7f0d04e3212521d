"""What all tables share: their metadata, which is separate from the host's, and columns of common types."""

from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, ClassVar
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from zndraw_joblib.server.db.column_types import UtcDateTime, Uuid


class Named:
    """A row with a full name that is no column."""

    @property
    def full_name(self) -> str:
        """Return ``room:category:name``."""
        return _full_name(self)


class Beating:
    """A row of what sends heartbeats."""

    def is_alive(self: Any, timeout: timedelta) -> bool:
        """Return whether the last heartbeat is at most `timeout` ago."""
        return bool(datetime.now(UTC) - self.last_heartbeat <= timeout)


class ComputedFullName:
    """A full name that the database computes; a row that is not saved has it too."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __get__(self, row: Any, table: type[Any]) -> Any:
        if row is None:
            return self._column
        name = self._column.__get__(row, table)
        return _full_name(row) if name is None else name

    def __set__(self, row: Any, name: str) -> None:
        self._column.__set__(row, name)


def _full_name(row: Any) -> str:
    return f"{row.room_id}:{row.category}:{row.name}"


SEQUENCE = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Base(SQLModel, registry=registry(metadata=metadata)):
    """The base class of all tables."""

    metadata: ClassVar[MetaData] = metadata
    __table__: ClassVar[Table]

    def __init__(self, **values: Any) -> None:
        """Build a row. Raises TypeError for a field that the table does not have."""
        if not values.keys() <= type(self).model_fields.keys():
            old = import_module("zndraw_joblib.compat_0_1.rows")
            values = old.with_current_names(type(self), values)
        super().__init__(**values)


def id_column() -> Any:
    """Return the column of a UUID that is the primary key."""
    return Field(default_factory=uuid4, sa_column=Column(Uuid, primary_key=True))


def moment(*, nullable: bool = False) -> Any:
    """Return a column of a point in time: null by default, or the time when a host's code builds the row."""
    column = Column(UtcDateTime, nullable=nullable)
    return Field(default_factory=lambda: None if nullable else datetime.now(UTC), sa_column=column)


def optional_text() -> Any:
    """Return a column of text or null, without a limit.

    PostgreSQL takes rows with limited text for wide ones, and a table of them for a short one.
    """
    return Field(default=None, sa_column=Column(Text, nullable=True))
