"""Transactions are atomic, wait for locks, and report an unavailable database."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import OpenDatabase, every_kind
from replica import OWNER, TIMEOUT, Replica
from seeds import LONG_AGO
from sqlalchemy import insert, literal_column, make_url, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from zndraw_joblib.server.db.database import Database, Transaction
from zndraw_joblib.server.db.engine import open_database, open_sessions
from zndraw_joblib.server.db.host_sessions import SessionDatabase, begin
from zndraw_joblib.server.db.limits import Limits, SingleWrites
from zndraw_joblib.server.db.postgres import PostgresDatabase
from zndraw_joblib.server.db.sqlite import SqliteDatabase
from zndraw_joblib.server.db.tables import Job, Worker
from zndraw_joblib.server.process.ports import Wake
from zndraw_joblib.server.queue import rules_workers, sql_workers
from zndraw_joblib.wire.events import Emission, JobsInvalidate
from zndraw_joblib.wire.problems import ServiceUnavailable

only_postgresql = pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
only_sqlite = pytest.mark.parametrize("kind", ["sqlite", "sqlite-of-a-host"])
jobs = Job.__table__


@pytest.fixture
def database(new_database: OpenDatabase) -> Database:
    """Return the test's database."""
    return new_database(None)


async def owners(engine: AsyncEngine) -> list[str]:
    """Return the owners of all workers as another process sees them."""
    async with engine.connect() as connection:
        found = await connection.execute(select(Worker.__table__.c.owner_id))
        return sorted(found.scalars())


async def locked_by_another_process(connection: AsyncConnection) -> None:
    """Hold the write lock as another process would."""
    if connection.dialect.name == "sqlite":
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        await connection.execute(text("LOCK TABLE joblib_worker IN EXCLUSIVE MODE"))


@every_kind
async def test_a_failed_transaction_is_rolled_back(database: Database, engine: AsyncEngine) -> None:
    """An error undoes earlier statements, and the next transaction succeeds."""

    async def work(tx: Transaction) -> None:
        await sql_workers.add(tx, "ada")
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        await database.write(work)
    await database.write(sql_workers.add, owner_id="bob")
    assert await owners(engine) == ["bob"]


@only_sqlite
async def test_compiled_statements_do_not_accumulate(database: Database) -> None:
    """Statements that are built for one transaction are dropped, also those that it runs twice."""
    built = []

    async def work(tx: Transaction) -> None:
        for number in range(2000):
            statement = select(literal_column(str(number)))
            built.append(weakref.ref(statement))
            for _ in range(3):
                assert (await tx.execute(statement)).scalar_one() == number

    await database.write(work)
    gc.collect()
    assert sum(statement() is not None for statement in built) <= 1024


@every_kind
async def test_a_violated_constraint_rolls_the_transaction_back(
    database: Database, engine: AsyncEngine
) -> None:
    """The caller gets the constraint's error, and no row of the transaction stays."""

    async def work(tx: Transaction) -> None:
        await sql_workers.add(tx, "ada")
        await tx.execute(insert(Worker.__table__), [{"id": uuid4(), "owner_id": None, "draining": False}])

    with pytest.raises(IntegrityError):
        await database.write(work)
    assert await owners(engine) == []


@every_kind
async def test_a_reader_waits_for_no_writer(database: Database, engine: AsyncEngine) -> None:
    """A list is read while another process writes, and contains what was committed before."""
    await database.write(sql_workers.add, owner_id="first")
    async with engine.connect() as other, asyncio.timeout(TIMEOUT):
        if other.dialect.name == "sqlite":
            await other.exec_driver_sql("BEGIN IMMEDIATE")
        row = {"id": uuid4(), "owner_id": "second", "created_at": LONG_AGO, "last_heartbeat": LONG_AGO}
        await other.execute(insert(Worker.__table__), [row])
        assert await database.read(sql_workers.count) == 1
        await other.commit()
    assert await database.read(sql_workers.count) == 2


@every_kind
async def test_a_writer_waits_for_another_process(database: Database, engine: AsyncEngine) -> None:
    """A write waits for the lock of another process and then succeeds."""
    async with engine.connect() as other:
        await locked_by_another_process(other)
        writing = asyncio.create_task(database.write(sql_workers.add, owner_id="patient"))
        done, _ = await asyncio.wait({writing}, timeout=0.1)
        assert not done
        await other.rollback()
    async with asyncio.timeout(TIMEOUT):
        await writing
    assert await owners(engine) == ["patient"]


@every_kind
@pytest.mark.parametrize("ends", [1, 2])
async def test_writers_lose_no_update(
    new_database: OpenDatabase, engine: AsyncEngine, replica: Replica, ends: int
) -> None:
    """Concurrent increments of one process and of two are all counted."""
    job = await replica.register()
    databases = [new_database(None) for _ in range(ends)]

    async def increment(tx: Transaction) -> None:
        row = (await tx.execute(select(jobs.c.pending).where(jobs.c.id == job.id).with_for_update())).one()
        await tx.execute(update(jobs).where(jobs.c.id == job.id).values(pending=row.pending + 1))

    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*[databases[turn % ends].write(increment) for turn in range(40)])
    [row] = await replica.rows(jobs)
    assert row.pending == 40
    await replica.execute(update(jobs).values(pending=0))


@only_postgresql
async def test_a_deadlock_is_retried(database: Database, replica: Replica) -> None:
    """Two transactions that lock two rows in opposite order both commit in the end."""
    ids = [(await replica.register(name)).id for name in ("A", "B")]
    await database.write(sql_workers.count)
    both_hold_one = asyncio.Barrier(2)
    tries = 0

    async def work(tx: Transaction, first: UUID, second: UUID) -> None:
        nonlocal tries
        tries += 1
        await tx.execute(update(jobs).where(jobs.c.id == first).values(schema={"by": str(first)}))
        if tries <= 2:
            await both_hold_one.wait()
        await tx.execute(update(jobs).where(jobs.c.id == second).values(schema={"by": str(first)}))

    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(
            database.write(work, first=ids[0], second=ids[1]),
            database.write(work, first=ids[1], second=ids[0]),
        )
    assert tries >= 3  # the one that is repeated may meet the other again
    rows = await replica.rows(jobs)
    assert rows[0].schema == rows[1].schema


@only_postgresql
async def test_a_connection_lost_before_the_commit_is_retried(
    database: Database, engine: AsyncEngine
) -> None:
    """A transaction that PostgreSQL interrupts by a restart runs again, and takes effect once."""
    tries = 0

    async def work(tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        await sql_workers.add(tx, "survivor")
        if tries == 1:
            await tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    await database.write(work)
    assert tries == 2
    assert await owners(engine) == ["survivor"]


@only_postgresql
@pytest.mark.parametrize("what", ["read", "write"])
async def test_closed_idle_connections_are_replaced(
    database: Database, engine: AsyncEngine, what: str
) -> None:
    """After PostgreSQL has closed all pooled connections, the next requests succeed."""

    async def send_requests() -> list[Any]:
        act = database.read if what == "read" else database.write
        return await asyncio.gather(*[act(sql_workers.count) for _ in range(5)], return_exceptions=True)

    await send_requests()
    async with engine.connect() as other:
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        await other.execute(text(f"{others} AND pid <> pg_backend_pid()"))
    assert [answer for answer in await send_requests() if isinstance(answer, Exception)] == []


@pytest.fixture
async def short_timeouts(kind: str, database_url: str) -> AsyncIterator[Database]:
    """Return the test's database with one connection and short timeouts."""
    url = database_url.replace("postgresql:", "postgresql+asyncpg:")
    if kind == "sqlite":
        yield (database := SqliteDatabase(make_url(url), busy_seconds=0.05))
        await database.close()
        return
    if kind == "postgresql":
        own = PostgresDatabase(make_url(url), pool_size=1)
        await own.read(sql_workers.count)  # a busy machine needs longer than the timeout to connect
        own.pool_seconds = 0.05
        yield own
        await own.close()
        return
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.05}
    if kind == "sqlite-of-a-host":
        url, options["connect_args"] = url.replace("sqlite:", "sqlite+aiosqlite:"), {"timeout": 0.05}
    engine = create_async_engine(url, **options)
    yield SessionDatabase(open_sessions(engine))
    await engine.dispose()


@only_sqlite
async def test_a_lock_timeout_is_reported(short_timeouts: Database, engine: AsyncEngine) -> None:
    """A writer that gets no lock in time raises `ServiceUnavailable`, and writes nothing."""
    async with engine.connect() as other:
        await locked_by_another_process(other)
        with pytest.raises(ServiceUnavailable) as raised:
            await short_timeouts.write(sql_workers.add, owner_id="unlucky")
        assert raised.value.headers == {"Retry-After": "1"}
    await short_timeouts.write(sql_workers.add, owner_id="lucky")
    assert await owners(engine) == ["lucky"]


@only_postgresql
async def test_an_exhausted_pool_is_reported(short_timeouts: Database) -> None:
    """A request that gets no connection in time raises `ServiceUnavailable`."""
    taken, free = asyncio.Event(), asyncio.Event()

    async def hold(tx: Transaction) -> None:
        await tx.now()
        taken.set()
        await free.wait()

    holding = asyncio.create_task(short_timeouts.read(hold))
    await asyncio.wait_for(taken.wait(), TIMEOUT)
    with pytest.raises(ServiceUnavailable):
        await short_timeouts.read(sql_workers.count)
    free.set()
    await holding
    if isinstance(short_timeouts, PostgresDatabase):
        short_timeouts.pool_seconds = TIMEOUT
    assert await short_timeouts.read(sql_workers.count) == 0


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_transaction_in_a_thread_may_only_await_the_database(
    database: Database, engine: AsyncEngine
) -> None:
    """Any other await raises an error at once, and the transaction is rolled back."""

    async def work(tx: Transaction) -> None:
        await sql_workers.add(tx, "ada")
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="nothing except the database"):
        await database.write(work)
    assert await owners(engine) == []
    await database.write(sql_workers.add, owner_id="bob")


@every_kind
async def test_events_are_kept_in_order_and_once(database: Database) -> None:
    """The events of a transaction come in order without repeats; all wake-ups are kept."""
    rooms = ["a", "b", "a", "c", "b"]

    async def work(tx: Transaction) -> None:
        for room in rooms:
            tx.emit(room, lambda room=room: Emission(JobsInvalidate(), room))
            tx.wake(room, 1)

    _, tx = await database.write(work)
    assert [emission.room for emission in tx.emissions] == ["a", "b", "c"]
    tx.emit_many(lambda reaches: [Emission(JobsInvalidate(), room) for room in "de" if reaches(room)])
    assert [emission.room for emission in tx.emissions] == ["d", "e", "a", "b", "c"]
    assert [emission.room for emission in tx.emissions_to("be".__contains__)] == ["e", "b"]
    assert tx.wakes == [Wake(room, 1) for room in rooms]


@pytest.mark.parametrize("before", ["nothing", "a read", "a write"])
@pytest.mark.parametrize("kind", ["sqlite-of-a-host", "postgresql-of-a-host"])
async def test_a_hosts_session_can_be_used_as_a_transaction(
    engine: AsyncEngine, replica: Replica, before: str
) -> None:
    """The queue's statements join the host's transaction; the host commits both or neither."""
    job = await replica.register()
    assert job.worker_id is not None

    async def retire(session: AsyncSession, owner: str) -> None:
        if before == "a read":
            await session.execute(select(Worker.__table__))
        if before == "a write":
            row = {"id": uuid4(), "owner_id": owner, "created_at": LONG_AGO, "last_heartbeat": LONG_AGO}
            await session.execute(insert(Worker.__table__), [row])
        await rules_workers.remove(await begin(session), OWNER, job.worker_id)

    async with open_sessions(engine)() as session:
        await retire(session, "undone")
        await session.rollback()
    assert await owners(engine) == [OWNER.id]
    async with open_sessions(engine)() as session:
        await retire(session, "done")
        await session.commit()
    assert await owners(engine) == (["done"] if before == "a write" else [])


@only_sqlite
def test_a_database_serves_several_event_loops(kind: str, database_url: str) -> None:
    """A host's test client may run each request in an event loop of its own."""
    if kind == "sqlite":
        database: Database = open_database(database_url)
    else:
        url = database_url.replace("sqlite:", "sqlite+aiosqlite:")
        engine = create_async_engine(url, poolclass=NullPool)
        database = SessionDatabase(open_sessions(engine))
    for turn in range(1, 4):

        async def at_once() -> int:
            await asyncio.gather(*[database.write(sql_workers.add, owner_id="x") for _ in range(5)])
            return await database.read(sql_workers.count)

        assert asyncio.run(at_once()) == 5 * turn
    asyncio.run(database.close())


async def test_a_closed_database_opens_again(database: Database) -> None:
    """An app that was stopped may start again with the same object."""
    for turn in (1, 2):
        await database.write(sql_workers.add, owner_id="x")
        assert await database.read(sql_workers.count) == turn
        await database.close()


async def test_half_of_the_writes_outside_batches_may_wait_long_for_a_lock() -> None:
    """When one of them ends, the next attempt of another write waits long, so none starves."""
    writes = SingleWrites(Limits(lock=5))
    async with AsyncExitStack() as others:
        async with writes.slot() as first:
            rest = [await others.enter_async_context(writes.slot()) for _ in range(5)]
        assert [first, *rest] == [5, 5, 5, 5, 0.25, 0.25]
        async with writes.slot() as repeated, writes.slot() as brief:
            assert (repeated, brief) == (5, 0.25)
