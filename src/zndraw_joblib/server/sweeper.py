"""The loop that cleans up after whatever dies. It never exits, and one failure stops nothing else.

The cycle itself is in `service.sweep`; the cascade it runs is seed 000's.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.server.adapters.socketio import emit
from zndraw_joblib.server.service import sweep, workers
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store.database import Sessions, Transaction, begin
from zndraw_joblib.server.store.tables import Worker

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Write = Callable[[Callable[[Transaction], Awaitable[Any]]], Awaitable[Any]]

_PASS_SECONDS = 60.0
# A timer may fire a touch early; that must not cost a whole interval.
_TICK_TOLERANCE = 0.01
_BRAKE_AT_LEAST = 5


@dataclass(slots=True)
class Cycle:
    """What one cycle found and did; `elapsed` in seconds."""

    scanned: int = 0
    stale: int = 0
    expired: int = 0
    stuck: int = 0
    abandoned: int = 0
    errors: int = 0
    elapsed: float = 0.0
    is_held_back: bool = False


class Sweeper:
    """Runs cycles. `write` runs work in a transaction, commits, and tells what happened."""

    def __init__(self, write: Write, settings: JobLibSettings) -> None:
        self._write = write
        self._settings = settings
        self._watching_since = time.monotonic()
        self._last_tick = time.monotonic()
        self.last_good = time.monotonic()
        self.last_cycle: Cycle | None = None

    async def run(self) -> None:
        """Sweep every `sweeper_interval_seconds`, for ever."""
        now = time.monotonic()
        self._watching_since = self._last_tick = self.last_good = now
        self._warn_of_tight_margin()
        while True:
            await asyncio.sleep(self._settings.sweeper_interval_seconds)
            await self.cycle()

    async def cycle(self) -> Cycle:
        """Sweep once. Never raises; what failed is logged and counted."""
        started = time.monotonic()
        if started - self._last_tick > 2 * self._settings.sweeper_interval_seconds:
            # The sick one may be ourselves: whoever could not reach us gets a full timeout first.
            self._watching_since = started
        self._last_tick = started
        cycle = Cycle()
        swept_workers = await self._guard(cycle, self._sweep_workers(cycle))
        if not swept_workers:
            # While we could not look, workers may not have been able to report either.
            self._watching_since = time.monotonic()
        swept_tasks = await self._guard(cycle, self._sweep_tasks(cycle))
        if not swept_tasks:
            # A task of one kind that cannot be failed must not keep those of the other.
            await self._guard(cycle, self._sweep_tasks_apart(cycle))
        cycle.elapsed = time.monotonic() - started
        if swept_workers and swept_tasks:
            # One worker that cannot be retired is in the log; it makes the server no less ready.
            self.last_good = time.monotonic()
        self.last_cycle = cycle
        busy = cycle.stale or cycle.stuck or cycle.abandoned or cycle.errors
        logger.log(logging.INFO if busy else logging.DEBUG, "swept: %s", cycle)
        return cycle

    @property
    def is_late(self) -> bool:
        """Whether the last good cycle is longer ago than three intervals."""
        return time.monotonic() - self.last_good > 3 * self._settings.sweeper_interval_seconds + 1

    async def _guard(self, cycle: Cycle, work: Awaitable[None]) -> bool:
        try:
            async with asyncio.timeout(_PASS_SECONDS):
                await work
        except Exception:
            cycle.errors += 1
            logger.exception("a pass of the sweeper failed; the next cycle tries again")
            return False
        return True

    async def _sweep_workers(self, cycle: Cycle) -> None:
        timeout = timedelta(seconds=self._settings.worker_timeout_seconds)
        watched = time.monotonic() - self._watching_since + _TICK_TOLERANCE
        while True:
            judge = watched >= self._settings.worker_timeout_seconds
            try:
                more = await self._write(
                    partial(self._sweep_batch, cycle=cycle, timeout=timeout, judge=judge)
                )
            except Exception:
                if not judge or cycle.is_held_back:
                    raise
                logger.exception("a batch of silent workers was not retired, trying one by one")
                await self._retire_singly(cycle, timeout)
                return
            if not more:
                return

    async def _sweep_batch(self, tx: Transaction, cycle: Cycle, timeout: timedelta, judge: bool) -> bool:
        scanned, stale = await sweep.survey(tx, timeout)
        cycle.scanned, cycle.stale = max(cycle.scanned, scanned), max(cycle.stale, stale)
        if judge and not cycle.expired:
            cycle.is_held_back = self._must_hold_back(cycle)
        expired = await sweep.retire_stale(tx, timeout) if judge and not cycle.is_held_back else 0
        cycle.expired += expired
        return expired == sweep.WORKERS_PER_BATCH

    def _must_hold_back(self, cycle: Cycle) -> bool:
        many = cycle.stale >= _BRAKE_AT_LEAST and 2 * cycle.stale > cycle.scanned
        held_already = self.last_cycle is not None and self.last_cycle.is_held_back
        if many and not held_already:
            logger.warning(
                "%d of %d workers are silent: the fault may be here, waiting one cycle before judging",
                cycle.stale,
                cycle.scanned,
            )
            return True
        return False

    async def _retire_singly(self, cycle: Cycle, timeout: timedelta) -> None:
        ids: list[UUID] = await self._write(partial(sweep.stale_workers, timeout=timeout))
        for worker_id in ids:
            try:
                cycle.expired += await self._write(
                    partial(sweep.retire_stale, timeout=timeout, only=worker_id)
                )
            except Exception:
                cycle.errors += 1
                logger.exception("worker %s was not retired", worker_id)

    async def _sweep_tasks(self, cycle: Cycle) -> None:
        while True:
            stuck, abandoned = await self._write(partial(sweep.fail_lost, timeout=self._internal_timeout()))
            cycle.stuck += stuck
            cycle.abandoned += abandoned
            if max(stuck, abandoned) < sweep.TASKS_PER_BATCH:
                return

    async def _sweep_tasks_apart(self, cycle: Cycle) -> None:
        with suppress(Exception):
            cycle.stuck += await self._write(partial(sweep.fail_stuck, timeout=self._internal_timeout()))
        with suppress(Exception):
            cycle.abandoned += await self._write(sweep.fail_abandoned)

    def _internal_timeout(self) -> timedelta:
        return timedelta(seconds=self._settings.internal_task_timeout_seconds)

    def _warn_of_tight_margin(self) -> None:
        settings = self._settings
        if settings.worker_timeout_seconds < settings.sweeper_interval_seconds:
            logger.warning(
                "sweeper_interval_seconds (%g) is longer than worker_timeout_seconds (%g): dead workers "
                "are noticed late",
                settings.sweeper_interval_seconds,
                settings.worker_timeout_seconds,
            )


async def run_sweeper(get_session: Callable[[], Any], settings: JobLibSettings, tsio: Any = None) -> None:
    """Sweep for ever, with a fresh session for each of a cycle's two passes.

    `get_session` is an async generator function that yields a session, or an `async_sessionmaker`.
    """
    database = Sessions(partial(_open, get_session))

    async def write(work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        result, tx = await database.write(work)
        await emit(tsio, tx.emissions)
        return result

    await Sweeper(write, settings).run()


def _open(get_session: Callable[[], Any]) -> AbstractAsyncContextManager[Any]:
    if inspect.isasyncgenfunction(get_session):
        return asynccontextmanager(get_session)()
    opened = get_session()
    if isinstance(opened, AsyncGenerator):
        return _drawn(opened)
    session: AbstractAsyncContextManager[Any] = opened
    return session


@asynccontextmanager
async def _drawn(sessions: AsyncGenerator[Any, None]) -> AsyncIterator[Any]:
    async with aclosing(sessions) as drawn:
        async for session in drawn:
            yield session


async def cleanup_worker(session: Any, worker: Worker) -> list[Emission]:
    """Remove a worker as if it had left, in the caller's session. Does not commit.

    Returns the events to `emit` after the commit.
    """
    tx = await begin(session)
    await workers.retire(tx, [worker.id])
    return tx.emissions


async def cleanup_stale_workers(session: Any, timeout: timedelta) -> tuple[int, list[Emission]]:
    """Remove all workers that are silent for longer than `timeout`, in bounded transactions.

    Returns how many there were, and the events to `emit`.
    """
    return await _until_done(session, partial(sweep.retire_stale, timeout=timeout), sweep.WORKERS_PER_BATCH)


async def cleanup_stuck_internal_tasks(session: Any, timeout: timedelta) -> tuple[int, list[Emission]]:
    """Fail all internal tasks that are held for longer than `timeout`, in bounded transactions.

    Returns how many there were, and the events to `emit`.
    """
    return await _until_done(session, partial(sweep.fail_stuck, timeout=timeout), sweep.TASKS_PER_BATCH)


async def _until_done(
    session: Any, batch: Callable[[Transaction], Awaitable[int]], size: int
) -> tuple[int, list[Emission]]:
    count, emissions = 0, []
    while True:
        tx = await begin(session)
        done = await batch(tx)
        await session.commit()
        count += done
        emissions += tx.emissions
        if done < size:
            return count, emissions
