"""Lets scheduled tasks into their queues when their time comes."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from zndraw_joblib.server.service import sweep

logger = logging.getLogger(__name__)
Write = Callable[..., Awaitable[Any]]

_FAULT_PAUSE_SECONDS = 1.0
_LONGEST_SECONDS = 3600.0


class Scheduler:
    """Sleeps until the next task is due, and asks the database only then, and once at the start.

    Each server minds the tasks that it has scheduled itself; the sweeper minds all of them, for a server may
    have died. Whether a time has come says the database's clock: ours says only when to ask.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._next = float("inf")
        self._sooner: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, at: datetime) -> None:
        """Wake up for a task that is due at this time."""
        self._look_at(time.monotonic() + (at - datetime.now(UTC)).total_seconds())

    def _look_at(self, due: float) -> None:
        if due >= self._next or self._loop is None or self._sooner is None or self._loop.is_closed():
            return
        self._next = due
        self._loop.call_soon_threadsafe(self._sooner.set)

    async def run(self) -> None:
        """Mind the schedule until cancelled."""
        self._loop, self._sooner = asyncio.get_running_loop(), asyncio.Event()
        self._next = time.monotonic()
        while True:
            await self._sleep(self._sooner)
            if self._next > time.monotonic():
                continue
            self._next = float("inf")
            try:
                seconds = await self._queue_due()
            except Exception as error:
                logger.warning("scheduled tasks wait, for the database does not answer: %r", error)
                seconds = _FAULT_PAUSE_SECONDS
            if seconds is not None:
                self._look_at(time.monotonic() + seconds)

    async def _queue_due(self) -> float | None:
        """Queue what is due. Return in how many seconds there is more to do, None if never."""
        while await self._write(sweep.enqueue_due) == sweep.TASKS_PER_BATCH:
            pass
        seconds: float | None = await self._write(sweep.next_due)
        return seconds

    async def _sleep(self, sooner: asyncio.Event) -> None:
        seconds = min(self._next - time.monotonic(), _LONGEST_SECONDS)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await sooner.wait()
        except TimeoutError:
            return
        sooner.clear()
