"""A host's database: used through its SQLAlchemy sessions, and work in a session that the host opened."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, bindparam, delete, event, false, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from zndraw_joblib.server.db.database import (
    CONCURRENT_BATCHES,
    SQLITE_LOCK,
    Clock,
    Database,
    Execute,
    Observe,
    Transaction,
    Work,
    log_actions,
    run,
)
from zndraw_joblib.server.db.errors import RepeatTransaction, Unresponsive, in_doubt, raises_unavailable
from zndraw_joblib.server.db.limits import Limits, SingleWrites
from zndraw_joblib.server.db.tables import Token
from zndraw_joblib.server.process.batcher import RowLocked, locked_problem
from zndraw_joblib.server.process.ports import OpenConnection, PubSubConnection, SessionMaker
from zndraw_joblib.wire.problems import ServiceUnavailable

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
            return await work(from_connection(connection, self._clock, self._observed))

    async def _write(
        self, work: Work[Result], is_short: bool, lock_seconds: float | None = None
    ) -> tuple[Result, Transaction]:
        if lock_seconds is None and self._is_sqlite is False:
            async with self._single_writes.slot() as patience:
                return await self._write(work, is_short, patience)
        async with self._write_lock(), self._bounded(is_short), self._open() as session:
            tx = await begin(session, self._clock, self._observed)
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
        values = [f"{max(1, round(limit * 1000))}ms" for limit in seconds]
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


def _check_session_maker(session_maker: object) -> None:
    """Raise TypeError for what cannot open an `AsyncSession`."""
    if isinstance(session_maker, sessionmaker) and not issubclass(session_maker.class_, AsyncSession):
        kind = "a sessionmaker of synchronous sessions"
    elif isinstance(session_maker, Engine | AsyncEngine | Session | AsyncSession) or not callable(
        session_maker
    ):
        kind = f"an object of {type(session_maker).__name__}"
    else:
        return
    raise TypeError(
        f"session_maker is {kind}, but the queue needs a callable that opens an AsyncSession. Pass "
        "async_sessionmaker(create_async_engine(url)) of sqlalchemy.ext.asyncio"
    )


@asynccontextmanager
async def _open_pubsub(engine: AsyncEngine) -> AsyncIterator[PubSubConnection]:
    from zndraw_joblib.server.db.postgres import NotifyConnection  # noqa: PLC0415 - see `engine.open_database`

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


def from_connection(
    connection: AsyncConnection, clock: Clock | None, observe: Observe | None = None
) -> Transaction:
    """Return a transaction that runs its statements on `connection`."""
    execute: Execute = connection.execute
    if observe is not None:
        execute = observe(connection, execute)
    return Transaction(execute, is_sqlite=connection.dialect.name == "sqlite", clock=clock)


async def begin(
    session: AsyncSession, clock: Clock | None = None, observe: Observe | None = None
) -> Transaction:
    """Return a transaction on a session that may write.

    On SQLite this takes the write lock: a transaction that starts by reading can fail at its first write.
    """
    connection = await session.connection()
    tx = from_connection(connection, clock, observe)
    if tx.is_sqlite:
        raw = (await connection.get_raw_connection()).driver_connection
        if getattr(raw, "in_transaction", False):
            await tx.execute(delete(Token).where(false()))
        else:
            await connection.exec_driver_sql(SQLITE_LOCK)
    return tx


# Work of the queue in a host's own session. Wake-ups and events wait for the host's commit.

logger = logging.getLogger(__name__)

AfterCommit = Callable[[Transaction], None]

_ATTEMPTS = 5
_KEY = "zndraw_joblib.after_commit"
_LOCK_TIMEOUT = "lock_timeout"
_BEFORE = select(func.current_setting(_LOCK_TIMEOUT))
_SET = select(func.set_config(_LOCK_TIMEOUT, bindparam("value"), True))


async def read_in(session: Any, clock: Clock | None, work: Work[Result]) -> Result:
    """Run `work`, which writes nothing, in a host's session, and see what it has written."""
    connection = await _opened(session).connection()
    with raises_unavailable():
        return await work(from_connection(connection, clock))


async def write_in(
    session: Any, clock: Clock | None, database: Database, work: Work[Result], after_commit: AfterCommit
) -> Result:
    """Run `work` in a host's session, as a whole or not at all, as `database` would. Does not commit.

    `after_commit` gets the transaction in this event loop once the host has committed it, and never if the
    host rolls it back, wholly or to a savepoint. Raises `ServiceUnavailable` if another transaction holds a
    lock for longer than `database.lock_seconds`, and TypeError unless `session` is an `AsyncSession`.
    """
    opened = _opened(session)
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            result, tx = await _write(opened, clock, database, work)
            break
        except RowLocked as error:
            raise locked_problem("a row that the call needs", database.lock_seconds) from error
        except RepeatTransaction:
            # The savepoint is rolled back, so the next attempt sees what another transaction has changed.
            if not attempts_left:
                raise
    _AfterCommit.of(opened.sync_session).add(tx, after_commit)
    return result


async def _write(
    session: AsyncSession, clock: Clock | None, database: Database, work: Work[Result]
) -> tuple[Result, Transaction]:
    with raises_unavailable(), _explained():
        tx = database.prepared(await begin(session, clock))
        connection = await session.connection()
        # If the work fails, the host may continue its transaction, without a part of the work.
        async with connection.begin_nested(), _bounded(tx, database.lock_seconds):
            return await run(work, tx), tx


def _opened(session: Any) -> AsyncSession:
    opened = session() if isinstance(session, async_scoped_session) else session
    if not isinstance(opened, AsyncSession):
        raise TypeError(
            f"session is {type(opened).__name__}, but the queue needs the AsyncSession of the transaction "
            "(SQLAlchemy's or SQLModel's). Leave it out to submit in a transaction of the queue"
        )
    return opened


@contextmanager
def _explained() -> Any:
    """Explain a locked SQLite database, which is what a transaction gets that read before another wrote."""
    try:
        yield
    except OperationalError as error:
        if not str(error.orig).startswith("database is locked"):
            raise
        raise ServiceUnavailable(
            "The SQLite database is locked: another transaction writes, or has written since this session's "
            "transaction first read. Nothing was written. Roll back and repeat the transaction; write, or "
            "call the queue, before it reads",
            headers={"Retry-After": "1"},
        ) from error


@asynccontextmanager
async def _bounded(tx: Transaction, lock_seconds: float) -> AsyncIterator[None]:
    """Limit the waits for locks on PostgreSQL. The host's own limit holds again afterwards."""
    if tx.is_sqlite:
        yield
        return
    before = (await tx.execute(_BEFORE)).scalar_one()
    await tx.execute(_SET, {"value": f"{max(1, round(lock_seconds * 1000))}ms"})
    yield
    await tx.execute(_SET, {"value": before})


class _AfterCommit:
    """What to do after the commit of a session, each with the transaction or savepoint that it belongs to."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pending: list[tuple[SessionTransaction | None, Callable[[], None]]] = []
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_transaction_end", self._ended)

    @classmethod
    def of(cls, session: Session) -> "_AfterCommit":
        """Return the object of a session."""
        after_commit: _AfterCommit | None = session.info.get(_KEY)
        if after_commit is None:
            after_commit = session.info[_KEY] = cls(session)
        return after_commit

    def add(self, tx: Transaction, act: AfterCommit) -> None:
        """Call `act(tx)` in this event loop after the commit."""
        loop = asyncio.get_running_loop()

        def publish() -> None:
            log_actions(tx)
            act(tx)

        def schedule() -> None:
            try:
                loop.call_soon_threadsafe(publish)
            except RuntimeError as error:
                # The commit has succeeded; the re-check of each server finds what is new.
                logger.debug("No event was published after a commit: %r", error)

        self._pending.append((self._current(), schedule))

    def _current(self) -> SessionTransaction | None:
        return self._session.get_nested_transaction() or self._session.get_transaction()

    def _committed(self, _: Session) -> None:
        # SQLAlchemy calls it for savepoints too: what was in them now depends on what is around them.
        ended = self._current()
        outer = ended.parent if ended is not None and ended.nested else None
        mine = [act for owner, act in self._pending if owner is ended]
        self._pending = [entry for entry in self._pending if entry[0] is not ended]
        if outer is not None:
            self._pending += [(outer, act) for act in mine]
            return
        for act in mine:
            act()

    def _ended(self, _: Session, ended: SessionTransaction) -> None:
        self._pending = [entry for entry in self._pending if entry[0] is not ended]
