"""A host's database, used through its SQLAlchemy sessions."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, bindparam, delete, false, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from zndraw_joblib.server.ports import OpenConnection, SessionMaker
from zndraw_joblib.server.store.database import (
    CONCURRENT_BATCHES,
    SQLITE_LOCK,
    Clock,
    Database,
    Transaction,
    Work,
    run,
)
from zndraw_joblib.server.store.errors import Unresponsive, in_doubt
from zndraw_joblib.server.store.limits import Limits, SingleWrites
from zndraw_joblib.server.store.notify_connection import NotifyConnection
from zndraw_joblib.server.store.tables import Token

Result = TypeVar("Result")

_LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_SET_LIMITS = select(
    *(func.set_config(name, bindparam(name), True).label(name) for name in _LIMITS), func.now().label("now")
)


class SessionDatabase(Database):
    """A host's database, used through its session maker. On SQLite, writers run one at a time."""

    def __init__(
        self, session_maker: SessionMaker, clock: Clock | None = None, limits: Limits | None = None
    ) -> None:
        super().__init__(clock, limits)
        _check_session_maker(session_maker)
        self._open = session_maker
        self._single_writes = SingleWrites(self._limits)
        self._is_sqlite: bool | None = None
        self._write_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def concurrent_writes(self) -> int:
        """Two on PostgreSQL, once the dialect is known."""
        return CONCURRENT_BATCHES if self._is_sqlite is False else 1

    @property
    def is_sqlite(self) -> bool | None:
        """Whether the host's database is SQLite; None before its first use."""
        return self._is_sqlite

    async def pubsub_connection(self) -> OpenConnection | None:
        """Return a function that opens a pub/sub connection on PostgreSQL with asyncpg, else None."""
        async with self._open() as session:
            engine = (await session.connection()).engine
        return partial(_open_pubsub, engine) if engine.dialect.driver == "asyncpg" else None

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a plain connection and commit."""
        async with self._write_lock(), self._open() as session:
            connection = await session.connection()
            self._is_sqlite = connection.dialect.name == "sqlite"
            result: Result = await connection.run_sync(work)
            await session.commit()
            return result

    async def close(self) -> None:
        """Do nothing: the connections belong to the host."""

    async def _read(self, work: Work[Result], is_short: bool, *, is_snapshot: bool = False) -> Result:
        async with self._bounded(is_short), self._open() as session:
            connection = await (_snapshot(session) if is_snapshot else session.connection())
            return await work(from_connection(connection, self._clock))

    async def _write(
        self, work: Work[Result], is_short: bool, lock_seconds: float | None = None
    ) -> tuple[Result, Transaction]:
        if lock_seconds is None and self._is_sqlite is False:
            async with self._single_writes.slot() as patience:
                return await self._write(work, is_short, patience)
        async with self._write_lock(), self._bounded(is_short), self._open() as session:
            tx = await begin(session, self._clock)
            self._is_sqlite = tx.is_sqlite
            if not tx.is_sqlite:
                await self._set_limits(tx, self._limits.lock if lock_seconds is None else lock_seconds)
            result = await run(work, tx)
            with in_doubt():
                await session.commit()
            return result, tx

    async def _set_limits(self, tx: Transaction, lock_seconds: float) -> None:
        """Set time limits for this transaction on the host's connection."""
        limits = self._limits
        seconds = (limits.statement, lock_seconds, limits.idle_transaction)
        values = [f"{max(1, round(each * 1000))}ms" for each in seconds]
        row = (await tx.execute(_SET_LIMITS, dict(zip(_LIMITS, values, strict=True)))).one()
        tx.record_now([row])

    @asynccontextmanager
    async def _bounded(self, is_short: bool) -> AsyncIterator[None]:
        """Cancel a transaction in the database when it takes too long. SQLite limits its waits by itself."""
        seconds = None if self._is_sqlite else self._limits.transaction(is_short=is_short)
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise Unresponsive(f"it did not respond within {seconds:g} s") from error

    def _write_lock(self) -> Any:
        if self._is_sqlite is False:
            return nullcontext()
        return self._write_locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def _check_session_maker(given: object) -> None:
    """Raise TypeError for what cannot open an `AsyncSession`."""
    if isinstance(given, sessionmaker) and not issubclass(given.class_, AsyncSession):
        kind = "a sessionmaker of synchronous sessions"
    elif isinstance(given, Engine | AsyncEngine | Session | AsyncSession) or not callable(given):
        kind = f"an object of {type(given).__name__}"
    else:
        return
    raise TypeError(
        f"session_maker is {kind}, but the queue needs a callable that opens an AsyncSession. Pass "
        "async_sessionmaker(create_async_engine(url)) of sqlalchemy.ext.asyncio"
    )


@asynccontextmanager
async def _open_pubsub(engine: AsyncEngine) -> AsyncIterator[NotifyConnection]:
    # It connects with the host's options, and is detached so that it does not occupy the host's pool.
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await connection.run_sync(Connection.detach)
        yield NotifyConnection(driver)


async def _snapshot(session: AsyncSession) -> AsyncConnection:
    """Begin a transaction on a new session whose statements all see the same commits."""
    if session.get_bind().dialect.name != "sqlite":
        return await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    connection = await session.connection()
    if not getattr((await connection.get_raw_connection()).driver_connection, "in_transaction", False):
        await connection.exec_driver_sql("BEGIN")
    return connection


def from_connection(connection: AsyncConnection, clock: Clock | None) -> Transaction:
    """Return a transaction that runs its statements on `connection`."""
    return Transaction(connection.execute, is_sqlite=connection.dialect.name == "sqlite", clock=clock)


async def begin(session: AsyncSession, clock: Clock | None = None) -> Transaction:
    """Return a transaction on a session that may write.

    On SQLite this takes the write lock: a transaction that starts by reading can fail at its first write.
    """
    connection = await session.connection()
    tx = from_connection(connection, clock)
    if tx.is_sqlite:
        raw = (await connection.get_raw_connection()).driver_connection
        if getattr(raw, "in_transaction", False):
            await tx.execute(delete(Token).where(false()))
        else:
            await connection.exec_driver_sql(SQLITE_LOCK)
    return tx
