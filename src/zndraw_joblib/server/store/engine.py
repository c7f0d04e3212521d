"""Databases of our own, SQLite and PostgreSQL, by URL alone."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import StaticPool

from zndraw_joblib.server.store.database import (
    SQLITE_LOCK,
    Clock,
    Database,
    Rows,
    Transaction,
    Work,
)
from zndraw_joblib.server.store.postgres import PostgresDatabase

Result = TypeVar("Result")
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}
_BUSY_SECONDS = 10
_POLL_SECONDS = 0.02
_READERS = 4
_COMMITS_PER_CHECKPOINT = 200
_LONG_LOG_PAGES = 2000  # 8 MB
# For how long a reader that looks at an old state may keep writers out.
_CHECKPOINT_PATIENCE_MS = 100


class InvalidDatabaseUrl(ValueError):
    """The URL names no database that we can use."""


class SqliteDatabase(Database):
    """A SQLite database of our own: a transaction runs as a whole, at once if it is short, else in a thread.

    A trip to a thread for each statement, as aiosqlite makes it, costs more than the statements. One for a
    whole batch still costs as much as the batch: both threads fight for the interpreter.
    """

    def __init__(self, engine: Engine, clock: Clock | None = None, quick: Engine | None = None) -> None:
        super().__init__(clock)
        self._engine = engine
        self._quick = quick
        self._is_quick_free = threading.Lock()
        self._commits = 0
        self._threads: dict[str, ThreadPoolExecutor] = {}
        is_in_memory = engine.url.database in {None, "", ":memory:"}
        self._reader = "writer" if is_in_memory else "reader"

    @property
    def is_sqlite(self) -> bool:
        """Yes."""
        return True

    def _in_thread(self, kind: str, run: Callable[[], Result]) -> Awaitable[Result]:
        # Made when they are needed: an app may start again after a stop.
        threads = self._threads.get(kind)
        if threads is None:
            threads = ThreadPoolExecutor(_READERS if kind == "reader" else 1, f"joblib-{kind}")
            self._threads[kind] = threads
        return asyncio.get_running_loop().run_in_executor(threads, run)

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a plain connection and commit."""

        def run() -> Result:
            with self._engine.begin() as connection:
                return work(connection)

        return await self._in_thread("writer", run)

    async def close(self) -> None:
        """Let go of connections and threads."""
        for kind in list(self._threads):
            self._threads.pop(kind).shutdown(wait=True)
        self._engine.dispose()
        if self._quick is not None:
            self._quick.dispose()

    async def _read(self, work: Work[Result], is_short: bool) -> Result:
        def run(engine: Engine = self._engine) -> Result:
            with engine.connect() as connection:
                return _drive(work(_at_once(connection, self._clock)))

        if is_short and self._quick is not None and self._is_quick_free.acquire(blocking=False):
            try:
                return run(self._quick)
            except OperationalError:
                pass  # it does not wait: another process opens or recovers the file just now
            finally:
                self._is_quick_free.release()
        return await self._in_thread(self._reader, run)

    async def _write(self, work: Work[Result], is_short: bool) -> tuple[Result, Transaction]:
        if is_short and self._quick is not None and self._is_quick_free.acquire(blocking=False):
            try:
                with self._quick.connect() as connection:
                    if _has_lock(connection):
                        self._count_commit()
                        return self._run(connection, work)
            finally:
                self._is_quick_free.release()

        def run() -> tuple[Result, Transaction]:
            with self._engine.connect() as connection:
                connection.exec_driver_sql(SQLITE_LOCK)
                return self._run(connection, work)

        return await self._in_thread("writer", run)

    def _run(self, connection: Connection, work: Work[Result]) -> tuple[Result, Transaction]:
        tx = _at_once(connection, self._clock)
        result = _drive(work(tx))
        connection.commit()
        return result, tx

    def _count_commit(self) -> None:
        self._commits += 1
        if self._commits % _COMMITS_PER_CHECKPOINT == 0:
            # It waits for the disk, and so is nothing for the event loop's thread.
            self._in_thread("writer", self._checkpoint)

    def _checkpoint(self) -> None:
        """Copy the log of writes into the file; a long one to its end, so that it begins anew.

        While somebody writes all the time the end is never reached without keeping writers out. Those
        come here too then, and wait for the disk where the event loop does not.
        """
        with self._engine.connect() as connection:
            _, pages, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
            if pages > _LONG_LOG_PAGES:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={_CHECKPOINT_PATIENCE_MS}")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(FULL)")
                connection.exec_driver_sql(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")


def _has_lock(connection: Connection) -> bool:
    """Take the lock of writers, unless somebody has it just now."""
    try:
        connection.exec_driver_sql(SQLITE_LOCK)
    except OperationalError:
        return False
    return True


def open_database(url: str, clock: Clock | None = None) -> Database:
    """Return the database at ``sqlite:///file.db`` or ``postgresql://…``.

    Raises `InvalidDatabaseUrl` for anything else, without the password that may be in it.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        file = _open_sqlite(parsed, _BUSY_SECONDS)
        if parsed.database in {None, "", ":memory:"}:
            return SqliteDatabase(file, clock)
        quick = _open_sqlite(parsed, 0, poolclass=StaticPool)
        event.listen(quick, "connect", _leave_checkpoints)
        return SqliteDatabase(file, clock, quick)
    return PostgresDatabase(parsed, clock)


def _open_sqlite(url: URL, seconds: float, **options: Any) -> Engine:
    arguments = {"timeout": seconds, "check_same_thread": False}
    engine = create_engine(url.set(drivername="sqlite"), connect_args=arguments, **options)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _leave_checkpoints(connection: Any, _: object) -> None:
    connection.execute("PRAGMA wal_autocheckpoint=0")


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


def _at_once(connection: Connection, clock: Clock | None) -> Transaction:
    async def execute(statement: Executable, parameters: Any = None) -> Rows:
        return connection.execute(statement, parameters)

    return Transaction(execute, is_sqlite=True, clock=clock)


def _drive(work: Awaitable[Result]) -> Result:
    """Run a coroutine that awaits nothing but statements which are done at once."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise RuntimeError("inside a transaction only the database may be awaited")
