"""The scheduler queries the database for scheduled tasks only when one is due."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from databases import OpenDatabase, on_postgresql
from replica import OpenReplica, Replica
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from waiting import until

from zndraw_joblib.server.background.loops import Scheduler
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.messages import JobResponse, TaskResponse

LONG = 30.0
PROMPT = 1.0
# A busy machine may be late once, but not every time.
TRIES = 5


@asynccontextmanager
async def scheduling(replica: Replica) -> AsyncIterator[list[Any]]:
    """Run the scheduler of a server; yield the queries it has made so far."""
    queries: list[Any] = []

    async def write(work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        result = await replica.runtime.write(work, *args, **kwargs)
        queries.append(work)
        return result

    replica.scheduler = Scheduler(write)
    minding = asyncio.create_task(replica.scheduler.run())
    # One query for due tasks and one for the next due time, which a slow machine may have reached by then.
    await until(lambda: len(queries) >= 2)
    try:
        yield queries
    finally:
        minding.cancel()
        with suppress(asyncio.CancelledError):
            await minding


async def lateness(replica: Replica, job: JobResponse, task: TaskResponse) -> float:
    """Return how many seconds after its time a waiting claim gets a task."""
    taken = await replica.claim_task(job.worker_id, wait=LONG)
    now = time.time()
    assert taken.id == task.id
    assert task.run_at is not None
    return now - task.run_at.timestamp()


async def test_a_task_is_queued_when_it_is_due(replica: Replica) -> None:
    """Not before, and soon after: long before the next cycle of a sweeper."""
    job = await replica.register()
    late = []
    async with scheduling(replica):
        for _ in range(TRIES):
            late.append(await lateness(replica, job, await replica.submit(job, delay_seconds=0.1)))
    assert min(late) >= 0
    assert min(late) < PROMPT, late


async def test_a_task_that_is_due_sooner_wakes_the_scheduler(replica: Replica) -> None:
    """A scheduler that sleeps for an hour wakes for a task that is submitted now and due first."""
    job = await replica.register()
    late = []
    async with scheduling(replica):
        for hours in range(TRIES, 0, -1):
            await replica.submit(job, delay_seconds=3600 * hours)
            late.append(await lateness(replica, job, await replica.submit(job, delay_seconds=0.1)))
    assert min(late) < PROMPT, late


async def test_a_task_that_is_due_later_delays_no_other(replica: Replica) -> None:
    """Nor does one that is due at a time for which the scheduler already waits."""
    job = await replica.register()
    async with scheduling(replica):
        soon = await replica.submit(job, delay_seconds=0.1)
        for hours in (1, 2, 1):
            await replica.submit(job, delay_seconds=3600 * hours)
        assert await lateness(replica, job, soon) < LONG


async def test_a_backoff_is_scheduled_too(replica: Replica) -> None:
    """A task that waits for its next attempt is scheduled like any other."""
    backoff = {"base_seconds": 0.1, "factor": 1}
    job = await replica.register(max_attempts=2, retry_on=["error"], backoff=backoff)
    async with scheduling(replica):
        running = await replica.running(job)
        failed = await replica.report(running.id, "failed", error="oh")
        assert await lateness(replica, job, failed) < LONG


async def test_no_query_while_nothing_is_due(replica: Replica) -> None:
    """The scheduler queries at the start, and twice for each time that is due."""
    job = await replica.register()
    async with scheduling(replica) as queries:
        await replica.submit(job, delay_seconds=3600)
        await replica.submit(job)
        await asyncio.sleep(0.3)
        assert len(queries) == 2
        await lateness_of_one(replica, job)
        await until(lambda: len(queries) >= 4)
        await asyncio.sleep(0.3)
        assert len(queries) <= 6  # one query may have been slightly too early


async def lateness_of_one(replica: Replica, job: JobResponse) -> None:
    """Claim all pending tasks, and then one that is due soon."""
    await replica.claim_task(job.worker_id)
    await lateness(replica, job, await replica.submit(job, delay_seconds=0.05))


async def test_tasks_scheduled_before_the_start_are_queued(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """A server that starts queries once for the tasks that any server scheduled."""
    job = await replica.register()
    overdue = await replica.submit(job, delay_seconds=0.01)
    soon = await replica.submit(job, delay_seconds=0.5)
    await asyncio.sleep(0.02)
    other = open_replica()
    async with scheduling(other):
        assert (await other.claim_task(job.worker_id)).id == overdue.id
        assert await lateness(other, job, soon) < LONG


async def test_a_database_error_loses_no_scheduled_task(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler retries after a pause, as often as needed."""
    job = await replica.register()
    faults = 3

    async def write(work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        nonlocal faults
        faults -= 1
        if faults >= 0:
            raise ConnectionError("gone")
        return await replica.runtime.write(work, *args, **kwargs)

    replica.scheduler = Scheduler(write)
    with caplog.at_level(logging.WARNING):
        minding = asyncio.create_task(replica.scheduler.run())
        await until(lambda: faults <= 0)
        assert await lateness(replica, job, await replica.submit(job, delay_seconds=0.05)) < LONG
        minding.cancel()
    assert faults < 0
    assert "Scheduled tasks wait: gone" in caplog.text


async def test_a_task_scheduled_in_another_thread_wakes_the_scheduler(replica: Replica) -> None:
    """A host may write in an event loop of its own."""
    job = await replica.register()
    async with scheduling(replica):
        soon = await replica.submit(job, delay_seconds=3600)
        assert soon.run_at is not None
        await replica.submit(job, delay_seconds=0.05)
        later = await replica.claim_task(job.worker_id, wait=LONG)
        assert later.run_at is None
        await asyncio.to_thread(replica.scheduler.add, 3600)


@pytest.mark.parametrize("hours", [1, -1], ids=["behind", "ahead"])
async def test_a_server_with_another_clock_than_the_database_queues_in_time(
    new_database: OpenDatabase, engine: AsyncEngine, settings: ServerSettings, hours: int
) -> None:
    """Only the database's clock counts: the server's clock is an hour behind it, or ahead of it."""
    database = new_database(lambda: datetime.now(UTC) + timedelta(hours=hours))
    replica = Replica(database, engine, settings)
    job = await replica.register()
    async with scheduling(replica) as queries:
        task = await replica.submit(job, delay_seconds=0.2)
        assert (await replica.claim_task(job.worker_id, wait=LONG)).id == task.id
        assert len(queries) <= 6
    await replica.runtime.finish()


async def lock_row(connection: Any, task: TaskResponse) -> None:
    """Lock the row of a task until the transaction of `connection` ends."""
    tasks = Task.__table__
    await connection.execute(select(tasks.c.seq).where(tasks.c.id == task.id).with_for_update())


@on_postgresql
async def test_the_scheduler_does_not_spin_while_a_due_task_is_locked(replica: Replica) -> None:
    """It retries after growing pauses, queues other tasks in time, and this one soon after its release."""
    job = await replica.register()
    async with scheduling(replica) as queries:
        locked = await replica.submit(job, delay_seconds=0.3)
        other = await replica.submit(job, delay_seconds=1.0)
        async with replica.engine.connect() as foreign:
            await lock_row(foreign, locked)
            assert (await replica.claim_task(job.worker_id, wait=LONG)).id == other.id
            assert len(queries) < 40
            await foreign.rollback()
        assert (await replica.claim_task(job.worker_id, wait=LONG)).id == locked.id
