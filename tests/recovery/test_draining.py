"""An operator may drain a worker, and pause the claims of a job."""

import asyncio

import pytest
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, Replica, wait_until_waiting

from recovery.test_time_limits import LONG, SOON, recheck_seconds  # noqa: F401 - a fixture
from zndraw_joblib.wire.events import JobsInvalidate
from zndraw_joblib.wire.messages import EmptyReason
from zndraw_joblib.wire.problems import Forbidden, JobNotFound, WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus


async def test_a_draining_worker_gets_no_task(replica: Replica) -> None:
    """Its claims return the reason `draining`, its heartbeats `drain`; other workers of its job continue."""
    job, other = await replica.register(), await replica.register()
    await replica.submit(job)
    await replica.submit(job)
    assert job.worker_id is not None
    assert not (await replica.heartbeat(job.worker_id)).drain
    assert (await replica.drain(job.worker_id)).drain
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.DRAINING
    assert (await replica.heartbeat(job.worker_id)).drain
    await replica.claim_task(other.worker_id)
    assert other.worker_id is not None
    assert not (await replica.heartbeat(other.worker_id)).drain


async def test_a_drain_ends_the_waiting_claim(replica: Replica) -> None:
    """It ends at once with the reason; the next task goes to another waiting worker."""
    job, other = await replica.register(), await replica.register()
    first = asyncio.create_task(replica.claim_response(job.worker_id, wait=LONG))
    await wait_until_waiting(replica, 1)
    second = asyncio.create_task(replica.claim_task(other.worker_id, wait=LONG))
    await wait_until_waiting(replica, 2)
    await replica.drain(job.worker_id)
    async with asyncio.timeout(SOON):
        assert (await first).reason is EmptyReason.DRAINING
        assert (await replica.claim_response(job.worker_id, wait=LONG)).reason is EmptyReason.DRAINING
    submitted = await replica.submit(job)
    async with asyncio.timeout(SOON):
        assert (await second).id == submitted.id


async def test_a_draining_worker_finishes_its_tasks(replica: Replica) -> None:
    """It keeps its tasks, and may report on them."""
    job = await replica.register()
    running = await replica.running(job)
    await replica.submit(job)
    claimed = await replica.claim_task(job.worker_id)
    await replica.drain(job.worker_id)
    await replica.report(claimed.id, TaskStatus.RUNNING)
    for one in (running, claimed):
        assert (await replica.report(one.id, TaskStatus.COMPLETED)).status is TaskStatus.COMPLETED


async def test_only_the_owner_or_a_superuser_drains_a_worker(replica: Replica) -> None:
    """Other users are refused; a removed worker is not found."""
    job = await replica.register()
    for other in (STRANGER, SUBMITTER):
        with pytest.raises(Forbidden):
            await replica.drain(job.worker_id, by=other)
    for by in (OWNER, ADMIN, ADMIN):
        assert (await replica.drain(job.worker_id, by=by)).drain
    await replica.leave(job.worker_id)
    with pytest.raises(WorkerNotFound):
        await replica.drain(job.worker_id)


async def test_tasks_of_a_paused_job_are_not_claimed(replica: Replica) -> None:
    """The reason is `paused` if a task is pending; other jobs and submits continue."""
    job = await replica.register("Paused")
    other = await replica.register("Other", worker=job.worker_id)
    replica.events.clear()
    assert (await replica.pause(job)).paused
    assert [type(event) for event, _ in replica.events] == [JobsInvalidate]
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    waits = await replica.submit(job)
    assert waits.queue_position == 1
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.PAUSED
    goes_on = await replica.submit(other)
    assert (await replica.claim_task(job.worker_id)).id == goes_on.id
    assert not (await replica.pause(job, paused=False)).paused
    assert (await replica.claim_task(job.worker_id)).id == waits.id


async def test_running_tasks_of_a_paused_job_continue(replica: Replica) -> None:
    """A pause only stops claims; a task that returns to the queue waits there."""
    job = await replica.register(max_attempts=2, retry_on=["error"], backoff={"base_seconds": 0})
    running = await replica.running(job)
    await replica.pause(job)
    assert (await replica.report(running.id, TaskStatus.FAILED, error="oh")).queue_position == 1
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.PAUSED
    await replica.pause(job, paused=False)
    assert (await replica.claim_task(job.worker_id)).attempt == 2


async def test_a_resume_wakes_waiting_claims(replica: Replica) -> None:
    """As many as there are pending tasks; none of them while the job is paused."""
    job = await replica.register()
    await replica.pause(job)
    waiting = [asyncio.create_task(replica.claim(job.worker_id, wait=LONG)) for _ in range(4)]
    await wait_until_waiting(replica, 4)
    submitted = [await replica.submit(job) for _ in range(3)]
    await wait_until_waiting(replica, 4)
    assert not any(claim.done() for claim in waiting)
    await replica.pause(job, paused=False)
    async with asyncio.timeout(SOON):
        while sum(claim.done() for claim in waiting) < 3:
            await asyncio.wait([c for c in waiting if not c.done()], return_when=asyncio.FIRST_COMPLETED)
    replica.runtime.waiters.close()
    claimed_ids = [task.id for task in await asyncio.gather(*waiting) if task]
    assert sorted(claimed_ids) == sorted(task.id for task in submitted)


async def test_a_pause_stays_when_workers_come_and_go(replica: Replica) -> None:
    """A job stays paused while it is active. A soft-deleted job cannot be paused."""
    job = await replica.register()
    await replica.pause(job)
    await replica.submit(job)
    await replica.leave(job.worker_id)
    back = await replica.register()
    assert back.paused
    assert (await replica.claim_response(back.worker_id)).reason is EmptyReason.PAUSED
    gone = await replica.register("Disconnected")
    await replica.leave(gone.worker_id)
    with pytest.raises(JobNotFound):
        await replica.pause(gone)
