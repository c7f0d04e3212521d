"""A short run with a fault of most kinds: nothing is lost, nothing is done twice."""

import asyncio
import random
from pathlib import Path

from chaos.checker import check
from chaos.faults import Injector
from chaos.play import Load, play
from chaos.report import table
from chaos.stage import stage
from small import Kept

FAULTS = [
    "worker stopped",
    "answers lost",
    "worker kill -9",
    "server kill -9",
    "connections cut",
    "requests lost",
]
SECONDS, TASKS, WORKERS = 8.0, 200, 5


async def test_a_short_run_holds_all_promises(database_url: str, tmp_path: Path) -> None:
    """Workers are killed and stopped, the server is killed, connections are cut."""
    async with stage(Kept(database_url), tmp_path) as on:
        injector = Injector(on, random.Random(7))

        async def inject() -> None:
            for kind in FAULTS:
                await injector.inject(kind)
                await asyncio.sleep(SECONDS / len(FAULTS) / 2)

        evidence = await play(on, Load(7, TASKS, WORKERS, SECONDS), injector, inject())
    print(table(evidence))
    assert not check(evidence)
    assert len(evidence.tasks) > TASKS / 2
