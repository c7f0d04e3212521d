"""A scheduled task enters its queue when it is due, not before, even if its server crashed meanwhile."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from databases import OpenDatabase, every_kind
from pydantic import ValidationError
from replica import SUBMITTER, ManualClock, OpenReplica, Replica, wait_until_waiting
from seeds import seconds

from recovery.test_time_limits import LONG, SOON, recheck_seconds  # noqa: F401 - a fixture
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.queue import rules_sweep
from zndraw_joblib.wire.events import TaskAvailable
from zndraw_joblib.wire.messages import EmptyReason, TaskSubmitRequest
from zndraw_joblib.wire.statuses import TaskStatus

MOMENT = 0.000001


@pytest.mark.parametrize("by", ["run_at", "delay_seconds"])
async def test_a_task_is_not_claimable_before_its_time(timed: Replica, clock: ManualClock, by: str) -> None:
    """Before, it has no position, workers get no event, and a claim finds nothing; then it is first."""
    job = await timed.register()
    at = clock.now + seconds(100)
    later = await timed.submit(job, **{by: at if by == "run_at" else 100})
    now = await timed.submit(job)
    assert (later.status, later.queue_position, later.run_at) == (TaskStatus.PENDING, None, at)
    assert now.queue_position == 1
    published = [event for event, _ in timed.events if isinstance(event, TaskAvailable)]
    assert [event.task_id for event in published] == [now.id]
    clock.advance(100 - MOMENT)
    assert await timed.enqueue_due() == 0
    assert (await timed.claim_task(job.worker_id)).id == now.id
    assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    clock.advance(MOMENT)
    behind = await timed.submit(job)
    timed.events.clear()
    assert await timed.enqueue_due() == 1
    [(event, _)] = timed.events
    assert isinstance(event, TaskAvailable)
    assert event.task_id == later.id
    queued = await timed.get(later.id)
    assert (queued.queue_position, queued.run_at) == (1, None)
    assert (await timed.get(behind.id)).queue_position == 2
    assert (await timed.claim_task(job.worker_id)).id == later.id


async def test_a_time_in_the_past_is_now(timed: Replica, clock: ManualClock) -> None:
    """A delay of 0 and a past time put a task into its queue at once."""
    job = await timed.register()
    first = await timed.submit(job, delay_seconds=0)
    second = await timed.submit(job, run_at=clock.now - seconds(10))
    third = await timed.submit(job, run_at=clock.now)
    assert [one.queue_position for one in (first, second, third)] == [1, 2, 3]
    assert [one.run_at for one in (first, second, third)] == [None] * 3


async def test_a_time_may_have_any_time_zone(timed: Replica, clock: ManualClock) -> None:
    """Times are exact to the microsecond; a time without a zone is refused."""
    job = await timed.register()
    at = (clock.now + timedelta(microseconds=10_000_001)).astimezone(timezone(timedelta(hours=-7)))
    later = await timed.submit(job, run_at=at)
    assert (await timed.get(later.id)).run_at == at
    clock.advance(10)
    assert await timed.enqueue_due() == 0
    clock.advance(MOMENT)
    assert await timed.enqueue_due() == 1
    with pytest.raises(ValidationError):
        TaskSubmitRequest(run_at=datetime(2030, 1, 1))
    with pytest.raises(ValidationError):
        TaskSubmitRequest(run_at=at, delay_seconds=1)


@every_kind
async def test_a_schedule_outlives_the_server(
    timed: Replica, clock: ManualClock, new_database: OpenDatabase
) -> None:
    """It is in the database: another process, or the sweeper, queues the task."""
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


async def test_a_due_task_wakes_one_waiting_claim(timed: Replica, clock: ManualClock) -> None:
    """It wakes no other claim."""
    job = await timed.register()
    await timed.submit(job, delay_seconds=100)
    claims = [asyncio.create_task(timed.claim(job.worker_id, wait=LONG)) for _ in range(2)]
    await wait_until_waiting(timed, 2)
    clock.advance(100)
    await timed.enqueue_due()
    async with asyncio.timeout(SOON):
        await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
    await wait_until_waiting(timed, 1)
    assert [claim.done() for claim in claims].count(True) == 1
    timed.runtime.waiters.close()
    assert [task is None for task in await asyncio.gather(*claims)].count(True) == 1


async def test_a_job_stays_while_a_task_is_scheduled(timed: Replica, clock: ManualClock) -> None:
    """It is soft-deleted when its last scheduled task is cancelled."""
    job = await timed.register()
    later = await timed.submit(job, delay_seconds=100)
    await timed.leave(job.worker_id)
    back, is_new = await timed.register_job()
    assert not is_new
    await timed.leave(back.worker_id)
    timed.events.clear()
    cancelled = await timed.report(later.id, TaskStatus.CANCELLED, by=SUBMITTER)
    assert (cancelled.status, cancelled.run_at) == (TaskStatus.CANCELLED, None)
    assert timed.statuses() == [TaskStatus.CANCELLED]
    assert await timed.enqueue_due() == 0
    _, is_new = await timed.register_job()
    assert is_new


async def test_a_cancelled_task_is_never_queued(timed: Replica, clock: ManualClock) -> None:
    """A task that is cancelled before it is due stays cancelled."""
    job = await timed.register()
    later = await timed.submit(job, delay_seconds=100)
    await timed.report(later.id, TaskStatus.CANCELLED, by=SUBMITTER)
    clock.advance(100)
    assert await timed.enqueue_due() == 0
    assert await timed.claim(job.worker_id) is None


async def test_one_of_many_servers_queues_a_task(replica: Replica, open_replica: OpenReplica) -> None:
    """Several that query at once queue, count and publish each task once."""
    job, other = await replica.register(), open_replica()
    await asyncio.gather(*[replica.submit(job, delay_seconds=0.01) for _ in range(50)])
    async with asyncio.timeout(LONG):
        done = 0
        while done < 50:
            done += sum(await asyncio.gather(*[end.enqueue_due() for end in (replica, other) * 3]))
    assert done == 50
    published = [e for end in (replica, other) for e, _ in end.events if isinstance(e, TaskAvailable)]
    assert len(published) == len({event.task_id for event in published}) == 50


async def test_the_last_moment_is_a_time_like_others(replica: Replica) -> None:
    """The task waits for it; every read returns it."""
    job = await replica.register()
    at = datetime.fromisoformat("9999-12-31T23:59:59+00:00")
    task = await replica.submit(job, run_at=at)
    assert task.run_at == at
    assert (await replica.get(task.id)) == task
    assert "scheduled" in await replica.explain(task.id)
    assert await replica.enqueue_due() == 0
    assert await replica.runtime.write(rules_sweep.next_due) is not None
