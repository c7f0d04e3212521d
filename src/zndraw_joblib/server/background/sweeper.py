"""The loop that cleans up after whatever dies. It never exits, and one failure stops nothing else.

The cycle itself is in `service.sweep`; the cascade it runs is seed 000's.
"""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.contract.messages import SweeperMode, SweeperPreview
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.realtime.publisher import emit
from zndraw_joblib.server.service import sweep, workers
from zndraw_joblib.server.service.workers import Counts
from zndraw_joblib.server.settings import JobLibSettings
from zndraw_joblib.server.store.database import SessionDatabase, Transaction, begin
from zndraw_joblib.server.store.tables import Worker

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Write = Callable[..., Awaitable[Any]]
Batch = Callable[[Transaction], Awaitable[int]]

_PASS_SECONDS = 60.0
# A timer may fire a touch early; that must not cost a whole interval.
_TICK_TOLERANCE = 0.01
_BRAKE_AT_LEAST = 5
_CYCLES_KEPT = 20


@dataclass(slots=True)
class Cycle:
    """What one cycle found and did; `elapsed` in seconds. `expired` counts workers, the rest counts tasks."""

    mode: SweeperMode | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    scanned: int = 0
    stale: int = 0
    expired: int = 0
    counts: Counts = field(default_factory=Counts)
    pruned: int = 0
    errors: int = 0
    elapsed: float = 0.0
    is_held_back: bool = False

    def __str__(self) -> str:
        """Return the summary for the log."""
        held_back = ", held back: the fault may be here" if self.is_held_back else ""
        return (
            f"scanned={self.scanned} stale={self.stale} expired={self.expired} "
            f"released={self.counts.released} failed={self.counts.failed} pruned={self.pruned} "
            f"errors={self.errors} elapsed={self.elapsed:.3f} s mode={self.mode}{held_back}"
        )


class Sweeper:
    """Runs cycles. `write` runs work in a transaction, commits, and tells what happened.

    `then` is called in each cycle that may act.
    """

    def __init__(
        self, write: Write, settings: JobLibSettings, then: Callable[[], None] = lambda: None
    ) -> None:
        self._write = write
        self._then = then
        self._settings = settings
        self._watching_since = time.monotonic()
        self._last_tick = time.monotonic()
        self.last_good = time.monotonic()
        self.last_cycles: deque[Cycle] = deque(maxlen=_CYCLES_KEPT)

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
        is_good = await self._sweep(cycle)
        cycle.elapsed = time.monotonic() - started
        if is_good:
            # One worker that cannot be retired is in the log; it makes the server no less ready.
            self.last_good = time.monotonic()
        self.last_cycles.append(cycle)
        busy = cycle.stale or cycle.counts != Counts() or cycle.pruned or cycle.errors
        logger.log(logging.INFO if busy else logging.DEBUG, "swept: %s", cycle)
        return cycle

    async def _sweep(self, cycle: Cycle) -> bool:
        """Do what the mode asks for. Tell whether all passes went through."""
        swept_workers = await self._guard(cycle, self._sweep_workers(cycle))
        if not swept_workers:
            # While we could not look, workers may not have been able to report either.
            self._watching_since = time.monotonic()
        if cycle.mode != SweeperMode.ENFORCE:
            return swept_workers
        self._then()
        swept_tasks = await self._guard(cycle, self._until_done(self._settle(cycle)))
        if not swept_tasks:
            # A task of one kind that cannot be settled must not keep those of the others.
            for batch in self._batches(cycle):
                with suppress(Exception):
                    async with asyncio.timeout(_PASS_SECONDS):
                        await self._until_done(batch)
        return swept_workers and swept_tasks and await self._guard(cycle, self._prune(cycle))

    @property
    def is_late(self) -> bool:
        """Whether the last good cycle is longer ago than three intervals."""
        return time.monotonic() - self.last_good > 3 * self._settings.sweeper_interval_seconds + 1

    @property
    def credit(self) -> float:
        """The seconds until somebody may be judged: each worker has had a full timeout to report by then."""
        watched = time.monotonic() - self._watching_since
        return max(0.0, self._settings.worker_timeout_seconds - watched)

    async def _guard(self, cycle: Cycle, work: Awaitable[None]) -> bool:
        try:
            async with asyncio.timeout(_PASS_SECONDS):
                await work
        except Exception:
            cycle.errors += 1
            logger.exception("a pass of the sweeper failed; the next cycle tries again")
            return False
        return True

    async def _observe(self, tx: Transaction, cycle: Cycle) -> None:
        found = await self.preview(tx)
        cycle.scanned, cycle.stale, cycle.expired = found.scanned, found.stale, len(found.workers)
        cycle.counts.released = sum(change.after == TaskStatus.PENDING for change in found.tasks)
        cycle.counts.failed = len(found.tasks) - cycle.counts.released

    async def preview(self, tx: Transaction) -> SweeperPreview:
        """Return what a cycle would do now, but for its credit and its brake."""
        return await sweep.preview(tx, self._timeout(), self._internal_timeout())

    async def _sweep_workers(self, cycle: Cycle) -> None:
        timeout = self._timeout()
        judge = self.credit <= _TICK_TOLERANCE
        while True:
            try:
                more = await self._write(self._sweep_batch, cycle=cycle, timeout=timeout, judge=judge)
            except Exception:
                if not judge or cycle.is_held_back:
                    raise
                logger.exception("a batch of silent workers was not retired, trying one by one")
                await self._retire_singly(cycle, timeout)
                return
            if not more:
                return

    async def _sweep_batch(self, tx: Transaction, cycle: Cycle, timeout: timedelta, judge: bool) -> bool:
        if not cycle.expired:
            cycle.mode = await sweep.mode(tx, self._settings.sweeper_mode)
            if cycle.mode == SweeperMode.OBSERVE:
                await self._observe(tx, cycle)
            if cycle.mode != SweeperMode.ENFORCE:
                return False
            cycle.scanned, cycle.stale = await sweep.count_workers(tx, timeout)
            cycle.is_held_back = judge and self._must_hold_back(cycle)
        if not judge or cycle.is_held_back:
            return False
        expired = await sweep.retire_stale(tx, timeout, counts=cycle.counts)
        cycle.expired += expired
        return expired == sweep.WORKERS_PER_BATCH

    def _must_hold_back(self, cycle: Cycle) -> bool:
        many = cycle.stale >= _BRAKE_AT_LEAST and 2 * cycle.stale > cycle.scanned
        held_already = bool(self.last_cycles) and self.last_cycles[-1].is_held_back
        if many and not held_already:
            logger.warning(
                "%d of %d workers are silent: the fault may be here, waiting one cycle before judging",
                cycle.stale,
                cycle.scanned,
            )
            return True
        return False

    async def _retire_singly(self, cycle: Cycle, timeout: timedelta) -> None:
        ids: list[UUID] = await self._write(sweep.stale_workers, timeout=timeout)
        for worker_id in ids:
            try:
                cycle.expired += await self._write(
                    sweep.retire_stale, timeout=timeout, only=worker_id, counts=cycle.counts
                )
            except Exception:
                cycle.errors += 1
                logger.exception("worker %s was not retired", worker_id)

    def _batches(self, cycle: Cycle) -> list[Batch]:
        return [
            partial(sweep.fail_stuck, timeout=self._internal_timeout(), counts=cycle.counts),
            partial(sweep.recover_abandoned, counts=cycle.counts),
            partial(sweep.recover_overdue, counts=cycle.counts),
            partial(sweep.fail_expired, counts=cycle.counts),
            sweep.enqueue_due,
            sweep.prune_provider_requests,
        ]

    def _settle(self, cycle: Cycle) -> Batch:
        """Return a batch of all kinds in one transaction."""

        async def settle(tx: Transaction) -> int:
            return max([await batch(tx) for batch in self._batches(cycle)])

        return settle

    async def _until_done(self, batch: Batch) -> None:
        while await self._write(batch) >= sweep.TASKS_PER_BATCH:
            pass

    async def _prune(self, cycle: Cycle) -> None:
        days = self._settings.keep_finished_days
        after: int | None = 0
        while days is not None and after is not None:
            pruned, after = await self._write(sweep.prune, keep=timedelta(days=days), after=after)
            cycle.pruned += pruned

    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._settings.worker_timeout_seconds)

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
        if 3 * settings.heartbeat_seconds > settings.worker_timeout_seconds:
            logger.warning(
                "heartbeat_interval_seconds (%g) is more than a third of worker_timeout_seconds (%g): a "
                "worker that misses one or two heartbeats is taken for dead",
                settings.heartbeat_seconds,
                settings.worker_timeout_seconds,
            )


async def run_sweeper(get_session: Callable[[], Any], settings: JobLibSettings, tsio: Any = None) -> None:
    """Sweep for ever, with a fresh session for each of a cycle's two passes.

    `get_session` is an async generator function that yields a session, or an `async_sessionmaker`.
    """
    database = SessionDatabase(partial(_open, get_session))

    async def write(work: Callable[..., Awaitable[Result]], *args: Any, **kwargs: Any) -> Result:
        result, tx = await database.write(work, *args, **kwargs)
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
