"""Small environments on both databases."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chaos.database import FileDatabase
from chaos.environment import Environment, open_environment
from chaos.jobs import Job
from steps import OpenEnvironment

SERVER = str(Path(__file__).with_name("server_without_guards.py"))


@pytest.fixture
def start_environment(database_url: str, tmp_path: Path) -> OpenEnvironment:
    """Return a function that starts a server without the named guards, and workers of one job."""

    @asynccontextmanager
    async def start(removed: str, job: Job, workers: int, **settings: float) -> AsyncIterator[Environment]:
        database = FileDatabase(database_url)
        async with open_environment(database, tmp_path, (SERVER, removed), **settings) as environment:
            # A worker with a second slot waits for a task, and an open claim counts as a heartbeat.
            environment.workers.concurrency = 1
            for _ in range(workers):
                environment.workers.add([job])
            await environment.wait_for_jobs([job])
            yield environment

    return start


@pytest.fixture
def release_file(tmp_path: Path) -> Path:
    """Return the file whose existence ends the tasks."""
    return tmp_path / "release"
