"""Puts scheduled tasks into their queues when they are due."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from zndraw_joblib.server.service import sweep

logger = logging.getLogger(__name__)
Write = Callable[..., Awaitable[Any]]

_RETRY_SECONDS = 1.0
_MAX_SLEEP_SECONDS = 3600.0


class Scheduler:
    """Sleeps until the next task is due, and queries the database only then, and once at the start.

    Each server wakes for the tasks that it scheduled itself; the sweeper handles all of them, because a
    server may have crashed. The database's clock decides whether a task is due; the server's clock only
    decides when to query.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._next = float("inf")
        self._earlier: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, at: datetime) -> None:
        """Wake up for a task that is due at `at`. Any thread may call it."""
        self._wake_at(time.monotonic() + (at - datetime.now(UTC)).total_seconds())

    def _wake_at(self, due: float) -> None:
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
        while await self._write(sweep.enqueue_due) == sweep.TASKS_PER_BATCH:
            pass
        seconds: float | None = await self._write(sweep.next_due)
        return seconds

    async def _sleep(self, earlier: asyncio.Event) -> None:
        seconds = min(self._next - time.monotonic(), _MAX_SLEEP_SECONDS)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await earlier.wait()
        except TimeoutError:
            return
        earlier.clear()
