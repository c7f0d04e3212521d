"""Result backends that each break one requirement, and the error message that names it."""
# ruff: noqa: D102 - the name of each class describes the fault of its methods

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from zndraw_joblib.server.results.stores import MemoryResults


class TtlIgnored(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key, data, 1000)


class TtlTooShort(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key, data, 1)


class StreamTtlIgnored(MemoryResults):
    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        await super().store_stream(key, chunks, 1000)


class KeepsOldValue(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        if await self.get(key) is None:
            await super().store(key, data, ttl)


class TextMode(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key, data.replace(b"\r\n", b"\n"), ttl)


class TruncatesKeys(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key[:60], data, ttl)

    async def get(self, key: str) -> bytes | None:
        return await super().get(key[:60])


class EmptyIsNone(MemoryResults):
    async def get(self, key: str) -> bytes | None:
        return await super().get(key) or None


class ReturnsMutableBytes(MemoryResults):
    async def get(self, key: str) -> bytes | None:
        found = await super().get(key)
        return None if found is None else bytearray(found)  # type: ignore[return-value]


class DeleteDoesNothing(MemoryResults):
    async def delete(self, key: str) -> None: ...


class DeleteRaises(MemoryResults):
    async def delete(self, key: str) -> None:
        assert await self.get(key) is not None, "nothing there"
        await super().delete(key)


class LocksForTwoCallers(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        if not await super().acquire_inflight(key, ttl):
            return False
        await super().release_inflight(key)
        await asyncio.sleep(0)
        await super().acquire_inflight(key, ttl)
        return True


class LockNeverExpires(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        return await super().acquire_inflight(key, 1000)


class LockTooShort(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        return await super().acquire_inflight(key, 1)


class OneLockForAllKeys(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        return await super().acquire_inflight("", ttl)

    async def release_inflight(self, key: str) -> None:
        await super().release_inflight("")


class LockNotReleased(MemoryResults):
    async def release_inflight(self, key: str) -> None: ...


class ReadsBeforeSubscribing(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        if (found := await self.get(key)) is not None:
            return found
        await asyncio.sleep(0)
        with self.notifier.subscribe(key) as subscription:
            await subscription.wait(asyncio.get_running_loop().time() + timeout)
        return await self.get(key)


class WaitsBeforeReading(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        with self.notifier.subscribe(key) as subscription:
            await subscription.wait(asyncio.get_running_loop().time() + timeout)
        return await self.get(key)


class NotifiesOneCaller(MemoryResults):
    async def notify_key(self, key: str) -> None:
        for subscription in self.notifier.subscriptions(key)[:1]:
            subscription.signal(is_notification=True)


class NotifiesAllKeys(MemoryResults):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.keys: set[str] = set()

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        self.keys.add(key)
        return await super().wait_for_key(key, timeout)

    async def notify_key(self, key: str) -> None:
        for other in self.keys:
            await super().notify_key(other)


class IgnoresNotificationsWithoutValue(MemoryResults):
    async def notify_key(self, key: str) -> None:
        if await self.get(key) is not None:
            await super().notify_key(key)


class WaitsTooLong(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        return await super().wait_for_key(key, timeout + 3)


class WaitsTooShort(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        return await super().wait_for_key(key, min(timeout, 0.01))


class StreamInOneChunk(MemoryResults):
    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        data = await self.get(key)

        async def all_of_it() -> AsyncIterator[bytes]:
            yield data or b""

        return None if data is None else (len(data), all_of_it())


class StreamVisibleTooEarly(MemoryResults):
    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        await self.store(key, b"", ttl)
        async for chunk in chunks:
            await self.store(key, (await self.get(key) or b"") + chunk, ttl)


class StoresBrokenStream(MemoryResults):
    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        found = []
        try:
            async for chunk in chunks:
                found.append(chunk)
        finally:
            await self.store(key, b"".join(found), ttl)


class StreamMixesValues(MemoryResults):
    is_short = False

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        data = await self.get(key)

        async def as_it_is() -> AsyncIterator[bytes]:
            for start in range(0, len(data or b""), 2**20):
                now = await self.get(key) or b""
                if not self.is_short or len(now) > start:
                    yield now[start : start + 2**20]

        return None if data is None else (len(data), as_it_is())


class StreamEndsEarly(StreamMixesValues):
    is_short = True


class StreamSizeWrong(MemoryResults):
    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        opened = await super().open_stream(key)
        return None if opened is None else (opened[0] + 1, opened[1])


BROKEN: dict[Callable[[int], Any], str] = {
    TtlIgnored: "`ttl` is ignored",
    TtlTooShort: "is gone after a second",
    StreamTtlIgnored: "store_stream ignores `ttl`",
    KeepsOldValue: "bytes stored last",
    TextMode: "bytes stored last",
    TruncatesKeys: "taken for one another",
    EmptyIsNone: "0 bytes stored last",
    ReturnsMutableBytes: "get does not return what was stored",
    DeleteDoesNothing: "returns a deleted value",
    DeleteRaises: "nothing there",
    LocksForTwoCallers: "callers got one lock",
    LockNeverExpires: "0 of 200 callers got an expired lock",
    LockTooShort: "is free after a second",
    OneLockForAllKeys: "a lock on one key locks another",
    LockNotReleased: "0 of 200 callers got one lock|locks another",
    ReadsBeforeSubscribing: "misses a value that is stored",
    WaitsBeforeReading: "waits although the value is stored",
    NotifiesOneCaller: "leaves .* waiting",
    NotifiesAllKeys: "value of another key|ends a wait for another key",
    IgnoresNotificationsWithoutValue: "goes on waiting after a notification",
    WaitsTooLong: "a wait of 0 s takes",
    WaitsTooShort: "does not get the stored value|value of another key|ends after",
    StreamInOneChunk: "more than 1 MiB at once",
    StreamVisibleTooEarly: "visible before its last chunk",
    StoresBrokenStream: "breaks off changes",
    StreamMixesValues: "after its key is written",
    StreamEndsEarly: "after its key is written",
    StreamSizeWrong: "open_stream returns the size",
}
