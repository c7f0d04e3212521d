"""Work of the queue in a host's own session. What follows a commit waits for the host's commit."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import bindparam, event, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.batcher import RowLocked, locked_problem
from zndraw_joblib.server.store.database import Clock, Transaction, Work, log_actions, run
from zndraw_joblib.server.store.errors import RepeatTransaction, raises_unavailable
from zndraw_joblib.server.store.sessions import begin, from_connection

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
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
    session: Any, clock: Clock | None, lock_seconds: float, work: Work[Result], after_commit: AfterCommit
) -> Result:
    """Run `work` in a host's session, as a whole or not at all. Does not commit.

    `after_commit` gets the transaction in this event loop once the host has committed it, and never if the
    host rolls it back, wholly or to a savepoint. Raises `ServiceUnavailable` if another transaction holds a
    lock for longer than `lock_seconds`, and TypeError unless `session` is an `AsyncSession`.
    """
    opened = _opened(session)
    for left in reversed(range(_ATTEMPTS)):
        try:
            result, tx = await _write(opened, clock, lock_seconds, work)
            break
        except RowLocked as error:
            raise locked_problem("a row that the call needs", lock_seconds) from error
        except RepeatTransaction:
            # The savepoint is rolled back, so the next attempt sees what another transaction has changed.
            if not left:
                raise
    _AfterCommit.of(opened.sync_session).add(tx, after_commit)
    return result


async def _write(
    session: AsyncSession, clock: Clock | None, lock_seconds: float, work: Work[Result]
) -> tuple[Result, Transaction]:
    with raises_unavailable(), _explained():
        tx = await begin(session, clock)
        connection = await session.connection()
        # If the work fails, the host may continue its transaction, without a part of the work.
        async with connection.begin_nested(), _bounded(tx, lock_seconds):
            return await run(work, tx), tx


def _opened(session: Any) -> AsyncSession:
    found = session() if isinstance(session, async_scoped_session) else session
    if not isinstance(found, AsyncSession):
        raise TypeError(
            f"session is {type(found).__name__}, but the queue needs the AsyncSession of the transaction "
            "(SQLAlchemy's or SQLModel's). Leave it out to submit in a transaction of the queue"
        )
    return found


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
        found: _AfterCommit | None = session.info.get(_KEY)
        if found is None:
            found = session.info[_KEY] = cls(session)
        return found

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
