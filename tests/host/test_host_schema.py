"""A host without the queue's tables, or with those of another release, gets the cause and the remedy."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import ROTATE, V1, expect_problem
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.engine import open_engine, open_sessions
from zndraw_joblib.server.db.host_sessions import SessionDatabase
from zndraw_joblib.server.http import metrics


@pytest.fixture
def empty_url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Return the URL of a database without tables."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'host.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


@pytest.fixture
async def engine(empty_url: str) -> AsyncIterator[AsyncEngine]:
    """Return the engine of the host."""
    engine = open_engine(empty_url)
    yield engine
    await engine.dispose()


@pytest.fixture
async def client(engine: AsyncEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a host that never ran its lifespan."""
    app = FastAPI()
    identity = Identity("root", is_superuser=True)
    JobLib(session_maker=open_sessions(engine), identity=lambda: identity).mount(app)
    app.include_router(metrics.health_router)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        yield client


@on_both
async def test_without_tables_the_cause_is_named(client: httpx.AsyncClient) -> None:
    """Health and requests name the missing table, the lifespan and the command."""
    ready = await client.get("/health/ready")
    assert ready.status_code == 503
    cause = ready.json()["checks"]["work"]
    responses = [await client.get(f"{V1}/workers"), await client.put(f"{V1}/rooms/lab/jobs", json=ROTATE)]
    for detail in (cause, *(expect_problem(r, 503, "service-unavailable")["detail"] for r in responses)):
        assert "joblib_" in detail
        assert "lifespan" in detail
        assert "zndraw-joblib db upgrade" in detail


@on_both
async def test_a_missing_column_is_named(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """The tables of an earlier release have the same remedy."""
    await schema.upgrade(SessionDatabase(open_sessions(engine)))
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE joblib_worker RENAME COLUMN created_at TO other"))
    detail = expect_problem(await client.get(f"{V1}/workers"), 503, "service-unavailable")["detail"]
    assert "column" in detail
    assert "zndraw-joblib db upgrade" in detail
