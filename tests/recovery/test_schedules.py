"""A task that is for later is in no queue before its time, and is in it then, whoever has died meanwhile."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from databases import every_kind
from pydantic import ValidationError
from replica import SUBMITTER, HandClock, OpenReplica, Replica
from seeds import seconds

from recovery.test_clocks import LONG, claims_asleep, no_safety_net  # noqa: F401 - a fixture
from zndraw_joblib.contract.events import TaskAvailable
from zndraw_joblib.contract.messages import EmptyReason, TaskSubmitRequest
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.background.sweeper import Sweeper

MOMENT = 0.000001


@every_kind
@pytest.mark.parametrize("by", ["run_at", "delay_seconds"])
async def test_a_task_is_not_claimable_before_its_time(timed: Replica, clock: HandClock, by: str) -> None:
    """It has no position, its job's workers hear nothing, and a claim finds nothing; then it is the first."""
    job = await timed.register()
    at = clock.now + seconds(100)
    later = await timed.submit(job, **{by: at if by == "run_at" else 100})
    now = await timed.submit(job)
    assert (later.status, later.queue_position, later.run_at) == (TaskStatus.PENDING, None, at)
    assert now.queue_position == 1
    told = [event for event, _ in timed.events if isinstance(event, TaskAvailable)]
    assert [event.task_id for event in told] == [now.id]
    clock.advance(100 - MOMENT)
    assert await timed.queue_due() == 0
    assert (await timed.claim_task(job.worker_id)).id == now.id
    assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    clock.advance(MOMENT)
    behind = await timed.submit(job)
    timed.events.clear()
    assert await timed.queue_due() == 1
    [(event, _)] = timed.events
    assert isinstance(event, TaskAvailable)
    assert event.task_id == later.id
    queued = await timed.get(later.id)
    assert (queued.queue_position, queued.run_at) == (1, None)
    assert (await timed.get(behind.id)).queue_position == 2
    assert (await timed.claim_task(job.worker_id)).id == later.id


async def test_a_time_that_has_come_is_now(timed: Replica, clock: HandClock) -> None:
    """A delay of 0 and a time of the past put a task into its queue at once."""
    job = await timed.register()
    first = await timed.submit(job, delay_seconds=0)
    second = await timed.submit(job, run_at=clock.now - seconds(10))
    third = await timed.submit(job, run_at=clock.now)
    assert [one.queue_position for one in (first, second, third)] == [1, 2, 3]
    assert [one.run_at for one in (first, second, third)] == [None] * 3


async def test_a_time_may_be_of_any_zone(timed: Replica, clock: HandClock) -> None:
    """It is the moment that counts, to the microsecond; a time without a zone is no moment."""
    job = await timed.register()
    at = (clock.now + timedelta(microseconds=10_000_001)).astimezone(timezone(timedelta(hours=-7)))
    later = await timed.submit(job, run_at=at)
    assert (await timed.get(later.id)).run_at == at
    clock.advance(10)
    assert await timed.queue_due() == 0
    clock.advance(MOMENT)
    assert await timed.queue_due() == 1
    with pytest.raises(ValidationError):
        TaskSubmitRequest(run_at=datetime(2030, 1, 1))
    with pytest.raises(ValidationError):
        TaskSubmitRequest(run_at=at, delay_seconds=1)


@every_kind
async def test_a_schedule_outlives_the_server(timed: Replica, clock: HandClock, new_database) -> None:
    """It is in the database: another process lets the task in, by the sweeper as well."""
    job = await timed.register()
    later = await timed.submit(job, delay_seconds=100)
    other = Replica(new_database(clock), timed.engine)
    sweeper = Sweeper(other.runtime.write, other.runtime.settings)
    await sweeper.cycle()
    assert (await other.get(later.id)).queue_position is None
    clock.advance(100)
    await sweeper.cycle()
    assert (await other.get(later.id)).queue_position == 1
    assert (await other.claim_task(job.worker_id)).id == later.id


async def test_a_claim_that_sleeps_gets_a_task_when_its_time_comes(timed: Replica, clock: HandClock) -> None:
    """The task's way into its queue wakes one that waits, and no more than one."""
    job = await timed.register()
    await timed.submit(job, delay_seconds=100)
    claims = [asyncio.create_task(timed.claim(job.worker_id, wait=LONG)) for _ in range(2)]
    await claims_asleep(timed, 2)
    clock.advance(100)
    await timed.queue_due()
    async with asyncio.timeout(2):
        await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
    await claims_asleep(timed, 1)
    assert [claim.done() for claim in claims].count(True) == 1
    timed.runtime.waiters.close()
    assert [task is None for task in await asyncio.gather(*claims)].count(True) == 1


async def test_a_job_stays_while_something_is_scheduled(timed: Replica, clock: HandClock) -> None:
    """It is no orphan when its last worker goes; once the task is cancelled, it is one."""
    job = await timed.register()
    later = await timed.submit(job, delay_seconds=100)
    await timed.leave(job.worker_id)
    back, is_new = await timed.register_anew()
    assert not is_new
    await timed.leave(back.worker_id)
    timed.events.clear()
    cancelled = await timed.report(later.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert (cancelled.status, cancelled.run_at) == (TaskStatus.CANCELLED, None)
    assert timed.statuses() == [TaskStatus.CANCELLED]
    assert await timed.queue_due() == 0
    _, is_new = await timed.register_anew()
    assert is_new


async def test_a_cancelled_task_is_never_queued(timed: Replica, clock: HandClock) -> None:
    """Cancelled before its time, it stays cancelled when that comes."""
    job = await timed.register()
    later = await timed.submit(job, delay_seconds=100)
    await timed.report(later.id, TaskStatus.CANCELLED, by=SUBMITTER)
    clock.advance(100)
    assert await timed.queue_due() == 0
    assert await timed.claim(job.worker_id) is None


async def test_of_many_servers_one_lets_a_task_in(replica: Replica, open_replica: OpenReplica) -> None:
    """Several that look at once queue each task once, and count and tell it once."""
    job, other = await replica.register(), open_replica()
    await asyncio.gather(*[replica.submit(job, delay_seconds=0.01) for _ in range(50)])
    async with asyncio.timeout(LONG):
        done = 0
        while done < 50:
            done += sum(await asyncio.gather(*[end.queue_due() for end in (replica, other) * 3]))
    assert done == 50
    told = [e for end in (replica, other) for e, _ in end.events if isinstance(e, TaskAvailable)]
    assert len(told) == len({event.task_id for event in told}) == 50
