"""A commit in one replica wakes waiters in another one, in order, and no wake-up is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from replica import OpenReplica, Replica
from seeds import add_tasks, task
from waiting import until

from zndraw_joblib.server.process.ports import OpenConnection, job_key
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.messages import TaskResponse, WorkerInfo
from zndraw_joblib.wire.problems import WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus

# A waiting request ends long before this, unless its wake-up was lost.
LONG_POLL = 60.0
SOON = 20.0


@pytest.fixture
def recheck_seconds(settings: ServerSettings) -> tuple[float, float]:
    """Disable the periodic recheck, which would hide a lost wake-up; it also comes with each heartbeat."""
    settings.heartbeat_interval_seconds = 3600
    return 3600.0, 3600.0


@pytest.fixture
async def two(
    open_replica: OpenReplica, open_connection: OpenConnection
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Return two connected replicas."""
    replicas = open_replica(), open_replica()
    running = [asyncio.create_task(each.runtime.pubsub.run(open_connection)) for each in replicas]
    await until(lambda: all(each.runtime.pubsub.peers for each in replicas))
    yield replicas
    for pubsub in running:
        pubsub.cancel()
        with suppress(asyncio.CancelledError):
            await pubsub


async def waiting(replica: Replica, count: int) -> None:
    """Wait until `count` requests wait at a replica."""
    await until(lambda: replica.runtime.waiters.waiting_count == count)


def claim(replica: Replica, worker: Any, **options: Any) -> "asyncio.Task[TaskResponse | None]":
    """Start a claim that waits for a task."""
    return asyncio.create_task(replica.claim(worker, **{"wait": LONG_POLL, **options}))


async def soon(awaitable: Any) -> Any:
    """Return a result long before a long-poll ends."""
    async with asyncio.timeout(SOON):
        return await awaitable


async def test_a_submit_wakes_a_claim_at_another_replica(two: tuple[Replica, Replica]) -> None:
    """Several times in a row."""
    here, there = two
    job = await there.register()
    for _ in range(5):
        claiming = claim(there, job.worker_id)
        await waiting(there, 1)
        submitted = await here.submit(job)
        assert (await soon(claiming)).id == submitted.id


async def test_a_wake_up_goes_on_to_a_worker_with_free_slots(two: tuple[Replica, Replica]) -> None:
    """Claims that lack slots for the task pass it on, each time; a report of their worker wakes them."""
    here, there = two
    jobs = [await here.register(about=WorkerInfo(slots=2)) for _ in range(3)]
    # Of equal workers the first one keeps its free slots.
    keeping, passing = sorted(jobs[:2], key=lambda job: str(job.worker_id))
    busy = {job.worker_id: await here.running(job) for job in (keeping, passing)}
    lacking = [claim(here, job.worker_id) for job in (passing, keeping)]
    await waiting(here, 2)
    for _ in range(2):
        claiming = claim(there, jobs[2].worker_id)
        await waiting(there, 1)
        costly = await here.submit(jobs[2], cost=2)
        assert (await soon(claiming)).id == costly.id
        await there.report(costly.id, "running")
        await there.report(costly.id, "completed")
    assert not any(claiming.done() for claiming in lacking)
    for job, claiming in zip((passing, keeping), lacking, strict=True):
        costly = await here.submit(job, cost=2)
        await here.report(busy[job.worker_id].id, "completed")
        assert (await soon(claiming)).id == costly.id


async def test_a_preferred_worker_may_wait_at_another_replica(
    two: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the task before a worker that waits here, which gets the next one soon."""
    monkeypatch.setattr("zndraw_joblib.server.process.waiters._BEFORE_SECONDS", 2.0)
    here, there = two
    job = await here.register()
    warm = await there.register(about=WorkerInfo(labels={"host": "n2"}))
    for _ in range(2):
        claims = [claim(here, job.worker_id), claim(there, warm.worker_id)]
        for replica in two:
            await waiting(replica, 1)
        tasks = [await here.submit(job, prefer={"host": "n2"}) for _ in claims]
        assert [(await soon(claiming)).id for claiming in claims] == [tasks[1].id, tasks[0].id]


async def test_a_completion_wakes_all_submitters_at_another_replica(two: tuple[Replica, Replica]) -> None:
    """Every request that waits for the task returns."""
    here, there = two
    job = await there.register()
    running = await there.running(job)
    waits = [asyncio.create_task(here.get(running.id, LONG_POLL)) for _ in range(3)]
    await waiting(here, 3)
    await there.report(running.id, "completed")
    assert [ended.status for ended in await soon(asyncio.gather(*waits))] == [TaskStatus.COMPLETED] * 3


async def test_waiters_of_the_same_replica_are_first(two: tuple[Replica, Replica]) -> None:
    """A replica forwards only those wake-ups that none of its own waiters uses."""
    here, there = two
    job, other = await here.register(), await there.register()
    local, remote = claim(here, job.worker_id), claim(there, other.worker_id)
    await waiting(here, 1)
    await waiting(there, 1)
    woken: list[str] = []
    # Of other keys, the registration of the worker may arrive late.
    there.runtime.waiters.subscribe(job_key(job.full_name), woken.append)
    first = await here.submit(job)
    assert (await soon(local)).id == first.id
    second = await here.submit(job)
    assert (await soon(remote)).id == second.id
    assert woken == [job_key(job.full_name)]


async def test_many_submits_wake_the_claims_of_both_replicas(two: tuple[Replica, Replica]) -> None:
    """With as many tasks as waiting claims, each claim gets one."""
    here, there = two
    job, other = await here.register(), await there.register()
    claims = [claim(here, job.worker_id) for _ in range(10)]
    claims += [claim(there, other.worker_id) for _ in range(20)]
    await waiting(here, 10)
    await waiting(there, 20)
    submitted = await asyncio.gather(*[here.submit(job) for _ in range(30)])
    claimed = await soon(asyncio.gather(*claims))
    assert {each.id for each in claimed} == {each.id for each in submitted}


async def test_an_unused_wake_up_is_forwarded(two: tuple[Replica, Replica]) -> None:
    """The client of the woken claim disconnected: a waiter of the other replica gets the task."""
    here, there = two
    job, other = await here.register(), await there.register()
    disconnected = asyncio.get_running_loop().create_future()
    abandoned = claim(here, job.worker_id, disconnected=disconnected)
    remaining = claim(there, other.worker_id)
    await waiting(here, 1)
    await waiting(there, 1)
    [task_id] = await add_tasks(here, [task(job.id)])
    here.runtime.waiters.wake(job_key(job.full_name), 1)
    disconnected.set_result(None)
    assert await soon(abandoned) is None
    assert (await soon(remaining)).id == task_id


async def test_the_removal_of_a_worker_ends_its_claim_at_another_replica(
    two: tuple[Replica, Replica],
) -> None:
    """The waiting claim fails at once."""
    here, there = two
    job = await there.register()
    claiming = claim(there, job.worker_id)
    await waiting(there, 1)
    await here.leave(job.worker_id)
    with pytest.raises(WorkerNotFound):
        await soon(claiming)
