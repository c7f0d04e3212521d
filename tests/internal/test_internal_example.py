"""The example of an internal job runs in a standalone server and in a host's app."""

import importlib
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from fastapi import FastAPI
from rest import V1, expect_problem
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from taskiq import InMemoryBroker

from internal.processes import TOKEN, running, submit, wait_for_end
from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

NAME = "@internal:modifiers:Center"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the example as `zndraw-joblib serve` does in the repository."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("examples.internal_jobs")


async def centred(client: httpx.AsyncClient) -> object:
    """Submit a task of the job; return its result."""
    return (await wait_for_end(client, await submit(client, NAME, positions=[[0, 0], [2, 4]])))["result"]


async def test_the_example_runs_in_a_standalone_server(example: ModuleType, database_url: str) -> None:
    """The setting `internal_extensions` names the job; nothing else is needed."""
    settings = ServerSettings(
        database_url=database_url, admin_token=TOKEN, internal_extensions=f"{example.__name__}:Center"
    )
    async with running(create_app(settings)) as client:
        assert await centred(client) == [[-1, -2], [1, 2]]


async def test_the_example_runs_in_a_hosts_app(example: ModuleType, engine: AsyncEngine) -> None:
    """The host passes its own broker."""
    app, sessions = FastAPI(), async_sessionmaker(engine)
    JobLib(session_maker=sessions, identity=lambda: Identity("host", is_superuser=True)).mount(app)
    example.offer(app, InMemoryBroker(), sessions)
    async with running(app) as client:
        assert await centred(client) == [[-1, -2], [1, 2]]


async def test_the_example_of_a_provider_answers(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a result, or with the problem that its executor uploads."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    example = importlib.import_module("examples.internal_provider")
    kind, _, rest = database_url.partition("://")
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}[kind]
    async with running(example.create_app(f"{driver}://{rest}", InMemoryBroker())) as client:
        url = f"{V1}/rooms/lab/providers/@internal:clocks:Time"
        found = await client.get(url, params={"zone": "UTC"}, headers={"Prefer": "wait=30"})
        assert found.json()["time"].endswith("+00:00")
        for params in ({"zone": "Nowhere/Here"}, {}):
            response = await client.get(url, params=params, headers={"Prefer": "wait=30"})
            expect_problem(response, 400, "provider-execution-failed")
