"""Results of providers in the memory of this process: for a server that is the only one."""

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Generic, NamedTuple, TypeVar

from zndraw_joblib.server.providers.results.notifier import Bells, streamed

Item = TypeVar("Item")

_MAX_VALUES = 100_000


class Kept(NamedTuple, Generic[Item]):
    """An item, until when by the monotonic clock, and a number that tells it from others of its key."""

    until: float
    number: int
    item: Item


class Shelf(Generic[Item]):
    """Items that expire, by key. `size` counts them all together; `drop` those that expire soonest."""

    def __init__(self, size_of: Callable[[Item], int]) -> None:
        self._size_of = size_of
        self._numbers = itertools.count()
        self._kept: dict[str, Kept[Item]] = {}
        self._line: list[tuple[float, int, str]] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> Item | None:
        """Return an item that has not expired."""
        kept = self._kept.get(key)
        return kept.item if kept is not None and kept.until > time.monotonic() else None

    def put(self, key: str, item: Item, ttl: float) -> None:
        """Keep an item for `ttl` seconds, in place of the one before."""
        self.pop(key)
        kept = self._kept[key] = Kept(time.monotonic() + ttl, next(self._numbers), item)
        heapq.heappush(self._line, (kept.until, kept.number, key))
        self.size += self._size_of(item)

    def pop(self, key: str) -> None:
        """Forget an item."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self.size -= self._size_of(kept.item)
        if len(self._line) > 2 * len(self._kept) + 64:
            self._line = [(other.until, other.number, name) for name, other in self._kept.items()]
            heapq.heapify(self._line)

    def drop_expired(self) -> float | None:
        """Forget what has expired. Return when the next one will."""
        while (first := self._first()) is not None and self._kept[first].until <= time.monotonic():
            self.pop(first)
        return None if first is None else self._kept[first].until

    def make_room(self, most: int, size: int) -> None:
        """Forget what would expire soonest until at most `most` items of at most `size` are left."""
        while len(self._kept) > most or (self.size > size and self._kept):
            first = self._first()
            assert first is not None  # noqa: S101 - whatever is kept stands in line
            self.pop(first)

    def _first(self) -> str | None:
        while self._line:
            _, number, key = self._line[0]
            if key in self._kept and self._kept[key].number == number:
                return key
            heapq.heappop(self._line)
        return None


class MemoryResults:
    """A `ResultBackend` and `StreamingBackend` in memory, for one process; its loops and threads may differ.

    It keeps at most `max_bytes`, a number or what returns one, and 100,000 values. To make room it forgets
    first what would expire soonest. The newest value is kept whatever its size: somebody waits for it.
    """

    def __init__(self, max_bytes: int | Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._values: Shelf[bytes] = Shelf(len)
        self._locks: Shelf[bool] = Shelf(lambda _: 1)
        self._bells = Bells(self.get)
        self._drop_at = 0.0

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Keep bytes under a key for `ttl` seconds."""
        data = bytes(data)  # the same object if nobody can change it
        limit = self._max_bytes if isinstance(self._max_bytes, int) else self._max_bytes()
        with self._lock:
            self._values.pop(key)
            self._values.drop_expired()
            self._values.make_room(_MAX_VALUES - 1, max(0, limit - len(data)))
            self._values.put(key, data, ttl)
        self._drop_later(ttl)

    async def get(self, key: str) -> bytes | None:
        """Return what is kept under a key, the same object to everybody."""
        with self._lock:
            return self._values.get(key)

    async def delete(self, key: str) -> None:
        """Forget what is kept under a key."""
        with self._lock:
            self._values.pop(key)

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds; tell whether it was free."""
        with self._lock:
            self._locks.drop_expired()
            if self._locks.get(key):
                return False
            self._locks.put(key, True, ttl)
        return True

    async def release_inflight(self, key: str) -> None:
        """Give the lock back."""
        with self._lock:
            self._locks.pop(key)

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return what is kept under a key, waiting up to `timeout` seconds for a notice."""
        return await self._bells.wait(key, timeout)

    async def notify_key(self, key: str) -> None:
        """Wake everybody who waits for a key."""
        self._bells.ring(key)

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Keep the chunks under a key once the last one is there."""
        await self.store(key, b"".join([chunk async for chunk in chunks]), ttl)

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of what is kept, and its bytes; one chunk at a time is copied for each reader."""
        data = await self.get(key)
        return None if data is None else (len(data), streamed(data))

    def _drop_later(self, seconds: float) -> None:
        # Where nobody asks any more, memory is given back nevertheless. The loop of an earlier timer may be
        # gone: one that should have come makes place for another.
        now = time.monotonic()
        if not now <= self._drop_at <= now + seconds:
            self._drop_at = now + seconds
            asyncio.get_running_loop().call_later(seconds, self._drop_expired)

    def _drop_expired(self) -> None:
        with self._lock:
            following = self._values.drop_expired()
            self._drop_at = 0.0
        if following is not None:
            self._drop_later(max(0.01, following - time.monotonic()))
