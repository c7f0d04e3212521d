"""Short transactions on the standalone server's SQLite file run on the event loop and never block it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from databases import OpenDatabase
from replica import TIMEOUT
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.sqlite import SqliteDatabase
from zndraw_joblib.server.queue import sql_workers
from zndraw_joblib.wire.problems import ServiceUnavailable

pytestmark = pytest.mark.parametrize("kind", ["sqlite"])


@pytest.fixture
def database(new_database: OpenDatabase) -> Database:
    """Return the test's database."""
    return new_database(None)


async def add(database: Database, owner: str = "x") -> None:
    """Insert one row."""
    await database.write_short(sql_workers.add, owner_id=owner)


async def count(database: Database) -> int:
    """Count the rows."""
    return await database.read(sql_workers.count)


async def test_a_short_write_runs_on_the_event_loop(database: Database) -> None:
    """A short write needs no other thread; a long one does not run on the event loop."""
    ran_in: list[int] = []

    async def work(tx: Transaction) -> None:
        ran_in.append(threading.get_ident())
        await sql_workers.add(tx, "x")

    await database.write_short(work)
    await database.write(work)
    assert [thread == threading.get_ident() for thread in ran_in] == [True, False]
    assert await count(database) == 2


async def test_a_short_read_runs_on_the_event_loop(database: Database) -> None:
    """A short read sees all commits; a long one does not run on the event loop."""
    ran_in: list[int] = []

    async def work(tx: Transaction) -> int:
        ran_in.append(threading.get_ident())
        return await sql_workers.count(tx)

    await add(database)
    assert await database.read_short(work) == 1
    assert await database.read(work) == 1
    assert [thread == threading.get_ident() for thread in ran_in] == [True, False]


async def test_a_short_read_that_would_wait_runs_in_a_thread(database: Database) -> None:
    """For example while another process recovers the file. A read that always fails raises its error."""
    ran_in: list[int] = []

    async def work(tx: Transaction) -> int:
        ran_in.append(threading.get_ident())
        if len(ran_in) == 1:
            await tx.execute(text("SELECT n FROM nowhere"))
        return await sql_workers.count(tx)

    assert await database.read_short(work) == 0
    assert [thread == threading.get_ident() for thread in ran_in] == [True, False]
    with pytest.raises(ServiceUnavailable):
        await database.read_short(lambda tx: tx.execute(text("SELECT n FROM nowhere")))


async def test_a_short_write_waits_for_a_lock_in_a_thread(database: Database, engine: AsyncEngine) -> None:
    """While another process writes, the event loop continues; the write follows."""
    async with engine.connect() as other:
        await other.exec_driver_sql("BEGIN IMMEDIATE")
        writing = asyncio.create_task(add(database))
        async with asyncio.timeout(TIMEOUT / 4):
            await count(database)
        assert not writing.done()
        await other.rollback()
    async with asyncio.timeout(TIMEOUT):
        await writing
    assert await count(database) == 1


async def test_a_failed_short_write_is_rolled_back(database: Database) -> None:
    """The next write succeeds."""

    async def work(tx: Transaction) -> None:
        await sql_workers.add(tx, "ada")
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        await database.write_short(work)
    await add(database)
    assert await count(database) == 1


async def test_a_checkpoint_that_gets_no_thread_leaves_no_lock(
    database: Database, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The write that would start it is committed, and other connections can write."""

    submit, here = ThreadPoolExecutor.submit, threading.current_thread()

    def refuse(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is here:  # another may run a server of another test
            raise RuntimeError("can't start new thread")
        return submit(*arguments, **options)

    with monkeypatch.context() as system:
        system.setattr(ThreadPoolExecutor, "submit", refuse)
        for _ in range(250):
            await add(database)
    assert "Could not start a thread that shortens the write-ahead log: can't start" in caplog.text
    async with engine.connect() as other:
        await other.exec_driver_sql("BEGIN IMMEDIATE")
        await other.rollback()
    assert await count(database) == 250


async def test_the_write_ahead_log_is_bounded(database: Database, database_url: str) -> None:
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


def test_event_loops_of_several_threads_share_a_database(kind: str, database_url: str) -> None:
    """Two threads that write at once lose no write and raise no error."""
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
        thread.join(TIMEOUT)
    assert failures == []
    assert asyncio.run(count(database)) == 400
    asyncio.run(database.close())


# Some 20 ms.
SLOW = text(
    "WITH RECURSIVE steps(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM steps WHERE n < 100000) "
    "SELECT count(*) FROM steps"
)


async def test_short_writes_back_to_back_let_a_long_one_in(database_url: str, database: Database) -> None:
    """They hold the lock nearly all the time, and SQLite's lock is not fair: the long write would fail.

    The sweeper and the statistics write in a thread.
    """
    impatient = SqliteDatabase(make_url(database_url), busy_seconds=5)
    is_done = asyncio.Event()

    async def slow(tx: Transaction) -> None:
        await tx.execute(SLOW)

    async def write_short() -> int:
        writes = 0
        while not is_done.is_set():
            await impatient.write_short(slow)
            await asyncio.sleep(0)
            writes += 1
        return writes

    shorts = asyncio.create_task(write_short())
    try:
        for _ in range(5):
            await impatient.write(sql_workers.add, "long")
    finally:
        is_done.set()
        assert await shorts > 0
        await impatient.close()
    assert await count(database) == 5


async def test_a_long_write_that_waits_is_the_next(database_url: str, database: Database) -> None:
    """Short writes that begin while it waits for another short write come after it."""
    queue = SqliteDatabase(make_url(database_url))
    order: list[str] = []

    async def record(_: Transaction, name: str) -> None:
        order.append(name)

    async def first(tx: Transaction) -> threading.Thread:
        """Return the thread of a long write that waits for this one."""
        long = threading.Thread(target=lambda: asyncio.run(queue.write(record, "long")))
        long.start()
        while not queue.is_thread_waiting:
            time.sleep(0)  # noqa: ASYNC251 - a short write runs without the event loop
        await record(tx, "first")
        return long

    long, _ = await queue.write_short(first)
    async with asyncio.timeout(TIMEOUT):
        await queue.write_short(record, "second")
        await asyncio.to_thread(long.join)
    assert order == ["first", "long", "second"]
    await queue.close()
