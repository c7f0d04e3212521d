"""SQLite databases: SQLAlchemy compiles each statement once, and the driver runs it."""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast
from weakref import WeakSet

from sqlalchemy import Connection, Engine, Executable, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.pool import StaticPool

from zndraw_joblib.server.db.compiled import Rows, SqliteStatement
from zndraw_joblib.server.db.database import SQLITE_LOCK, Clock, Database, Transaction, Work, run

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

BUSY_SECONDS = 10
_POLL_SECONDS = 0.02
_READERS = 4
_COMMITS_PER_CHECKPOINT = 200
# If a checkpoint is later than this, short writes wait for it in its thread: otherwise the log only grows.
_MOST_COMMITS = 800
_LONG_LOG_PAGES = 2000  # 8 MB
# How long a checkpoint may block writers while it waits for readers of an old state.
_CHECKPOINT_PATIENCE_MS = 100
# More than the statements of the queue, with several lengths of their lists.
_CACHED_STATEMENTS = 1024


class SqliteDatabase(Database):
    """A SQLite database. A short transaction runs on the event loop, any other as a whole in a thread.

    aiosqlite changes threads for every statement, which costs more than the statements. One change for a
    whole batch still costs as much as the batch, because both threads compete for the interpreter.
    """

    def __init__(self, url: URL, clock: Clock | None = None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        super().__init__(clock)
        self._engine = _open(url, busy_seconds)
        is_in_memory = url.database in {None, "", ":memory:"}
        self._quick = None if is_in_memory else _open(url, 0, poolclass=StaticPool)
        if self._quick is not None:
            event.listen(self._quick, "connect", _leave_checkpoints)
        self._quick_connection: tuple[Connection, sqlite3.Connection] | None = None
        self._is_quick_free = threading.Lock()
        self._commits = self._checkpointed = 0
        self._is_emptying = False
        # The transaction of this process that writes holds it. SQLite's own lock is not fair, and a waiting
        # transaction looks at it up to every 100 ms.
        self._may_write = threading.Lock()
        self.is_thread_waiting = False
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._reader = "writer" if is_in_memory else "reader"
        # A statement that ran once may be built for one use, and SQLAlchemy caches such better.
        self._ran_once: WeakSet[Executable] = WeakSet()
        # Cleared when it is full: several threads use it without a lock.
        self._compiled: dict[Executable, SqliteStatement] = {}

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
            with self._next_to_write(), self._engine.begin() as connection:
                return work(connection)

        return await self._in_thread("writer", run)

    async def close(self) -> None:
        """Close connections and threads."""
        for kind in list(self._threads):
            self._threads.pop(kind).shutdown(wait=True)
        self._engine.dispose()
        if self._quick is not None:
            with self._is_quick_free:
                if self._quick_connection is not None:
                    self._quick_connection[0].close()
                    self._quick_connection = None
                self._quick.dispose()

    async def _read(self, work: Work[Result], is_short: bool, *, is_snapshot: bool = False) -> Result:
        if is_short and self._quick is not None and self._is_quick_free.acquire(blocking=False):
            try:
                return self._read_on(*self._quick_one(self._quick), work)
            except OperationalError:
                pass  # this connection does not wait for another process that opens or recovers the file
            finally:
                self._is_quick_free.release()

        def read() -> Result:
            with self._engine.connect() as connection:
                raw = _raw(connection)
                if not is_snapshot:
                    return self._read_on(connection, raw, work)
                raw.execute("BEGIN")
                try:
                    return self._read_on(connection, raw, work)
                finally:
                    raw.rollback()

        return await self._in_thread(self._reader, read)

    def _read_on(self, connection: Connection, raw: sqlite3.Connection, work: Work[Result]) -> Result:
        try:
            return _run_without_loop(work(self._transaction(connection, raw)))
        finally:
            if connection.in_transaction():
                connection.rollback()

    async def _write(
        self, work: Work[Result], is_short: bool, lock_seconds: float | None = None
    ) -> tuple[Result, Transaction]:
        if self._quick is not None and self._may_be_quick(is_short):
            try:
                connection, raw = self._quick_one(self._quick)
                with suppress(sqlite3.OperationalError):  # another connection holds the lock
                    raw.execute(SQLITE_LOCK)
                if raw.in_transaction:
                    result = self._run(connection, raw, work)
                    self._commits += 1
                    if self._commits % _COMMITS_PER_CHECKPOINT == 0:
                        self._start_checkpoint()
                    return result
            finally:
                self._is_quick_free.release()
                self._may_write.release()

        def write() -> tuple[Result, Transaction]:
            with self._next_to_write(), self._engine.connect() as connection:
                connection.exec_driver_sql(SQLITE_LOCK)
                return self._run(connection, _raw(connection), work)

        return await self._in_thread("writer", write)

    @contextmanager
    def _next_to_write(self) -> Iterator[None]:
        """Write in the writer's thread, before all short writes that begin from now on."""
        self.is_thread_waiting = True
        with self._may_write:
            self.is_thread_waiting = False
            yield

    def _may_be_quick(self, is_short: bool) -> bool:
        """Take the connection of the event loop for a write, unless the write must wait for others.

        Then it waits in the writer's thread: first come, first served.
        """
        is_late = self._is_emptying or self._commits - self._checkpointed > _MOST_COMMITS
        if not is_short or is_late or self.is_thread_waiting or not self._may_write.acquire(blocking=False):
            return False
        if self._is_quick_free.acquire(blocking=False):
            return True
        self._may_write.release()
        return False

    def _quick_one(self, engine: Engine) -> tuple[Connection, sqlite3.Connection]:
        """Return the connection of the event loop: it stays open, because opening it costs a statement."""
        if self._quick_connection is None:
            connection = engine.connect()
            self._quick_connection = connection, _raw(connection)
        return self._quick_connection

    def _run(
        self, connection: Connection, raw: sqlite3.Connection, work: Work[Result]
    ) -> tuple[Result, Transaction]:
        try:
            tx = self._transaction(connection, raw)
            result = _run_without_loop(run(work, tx))
            try:
                raw.commit()
            except sqlite3.Error as error:
                raise _translated(error, "COMMIT") from error
            return result, tx
        finally:
            raw.rollback()
            if connection.in_transaction():  # of SQLAlchemy
                connection.rollback()

    def _transaction(self, connection: Connection, raw: sqlite3.Connection) -> Transaction:
        async def execute(statement: Executable, params: Any = None) -> Rows:
            is_many = isinstance(params, list | tuple)
            values = params[0] if is_many else params or {}
            compiled = self._compiled.get(statement)
            if compiled is None:
                if statement not in self._ran_once:
                    self._ran_once.add(statement)
                    return connection.execute(statement, params)
                if len(self._compiled) >= _CACHED_STATEMENTS:
                    self._compiled.clear()
                compiled = self._compiled[statement] = SqliteStatement(statement, values)
            form = compiled.only_form or compiled.form(values)
            try:
                if is_many and len(params) > 1:  # only for statements without a result
                    raw.executemany(form.sql, map(form.arguments, params))
                    return form.result([])
                return form.result(raw.execute(form.sql, form.arguments(values)).fetchall())
            except sqlite3.Error as error:
                raise _translated(error, form.sql) from error

        return Transaction(self._observed(raw, execute), is_sqlite=True, clock=self._clock)

    def _start_checkpoint(self) -> None:
        try:
            # A checkpoint waits for the disk, so it runs in a thread.
            self._in_thread("writer", self._checkpoint)
        except RuntimeError as error:  # the transaction is committed
            self._checkpointed = self._commits
            logger.warning("Could not start a thread that shortens the write-ahead log: %s", error)

    def _checkpoint(self) -> None:
        """Copy the write-ahead log into the file. A long log is copied to its end, so that it starts again.

        Under constant writes the end is only reached by blocking writers for a moment. Those of this process
        wait in the thread, because SQLite's lock is not fair.
        """
        commits = self._commits
        try:
            with self._engine.connect() as connection:
                _, pages, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
                if pages > _LONG_LOG_PAGES:
                    self._is_emptying = True
                    connection.exec_driver_sql(f"PRAGMA busy_timeout={_CHECKPOINT_PATIENCE_MS}")
                    connection.exec_driver_sql("PRAGMA wal_checkpoint(FULL)")
                    connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
        finally:
            self._is_emptying, self._checkpointed = False, commits


def prepare(connection: Any, _: object) -> None:
    """Set the modes of a new connection."""
    cursor: sqlite3.Cursor = connection.cursor()
    # The journal mode changes only while no connection writes, and SQLite does not wait for that.
    deadline = time.monotonic() + BUSY_SECONDS
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


def _open(url: URL, seconds: float, **options: Any) -> Engine:
    arguments = {"timeout": seconds, "check_same_thread": False, "cached_statements": _CACHED_STATEMENTS}
    engine = create_engine(url.set(drivername="sqlite"), connect_args=arguments, **options)
    event.listen(engine, "do_connect", _create_private)
    event.listen(engine, "connect", prepare)
    return engine


def _create_private(_: object, __: object, arguments: Sequence[Any], ___: object) -> None:
    """Create the file of a new database for its owner alone. SQLite gives its other files the same mode."""
    name = str(arguments[0])
    if name != ":memory:" and not name.startswith("file:"):
        # An existing file keeps its mode. Other errors are those of the connection.
        with suppress(OSError):
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _leave_checkpoints(connection: Any, _: object) -> None:
    connection.execute("PRAGMA wal_autocheckpoint=0")


def _raw(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


def _translated(error: sqlite3.Error, sql: str) -> DBAPIError:
    """Return the driver's error as SQLAlchemy's, so that one module decides what to retry."""
    kind = IntegrityError if isinstance(error, sqlite3.IntegrityError) else DBAPIError
    kind = OperationalError if isinstance(error, sqlite3.OperationalError) else kind
    return kind(sql, None, error)


def _run_without_loop(work: Awaitable[Result]) -> Result:
    """Run a coroutine to its end without an event loop. All its statements are synchronous."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise RuntimeError("A function in a transaction may await nothing except the database")
