"""Results in the database: whole or not at all, across processes, in bounded statements."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import pytest
from store.fixtures import OpenDatabase, OpenReplica
from store.replica import HandClock, Replica
from waiting import until

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.providers.results import database_results as module
from zndraw_joblib.server.providers.results.database_results import DatabaseResults
from zndraw_joblib.server.store import results as store
from zndraw_joblib.server.store.tables import Result, ResultPart

MIB = 2**20
rows, parts = Result.__table__, ResultPart.__table__


@pytest.fixture
def results(replica: Replica) -> DatabaseResults:
    """Return the backend of a server process."""
    return DatabaseResults(replica.runtime)


async def counts(replica: Replica) -> tuple[int, int]:
    """Count the rows of values and locks, and of their parts."""
    return len(await replica.rows(rows)), len(await replica.rows(parts))


async def prune(replica: Replica, limit: int = 100) -> int:
    """Prune once."""
    return await replica.runtime.write(store.prune, limit=limit)


async def test_what_is_replaced_or_deleted_leaves_nothing_behind(
    results: DatabaseResults, replica: Replica
) -> None:
    """No part of it, and no part has more than 1 MiB."""
    for size in (3 * MIB, 5, 2 * MIB, 0):
        await results.store("a", b"x" * size, 60)
        assert await counts(replica) == (1, max(1, size // MIB))
        assert max(len(row.data) for row in await replica.rows(parts)) <= MIB
    await results.acquire_inflight("a", 60)
    await results.delete("a")
    assert await counts(replica) == (1, 0)
    await results.release_inflight("a")
    assert await counts(replica) == (0, 0)


async def test_who_writes_the_same_key_at_the_same_time_leaves_one(
    results: DatabaseResults, open_replica: OpenReplica, replica: Replica
) -> None:
    """Whole, and without remains, from two processes; small and large."""
    other = DatabaseResults(open_replica().runtime)
    values = [bytes([number]) * (MIB * (number % 3) + 1) for number in range(24)]
    for _ in range(3):
        stores = [(results, other)[n % 2].store("a", data, 60) for n, data in enumerate(values)]
        await asyncio.gather(*stores)
        kept = await results.get("a")
        assert kept in values
        assert await counts(replica) == (1, -(-len(kept or b"") // MIB))


async def test_a_stream_that_breaks_off_leaves_nothing(results: DatabaseResults, replica: Replica) -> None:
    """Be it an error, or a caller that is cancelled."""
    reached = asyncio.Event()

    async def chunks(*, fails: bool) -> AsyncIterator[bytes]:
        yield b"x" * (2 * MIB)
        assert await counts(replica) == (1, 2)
        if fails:
            raise KeyError
        reached.set()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(KeyError):
        await results.store_stream("a", chunks(fails=True), 60)
    assert await counts(replica) == (0, 0)
    storing = asyncio.create_task(results.store_stream("a", chunks(fails=False), 60))
    await reached.wait()
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    assert await counts(replica) == (0, 0)


async def test_what_has_expired_is_pruned_in_batches(timed: Replica, clock: HandClock) -> None:
    """The oldest first, never what is still kept; values, locks and drafts that were left."""
    results = DatabaseResults(timed.runtime)
    for number in range(10):
        await results.store(f"small{number}", b"x", 60 + number)
    await results.store("large", b"x" * (5 * MIB), 50)
    await results.store("kept", b"x", 1000)
    await results.acquire_inflight("lock", 60)
    draft = partial(store.begin_draft, n=7, ttl=60)
    await timed.runtime.write(draft)
    await timed.runtime.write(store.add_part, n=7, number=0, data=b"x", ttl=60)
    assert await prune(timed) == 0
    clock.advance(70)
    assert await results.get("large") is None
    assert await results.open_stream("small0") is None
    assert await results.acquire_inflight("lock", 5)
    assert [await prune(timed, 4) for _ in range(6)] == [1, 4, 4, 3, 0, 0]
    assert sorted(row.key for row in await timed.rows(rows)) == ["lock:lock", "value:kept"]
    assert len(await timed.rows(parts)) == 1


async def test_a_draft_that_was_pruned_is_not_stored_short(timed: Replica, clock: HandClock) -> None:
    """Who pauses for too long is told."""
    results = DatabaseResults(timed.runtime)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * MIB
        clock.advance(module._DRAFT_SECONDS + 1)
        assert await prune(timed) == 1
        yield b"x" * MIB

    with pytest.raises(ServiceUnavailable):
        await results.store_stream("a", chunks(), 1000)
    assert await results.get("a") is None
    assert await counts(timed) == (0, 0)


async def test_who_reads_while_others_write_gets_one_value(
    results: DatabaseResults, open_replica: OpenReplica
) -> None:
    """`get` always, a stream or else it raises."""
    other = DatabaseResults(open_replica().runtime)
    values = [bytes([number]) * (MIB * size) for number, size in enumerate((3, 2, 1, 4))]
    await results.store("a", values[0], 60)
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number = (number + 1) % len(values)
            await other.store("a", values[number], 60)

    writing = asyncio.create_task(write())
    for _ in range(30):
        assert await results.get("a") in values
        size, chunks = await results.open_stream("a") or (0, None)
        assert chunks is not None
        with suppress(ServiceUnavailable):
            found = b"".join([chunk async for chunk in chunks])
            assert len(found) == size
            assert found in values
    stop.set()
    await writing


async def test_who_waits_holds_no_connection(results: DatabaseResults, replica: Replica) -> None:
    """More wait than there are connections, and all go on."""
    waiting = [asyncio.create_task(results.wait_for_key("a", 20)) for _ in range(200)]
    waiters = replica.runtime.waiters._queues
    await until(lambda: [s._future is not None for s in waiters.get("result:a", ())] == [True] * 200)
    data = os.urandom(2 * MIB)
    await asyncio.wait_for(results.store("a", data, 60), 5)
    await results.notify_key("a")
    found = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert set(found) == {data}
    # How many share a read is a matter of who wakes when; most do.
    assert len({id(one) for one in found}) < 100
    assert len(replica.runtime.waiters) == 0


async def test_the_slow_look_finds_what_no_notice_told_of(
    results: DatabaseResults, open_replica: OpenReplica, replica: Replica
) -> None:
    """There is no line between processes on SQLite alone."""
    other = DatabaseResults(open_replica().runtime)
    waiting = asyncio.create_task(results.wait_for_key("a", 20))
    await until(lambda: len(replica.runtime.waiters) == 1)
    await other.store("a", b"1", 60)
    assert await asyncio.wait_for(waiting, 2) == b"1"


async def test_who_waits_leaves_when_the_server_stops(results: DatabaseResults, replica: Replica) -> None:
    """At once, with nothing."""
    waiting = asyncio.create_task(results.wait_for_key("a", 20))
    await until(lambda: len(replica.runtime.waiters) == 1)
    replica.runtime.waiters.close()
    assert await asyncio.wait_for(waiting, 2) is None


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"], indirect=True)
async def test_a_notice_crosses_processes(
    open_replica: OpenReplica, open_one: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the line between replicas: the slow look is taken away, it would mend what is lost."""
    monkeypatch.setattr(module, "_RECHECK_FIRST", 3600.0)
    monkeypatch.setattr(module, "_RECHECK_MAX", 3600.0)
    line = await open_one(None).pubsub_connection()
    assert line is not None
    runtimes = [open_replica().runtime for _ in range(2)]
    relaying = [asyncio.create_task(runtime.pubsub.run(line)) for runtime in runtimes]
    await until(lambda: all(runtime.pubsub.has_peers for runtime in runtimes))
    here, there = map(DatabaseResults, runtimes)
    for number in range(10):
        waiting = [asyncio.create_task(there.wait_for_key(f"x{number}", 20)) for _ in range(3)]
        await asyncio.sleep(0.002 * (number % 5))
        await here.store(f"x{number}", b"1", 60)
        await here.notify_key(f"x{number}")
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [b"1"] * 3
    for pubsub in relaying:
        pubsub.cancel()
    await asyncio.wait(relaying)
