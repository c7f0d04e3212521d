"""Each time limit ends or releases the tasks that it applies to, with its own text and code."""

import asyncio
from typing import Any

import pytest
from replica import ADMIN, InternalExecutor, ManualClock, Replica, internal, wait_until_waiting

from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.events import Emission, TaskAvailable, TaskStatusEvent, room_of, workers_of
from zndraw_joblib.wire.messages import EmptyReason, TaskResponse
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.statuses import TaskStatus

# A waiting request ends long before this, unless its wake-up was lost.
LONG, SOON = 60.0, 30.0
MOMENT = 0.000001


@pytest.fixture
def recheck_seconds(settings: ServerSettings) -> tuple[float, float]:
    """Disable the periodic recheck, which would hide a lost wake-up; it also comes with each heartbeat."""
    settings.heartbeat_interval_seconds = 3600
    return 3600.0, 3600.0


def state_of(task: TaskResponse) -> tuple[TaskStatus, str | None, str | None]:
    """Return a task's status, error and code."""
    return task.status, task.error, task.error_code


async def test_a_task_that_is_not_started_returns_to_its_queue(timed: Replica, clock: ManualClock) -> None:
    """At its old position, with an event and its own code; not too early."""
    job = await timed.register(start_timeout_seconds=10)
    first, second = await timed.submit(job), await timed.submit(job)
    held = await timed.claim_task(job.worker_id)
    clock.advance(10 - MOMENT)
    assert await timed.recover_overdue() == 0
    timed.events.clear()
    clock.advance(MOMENT)
    assert await timed.recover_overdue() == 1
    returned = await timed.get(held.id)
    error = "The task was not started within 10 s"
    assert state_of(returned) == (TaskStatus.PENDING, error, "start-timeout")
    assert (returned.queue_position, returned.worker_id, returned.attempt, returned.run_at) == (
        1,
        None,
        1,
        None,
    )
    status, available = timed.events
    assert isinstance(status.event, TaskStatusEvent)
    assert (status.event.status, status.event.queue_position) == (TaskStatus.PENDING, 1)
    assert status.room == room_of("lab")
    event = TaskAvailable(job_name=job.full_name, room_id="lab", task_id=first.id)
    assert available == Emission(event, workers_of(job.full_name))
    assert (await timed.get(second.id)).queue_position == 2
    again = await timed.claim_task(job.worker_id)
    assert (again.id, again.attempt) == (first.id, 2)


async def test_a_start_timeout_uses_no_attempt(timed: Replica, clock: ManualClock) -> None:
    """However often it happens, the task fails only after failed attempts."""
    job = await timed.register(start_timeout_seconds=10, max_attempts=1)
    await timed.submit(job)
    for attempt in range(1, 6):
        assert (await timed.claim_task(job.worker_id)).attempt == attempt
        clock.advance(10)
        assert await timed.recover_overdue() == 1
    running = await timed.start(job.worker_id)
    failed = await timed.report(running.id, TaskStatus.FAILED, error="oh")
    assert (failed.status, failed.attempt) == (TaskStatus.FAILED, 6)


async def test_a_start_timeout_wakes_a_waiting_claim(timed: Replica, clock: ManualClock) -> None:
    """A task that returns to its queue wakes one waiting claim."""
    job, other = await timed.register(start_timeout_seconds=10), await timed.register()
    await timed.submit(job)
    held = await timed.claim_task(job.worker_id)
    claim = asyncio.create_task(timed.claim_task(other.worker_id, wait=LONG))
    await wait_until_waiting(timed, 1)
    clock.advance(10)
    await timed.recover_overdue()
    async with asyncio.timeout(SOON):
        assert (await claim).id == held.id


async def test_a_start_timeout_of_zero_disables_it(timed: Replica, clock: ManualClock) -> None:
    """Nor does a start timeout apply after the start."""
    job = await timed.register(start_timeout_seconds=0)
    other = await timed.register("Other", start_timeout_seconds=10)
    await timed.submit(job)
    held, running = await timed.claim_task(job.worker_id), await timed.running(other)
    clock.advance(10**6)
    assert await timed.recover_overdue() == 0
    assert (await timed.get(held.id)).status is TaskStatus.CLAIMED
    assert (await timed.get(running.id)).status is TaskStatus.RUNNING


async def test_an_attempt_that_runs_too_long_fails(timed: Replica, clock: ManualClock) -> None:
    """The time counts from its start, not from its claim; the failure has its own text and code."""
    job = await timed.register(timeout_seconds=100)
    await timed.submit(job)
    held = await timed.claim_task(job.worker_id)
    clock.advance(50)
    await timed.report(held.id, TaskStatus.RUNNING)
    clock.advance(100 - MOMENT)
    assert await timed.recover_overdue() == 0
    clock.advance(MOMENT)
    timed.events.clear()
    assert await timed.recover_overdue() == 1
    error = "The attempt ran for more than 100 s"
    assert state_of(await timed.get(held.id)) == (TaskStatus.FAILED, error, "run-timeout")
    assert timed.statuses() == [TaskStatus.FAILED]
    assert await timed.recover_overdue() == 0


async def test_each_attempt_has_its_own_time(timed: Replica, clock: ManualClock) -> None:
    """The second attempt may run as long as the first."""
    job = await timed.register(timeout_seconds=100, max_attempts=2, retry_on=["timeout"])
    running = await timed.running(job)
    clock.advance(100)
    await timed.recover_overdue()
    clock.advance(50)
    await timed.enqueue_due()
    await timed.start(job.worker_id)
    clock.advance(99)
    assert await timed.recover_overdue() == 0
    clock.advance(1)
    assert await timed.recover_overdue() == 1
    assert (await timed.get(running.id)).status is TaskStatus.FAILED


async def test_a_pending_task_expires(timed: Replica, clock: ManualClock) -> None:
    """Its queue position is free, its waiters are woken, and a job without workers and tasks is deleted."""
    job = await timed.register()
    kept = await timed.submit(job, expires_in_seconds=10)
    assert (await timed.claim_task(job.worker_id)).id == kept.id
    late, other = await timed.submit(job, expires_in_seconds=10), await timed.submit(job)
    assert late.expires_at is not None
    assert (late.expires_at - clock.now).total_seconds() == 10
    clock.advance(10 - MOMENT)
    assert await timed.fail_expired() == 0
    clock.advance(MOMENT)
    timed.events.clear()
    assert await timed.fail_expired() == 1
    error = "No worker claimed the task before it expired"
    assert state_of(await timed.get(late.id)) == (TaskStatus.FAILED, error, "task-expired")
    assert (timed.statuses(late.id), timed.statuses()) == ([TaskStatus.FAILED], [TaskStatus.FAILED])
    assert (await timed.get(other.id)).queue_position == 1
    assert (await timed.get(kept.id)).status is TaskStatus.CLAIMED


async def test_a_job_without_workers_is_deleted_when_its_last_task_expires(
    timed: Replica, clock: ManualClock
) -> None:
    """Whether that task was pending or scheduled."""
    for delay in (None, 100):
        job = await timed.register()
        submitted = await timed.submit(job, expires_in_seconds=10, delay_seconds=delay)
        await timed.leave(job.worker_id)
        clock.advance(10)
        assert await timed.fail_expired() == 1
        assert (await timed.get(submitted.id)).error_code == "task-expired"
        back, is_shown_anew = await timed.register_job()
        assert is_shown_anew
        await timed.leave(back.worker_id)


@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_an_expired_task_is_never_claimed(timed: Replica, clock: ManualClock, order: Any) -> None:
    """A claim before the next sweep fails expired tasks and takes the next valid one."""
    timed.runtime.settings.claim_order = order
    job, other = await timed.register(), await timed.register("Other")
    await timed.register("Other", worker=job.worker_id)
    late = [await timed.submit(job, expires_in_seconds=10) for _ in range(15)]
    late += [await timed.submit(other, expires_in_seconds=10) for _ in range(15)]
    good = await timed.submit(job)
    clock.advance(10)
    timed.events.clear()
    assert (await timed.claim_task(job.worker_id)).id == good.id
    assert (await timed.claim_response(job.worker_id)).reason is EmptyReason.EMPTY
    error = "No worker claimed the task before it expired"
    for one in late:
        assert state_of(await timed.get(one.id)) == (TaskStatus.FAILED, error, "task-expired")
        assert timed.statuses(one.id) == [TaskStatus.FAILED]
    assert await timed.fail_expired() == 0


async def test_many_expired_tasks_delay_no_claim(timed: Replica, clock: ManualClock) -> None:
    """One claim gets a valid task behind two thousand expired ones."""
    job = await timed.register()
    await asyncio.gather(*[timed.submit(job, expires_in_seconds=10) for _ in range(2100)])
    good = await timed.submit(job)
    clock.advance(10)
    assert (await timed.claim_task(job.worker_id)).id == good.id


async def test_expiry_wakes_the_waiters_of_a_task(timed: Replica, clock: ManualClock) -> None:
    """Whether the sweeper or a claim finds the expired task."""
    job = await timed.register()
    for find in (timed.fail_expired, lambda: timed.claim(job.worker_id)):
        submitted = await timed.submit(job, expires_in_seconds=10)
        waiter = asyncio.create_task(timed.get(submitted.id, wait=LONG))
        await wait_until_waiting(timed, 1)
        clock.advance(10)
        await find()
        async with asyncio.timeout(SOON):
            assert (await waiter).error_code == "task-expired"


async def test_internal_tasks_have_their_own_time_limit(timed: Replica, clock: ManualClock) -> None:
    """No start timeout fails them; `internal_task_timeout_seconds` and a run timeout do."""
    await timed.register("Render", INTERNAL, by=ADMIN, start_timeout_seconds=1, timeout_seconds=4000)
    timed.registry = InternalRegistry({str(internal()): InternalExecutor()})
    claimed, running, fresh = [await timed.submit(str(internal())) for _ in range(3)]
    await timed.report(running.id, TaskStatus.RUNNING, by=ADMIN)
    clock.advance(3600)
    await timed.report(fresh.id, TaskStatus.RUNNING, by=ADMIN)
    assert await timed.recover_overdue() == 0
    assert await timed.fail_stuck(3600) == 0
    clock.advance(MOMENT)
    assert await timed.fail_stuck(3600) == 2
    for one in (claimed, running):
        returned = state_of(await timed.get(one.id))
        assert returned == (TaskStatus.FAILED, "Internal worker timeout", "internal-timeout")
    clock.advance(4000)
    assert await timed.recover_overdue() == 1
    assert (await timed.get(fresh.id)).error_code == "run-timeout"


async def test_a_scheduled_internal_task_is_not_stuck(timed: Replica, clock: ManualClock) -> None:
    """Its time limit counts from its dispatch, not from its submit."""
    await timed.register("Render", INTERNAL, by=ADMIN)
    timed.registry = InternalRegistry({str(internal()): InternalExecutor()})
    later = await timed.submit(str(internal()), delay_seconds=7200)
    clock.advance(7200)
    assert await timed.enqueue_due() == 1
    await timed.dispatcher.dispatch()
    assert await timed.fail_stuck(3600) == 0
    assert (await timed.get(later.id)).status is TaskStatus.CLAIMED
    clock.advance(3600 + MOMENT)
    assert await timed.fail_stuck(3600) == 1


async def test_a_lost_worker_has_its_text_and_code(timed: Replica, clock: ManualClock) -> None:
    """Whether the worker was removed, was silent for too long, or has no row."""
    job = await timed.register(start_timeout_seconds=0)
    running = await timed.running(job)
    clock.advance(61)
    assert await timed.retire_stale() == 1
    assert state_of(await timed.get(running.id)) == (TaskStatus.FAILED, "Worker disconnected", "worker-lost")
