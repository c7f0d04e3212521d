"""Functions with which a host sweeps in its own process and on its own sessions."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.realtime.publisher import emit
from zndraw_joblib.server.service import sweep, workers
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store.database import Transaction, run
from zndraw_joblib.server.store.sessions import SessionDatabase, begin
from zndraw_joblib.server.store.tables import Worker

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_FINISH_SECONDS = 5.0


async def run_sweeper(
    get_session: Callable[[], Any],
    settings: JobLibSettings,
    tsio: Any = None,
    *,
    on_providers_removed: Callable[[list[str]], Awaitable[object]] | None = None,
) -> None:
    """Sweep until cancelled, with a new session for each of a cycle's two passes.

    A cancellation waits at most 5 seconds for the transaction under way and its events.

    `get_session` is an async generator function that yields a session, or an `async_sessionmaker`. After a
    commit `on_providers_removed` gets the full names of providers that were removed with their workers; what
    it raises is logged.
    """
    database = SessionDatabase(partial(open_session, get_session))

    async def write(work: Callable[..., Awaitable[Result]], *args: Any, **kwargs: Any) -> Result:
        writing = asyncio.ensure_future(commit(work, *args, **kwargs))
        try:
            return await asyncio.shield(writing)
        finally:
            _, unfinished = await asyncio.wait([writing], timeout=_FINISH_SECONDS)
            if unfinished:
                writing.cancel()
                await asyncio.wait([writing])

    async def commit(work: Callable[..., Awaitable[Result]], *args: Any, **kwargs: Any) -> Result:
        result, tx = await database.write(work, *args, **kwargs)
        await emit(tsio, tx.emissions)
        if tx.removed_providers and on_providers_removed is not None:
            try:
                await on_providers_removed(tx.removed_providers)
            except Exception:
                logger.exception("on_providers_removed failed: providers=%s", tx.removed_providers)
        return result

    await Sweeper(write, settings).run()


def open_session(get_session: Callable[[], Any]) -> AbstractAsyncContextManager[Any]:
    """Open a session with an async generator function that yields it, or an `async_sessionmaker`."""
    if inspect.isasyncgenfunction(get_session):
        return asynccontextmanager(get_session)()
    opened = get_session()
    if isinstance(opened, AsyncGenerator):
        return _first_session(opened)
    session: AbstractAsyncContextManager[Any] = opened
    return session


@asynccontextmanager
async def _first_session(sessions: AsyncGenerator[Any, None]) -> AsyncIterator[Any]:
    async with aclosing(sessions):
        async for session in sessions:
            yield session


async def cleanup_worker(session: Any, worker: Worker) -> list[Emission]:
    """Remove a worker and fail or requeue its tasks, in the caller's session. Does not commit.

    Return the events to `emit` after the commit.
    """
    tx = await begin(session)
    await run(partial(workers.retire, worker_ids=[worker.id]), tx)
    return tx.emissions


async def cleanup_stale_workers(session: Any, timeout: timedelta) -> tuple[int, list[Emission]]:
    """Remove all workers that have been silent for longer than `timeout`, in bounded transactions.

    Return how many there were, and the events to `emit`.
    """
    return await _until_done(session, partial(sweep.retire_stale, timeout=timeout), 1)


async def cleanup_stuck_internal_tasks(session: Any, timeout: timedelta) -> tuple[int, list[Emission]]:
    """Fail all internal tasks that have been held for longer than `timeout`, in bounded transactions.

    Return how many there were, and the events to `emit`.
    """
    return await _until_done(session, partial(sweep.fail_stuck, timeout=timeout), sweep.TASKS_PER_BATCH)


async def _until_done(
    session: Any, batch: Callable[[Transaction], Awaitable[int]], size: int
) -> tuple[int, list[Emission]]:
    count, emissions = 0, []
    while True:
        tx = await begin(session)
        done = await run(batch, tx)
        await session.commit()
        count += done
        emissions += tx.emissions
        if done < size:
            return count, emissions
