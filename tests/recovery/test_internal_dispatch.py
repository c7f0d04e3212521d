"""Internal tasks are dispatched at their submit, and again when that dispatch may have been lost."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from databases import every_kind, on_postgresql
from replica import ADMIN, SUBMITTER, InternalExecutor, ManualClock, Replica, internal
from sqlalchemy import delete, update
from waiting import until

from recovery.test_pausing import until_waiting
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.tables import Job, Worker
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import (
    rules_internal,
    rules_jobs,
    rules_task_actions,
    rules_tasks,
    rules_workers,
)
from zndraw_joblib.server.queue.rules_internal import EXECUTOR
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.problems import Conflict, JobNotFound, WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus

SECOND = 1.0
LEASE = 30.0


class ExclusiveExecutor:
    """An executor that starts a task once."""

    exclusive_start = True


async def serve(
    replica: Replica,
    *,
    exclusive_start: bool = False,
    executor: InternalExecutor | None = None,
    **policy: Any,
) -> InternalExecutor:
    """Connect the internal job of a replica to a broker, and return the broker."""
    executor = executor or InternalExecutor()
    offer = rules_internal.InternalJob(internal(), {}, JobPolicy(**policy))
    await replica.runtime.write(rules_internal.register, jobs=[offer])
    held: Any = ExclusiveExecutor() if exclusive_start else None
    registry = InternalRegistry({str(internal()): executor}, executor=held)
    replica.registry = registry
    return executor


async def commit_only(replica: Replica, *, exclusive_start: bool = False) -> UUID:
    """Submit, and crash before the dispatch."""
    item = rules_tasks.Submission(
        SUBMITTER, "lab", internal(), {}, is_configured=True, exclusive_start=exclusive_start
    )
    [submitted_tasks] = await replica.runtime.write(rules_tasks.submit, items=[item])
    assert isinstance(submitted_tasks, TaskResponse)
    return submitted_tasks.id


async def start(replica: Replica, worker_id: UUID, *ids: UUID, name: str = "Render") -> list[Any]:
    """Start tasks of a job as an executor does."""
    items = [rules_internal.Start(worker_id, task_id, internal(name)) for task_id in ids]
    responses: list[Any] = await replica.runtime.write(rules_internal.start, items=items)
    return responses


async def worker(replica: Replica) -> UUID:
    """Create a worker inside the server."""
    submitted_tasks = await replica.runtime.write(rules_workers.create, caller=EXECUTOR, interval=15)
    return submitted_tasks.id


@pytest.mark.parametrize("exclusive_start", [False, True])
async def test_a_crash_between_commit_and_dispatch_loses_no_task(
    timed: Replica, clock: ManualClock, exclusive_start: bool
) -> None:
    """When its lease ends, the task is dispatched with the same attempt, and then not again."""
    broker = await serve(timed, exclusive_start=exclusive_start, start_timeout_seconds=LEASE)
    task_id = await commit_only(timed, exclusive_start=exclusive_start)
    clock.advance(LEASE - SECOND)
    await timed.dispatcher.dispatch()
    assert broker.calls == []
    clock.advance(SECOND)
    for _ in range(3):
        await timed.dispatcher.dispatch()
    assert [call["task_id"] for call in broker.calls] == [str(task_id)]
    assert (await timed.get(task_id)).attempt == 1


async def test_without_exclusive_start_a_task_is_dispatched_once(timed: Replica, clock: ManualClock) -> None:
    """It might run twice otherwise; only `internal_task_timeout_seconds` ends it."""
    broker = await serve(timed, start_timeout_seconds=1)
    task = await timed.submit(str(internal()))
    clock.advance(3599)
    await timed.dispatcher.dispatch()
    assert len(broker.calls) == 1
    assert (await timed.get(task.id)).status is TaskStatus.CLAIMED


async def test_with_exclusive_start_a_task_is_dispatched_until_it_starts(
    timed: Replica, clock: ManualClock
) -> None:
    """The broker may have lost it: 10, 20, 40, 80 s after its claim, and not after its start."""
    broker = await serve(timed, exclusive_start=True, start_timeout_seconds=10)
    task = await timed.submit(str(internal()))
    at = []
    for second in range(100):
        before = len(broker.calls)
        await timed.dispatcher.dispatch()
        at += [second] * (len(broker.calls) - before)
        clock.advance(SECOND)
    assert at == [10, 20, 40, 80]
    [started] = await start(timed, await worker(timed), task.id)
    assert (started.status, started.attempt) == (TaskStatus.RUNNING, 1)
    clock.advance(1000)
    await timed.dispatcher.dispatch()
    assert len(broker.calls) == 5


async def test_two_replicas_dispatch_a_due_task_once(pair: list[Replica]) -> None:
    """Many tasks are due; each is dispatched once, although both replicas check at the same time."""
    brokers = [await serve(replica) for replica in pair]
    await pair[0].runtime.write(_pause, paused=True)
    submitted_tasks = [await pair[0].submit(str(internal())) for _ in range(150)]
    assert {task.status for task in submitted_tasks} == {TaskStatus.PENDING}
    await pair[0].runtime.write(_pause, paused=False)
    await asyncio.gather(*(replica.dispatcher.dispatch() for replica in pair * 2))
    calls = [call["task_id"] for broker in brokers for call in broker.calls]
    assert sorted(calls) == sorted(str(task.id) for task in submitted_tasks)


async def _pause(tx: Any, *, paused: bool) -> None:
    await rules_jobs.pause(tx, internal(), paused=paused)


async def test_tasks_wait_for_an_unavailable_broker(timed: Replica, caplog: pytest.LogCaptureFixture) -> None:
    """They stay claimed, are retried by each dispatch cycle, and the log has one warning."""
    broker = await serve(timed)
    submitted = await timed.submit(str(internal()))
    await timed.act(rules_task_actions.release, submitted.id)

    async def refuse(_: UUID) -> None:
        raise ConnectionError("away")

    broker.on_call = refuse
    for _ in range(5):
        assert not await timed.dispatcher.dispatch()
        assert (await timed.get(submitted.id)).status is TaskStatus.CLAIMED
    assert len([record for record in caplog.records if "will be dispatched later" in record.message]) == 1
    broker.on_call = None
    assert await timed.dispatcher.dispatch()
    assert await timed.dispatcher.dispatch()
    assert len(broker.calls) == 7
    assert (await timed.get(submitted.id)).attempt == 2


async def test_the_limit_of_an_internal_job(timed: Replica) -> None:
    """At most `max_in_flight` tasks are claimed or running; the end of one dispatches the next."""
    broker = await serve(timed, max_in_flight=2)
    submitted_tasks = [await timed.submit(str(internal())) for _ in range(4)]
    await timed.dispatcher.dispatch()
    assert [call["task_id"] for call in broker.calls] == [str(task.id) for task in submitted_tasks[:2]]
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
        await timed.report(submitted_tasks[0].id, status, by=ADMIN)
    await timed.dispatcher.dispatch()
    assert [call["task_id"] for call in broker.calls] == [str(task.id) for task in submitted_tasks[:3]]


async def test_the_limit_of_a_room_counts_internal_tasks(replica: Replica) -> None:
    """Claimed or running, of all jobs; other rooms continue."""
    replica.runtime.settings.room_max_in_flight = 2
    broker = await serve(replica)
    remote = await replica.register()
    await replica.submit(remote, room="busy")
    await replica.claim_task(remote.worker_id)
    rooms = ("busy", "busy", "quiet", "busy", "quiet", "quiet")
    submitted_tasks = [await replica.submit(str(internal()), room=room) for room in rooms]
    assert {task.status for task in submitted_tasks} == {TaskStatus.PENDING}
    for _ in range(2):
        await replica.dispatcher.dispatch()
        assert [call["task_id"] for call in broker.calls] == [
            str(submitted_tasks[position].id) for position in (0, 2, 4)
        ]
    await replica.report(submitted_tasks[0].id, TaskStatus.CANCELLED, by=ADMIN)
    await replica.dispatcher.dispatch()
    assert broker.calls[3]["task_id"] == str(submitted_tasks[1].id)
    assert len(broker.calls) == 4


@every_kind
async def test_a_free_slot_of_a_room_dispatches_a_task(replica: Replica) -> None:
    """At once, without a sweep."""
    replica.runtime.settings.room_max_in_flight = 1
    broker = await serve(replica)
    running = asyncio.create_task(replica.dispatcher.run())
    remote = await replica.register()
    await replica.submit(remote)
    first = await replica.claim_task(remote.worker_id)
    waiting = await replica.submit(str(internal()))
    await replica.dispatcher.dispatch()
    assert broker.calls == []
    await replica.report(first.id, TaskStatus.CANCELLED, by=ADMIN)
    await until(lambda: broker.calls)
    assert broker.calls[0]["task_id"] == str(waiting.id)
    running.cancel()
    await asyncio.wait([running])


async def test_rooms_take_turns_with_internal_tasks(timed: Replica, clock: ManualClock) -> None:
    """A backlog that could not be dispatched is dispatched room by room."""
    timed.runtime.settings.claim_order = "fair"
    broker = await serve(timed, max_in_flight=1)
    submitted_tasks = []
    for room in ("a", "a", "a", "b", "b"):
        submitted_tasks.append(await timed.submit(str(internal()), room=room))
        clock.advance(SECOND)
    for done in range(5):
        await timed.dispatcher.dispatch()
        assert len(broker.calls) == done + 1
        await timed.report(UUID(broker.calls[-1]["task_id"]), TaskStatus.CANCELLED, by=ADMIN)
        clock.advance(SECOND)
    assert [call["room_id"] for call in broker.calls] == ["a", "b", "a", "b", "a"]


async def test_an_internal_task_expires_before_its_dispatch(timed: Replica, clock: ManualClock) -> None:
    """It is never dispatched later."""
    broker = await serve(timed, max_in_flight=1)
    first = await timed.submit(str(internal()))
    late = await timed.submit(str(internal()), expires_in_seconds=5)
    await timed.dispatcher.dispatch()
    clock.advance(6)
    await timed.act(rules_task_actions.fail, first.id)
    await timed.dispatcher.dispatch()
    assert (await timed.get(late.id)).error_code == "task-expired"
    assert len(broker.calls) == 1


async def test_a_start_is_strict_and_exclusive(timed: Replica) -> None:
    """One of many messages starts a task; none starts an ended, pending or remote task."""
    await serve(timed)
    first, second = await worker(timed), await worker(timed)
    one, ended = await timed.submit(str(internal())), await timed.submit(str(internal()))
    await timed.act(rules_task_actions.fail, ended.id)
    job = await timed.register()
    await timed.submit(job)
    remote = await timed.claim(job.worker_id)
    assert remote is not None
    mine, over, other, unknown = await start(timed, first, one.id, ended.id, remote.id, uuid4())
    assert (mine.worker_id, mine.worker_owner_id, over, unknown) == (first, "@internal", None, None)
    assert isinstance(other, Conflict)
    assert await start(timed, second, one.id) == [None]
    assert await start(timed, first, one.id) == [mine]  # repeated, because the response may have been lost
    await timed.act(rules_task_actions.release, one.id)
    assert await start(timed, second, one.id) == [None]
    [refused] = await start(timed, uuid4(), one.id)
    assert isinstance(refused, WorkerNotFound)


@pytest.mark.parametrize("is_requested", [True, False])
async def test_tasks_of_a_paused_job_wait_however_long(
    timed: Replica, clock: ManualClock, is_requested: bool
) -> None:
    """They return to their queue, whether or not an executor requests them, and start after the resume."""
    broker = await serve(timed, exclusive_start=True)
    executor, task = await worker(timed), await timed.submit(str(internal()))
    await timed.runtime.write(_pause, paused=True)
    if is_requested:
        assert await start(timed, executor, task.id, task.id) == [None, None]
    clock.advance(3601)
    sweeper = Sweeper(timed.runtime.write, timed.runtime.settings)
    sweeper.absence.restart()
    planned = (await timed.runtime.database.read(sweeper.preview)).tasks
    assert [(change.after, change.reason) for change in planned] == (
        [] if is_requested else [(TaskStatus.PENDING, "released")]
    )
    assert await timed.fail_stuck() == 0
    await sweeper.cycle()
    assert (await timed.get(task.id)).status is TaskStatus.PENDING
    assert timed.statuses(task.id)[-1] is TaskStatus.PENDING
    await timed.runtime.write(_pause, paused=False)
    assert await timed.dispatcher.dispatch()
    assert len(broker.calls) == 2
    [started] = await start(timed, executor, task.id)
    assert (started.status, started.attempt, started.failures) == (TaskStatus.RUNNING, 2, 0)


@on_postgresql
async def test_a_start_that_has_read_its_task_sees_the_pause(replica: Replica) -> None:
    """A pause that commits before the start wins."""
    await serve(replica, exclusive_start=True)
    executor, task = await worker(replica), await replica.submit(str(internal()))
    async with replica.engine.begin() as other:
        await other.execute(update(Job.__table__).values(paused=True))
        starting = asyncio.create_task(start(replica, executor, task.id))
        await until_waiting(replica)
    assert await starting == [None]
    assert (await replica.get(task.id)).status is TaskStatus.PENDING


async def test_concurrent_starts_start_a_task_once(pair: list[Replica]) -> None:
    """However many processes get a message at the same time."""
    await serve(pair[0])
    ids = [await worker(pair[0]) for _ in range(4)]
    for _ in range(5):
        task = await pair[0].submit(str(internal()))
        starts = [start(pair[n % 2], ids[n], task.id) for n in range(4)]
        responses = [response for responses in await asyncio.gather(*starts) for response in responses]
        assert len([response for response in responses if response is not None]) == 1


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ({}, (TaskStatus.FAILED, "Worker disconnected", "worker-lost", None)),
        ({"max_attempts": 2}, (TaskStatus.PENDING, "Worker disconnected", "worker-lost", 2.718)),
    ],
)
async def test_a_silent_internal_worker_expires(
    timed: Replica, clock: ManualClock, policy: dict[str, Any], after: tuple[Any, ...]
) -> None:
    """Its running tasks follow their retry policy: they fail, or are dispatched again after a backoff."""
    broker = await serve(timed, **policy)
    task = await timed.submit(str(internal()))
    await start(timed, await worker(timed), task.id)
    clock.advance(61)
    assert await timed.retire_stale() == 1
    found = await timed.get(task.id)
    pause = None if found.run_at is None else round((found.run_at - clock.now).total_seconds(), 3)
    assert (found.status, found.error, found.error_code, pause) == after
    clock.advance(10)
    await timed.enqueue_due()
    await timed.dispatcher.dispatch()
    assert len(broker.calls) == (2 if policy else 1)


async def test_a_running_internal_task_without_a_worker_is_found(timed: Replica) -> None:
    """A claimed internal task has no worker, and needs none."""
    await serve(timed)
    claimed, running = await timed.submit(str(internal())), await timed.submit(str(internal()))
    gone = await worker(timed)
    await start(timed, gone, running.id)
    await timed.execute(delete(Worker.__table__).where(Worker.__table__.c.id == gone))
    assert await timed.recover_abandoned() == 1
    assert (await timed.get(running.id)).error_code == "worker-lost"
    assert (await timed.get(claimed.id)).status is TaskStatus.CLAIMED


async def test_a_registration_restores_a_soft_deleted_internal_job(timed: Replica) -> None:
    """With the schema and the policy of the new registration."""
    await serve(timed)
    await timed.execute(update(Job.__table__).values(deleted=True))
    with pytest.raises(JobNotFound):
        await timed.submit(str(internal()))
    await serve(timed, priority=7)
    assert (await timed.submit(str(internal()))).priority == 7


async def test_the_reasons_why_an_internal_task_is_pending(timed: Replica) -> None:
    """None of the reasons is that the job has no worker."""
    await serve(timed, max_in_flight=1)
    for _ in range(2):
        last = await timed.submit(str(internal()))
    await timed.dispatcher.dispatch()
    assert await timed.explain(last.id) == ["job_at_capacity", "queued"]
    assert INTERNAL in last.job_name
