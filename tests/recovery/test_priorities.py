"""Tasks are claimed by priority, equal ones in order of arrival; positions have the same order."""

import random
from functools import partial
from uuid import UUID

import pytest
from replica import SUBMITTER, ManualClock, Replica

from zndraw_joblib.server.db.tables import Job
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_task_actions, rules_tasks
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.statuses import TaskStatus


async def claim_all(replica: Replica, worker: UUID | None) -> list[UUID]:
    """Claim until nothing is left; return the ids in the order of the claims."""
    ids = []
    while (claimed := await replica.claim(worker)) is not None:
        ids.append(claimed.id)
    return ids


async def listed(replica: Replica) -> dict[UUID, int | None]:
    """Return all positions, as a page of the room shows them."""
    page = partial(rules_tasks.page, room_id="lab", status=None, part=Page(500, 0))
    return {item.id: item.queue_position for item in (await replica.runtime.database.read(page)).items}


async def has_priorities(replica: Replica, job: JobResponse) -> bool:
    """Return whether the queue of a job counts as one with several priorities."""
    [row] = await replica.rows(Job.__table__, Job.__table__.c.id == job.id)
    return bool(row.has_lanes)


async def test_the_highest_priority_is_claimed_first(replica: Replica) -> None:
    """Equal priorities go in order of arrival; the response to a submit has the right position."""
    job = await replica.register()
    ids = {}
    for name, priority, position in (
        ("a0", 0, 1),
        ("b0", None, 2),
        ("c5", 5, 1),
        ("d-5", -5, 4),
        ("e5", 5, 2),
        ("f0", 0, 5),
        ("g9", 9, 1),
    ):
        submitted = await replica.submit(job, priority=priority)
        assert (submitted.queue_position, submitted.priority) == (position, priority or 0), name
        ids[submitted.id] = name
    order = ["g9", "c5", "e5", "a0", "b0", "f0", "d-5"]
    assert {ids[id_]: rank for id_, rank in (await listed(replica)).items()} == {
        name: rank for rank, name in enumerate(order, 1)
    }
    assert [ids[id_] for id_ in await claim_all(replica, job.worker_id)] == order


async def test_a_job_may_have_a_priority(replica: Replica) -> None:
    """Its tasks have it unless they set another; it holds across jobs."""
    plain = await replica.register("Plain")
    high = await replica.register("High", worker=plain.worker_id, priority=3)
    low = await replica.register("Low", worker=plain.worker_id, priority=-3)
    ids = {}
    for job, priority in ((low, None), (plain, None), (high, None), (low, 4), (high, -9), (plain, 3)):
        submitted = await replica.submit(job, priority=priority)
        ids[submitted.id] = (job.name, submitted.priority)
    assert [ids[id_] for id_ in await claim_all(replica, plain.worker_id)] == [
        ("Low", 4),
        ("High", 3),
        ("Plain", 3),
        ("Plain", 0),
        ("Low", -3),
        ("High", -9),
    ]


async def test_positions_are_counted_once_a_priority_was_used(replica: Replica) -> None:
    """Until then a submit needs no query of the queue."""
    plain, mixed, other = [await replica.register(name) for name in ("Plain", "Mixed", "Other")]
    await replica.submit(plain)
    await replica.submit(plain, priority=0)
    assert not await has_priorities(replica, plain)
    await replica.submit(mixed, priority=-1)
    assert await has_priorities(replica, mixed)
    assert not await has_priorities(replica, other)
    await claim_all(replica, mixed.worker_id)
    assert (await replica.submit(mixed)).queue_position == 1
    late = await replica.submit(other, priority=1, delay_seconds=3600)
    assert late.queue_position is None


class Model:
    """The queues of two jobs as a sorted list."""

    def __init__(self) -> None:
        self.order: list[UUID] = []
        self.waiting: dict[UUID, tuple[str, int]] = {}

    def add(self, job: str, task_id: UUID, priority: int) -> None:
        """Add a task; a new one goes to the end, a returning one to its old position."""
        if task_id not in self.order:
            self.order.append(task_id)
        self.waiting[task_id] = (job, priority)

    def queue(self, *jobs: str) -> list[UUID]:
        """Return the pending tasks of these jobs, the next one first."""
        mine = [task_id for task_id, (job, _) in self.waiting.items() if job in jobs]
        return sorted(mine, key=lambda task_id: (-self.waiting[task_id][1], self.order.index(task_id)))

    def positions(self) -> dict[UUID, int]:
        """Return all positions."""
        return {id_: rank for job in "AB" for rank, id_ in enumerate(self.queue(job), 1)}


class RandomActions:
    """Random actions on the queues of two jobs, in the code and in the model."""

    def __init__(self, timed: Replica, clock: ManualClock, seed: int) -> None:
        self.timed, self.clock, self.chance = timed, clock, random.Random(seed)
        self.model = Model()
        self.held: list[tuple[str, UUID, int]] = []
        self.later: dict[UUID, tuple[str, int]] = {}
        self.workers: dict[str, UUID | None] = {}

    async def begin(self) -> None:
        """Create a worker of both jobs, and one of each."""
        both = await self.timed.register("A")
        await self.timed.register("B", worker=both.worker_id)
        self.workers = {name: (await self.timed.register(name)).worker_id for name in "AB"}
        self.workers["AB"] = both.worker_id

    async def submit(self, delay: float | None = None) -> None:
        """Submit a task, for now or for later."""
        job, priority = self.chance.choice("AB"), self.chance.choice([0, 0, 0, 0, 1, -1, 7])
        name = f"@global:modifiers:{job}"
        submitted_task = await self.timed.submit(name, priority=priority, delay_seconds=delay)
        if delay is None:
            self.model.add(job, submitted_task.id, priority)
        else:
            self.model.order.append(submitted_task.id)
            self.later[submitted_task.id] = (job, priority)
        assert submitted_task.queue_position == self.model.positions().get(submitted_task.id)

    async def schedule(self) -> None:
        """Submit a task for later."""
        await self.submit(delay=50)

    async def claim(self) -> None:
        """Claim for a worker of one job or of both."""
        jobs = self.chance.choice(["A", "B", "AB"])
        claimed = await self.timed.claim(self.workers[jobs])
        wanted = next(iter(self.model.queue(*jobs)), None)
        assert (claimed and claimed.id) == wanted
        if claimed is not None:
            _, priority = self.model.waiting.pop(claimed.id)
            self.held.append((claimed.job_name[-1], claimed.id, priority))

    async def pass_time(self) -> None:
        """Make all scheduled tasks due."""
        self.clock.advance(50)
        assert await self.timed.enqueue_due() == len(self.later)
        for task_id, (job, priority) in self.later.items():
            self.model.add(job, task_id, priority)
        self.later.clear()

    async def release(self) -> None:
        """Release a task."""
        if self.held:
            job, task_id, priority = self.held.pop(self.chance.randrange(len(self.held)))
            back = await self.timed.act(rules_task_actions.release, task_id)
            self.model.add(job, task_id, priority)
            assert back.queue_position == self.model.positions()[task_id]

    async def cancel(self) -> None:
        """Cancel a task."""
        if self.model.waiting:
            gone = self.chance.choice(sorted(self.model.waiting))
            await self.timed.report(gone, TaskStatus.CANCELLED, by=SUBMITTER)
            del self.model.waiting[gone]


@pytest.mark.parametrize("seed", range(4))
async def test_positions_and_claims_match_a_model(timed: Replica, clock: ManualClock, seed: int) -> None:
    """For any mixture of submits, schedules, claims, releases and cancellations."""
    actions = RandomActions(timed, clock, seed)
    await actions.begin()
    steps = [actions.submit] * 4 + [actions.claim] * 2
    steps += [actions.schedule, actions.pass_time, actions.release, actions.cancel]
    for _ in range(90):
        await actions.chance.choice(steps)()
        found = {id_: position for id_, position in (await listed(timed)).items() if position is not None}
        assert found == actions.model.positions()
