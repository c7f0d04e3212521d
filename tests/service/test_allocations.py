"""Claims of workers whose allocation ends: they get only tasks that are expected to fit."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from replica import Replica
from waiting import until

from zndraw_joblib.server.db.tables import Statistic
from zndraw_joblib.server.process.ports import job_key
from zndraw_joblib.server.queue import rules_history
from zndraw_joblib.server.queue.rules_allocations import percentile
from zndraw_joblib.wire.messages import EmptyReason, JobResponse, TaskResponse
from zndraw_joblib.wire.operators import BUCKET_BOUNDS, HOUR

HOURS = 3600.0


async def jobs(replica: Replica, **policy: Any) -> tuple[JobResponse, JobResponse]:
    """Register a long job and a short one for one worker."""
    long = await replica.register("Long", expected_seconds=2 * HOURS, **policy)
    return long, await replica.register("Short", worker=long.worker_id, timeout_seconds=600, **policy)


async def claim(replica: Replica, worker: UUID | None, remaining: float, **options: Any) -> list[UUID]:
    """Return the ids of what a worker with so many seconds gets."""
    response = await replica.claim_response(worker, max=10, remaining_seconds=remaining, **options)
    return [task.id for task in response.tasks]


@pytest.mark.parametrize(
    ("policy", "order"), [({}, "fifo"), ({"max_in_flight": 5}, "fifo"), ({}, "fair")], ids=str
)
async def test_a_worker_gets_only_tasks_that_fit(
    pair: list[Replica], policy: dict[str, Any], order: Any
) -> None:
    """It passes over the first task of another job, with and without limits, and gets it with more time."""
    first, second = pair
    second.runtime.settings.claim_order = order
    long, short = await jobs(first, **policy)
    tasks = [await first.submit(job) for job in (long, short, long)]
    assert await claim(second, long.worker_id, 2 * HOURS - 1) == [tasks[1].id]
    assert await claim(second, long.worker_id, 2 * HOURS) == []
    assert await claim(second, long.worker_id, 2 * HOURS + 60) == [tasks[0].id, tasks[2].id]
    await first.submit(short)
    response = await second.claim_response(long.worker_id, wait=20, remaining_seconds=600)
    assert (response.task, response.reason) == (None, EmptyReason.NO_TIME)
    assert await first.claim(long.worker_id) is not None


async def test_batches_and_repeats_fit_too(replica: Replica) -> None:
    """A batch of a job that takes too long is passed over; a repeated claim gets its tasks again."""
    long, short = await jobs(replica)
    tasks = [await replica.submit(job) for job in (long, short)]
    batches = [{"job": job.full_name, "max": 2} for job in (long, short)]
    claim_id = UUID(int=7)
    for remaining in (HOURS, 1):
        taken = await claim(replica, long.worker_id, remaining, batches=batches, claim_id=claim_id)
        assert taken == [tasks[1].id]
    assert await claim(replica, long.worker_id, 3 * HOURS, batches=batches) == [tasks[0].id]


async def test_a_claim_that_waits_stops_waiting_for_what_no_longer_fits(pair: list[Replica]) -> None:
    """Its time shrinks while it waits: a task that comes too late wakes another worker instead."""
    first, second = pair
    long, short = await jobs(first)
    waiting = asyncio.create_task(claim(first, long.worker_id, 2 * HOURS + 0.3, wait=30))
    waiters = first.runtime.waiters
    await until(lambda: waiters.has(job_key(short.full_name)) and not waiters.has(job_key(long.full_name)))
    other = await first.register("Long")
    instead = asyncio.create_task(first.claim(other.worker_id, wait=30))
    await until(lambda: waiters.waiting_count == 2)
    task = await second.submit(long)
    claimed = await asyncio.wait_for(instead, 20)
    assert claimed is not None
    assert claimed.id == task.id
    assert not waiting.done()
    fits = await second.submit(short)
    assert await asyncio.wait_for(waiting, 20) == [fits.id]
    ending = first.claim_response(long.worker_id, wait=30, remaining_seconds=600.3)
    assert (await asyncio.wait_for(ending, 20)).reason == EmptyReason.NO_TIME


async def test_operators_learn_that_no_worker_has_enough_time(replica: Replica) -> None:
    """`explain` and the overview name the job, its time and the most that a worker has."""
    long, short = await jobs(replica)
    task: TaskResponse = await replica.submit(long)
    await replica.submit(short)
    assert await codes(replica) == set()
    other = await replica.register("Long")
    assert await claim(replica, long.worker_id, HOURS) != []
    assert "no_worker_with_enough_time" not in await replica.explain(task.id)
    assert await claim(replica, other.worker_id, 300) == []
    reason = await detail(replica, task.id)
    assert "2 h (by expected_seconds)" in reason
    assert f"the one with most, {long.worker_id}, has 60 min" in reason
    assert await codes(replica) == {"tasks-without-enough-time"}
    await replica.register("Long", expected_seconds=600)
    assert "no_worker_with_enough_time" not in await replica.explain(task.id)
    assert await codes(replica) == set()


async def detail(replica: Replica, task_id: UUID) -> str:
    """Return why no worker has enough time for a task."""
    work = partial(rules_history.explain, task_id=task_id, order=replica.runtime.order)
    reasons = (await replica.runtime.database.read(work)).reasons
    return next(reason.detail for reason in reasons if reason.code == "no_worker_with_enough_time")


async def codes(replica: Replica) -> set[str]:
    """Return the codes of the findings."""
    overview = await replica.overview()
    return {finding.code for finding in overview.findings}


async def test_the_last_runs_say_how_long_a_job_without_a_limit_takes(replica: Replica) -> None:
    """Runs of the last day count, and at least 20 of them."""
    job = await replica.register()
    await replica.submit(job)
    runs = {"resolution": HOUR, "job_id": job.id, "waiting": [0] * 16, "causes": {}}
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for age, number in ((30, 1000), (1, 19)):
        row = {"start": now - timedelta(hours=age), "running": [0] * 13 + [number, 0, 0]}
        await replica.add(Statistic.__table__, [{**runs, **row, "running_seconds": 4000.0 * number}])
    assert await claim(replica, job.worker_id, 1) != []
    task = await replica.submit(job)
    row = {"start": now, "running": [0] * 13 + [30, 0, 0], "running_seconds": 4000.0 * 30}
    await replica.add(Statistic.__table__, [{**runs, **row}])
    replica.runtime._run_times = type(replica.runtime._run_times)()  # it is read once a minute
    assert await claim(replica, job.worker_id, 4300) == []
    assert "by the runs of the last day" in await detail(replica, task.id)
    assert await claim(replica, job.worker_id, 4500) == [task.id]


def test_the_percentile_follows_the_mean_in_a_wide_bucket() -> None:
    """Runs of 65 minutes are in the bucket of 1 to 6 hours."""
    buckets = [0] * (len(BUCKET_BOUNDS) + 1)
    assert percentile(buckets, 0) is None
    buckets[BUCKET_BOUNDS.index(21600)] = 100
    assert percentile(buckets, 100 * 3900) == pytest.approx(3600 + 0.95 * 600)
    assert percentile(buckets, 100 * 12600) == pytest.approx(3600 + 0.95 * 18000)
    buckets[0] = 10_000
    assert percentile(buckets, 100 * 3900) == pytest.approx(0.01 * 0.95 * 10_100 / 10_000)
    last = [*[0] * len(BUCKET_BOUNDS), 50]
    assert percentile(last, 50 * 100_000) == pytest.approx(86_400 + 0.95 * 27_200)
