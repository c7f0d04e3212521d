"""Results in memory: bounded, gone after their time, and for every loop and thread of a process."""

import asyncio
import gc
import os
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from zndraw_joblib.server.providers.results import memory as module
from zndraw_joblib.server.providers.results.memory import MemoryResults

MIB = 2**20


async def kept(results: MemoryResults, *keys: str) -> str:
    """Return the keys under which something is kept."""
    return "".join([key for key in keys if await results.get(key) is not None])


async def test_what_would_expire_soonest_makes_room() -> None:
    """Whatever was stored last; and no more than is needed."""
    results = MemoryResults(100)
    await results.store("a", b"x" * 40, 30)
    await results.store("b", b"x" * 40, 10)
    await results.store("c", b"x" * 20, 20)
    assert await kept(results, *"abc") == "abc"
    await results.store("d", b"x" * 10, 1)
    assert await kept(results, *"abcd") == "acd"
    await results.store("e", b"x" * 60, 1)
    assert await kept(results, *"abcde") == "ae"


async def test_the_newest_is_kept_whatever_its_size() -> None:
    """Somebody waits for it. Alone it may be too large, and it goes with the next one."""
    results = MemoryResults(100)
    await results.store("a", b"x" * 40, 3600)
    await results.store("b", b"x" * 500, 10)
    assert await kept(results, *"ab") == "b"
    await results.store("c", b"", 1)
    assert await kept(results, *"abc") == "c"


async def test_what_is_replaced_does_not_count() -> None:
    """Nor does what was deleted."""
    results = MemoryResults(100)
    await results.store("a", b"x" * 60, 10)
    for size in (60, 40, 60):
        await results.store("b", b"x" * 40, 10)
        await results.store("a", b"x" * size, 10)
    assert await kept(results, *"ab") == "ab"
    await results.delete("a")
    await results.store("c", b"x" * 60, 10)
    assert await kept(results, *"bc") == "bc"


async def test_the_bound_is_asked_for_each_time() -> None:
    """A setting may change while the server runs."""
    bound = 100
    results = MemoryResults(lambda: bound)
    await results.store("a", b"x" * 60, 10)
    bound = 50
    await results.store("b", b"", 20)
    assert await kept(results, *"ab") == "b"


async def test_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones cost memory too."""
    monkeypatch.setattr(module, "_MAX_VALUES", 10)
    results = MemoryResults(1000)
    for number in range(100):
        await results.store(str(number), b"", 1000 - number)
    assert len(results._values) == 10
    assert await kept(results, "99", "0") == "990"


async def test_locks_are_not_driven_out() -> None:
    """However much is stored."""
    results = MemoryResults(10)
    assert await results.acquire_inflight("a", 1)
    for number in range(100):
        await results.store(str(number), b"x" * 100, 3600)
    assert not await results.acquire_inflight("a", 60)


async def test_what_expired_is_given_back_though_nobody_asks() -> None:
    """The short one in its time, though a long one is there."""
    results = MemoryResults(1000)
    await results.store("long", b"x", 3600)
    await results.store("a", b"x", 1)
    await results.store("b", b"x", 1)
    began = time.monotonic()
    while len(results._values) > 1:
        assert time.monotonic() - began < 3
        await asyncio.sleep(0.05)
    assert await kept(results, "long") == "long"


async def test_what_is_written_again_and_again_leaves_nothing_behind() -> None:
    """The list by which things expire does not grow."""
    results = MemoryResults(1000)
    await results.store("first", b"", 60)
    await results.acquire_inflight("first", 30)
    for number in range(10_000):
        await results.store(str(number % 5), b"", 3600)
        await results.acquire_inflight("a", 60)
        await results.release_inflight("a")
    assert len(results._values._line) < 100
    assert len(results._locks._line) < 100


async def test_readers_share_the_bytes() -> None:
    """All have the same object; a stream copies a chunk at a time."""
    results, data = MemoryResults(64 * MIB), os.urandom(16 * MIB)
    await results.store("a", data, 60)
    gc.collect()
    tracemalloc.start()
    try:
        assert all([await results.get("a") is data for _ in range(50)])
        opened = [await results.open_stream("a") for _ in range(10)]
        for _, chunks in filter(None, opened):
            assert [len(chunk) async for chunk in chunks] == [MIB] * 16
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


async def test_a_notice_crosses_loops_and_threads() -> None:
    """A host's test client may run each request in a loop of its own. Again and again, for the races."""
    results = MemoryResults(1000)
    with ThreadPoolExecutor(8) as threads:
        for number in range(100):
            key = str(number)
            there = [threads.submit(asyncio.run, results.wait_for_key(key, 20)) for _ in range(8)]
            await asyncio.sleep(0.0002 * (number % 10))
            await results.store(key, b"x", 60)
            await results.notify_key(key)
            for waiting in there:
                assert await asyncio.wrap_future(waiting) == b"x"
    assert not results._bells._bells
