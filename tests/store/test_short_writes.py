"""What is short runs on our own SQLite file on the event loop itself, and holds it up for nobody."""

import asyncio
import threading
from pathlib import Path

import pytest
from databases import OpenDatabase
from replica import PATIENCE
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.contract.problems import ServiceUnavailable
from zndraw_joblib.server.store import workers
from zndraw_joblib.server.store.database import Database, Transaction
from zndraw_joblib.server.store.engine import open_database

pytestmark = pytest.mark.parametrize("kind", ["sqlite"])


@pytest.fixture
def database(new_database: OpenDatabase) -> Database:
    """Return the test's database."""
    return new_database(None)


async def add(database: Database, owner: str = "x") -> None:
    """Write one row."""
    await database.write_short(workers.add, owner_id=owner)


async def count(database: Database) -> int:
    """Count the rows."""
    return await database.read(workers.count)


async def test_a_short_write_runs_where_it_is_asked_for(database: Database) -> None:
    """It needs no other thread; a long one leaves the event loop alone."""
    ran_in: list[int] = []

    async def work(tx: Transaction) -> None:
        ran_in.append(threading.get_ident())
        await workers.add(tx, "x")

    await database.write_short(work)
    await database.write(work)
    assert [thread == threading.get_ident() for thread in ran_in] == [True, False]
    assert await count(database) == 2


async def test_a_short_read_runs_where_it_is_asked_for(database: Database) -> None:
    """It sees what was committed; a long one leaves the event loop alone."""
    ran_in: list[int] = []

    async def work(tx: Transaction) -> int:
        ran_in.append(threading.get_ident())
        return await workers.count(tx)

    await add(database)
    assert await database.read_short(work) == 1
    assert await database.read(work) == 1
    assert [thread == threading.get_ident() for thread in ran_in] == [True, False]


async def test_a_short_read_that_cannot_be_made_at_once_goes_elsewhere(database: Database) -> None:
    """As where another process recovers the file just then; what cannot be made at all is an error."""
    ran_in: list[int] = []

    async def work(tx: Transaction) -> int:
        ran_in.append(threading.get_ident())
        if len(ran_in) == 1:
            await tx.execute(text("SELECT n FROM nowhere"))
        return await workers.count(tx)

    assert await database.read_short(work) == 0
    assert [thread == threading.get_ident() for thread in ran_in] == [True, False]
    with pytest.raises(ServiceUnavailable):
        await database.read_short(lambda tx: tx.execute(text("SELECT n FROM nowhere")))


async def test_a_short_write_that_meets_a_lock_waits_for_it_elsewhere(
    database: Database, engine: AsyncEngine
) -> None:
    """While another process writes, the event loop goes on; then the write does."""
    async with engine.connect() as other:
        await other.exec_driver_sql("BEGIN IMMEDIATE")
        writing = asyncio.create_task(add(database))
        async with asyncio.timeout(PATIENCE / 4):
            await count(database)
        assert not writing.done()
        await other.rollback()
    async with asyncio.timeout(PATIENCE):
        await writing
    assert await count(database) == 1


async def test_a_short_write_that_fails_leaves_nothing(database: Database) -> None:
    """It is rolled back, and the next one finds all in order."""

    async def work(tx: Transaction) -> None:
        await workers.add(tx, "nobody")
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        await database.write_short(work)
    await add(database)
    assert await count(database) == 1


async def test_the_log_of_writes_is_emptied_now_and_then(database: Database, database_url: str) -> None:
    """The file beside the database does not grow with the number of writes."""
    log = Path(f"{make_url(database_url).database}-wal")
    sizes = []

    def size() -> int:
        return log.stat().st_size

    for _ in range(10):
        for _ in range(500):
            await add(database)
            await asyncio.sleep(0)
        sizes.append(await asyncio.to_thread(size))
    assert sizes[-1] < 5 * sizes[0], sizes


def test_event_loops_of_several_threads_share_it(kind: str, database_url: str) -> None:
    """Two threads that write at once get in each other's way nowhere, and lose nothing."""
    database = open_database(database_url)
    failures: list[BaseException] = []

    async def many() -> None:
        for _ in range(100):
            await add(database)

    def run() -> None:
        try:
            asyncio.run(many())
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    assert asyncio.run(count(database)) == 400
    asyncio.run(database.close())
