"""A commit in one replica wakes waiters in another, in turn, and no wake-up is lost on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from replica import OpenReplica, Replica
from seeds import add_tasks, task
from waiting import until

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.ports import OpenConnection, job_key

LONG = 15.0
AT_ONCE = 3.0


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the slow re-check away: what it would mend is a lost wake-up, and shall show."""
    monkeypatch.setattr(Replica, "recheck_seconds", (3600.0, 3600.0))


@pytest.fixture
async def two(open_replica: OpenReplica, open_line: OpenConnection) -> AsyncIterator[tuple[Replica, Replica]]:
    """Return two replicas that know each other."""
    replicas = open_replica(), open_replica()
    relaying = [asyncio.create_task(one.runtime.pubsub.run(open_line)) for one in replicas]
    await until(lambda: all(one.runtime.pubsub.has_peers for one in replicas))
    yield replicas
    for pubsub in relaying:
        pubsub.cancel()
        with suppress(asyncio.CancelledError):
            await pubsub


async def asleep(replica: Replica, count: int) -> None:
    """Return once that many sleep."""
    await until(
        lambda: (
            len(replica.runtime.waiters) == count
            and all(
                waiter._future is not None
                for queue in replica.runtime.waiters._queues.values()
                for waiter in queue
            )
        )
    )


def waiting(replica: Replica, worker: Any, **options: Any) -> "asyncio.Task[TaskResponse | None]":
    """Begin to wait for a task."""
    return asyncio.create_task(replica.claim(worker, **{"wait": LONG, **options}))


async def soon(awaitable: Any) -> Any:
    """Return a result that must be there at once."""
    async with asyncio.timeout(AT_ONCE):
        return await awaitable


async def test_a_submit_here_wakes_a_worker_there(two: tuple[Replica, Replica]) -> None:
    """Again and again."""
    here, there = two
    job = await there.register()
    for _ in range(5):
        claim = waiting(there, job.worker_id)
        await asleep(there, 1)
        submitted = await here.submit(job)
        assert (await soon(claim)).id == submitted.id


async def test_an_end_there_wakes_who_waits_for_it_here(two: tuple[Replica, Replica]) -> None:
    """Each of them."""
    here, there = two
    job = await there.register()
    running = await there.running(job)
    waits = [asyncio.create_task(here.get(running.id, LONG)) for _ in range(3)]
    await asleep(here, 3)
    await there.report(running.id, "completed")
    assert [ended.status for ended in await soon(asyncio.gather(*waits))] == [TaskStatus.COMPLETED] * 3


async def test_who_sleeps_here_is_served_first(
    two: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what nobody here can use is told to others: those sleep on, and look at nothing."""
    here, there = two
    job, other = await here.register(), await there.register()
    ours, theirs = waiting(here, job.worker_id), waiting(there, other.worker_id)
    await asleep(here, 1)
    await asleep(there, 1)
    woken: list[str] = []
    wake = there.runtime.waiters.wake

    def watch(key: str, limit: int | None = None) -> int:
        woken.append(key)
        return wake(key, limit)

    monkeypatch.setattr(there.runtime.waiters, "wake", watch)
    first = await here.submit(job)
    assert (await soon(ours)).id == first.id
    second = await here.submit(job)
    assert (await soon(theirs)).id == second.id
    assert woken == [job_key(job.full_name)]


async def test_a_burst_serves_the_sleepers_of_both(two: tuple[Replica, Replica]) -> None:
    """As many tasks as waiters: each gets one."""
    here, there = two
    job, other = await here.register(), await there.register()
    claims = [waiting(here, job.worker_id) for _ in range(10)]
    claims += [waiting(there, other.worker_id) for _ in range(20)]
    await asleep(here, 10)
    await asleep(there, 20)
    submitted = await asyncio.gather(*[here.submit(job) for _ in range(30)])
    claimed = await soon(asyncio.gather(*claims))
    assert {one.id for one in claimed} == {one.id for one in submitted}


async def test_a_wake_up_that_is_not_used_here_goes_there(two: tuple[Replica, Replica]) -> None:
    """Its client hung up just then: the task is for a waiter of the other replica."""
    here, there = two
    job, other = await here.register(), await there.register()
    gone = asyncio.get_running_loop().create_future()
    left = waiting(here, job.worker_id, disconnected=gone)
    stays = waiting(there, other.worker_id)
    await asleep(here, 1)
    await asleep(there, 1)
    [task_id] = await add_tasks(here, [task(job.id)])
    here.runtime.waiters.wake(job_key(job.full_name), 1)
    gone.set_result(None)
    assert await soon(left) is None
    assert (await soon(stays)).id == task_id


async def test_a_worker_that_is_removed_here_is_told_there(two: tuple[Replica, Replica]) -> None:
    """Its claim that is open at the other replica ends at once."""
    from zndraw_joblib.contract.problems import WorkerNotFound

    here, there = two
    job = await there.register()
    claim = waiting(there, job.worker_id)
    await asleep(there, 1)
    await here.leave(job.worker_id)
    with pytest.raises(WorkerNotFound):
        await soon(claim)
