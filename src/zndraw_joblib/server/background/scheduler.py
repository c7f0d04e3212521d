"""Puts scheduled tasks into their queues when they are due."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from zndraw_joblib.contract.backoff import ExponentialBackoff
from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.service import sweep

logger = logging.getLogger(__name__)
Write = Callable[..., Awaitable[Any]]

_RETRY_SECONDS = 1.0
# It queries again after this time, in case the database's clock runs faster than this process's clock.
_MAX_SLEEP_SECONDS = 3600.0
_FIRST_LOCKED_PAUSE, _LONGEST_LOCKED_PAUSE = 0.01, 1.0


class Scheduler:
    """Sleeps until the next task is due, and queries the database only then, and once at the start.

    Each server wakes for the tasks that it scheduled itself; the sweeper handles all of them, because a
    server may have crashed. All times are those of the database's clock: this process only measures how long
    it sleeps. While another transaction holds a lock on a due task, the scheduler retries after growing
    pauses.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._next = float("inf")
        self._earlier: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._locked = ExponentialBackoff(_FIRST_LOCKED_PAUSE, _LONGEST_LOCKED_PAUSE, jitter=0)

    def add(self, seconds: float) -> None:
        """Wake up for a task that is due in `seconds`. Any thread may call it."""
        self._wake_at(time.monotonic() + seconds)

    def _wake_at(self, due: float) -> None:
        due = min(due, time.monotonic() + _MAX_SLEEP_SECONDS)
        if due >= self._next or self._loop is None or self._earlier is None or self._loop.is_closed():
            return
        self._next = due
        self._loop.call_soon_threadsafe(self._earlier.set)

    async def run(self) -> None:
        """Queue due tasks until cancelled."""
        self._loop, self._earlier = asyncio.get_running_loop(), asyncio.Event()
        self._next = time.monotonic()
        while True:
            await self._sleep(self._earlier)
            if self._next > time.monotonic():
                continue
            self._next = float("inf")
            try:
                seconds = await self._queue_due()
            except Exception as error:
                logger.warning("Scheduled tasks wait, the database is unavailable: %r", error)
                seconds = _RETRY_SECONDS
            if seconds is not None:
                self._wake_at(time.monotonic() + seconds)

    async def _queue_due(self) -> float | None:
        """Queue the due tasks. Return the seconds until the next one is due; None without one."""
        try:
            while await self._write(sweep.enqueue_due) == sweep.TASKS_PER_BATCH:
                pass
        except ServiceUnavailable:
            # A job may be locked: the due tasks of others must not wait for it.
            while await self._write(sweep.enqueue_due, skip_locked=True) == sweep.TASKS_PER_BATCH:
                pass
        next_due: sweep.NextDue = await self._write(sweep.next_due)
        if not next_due.is_locked:
            self._locked.reset()
            return next_due.seconds
        pause = self._locked.next()
        return pause if next_due.seconds is None else min(pause, next_due.seconds)

    async def _sleep(self, earlier: asyncio.Event) -> None:
        seconds = self._next - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, seconds) if seconds <= _MAX_SLEEP_SECONDS else None):
                await earlier.wait()
        except TimeoutError:
            return
        earlier.clear()
