"""Every result backend of ours keeps every promise; the suite that says so finds each broken one."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from store.fixtures import OpenReplica, every_kind

import zndraw_joblib
from results.broken import BROKEN
from results.conftest import OpenRedis
from zndraw_joblib import testing
from zndraw_joblib.server.ports import ResultBackend, StreamingBackend
from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.providers.results.memory import MemoryResults

LARGE = 2**30


async def test_memory_keeps_what_is_promised() -> None:
    """In one process; in about two seconds."""
    began = time.monotonic()
    await zndraw_joblib.check_result_backend(lambda: MemoryResults(LARGE))
    assert time.monotonic() - began < 10


async def test_redis_keeps_what_is_promised(open_redis: OpenRedis) -> None:
    """On a real server."""
    await zndraw_joblib.check_result_backend(open_redis)


@every_kind
async def test_the_database_keeps_what_is_promised(open_replica: OpenReplica) -> None:
    """On SQLite and PostgreSQL, ours and a host's; made by a coroutine too."""

    async def make() -> ResultBackend:
        return DatabaseResults(open_replica().runtime)

    await zndraw_joblib.check_result_backend(make)


async def test_who_streams_nothing_is_checked_without() -> None:
    """A backend of a host may have the seven functions alone."""
    inner = MemoryResults(LARGE)

    class Plain:
        store, get, delete = inner.store, inner.get, inner.delete
        acquire_inflight, release_inflight = inner.acquire_inflight, inner.release_inflight
        wait_for_key, notify_key = inner.wait_for_key, inner.notify_key

    assert not isinstance(Plain(), StreamingBackend)
    await zndraw_joblib.check_result_backend(Plain)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
async def test_a_broken_backend_is_refused(
    broken: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each broken promise is found, and said in a sentence."""
    monkeypatch.setattr(testing, "_SOON", 1.0)  # in memory all that is not missed comes at once
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        await zndraw_joblib.check_result_backend(lambda: broken(LARGE))


async def test_a_backend_that_hangs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of hanging with it."""
    monkeypatch.setattr(testing, "_PATIENCE", 0.2)

    class Hangs(MemoryResults):
        async def get(self, key: str) -> bytes | None:
            return await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="hangs"):
        await zndraw_joblib.check_result_backend(lambda: Hangs(LARGE))
