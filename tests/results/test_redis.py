"""The Redis backend prefixes its keys, uses few connections and survives a restart of the Redis server."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest
import redis.asyncio
from servers import Valkey
from waiting import until

from results.conftest import PREFIX, OpenRedis
from zndraw_joblib.server.results.redis import RedisResults
from zndraw_joblib.wire.problems import ServiceUnavailable

MIB = 2**20
# A wait that is not ended in this time would have gone on to its own end.
ENOUGH = 25.0
MAX_CONNECTIONS = 16 + 1  # for commands, and for notifications


@pytest.fixture
async def client(valkey_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """Return a client of the same server."""
    async with redis.asyncio.Redis.from_url(valkey_url) as client:
        yield client


async def test_every_key_has_the_prefix_and_expires(
    open_redis: OpenRedis, client: redis.asyncio.Redis
) -> None:
    """This holds for small and large values and for locks; a small value is stored unchanged."""
    await client.flushall()
    results = open_redis()
    await results.store("a", b"small", 60)
    await results.store("b", b"x" * (2 * MIB), 60)
    await results.acquire_inflight("c", 60)
    names = [name.decode() for name in await client.keys("*")]
    assert sorted(names) == [f"{PREFIX}:{rest}" for rest in ("a", "b", "b:version", "c", "expiries", "sizes")]
    assert all([0 < await client.pttl(name) <= 60_000 for name in names])
    assert await client.get(names[names.index(f"{PREFIX}:a")]) == b"small"
    for key in "ab":
        await results.delete(key)
    await results.release_inflight("c")
    assert await client.keys("*") == []


async def test_prefixes_separate_installations(valkey_url: str) -> None:
    """Two installations may share a Redis."""
    here, there = RedisResults(valkey_url, "here"), RedisResults(valkey_url, "there")
    await here.store("a", b"1", 60)
    assert await there.get("a") is None
    assert await here.acquire_inflight("b", 60)
    assert await there.acquire_inflight("b", 60)
    await here.close()
    await there.close()


async def test_a_notification_reaches_other_processes(open_redis: OpenRedis) -> None:
    """A caller in one process gets a value that another process stores."""
    here, there = open_redis(), open_redis()
    for number in range(50):
        waiting = [asyncio.create_task(there.wait_for_key(f"x{number}", 2 * ENOUGH)) for _ in range(3)]
        await asyncio.sleep(0.001 * (number % 5))
        await here.store(f"x{number}", b"1", 60)
        await here.notify_key(f"x{number}")
        assert await asyncio.wait_for(asyncio.gather(*waiting), ENOUGH) == [b"1"] * 3


async def test_many_callers_use_few_connections(open_redis: OpenRedis, client: redis.asyncio.Redis) -> None:
    """200 callers wait on one connection; 200 readers share the others; one read serves all woken callers."""
    results = open_redis()
    before = len(await client.client_list())
    waiting = [asyncio.create_task(results.wait_for_key("crowd", 20)) for _ in range(200)]
    await until(lambda: _count_waiting(results, "crowd") == 200)
    await results.store("other", os.urandom(MIB), 60)
    found = await asyncio.gather(*[results.get("other") for _ in range(200)])
    assert len(set(found)) == 1
    assert len(await client.client_list()) - before <= MAX_CONNECTIONS
    [listening] = await client.pubsub_numsub(f"{PREFIX}:results")
    assert listening[1] == 1
    await results.store("crowd", os.urandom(MIB), 60)
    await results.notify_key("crowd")
    woken = await asyncio.gather(*waiting)
    assert {id(data) for data in woken} == {id(woken[0])}


async def test_a_stream_never_mixes_two_values(open_redis: OpenRedis) -> None:
    """Another caller writes large and small values without a pause."""
    results = open_redis()
    values = [bytes([number]) * (MIB * size) for number, size in enumerate((3, 2, 3, 1, 4))]
    await results.store("a", values[0], 60)
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number = (number + 1) % len(values)
            await results.store("a", values[number], 60)

    writing = asyncio.create_task(write())
    whole = broken = 0
    while whole + broken < 150 or not (whole and broken):
        size, chunks = await results.open_stream("a") or (0, None)
        try:
            found = b"".join([chunk async for chunk in chunks])
        except ServiceUnavailable:
            broken += 1
        else:
            whole += 1
            assert (found in values, len(found)) == (True, size)
    stop.set()
    await writing


async def test_a_lost_draft_is_not_stored(open_redis: OpenRedis, client: redis.asyncio.Redis) -> None:
    """Redis may expire or evict the draft between two chunks."""
    results = open_redis()
    await results.store("a", b"before", 60)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"1" * MIB
        [draft] = [name async for name in client.scan_iter(f"{PREFIX}:draft:*")]
        await client.delete(draft)
        yield b"2" * MIB

    with pytest.raises(ServiceUnavailable):
        await results.store_stream("a", chunks(), 60)
    assert await results.get("a") == b"before"
    assert [name async for name in client.scan_iter(f"{PREFIX}:draft:*")] == []


@pytest.fixture
def server() -> Iterator[Valkey]:
    """Start a server for one test."""
    started = Valkey()
    yield started
    started.close()


@pytest.fixture
async def pair(server: Valkey) -> AsyncIterator[tuple[RedisResults, RedisResults]]:
    """Return the backends of two server processes on that server."""
    both = RedisResults(server.url, "test"), RedisResults(server.url, "test")
    yield both
    for results in both:
        await results.close()


def _count_waiting(results: RedisResults, key: str) -> int:
    """Count the callers that have read a key and wait for a notification now."""
    return sum(subscription.is_waiting for subscription in results.notifier.subscriptions(key))


async def test_waiting_callers_survive_a_restart(
    server: Valkey, pair: tuple[RedisResults, RedisResults]
) -> None:
    """New calls get a 503 while Redis is away; a caller that already waits gets a later value."""
    results, other = pair
    await asyncio.gather(*[results.get("a") for _ in range(50)])
    waiting = [asyncio.create_task(results.wait_for_key("a", 4 * ENOUGH)) for _ in range(200)]
    await until(lambda: _count_waiting(results, "a") == 200)
    short = asyncio.create_task(results.wait_for_key("b", 1))
    # On a busy machine it may have ended before it is seen to wait.
    await until(lambda: _count_waiting(results, "b") == 1 or short.done())
    await asyncio.to_thread(server.stop)
    for call in (
        results.get("a"),
        results.store("a", b"1", 60),
        results.acquire_inflight("a", 60),
        results.notify_key("a"),
        results.open_stream("a"),
        results.wait_for_key("a", 5),
    ):
        with pytest.raises(ServiceUnavailable) as raised:
            await call
        assert raised.value.headers["Retry-After"]
    assert await short is None
    await asyncio.to_thread(server.start)
    await other.store("a", b"1", 60)
    await other.notify_key("a")
    assert await asyncio.wait_for(asyncio.gather(*waiting), ENOUGH) == [b"1"] * 200
    assert await asyncio.gather(*[results.get("a") for _ in range(50)]) == [b"1"] * 50


async def test_a_value_stored_while_the_connection_is_cut_is_found(
    open_redis: OpenRedis, client: redis.asyncio.Redis
) -> None:
    """The notification is lost, so the caller reads again after the reconnection."""
    results, other = open_redis(), open_redis()
    for number in range(5):
        key = f"cut{number}"
        waiting = asyncio.create_task(results.wait_for_key(key, 2 * ENOUGH))
        await until(partial(_count_waiting, results, key))
        await asyncio.sleep(0.05)
        await other.store(key, b"1", 60)
        await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert await asyncio.wait_for(waiting, ENOUGH) == b"1"


async def test_a_cancelled_caller_stops_waiting(open_redis: OpenRedis) -> None:
    """asyncio may lose a cancellation that comes at the moment when the awaited operation ends."""
    results = open_redis()
    await results.get("a")
    for iterations in range(60):
        calls = [asyncio.create_task(results.wait_for_key("a", 2 * ENOUGH)) for _ in range(40)]
        for _ in range(iterations):
            await asyncio.sleep(0)
        for task in calls:
            task.cancel()
        _, pending = await asyncio.wait(calls, timeout=ENOUGH)
        assert not pending, f"{len(pending)} of 40 go on waiting after {iterations} iterations of the loop"


async def test_closing_ends_connections_and_tasks(valkey_url: str, client: redis.asyncio.Redis) -> None:
    """A closed backend may be used again."""
    results = RedisResults(valkey_url, "closing")
    before = len(await client.client_list()), len(asyncio.all_tasks())
    for _ in range(2):
        assert await results.wait_for_key("a", 0.05) is None
        await results.close()
        await until(lambda: len(asyncio.all_tasks()) == before[1])

    async def is_disconnected() -> bool:
        return len(await client.client_list()) <= before[0]

    await until(is_disconnected)
