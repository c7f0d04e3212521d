"""Random requests to two replicas at once cause no unexpected error, no deadlock and no broken invariant."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from databases import two_kinds
from replica import ADMIN, OWNER, STRANGER, SUBMITTER, InternalExecutor, OpenReplica, Replica, internal
from seeds import LONG_AGO
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db.tables import Task, Worker
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue import rules_tasks
from zndraw_joblib.wire.events import TaskStatusEvent
from zndraw_joblib.wire.messages import JobResponse, TaskResponse
from zndraw_joblib.wire.names import INTERNAL
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import HELD, TERMINAL, TaskStatus

ACTORS = 6
STEPS = 45
PEOPLE = [OWNER, STRANGER, SUBMITTER, ADMIN]
workers = Worker.__table__


class Actor:
    """Sends random requests in sequence, about rows that all actors know."""

    def __init__(self, replica: Replica, chance: random.Random, known: dict[str, list[Any]]) -> None:
        self.replica = replica
        self.chance = chance
        self.known = known
        self.answers: Counter[str] = Counter()
        self.sweeper = Sweeper(replica.runtime.write, replica.runtime.settings)
        self.sweeper.absence.since = float("-inf")  # no worker has a grace period
        self.acts: dict[Callable[[], Awaitable[Any]], int] = {
            self.register: 4,
            self.submit: 10,
            self.claim: 12,
            self.report: 14,
            self.beat: 4,
            self.leave: 2,
            self.unlink_job: 2,
            self.fall_silent: 2,
            self.sweeper.cycle: 3,
            self.read: 3,
        }

    async def run(self) -> None:
        """Send requests; a problem is a valid answer, any other error ends the test."""
        acts, weights = list(self.acts), list(self.acts.values())
        for _ in range(STEPS):
            [act] = self.chance.choices(acts, weights)
            try:
                await act()
                self.answers[act.__name__] += 1
            except ProblemException as problem:
                if problem.status >= 500:
                    raise
                self.answers[type(problem).__name__] += 1

    def any_of(self, kind: str) -> Any:
        """Return a known item, mostly a recent one."""
        return self.chance.choice(self.known[kind][-12:])

    async def register(self) -> None:
        """Register one of a few jobs, with a new or a known worker."""
        by = self.chance.choice([OWNER, STRANGER])
        worker = self.any_of("jobs").worker_id if self.chance.random() < 0.5 else None
        name, room = self.chance.choice("ABC"), self.chance.choice(["@global", "lab"])
        self.known["jobs"].append(await self.replica.register(name, room, by=by, worker=worker))

    async def submit(self) -> None:
        """Submit a task, sometimes an internal one."""
        job = str(internal()) if self.chance.random() < 0.1 else self.any_of("jobs").full_name
        self.known["tasks"].append(await self.replica.submit(job, by=self.chance.choice(PEOPLE)))

    async def claim(self) -> None:
        """Claim for a worker, mostly by its owner."""
        wait = self.chance.choice([0, 0.02])
        claimed = await self.replica.claim(
            self.any_of("jobs").worker_id, by=self.chance.choice([OWNER, OWNER, STRANGER]), wait=wait
        )
        if claimed is not None:
            self.known["tasks"].append(claimed)

    async def report(self) -> None:
        """Report any status of a task, with or without a token, by any user."""
        one: TaskResponse = self.any_of("tasks")
        fields = {"attempt": one.attempt, "worker_id": one.worker_id} if self.chance.random() < 0.5 else {}
        status = self.chance.choice([*TaskStatus, TaskStatus.RUNNING, TaskStatus.COMPLETED])
        by = self.chance.choice([OWNER, OWNER, STRANGER, SUBMITTER, ADMIN])
        self.known["tasks"].append(await self.replica.report(one.id, status, by=by, **fields))

    async def beat(self) -> None:
        """Send a heartbeat for a worker."""
        await self.replica.heartbeat(self.any_of("jobs").worker_id, by=self.chance.choice([OWNER, STRANGER]))

    async def leave(self) -> None:
        """Remove a worker."""
        await self.replica.leave(self.any_of("jobs").worker_id, by=self.chance.choice(PEOPLE))

    async def unlink_job(self) -> None:
        """Remove a job from a worker."""
        job: JobResponse = self.any_of("jobs")
        await self.replica.unlink_job(job.worker_id, job, by=self.chance.choice(PEOPLE))

    async def fall_silent(self) -> None:
        """Set the last heartbeat of a worker to long ago, or to the future."""
        worker: UUID = self.any_of("jobs").worker_id
        beat = LONG_AGO.replace(year=self.chance.choice([2020, 2099]))
        await self.replica.execute(update(workers).where(workers.c.id == worker).values(last_heartbeat=beat))

    async def read(self) -> None:
        """Read a task and a page."""
        await self.replica.get(self.any_of("tasks").id)
        page = partial(rules_tasks.page, room_id="lab", status=None, part=Page(20, 0))
        await self.replica.runtime.database.read(page)


async def run_together(actors: Sequence[Actor]) -> None:
    """Run actors at the same time. After an error in one, none of the others sends another request."""
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for actor in actors:
            group.create_task(actor.run())


async def deadlocks(engine: AsyncEngine) -> int:
    """Return the number of deadlocks that PostgreSQL resolved in this database."""
    async with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            return 0
        await connection.execute(text("SELECT pg_stat_force_next_flush()"))
        counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int((await connection.execute(text(counted))).scalar_one())


@two_kinds
@pytest.mark.parametrize("seed", [1])
async def test_two_replicas_under_mixed_load(
    open_replica: OpenReplica, engine: AsyncEngine, seed: int
) -> None:
    """Every response is one that the contract defines, and the end of each task is published once."""
    replicas = [open_replica(), open_replica()]
    await replicas[0].register("Render", INTERNAL, by=ADMIN)
    for replica in replicas:
        replica.registry = InternalRegistry({str(internal()): InternalExecutor()})
    known: dict[str, list[Any]] = {"jobs": [await replicas[0].register(name) for name in "AB"]}
    known["tasks"] = [await replicas[0].submit(job) for job in known["jobs"]]
    before = await deadlocks(engine)
    actors = [
        Actor(replica, random.Random(f"{seed} {number} {index}"), known)
        for index, replica in enumerate(replicas)
        for number in range(ACTORS)
    ]
    await run_together(actors)
    answers = sum((actor.answers for actor in actors), Counter())
    assert {"register", "submit", "claim", "report", "leave", "cycle"} <= set(answers), answers
    while not any(actor.sweeper.actions["expire-worker"] for actor in actors):
        known["jobs"].append(await replicas[0].register())
        await actors[0].fall_silent()
        await actors[0].sweeper.cycle()
    events = [event for replica in replicas for event, _ in replica.events]
    published = Counter((event.id, event.status) for event in events if isinstance(event, TaskStatusEvent))
    for row in await replicas[0].rows(Task.__table__):
        endings = {status: published[row.id, status] for status in TERMINAL if published[row.id, status]}
        assert endings == ({TaskStatus(row.status): 1} if row.status in TERMINAL else {})
        assert published[row.id, TaskStatus.CLAIMED] == row.attempt
        assert row.status not in HELD or row.completed_at is None
    assert await deadlocks(engine) == before
