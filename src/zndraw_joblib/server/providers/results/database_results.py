"""Results of providers in the server's own database, for several processes without Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.ports import PART_BYTES, Wake
from zndraw_joblib.server.providers.results.notifier import SharedReads, parts_of, streamed
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.store import results

# Between two parts of what is stored.
_DRAFT_SECONDS = 60
_SHORT_BYTES = 64 * 1024
_RECHECK_FIRST, _RECHECK_GROWTH, _RECHECK_MAX = 1.0, 1.5, 5.0
# Where no line tells of what other processes store: SQLite without Redis.
_RECHECK_ALONE = 0.1


class DatabaseResults:
    """A `ResultBackend` and `StreamingBackend` in the runtime's database.

    Bytes are written in parts of at most 1 MiB, a transaction each, and are seen once the last one is there.
    Who waits sleeps among the runtime's waiters, holds no connection, and looks again now and then: a
    wake-up from another replica may get lost. `store.results.prune` removes what has expired.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._shared = SharedReads(self.get)

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Keep bytes under a key for `ttl` seconds."""
        if len(data) > PART_BYTES:
            await self.store_stream(key, streamed(data), ttl)
            return
        n = results.new_number()
        write = self._runtime.write_short if len(data) <= _SHORT_BYTES else self._runtime.write
        await write(results.put, n=n, key=key, data=bytes(data), ttl=ttl)

    async def get(self, key: str) -> bytes | None:
        """Return what is kept under a key."""
        head = await self._runtime.database.read_short(results.head, key=key)
        if head is None or len(head.first) == head.size:
            return None if head is None else head.first
        return await self._runtime.database.read(results.read, key=key)

    async def delete(self, key: str) -> None:
        """Forget what is kept under a key."""
        await self._runtime.write(results.remove, key=key)

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Take a lock for at most `ttl` seconds; tell whether it was free."""
        return await self._runtime.write_short(results.lock, key=key, ttl=ttl)

    async def release_inflight(self, key: str) -> None:
        """Give the lock back."""
        await self._runtime.write_short(results.unlock, key=key)

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Return what is kept under a key, waiting up to `timeout` seconds for a notice.

        Raises `ServiceUnavailable` when too many sleep already.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        delay = _RECHECK_FIRST if self._runtime.pubsub.is_open else _RECHECK_ALONE
        with self._runtime.waiters.enter([_sleeper_key(key)]) as waiter:
            was_told, found = False, await self.get(key)
            while found is None and not was_told and not self._runtime.waiters.is_closed:
                left = deadline - loop.time()
                if left <= 0:
                    break
                was_told = await waiter.sleep(min(delay, left))
                self._runtime.waiters.look(waiter)
                found = await self._shared(key)
                delay = min(delay * _RECHECK_GROWTH, _RECHECK_MAX)
            return found

    async def notify_key(self, key: str) -> None:
        """Wake everybody who waits for a key, in all processes."""
        self._runtime.waiters.notify([Wake(_sleeper_key(key))])

    async def store_stream(self, key: str, chunks: AsyncIterator[bytes], ttl: int) -> None:
        """Keep the chunks under a key once the last one is there."""
        write, n = self._runtime.write, results.new_number()
        try:
            await write(results.begin_draft, n=n, ttl=_DRAFT_SECONDS)
            number = 0
            async for data in parts_of(chunks):
                await self._add_part(n, number, data)
                number += 1
            if number == 0:
                await self._add_part(n, 0, b"")
            if not await write(results.publish_draft, n=n, key=key, ttl=ttl):
                raise _too_slow()
        except BaseException:
            with suppress(ServiceUnavailable):
                await write(results.drop_draft, n=n)
            raise

    async def open_stream(self, key: str) -> tuple[int, AsyncIterator[bytes]] | None:
        """Return the size of what is kept, and its bytes. The iterator raises if they go meanwhile."""
        head = await self._runtime.database.read_short(results.head, key=key)
        return None if head is None else (head.size, self._chunks(head))

    async def _add_part(self, n: int, number: int, data: bytes) -> None:
        add = partial(results.add_part, n=n, number=number, data=data, ttl=_DRAFT_SECONDS)
        if not await self._runtime.write(add):
            raise _too_slow()

    async def _chunks(self, head: results.Head) -> AsyncIterator[bytes]:
        given, number = 0, 0
        data: bytes | None = head.first
        while data:
            given += len(data)
            number += 1
            yield data
            if given >= head.size:
                return
            data = await self._runtime.database.read(results.part, n=head.n, number=number)
        if given < head.size:
            raise ServiceUnavailable(
                "The result was replaced while it was read; ask again.", headers={"Retry-After": "1"}
            )


def _sleeper_key(key: str) -> str:
    return f"result:{key}"


def _too_slow() -> ServiceUnavailable:
    return ServiceUnavailable(
        f"A result must not pause for more than {_DRAFT_SECONDS} s while it is stored; try again.",
        headers={"Retry-After": "1"},
    )
