"""The database backend stores values as a whole, for several processes, in statements of bounded size."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from databases import OpenDatabase
from replica import ManualClock, OpenReplica, Replica
from sqlalchemy import text
from waiting import until

from zndraw_joblib.server.db import values as store
from zndraw_joblib.server.db.tables import Result, ResultPart
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.wire.problems import ServiceUnavailable

MIB = 2**20
# A wait that is not ended in this time would have gone on to its own end.
ENOUGH = 25.0
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


async def test_replaced_and_deleted_values_leave_no_rows(results: DatabaseResults, replica: Replica) -> None:
    """No part of an old value stays, and no part has more than 1 MiB."""
    for size in (3 * MIB, 5, 2 * MIB, 0):
        await results.store("a", b"x" * size, 60)
        assert await counts(replica) == (1, max(1, size // MIB))
        assert max(len(row.data) for row in await replica.rows(parts)) <= MIB
    await results.acquire_inflight("a", 60)
    await results.delete("a")
    assert await counts(replica) == (1, 0)
    await results.release_inflight("a")
    assert await counts(replica) == (0, 0)


async def test_a_repeated_lock_finds_itself(replica: Replica) -> None:
    """After a lost connection the statement is repeated, which may have been applied."""
    for n, is_free in ((1, True), (1, True), (2, False)):
        assert await replica.runtime.write(store.lock, n=n, key="a", ttl=60) is is_free


async def test_only_cached_values_and_locks_do_not_wait_for_the_disk(replica: Replica) -> None:
    """PostgreSQL commits them lazily; results of tasks are on the disk when they are stored."""
    if replica.runtime.database.is_sqlite:
        return
    statements = replica.record_statements()
    for evicts in (True, False):
        statements.clear()
        results = DatabaseResults(replica.runtime, evicts=evicts)
        await results.store("a", b"x", 60)
        assert any("set_config" in statement.sql for statement in statements) is evicts
    async with replica.engine.connect() as connection:
        assert (await connection.execute(text("SHOW synchronous_commit"))).scalar_one() == "on"


async def test_a_new_cached_value_is_one_statement(replica: Replica) -> None:
    """On PostgreSQL it is a transaction of its own, as taking and releasing a lock. So is a read of many."""
    if replica.runtime.database.is_sqlite:
        return
    results, statements = DatabaseResults(replica.runtime), replica.record_statements()
    await results.store("a", b"1", 60)  # the first also counts what is stored
    statements.clear()
    await results.store("b", b"2", 60)
    await results.acquire_inflight("b", 60)
    await results.release_inflight("b")
    snapshot = await results.snapshot(("a", "b", "c"))
    assert len(statements) == 4
    assert [await snapshot.get(key) for key in ("a", "b", "c")] == [b"1", b"2", None]
    await results.store("b", b"3", 60)
    assert await results.get("b") == b"3"


async def test_concurrent_stores_of_one_key_leave_one_value(
    results: DatabaseResults, open_replica: OpenReplica, replica: Replica
) -> None:
    """The value is complete and no other parts stay, with two processes, small and large values."""
    other = DatabaseResults(open_replica().runtime)
    values = [bytes([number]) * (MIB * (number % 3) + 1) for number in range(24)]
    for _ in range(3):
        stores = [(results, other)[n % 2].store("a", data, 60) for n, data in enumerate(values)]
        await asyncio.gather(*stores)
        kept = await results.get("a")
        assert kept in values
        assert await counts(replica) == (1, -(-len(kept or b"") // MIB))


async def test_a_stream_that_breaks_off_leaves_no_rows(results: DatabaseResults, replica: Replica) -> None:
    """The iterator raises, or the caller is cancelled."""
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


async def test_expired_rows_are_pruned_in_batches(timed: Replica, clock: ManualClock) -> None:
    """Pruning removes the oldest values, locks and abandoned drafts, and nothing that has not expired."""
    results = DatabaseResults(timed.runtime)
    for number in range(10):
        await results.store(f"small{number}", b"x", 60 + number)
    await results.store("large", b"x" * (5 * MIB), 50)
    await results.store("kept", b"x", 1000)
    await results.acquire_inflight("lock", 60)
    await timed.runtime.write(store.begin_draft, n=7, ttl=60)
    await timed.runtime.write(store.add_part, n=7, number=0, data=b"x", ttl=60)
    assert await prune(timed) == 0
    clock.advance(70)
    assert await results.get("large") is None
    assert await results.open_stream("small0") is None
    assert await results.acquire_inflight("lock", 5)
    assert [await prune(timed, 4) for _ in range(6)] == [1, 4, 4, 3, 0, 0]
    assert sorted(row.key for row in await timed.rows(rows)) == ["lock:lock", "value:kept"]
    assert len(await timed.rows(parts)) == 1


async def test_a_pruned_draft_is_not_stored(timed: Replica, clock: ManualClock) -> None:
    """A stream that pauses too long gets a 503, and its key keeps no shortened value."""
    results = DatabaseResults(timed.runtime, draft_seconds=30)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * MIB
        clock.advance(31)
        assert await prune(timed) == 1
        yield b"x" * MIB

    with pytest.raises(ServiceUnavailable):
        await results.store_stream("a", chunks(), 1000)
    assert await results.get("a") is None
    assert await counts(timed) == (0, 0)


async def test_a_read_during_writes_returns_one_value(
    results: DatabaseResults, open_replica: OpenReplica
) -> None:
    """`get` always returns one value; a stream does too, or raises."""
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


class CountingResults(DatabaseResults):
    """A database backend that counts the reads that have ended."""

    reads = 0

    async def get(self, key: str) -> bytes | None:
        """Return the bytes of a key, and count the read."""
        found = await super().get(key)
        self.reads += 1
        return found


async def test_waiting_callers_hold_no_connection(replica: Replica) -> None:
    """More callers wait than there are connections, and a store still succeeds."""
    results = CountingResults(replica.runtime, recheck_seconds=3600)
    waiting = [asyncio.create_task(results.wait_for_key("a", 2 * ENOUGH)) for _ in range(200)]
    await until(lambda: len(replica.runtime.waiters) == 200 and results.reads > 0)
    data = os.urandom(2 * MIB)
    await results.store("a", data, 60)
    await results.notify_key("a")
    found = await asyncio.wait_for(asyncio.gather(*waiting), ENOUGH)
    assert set(found) == {data}
    # How many callers share a read depends on the times of their wake-ups.
    assert results.reads < 20
    assert len(replica.runtime.waiters) == 0


async def test_a_recheck_finds_a_value_without_a_notification(
    results: DatabaseResults, open_replica: OpenReplica, replica: Replica
) -> None:
    """Processes that share SQLite without Redis have no notifications."""
    other = DatabaseResults(open_replica().runtime)
    waiting = asyncio.create_task(results.wait_for_key("a", 2 * ENOUGH))
    await until(lambda: len(replica.runtime.waiters) == 1)
    await other.store("a", b"1", 60)
    assert await asyncio.wait_for(waiting, ENOUGH) == b"1"


async def test_a_wait_ends_when_the_server_stops(results: DatabaseResults, replica: Replica) -> None:
    """The caller gets None at once."""
    waiting = asyncio.create_task(results.wait_for_key("a", 2 * ENOUGH))
    await until(lambda: len(replica.runtime.waiters) == 1)
    replica.runtime.waiters.close()
    assert await asyncio.wait_for(waiting, ENOUGH) is None


@pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
async def test_a_notification_reaches_other_processes(
    open_replica: OpenReplica, new_database: OpenDatabase
) -> None:
    """The notification comes by pub/sub: no recheck is due before the test ends."""
    open_connection = await new_database(None).pubsub_connection()
    assert open_connection is not None
    runtimes = [open_replica().runtime for _ in range(2)]
    running = [asyncio.create_task(runtime.pubsub.run(open_connection)) for runtime in runtimes]
    await until(lambda: all(runtime.pubsub.peers for runtime in runtimes))
    here, there = [DatabaseResults(runtime, recheck_seconds=3600) for runtime in runtimes]
    for number in range(10):
        waiting = [asyncio.create_task(there.wait_for_key(f"x{number}", 2 * ENOUGH)) for _ in range(3)]
        await asyncio.sleep(0.002 * (number % 5))
        await here.store(f"x{number}", b"1", 60)
        await here.notify_key(f"x{number}")
        assert await asyncio.wait_for(asyncio.gather(*waiting), ENOUGH) == [b"1"] * 3
    for task in running:
        task.cancel()
    await asyncio.wait(running)
