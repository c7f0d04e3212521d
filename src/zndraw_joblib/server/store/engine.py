"""Engines of our own, for SQLite and PostgreSQL, by URL alone."""

import sqlite3
import time
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from zndraw_joblib.server.store.database import Clock, Database, Sessions, SqliteFile

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_BUSY_SECONDS = 10
_POLL_SECONDS = 0.02


class InvalidDatabaseUrl(ValueError):
    """The URL names no database that we can use."""


def open_database(url: str, clock: Clock | None = None) -> Database:
    """Return the database at ``sqlite:///file.db`` or ``postgresql://…``.

    Raises `InvalidDatabaseUrl` for anything else, without the password that may be in it.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        file = create_engine(
            parsed.set(drivername="sqlite"),
            connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
        )
        event.listen(file, "connect", _prepare_sqlite)
        return SqliteFile(file, clock)
    engine = open_engine(url)
    return Sessions(open_sessions(engine), clock, engine.dispose)


def open_engine(url: str) -> AsyncEngine:
    """Return an asynchronous engine, as a host would make it."""
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_async_engine(parsed, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        return engine
    return create_async_engine(parsed, pool_size=10, max_overflow=10)


def open_sessions(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Return the session maker of an engine."""
    return async_sessionmaker(engine, expire_on_commit=False)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidDatabaseUrl(
            "The database URL cannot be read; it must look like sqlite:///file.db or postgresql://user@host/name"
        ) from None  # the cause may quote the password
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise InvalidDatabaseUrl(
            f"There is no support for {parsed.get_backend_name()!r} databases; use sqlite:// or postgresql://"
        )
    return parsed.set(drivername=driver)


def _prepare_sqlite(connection: Any, _: object) -> None:
    cursor: sqlite3.Cursor = connection.cursor()
    # A file becomes a WAL only while nobody writes, and SQLite does not wait for that by itself.
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
