"""The demand: how many slots of workers the tasks need that wait or run."""

from typing import Any

import pytest
from replica import SUBMITTER, Replica

from zndraw_joblib.server.admin import rules_demand
from zndraw_joblib.server.admin.rules_demand import Wanted
from zndraw_joblib.server.queue import rules_task_actions
from zndraw_joblib.wire.messages import JobResponse, TaskActionRequest, WorkerInfo
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import Demand
from zndraw_joblib.wire.problems import JobNotFound
from zndraw_joblib.wire.statuses import TaskStatus

GPU = {"gpu": "a100"}


async def demand(replica: Replica, *jobs: JobResponse | str, heartbeat: float = 15, **options: Any) -> Demand:
    """Return the demand of jobs, of rooms or of all."""
    names = [parse_job_name(job if isinstance(job, str) else job.full_name) for job in jobs]
    read = replica.runtime.database.read_snapshot
    return await read(rules_demand.read, Wanted(names, **options), heartbeat)


async def numbers(replica: Replica, *jobs: JobResponse, **options: Any) -> tuple[int, int, int, int, int]:
    """Return what is queued, held back and running, the slots, and the slots that are desired."""
    it = await demand(replica, *jobs, **options)
    assert it.desired_slots == it.queued + it.running
    for field in ("queued", "held_back", "running", "desired_slots"):
        assert getattr(it, field) == sum(getattr(part, field) for part in it.by_requirement), field
    return it.queued, it.held_back, it.running, it.slots, it.desired_slots


async def test_waiting_and_running_tasks_need_slots(pair: list[Replica]) -> None:
    """A task needs one while it waits and while it runs; one that is not due, or has ended, needs none."""
    first, second = pair
    job = await first.register(about=WorkerInfo(slots=3))
    assert await numbers(first, job) == (0, 0, 0, 3, 0)
    tasks = [await first.submit(job, room=room) for room in ("lab", "lab", "annex")]
    later = await second.submit(job, delay_seconds=3600)
    assert await numbers(second, job) == (3, 0, 0, 3, 3)
    await first.claim(job.worker_id)
    await second.report(tasks[0].id, TaskStatus.RUNNING)
    assert await numbers(first, job) == await numbers(second) == (2, 0, 1, 3, 3)
    assert await numbers(first, rooms=["lab"]) == (0, 0, 0, 0, 0)
    await second.report(tasks[0].id, TaskStatus.COMPLETED)
    assert await numbers(second, job) == (2, 0, 0, 3, 2)
    assert (await demand(second, job)).oldest_seconds > 0
    # It drains: a worker that leaves takes no more tasks, and what it runs needs no other.
    await first.claim(job.worker_id)
    await second.report(tasks[1].id, TaskStatus.RUNNING)
    await first.drain(job.worker_id)
    assert await numbers(second, job) == (1, 0, 0, 0, 1)
    assert later.status == TaskStatus.PENDING


async def test_silent_workers_do_not_count(replica: Replica) -> None:
    """Neither their slots nor what they run: it returns to its queue or fails when they are removed."""
    job = await replica.register(about=WorkerInfo(slots=2))
    task = await replica.submit(job)
    await replica.claim(job.worker_id)
    await replica.report(task.id, TaskStatus.RUNNING)
    assert await numbers(replica, job) == (0, 0, 1, 2, 1)
    assert await numbers(replica, job, heartbeat=-3600) == (0, 0, 0, 0, 0)


async def test_only_tasks_count_that_a_worker_with_these_labels_may_run(pair: list[Replica]) -> None:
    """And only workers with these labels, whatever other labels they have."""
    first, second = pair
    plain = await first.register(about=WorkerInfo(slots=2))
    big = await second.register(about=WorkerInfo(slots=1, labels={**GPU, "memory_gb": 80}))
    strict = await first.register("Strict", about=WorkerInfo(slots=4, labels=GPU), requires=GPU)
    for requires in ({}, GPU, GPU, {"memory_gb": {">=": 40}}):
        await first.submit(plain, requires=requires)
    await second.submit(strict)
    everything = await demand(first)
    parts = {str(part.requires): (part.queued, part.slots) for part in everything.by_requirement}
    assert parts == {"{}": (1, 7), "{'gpu': 'a100'}": (3, 5), "{'memory_gb': {'>=': 40}}": (1, 1)}
    assert (everything.queued, everything.slots) == (5, 7)
    assert await numbers(second, labels=GPU) == (4, 0, 0, 5, 4)
    assert await numbers(second, labels={}) == (1, 0, 0, 7, 1)
    assert await numbers(second, plain, labels=GPU) == (3, 0, 0, 1, 3)
    assert await numbers(first, labels={**GPU, "memory_gb": 80}) == (5, 0, 0, 1, 5)
    assert await numbers(first, labels={"gpu": "t4"}) == (1, 0, 0, 0, 1)
    # What other workers run does not count as running on these.
    claimed = await first.claim_task(plain.worker_id)
    await first.report(claimed.id, TaskStatus.RUNNING)
    assert await numbers(second, labels=GPU) == (3, 0, 0, 5, 3)
    assert await numbers(second, labels={}) == (0, 0, 1, 7, 1)
    assert big.worker_id != plain.worker_id


async def test_what_is_paused_needs_no_worker(pair: list[Replica]) -> None:
    """A paused job, the tasks of a paused room, and all while all rooms are paused."""
    first, second = pair
    job, other = await first.register(), await first.register("Other")
    for room in ("lab", "lab", "annex"):
        await first.submit(job, room=room)
    await first.submit(job, room="lab", delay_seconds=3600)
    await second.submit(other)
    await second.pause(job)
    assert await numbers(first) == (1, 3, 0, 2, 1)
    await second.pause(job, paused=False)
    await first.pause_room("lab")
    assert await numbers(second, job) == (1, 2, 0, 1, 1)
    await first.pause_room(None)
    assert await numbers(second) == (0, 4, 0, 2, 0)
    assert (await demand(second)).oldest_seconds == 0
    for room in (None, "lab"):
        await second.resume_room(room)
    assert await numbers(first) == (4, 0, 0, 2, 4)


async def test_what_a_limit_holds_back_needs_no_worker(pair: list[Replica]) -> None:
    """Of a job, of each value of a key, and of a rate; also after the slots of a limit are free again."""
    first, second = pair
    bounded = await first.register("Bounded", max_in_flight=2)
    keyed = await first.register("Keyed", limits=[{"key": "/user", "max_in_flight": 1}])
    rated = await first.register("Rated", limits=[{"rate": {"count": 1, "per_seconds": 3600, "burst": 2}}])
    for number in range(4):
        await first.submit(bounded)
        await second.submit(rated, room=f"room-{number}")
        for user in ("ann", "bob"):
            await second.submit(keyed, {"user": user})
    await first.submit(bounded, requires=GPU)
    assert await numbers(first, bounded) == (2, 3, 0, 1, 2)
    assert await numbers(second, bounded, labels=GPU) == (2, 3, 0, 0, 2)
    assert await numbers(first, keyed) == (2, 6, 0, 1, 2)
    assert await numbers(first, rated) == (2, 2, 0, 1, 2)
    for job, left in ((bounded, (1, 3, 1, 1, 2)), (keyed, (1, 6, 1, 1, 2)), (rated, (1, 2, 1, 1, 2))):
        task = await second.claim_task(job.worker_id)
        await first.report(task.id, TaskStatus.RUNNING)
        assert await numbers(second, job) == left, job.name
    assert await numbers(second, bounded, keyed, rated) == (3, 11, 3, 3, 6)
    # A claim of the second user's task, then none is left: the queues of both users are blocked.
    other = await first.claim_task(keyed.worker_id)
    assert await second.claim(keyed.worker_id) is None
    assert await numbers(first, keyed) == (0, 6, 1, 1, 1)
    await second.report(other.id, TaskStatus.RUNNING)
    await second.report(other.id, TaskStatus.COMPLETED)
    assert await numbers(first, keyed) == (1, 5, 1, 1, 2)


async def test_an_unknown_job_has_no_demand_and_a_forgotten_one_that_of_its_tasks(
    pair: list[Replica],
) -> None:
    """An autoscaler goes on when a job is forgotten, or one of several unknown. A wrong name is an error."""
    replica, other = pair
    job = await replica.register(without_workers="forget")
    unknown = "@global:modifiers:Rotat"
    with pytest.raises(JobNotFound, match="Rotat'"):
        await demand(replica, unknown)
    task = await replica.submit(job)
    await replica.claim(job.worker_id)
    await replica.report(task.id, TaskStatus.FAILED)
    await replica.leave(job.worker_id)
    assert await numbers(replica, job) == (0, 0, 0, 0, 0)
    with pytest.raises(JobNotFound):
        await other.submit(job)
    await other.runtime.write(rules_task_actions.retry, SUBMITTER, task.id, TaskActionRequest())
    assert await numbers(replica, job) == (1, 0, 0, 0, 1)
    several = await demand(replica, unknown, job)
    assert (several.desired_slots, several.unknown_jobs) == (1, [unknown])


async def test_tasks_count_with_their_costs(replica: Replica) -> None:
    """The desired slots are those that the tasks take, by what they require and take."""
    job = await replica.register(about=WorkerInfo(slots=4), cost=2)
    await replica.submit(job)
    await replica.submit(job, cost=3)
    await replica.report((await replica.claim_task(job.worker_id)).id, TaskStatus.RUNNING)
    it = await demand(replica, job)
    assert (it.queued, it.running, it.slots, it.desired_slots) == (1, 1, 4, 5)
    assert [(part.cost, part.desired_slots) for part in it.by_requirement] == [(3, 3), (2, 2)]
