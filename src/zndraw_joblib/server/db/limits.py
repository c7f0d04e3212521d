"""Time limits of everything that waits for PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

from zndraw_joblib.server.db.errors import Unresponsive
from zndraw_joblib.server.process.batcher import LOCK_SECONDS
from zndraw_joblib.server.process.settings import JobLibSettings

# How many writes may run at once outside batches, so that connections stay free for batches and reads.
_SINGLE_WRITES = 8
_IMPATIENT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts in seconds; see the settings `database_…_timeout_seconds`.

    `response` bounds a short transaction, such as a batch of claims; `statement` bounds any other.
    """

    connect: float = 5
    response: float = 10
    statement: float = 30
    lock: float = 5
    idle_transaction: float = 10

    @classmethod
    def of(cls, settings: JobLibSettings) -> Self:
        """Return the limits that the settings set."""
        return cls(
            settings.database_connect_timeout_seconds,
            settings.database_response_timeout_seconds,
            settings.database_statement_timeout_seconds,
            settings.database_lock_timeout_seconds,
            settings.database_idle_transaction_timeout_seconds,
        )

    @property
    def session_lock(self) -> float:
        """Return how long a statement waits for a lock, unless its transaction sets another time.

        It is the time of a batch, so that a batch need not set it.
        """
        return min(LOCK_SECONDS, self.lock)

    def transaction(self, *, is_short: bool) -> float:
        """Return how long a transaction may take."""
        return min(self.response, self.statement) if is_short else self.statement

    def batch_lock(self, seconds: float, *, is_short: bool) -> float:
        """Return how long a batch that may wait `seconds` for a lock does: it may wait for two of them."""
        return min(seconds, self.lock, max(self.session_lock, self.transaction(is_short=is_short) / 2))


class SingleWrites:
    """Bounds the writes that run outside batches, and how long they wait for locks.

    If many requests wait for a locked row, half of the slots go to writes that wait only briefly, so that
    requests for other rows get one. A write that gives up may be one of the others at its next attempt.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._patient = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Wait for a slot; yield the seconds that the write may wait for a lock."""
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_SINGLE_WRITES))
        try:
            async with asyncio.timeout(self._limits.response):
                await slots.acquire()
        except TimeoutError:
            raise Unresponsive(f"{_SINGLE_WRITES} writes already wait for it") from None
        is_patient = self._patient < _SINGLE_WRITES // 2
        self._patient += is_patient
        try:
            yield self._limits.lock if is_patient else min(_IMPATIENT_SECONDS, self._limits.lock)
        finally:
            self._patient -= is_patient
            slots.release()
