"""A server with each store of task results, on both databases."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest import claim, register, report, submit
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.process.settings import ServerSettings


@pytest.fixture
def store_settings(
    request: pytest.FixtureRequest, settings: ServerSettings, backend: str, tmp_path: Path
) -> ServerSettings:
    """Return the settings of a server with the store."""
    if backend == "redis":
        settings.redis_url = request.getfixturevalue("valkey_url")
        settings.redis_prefix = f"results-{tmp_path.name}"
    settings.task_result_directory = tmp_path / "results"
    settings.task_result_backend = backend  # type: ignore[assignment]
    settings.max_task_result_bytes = 4 * 1024 * 1024
    return settings


@pytest.fixture
async def joblib(client: httpx.AsyncClient) -> JobLib:
    """Return the queue behind `client`."""
    found: JobLib = client._transport.app.state.joblib  # type: ignore[attr-defined]
    return found


@pytest.fixture
async def client(store_settings: ServerSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Return a superuser's client of a server with the store."""
    app = create_app(store_settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    token = store_settings.admin_token.get_secret_value() if store_settings.admin_token else ""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client,
    ):
        yield client


@pytest.fixture
async def held(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return a running task."""
    job = await register(client)
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    assert task is not None
    assert (await report(client, task, "running", attempt=1)).status_code == 200
    return task


@pytest.fixture
def rows(engine: AsyncEngine) -> AsyncEngine:
    """Return an engine for direct access to the tables."""
    return engine
