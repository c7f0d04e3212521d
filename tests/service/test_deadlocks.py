"""Two replicas with limits of jobs and rooms, and workers and providers that come and go: no deadlock."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from databases import on_postgresql
from replica import OWNER, OpenReplica, Replica
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from waiting import until

from service.test_mixed_load import Actor, deadlocks, run_together
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import rules_providers, sql_worker_tokens
from zndraw_joblib.wire.policy import Backoff, RetryOn
from zndraw_joblib.wire.providers import ProviderRegisterRequest
from zndraw_joblib.wire.statuses import TaskStatus

POLICY: dict[str, Any] = {
    "max_in_flight": 3,
    "max_attempts": 3,
    "retry_on": (RetryOn.WORKER_LOST, RetryOn.ERROR),
    "backoff": Backoff(base_seconds=0),
}


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings with which requests wait for locks that a machine without time holds for long."""
    return ServerSettings(database_url=database_url, database_lock_timeout_seconds=20)


class LimitedActor(Actor):
    """Sends the requests of the mixed load, for jobs with limits, in several rooms, and for providers."""

    def __init__(self, replica: Replica, chance: random.Random, known: dict[str, list[Any]]) -> None:
        super().__init__(replica, chance, known)
        self.acts |= {self.provide: 6, self.withdraw: 4, self.claim: 20}

    async def register(self) -> None:
        """Register one of a few jobs with a limit, with a new or a known worker."""
        worker = self.any_of("jobs").worker_id if self.chance.random() < 0.7 else None
        name = self.chance.choice("ABC")
        self.known["jobs"].append(await self.replica.register(name, by=OWNER, worker=worker, **POLICY))

    async def submit(self) -> None:
        """Submit a task from one of a few rooms."""
        job, room = self.any_of("jobs").full_name, self.chance.choice("xyz")
        self.known["tasks"].append(await self.replica.submit(job, room=room))

    async def provide(self) -> None:
        """Register a worker for one of a few providers."""
        worker = self.any_of("jobs").worker_id
        request = ProviderRegisterRequest(category="files", name=self.chance.choice("PQR"), worker_id=worker)
        item = rules_providers.ProviderToRegister(OWNER, "lab", request)
        provider, _ = await self.replica.runtime.write(rules_providers.register, item=item)
        self.known["providers"].append(provider)

    async def withdraw(self) -> None:
        """Remove a provider, or the registration of one worker."""
        provider = self.any_of("providers")
        worker = self.any_of("jobs").worker_id if self.chance.random() < 0.5 else None
        await self.replica.runtime.write(
            rules_providers.remove, caller=OWNER, provider_id=provider.id, worker_id=worker
        )


@on_postgresql
@pytest.mark.parametrize("order", ["fifo", "fair"])
async def test_two_replicas_with_every_limit(
    open_replica: OpenReplica, engine: AsyncEngine, order: Any
) -> None:
    """PostgreSQL counts the deadlocks that it resolved: there are none."""
    replicas = [open_replica(), open_replica()]
    for replica in replicas:
        replica.runtime.settings.claim_order = order
        replica.runtime.settings.room_max_in_flight = 2
    first = await replicas[0].register("A", **POLICY)
    jobs = [first] + [await replicas[0].register(n, worker=first.worker_id, **POLICY) for n in "BC"]
    known: dict[str, list[Any]] = {"jobs": jobs, "providers": []}
    known["tasks"] = [await replicas[0].submit(job, room=room) for job in jobs for room in "xyz"]
    request = ProviderRegisterRequest(category="files", name="P", worker_id=first.worker_id)
    item = rules_providers.ProviderToRegister(OWNER, "lab", request)
    known["providers"].append((await replicas[0].runtime.write(rules_providers.register, item=item))[0])
    before = await deadlocks(engine)
    actors = [
        LimitedActor(replica, random.Random(f"{order} {number} {index}"), known)
        for index, replica in enumerate(replicas)
        for number in range(6)
    ]
    await run_together(actors)
    assert await deadlocks(engine) == before


async def take_in_turn(engine: AsyncEngine) -> None:
    """Lock the rows of all jobs for a moment, again and again."""
    while True:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT id FROM joblib_job ORDER BY id FOR NO KEY UPDATE"))
            await asyncio.sleep(0.3)


@asynccontextmanager
async def jobs_taken_in_turn(engine: AsyncEngine) -> AsyncIterator[None]:
    """Let five transactions take the rows of all jobs in turn."""
    others = [asyncio.create_task(take_in_turn(engine)) for _ in range(5)]
    try:
        async with engine.connect() as connection:
            await until(lambda: waits(connection))
        yield
    finally:
        for other in others:
            other.cancel()
        await asyncio.wait(others)


@pytest.mark.slow
@on_postgresql
async def test_claims_get_a_row_that_others_take_in_turn(
    open_replica: OpenReplica, engine: AsyncEngine
) -> None:
    """Claims of several workers wait for the row of a job with a limit; PostgreSQL serves it in order.

    The others need more than a second for a round. A claim that gave up each time before would starve.
    """
    replica = open_replica()
    jobs = [await replica.register(max_in_flight=100) for _ in range(6)]
    for job in jobs:
        await replica.submit(job)
    async with jobs_taken_in_turn(engine):
        claimed = await asyncio.gather(*[replica.claim(job.worker_id) for job in jobs])
    assert [task and task.status for task in claimed] == [TaskStatus.CLAIMED] * len(jobs)


# Of tokens, in an order that is not that of their names.
NAMES = ("jit-z", "jit-a")
_LOCK = "SELECT name FROM joblib_token WHERE name = :name FOR NO KEY UPDATE NOWAIT"
_WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def waits(connection: AsyncConnection) -> bool:
    """Return whether a transaction waits for a lock."""
    number = (await connection.execute(text(_WAITING))).scalar_one()
    await connection.rollback()  # a transaction sees the same activity until its end
    return bool(number)


@on_postgresql
async def test_all_lock_tokens_in_the_order_of_their_names(
    open_replica: OpenReplica, engine: AsyncEngine, subtests: pytest.Subtests
) -> None:
    """What waits for the first token holds none of the others: claims, and records of what is used."""
    runtime = open_replica().runtime
    for name in NAMES:
        await runtime.write(partial(sql_operators.add_token, name=name, digest=name, is_superuser=False))
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE joblib_token SET max_tasks = 5, claims = 0"))
    for work in (
        partial(sql_operators.record_use, digests=NAMES),
        partial(sql_worker_tokens.lock_free, names=NAMES),
    ):
        with subtests.test(work=work.func.__name__):
            async with asyncio.timeout(30), engine.connect() as first, engine.connect() as second:
                await first.execute(text(_LOCK), {"name": min(NAMES)})
                waiting = asyncio.create_task(runtime.write(work))
                await until(lambda connection=second: waits(connection))
                await second.execute(text(_LOCK), {"name": max(NAMES)})
                await second.rollback()
                await first.rollback()
                await waiting
