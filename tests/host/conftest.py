"""Host applications with the queue mounted into them."""

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from databases import only_sqlite  # noqa: F401 - a fixture, found by its name
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

Client = Awaitable[httpx.AsyncClient]
Start = Callable[..., Client]
EXAMPLE = Path(__file__).parents[2] / "examples" / "host_app.py"


@pytest.fixture(scope="session")
def host_app() -> ModuleType:
    """Return the example, loaded from its file."""
    spec = importlib.util.spec_from_file_location("host_app", EXAMPLE)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def async_url(database_url: str) -> str:
    """Return the database's URL as a host writes it, with the driver in it."""
    kind, rest = database_url.split(":", 1)
    return f"{ {'sqlite': 'sqlite+aiosqlite', 'postgresql': 'postgresql+asyncpg'}[kind] }:{rest}"


@pytest.fixture
async def sessions(async_url: str) -> AsyncIterator[Any]:
    """Return the session maker of a host."""
    engine = create_async_engine(async_url)
    yield async_sessionmaker(engine)
    await engine.dispose()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a function that runs the lifespan of a host and returns a client with the given headers."""
    async with AsyncExitStack() as stack:
        started: set[int] = set()

        async def begin(app: FastAPI, **headers: str | bytes) -> httpx.AsyncClient:
            if id(app) not in started:
                started.add(id(app))
                await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            client = httpx.AsyncClient(transport=transport, base_url="http://host", headers=headers)
            return await stack.enter_async_context(client)

        yield begin
