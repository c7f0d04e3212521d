"""Preferred workers: a task goes first to a waiting worker with the labels that it prefers, else to any."""

import asyncio
from functools import partial
from typing import Any

from replica import Replica
from waiting import until

from zndraw_joblib.wire.messages import JobResponse, TaskResponse, WorkerInfo


async def worker(replica: Replica, host: str, **options: Any) -> JobResponse:
    """Register a job for a worker on a host."""
    return await replica.register(about=WorkerInfo(labels={"host": host}), **options)


async def waiting(replica: Replica, *jobs: JobResponse) -> list[asyncio.Task[TaskResponse | None]]:
    """Let the workers of these jobs wait for a task, in this order."""
    claims = []
    for job in jobs:
        before = replica.runtime.waiters.waiting_count
        claims.append(asyncio.create_task(replica.claim(job.worker_id, wait=30)))
        await until(partial(_has_grown, replica, before))
    return claims


def _has_grown(replica: Replica, before: int) -> bool:
    return replica.runtime.waiters.waiting_count > before


async def got(claim: asyncio.Task[TaskResponse | None], task: TaskResponse) -> bool:
    """Return whether a claim that waits gets this task."""
    claimed = await asyncio.wait_for(claim, 20)
    return claimed is not None and claimed.id == task.id


async def test_a_preferred_worker_that_waits_gets_the_task(replica: Replica) -> None:
    """It gets it before one that has waited for longer, by the submit, or by the policy without that."""
    cold, warm = await worker(replica, "n1"), await worker(replica, "n2", prefer={"host": "n2"})
    for prefer in ({"prefer": {"host": {"in": ["n2", "n3"]}}}, {}):
        cold_claim, warm_claim = await waiting(replica, cold, warm)
        task = await replica.submit(cold, **prefer)
        assert await got(warm_claim, task)
        assert not cold_claim.done()
        task = await replica.submit(cold, prefer={"host": "n1"})
        assert await got(cold_claim, task)


async def test_a_task_does_not_wait_for_preferred_workers(replica: Replica) -> None:
    """Without a preferred worker that waits, or without any, it goes to the next claim of another one."""
    cold, warm = await worker(replica, "n1"), await worker(replica, "n2")
    for host in ("n2", "n9"):
        task = await replica.submit(cold, prefer={"host": host})
        assert (await replica.claim_task(cold.worker_id)).id == task.id
        [claim] = await waiting(replica, cold)
        assert await got(claim, await replica.submit(cold, prefer={"host": host}))
    cold_claim, warm_claim = await waiting(replica, cold, warm)
    tasks = [await replica.submit(cold, prefer={"host": "n2"}) for _ in range(2)]
    assert await got(warm_claim, tasks[0])
    assert await got(cold_claim, tasks[1])
