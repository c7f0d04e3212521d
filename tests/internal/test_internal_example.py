"""The example of an internal job, at work: in a standalone server and in a host's."""

import importlib
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from taskiq import InMemoryBroker

from internal.crew import TOKEN, end_of, running, submit
from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings

NAME = "@internal:modifiers:Center"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the example as `zndraw-joblib serve` does in the repository."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("examples.internal_jobs")


async def centred(client: httpx.AsyncClient) -> object:
    """Call the job, and return its result."""
    return (await end_of(client, await submit(client, NAME, positions=[[0, 0], [2, 4]])))["result"]


async def test_it_runs_in_a_standalone_server(example: ModuleType, database_url: str) -> None:
    """By its name in the settings alone."""
    settings = ServerSettings(
        database_url=database_url, admin_token=TOKEN, internal_extensions=f"{example.__name__}:Center"
    )
    async with running(create_app(settings)) as client:
        assert await centred(client) == [[-1, -2], [1, 2]]


async def test_it_runs_in_a_hosts_app(example: ModuleType, engine: AsyncEngine) -> None:
    """By the host's broker."""
    app, sessions = FastAPI(), async_sessionmaker(engine)
    JobLib(session_maker=sessions, identity=lambda: Identity("host", is_superuser=True)).mount(app)
    example.offer(app, InMemoryBroker(), sessions)
    async with running(app) as client:
        assert await centred(client) == [[-1, -2], [1, 2]]
