"""The standalone app as several people see it, and what it tells."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sweeper.shelf import Shelf
from wire import As

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.server.http.tokens import digest
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.engine import open_database


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate one SQLite file; the tests copy it, which is much quicker."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"

    async def migrate() -> None:
        database = open_database(f"sqlite:///{path}")
        await schema.upgrade(database)
        await database.close()

    asyncio.run(migrate())
    return path


@pytest.fixture
def sqlite_url(migrated_file: Path, tmp_path: Path) -> str:
    """Return the URL of a migrated SQLite file of the test's own."""
    return f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'joblib.db')}"


@pytest.fixture
def app(client: httpx.AsyncClient) -> FastAPI:
    """Return the app behind `client`."""
    found: FastAPI = client._transport.app
    return found


@pytest.fixture
def runtime(app: FastAPI) -> Runtime:
    """Return what the server behind `client` is made of."""
    found: Runtime = app.state.joblib
    return found


@pytest.fixture
def events(runtime: Runtime) -> list[Emission]:
    """Return what the server tells after its commits, in order."""
    told: list[Emission] = []

    async def publish(emissions: list[Emission]) -> None:
        told.extend(emissions)

    runtime.publish = publish
    return told


@pytest.fixture
async def as_user(client: httpx.AsyncClient, app: FastAPI, runtime: Runtime) -> AsyncIterator[As]:
    """Return a function that makes a user and gives their client; without a name, nobody's."""
    async with AsyncExitStack() as stack:

        async def make(name: str | None = None, *, is_superuser: bool = False) -> httpx.AsyncClient:
            headers = {}
            if name is not None:
                token = f"token-of-{name}-for-the-tests"
                add = partial(tokens.add, name=name, digest=digest(token), is_superuser=is_superuser)
                await runtime.write(add)
                headers = {"Authorization": f"Bearer {token}"}
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            user = httpx.AsyncClient(transport=transport, base_url=client.base_url, headers=headers)
            return await stack.enter_async_context(user)

        yield make


@pytest.fixture(scope="session")
def shelf(postgres: str) -> Shelf:
    """Keep PostgreSQL databases for the tests of this folder."""
    return Shelf(postgres)


@pytest.fixture
def postgres_url(shelf: Shelf) -> Iterator[str]:
    """Return the URL of an empty PostgreSQL database."""
    yield shelf.take()
    shelf.give_back()
