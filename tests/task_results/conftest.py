"""A server with each store of task results, on both databases."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
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
    settings.task_result_bucket = "s3://results"
    settings.task_result_directory = tmp_path / "results"
    settings.task_result_backend = backend  # type: ignore[assignment]
    settings.max_task_result_bytes = 4 * 1024 * 1024
    return settings


@pytest.fixture
def app(store_settings: ServerSettings) -> FastAPI:
    """Return a server with the store. `client` runs it."""
    return create_app(store_settings)


@pytest.fixture
def joblib(app: FastAPI) -> JobLib:
    """Return the queue behind `client`."""
    joblib: JobLib = app.state.joblib
    return joblib


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
