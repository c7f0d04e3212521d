"""Transactions, alike on SQLite and PostgreSQL, on databases of our own and on a host's sessions."""

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Connection,
    Executable,
    delete,
    false,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Result as SqlResult
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.contract.problems import ProblemException, ServiceUnavailable
from zndraw_joblib.server.ports import OpenConnection, SessionMaker, Wake
from zndraw_joblib.server.store.notify_connection import NotifyConnection
from zndraw_joblib.server.store.tables import Token

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
P = ParamSpec("P")
Clock = Callable[[], datetime]
Rows = SqlResult[*tuple[Any, ...]]
Execute = Callable[..., Awaitable[Rows]]
Work = Callable[["Transaction"], Awaitable[Result]]

_ATTEMPTS = 5
# PostgreSQL: while one batch waits for the disk, another is made ready. More of them would be smaller.
CONCURRENT_BATCHES = 2
_NOW = select(func.now())
SQLITE_LOCK = "BEGIN IMMEDIATE"
_IN_DOUBT = "whether it was committed is not known"
# PostgreSQL: serialization failure, deadlock. Both say: nothing was written, try again.
_RETRIABLE = frozenset({"40001", "40P01"})
# Connection lost, out of resources, shut down by an operator.
_UNAVAILABLE_CLASSES = frozenset({"08", "53", "57"})


class Freed(NamedTuple):
    """Where another task may be under way now: in a room, and at a worker."""

    room_id: str
    worker_id: UUID | None


class Transaction:
    """One transaction's statements, and what is to be told once it is committed."""

    def __init__(self, execute: Execute, *, is_sqlite: bool, clock: Clock | None = None) -> None:
        self._execute = execute
        self._clock = clock
        self._now: datetime | None = None
        self.is_sqlite = is_sqlite
        self._told: dict[object, Callable[[], Emission]] = {}
        self.wakes: list[Wake] = []
        self.due: datetime | None = None
        self.freed: list[Freed] = []

    async def execute(
        self, statement: Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> Rows:
        """Run one statement; with a list of parameters, once for each."""
        return await self._execute(statement, parameters)

    async def now(self) -> datetime:
        """Return the one time of this transaction, from the database's clock.

        SQLite has no clock of its own: there the server's is the database's.
        """
        if self._now is None:
            if self._clock is not None:
                self._now = self._clock()
            elif self.is_sqlite:
                self._now = datetime.now(UTC)
            else:
                self._now = (await self.execute(_NOW)).scalar_one().astimezone(UTC)
        return self._now

    def record_now(self, rows: Sequence[Any]) -> None:
        """Take the time from the column `now` of the first statement, which saves asking for it."""
        if rows and self._now is None and self._clock is None and not self.is_sqlite:
            self._now = rows[0].now.astimezone(UTC)

    def emit(self, key: object, make: Callable[[], Emission]) -> None:
        """Remember an event to send after the commit, once for each key; made only if somebody listens."""
        self._told.setdefault(key, make)

    @property
    def emissions(self) -> list[Emission]:
        """The events to send after the commit, in the order they happened."""
        return [make() for make in self._told.values()]

    def record_due(self, at: datetime) -> None:
        """Remember when the time of a task comes."""
        self.due = at if self.due is None else min(self.due, at)

    def record_freed(self, room_id: str, worker_id: UUID | None) -> None:
        """Remember that a task of a room is no longer under way, and who held it."""
        self.freed.append(Freed(room_id, worker_id))

    def wake(self, key: str, limit: int | None = None) -> None:
        """Remember waiters to wake after the commit."""
        self.wakes.append(Wake(key, limit))


class Database(ABC):
    """Runs work in transactions, alike on every database."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock

    async def read(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Run `work(tx, *args, **kwargs)`, which writes nothing, and return its result.

        Raises `ServiceUnavailable` when the database is unavailable.
        """
        return await self._again_after_faults(partial(self._read, _bind(work, args, kwargs), is_short=False))

    async def read_short(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Result:
        """Read like `read`. The caller promises a few milliseconds: SQLite may run it on the event loop."""
        return await self._again_after_faults(partial(self._read, _bind(work, args, kwargs), is_short=True))

    async def write(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Result, Transaction]:
        """Run `work(tx, *args, **kwargs)` and commit; run it again after a deadlock.

        Return its result and the finished transaction. Raises `ServiceUnavailable` when the database is
        unavailable. An exception from `work` rolls everything back.
        """
        return await self._again_after_faults(partial(self._write, _bind(work, args, kwargs), is_short=False))

    async def write_short(
        self,
        work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Result, Transaction]:
        """Write like `write`. The caller promises a few milliseconds: SQLite may run it on the event loop."""
        return await self._again_after_faults(partial(self._write, _bind(work, args, kwargs), is_short=True))

    async def _again_after_faults(self, transaction: Callable[[], Awaitable[Result]]) -> Result:
        with _translated():
            for attempt in range(1, _ATTEMPTS):
                try:
                    return await transaction()
                except DBAPIError as error:
                    if not is_retriable(error):
                        raise
                    logger.info("a transaction is begun again: %r", error.orig)
                await asyncio.sleep(0.005 * 2**attempt * random.random())  # noqa: S311 - jitter
            return await transaction()

    @property
    def concurrent_writes(self) -> int:
        """How many batches of a kind are worth to be written at the same time: SQLite takes one writer."""
        return 1

    @property
    def is_sqlite(self) -> bool | None:
        """Whether it is SQLite; None as long as that is not known."""
        return None

    async def pubsub_connection(self) -> OpenConnection | None:
        """Return what opens a line to other processes on this database, or None: SQLite has none."""
        return None

    @abstractmethod
    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a plain connection and commit: for migrations."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and threads that are our own."""

    @abstractmethod
    async def _read(self, work: Work[Result], is_short: bool) -> Result: ...

    @abstractmethod
    async def _write(self, work: Work[Result], is_short: bool) -> tuple[Result, Transaction]: ...


class SessionDatabase(Database):
    """A host's database, behind its session maker.

    A writer waits its turn on SQLite, which takes one at a time.
    """

    def __init__(
        self,
        session_maker: SessionMaker,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock)
        self._open = session_maker
        self._is_sqlite: bool | None = None
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def concurrent_writes(self) -> int:
        """Two on PostgreSQL, once it is known to be that."""
        return CONCURRENT_BATCHES if self._is_sqlite is False else 1

    @property
    def is_sqlite(self) -> bool | None:
        """Whether the host's database is SQLite; None before its first use."""
        return self._is_sqlite

    async def pubsub_connection(self) -> OpenConnection | None:
        """Return what opens a line on PostgreSQL with asyncpg; None for anything else."""
        async with self._open() as session:
            engine = (await session.connection()).engine
        return partial(_open_line, engine) if engine.dialect.driver == "asyncpg" else None

    async def run_sync(self, work: Callable[[Connection], Result]) -> Result:
        """Run `work` on a plain connection and commit."""
        async with self._turn(), self._open() as session:
            connection = await session.connection()
            self._is_sqlite = connection.dialect.name == "sqlite"
            result: Result = await connection.run_sync(work)
            await session.commit()
            return result

    async def close(self) -> None:
        """Do nothing: the connections are the host's."""

    async def _read(self, work: Work[Result], is_short: bool) -> Result:
        async with self._open() as session:
            return await work(from_connection(await session.connection(), self._clock))

    async def _write(self, work: Work[Result], is_short: bool) -> tuple[Result, Transaction]:
        async with self._turn(), self._open() as session:
            tx = await begin(session, self._clock)
            self._is_sqlite = tx.is_sqlite
            result = await work(tx)
            with in_doubt():
                await session.commit()
            return result, tx

    def _turn(self) -> Any:
        if self._is_sqlite is False:
            return nullcontext()
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


@asynccontextmanager
async def _open_line(engine: AsyncEngine) -> AsyncIterator[NotifyConnection]:
    # Connected as the host connects, but it takes no place in the host's pool.
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await connection.run_sync(Connection.detach)
        yield NotifyConnection(driver)


def _bind(work: Callable[..., Awaitable[Result]], args: Any, kwargs: Any) -> Work[Result]:
    return partial(_call, work, args, kwargs) if args or kwargs else work


def _call(
    work: Callable[..., Awaitable[Result]], args: Any, kwargs: Any, tx: Transaction
) -> Awaitable[Result]:
    return work(tx, *args, **kwargs)


def from_connection(connection: AsyncConnection, clock: Clock | None) -> Transaction:
    """Return a transaction that runs its statements on `connection`."""
    return Transaction(connection.execute, is_sqlite=connection.dialect.name == "sqlite", clock=clock)


async def begin(session: AsyncSession, clock: Clock | None = None) -> Transaction:
    """Turn a session, ours or a host's, into a transaction that may write.

    On SQLite it takes the write lock now: a read that turns into a write later can fail at once.
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


def dialect(tx: Transaction) -> ModuleType:
    """Return the module whose `insert` knows ON CONFLICT."""
    return sqlite if tx.is_sqlite else postgresql


@contextmanager
def in_doubt() -> Iterator[None]:
    """Wrap a commit: its answer may be lost after it was done, so that it must not be run again."""
    try:
        yield
    except DBAPIError as error:
        error.add_detail(_IN_DOUBT)
        raise


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeout, OSError) as error:
        if isinstance(error, ProblemException) or not _is_unavailable(error):
            raise
        logger.error("the database does not answer: %s: %s", type(error).__name__, error)
        raise ServiceUnavailable(
            "The database does not answer. Nothing was changed, or the answer was lost; try again.",
            headers={"Retry-After": "1"},
        ) from error


def is_retriable(error: DBAPIError) -> bool:
    """Tell whether nothing was written for sure, and another try may do better."""
    if getattr(error.orig, "sqlstate", None) in _RETRIABLE:
        return True
    return error.connection_invalidated and _IN_DOUBT not in error.detail


def _is_unavailable(error: BaseException) -> bool:
    if not isinstance(error, DBAPIError):
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _RETRIABLE:
        return False
    lost = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return lost or state[:2] in _UNAVAILABLE_CLASSES
