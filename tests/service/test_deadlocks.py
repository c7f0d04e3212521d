"""Two replicas with limits of jobs and rooms, and workers and providers that come and go: no deadlock."""

import asyncio
import random
from typing import Any

import pytest
from databases import on_postgresql
from replica import OWNER, OpenReplica, Replica
from sqlalchemy.ext.asyncio import AsyncEngine

from service.test_mixed_load import Actor, deadlocks
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.wire.policy import Backoff, RetryOn
from zndraw_joblib.wire.providers import ProviderRegisterRequest

POLICY: dict[str, Any] = {
    "max_in_flight": 3,
    "max_attempts": 3,
    "retry_on": (RetryOn.WORKER_LOST, RetryOn.ERROR),
    "backoff": Backoff(base_seconds=0),
}


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
    async with asyncio.timeout(120):
        await asyncio.gather(*[actor.run() for actor in actors])
    assert await deadlocks(engine) == before
