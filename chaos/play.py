"""One run: workers, tasks that stream in, faults, then quiet."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, NamedTuple

from chaos import jobs
from chaos.evidence import Evidence
from chaos.faults import Injector
from chaos.load import plan, submit_all
from chaos.stage import Stage

_QUIET_SECONDS = 45.0


class Load(NamedTuple):
    """What is to be done, by how many workers; the tasks come within `seconds`."""

    seed: int
    tasks: int
    workers: int
    seconds: float

    @property
    def longest(self) -> float:
        """The seconds that a task may take, so that workers have something to do half of the time."""
        return self.workers * self.seconds / self.tasks


async def play(on: Stage, load: Load, injector: Injector, injecting: Coroutine[Any, Any, None]) -> Evidence:
    """Let tasks and faults come, wait until all has ended, and return the evidence."""
    planned = plan(random.Random(load.seed), load.tasks)
    for place in range(load.workers):
        # The job that is done in a line has a worker of its own.
        on.pool.add([job for job in jobs.ALL if (job == jobs.LINE) != bool(place)])
    await on.ready(jobs.ALL)
    async with asyncio.TaskGroup() as group:
        group.create_task(submit_all(on.client, planned, load.seconds, load.longest))
        group.create_task(injecting)
    await injector.finish()
    await on.all_end(planned, _QUIET_SECONDS)
    evidence = await on.evidence(planned)
    await asyncio.to_thread(on.pool.stop)
    return evidence
