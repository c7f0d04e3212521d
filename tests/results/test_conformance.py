"""Each built-in result backend passes the conformance test, and the test finds each broken backend."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from databases import two_kinds
from replica import OpenReplica

from results.broken import BROKEN
from results.conftest import OpenRedis
from zndraw_joblib import check_result_backend
from zndraw_joblib.server.process.ports import ResultBackend, StreamingBackend
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.stores import MemoryResults
from zndraw_joblib.testing import result_backends

LARGE = 2**30
# A busy machine needs longer than the default.
check = partial(check_result_backend, check_timeout=100, wake_timeout=25)


async def test_the_memory_backend_conforms() -> None:
    """The check runs in one process."""
    await check(lambda: MemoryResults(LARGE))


async def test_the_redis_backend_conforms(open_redis: OpenRedis) -> None:
    """The check runs against a real Valkey server."""
    await check(open_redis)


@two_kinds
async def test_the_database_backend_conforms(open_replica: OpenReplica) -> None:
    """The check accepts a coroutine function, and runs on SQLite and PostgreSQL, standalone and in a host."""

    async def make() -> ResultBackend:
        return DatabaseResults(open_replica().runtime)

    await check(make)


async def test_a_backend_without_streams_is_checked_without_streams() -> None:
    """A host's backend may implement `ResultBackend` alone."""
    inner = MemoryResults(LARGE)

    class Plain:
        store, get, delete = inner.store, inner.get, inner.delete
        acquire_inflight, release_inflight = inner.acquire_inflight, inner.release_inflight
        wait_for_key, notify_key = inner.wait_for_key, inner.notify_key

    assert not isinstance(Plain(), StreamingBackend)
    await check(Plain)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
async def test_a_broken_backend_fails(broken: Callable[[int], Any]) -> None:
    """The error message names the broken requirement."""
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        await check_result_backend(lambda: broken(LARGE), wake_timeout=1.0)


async def test_a_pause_of_the_event_loop_is_no_fault_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller returns some cycles of the loop after its notification or timeout, even if one takes long."""
    monkeypatch.setattr(result_backends, "_LATE_SECONDS", 0.2)
    loop = asyncio.get_running_loop()
    pauses = 0

    def pause(until: float) -> None:
        while loop.time() < until:
            pass

    class Pauses(MemoryResults):
        async def notify_key(self, key: str) -> None:
            nonlocal pauses
            await super().notify_key(key)
            if pauses < 1:
                pauses += 1
                loop.call_soon(pause, loop.time() + 1.1)

        async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
            if 0 < timeout < 1:
                loop.call_soon(pause, loop.time() + timeout + 0.3)
            return await super().wait_for_key(key, timeout)

    await check_result_backend(lambda: Pauses(LARGE), wake_timeout=1.0)
    assert pauses == 1


async def test_a_backend_that_hangs_fails() -> None:
    """The check does not hang with it."""

    class Hangs(MemoryResults):
        async def get(self, key: str) -> bytes | None:
            return await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="hangs"):
        await check_result_backend(lambda: Hangs(LARGE), check_timeout=0.2)
