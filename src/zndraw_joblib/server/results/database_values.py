"""The store of bytes in the server's database, shared by all server processes."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.server.db import values
from zndraw_joblib.server.process.ports import PART_BYTES, Wake
from zndraw_joblib.server.process.waiters import Waiter
from zndraw_joblib.server.results import stores
from zndraw_joblib.server.results.stores import SingleFlight
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import ServiceUnavailable

_SHORT_BYTES = 64 * 1024
_RECHECK_FIRST, _RECHECK_MAX = 1.0, 5.0
# SQLite without Redis has no notifications between processes.
_RECHECK_WITHOUT_PUBSUB = 0.1


class DatabaseResults:
    """A `ResultBackend` and `StreamingBackend` in the runtime's database.

    Each part of at most 1 MiB is written in a transaction of its own; readers see a value after its last
    part. A caller that waits holds no connection, and reads again now and then, because a notification from
    another replica may be lost: after `recheck_seconds`, later less often. `db.values.prune` removes
    expired values. A stream that is being stored may pause for `draft_seconds` between two parts.

    Unless it `evicts`, `max_cached_bytes` does not limit its values; their keys begin with `results.KEPT`.
    Only then does PostgreSQL write them to the disk before `store` returns: cached ones are on the disk with
    the end of their request, which commits later.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        draft_seconds: int = 60,
        recheck_seconds: float | None = None,
        evicts: bool = True,
    ) -> None:
        self._runtime = runtime
        self._evicts = evicts
        self._draft_seconds = draft_seconds
        self._recheck_seconds = recheck_seconds
        self._shared_get = SingleFlight(self.get)
        self._shared_heads = SingleFlight(self._read_heads)
        self._unchecked_bytes: float = math.inf

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Store bytes under a key for `ttl` seconds."""
        if len(data) > PART_BYTES:
            await self.store_stream(key, stores.stream(data), ttl)
            return
        await self._make_room(len(data))
        n = values.new_number()
        write = self._runtime.write_short if len(data) <= _SHORT_BYTES else self._runtime.write
        await write(values.put, n=n, key=key, data=bytes(data), ttl=ttl, is_durable=not self._evicts)

    async def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, or None."""
        head = await self._runtime.database.read_short(values.head, key=key)
        if head is None or len(head.first) == head.size:
            return None if head is None else head.first
        return await self._runtime.database.read(values.read, key=key)

    async def snapshot(self, keys: tuple[str, ...]) -> "Snapshot":
        """Read several keys at one time, in one statement; concurrent callers share it."""
        return Snapshot(await self._shared_heads(keys), self._chunks)

    async def _read_heads(self, keys: tuple[str, ...]) -> dict[str, values.ValueHead]:
        return await self._runtime.database.read_short(values.heads, keys=keys)

    async def delete(self, key: str) -> None:
        """Remove a key."""
        await self._runtime.write(values.remove, key=key)

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds. Return whether it was free."""
        return await self._runtime.write_short(values.lock, n=values.new_number(), key=key, ttl=ttl)

    async def release_inflight(self, key: str) -> None:
        """Release a lock."""
        await self._runtime.write_short(values.unlock, key=key)

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return the bytes of a key, waiting up to `timeout` seconds for a notification."""
        first = _RECHECK_FIRST if self._runtime.pubsub.is_open else _RECHECK_WITHOUT_PUBSUB
        first = self._recheck_seconds or first
        recheck = ExponentialBackoff(first, max(first, _RECHECK_MAX), jitter=0, growth=1.5)
        is_notified = False

        async def check(_: Waiter) -> bytes | None:
            return await self._shared_get(key)

        async def wait(waiter: Waiter, seconds: float) -> None:
            nonlocal is_notified
            is_notified = await waiter.wait(min(recheck.next(), seconds))

        return await self._runtime.waiters.wait_until(
            [_waiter_key(key)],
            check,
            lambda value: value is not None or is_notified,
            deadline=self._runtime.waiters.time() + timeout,
            wait=wait,
        )

    async def notify_key(self, key: str) -> None:
        """Wake all callers that wait for a key, in all processes."""
        self._runtime.waiters.notify([Wake(_waiter_key(key))])

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Store the chunks under a key after the last one has come."""
        write, n = self._runtime.write, values.new_number()
        try:
            await write(values.begin_draft, n=n, ttl=self._draft_seconds)
            number = 0
            async for data in stores.rechunk(chunks):
                await self._add_part(n, number, data)
                number += 1
            if number == 0:
                await self._add_part(n, 0, b"")
            if not await write(values.publish_draft, n=n, key=key, ttl=ttl):
                raise self._draft_expired()
        except BaseException:
            with suppress(ServiceUnavailable):
                await write(values.drop_draft, n=n)
            raise

    async def open_stream(self, key: str, start: int = 0) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts from `start` on.

        The iterator raises if the value is replaced.
        """
        head = await self._runtime.database.read_short(values.head, key=key)
        return None if head is None else (head.size, self._chunks(head, start))

    async def close(self) -> None:
        """Do nothing: there are no connections to close."""

    async def _make_room(self, size: int) -> None:
        """Remove the values that expire first while the total size would exceed `max_cached_bytes`.

        It counts the total size each time this process has written a sixteenth of the limit.
        """
        if not self._evicts:
            return
        limit = self._runtime.settings.max_cached_bytes
        self._unchecked_bytes += size + values.VALUE_BYTES
        if self._unchecked_bytes >= limit // 16:
            self._unchecked_bytes = 0
            while await self._runtime.write(values.evict, max_bytes=max(0, limit - size)):
                pass

    async def _add_part(self, n: int, number: int, data: bytes) -> None:
        ttl = self._draft_seconds
        await self._make_room(len(data))
        if not await self._runtime.write(values.add_part, n=n, number=number, data=data, ttl=ttl):
            raise self._draft_expired()

    async def _chunks(self, head: values.ValueHead, start: int) -> AsyncIterator[bytes]:
        # Each part but the last one is full.
        number, skipped = divmod(start, PART_BYTES)
        sent = start - skipped
        data: bytes | None = head.first if number == 0 else None
        while sent < head.size:
            data = data or await self._runtime.database.read(values.part, n=head.n, number=number)
            if not data:
                break
            sent += len(data)
            number += 1
            yield data[skipped:]
            data, skipped = None, 0
        if sent < head.size:
            raise ServiceUnavailable(
                "The result was replaced while it was read; try again.", headers={"Retry-After": "1"}
            )

    def _draft_expired(self) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"The upload of a result paused for more than {self._draft_seconds} s; try again.",
            headers={"Retry-After": "1"},
        )


class Snapshot:
    """The values of some keys at one time. Those that `get` returns fit into one part."""

    def __init__(
        self,
        heads: dict[str, values.ValueHead],
        chunks: Callable[[values.ValueHead, int], AsyncIterator[bytes]],
    ) -> None:
        self._heads, self._chunks = heads, chunks

    async def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, or None."""
        head = self._heads.get(key)
        return None if head is None else head.first

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of a value and its parts. The iterator raises if the value is replaced."""
        head = self._heads.get(key)
        return None if head is None else (head.size, self._chunks(head, 0))


def _waiter_key(key: str) -> str:
    return f"result:{key}"
