"""All provider results together have at most `max_cached_bytes`, in Redis and in the database."""

import asyncio

import redis.asyncio
from replica import OpenReplica, Replica

from results.conftest import PREFIX
from zndraw_joblib.server.db.tables import Result, ResultPart
from zndraw_joblib.server.results.database_values import DatabaseResults
from zndraw_joblib.server.results.redis import RedisResults

MIB = 2**20
LIMIT = 4 * MIB
rows, parts = Result.__table__, ResultPart.__table__


async def test_the_database_keeps_a_bounded_number_of_bytes(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """The values that expire first are removed; locks and the newest value stay."""
    both = [DatabaseResults(one.runtime) for one in (replica, open_replica())]
    replica.runtime.settings.max_cached_bytes = LIMIT
    await both[0].acquire_inflight("lock", 60)
    for number in range(12):
        await both[number % 2].store(f"key{number}", bytes([number]) * (MIB + MIB // 2), 60 + number)
    kept = [row.size for row in await replica.rows(rows) if row.size is not None]
    # Each process checks the total after it has written a sixteenth of the limit.
    assert 0 < sum(kept) <= LIMIT + 2 * LIMIT // 16 + 3 * MIB // 2
    assert sum(len(row.data) for row in await replica.rows(parts)) == sum(kept)
    assert await both[1].get("key11") == bytes([11]) * (MIB + MIB // 2)
    assert await both[0].get("key0") is None
    assert not await both[1].acquire_inflight("lock", 60)


async def test_small_values_count_too(replica: Replica) -> None:
    """Each counts 1 KiB more than its bytes."""
    replica.runtime.settings.max_cached_bytes = 64 * 1024
    results = DatabaseResults(replica.runtime)
    for number in range(300):
        await results.store(f"key{number}", b"x", 60)
    assert len(await replica.rows(rows)) <= 64 + 4 + 1


async def test_redis_keeps_a_bounded_number_of_bytes(valkey_url: str) -> None:
    """The values that expire first are removed; locks, the newest value and later ones stay."""
    results = RedisResults(valkey_url, f"{PREFIX}-bounds", lambda: LIMIT)
    await results.acquire_inflight("lock", 60)
    for number in range(12):
        await results.store(f"key{number}", bytes([number]) * (MIB + MIB // 2), 60 + number)
    found = [await results.get(f"key{number}") for number in range(12)]
    assert [data is not None for data in found] == [False] * 10 + [True] * 2
    assert not await results.acquire_inflight("lock", 60)
    await results.store("huge", b"x" * (2 * LIMIT), 600)
    assert len(await results.get("huge") or b"") == 2 * LIMIT
    assert await results.get("key11") is None
    await results.close()


async def test_redis_forgets_deleted_replaced_and_expired_values(valkey_url: str) -> None:
    """They do not count against later values."""
    results = RedisResults(valkey_url, f"{PREFIX}-forgets", lambda: LIMIT)
    for _ in range(5):
        await results.store("same", b"x" * MIB, 60)
        await results.store("deleted", b"x" * MIB, 60)
        await results.delete("deleted")
    await results.store("short", b"x" * MIB, 1)
    await asyncio.sleep(1.1)
    await results.store("other", b"x" * (2 * MIB), 60)
    assert await results.get("same") is not None
    async with redis.asyncio.Redis.from_url(valkey_url) as client:
        name = f"{PREFIX}-forgets:sizes"
        total = int(await client.hget(name, "") or 0)
        assert total == 3 * MIB + 2 * 1024
        assert await client.pttl(name) > 0
    await results.close()
