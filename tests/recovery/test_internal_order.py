"""Internal tasks are dispatched like remote ones are claimed: by priority, then by age, unless paused."""

from typing import Any
from uuid import UUID

import pytest
from replica import ADMIN, InternalExecutor, ManualClock, Replica, internal

from recovery.test_internal_dispatch import ExclusiveExecutor, start, worker
from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.ports import job_key
from zndraw_joblib.server.queue import rules_internal, rules_jobs, rules_task_actions
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import TaskStatus

NAMES = ("Alpha", "Beta", "Gamma", "Zeta")


class BoundedBroker(InternalExecutor):
    """A broker in the server's process: it takes no more tasks than `capacity` in all."""

    capacity = 0

    def free(self) -> int:
        """Return how many more tasks it takes."""
        return self.capacity - len(self.calls)

    async def take(self, replica: Replica, count: int) -> list[UUID]:
        """Take that many more tasks; return their ids, in order."""
        before = len(self.calls)
        for _ in range(count):
            self.capacity = len(self.calls) + 1
            await replica.dispatcher.dispatch()
        self.capacity = 0
        return [UUID(call["task_id"]) for call in self.calls[before:]]


@pytest.fixture
async def broker(timed: Replica) -> BoundedBroker:
    """Offer four internal jobs through one bounded broker."""
    broker = BoundedBroker()
    offers = [rules_internal.InternalJob(internal(name), {}, JobPolicy()) for name in NAMES]
    await timed.runtime.write(rules_internal.register, jobs=offers)
    handles: dict[str, Any] = {str(internal(name)): broker for name in NAMES}
    executor: Any = ExclusiveExecutor()
    timed.registry = InternalRegistry(handles, executor=executor, free=broker.free)
    return broker


async def submit(replica: Replica, *names: str, **options: Any) -> list[UUID]:
    """Submit a task of each of these jobs; return their ids."""
    return [(await replica.submit(str(internal(name)), **options)).id for name in names]


async def pause(replica: Replica, name: str, *, paused: bool = True) -> None:
    """Pause or resume an internal job."""
    await replica.runtime.write(rules_jobs.pause, name=internal(name), paused=paused)


async def test_the_highest_priority_is_dispatched_first(timed: Replica, broker: BoundedBroker) -> None:
    """Among the tasks of all jobs; then the oldest."""
    first = await submit(timed, "Zeta", "Alpha")
    urgent = await submit(timed, "Gamma", "Beta", priority=1000)
    last = await submit(timed, "Alpha", priority=-1)
    assert await broker.take(timed, 5) == [*urgent, *first, *last]


async def test_a_task_of_a_bounded_broker_starts_when_the_broker_is_free(
    timed: Replica, broker: BoundedBroker, clock: ManualClock
) -> None:
    """It is claimed and due at its submit, which wakes the dispatcher; its lease begins at the dispatch."""
    woken: list[str] = []
    timed.runtime.waiters.subscribe("job:", woken.append)
    [task] = await submit(timed, "Alpha")
    assert woken == [job_key(str(internal("Alpha")))]
    [row] = await timed.rows(Task)
    assert (row.status, row.attempt, row.deadline) == ("claimed", 1, clock())
    assert broker.calls == []
    clock.advance(7)
    assert await broker.take(timed, 1) == [task]
    [row] = await timed.rows(Task)
    assert row.deadline > clock()


async def test_a_task_of_a_bounded_room_waits_in_its_queue(timed: Replica, broker: BoundedBroker) -> None:
    """With `room_max_in_flight` only a claim counts the tasks of the room, so a submit claims none."""
    timed.runtime.settings.room_max_in_flight = 1
    first, second = await submit(timed, "Alpha", "Alpha")
    assert [row.status for row in await timed.rows(Task)] == ["pending"] * 2
    assert await broker.take(timed, 2) == [first]
    await timed.report(first, TaskStatus.CANCELLED, by=ADMIN)
    assert await broker.take(timed, 1) == [second]


@pytest.mark.parametrize("is_queued", [False, True], ids=["claimed", "queued"])
async def test_tasks_of_several_jobs_go_by_age(
    timed: Replica, broker: BoundedBroker, is_queued: bool
) -> None:
    """Whether they were claimed at their submit, or wait in the queues of their jobs."""
    if is_queued:
        for name in NAMES:
            await pause(timed, name)
    submitted = await submit(timed, *reversed(NAMES), *NAMES, "Beta", "Zeta")
    for name in NAMES:
        await pause(timed, name, paused=False)
    assert await broker.take(timed, 10) == submitted


async def test_a_delayed_task_does_not_starve(
    timed: Replica, broker: BoundedBroker, clock: ManualClock
) -> None:
    """Once it is due, it goes before the tasks that were submitted after it; and so does a retried one."""
    [delayed] = await submit(timed, "Beta", delay_seconds=5)
    [released] = await submit(timed, "Gamma")
    later = await submit(timed, "Alpha", "Alpha", "Zeta")
    clock.advance(6)
    assert await timed.enqueue_due() == 1
    await timed.act(rules_task_actions.release, released)
    assert await broker.take(timed, 5) == [delayed, released, *later]


async def test_the_backlog_of_a_paused_job_waits(timed: Replica, broker: BoundedBroker) -> None:
    """Also the tasks that were claimed at their submit. Other jobs continue; a resume dispatches the rest."""
    backlog = await submit(timed, "Alpha", "Alpha", "Alpha")
    other = await submit(timed, "Beta")
    [sent] = await broker.take(timed, 1)
    assert sent == backlog[0]
    await pause(timed, "Alpha")
    assert await broker.take(timed, 3) == other
    # The broker has the message already; the executor does not start the task, which returns to its queue.
    worker_id = await worker(timed)
    assert await start(timed, worker_id, sent, name="Alpha") == [None]
    assert (await timed.get(sent)).status is TaskStatus.PENDING
    woken: list[str] = []
    timed.runtime.waiters.subscribe("job:@internal:", woken.append)
    await pause(timed, "Alpha", paused=False)
    assert woken
    assert await broker.take(timed, 3) == backlog
    started = await start(timed, worker_id, *backlog, name="Alpha")
    assert [task.status for task in started] == [TaskStatus.RUNNING] * 3


async def test_the_limit_of_a_job_counts_beside_other_jobs(timed: Replica, broker: BoundedBroker) -> None:
    """A job at its limit delays no other job."""
    limited = rules_internal.InternalJob(internal("Alpha"), {}, JobPolicy(max_in_flight=1))
    await timed.runtime.write(rules_internal.register, jobs=[limited])
    first, second = await submit(timed, "Alpha", "Alpha")
    others = await submit(timed, "Beta", "Zeta")
    assert await broker.take(timed, 4) == [first, *others]
    for status in (TaskStatus.RUNNING, TaskStatus.COMPLETED):
        await timed.report(first, status, by=ADMIN)
    assert await broker.take(timed, 1) == [second]
