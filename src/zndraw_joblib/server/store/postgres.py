"""PostgreSQL of our own: statements compiled by SQLAlchemy once, and run by asyncpg."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import asyncpg
from sqlalchemy import ColumnElement, Connection, Executable
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.engine import URL, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.compiler import SQLCompiler

from zndraw_joblib.server.ports import OpenConnection
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
Values = Mapping[str, Any]
Pool: TypeAlias = Any  # asyncpg comes without types
Convert = Callable[[Any], Any] | None

_POOL_SIZE = 20
_POOL_SECONDS = 30.0
_QUERIES = 10_000_000  # then a connection is replaced
_DIALECT: Any = asyncpg_dialect()  # type: ignore[no-untyped-call]


class PostgresDatabase(Database):
    """A PostgreSQL database of our own.

    SQLAlchemy's way to the driver, made for any driver, costs more than most of our statements do.
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
        # Statements made for one use leave again; those of the hot paths are built once and stay.
        self._plans: WeakKeyDictionary[Executable, Plan] = WeakKeyDictionary()

    @property
    def concurrent_writes(self) -> int:
        """Two."""
        return CONCURRENT_BATCHES

    @property
    def is_sqlite(self) -> bool:
        """No."""
        return False

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a plain connection and commit."""
        engine = create_async_engine(self._url, poolclass=NullPool)
        async with engine.begin() as connection:
            return await connection.run_sync(work)

    async def pubsub_connection(self) -> OpenConnection:
        """Return what opens a line, on a connection of its own."""
        return self._open_line

    @asynccontextmanager
    async def _open_line(self) -> AsyncIterator[NotifyConnection]:
        _, options = _DIALECT.create_connect_args(self._url)
        connection = await asyncpg.connect(**options)
        try:
            yield NotifyConnection(connection)
        finally:
            await connection.close(timeout=1)

    async def close(self) -> None:
        """Let go of the connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _read(self, work: Work[Result], is_short: bool) -> Result:
        # No transaction: each statement sees what is committed by then, in one or not.
        async with self._connection() as connection:
            return await work(self._on(connection))

    async def _write(self, work: Work[Result], is_short: bool) -> tuple[Result, Transaction]:
        async with self._connection() as connection:
            transaction = connection.transaction()
            with _as_sqlalchemys(connection):
                await transaction.start()
            tx = self._on(connection)
            try:
                result = await work(tx)
            except BaseException:
                if not _is_closed(connection):
                    await transaction.rollback()
                raise
            with in_doubt(), _as_sqlalchemys(connection):
                await transaction.commit()
            return result, tx

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        pool = await self._pool()
        try:
            connection = await pool.acquire(timeout=self._pool_seconds)
        except TimeoutError:
            raise PoolTimeout(f"no connection was free within {self._pool_seconds:g} s") from None
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
            _, options = _DIALECT.create_connect_args(self._url)
            pool = self._pools[loop] = asyncpg.create_pool(
                **options,
                min_size=0,
                max_size=self._pool_size,
                max_queries=_QUERIES,
                init=_prepare,
                reset=_leave_as_it_is,
            )
        return await pool  # waits for its start; at once if it has started

    def _on(self, connection: Any) -> Transaction:
        return Transaction(partial(self._execute, connection), is_sqlite=False, clock=self._clock)

    async def _execute(
        self, connection: Any, statement: Executable, given: Values | Sequence[Values] | None = None
    ) -> Rows:
        many = given if isinstance(given, Sequence) else [given or {}]
        plan = self._plans.get(statement)
        if plan is None:
            plan = self._plans[statement] = Plan(statement, many[0])
        with _as_sqlalchemys(connection, plan.sql):
            if len(many) > 1:  # of statements that return nothing
                await connection.executemany(plan.sql, [plan.arguments(values) for values in many])
                return plan.result([])
            return plan.result(await connection.fetch(plan.sql, *plan.arguments(many[0])))


class Plan:
    """What is needed to run one statement again and again."""

    def __init__(self, statement: Any, given: Values) -> None:
        compiled: SQLCompiler = statement.compile(
            dialect=_DIALECT, column_keys=list(given) or None, compile_kwargs={"render_postcompile": True}
        )
        if compiled.insert_prefetch or compiled.update_prefetch:
            raise TypeError("a default that Python makes is not supported: give every column its value")
        self.sql = str(compiled)
        self._fixed = dict(compiled.construct_params(_check=False))
        self._names = [(name, _dump(compiled, name)) for name in compiled.positiontup or ()]
        columns = list(getattr(statement, "exported_columns", ()))
        self._keys = SimpleResultMetaData([column.key for column in columns])
        self._convert = [
            (place, convert) for place, column in enumerate(columns) if (convert := _load(column))
        ]

    def arguments(self, given: Values) -> list[Any]:
        """Return the values of the statement's parameters in their order."""
        values = {**self._fixed, **given}
        return [convert(values[name]) if convert else values[name] for name, convert in self._names]

    def result(self, records: Sequence[asyncpg.Record]) -> Rows:
        """Return rows as SQLAlchemy gives them."""
        rows = map(list, records)
        return IteratorResult(self._keys, map(self._converted, rows))

    def _converted(self, row: list[Any]) -> tuple[Any, ...]:
        for place, convert in self._convert:
            row[place] = convert(row[place])
        return tuple(row)


def _dump(compiled: SQLCompiler, name: str) -> Convert:
    # The values of an IN list are numbered after the name of the list.
    bind = compiled.binds[name if name in compiled.binds else name.rpartition("_")[0]]
    return bind.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def _load(column: ColumnElement[Any]) -> Convert:
    return column.type.dialect_impl(_DIALECT).result_processor(_DIALECT, None)


async def _prepare(connection: Any) -> None:
    # A plan that is made while a table is small walks the whole of it, and is kept while the table grows.
    await connection.execute("SET enable_seqscan = off; SET jit = off")


async def _leave_as_it_is(_: object) -> None:
    """Reset nothing: no transaction of ours leaves anything behind in its connection."""


@contextmanager
def _as_sqlalchemys(connection: Any, sql: str = "") -> Iterator[None]:
    """Raise a fault of the driver as SQLAlchemy does, so that it is judged in one place."""
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
        return True  # the pool has taken it back, as it does with a connection that is lost
