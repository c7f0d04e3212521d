"""PostgreSQL databases: SQLAlchemy compiles each statement once, and asyncpg runs it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import asyncpg
from sqlalchemy import Connection, Executable
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from zndraw_joblib.server.ports import OpenConnection
from zndraw_joblib.server.store.compiled import ASYNCPG, CompiledStatement, Values
from zndraw_joblib.server.store.database import (
    CONCURRENT_BATCHES,
    Clock,
    Database,
    Rows,
    Transaction,
    Work,
    in_doubt,
)
from zndraw_joblib.server.store.notify_connection import NotifyConnection

Result = TypeVar("Result")
Pool: TypeAlias = Any  # asyncpg comes without types

_POOL_SIZE = 20
_POOL_SECONDS = 30.0
_QUERIES = 10_000_000  # then a connection is replaced


class PostgresDatabase(Database):
    """A PostgreSQL database.

    SQLAlchemy's asyncpg adapter costs more than most statements, so they run on asyncpg directly.
    """

    def __init__(
        self,
        url: URL,
        clock: Clock | None = None,
        *,
        pool_size: int = _POOL_SIZE,
        pool_seconds: float = _POOL_SECONDS,
    ) -> None:
        super().__init__(clock)
        self._url = url
        self._pool_size = pool_size
        self._pool_seconds = pool_seconds
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()
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
        """Run `work` on a plain connection and commit."""
        engine = create_async_engine(self._url, poolclass=NullPool)
        async with engine.begin() as connection:
            return await connection.run_sync(work)

    async def pubsub_connection(self) -> OpenConnection:
        """Return a function that opens a pub/sub connection."""
        return self._open_pubsub

    @asynccontextmanager
    async def _open_pubsub(self) -> AsyncIterator[NotifyConnection]:
        _, options = ASYNCPG.create_connect_args(self._url)
        connection = await asyncpg.connect(**options)
        try:
            yield NotifyConnection(connection)
        finally:
            await connection.close(timeout=1)

    async def close(self) -> None:
        """Close the connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _read(self, work: Work[Result], is_short: bool) -> Result:
        # No transaction is needed: with READ COMMITTED each statement sees the latest commits anyway.
        async with self._connection() as connection:
            return await work(self._on(connection))

    async def _write(self, work: Work[Result], is_short: bool) -> tuple[Result, Transaction]:
        async with self._connection() as connection:
            transaction = connection.transaction()
            with _translated_errors(connection):
                await transaction.start()
            tx = self._on(connection)
            try:
                result = await work(tx)
            except BaseException:
                if not _is_closed(connection):
                    await transaction.rollback()
                raise
            with in_doubt(), _translated_errors(connection):
                await transaction.commit()
            return result, tx

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        pool = await self._pool()
        try:
            connection = await pool.acquire(timeout=self._pool_seconds)
        except TimeoutError:
            raise PoolTimeout(f"no connection of the pool was free within {self._pool_seconds:g} s") from None
        except asyncpg.PostgresError as error:
            raise DBAPIError("CONNECT", None, error, connection_invalidated=True) from error
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _pool(self) -> Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            _, options = ASYNCPG.create_connect_args(self._url)
            pool = self._pools[loop] = asyncpg.create_pool(
                **options,
                min_size=0,
                max_size=self._pool_size,
                max_queries=_QUERIES,
                init=_prepare,
                reset=_skip_reset,
            )
        return await pool  # waits until the pool has started

    def _on(self, connection: Any) -> Transaction:
        return Transaction(partial(self._execute, connection), is_sqlite=False, clock=self._clock)

    async def _execute(
        self, connection: Any, statement: Executable, given: Values | Sequence[Values] | None = None
    ) -> Rows:
        many = given if isinstance(given, Sequence) else [given or {}]
        compiled = self._compiled.get(statement)
        if compiled is None:
            compiled = self._compiled[statement] = CompiledStatement(statement, many[0])
        with _translated_errors(connection, compiled.sql):
            if len(many) > 1:  # only for statements without a result
                await connection.executemany(compiled.sql, [compiled.arguments(values) for values in many])
                return compiled.result([])
            return compiled.result(await connection.fetch(compiled.sql, *compiled.arguments(many[0])))


async def _prepare(connection: Any) -> None:
    # A plan that is made while a table is small scans it, and stays cached while the table grows.
    await connection.execute("SET enable_seqscan = off; SET jit = off")


async def _skip_reset(_: object) -> None:
    """Skip asyncpg's reset query: transactions change no session state."""


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
