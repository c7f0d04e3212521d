"""After the response to a pause no claim takes a task of the job, however long it has waited for a lock."""

import asyncio

import pytest
from replica import TIMEOUT, Replica
from sqlalchemy import func, select, text, update

from zndraw_joblib.server.db.tables import Job, Task, Worker
from zndraw_joblib.wire.messages import EmptyReason, JobResponse
from zndraw_joblib.wire.statuses import TaskStatus

on_postgresql = pytest.mark.parametrize("kind", ["postgresql", "postgresql-of-a-host"])
jobs, workers = Job.__table__, Worker.__table__
WAITS = select(func.count()).select_from(text("pg_locks")).where(text("NOT granted"))


async def until_waiting(replica: Replica, count: int = 1) -> None:
    """Wait until transactions wait for locks."""
    async with asyncio.timeout(TIMEOUT), replica.engine.connect() as connection:
        while (await connection.execute(WAITS)).scalar_one() < count:  # noqa: ASYNC110 - a lock has no event
            await asyncio.sleep(0.01)


async def two_jobs(replica: Replica) -> tuple[JobResponse, JobResponse]:
    """Register two jobs of one worker, each with a pending task."""
    first = await replica.register("A")
    second = await replica.register("B", worker=first.worker_id)
    for job in (first, second):
        await replica.submit(job)
    return first, second


@on_postgresql
async def test_a_claim_that_waited_for_its_worker_sees_the_pause(replica: Replica) -> None:
    """The pause is answered while the claim waits."""
    job = await replica.register()
    task = await replica.submit(job)
    async with replica.engine.begin() as other:
        await other.execute(select(workers.c.id).with_for_update())
        claiming = asyncio.create_task(replica.claim_response(job.worker_id))
        await until_waiting(replica)
        assert (await replica.pause(job)).paused
    assert (await claiming).reason is EmptyReason.PAUSED
    assert (await replica.get(task.id)).status is TaskStatus.PENDING


@on_postgresql
@pytest.mark.parametrize("count", [1, 2])
async def test_a_claim_that_chose_its_task_sees_the_pause(replica: Replica, count: int) -> None:
    """A pause that commits while the claim waits for the job's row wins; other jobs are claimed."""
    paused, other_job = await two_jobs(replica)
    if count == 1:
        await replica.claim_task(paused.worker_id)
        paused = other_job
    async with replica.engine.begin() as other:
        await other.execute(update(jobs).where(jobs.c.id == paused.id).values(paused=True))
        claiming = asyncio.create_task(replica.claim_response(paused.worker_id))
        await until_waiting(replica)
    claimed = (await claiming).task
    assert (claimed is None) == (count == 1)
    rows = await replica.rows(Task.__table__, Task.__table__.c.job_id == paused.id)
    assert [row.status for row in rows] == ["pending"]
