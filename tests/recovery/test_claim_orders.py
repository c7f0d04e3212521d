"""Claims of workers of one and of several jobs get the tasks that a simple model chooses, in each order."""

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from replica import ADMIN, OWNER, ManualClock, Replica
from seeds import add_tasks, task

from zndraw_joblib.server.db.tables import Task
from zndraw_joblib.server.queue import rules_claims, rules_task_actions
from zndraw_joblib.server.queue.rules_claims import Claim
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__

Place = tuple[int, int]
NO_LIMIT = 1_000_000


class Model:
    """The queues of the jobs A and B in dicts. `limits`: how many tasks a room or the job B may have held."""

    def __init__(self, is_fair: bool, limits: dict[str, int]) -> None:
        self.is_fair, self.limits = is_fair, limits
        # The job, the room and the place of each task.
        self.queued: dict[UUID, tuple[str, str, Place]] = {}
        self.held: dict[UUID, tuple[str, str, Place]] = {}
        self.turns = {"A": (0, ""), "B": (0, "")}

    def claim(self, claims: list[tuple[str, int]]) -> list[list[UUID]]:
        """Return the tasks of the claims of one transaction: the names of their jobs, and how many tasks."""
        served = {job for names, _ in claims for job in names if not self.is_full(job)}
        served &= {job for job, *_ in self.queued.values()}
        # A job that had no claims for a while catches up by at most one round.
        first = max((self.turns[job][0] for job in served), default=0) - 1
        turns = {job: (max(first, self.turns[job][0]), self.turns[job][1]) for job in served}
        return [[*self.choose(names, limit, turns)] for names, limit in claims]

    def is_full(self, job: str, room: str = "") -> bool:
        """Return whether no more tasks of the job may be held, in this room."""
        of_job = sum(job == held_job for held_job, *_ in self.held.values())
        of_room = sum(room == held_room for _, held_room, _ in self.held.values())
        return of_job >= self.limits.get(job, NO_LIMIT) or of_room >= self.limits.get("room", NO_LIMIT)

    def choose(self, jobs: str, limit: int, turns: dict[str, tuple[int, str]]) -> Iterator[UUID]:
        """Return and hold the first tasks of these jobs."""
        for _ in range(limit):
            keys: dict[UUID, Any] = {}
            for task_id, (job, room, place) in self.queued.items():
                if job not in jobs or self.is_full(job, room):
                    continue
                keys[task_id] = place
                if self.is_fair:
                    round_, last = turns[job]
                    keys[task_id] = ((round_ + (room <= last), room), place)
            if not keys:
                return
            task_id = min(keys, key=lambda task_id: keys[task_id])
            job, *_ = self.held[task_id] = self.queued.pop(task_id)
            if self.is_fair:
                self.turns[job] = turns[job] = keys[task_id][0]
            yield task_id


class RandomClaims:
    """Random claims and ends of tasks, in the code and in the model."""

    def __init__(self, timed: Replica, order: str, limits: dict[str, int]) -> None:
        self.timed, self.limits, self.chance = timed, limits, random.Random(f"{order} {limits}")
        self.model = Model(order == "fair", limits)
        self.workers: dict[str, UUID] = {}
        self.jobs: dict[str, UUID] = {}

    async def begin(self) -> None:
        """Create a worker of both jobs, and one of each."""
        for names in ("AB", "A", "B"):
            worker_id = None
            for name in names:
                job = await self.timed.register(name, worker=worker_id, max_in_flight=self.limits.get(name))
                worker_id, self.jobs[name] = job.worker_id, job.id
                await self.timed.submit(job, priority=1)
            assert worker_id is not None
            self.workers[names] = worker_id

    async def submit(self) -> None:
        """Add tasks of both jobs, of few or many rooms, most without a priority."""
        chance = self.chance
        rows = [
            task(
                self.jobs[chance.choice("AAAB")],
                room_id=f"room-{chance.randrange(chance.choice([3, 60])):02}",
                lane=chance.choice([0, 0, 0, -1, 1]),
            )
            for _ in range(60)
        ]
        await add_tasks(self.timed, rows)
        names = {job_id: name for name, job_id in self.jobs.items()}
        self.model.queued = {
            row.id: (names[row.job_id], row.room_id, (row.lane, row.seq))
            for row in await self.timed.rows(tasks, tasks.c.status == "pending")
        }

    async def claim(self, count: int) -> None:
        """Claim in one transaction for several workers."""
        chance = self.chance
        claims = [(chance.choice(["A", "B", "AB"]), chance.choice([1, 1, 2, 6])) for _ in range(count)]
        order = self.timed.runtime.order
        items = [Claim(OWNER, self.workers[names], 15, None, order, limit) for names, limit in claims]
        answers: list[Any] = await self.timed.runtime.write(lambda tx: rules_claims.claim(tx, items))
        assert [[task.id for task in answer.tasks] for answer in answers] == self.model.claim(claims)

    async def end(self) -> None:
        """Cancel or release most held tasks, and cancel a few others."""
        model = self.model
        for tasks_of_model, share in ((model.held, 0.67), (model.queued, 0.2)):
            for task_id in sorted(tasks_of_model, key=lambda task_id: tasks_of_model[task_id][2]):
                if self.chance.random() >= share:
                    continue
                if tasks_of_model is model.held and self.chance.random() < 0.3:
                    await self.timed.act(rules_task_actions.release, task_id)
                    model.queued[task_id] = model.held[task_id]
                else:
                    await self.timed.report(task_id, TaskStatus.CANCELLED, by=ADMIN)
                del tasks_of_model[task_id]


@pytest.mark.parametrize("limits", [{}, {"room": 1}, {"room": 3, "B": 4}], ids=str)
@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_claims_match_a_model(
    timed: Replica, clock: ManualClock, order: Any, limits: dict[str, int]
) -> None:
    """For claims of many, priorities, returning tasks, and rows of rooms that are empty by now."""
    timed.runtime.settings.claim_order = order
    timed.runtime.settings.room_max_in_flight = limits.get("room")
    actions = RandomClaims(timed, order, limits)
    await actions.begin()
    for step in range(40):
        clock.advance(1)
        if step % 10 == 0:
            await actions.submit()
        await actions.claim(step % 4 + 1)
        await actions.end()
