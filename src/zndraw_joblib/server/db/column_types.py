"""Types of columns that behave the same on both databases."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json
from sqlalchemy import DateTime as SqlDateTime
from sqlalchemy import Dialect, Text
from sqlalchemy import Uuid as SqlUuid
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time in UTC, aware on every database. Many rows have the same times."""

    impl = SqlDateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store UTC."""
        return value if value is None else value.astimezone(UTC)

    def bind_processor(self, dialect: Dialect) -> Any:
        """Return a fast processor for SQLite."""
        return _to_sqlite if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a fast processor for SQLite, and none for asyncpg, whose times are in UTC already."""
        if dialect.name == "sqlite":
            return _of_sqlite
        return None if dialect.driver == "asyncpg" else super().result_processor(dialect, coltype)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return a time in UTC."""
        return None if value is None else _in_utc(value)


def _to_sqlite(value: datetime | None) -> str | None:
    return None if value is None else sqlite_text(value)


def sqlite_text(value: datetime) -> str:
    """Return a time as SQLAlchemy stores it on SQLite."""
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


@lru_cache(maxsize=4096)
def _of_sqlite(text: str | None) -> datetime | None:
    return None if text is None else _in_utc(datetime.fromisoformat(text))


def _in_utc(value: datetime) -> datetime:
    # SQLite stores no time zone.
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Uuid(TypeDecorator[UUID]):
    """A UUID. SQLite stores text, and the same ids are read again and again."""

    impl = SqlUuid
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a fast processor for SQLite."""
        if dialect.name == "sqlite":
            return _uuid
        return super().result_processor(dialect, coltype)


@lru_cache(maxsize=65_536)
def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)


class JsonText(TypeDecorator[Any]):
    r"""JSON stored as text, which keeps the order of keys and, unlike jsonb, accepts ``\u0000``."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Store compact JSON."""
        return None if value is None else to_json(value).decode()

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return a fast processor: drivers return text as it is."""
        return _of_json


def _of_json(text: str | None) -> Any:
    return None if text is None else from_json(text)
