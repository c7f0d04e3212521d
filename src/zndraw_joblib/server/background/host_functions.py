"""Functions with which a host sweeps in its own process and on its own sessions."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.database import Transaction, run
from zndraw_joblib.server.db.host_sessions import SessionDatabase, begin
from zndraw_joblib.server.db.tables import Worker
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_ends, rules_sweep, rules_workers
from zndraw_joblib.server.realtime.publisher import emit
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.names import rooms_with_frames

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

_FINISH_SECONDS = 5.0


async def run_sweeper(
    get_session: Callable[[], Any],
    settings: JobLibSettings,
    tsio: Any = None,
    *,
    on_providers_removed: Callable[[list[str]], Awaitable[object]] | None = None,
    on_frame_rooms: Callable[[set[str]], Awaitable[object]] | None = None,
) -> None:
    """Sweep until cancelled, with a new session for each of a cycle's two passes.

    A cancellation waits at most 5 seconds for the transaction under way and its events.

    `get_session` is an async generator function that yields a session, or an `async_sessionmaker`. After a
    commit `on_providers_removed` gets the full names of providers that were removed with their workers, and
    `on_frame_rooms` the rooms of those with the category ``frames``; what they raise is logged.
    """
    database = SessionDatabase(partial(open_session, get_session))
    database.keeps_unserved_jobs = settings.keeps_unserved_jobs
    database.settle = rules_ends.settle

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
        for call, argument in (
            (on_providers_removed, tx.removed_providers),
            (on_frame_rooms, rooms_with_frames(tx.removed_providers)),
        ):
            await _notify(call, argument)
        return result

    await Sweeper(write, settings).run()


async def _notify(call: Callable[[Any], Awaitable[object]] | None, argument: Collection[str]) -> None:
    if call is None or not argument:
        return
    try:
        await call(argument)
    except Exception:
        name = getattr(call, "__qualname__", call)
        logger.exception("A function for removed providers failed: function=%s argument=%s", name, argument)


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


class Removed(NamedTuple):
    """How many workers or tasks a clean-up removed, its events, and the providers that left with them."""

    total: int
    emissions: list[Emission]
    providers: list[str]


async def cleanup_worker(session: Any, worker: Worker) -> list[Emission]:
    """Remove a worker and fail or requeue its tasks, in the caller's session. Does not commit.

    Return the events to `emit` after the commit.
    """
    return (await remove_worker(session, worker)).emissions


async def cleanup_stale_workers(session: Any, timeout: timedelta) -> tuple[int, list[Emission]]:
    """Remove all workers that have been silent for longer than `timeout`, in bounded transactions.

    Return how many there were, and the events to `emit`.
    """
    removed = await remove_stale_workers(session, timeout)
    return removed.total, removed.emissions


async def cleanup_stuck_internal_tasks(session: Any, timeout: timedelta) -> tuple[int, list[Emission]]:
    """Fail all internal tasks that have been held for longer than `timeout`, in bounded transactions.

    Return how many there were, and the events to `emit`.
    """
    removed = await _until_done(
        session, partial(rules_sweep.fail_stuck, timeout=timeout), rules_sweep.TASKS_PER_BATCH
    )
    return removed.total, removed.emissions


async def _begin(session: Any) -> Transaction:
    tx = await begin(session)
    tx.settle = rules_ends.settle
    return tx


async def remove_worker(session: Any, worker: Worker) -> Removed:
    """Remove a worker in the caller's session, as `cleanup_worker`."""
    tx = await _begin(session)
    await run(partial(rules_workers.retire, worker_ids=[worker.id]), tx)
    return Removed(1, tx.emissions, tx.removed_providers)


async def remove_stale_workers(session: Any, timeout: timedelta) -> Removed:
    """Remove silent workers, as `cleanup_stale_workers`."""
    return await _until_done(session, partial(rules_sweep.retire_stale, timeout=timeout), 1)


async def _until_done(session: Any, batch: Callable[[Transaction], Awaitable[int]], size: int) -> Removed:
    count, emissions, providers = 0, [], []
    while True:
        tx = await _begin(session)
        number = await run(batch, tx)
        await session.commit()
        count += number
        emissions += tx.emissions
        providers += tx.removed_providers
        if number < size:
            return Removed(count, emissions, providers)
