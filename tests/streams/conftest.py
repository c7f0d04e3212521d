"""Servers with event streams, in this process and in others."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from servers import ServerProcess

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server in a process of its own; return a client."""
    with ServerProcess(database_url) as process:
        async with process.client() as client:
            yield client


@asynccontextmanager
async def serving(app: FastAPI, token: str, http: str = "httptools") -> AsyncIterator[httpx.AsyncClient]:
    """Serve an app on a real port in this process; return a client. `app.state.server` is uvicorn's."""
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", http=http, timeout_graceful_shutdown=5)  # type: ignore[arg-type]
    )
    app.state.server = server
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve([listener]))
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            await client.get("/health/live")
            yield client
        app.state.joblib.begin_stop()
        server.should_exit = True
        await running


@pytest.fixture
async def local(settings: ServerSettings) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """Serve in this process; return the app and a client."""
    assert settings.admin_token is not None
    app = create_app(settings)
    async with serving(app, settings.admin_token.get_secret_value()) as client:
        yield app, client
