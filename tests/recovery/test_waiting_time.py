"""An explanation says what the workers of a job do while a task waits, and about how long it will wait."""

from functools import partial
from uuid import UUID

from replica import ADMIN, OWNER, InternalExecutor, ManualClock, Replica, internal

from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import rules_history, rules_task_actions
from zndraw_joblib.wire.history import TaskExplanation
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.statuses import TaskStatus


async def explain(replica: Replica, task_id: UUID) -> TaskExplanation:
    """Explain a task."""
    work = partial(rules_history.explain, task_id=task_id, order=replica.runtime.order)
    return await replica.runtime.database.read(work)


async def texts(replica: Replica, task_id: UUID) -> dict[str, str]:
    """Return the reasons of a task."""
    return {why.code: why.detail for why in (await explain(replica, task_id)).reasons}


async def test_all_workers_are_busy(timed: Replica, clock: ManualClock) -> None:
    """The reason counts their tasks and slots, and has the time since which they are."""
    job = await timed.register()
    other = await timed.register(worker=await timed.worker())
    waiting = [await timed.submit(job) for _ in range(4)][-1]
    await timed.start(job.worker_id)
    assert "workers_busy" not in await texts(timed, waiting.id)
    clock.advance(60)
    await timed.claim_task(other.worker_id)
    clock.advance(60)
    found = await texts(timed, waiting.id)
    assert list(found) == ["workers_busy", "queued"]
    assert found["workers_busy"] == (
        "All 2 workers of @global:modifiers:Rotate are busy since 2030-01-01 00:01:00 UTC "
        "(tasks held: 2, running: 1)"
    )
    for worker in (job.worker_id, other.worker_id):
        assert worker is not None
        await timed.runtime.heartbeat(OWNER, worker, max_tasks=2)
    assert "workers_busy" not in await texts(timed, waiting.id)
    await timed.start(job.worker_id)
    await timed.drain(other.worker_id)
    found = await texts(timed, waiting.id)
    assert found["workers_busy"].startswith("The only worker of @global:modifiers:Rotate is busy since ")
    assert found["workers_busy"].endswith(" UTC (tasks held: 2, running: 2, slots: 2)")


async def test_a_pause_or_a_limit_is_the_more_important_reason(timed: Replica) -> None:
    """While they keep the task from being claimed, it does not matter that the workers are busy."""
    job = await timed.register(max_in_flight=1)
    await timed.submit(job)
    waiting = await timed.submit(job)
    await timed.start(job.worker_id)
    assert list(await texts(timed, waiting.id)) == ["job_at_capacity", "queued"]
    await timed.pause(job)
    assert list(await texts(timed, waiting.id)) == ["paused", "job_at_capacity", "queued"]


async def test_a_worker_that_never_claims(timed: Replica, clock: ManualClock) -> None:
    """A worker that holds nothing, although a task has waited for a while, may not run its jobs."""
    job = await timed.register(max_attempts=2)
    task = await timed.submit(job)
    clock.advance(9)
    assert list(await texts(timed, task.id)) == ["queued"]
    clock.advance(171)
    found = await texts(timed, task.id)
    assert list(found) == ["not_claimed", "queued"]
    assert found["not_claimed"].startswith(
        "Idle workers of @global:modifiers:Rotate: 1 of 1, but none has claimed this task for 3 min"
    )
    new = await timed.register(worker=await timed.worker())
    await timed.drain(job.worker_id)
    assert list(await texts(timed, task.id)) == ["queued"]  # the new worker has just been registered
    await timed.claim_task(new.worker_id)
    await timed.act(rules_task_actions.release, task.id)
    clock.advance(9)
    assert list(await texts(timed, task.id)) == ["queued"]
    clock.advance(2)
    assert list(await texts(timed, task.id)) == ["not_claimed", "queued"]


async def test_an_internal_task_without_an_executor(timed: Replica, clock: ManualClock) -> None:
    """After half a minute without any running internal task, no process can have one for its job."""
    names = [str(internal(name)) for name in ("Render", "Other")]
    for name in ("Render", "Other"):
        await timed.register(name, INTERNAL, by=ADMIN)
    timed.registry = InternalRegistry({name: InternalExecutor() for name in names})
    task, other = [await timed.submit(name) for name in names]
    await timed.act(rules_task_actions.release, task.id)
    clock.advance(31)
    assert list(await texts(timed, task.id)) == ["queued"]
    await timed.act(rules_task_actions.fail, other.id)
    found = await texts(timed, task.id)
    assert list(found) == ["not_dispatched", "queued"]
    assert found["not_dispatched"].endswith(f"no process that runs has an executor for {names[0]}")


async def test_a_scheduled_task_waits_from_the_time_when_it_enters_its_queue(
    timed: Replica, clock: ManualClock
) -> None:
    """The time before that is no time for which its workers have not claimed it."""
    job = await timed.register()
    task = await timed.submit(job, delay_seconds=3600)
    clock.advance(3601)
    await timed.enqueue_due()
    assert list(await texts(timed, task.id)) == ["queued"]
    clock.advance(11)
    assert list(await texts(timed, task.id)) == ["not_claimed", "queued"]


async def test_no_rate_without_a_worker_that_claims(timed: Replica, clock: ManualClock) -> None:
    """A worker that drains ends what it holds, and claims no more."""
    job = await timed.register()
    for _ in range(2):
        done = await timed.running(job)
        clock.advance(20)
        await timed.report(done.id, TaskStatus.COMPLETED)
    await timed.running(job)
    waiting = await timed.submit(job)
    assert (await explain(timed, waiting.id)).wait_seconds == 20
    await timed.drain(job.worker_id)
    assert list(await texts(timed, waiting.id)) == ["draining", "queued"]
    assert (await explain(timed, waiting.id)).wait_seconds is None


async def test_the_wait_at_the_current_rate(timed: Replica, clock: ManualClock) -> None:
    """It follows from the duration of recent tasks, how many are held, and the position in the queue."""
    job = await timed.register()
    for seconds in (20, 40):
        done = await timed.running(job)
        clock.advance(seconds)
        await timed.report(done.id, TaskStatus.COMPLETED)
        clock.advance(1000)
    found = [await timed.submit(job, room=room) for room in ("lab", "lab", "lab", "other", "lab", "lab")]
    assert (await explain(timed, found[-1].id)).wait_seconds is None  # no task is held
    for _ in range(2):
        await timed.start(job.worker_id)
    for position, task in enumerate(found[2:], 1):
        explained = await explain(timed, task.id)
        assert (explained.queue_position, explained.wait_seconds) == (position, position * 30 / 2)
    assert (await texts(timed, found[-1].id))["queued"] == (
        "It is at position 4 of its queue, after 3 other tasks: about 60 s at the current rate"
    )
    await timed.pause(job)
    assert (await explain(timed, found[-1].id)).wait_seconds is None
    assert (await explain(timed, found[0].id)).wait_seconds is None
