"""A task that a host submits in its own transaction exists exactly if the host's commit succeeds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import sqlmodel.ext.asyncio.session
from databases import on_both, on_postgresql
from fastapi import FastAPI
from sqlalchemy import event, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from waiting import until

from host.queues import ROOT, Host, Order, running_host
from zndraw_joblib import JobLib, JobLibSettings, JobNotFound, ServiceUnavailable
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.errors import RepeatTransaction
from zndraw_joblib.server.db.host_sessions import write_in
from zndraw_joblib.wire.events import TaskAvailable

BOUND = 30
# Longer than a test may take: only a wake-up ends a wait in time.
NEVER = 600.0


class Recorder:
    """A Socket.IO server that records the models that the queue emits."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def emit(self, model: Any, room: str | None = None) -> None:
        """Record a model."""
        self.events.append(model)

    @property
    def available(self) -> int:
        """How many tasks were announced to workers."""
        return sum(isinstance(each, TaskAvailable) for each in self.events)


@pytest.fixture
def recorder() -> Recorder:
    """Return what the host publishes with."""
    return Recorder()


@pytest.fixture
async def host(async_url: str, recorder: Recorder) -> AsyncIterator[Host]:
    """Run a host without a re-check: only wake-ups end a wait."""
    async with running_host(async_url, tsio=recorder) as host:
        host.joblib.runtime.recheck.seconds = NEVER, NEVER
        yield host


@on_both
async def test_the_commit_makes_the_task_and_wakes_a_worker(host: Host, recorder: Recorder) -> None:
    """Until then no other client sees it; afterwards a waiting claim gets it at once."""
    job = await host.register()
    claiming = asyncio.ensure_future(host.claim(job, wait=20))
    async with asyncio.timeout(BOUND):
        await until(lambda: host.joblib.runtime.waiters.waiting_count)
        async with host.sessions() as session:
            session.add(Order(id=1))
            task = await host.joblib.submit(job["full_name"], room="lab", session=session)
            many = await host.joblib.submit_many([], session=session)
            assert many == []
            assert (await host.joblib.get(task.id, session=session)).status == "pending"
            assert not await host.exists(task.id)
            assert recorder.available == 0
            await session.commit()
        claimed = await claiming
        assert claimed is not None
        assert claimed["id"] == str(task.id)
        await until(lambda: recorder.available == 1)


@on_both
async def test_a_rollback_leaves_nothing(host: Host, recorder: Recorder) -> None:
    """Neither the task nor the host's row, nor an event; the session can be used again."""
    job = await host.register()
    async with asyncio.timeout(BOUND), host.sessions() as session:
        session.add(Order(id=1))
        gone = await host.joblib.submit(job["full_name"], room="lab", session=session)
        await session.rollback()
        kept = await host.joblib.submit(job["full_name"], room="lab", session=session)
        await session.commit()
        assert not await host.exists(gone.id)
        assert await host.exists(kept.id)
        assert (await session.scalars(select(Order))).all() == []
        await until(lambda: recorder.available == 1)


@on_both
async def test_a_close_without_commit_leaves_nothing(host: Host, recorder: Recorder) -> None:
    """As an exception in the host's handler does."""
    job = await host.register()
    async with asyncio.timeout(BOUND):
        async with host.sessions() as session:
            gone = await host.joblib.submit(job["full_name"], room="lab", session=session)
        with suppress(KeyError):
            async with host.sessions.begin() as session:
                await host.joblib.submit(job["full_name"], room="lab", session=session)
                raise KeyError
        assert not await host.exists(gone.id)
        assert await host.claim(job) is None
    assert recorder.available == 0


@on_both
async def test_savepoints(host: Host, recorder: Recorder) -> None:
    """A task in a savepoint that is rolled back is gone; one in a released savepoint waits for the commit."""
    job = await host.register()
    name = job["full_name"]
    async with asyncio.timeout(BOUND):
        async with host.sessions() as session:
            first = await host.joblib.submit(name, room="lab", session=session)
            with suppress(KeyError):
                async with session.begin_nested():
                    gone = await host.joblib.submit(name, room="lab", session=session)
                    raise KeyError
            async with session.begin_nested():
                async with session.begin_nested():
                    inner = await host.joblib.submit(name, room="lab", session=session)
                session.add(Order(id=2))
            assert recorder.available == 0
            await session.commit()
        assert [await host.exists(task.id) for task in (first, gone, inner)] == [True, False, True]
        await until(lambda: recorder.available == 2)


@on_both
async def test_a_released_savepoint_in_a_transaction_that_is_rolled_back(
    host: Host, recorder: Recorder
) -> None:
    """Its task does not exist, and no event was published.

    SQLite's driver begins a transaction at the first write, and takes a savepoint before it for one.
    """
    job = await host.register()
    async with asyncio.timeout(BOUND), host.sessions() as session:
        session.add(Order(id=4))
        async with session.begin_nested():
            gone = await host.joblib.submit(job["full_name"], room="lab", session=session)
        await session.rollback()
        assert not await host.exists(gone.id)
        await session.commit()
    assert recorder.available == 0


@on_both
async def test_several_submits_in_one_transaction(host: Host) -> None:
    """A refused one leaves the others; the session may be reused for a next transaction."""
    job = await host.register(schema={"type": "object", "required": ["x"]})
    async with asyncio.timeout(BOUND), host.sessions() as session:
        made = [
            await host.joblib.submit(job["full_name"], {"x": number}, room="lab", session=session)
            for number in range(3)
        ]
        with pytest.raises(JobNotFound):
            await host.joblib.submit("@global:modifiers:Missing", room="lab", session=session)
        await session.commit()
        made.append(await host.joblib.submit(job["full_name"], {"x": 3}, room="lab", session=session))
        await session.commit()
    assert [task.queue_position for task in made] == [1, 2, 3, 4]
    claimed = [await host.claim(job) for _ in made]
    assert [task and task["payload"] for task in claimed] == [{"x": number} for number in range(4)]


@on_both
async def test_a_call_is_repeated_after_a_concurrent_change(host: Host) -> None:
    """Without what its first attempt has written."""
    attempts: list[int] = []

    async def work(tx: Transaction) -> None:
        attempts.append(len(attempts))
        await tx.execute(insert(Order).values(id=5))
        if len(attempts) == 1:
            raise RepeatTransaction("another transaction was first")

    async with asyncio.timeout(BOUND), host.sessions() as session:
        await write_in(session, None, host.joblib.runtime.database, work, lambda tx: None)
        await session.commit()
        assert (attempts, (await session.scalars(select(Order.id))).all()) == ([0, 1], [5])


@pytest.mark.parametrize("kind_of_session", ["sqlmodel", "scoped"])
async def test_other_sessions(host: Host, kind_of_session: str) -> None:
    """SQLModel's session and a scoped one work too."""
    job = await host.register()
    session: Any = sqlmodel.ext.asyncio.session.AsyncSession(host.engine)
    if kind_of_session == "scoped":
        session = async_scoped_session(host.sessions, scopefunc=asyncio.current_task)
    task = await host.joblib.submit(job["full_name"], room="lab", session=session)
    await session.commit()
    await session.close()
    assert await host.exists(task.id)


async def test_a_transaction_that_has_read_takes_the_lock(async_url: str) -> None:
    """A read before the submit is no obstacle, unless another transaction has written since: then a 503."""
    async with running_host(async_url) as host:
        name = (await host.register())["full_name"]
    # The loops of a running app could write between the read and the submit, so this app does not run.
    joblib = JobLib(session_maker=host.sessions, identity=lambda: ROOT)
    joblib.mount(FastAPI())

    @event.listens_for(host.engine.sync_engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    async with asyncio.timeout(BOUND):
        async with AsyncSession(host.engine) as session:
            assert (await session.scalars(select(Order))).all() == []
            await joblib.submit(name, room="lab", session=session)
            await session.commit()
        async with AsyncSession(host.engine) as session:
            assert (await session.execute(text("SELECT count(*) FROM joblib_task"))).scalar() == 1
            await joblib.submit(name, room="lab")
            with pytest.raises(ServiceUnavailable, match="before it reads"):
                await joblib.submit(name, room="lab", session=session)
            await session.rollback()
            await joblib.submit(name, room="lab", session=session)
            await session.commit()
    await host.engine.dispose()


@on_postgresql
async def test_a_wait_for_a_lock_is_bounded(async_url: str) -> None:
    """A call waits for another transaction as long as a request does, and the session stays usable."""
    settings = JobLibSettings(database_lock_timeout_seconds=1)
    async with asyncio.timeout(BOUND), running_host(async_url, settings=settings) as host:
        job = await host.register()
        async with host.sessions() as holder, host.sessions() as session:
            await host.joblib.submit(job["full_name"], room="lab", session=holder)
            session.add(Order(id=3))
            await session.execute(text("SET lock_timeout = '7s'"))
            with pytest.raises(ServiceUnavailable, match="database_lock_timeout_seconds"):
                await host.joblib.submit(job["full_name"], room="lab", session=session)
            await holder.commit()
            await host.joblib.submit(job["full_name"], room="lab", session=session)
            assert (await session.scalar(text("SHOW lock_timeout"))) == "7s"
            await session.commit()
            assert (await session.scalars(select(Order.id))).all() == [3]
