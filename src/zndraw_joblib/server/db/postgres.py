"""PostgreSQL databases: SQLAlchemy compiles each statement once, and asyncpg runs it. LISTEN and NOTIFY."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import asyncpg
from sqlalchemy import Connection, Executable
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from zndraw_joblib.server.db.asyncpg_options import connect_arguments, milliseconds, prepare
from zndraw_joblib.server.db.compiled import CompiledStatement, Rows, Values
from zndraw_joblib.server.db.database import (
    CONCURRENT_BATCHES,
    Clock,
    Database,
    Execute,
    Transaction,
    Work,
    run,
)
from zndraw_joblib.server.db.errors import Unresponsive, in_doubt, is_read_only
from zndraw_joblib.server.db.limits import Limits, SingleWrites
from zndraw_joblib.server.process.ports import OpenConnection
from zndraw_joblib.server.process.waiters import in_time

_CHANNEL = "zndraw_joblib"
_MARK = "zndraw_joblib.session"


class NotifyConnection:
    """Publishes texts to every listener of the same database, including itself, on an asyncpg connection."""

    frame_size = 7_900  # PostgreSQL takes less than 8,000 bytes

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def send(self, text: str) -> None:
        """Send ASCII text of at most `frame_size` characters."""
        await self._connection.fetchval("SELECT pg_notify($1, $2)", _CHANNEL, text)

    async def mark_session(self) -> str:
        """Set a variable of the session, and return its value."""
        mark = uuid4().hex
        # Without parameters it is a simple query, which every pooler passes on.
        await self._connection.execute(f"SELECT set_config('{_MARK}', '{mark}', false)")
        return mark

    async def has_mark(self, mark: str) -> bool:
        """Return whether the next statement runs in the session with this mark."""
        condition = f"current_setting('{_MARK}', true) = '{mark}'"
        status = await self._connection.execute(f"SELECT 1 WHERE {condition}")
        return bool(status == "SELECT 1")

    async def listen(self, receive: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Call `receive` with each text after `ready`. Raises ConnectionError when the connection is lost."""
        lost = asyncio.get_running_loop().create_future()

        def end(_: Any) -> None:
            if not lost.done():
                lost.set_exception(ConnectionError("PostgreSQL closed the connection"))

        def take(_: Any, __: int, ___: str, text: str) -> None:
            receive(text)

        self._connection.add_termination_listener(end)
        await self._connection.add_listener(_CHANNEL, take)
        ready()
        await lost


logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Pool: TypeAlias = Any  # asyncpg comes without types

_POOL_SIZE = 20
_POOL_SECONDS = 10.0
_RECOVER_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
# Several transactions may notice the same lost connection.
_REPLACE_SECONDS = 1.0
_QUERIES = 10_000_000  # then a connection is replaced


class PostgresDatabase(Database):
    """A PostgreSQL database.

    SQLAlchemy's asyncpg adapter costs more than most statements, so they run on asyncpg directly.
    """

    def __init__(
        self,
        url: URL,
        clock: Clock | None = None,
        limits: Limits | None = None,
        *,
        pool_size: int = _POOL_SIZE,
        pool_seconds: float = _POOL_SECONDS,
    ) -> None:
        super().__init__(clock, limits)
        self._arguments = connect_arguments(url, self._limits)
        self._pool_size = pool_size
        self.pool_seconds = pool_seconds
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()
        self._replaced_at = -math.inf
        self._closing: set[asyncio.Task[None]] = set()
        self._single_writes = SingleWrites(self._limits)
        # Weak keys: statements that are built for one use are dropped, module-level ones stay.
        self._compiled: WeakKeyDictionary[Executable, CompiledStatement] = WeakKeyDictionary()

    @property
    def concurrent_writes(self) -> int:
        """Two."""
        return CONCURRENT_BATCHES

    @property
    def is_sqlite(self) -> bool:
        """False."""
        return False

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a connection without a statement timeout, and commit."""
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect_for_migrations,
            poolclass=NullPool,
            # PgBouncer in transaction mode would lose prepared statements.
            connect_args={"prepared_statement_cache_size": 0},
        )
        async with engine.begin() as connection:
            return await connection.run_sync(work)

    async def _connect_for_migrations(self) -> Any:
        connection = await self._connect(**{**self._arguments, "command_timeout": None})
        await prepare(connection, self._limits, is_for_migrations=True)
        return connection

    async def pubsub_connection(self) -> OpenConnection:
        """Return a function that opens a pub/sub connection."""
        return self._open_pubsub

    @asynccontextmanager
    async def _open_pubsub(self) -> AsyncIterator[NotifyConnection]:
        connection = await self._connect(**self._arguments)
        try:
            await prepare(connection, self._limits)
            yield NotifyConnection(connection)
        finally:
            await connection.close(timeout=1)

    async def close(self) -> None:
        """Close the connections; abort those that do not close in time."""
        self._discard_pool()
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[closing for closing in self._closing if closing.get_loop() is loop])

    async def _read(self, work: Work[Result], is_short: bool, *, is_snapshot: bool = False) -> Result:
        seconds = self._limits.transaction(is_short=is_short)
        async with self._connection() as connection:
            try:
                async with asyncio.timeout(seconds):
                    if not is_snapshot:
                        # With READ COMMITTED each statement sees the latest commits, also in a transaction.
                        return await work(self._on(connection))
                    async with connection.transaction(isolation="repeatable_read", readonly=True):
                        return await work(self._on(connection))
            except (TimeoutError, asyncio.CancelledError) as error:
                await self._recover(connection, "ROLLBACK" if is_snapshot else "SELECT")
                if isinstance(error, TimeoutError):
                    _raise_unresponsive(connection, seconds, error)
                raise

    async def _write(
        self, work: Work[Result], is_short: bool, lock_seconds: float | None = None
    ) -> tuple[Result, Transaction]:
        if lock_seconds is None:
            async with self._single_writes.slot() as patience:
                return await self._write_within(work, is_short, patience, is_repeated=True)
        return await self._write_within(work, is_short, lock_seconds, is_repeated=False)

    async def _write_within(
        self, work: Work[Result], is_short: bool, lock_seconds: float, *, is_repeated: bool
    ) -> tuple[Result, Transaction]:
        seconds = self._limits.transaction(is_short=is_short)
        async with self._connection() as connection:
            opened = self._open(connection, lock_seconds, is_repeated=is_repeated)
            try:
                async with asyncio.timeout(seconds):
                    result = await run(work, opened.transaction)
                    await opened.commit()
                    return result, opened.transaction
            except BaseException as error:
                await self._recover(connection, "ROLLBACK")
                if isinstance(error, DBAPIError) and is_read_only(error):
                    self._replace_pool()  # its connections lead to a former primary
                if isinstance(error, TimeoutError):
                    with in_doubt() if opened.is_committing else nullcontext():
                        _raise_unresponsive(connection, seconds, error)
                raise

    async def _recover(self, connection: Any, statement: str) -> None:
        """Run a statement after one that was cancelled; abort a connection that does not respond."""
        if _is_closed(connection):
            return
        try:
            async with asyncio.timeout(_RECOVER_SECONDS):
                await connection.execute(statement)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, TimeoutError):
                logger.warning("A connection to PostgreSQL does not respond: replacing all connections")
                self._replace_pool()
            if not isinstance(error, Exception):
                raise

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        pool = await self._pool()
        try:
            # With its own timeout asyncpg would start a task and a timer, also if a connection is free.
            until = asyncio.get_running_loop().time() + self.pool_seconds
            connection = await in_time(pool.acquire(), until)
        except TimeoutError:
            raise PoolTimeout(f"no connection of the pool was free within {self.pool_seconds:g} s") from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise DBAPIError("CONNECT", None, error, connection_invalidated=True) from error
        try:
            yield connection
        finally:
            await pool.release(connection, timeout=_CLOSE_SECONDS)

    async def _pool(self) -> Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = asyncpg.create_pool(
                **self._arguments,
                connect=self._connect,
                min_size=0,
                max_size=self._pool_size,
                max_queries=_QUERIES,
                init=partial(prepare, limits=self._limits),
                reset=_skip_reset,
            )
        return await pool  # waits until the pool has started

    def _replace_pool(self) -> None:
        """Use new connections from now on. Connections in use get a short time to finish."""
        if time.monotonic() < self._replaced_at + _REPLACE_SECONDS:
            return
        self._replaced_at = time.monotonic()
        self._discard_pool()

    def _discard_pool(self) -> None:
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            closing = asyncio.create_task(_close(pool))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _connect(self, *dsn: str | None, **arguments: Any) -> Any:
        try:
            return await asyncpg.connect(*dsn, **arguments)
        except TimeoutError:
            raise ConnectionError(
                f"no connection to it within {arguments['timeout']:g} s (database_connect_timeout_seconds)"
            ) from None
        except asyncpg.TargetServerAttributeNotMatched as error:
            raise ConnectionError(f"{error} (target_session_attrs of the database URL)") from error

    def _on(self, connection: Any) -> Transaction:
        execute = self._observed(connection, partial(self._execute, connection))
        return Transaction(execute, is_sqlite=False, clock=self._clock)

    def _open(self, connection: Any, lock_seconds: float, *, is_repeated: bool) -> "_Opened":
        begin, own = "BEGIN", self._limits.session_lock
        if lock_seconds != own:
            begin += f"; SET LOCAL lock_timeout = {milliseconds(lock_seconds)}"
        execute = self._observed(connection, partial(self._execute, connection))
        # A statement without BEGIN waits for the time of the session. If it may wait for longer, it has to be
        # repeated after a lock timeout, at the end of the queue of the lock.
        may_skip_begin = lock_seconds == own or (is_repeated and lock_seconds > own)
        return _Opened(connection, execute, begin, may_skip_begin=may_skip_begin, clock=self._clock)

    async def _execute(
        self, connection: Any, statement: Executable, params: Values | Sequence[Values] | None = None
    ) -> Rows:
        many = params if isinstance(params, Sequence) else [params or {}]
        compiled = self._compiled.get(statement)
        if compiled is None:
            compiled = self._compiled[statement] = CompiledStatement(statement, many[0])
        with _translated_errors(connection, compiled.sql):
            if len(many) > 1:  # only for statements without a result
                await connection.executemany(compiled.sql, [compiled.arguments(values) for values in many])
                return compiled.result([])
            return compiled.result(await connection.fetch(compiled.sql, *compiled.arguments(many[0])))


class _Opened:
    """A transaction on a connection. It sends BEGIN before its first statement.

    A statement that is a transaction of its own needs one round trip instead of three.
    """

    def __init__(
        self, connection: Any, execute: Execute, begin: str, *, may_skip_begin: bool, clock: Clock | None
    ) -> None:
        self._connection = connection
        self._execute = execute
        self._begin = begin
        self._may_skip_begin = may_skip_begin
        self._has_begun = self._is_done = False
        self.is_committing = False
        alone = self._execute_alone
        self.transaction = Transaction(self._execute_within, is_sqlite=False, clock=clock, alone=alone)

    async def _execute_within(self, statement: Executable, values: Any = None) -> Rows:
        if self._is_done:
            raise RuntimeError("A statement follows one that was the whole transaction")
        if not self._has_begun:
            with _translated_errors(self._connection):
                await self._connection.execute(self._begin)
            self._has_begun = True
        return await self._execute(statement, values)

    async def _execute_alone(self, statement: Executable, values: Values) -> Rows:
        if self._has_begun or not self._may_skip_begin:
            return await self._execute_within(statement, values)
        rows = await self._execute(statement, values)
        self._is_done = bool(rows)
        return rows

    async def commit(self) -> None:
        """Commit, unless there is nothing to commit."""
        if self._has_begun:
            self.is_committing = True
            with in_doubt(), _translated_errors(self._connection):
                await self._connection.execute("COMMIT")


async def _close(pool: Pool) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await pool.close()
    except TimeoutError:  # the pool has aborted its connections
        logger.warning("Aborted connections to PostgreSQL that did not close in %g s", _CLOSE_SECONDS)


async def _skip_reset(_: object) -> None:
    """Skip asyncpg's reset query: transactions change no session state."""


def _raise_unresponsive(connection: Any, seconds: float, error: TimeoutError) -> NoReturn:
    """Raise an error after which the caller repeats a transaction only if its connection was lost."""
    silent = Unresponsive(f"it did not respond within {seconds:g} s")
    if not _is_closed(connection):
        raise silent from error
    raise DBAPIError("", None, silent, connection_invalidated=True) from error


@contextmanager
def _translated_errors(connection: Any, sql: str = "") -> Iterator[None]:
    """Raise asyncpg's errors as SQLAlchemy's, so that one module decides what to retry."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        raise IntegrityError(sql, None, error) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise DBAPIError(sql, None, error, connection_invalidated=_is_closed(connection)) from error


def _is_closed(connection: Any) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True  # the pool releases a lost connection by itself
