"""What result backends share: waiting for a key, reading once for many, cutting bytes into parts."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.ports import PART_BYTES

Read = Callable[[str], Awaitable[bytes | None]]


class SharedReads:
    """Lets all who want the same bytes at the same time have them by one read."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._under_way: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Future[bytes | None]] = {}

    async def __call__(self, key: str) -> bytes | None:
        """Return what is kept under a key at some time during the call, else None."""
        place = (asyncio.get_running_loop(), key)
        reading = self._under_way.get(place)
        if reading is None:
            reading = self._under_way[place] = asyncio.ensure_future(self._read(key))
            reading.add_done_callback(lambda _: self._under_way.pop(place, None))
            return await asyncio.shield(reading)
        found = await asyncio.shield(reading)
        # That read began before this call, perhaps too early.
        return await self._read(key) if found is None else found


class Bell:
    """One who waits. `was_rung` once a notice came; a stir alone only makes it look again."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self.was_rung = False

    def begin_look(self) -> bool:
        """Tell whether a notice has come; another move may come during the look."""
        self._moved.clear()
        return self.was_rung

    async def sleep_until(self, deadline: float) -> bool:
        """Sleep until it is moved; False at the deadline, in seconds of the loop's clock."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._moved.wait()
                return True
        return False

    def move(self, *, is_notice: bool) -> None:
        """Wake it, from any thread."""
        self.was_rung = self.was_rung or is_notice
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._moved.set)


class Bells:
    """All who wait for keys in a process, whatever loop or thread each is in; `read` looks for a key."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._shared = SharedReads(read)
        self._lock = threading.Lock()
        self._bells: dict[str, set[Bell]] = {}

    async def wait(self, key: str, timeout: float) -> bytes | None:
        """Return what is kept under a key, waiting up to `timeout` seconds for it to be rung."""
        deadline = asyncio.get_running_loop().time() + timeout
        with self._listening(key) as bell:
            was_rung, found = False, await self._read(key)
            while found is None and not was_rung and await bell.sleep_until(deadline):
                was_rung = bell.begin_look()
                try:
                    found = await self._shared(key)
                except ServiceUnavailable:
                    if was_rung:
                        raise
            return found

    def ring(self, key: str) -> None:
        """Wake everybody who waits for a key."""
        with self._lock:
            bells = list(self._bells.get(key, ()))
        for bell in bells:
            bell.move(is_notice=True)

    def stir(self) -> None:
        """Let everybody look again: notices may have been lost."""
        with self._lock:
            bells = [bell for those in self._bells.values() for bell in those]
        for bell in bells:
            bell.move(is_notice=False)

    @contextmanager
    def _listening(self, key: str) -> Iterator[Bell]:
        bell = Bell()
        with self._lock:
            self._bells.setdefault(key, set()).add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                self._bells[key].discard(bell)
                if not self._bells[key]:
                    del self._bells[key]


async def parts_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut a stream anew: parts of `PART_BYTES`, the last one of what is left."""
    kept = bytearray()
    async for chunk in chunks:
        for piece in slices(chunk):
            if not kept and len(piece) == PART_BYTES:
                yield piece
                continue
            kept += piece
            if len(kept) >= PART_BYTES:
                yield bytes(memoryview(kept)[:PART_BYTES])
                del kept[:PART_BYTES]
    if kept:
        yield bytes(kept)


def slices(data: bytes) -> Iterator[bytes]:
    """Return bytes in parts of at most `PART_BYTES`; small ones as they are."""
    return (data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES))


async def streamed(data: bytes) -> AsyncIterator[bytes]:
    """Return bytes as a stream of parts."""
    for part in slices(data):
        yield part
