"""Open SQLite and PostgreSQL databases by URL, and detect connection poolers that the queue cannot use."""

import asyncio
import logging
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from zndraw_joblib.server.db import compiled, sqlite
from zndraw_joblib.server.db.asyncpg_options import InvalidDatabaseUrl, connect_arguments, parse_url, prepare
from zndraw_joblib.server.db.database import Clock, Database
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.db.limits import Limits

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0
# A busy pooler may give two statements different sessions or, by chance, the same one.
_TRIES = 5


class TransactionPooling(RuntimeError):
    """The database is behind a connection pooler in transaction mode."""


async def check_sessions(database: Database) -> None:
    """Raise `TransactionPooling` if two connections share sessions of PostgreSQL."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            is_shared = await _share_sessions(database)
    except Exception as error:
        # The next use of the database reports the cause.
        logger.debug("The sessions of the database were not checked: %r", error)
        return
    if is_shared:
        raise TransactionPooling(
            "The database is behind a connection pooler in transaction mode, which gives each "
            "transaction another session. The queue needs sessions, for LISTEN and for its time limits. "
            "Connect to PostgreSQL directly, or set pool_mode = session for this database in PgBouncer"
        )


async def _share_sessions(database: Database) -> bool:
    open_connection = await database.pubsub_connection()
    if open_connection is None:
        return False
    from zndraw_joblib.server.db.postgres import NotifyConnection  # noqa: PLC0415 - see `open_database`

    async with open_connection() as one, open_connection() as two:
        if not isinstance(one, NotifyConnection) or not isinstance(two, NotifyConnection):
            return False
        mark = await one.mark_session()
        for _ in range(_TRIES):
            if await two.has_mark(mark) or not await one.has_mark(mark):
                return True
    return False


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
    if not compiled.is_usable():
        logger.warning("This version of SQLAlchemy is unknown: statements take about twice as long")
        return EngineDatabase(parsed, clock, limits)
    if parsed.get_backend_name() == "sqlite":
        return sqlite.SqliteDatabase(parsed, clock)
    # A server on SQLite does not load asyncpg.
    from zndraw_joblib.server.db.postgres import PostgresDatabase  # noqa: PLC0415

    return PostgresDatabase(parsed, clock, limits)


class EngineDatabase(SessionDatabase):
    """A database of the server, used through SQLAlchemy as that of a host: with its public API alone."""

    def __init__(self, url: URL, clock: Clock | None = None, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._engine = _limited_engine(url, limits)
        super().__init__(open_sessions(self._engine), clock, limits)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


def database_engine(url: str, limits: Limits) -> AsyncEngine:
    """Return the engine of a database of the server. Raises `InvalidDatabaseUrl`."""
    return _limited_engine(_parse(url), limits)


def _limited_engine(url: URL, limits: Limits) -> AsyncEngine:
    if url.get_backend_name() == "sqlite":
        return open_engine(url.render_as_string(hide_password=False))
    import asyncpg  # noqa: PLC0415 - see `open_database`

    arguments = connect_arguments(url, limits)

    async def connect() -> Any:
        connection = await asyncpg.connect(**arguments)
        await prepare(connection, limits)
        return connection

    return create_async_engine("postgresql+asyncpg://", async_creator=connect, pool_size=10, max_overflow=10)


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
        parsed = parse_url(url)
    except InvalidDatabaseUrl:
        raise
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
