"""Transactions on a host's or our own sessions, alike on SQLite and PostgreSQL."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import CursorResult, Executable, delete, false, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.ports import SessionMaker, Wake
from zndraw_joblib.server.store.tables import Token

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Clock = Callable[[], datetime]

_ATTEMPTS = 5
# PostgreSQL: serialization failure, deadlock. Both say: nothing was written, try again.
_RETRIABLE = frozenset({"40001", "40P01"})
# Connection lost, out of resources, shut down by an operator.
_UNAVAILABLE_CLASSES = frozenset({"08", "53", "57"})


class Transaction:
    """A connection inside a transaction, and what is to be told once it is committed."""

    def __init__(self, connection: AsyncConnection, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock
        self._now: datetime | None = None
        self.is_sqlite = connection.dialect.name == "sqlite"
        self.emissions: list[Emission] = []
        self.wakes: list[Wake] = []

    async def execute(
        self, statement: Executable, parameters: Sequence[dict[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Run one statement; with a list of parameters, once for each."""
        return await self._connection.execute(statement, parameters)

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
                self._now = (await self.execute(select(func.now()))).scalar_one().astimezone(UTC)
        return self._now

    def emit(self, *emissions: Emission) -> None:
        """Remember events to send after the commit, each once."""
        self.emissions += [emission for emission in emissions if emission not in self.emissions]

    def wake(self, key: str, count: int | None = None) -> None:
        """Remember sleepers to wake after the commit."""
        self.wakes.append(Wake(key, count))

    async def lock_sqlite(self) -> None:
        """Take SQLite's write lock now: a read that turns into a write later can fail at once."""
        raw = (await self._connection.get_raw_connection()).driver_connection
        if getattr(raw, "in_transaction", False):
            await self.execute(delete(Token).where(false()))
        else:
            await self._connection.exec_driver_sql("BEGIN IMMEDIATE")


class Database:
    """Opens transactions. A writer waits its turn on SQLite, which takes one at a time."""

    def __init__(self, session_maker: SessionMaker, *, clock: Clock | None = None) -> None:
        self._session_maker = session_maker
        self._clock = clock
        self._is_sqlite: bool | None = None
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        """Open a transaction that writes nothing.

        Raises `ServiceUnavailable` when the database does not answer.
        """
        with _translated():
            async with self._session_maker() as session:
                yield Transaction(await session.connection(), self._clock)

    async def write(self, work: Callable[[Transaction], Awaitable[Result]]) -> tuple[Result, Transaction]:
        """Run `work` in a transaction and commit it; run it again after a deadlock.

        Raises `ServiceUnavailable` when the database does not answer. Whatever `work` raises
        rolls everything back.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with _translated():
                    return await self._write_once(work)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _RETRIABLE or attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(0.005 * 2**attempt * random.random())  # noqa: S311 - jitter
        raise AssertionError("unreachable")

    async def _write_once(
        self, work: Callable[[Transaction], Awaitable[Result]]
    ) -> tuple[Result, Transaction]:
        async with self._turn(), self._session_maker() as session:
            tx = await begin(session, self._clock)
            self._is_sqlite = tx.is_sqlite
            result = await work(tx)
            await session.commit()
            return result, tx

    def _turn(self) -> Any:
        if self._is_sqlite is False:
            return nullcontext()
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


async def begin(session: AsyncSession, clock: Clock | None = None) -> Transaction:
    """Turn a session, ours or a host's, into a transaction that may write."""
    tx = Transaction(await session.connection(), clock)
    if tx.is_sqlite:
        await tx.lock_sqlite()
    return tx


def dialect(tx: Transaction) -> ModuleType:
    """Return the module whose `insert` knows ON CONFLICT."""
    return sqlite if tx.is_sqlite else postgresql


def padded(values: Sequence[Result]) -> list[Result]:
    """Repeat the last value up to a power of two, so that `IN` lists have few shapes to prepare."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    return [*values, *[values[-1]] * (size - len(values))] if values else []


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeout, OSError) as error:
        if isinstance(error, ServiceUnavailable) or not _is_unavailable(error):
            raise
        logger.error("the database does not answer: %s: %s", type(error).__name__, error)
        raise ServiceUnavailable(
            "The database does not answer. Nothing was changed, or the answer was lost; try again.",
            headers={"Retry-After": "1"},
        ) from error


def _is_unavailable(error: BaseException) -> bool:
    if not isinstance(error, DBAPIError):
        return True
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _RETRIABLE:
        return False
    lost = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    return lost or state[:2] in _UNAVAILABLE_CLASSES
