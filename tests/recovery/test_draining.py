"""An operator may ask a worker to leave, and stop the claims of a job."""

import asyncio

import pytest
from databases import every_kind
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, Replica

from recovery.test_clocks import LONG, claims_asleep, no_safety_net  # noqa: F401 - a fixture
from zndraw_joblib.contract.events import JobsInvalidate
from zndraw_joblib.contract.messages import EmptyReason
from zndraw_joblib.contract.problems import Forbidden, JobNotFound, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus


@every_kind
async def test_a_worker_that_drains_gets_nothing(replica: Replica) -> None:
    """Its claims say why, its heartbeats say it; others of its job go on."""
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


async def test_a_claim_that_sleeps_ends_when_its_worker_drains(replica: Replica) -> None:
    """It hears why at once, and what is submitted then is for the next one that waits."""
    job, other = await replica.register(), await replica.register()
    first = asyncio.create_task(replica.claim_response(job.worker_id, wait=LONG))
    await claims_asleep(replica, 1)
    second = asyncio.create_task(replica.claim_task(other.worker_id, wait=LONG))
    await claims_asleep(replica, 2)
    await replica.drain(job.worker_id)
    async with asyncio.timeout(2):
        assert (await first).reason is EmptyReason.DRAINING
        assert (await replica.claim_response(job.worker_id, wait=LONG)).reason is EmptyReason.DRAINING
    submitted = await replica.submit(job)
    async with asyncio.timeout(2):
        assert (await second).id == submitted.id


async def test_a_worker_that_drains_finishes_what_it_has(replica: Replica) -> None:
    """What it holds stays its own, and ends as it would."""
    job = await replica.register()
    running = await replica.running(job)
    await replica.submit(job)
    claimed = await replica.claim_task(job.worker_id)
    await replica.drain(job.worker_id)
    await replica.report(claimed.id, TaskStatus.RUNNING)
    for one in (running, claimed):
        assert (await replica.report(one.id, TaskStatus.COMPLETED)).status is TaskStatus.COMPLETED


async def test_a_drain_is_for_the_owner_and_for_superusers(replica: Replica) -> None:
    """Nobody else; and whoever is gone drains no more."""
    job = await replica.register()
    for other in (STRANGER, SUBMITTER):
        with pytest.raises(Forbidden):
            await replica.drain(job.worker_id, by=other)
    for by in (OWNER, ADMIN, ADMIN):
        assert (await replica.drain(job.worker_id, by=by)).drain
    await replica.leave(job.worker_id)
    with pytest.raises(WorkerNotFound):
        await replica.drain(job.worker_id)


@every_kind
async def test_nothing_is_claimed_of_a_paused_job(replica: Replica) -> None:
    """The reason says so, where something waits; other jobs go on, and submissions too."""
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


async def test_what_is_under_way_of_a_paused_job_goes_on(replica: Replica) -> None:
    """A pause stops claims alone; what comes back to the queue waits there."""
    job = await replica.register(max_attempts=2, retry_on=["error"], backoff={"base_seconds": 0})
    running = await replica.running(job)
    await replica.pause(job)
    assert (await replica.report(running.id, TaskStatus.FAILED, error="oh")).queue_position == 1
    assert (await replica.claim_response(job.worker_id)).reason is EmptyReason.PAUSED
    await replica.pause(job, paused=False)
    assert (await replica.claim_task(job.worker_id)).attempt == 2


async def test_those_that_wait_are_woken_when_it_goes_on(replica: Replica) -> None:
    """As many as there are tasks; none of them while the job is paused."""
    job = await replica.register()
    await replica.pause(job)
    waiting = [asyncio.create_task(replica.claim(job.worker_id, wait=LONG)) for _ in range(4)]
    await claims_asleep(replica, 4)
    submitted = [await replica.submit(job) for _ in range(3)]
    await claims_asleep(replica, 4)
    assert not any(claim.done() for claim in waiting)
    await replica.pause(job, paused=False)
    async with asyncio.timeout(2):
        while sum(claim.done() for claim in waiting) < 3:
            await asyncio.wait([c for c in waiting if not c.done()], return_when=asyncio.FIRST_COMPLETED)
    replica.runtime.waiters.close()
    got = [task.id for task in await asyncio.gather(*waiting) if task]
    assert sorted(got) == sorted(task.id for task in submitted)


async def test_a_pause_stays_when_workers_come_and_go(replica: Replica) -> None:
    """As long as the job is shown: another worker finds it paused. A hidden one cannot be paused."""
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
