"""A short run with a fault of most kinds."""

import asyncio
import random
from pathlib import Path

import pytest
from chaos.checker import check
from chaos.database import FileDatabase
from chaos.environment import open_environment
from chaos.faults import FaultInjector
from chaos.graphs import GraphLoad
from chaos.groups import GroupLoad, settings_for
from chaos.receiver import receiving
from chaos.report import format_table
from chaos.workload import Workload, run_workload

FAULTS = [
    "worker paused",
    "responses dropped",
    "worker SIGKILL",
    "server SIGKILL",
    "connections closed",
    "requests dropped",
]
SECONDS, TASKS, WORKERS = 8.0, 200, 5


@pytest.mark.slow
async def test_all_guarantees_hold(database_url: str, tmp_path: Path) -> None:
    """Workers are killed and paused, the server is killed, connections are closed: no rule is violated."""
    async with (
        receiving() as receiver,
        open_environment(FileDatabase(database_url), tmp_path, **settings_for(receiver)) as environment,
    ):
        groups, graphs = GroupLoad(environment, receiver), GraphLoad(environment)
        injector = FaultInjector(environment, random.Random(7))

        async def inject() -> None:
            for kind in FAULTS:
                await injector.inject(kind)
                await asyncio.sleep(SECONDS / len(FAULTS) / 2)

        workload = Workload(7, TASKS, WORKERS, SECONDS)
        record = await run_workload(environment, workload, injector, inject(), groups, graphs)
    print(format_table(record))
    assert not check(record)
    assert len(record.tasks) > TASKS / 2
    assert len(record.groups) > SECONDS / 2
    assert len(record.steps) > SECONDS
