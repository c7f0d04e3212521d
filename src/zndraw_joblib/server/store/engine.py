"""Open SQLite and PostgreSQL databases by URL."""

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from zndraw_joblib.server.store import sqlite
from zndraw_joblib.server.store.asyncpg_options import InvalidDatabaseUrl, connect_arguments
from zndraw_joblib.server.store.database import Clock, Database
from zndraw_joblib.server.store.limits import Limits
from zndraw_joblib.server.store.postgres import PostgresDatabase

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}


def open_database(url: str, clock: Clock | None = None, limits: Limits | None = None) -> Database:
    """Return the database at ``sqlite:///file.db`` or ``postgresql://…``. `limits` apply to PostgreSQL.

    Raises `InvalidDatabaseUrl` for any other URL; its text has no password.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        return sqlite.SqliteDatabase(parsed, clock)
    return PostgresDatabase(parsed, clock, limits)


def check_url(url: str) -> None:
    """Raise `InvalidDatabaseUrl` for a URL that `open_database` refuses."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        connect_arguments(parsed, Limits())


def open_engine(url: str) -> AsyncEngine:
    """Return an asynchronous engine like that of a host."""
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_async_engine(parsed, connect_args={"timeout": sqlite.BUSY_SECONDS})
        event.listen(engine.sync_engine, "connect", sqlite.prepare)
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
            "The database URL is invalid; use sqlite:///file.db or postgresql://user@host/name"
        ) from None  # the cause may contain the password
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise InvalidDatabaseUrl(
            f"Databases of type {parsed.get_backend_name()!r} are not supported; use sqlite:// or postgresql://"
        )
    return parsed.set(drivername=driver)
