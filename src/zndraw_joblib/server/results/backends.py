"""Bytes in parts: a result backend writes and returns at most `PART_BYTES` at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.wire.problems import ServiceUnavailable


async def stream(data: bytes, start: int = 0) -> AsyncIterator[bytes]:
    """Return bytes from `start` on as a stream of parts."""
    for part in _split(data, start):
        yield part


async def rechunk(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the bytes of a stream in full parts; only the last one may be shorter."""
    buffer = bytearray()
    async for chunk in chunks:
        for part in _split(chunk):
            if not buffer and len(part) == PART_BYTES:
                yield part
                continue
            buffer += part
            if len(buffer) >= PART_BYTES:
                yield bytes(memoryview(buffer)[:PART_BYTES])
                del buffer[:PART_BYTES]
    if buffer:
        yield bytes(buffer)


def _split(data: bytes, first: int = 0) -> Iterator[bytes]:
    return (data[start : start + PART_BYTES] for start in range(first, len(data), PART_BYTES))


# Waiting for a key of a result backend, and one read for all callers that want the same key.

Read = Callable[[str], Awaitable[bytes | None]]


class SingleFlight:
    """A read function that concurrent callers share: one read serves all callers of an event loop."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._reads: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Future[bytes | None]] = {}

    async def __call__(self, key: str) -> bytes | None:
        """Return the value that the key has at some time during the call, or None."""
        place = (asyncio.get_running_loop(), key)
        reading = self._reads.get(place)
        if reading is None:
            reading = self._reads[place] = asyncio.ensure_future(self._read(key))
            reading.add_done_callback(lambda _: self._reads.pop(place, None))
            return await asyncio.shield(reading)
        value = await asyncio.shield(reading)
        # The shared read began before this call, perhaps before the value was stored.
        return await self._read(key) if value is None else value


class Subscription:
    """One caller that waits for a key. A notification ends its wait; a recheck only makes it read again."""

    def __init__(self) -> None:
        self.is_notified = False
        self.is_waiting = False
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()

    async def wait(self, deadline: float) -> bool:
        """Wait for a signal until `deadline`, by the event loop's clock. Return whether one came."""
        self.is_waiting = True
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            return False
        finally:
            self.is_waiting = False
        self._wake.clear()
        return True

    def signal(self, *, is_notification: bool) -> None:
        """Wake the caller, from any thread."""
        self.is_notified = self.is_notified or is_notification
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self._wake.set)


class Notifier:
    """All subscriptions of a process or of an event loop; `read` returns the value of a key."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._read_again = SingleFlight(read)
        self._lock = threading.Lock()
        self._subscriptions: dict[str, set[Subscription]] = {}

    async def wait(self, key: str, timeout: float) -> bytes | None:
        """Return the value of a key, waiting up to `timeout` seconds for a notification."""
        deadline = asyncio.get_running_loop().time() + timeout
        with self.subscribe(key) as subscription:
            value, is_notified = await self._read(key), False
            while value is None and not is_notified and await subscription.wait(deadline):
                # Taken before the read: a notification that comes during the read ends the next round.
                is_notified = subscription.is_notified
                try:
                    value = await self._read_again(key)
                except ServiceUnavailable:
                    if is_notified:
                        raise
            return value

    def notify(self, key: str) -> None:
        """End the wait of all subscriptions of a key."""
        for subscription in self.subscriptions(key):
            subscription.signal(is_notification=True)

    def recheck(self) -> None:
        """Make all subscriptions read again: notifications may have been lost."""
        with self._lock:
            every = [each for subscriptions in self._subscriptions.values() for each in subscriptions]
        for subscription in every:
            subscription.signal(is_notification=False)

    def subscriptions(self, key: str) -> list[Subscription]:
        """Return the subscriptions of a key."""
        with self._lock:
            return list(self._subscriptions.get(key, ()))

    @contextmanager
    def subscribe(self, key: str) -> Iterator[Subscription]:
        """Subscribe to a key inside the `with` block."""
        subscription = Subscription()
        with self._lock:
            self._subscriptions.setdefault(key, set()).add(subscription)
        try:
            yield subscription
        finally:
            with self._lock:
                self._subscriptions[key].discard(subscription)
                if not self._subscriptions[key]:
                    del self._subscriptions[key]
