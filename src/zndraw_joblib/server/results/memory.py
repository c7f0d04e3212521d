"""A result backend in the memory of one server process."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from math import inf
from typing import NamedTuple
from weakref import WeakSet

from cachetools import TLRUCache

from zndraw_joblib.server.results import backends
from zndraw_joblib.server.results.backends import Notifier

_EXPIRE_SECONDS = 1.0


class Value(NamedTuple):
    """Bytes and the number of seconds for which they are kept."""

    data: bytes
    ttl: float


class ExpiringCache(TLRUCache[str, Value, float]):
    """A cache without a bound of its own; `popitem` removes the value that expires first."""

    def __init__(self) -> None:
        super().__init__(
            inf,
            ttu=lambda _, value, now: now + value.ttl,
            timer=time.monotonic,
            getsizeof=lambda value: len(value.data),
        )

    def popitem(self) -> tuple[str, Value]:
        """Remove and return the value that expires first. Raises KeyError if none is left."""
        self.expire()
        for key in self:  # after `expire`, iteration begins at the top of the heap
            return key, self.pop(key)
        raise KeyError("every value has expired")


class MemoryResults:
    """A `ResultBackend` and `StreamingBackend` in memory, for all event loops and threads of one process.

    It keeps at most `max_bytes` bytes (a number or a function that returns it) and `max_values` values. To
    make room it removes the values that expire first. The newest value always stays.
    """

    def __init__(self, max_bytes: int | Callable[[], int], *, max_values: int = 100_000) -> None:
        self._max_bytes = max_bytes
        self._max_values = max_values
        self._lock = threading.Lock()
        self._values = ExpiringCache()
        self._locks = ExpiringCache()
        self._expiring: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self.notifier = Notifier(self.get)

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Store bytes under a key for `ttl` seconds."""
        value = Value(bytes(data), ttl)  # `bytes` copies only what a caller could change
        limit = self._max_bytes if isinstance(self._max_bytes, int) else self._max_bytes()
        with self._lock:
            values = self._values
            values.pop(key, None)
            while len(values) and (
                len(values) >= self._max_values or values.currsize + len(value.data) > limit
            ):
                with suppress(KeyError):  # values may expire meanwhile
                    values.popitem()
            values[key] = value
        self._expire_later()

    async def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, the same object to all callers, or None."""
        with self._lock:
            value = self._values.get(key)
        return None if value is None else value.data

    async def delete(self, key: str) -> None:
        """Remove a key."""
        with self._lock:
            self._values.pop(key, None)

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds. Return whether it was free."""
        with self._lock:
            is_free = key not in self._locks
            if is_free:
                self._locks[key] = Value(b"", ttl)
        return is_free

    async def release_inflight(self, key: str) -> None:
        """Release a lock."""
        with self._lock:
            self._locks.pop(key, None)

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return the bytes of a key, waiting up to `timeout` seconds for a notification."""
        return await self.notifier.wait(key, timeout)

    async def notify_key(self, key: str) -> None:
        """Wake all callers that wait for a key."""
        self.notifier.notify(key)

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a key after the last one has come."""
        await self.store(key, b"".join([chunk async for chunk in chunks]), ttl)

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts from `start`; each reader copies one part at a time."""
        data = await self.get(key)
        return None if data is None else (len(data), backends.stream(data, start))

    async def close(self) -> None:
        """Do nothing: there are no connections to close."""

    def _expire_later(self) -> None:
        # Without a timer, values that are not read again would stay in memory. Each event loop has its own
        # timer, because the loop of another timer may be closed.
        loop = asyncio.get_running_loop()
        if loop not in self._expiring:
            self._expiring.add(loop)
            loop.call_later(_EXPIRE_SECONDS, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._expiring.discard(loop)
        with self._lock:
            remaining = len(self._values)  # `len` removes what has expired
        if remaining:
            self._expire_later()
