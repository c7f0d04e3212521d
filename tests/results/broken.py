"""Result backends that each break one promise, and what is said of them."""
# ruff: noqa: D102 - each does what its class is called

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from zndraw_joblib.server.providers.results.memory import MemoryResults


class TtlIgnored(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key, data, 1000)


class TtlTooShort(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key, data, 1)


class StreamTtlIgnored(MemoryResults):
    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        await super().store_stream(key, chunks, 1000)


class OldKept(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        if await self.get(key) is None:
            await super().store(key, data, ttl)


class Text(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key, data.replace(b"\r\n", b"\n"), ttl)


class KeysCut(MemoryResults):
    async def store(self, key: str, data: bytes, ttl: int) -> None:
        await super().store(key[:60], data, ttl)

    async def get(self, key: str) -> bytes | None:
        return await super().get(key[:60])


class EmptyIsNone(MemoryResults):
    async def get(self, key: str) -> bytes | None:
        return await super().get(key) or None


class Mutable(MemoryResults):
    async def get(self, key: str) -> bytes | None:
        found = await super().get(key)
        return None if found is None else bytearray(found)


class DeleteDoesNothing(MemoryResults):
    async def delete(self, key: str) -> None: ...


class DeleteRaises(MemoryResults):
    async def delete(self, key: str) -> None:
        assert await self.get(key) is not None, "nothing there"
        await super().delete(key)


class LockForTwo(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        is_free = self._locks.get(key) is None
        await asyncio.sleep(0)
        return is_free and (await super().acquire_inflight(key, ttl) or True)


class LockForEver(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        return await super().acquire_inflight(key, 1000)


class LockTooShort(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        return await super().acquire_inflight(key, 1)


class OneLockForAll(MemoryResults):
    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        return await super().acquire_inflight("", ttl)

    async def release_inflight(self, key: str) -> None:
        await super().release_inflight("")


class LockNotReleased(MemoryResults):
    async def release_inflight(self, key: str) -> None: ...


class LooksBeforeListening(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        if (found := await self.get(key)) is not None:
            return found
        await asyncio.sleep(0)
        with self._bells._listening(key) as bell:
            await bell.sleep_until(asyncio.get_running_loop().time() + timeout)
        return await self.get(key)


class LooksNotFirst(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        with self._bells._listening(key) as bell:
            await bell.sleep_until(asyncio.get_running_loop().time() + timeout)
        return await self.get(key)


class NoticeForOne(MemoryResults):
    async def notify_key(self, key: str) -> None:
        for bell in list(self._bells._bells.get(key, ()))[:1]:
            bell.move(is_notice=True)


class NoticeForAllKeys(MemoryResults):
    async def notify_key(self, key: str) -> None:
        for other in list(self._bells._bells):
            self._bells.ring(other)


class NoticeOfNothingUnheard(MemoryResults):
    async def notify_key(self, key: str) -> None:
        if await self.get(key) is not None:
            await super().notify_key(key)


class WaitTooLong(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        return await super().wait_for_key(key, timeout + 3)


class WaitNot(MemoryResults):
    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        return await super().wait_for_key(key, min(timeout, 0.01))


class StreamInOnePiece(MemoryResults):
    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        data = await self.get(key)

        async def all_of_it() -> AsyncIterator[bytes]:
            yield data or b""

        return None if data is None else (len(data), all_of_it())


class StreamShowsParts(MemoryResults):
    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        await self.store(key, b"", ttl)
        async for chunk in chunks:
            await self.store(key, (await self.get(key) or b"") + chunk, ttl)


class StreamBrokenOffKept(MemoryResults):
    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        found = []
        try:
            async for chunk in chunks:
                found.append(chunk)
        finally:
            await self.store(key, b"".join(found), ttl)


class StreamMixes(MemoryResults):
    is_short = False

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        data = await self.get(key)

        async def as_it_is() -> AsyncIterator[bytes]:
            for start in range(0, len(data or b""), 2**20):
                now = await self.get(key) or b""
                if not self.is_short or len(now) > start:
                    yield now[start : start + 2**20]

        return None if data is None else (len(data), as_it_is())


class StreamEndsEarly(StreamMixes):
    is_short = True


class StreamSizeWrong(MemoryResults):
    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        opened = await super().open_stream(key)
        return None if opened is None else (opened[0] + 1, opened[1])


BROKEN: dict[Callable[[int], Any], str] = {
    TtlIgnored: "`ttl` is ignored",
    TtlTooShort: "is gone after a second",
    StreamTtlIgnored: "store_stream ignores `ttl`",
    OldKept: "bytes stored last",
    Text: "bytes stored last",
    KeysCut: "taken for one another",
    EmptyIsNone: "0 bytes stored last",
    Mutable: "get does not return what was stored",
    DeleteDoesNothing: "what was deleted",
    DeleteRaises: "nothing there",
    LockForTwo: "callers got one lock",
    LockForEver: "0 of 200 callers got a lock that had expired",
    LockTooShort: "is free after a second",
    OneLockForAll: "a lock on one key locks another",
    LockNotReleased: "0 of 200 callers got one lock|locks another",
    LooksBeforeListening: "misses what is stored",
    LooksNotFirst: "waits for what is there already",
    NoticeForOne: "leaves .* waiting",
    NoticeForAllKeys: "something else|ends a wait for another key",
    NoticeOfNothingUnheard: "goes on waiting after a notice",
    WaitTooLong: "a wait of 0 s takes",
    WaitNot: "do not get|returns something else|is over after",
    StreamInOnePiece: "more than 1 MiB at once",
    StreamShowsParts: "seen before its last chunk",
    StreamBrokenOffKept: "breaks off changes",
    StreamMixes: "once the key is written again",
    StreamEndsEarly: "once the key is written again",
    StreamSizeWrong: "open_stream says",
}
