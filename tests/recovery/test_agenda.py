"""A server asks for scheduled tasks when one is due, and only then."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from replica import OpenReplica, Replica
from waiting import until

from zndraw_joblib.contract.messages import JobResponse, TaskResponse
from zndraw_joblib.server.background.scheduler import Scheduler

LONG = 15.0
PROMPT = 0.05
# A machine that is busy with other things may miss a time once; every time it does not.
TRIES = 5


@asynccontextmanager
async def minded(replica: Replica) -> AsyncIterator[list[Any]]:
    """Let a server mind its schedule; give what it has asked the database for so far."""
    asked: list[Any] = []

    async def write(work: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        answer = await replica.runtime.write(work, *args, **kwargs)
        asked.append(work)
        return answer

    replica.scheduler = Scheduler(write)
    minding = asyncio.create_task(replica.scheduler.run())
    await until(lambda: len(asked) == 2)  # what is due, and when the next is
    try:
        yield asked
    finally:
        minding.cancel()
        with suppress(asyncio.CancelledError):
            await minding


async def lateness(replica: Replica, job: JobResponse, task: TaskResponse) -> float:
    """Return how many seconds after its time a sleeping claim gets a task."""
    taken = await replica.claim_task(job.worker_id, wait=LONG)
    now = time.time()
    assert taken.id == task.id
    assert task.run_at is not None
    return now - task.run_at.timestamp()


async def test_a_task_is_in_its_queue_when_its_time_comes(replica: Replica) -> None:
    """Not before, and not fifty milliseconds later."""
    job = await replica.register()
    late = []
    async with minded(replica):
        for _ in range(TRIES):
            late.append(await lateness(replica, job, await replica.submit(job, delay_seconds=0.1)))
    assert min(late) >= 0
    assert min(late) < PROMPT, late


async def test_a_sooner_task_that_comes_later_is_not_missed(replica: Replica) -> None:
    """Who sleeps for a task in an hour wakes up for one that is submitted now, and due first."""
    job = await replica.register()
    late = []
    async with minded(replica):
        for hours in range(TRIES, 0, -1):
            await replica.submit(job, delay_seconds=3600 * hours)
            late.append(await lateness(replica, job, await replica.submit(job, delay_seconds=0.1)))
    assert min(late) < PROMPT, late


async def test_a_later_task_that_comes_later_delays_no_sooner_one(replica: Replica) -> None:
    """Nor does one that is for a time of which the server knows already."""
    job = await replica.register()
    async with minded(replica):
        soon = await replica.submit(job, delay_seconds=0.1)
        for hours in (1, 2, 1):
            await replica.submit(job, delay_seconds=3600 * hours)
        assert await lateness(replica, job, soon) < 2


async def test_the_pause_after_a_failure_is_minded_too(replica: Replica) -> None:
    """A task that waits for its next attempt is scheduled like any other."""
    backoff = {"base_seconds": 0.1, "factor": 1}
    job = await replica.register(max_attempts=2, retry_on=["error"], backoff=backoff)
    async with minded(replica):
        running = await replica.running(job)
        failed = await replica.report(running.id, "failed", error="oh")
        assert await lateness(replica, job, failed) < 2


async def test_nothing_is_asked_while_nothing_is_due(replica: Replica) -> None:
    """Only at the start, and twice for each time that comes: the database is left alone in between."""
    job = await replica.register()
    async with minded(replica) as asked:
        await replica.submit(job, delay_seconds=3600)
        await replica.submit(job)
        await asyncio.sleep(0.3)
        assert len(asked) == 2
        await lateness_of_one(replica, job)
        await until(lambda: len(asked) >= 4)
        await asyncio.sleep(0.3)
        assert len(asked) <= 6  # it may have looked a touch early, once


async def lateness_of_one(replica: Replica, job: JobResponse) -> None:
    """Claim what is there, and then one that is due soon."""
    await replica.claim_task(job.worker_id)
    await lateness(replica, job, await replica.submit(job, delay_seconds=0.05))


async def test_what_was_scheduled_before_the_start_is_minded(
    replica: Replica, open_replica: OpenReplica
) -> None:
    """A server that starts asks once what others, or it itself, have left for it."""
    job = await replica.register()
    overdue = await replica.submit(job, delay_seconds=0.01)
    soon = await replica.submit(job, delay_seconds=0.5)
    await asyncio.sleep(0.02)
    other = open_replica()
    async with minded(other):
        assert (await other.claim_task(job.worker_id)).id == overdue.id
        assert await lateness(other, job, soon) < 2


async def test_a_fault_of_the_database_delays_and_loses_nothing(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again after a pause, as often as it takes."""
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
        assert await lateness(replica, job, await replica.submit(job, delay_seconds=0.05)) < 2
        minding.cancel()
    assert faults < 0
    assert "the database is unavailable" in caplog.text


async def test_a_note_that_comes_from_another_thread_is_heard(replica: Replica) -> None:
    """A host may write in a loop of its own."""
    job = await replica.register()
    async with minded(replica):
        soon = await replica.submit(job, delay_seconds=3600)
        assert soon.run_at is not None
        await replica.submit(job, delay_seconds=0.05)
        later = await replica.claim_task(job.worker_id, wait=LONG)
        assert later.run_at is None
        await asyncio.to_thread(replica.scheduler.add, soon.run_at)
