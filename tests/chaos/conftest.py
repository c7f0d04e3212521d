"""Small stages, on either database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chaos import stage
from chaos.jobs import Job
from chaos.stage import Stage
from small import LAUNCHER, Kept, OpenStage


@pytest.fixture
def open_stage(database_url: str, tmp_path: Path) -> OpenStage:
    """Return what runs a server with changes of the launcher's, and workers of one job."""

    @asynccontextmanager
    async def opened(changes: str, job: Job, workers: int, **settings: float) -> AsyncIterator[Stage]:
        async with stage.stage(Kept(database_url), tmp_path, (LAUNCHER, changes), **settings) as on:
            # One that waits for a second task lives as long as it waits, even if it stands still.
            on.pool.concurrency = 1
            for _ in range(workers):
                on.pool.add([job])
            await on.ready([job])
            yield on

    return opened


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return the file that lets tasks end, once it is there."""
    return tmp_path / "gate"
