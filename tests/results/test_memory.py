"""The memory backend is bounded, frees memory, and serves every event loop and thread of a process."""

import asyncio
import gc
import inspect
import os
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from cachetools import TLRUCache
from waiting import until

from zndraw_joblib.server.results.stores import MemoryResults

MIB = 2**20
# Where the backend allocates its memory.
FILES = (__file__, inspect.getfile(MemoryResults), inspect.getfile(TLRUCache))


async def stored(results: MemoryResults, *keys: str) -> str:
    """Return the keys that have a value."""
    return "".join([key for key in keys if await results.get(key) is not None])


async def test_values_that_expire_first_make_room() -> None:
    """The backend removes no more values than necessary, whatever the order of the stores."""
    results = MemoryResults(100)
    await results.store("a", b"x" * 40, 300)
    await results.store("b", b"x" * 40, 100)
    await results.store("c", b"x" * 20, 200)
    assert await stored(results, *"abc") == "abc"
    await results.store("d", b"x" * 10, 60)
    assert await stored(results, *"abcd") == "acd"
    await results.store("e", b"x" * 60, 60)
    assert await stored(results, *"abcde") == "ae"


async def test_values_that_expire_first_make_room_after_reads_and_replacements() -> None:
    """Eviction depends on expiry alone, not on use, as it does in an LRU cache."""
    results = MemoryResults(100)
    for number in range(10):
        await results.store(str(number), b"x" * 10, 100 - number)
    for number in (9, 7):
        await results.get(str(number))
    await results.store("8", b"x" * 10, 300)
    await results.store("new", b"x" * 30, 200)
    assert await stored(results, *"0123456789", "new") == "0123458new"


async def test_the_newest_value_stays_whatever_its_size() -> None:
    """A value over the limit is removed when the next one is stored."""
    results = MemoryResults(100)
    await results.store("a", b"x" * 40, 3600)
    await results.store("b", b"x" * 500, 100)
    assert await stored(results, *"ab") == "b"
    await results.store("c", b"", 60)
    assert await stored(results, *"abc") == "c"


async def test_replaced_and_deleted_values_do_not_count() -> None:
    """The limit applies to the values that are stored now."""
    results = MemoryResults(100)
    await results.store("a", b"x" * 60, 10)
    for size in (60, 40, 60):
        await results.store("b", b"x" * 40, 10)
        await results.store("a", b"x" * size, 10)
    assert await stored(results, *"ab") == "ab"
    await results.delete("a")
    await results.store("c", b"x" * 60, 10)
    assert await stored(results, *"bc") == "bc"


async def test_the_limit_may_change() -> None:
    """The setting may change while the server runs."""
    limit = 100
    results = MemoryResults(lambda: limit)
    await results.store("a", b"x" * 60, 10)
    limit = 50
    await results.store("b", b"", 20)
    assert await stored(results, *"ab") == "b"


async def test_the_number_of_values_is_limited() -> None:
    """Empty values cost memory too."""
    results = MemoryResults(1000, max_values=10)
    for number in range(100):
        await results.store(str(number), b"", 1000 - number)
    kept = [number for number in range(100) if await results.get(str(number)) is not None]
    assert kept == [*range(9), 99]


async def test_values_do_not_evict_locks() -> None:
    """A lock lasts, however many bytes are stored."""
    results = MemoryResults(10)
    assert await results.acquire_inflight("a", 60)
    for number in range(100):
        await results.store(str(number), b"x" * 100, 3600)
    assert not await results.acquire_inflight("a", 60)


async def test_memory_of_expired_values_is_freed_without_a_request() -> None:
    """A value with a short ttl is freed in time although one with a long ttl is there."""
    results = MemoryResults(1000)
    await results.store("long", b"x", 3600)
    values = [os.urandom(100), os.urandom(100)]
    before = [sys.getrefcount(value) for value in values]
    await results.store("a", values[0], 1)
    await results.store("b", values[1], 1)
    assert [sys.getrefcount(value) for value in values] > before
    await until(lambda: [sys.getrefcount(value) for value in values] == before)
    assert await stored(results, "long", *"ab") == "long"


async def test_writing_a_key_again_and_again_takes_no_memory() -> None:
    """The records of replaced values and released locks do not accumulate."""
    results = MemoryResults(1000)

    async def write() -> None:
        for number in range(10_000):
            await results.store(str(number % 5), b"", 3600)
            await results.acquire_inflight("a", 60)
            await results.release_inflight("a")

    await results.store("first", b"", 60)
    await results.acquire_inflight("first", 30)
    tracemalloc.start()
    try:
        await write()
        gc.collect()
        # Not of all files: threads of servers that other tests have started allocate memory too.
        taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, file) for file in FILES])
        assert sum(trace.size for trace in taken.traces) < 100_000
    finally:
        tracemalloc.stop()


async def test_readers_share_the_bytes() -> None:
    """All readers get the same object; a stream copies one part at a time."""
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


async def test_a_notification_reaches_other_loops_and_threads() -> None:
    """A host's test client may run each request in its own event loop; 100 rounds provoke races."""
    results = MemoryResults(1000)
    with ThreadPoolExecutor(8) as threads:
        for number in range(100):
            key = str(number)
            calls = [threads.submit(asyncio.run, results.wait_for_key(key, 20)) for _ in range(8)]
            await asyncio.sleep(0.0002 * (number % 10))
            await results.store(key, b"x", 60)
            await results.notify_key(key)
            for call in calls:
                assert await asyncio.wrap_future(call) == b"x"
            assert not results.notifier.subscriptions(key)
