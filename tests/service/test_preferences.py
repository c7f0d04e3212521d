"""Preferred workers: a task goes first to a waiting worker with the labels that it prefers, else to any."""

import asyncio
from functools import partial
from typing import Any

import pytest
from replica import SUBMITTER, Replica
from waiting import until

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import before_key
from zndraw_joblib.server.queue import rules_queues, rules_tasks
from zndraw_joblib.wire import requirements
from zndraw_joblib.wire.messages import JobResponse, TaskResponse, TaskSubmitRequest, WorkerInfo
from zndraw_joblib.wire.names import parse_job_name


@pytest.fixture
def recheck_seconds() -> tuple[float, float]:
    """Disable the periodic recheck, by which a claim takes a task for which another is woken."""
    return 3600.0, 3600.0


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
    tasks = {(await replica.submit(cold, prefer={"host": "n2"})).id for _ in range(2)}
    # The second submit may wake the other worker before the preferred one has claimed.
    claimed = await asyncio.wait_for(asyncio.gather(warm_claim, cold_claim), 20)
    assert {task.id for task in claimed if task} == tasks


async def test_a_large_submit_compares_few_preferences(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares equal ones with the workers once; tasks beyond 32 different ones wake any worker."""
    cold, warm = await worker(replica, "n1"), await worker(replica, "n2")
    compared: list[object] = []

    def matches(labels: Any, *requires: Any) -> bool:
        compared.append(labels)
        return requirements.matches(labels, *requires)

    monkeypatch.setattr(rules_queues, "matches", matches)
    name = parse_job_name(cold.full_name)
    hosts = ["n1", "n2"] * 50 + [f"other{number}" for number in range(31)] + ["n1"]
    wanted: list[Any] = [{"in": [host]} for host in hosts] + [{"in": ["n1", "n2"]}]
    requests = [TaskSubmitRequest(payload={}, prefer={"host": condition}) for condition in wanted]
    items = [replica.runtime.submission(SUBMITTER, "lab", name, request) for request in requests]

    async def submit(tx: Transaction) -> list[str]:
        await rules_tasks.submit(tx, items)
        return [wake.key for wake in tx.wakes if wake.limit == 1]

    keys = await replica.runtime.write(submit)
    assert len(compared) == 2 * 32
    assert cold.worker_id is not None
    assert warm.worker_id is not None
    job_key = keys[-1]
    own, other = (before_key(job_key, [worker_id]) for worker_id in (cold.worker_id, warm.worker_id))
    assert keys == [own, other] * 50 + [job_key] * 31 + [own, job_key]
