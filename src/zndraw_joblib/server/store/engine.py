"""Engines of our own, for SQLite and PostgreSQL, by URL alone."""

import sqlite3
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_BUSY_SECONDS = 10


class InvalidDatabaseUrl(ValueError):
    """The URL names no database that we can use."""


def open_engine(url: str) -> AsyncEngine:
    """Return an engine for ``sqlite:///file.db`` or ``postgresql://…``.

    Raises `InvalidDatabaseUrl` for anything else, without the password that may be in it.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidDatabaseUrl(
            "The database URL cannot be read; it must look like sqlite:///file.db or postgresql://user@host/name"
        ) from error
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise InvalidDatabaseUrl(
            f"There is no support for {parsed.get_backend_name()!r} databases; use sqlite:// or postgresql://"
        )
    parsed = parsed.set(drivername=driver)
    if driver.startswith("sqlite"):
        engine = create_async_engine(parsed, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        return engine
    return create_async_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=10)


def open_sessions(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Return the session maker of an engine."""
    return async_sessionmaker(engine, expire_on_commit=False)


def _prepare_sqlite(connection: Any, _: object) -> None:
    cursor: sqlite3.Cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
