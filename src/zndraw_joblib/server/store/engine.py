"""Open SQLite and PostgreSQL databases by URL."""

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

from zndraw_joblib.server.store.asyncpg_options import InvalidDatabaseUrl, connect_arguments
from zndraw_joblib.server.store.database import SQLITE_LOCK, Clock, Database, Rows, Transaction, Work
from zndraw_joblib.server.store.limits import Limits
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
# How long a checkpoint may block writers while it waits for readers of an old state.
_CHECKPOINT_PATIENCE_MS = 100


class SqliteDatabase(Database):
    """A SQLite database. A short transaction runs on the event loop, any other as a whole in a thread.

    aiosqlite changes threads for every statement, which costs more than the statements. One change for a
    whole batch still costs as much as the batch, because both threads compete for the interpreter.
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
        """True."""
        return True

    def _in_thread(self, kind: str, run: Callable[[], Result]) -> Awaitable[Result]:
        # Threads start on first use, because an app may start again after a stop.
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
        """Close connections and threads."""
        for kind in list(self._threads):
            self._threads.pop(kind).shutdown(wait=True)
        self._engine.dispose()
        if self._quick is not None:
            self._quick.dispose()

    async def _read(self, work: Work[Result], is_short: bool) -> Result:
        def run(engine: Engine = self._engine) -> Result:
            with engine.connect() as connection:
                return _run_without_loop(work(_transaction(connection, self._clock)))

        if is_short and self._quick is not None and self._is_quick_free.acquire(blocking=False):
            try:
                return run(self._quick)
            except OperationalError:
                pass  # this connection does not wait for another process that opens or recovers the file
            finally:
                self._is_quick_free.release()
        return await self._in_thread(self._reader, run)

    async def _write(
        self, work: Work[Result], is_short: bool, lock_seconds: float | None = None
    ) -> tuple[Result, Transaction]:
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
        tx = _transaction(connection, self._clock)
        result = _run_without_loop(work(tx))
        connection.commit()
        return result, tx

    def _count_commit(self) -> None:
        self._commits += 1
        if self._commits % _COMMITS_PER_CHECKPOINT == 0:
            # A checkpoint waits for the disk, so it runs in a thread.
            self._in_thread("writer", self._checkpoint)

    def _checkpoint(self) -> None:
        """Copy the write-ahead log into the file. A long log is copied to its end, so that it starts again.

        Under constant writes the end is only reached by blocking writers for a moment.
        """
        with self._engine.connect() as connection:
            _, pages, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
            if pages > _LONG_LOG_PAGES:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={_CHECKPOINT_PATIENCE_MS}")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(FULL)")
                connection.exec_driver_sql(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")


def _has_lock(connection: Connection) -> bool:
    """Take the write lock and return True, unless another connection holds it."""
    try:
        connection.exec_driver_sql(SQLITE_LOCK)
    except OperationalError:
        return False
    return True


def open_database(url: str, clock: Clock | None = None, limits: Limits | None = None) -> Database:
    """Return the database at ``sqlite:///file.db`` or ``postgresql://…``. `limits` apply to PostgreSQL.

    Raises `InvalidDatabaseUrl` for any other URL; its text has no password.
    """
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        file = _open_sqlite(parsed, _BUSY_SECONDS)
        if parsed.database in {None, "", ":memory:"}:
            return SqliteDatabase(file, clock)
        quick = _open_sqlite(parsed, 0, poolclass=StaticPool)
        event.listen(quick, "connect", _leave_checkpoints)
        return SqliteDatabase(file, clock, quick)
    return PostgresDatabase(parsed, clock, limits)


def check_url(url: str) -> None:
    """Raise `InvalidDatabaseUrl` for a URL that `open_database` refuses."""
    parsed = _parse(url)
    if parsed.get_backend_name() != "sqlite":
        connect_arguments(parsed, Limits())


def _open_sqlite(url: URL, seconds: float, **options: Any) -> Engine:
    arguments = {"timeout": seconds, "check_same_thread": False}
    engine = create_engine(url.set(drivername="sqlite"), connect_args=arguments, **options)
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _leave_checkpoints(connection: Any, _: object) -> None:
    connection.execute("PRAGMA wal_autocheckpoint=0")


def open_engine(url: str) -> AsyncEngine:
    """Return an asynchronous engine like that of a host."""
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
            "The database URL is invalid; use sqlite:///file.db or postgresql://user@host/name"
        ) from None  # the cause may contain the password
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise InvalidDatabaseUrl(
            f"Databases of type {parsed.get_backend_name()!r} are not supported; use sqlite:// or postgresql://"
        )
    return parsed.set(drivername=driver)


def _prepare_sqlite(connection: Any, _: object) -> None:
    cursor: sqlite3.Cursor = connection.cursor()
    # The journal mode changes only while no connection writes, and SQLite does not wait for that.
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


def _transaction(connection: Connection, clock: Clock | None) -> Transaction:
    async def execute(statement: Executable, parameters: Any = None) -> Rows:
        return connection.execute(statement, parameters)

    return Transaction(execute, is_sqlite=True, clock=clock)


def _run_without_loop(work: Awaitable[Result]) -> Result:
    """Run a coroutine to its end without an event loop. All its statements are synchronous."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise RuntimeError("A function in a transaction may await nothing except the database")
