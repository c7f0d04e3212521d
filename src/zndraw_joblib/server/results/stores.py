"""Stores of bytes in memory and in files, and what all stores share: parts, waits for a key, shared reads."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple, TypeVar
from weakref import WeakSet

from cachetools import TLRUCache

from zndraw_joblib.jobs.logs import create_shared_task
from zndraw_joblib.server.process.ports import PART_BYTES
from zndraw_joblib.wire.problems import ProblemException, ServiceUnavailable


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
Key = TypeVar("Key")
Value_co = TypeVar("Value_co", covariant=True)


class SingleFlight(Generic[Key, Value_co]):
    """A read function that concurrent callers share: a read serves all callers that came before it began.

    It reads one key once at a time in an event loop, so the callers that come meanwhile share the next read.
    """

    def __init__(self, read: Callable[[Key], Awaitable[Value_co]]) -> None:
        self._read = read
        self._next: dict[tuple[asyncio.AbstractEventLoop, Key], asyncio.Task[Value_co]] = {}
        self._running: dict[tuple[asyncio.AbstractEventLoop, Key], asyncio.Task[Value_co]] = {}

    async def __call__(self, key: Key) -> Value_co:
        """Return what a read returns that began during the call. Raises its error."""
        place = (asyncio.get_running_loop(), key)
        reading = self._next.get(place)
        if reading is None:
            reading = self._next[place] = create_shared_task(self._begin(place))
            reading.add_done_callback(partial(self._forget, place))
        return await asyncio.shield(reading)

    async def _begin(self, place: tuple[asyncio.AbstractEventLoop, Key]) -> Value_co:
        if (running := self._running.get(place)) is not None:
            await asyncio.wait([running])
        self._running[place] = self._next.pop(place)
        return await self._read(place[1])

    def _forget(
        self, place: tuple[asyncio.AbstractEventLoop, Key], reading: "asyncio.Task[Value_co]"
    ) -> None:
        for readings in (self._next, self._running):
            if readings.get(place) is reading:
                del readings[place]
        if not reading.cancelled():
            reading.exception()  # its callers may all be cancelled


class KeyWaiter:
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
        self._subscriptions: dict[str, set[KeyWaiter]] = {}

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
            subscriptions = [item for group in self._subscriptions.values() for item in group]
        for subscription in subscriptions:
            subscription.signal(is_notification=False)

    def subscriptions(self, key: str) -> list[KeyWaiter]:
        """Return the subscriptions of a key."""
        with self._lock:
            return list(self._subscriptions.get(key, ()))

    @contextmanager
    def subscribe(self, key: str) -> Iterator[KeyWaiter]:
        """Subscribe to a key inside the `with` block."""
        subscription = KeyWaiter()
        with self._lock:
            self._subscriptions.setdefault(key, set()).add(subscription)
        try:
            yield subscription
        finally:
            with self._lock:
                self._subscriptions[key].discard(subscription)
                if not self._subscriptions[key]:
                    del self._subscriptions[key]


# A store in the memory of one server process.

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

    @property
    def value_count(self) -> int:
        """How many values it keeps."""
        return len(self._values)

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
        return None if data is None else (len(data), stream(data, start))

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


# A store in a directory, which all servers of one database have to share.

_HAS_NO_NAME = ".part"


class FileStore:
    """A `ContentStore` in files below a directory. Reads and writes run in threads, at most 1 MiB each.

    A file gets its name after its last byte is on the disk.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a new key. `ttl` has no effect: files stay until they are deleted."""
        path = self._path(key)
        draft = path.with_suffix(_HAS_NO_NAME)
        try:
            file = await asyncio.to_thread(_create, draft)
            try:
                async for part in rechunk(chunks):
                    await asyncio.to_thread(file.write, part)
                await asyncio.to_thread(_sync, file)
            finally:
                await asyncio.to_thread(file.close)
            await asyncio.to_thread(draft.replace, path)
        except OSError as error:
            await asyncio.to_thread(_delete, draft)
            if isinstance(error, ProblemException):  # of the upload, not of the directory
                raise
            raise _unavailable(error) from error
        except BaseException:
            await asyncio.to_thread(_delete, draft)
            raise

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts from `start` on."""
        path = self._path(key)
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unavailable(error) from error
        return size, _read(path, start)

    async def delete(self, key: str) -> None:
        """Delete a value, or what an interrupted upload has left of it."""
        path = self._path(key)
        for file in (path, path.with_suffix(_HAS_NO_NAME)):
            await asyncio.to_thread(_delete, file)

    async def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, key: str) -> Path:
        name = key.rpartition(":")[2]
        return self._directory / name[:2] / name


def _create(path: Path) -> BinaryIO:
    """Create a file, and its folders, for their owner alone."""
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600), "wb"
    )


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _delete(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


async def _read(path: Path, start: int) -> AsyncIterator[bytes]:
    try:
        with await asyncio.to_thread(path.open, "rb") as file:
            await asyncio.to_thread(file.seek, start)
            while part := await asyncio.to_thread(file.read, PART_BYTES):
                yield part
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> ServiceUnavailable:
    # Without the path: clients do not need it.
    return ServiceUnavailable(f"The directory of the task results failed: {error.strerror}")
