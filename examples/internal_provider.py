"""An internal provider: a host's app answers requests itself, in the processes of its broker.

    uvicorn examples.internal_provider:app
    curl -H "Authorization: Bearer ada" \
        "http://127.0.0.1:8000/v1/joblib/rooms/lab/providers/@internal:clocks:Time?zone=UTC"
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import httpx
from fastapi import FastAPI, Request
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from taskiq import AsyncBroker, InMemoryBroker

from zndraw_joblib import (
    Identity,
    JobLib,
    Provider,
    ProviderExecutionFailed,
    ensure_internal_providers,
    register_internal_providers,
)

UPLOADER = "internal-worker"


class Time(Provider):
    """The time in a zone."""

    category: ClassVar[str] = "clocks"
    zone: str

    def read(self, handler: Any) -> dict[str, str]:
        """Return the time."""
        return {"time": datetime.now(ZoneInfo(self.zone)).isoformat()}


class Executor:
    """Reads a provider in a process of the broker, and uploads the result or the error over REST."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def __call__(
        self, provider_cls: type[Provider], params_json: str, provider_id: str, request_id: str, token: str, /
    ) -> None:
        """Answer one request."""
        headers = {"Authorization": f"Bearer {token}", "X-Request-Hash": request_id}
        try:
            content = json.dumps(provider_cls.model_validate_json(params_json).read(None))
        except (ValueError, ZoneInfoNotFoundError) as error:
            # Readers get this problem with its status.
            headers["X-Result-Status"] = "error"
            content = ProviderExecutionFailed.create(str(error)).model_dump_json(exclude_none=True)
        url = f"/v1/joblib/providers/{provider_id}/results"
        (await self._client.post(url, content=content, headers=headers)).raise_for_status()


def identity(request: Request) -> Identity | None:
    """Return the user; here the token is the name. Check tokens in your app."""
    name = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return Identity(name, is_superuser=False) if name else None


async def worker_token() -> str:
    """Return a token with which the executor uploads. Let it expire in your app."""
    return UPLOADER


def create_app(database_url: str, broker: AsyncBroker, client: httpx.AsyncClient | None = None) -> FastAPI:
    """Return the app. With a broker over Redis, its worker processes register the providers too."""
    engine = create_async_engine(database_url)
    sessions = async_sessionmaker(engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await ensure_internal_providers([Time], sessions, user_id=UPLOADER)
        here = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app")
        async with client or here as connection:
            executor = Executor(connection)
            app.state.internal_provider_registry = register_internal_providers(broker, [Time], executor)
            await broker.startup()
            yield
            await broker.shutdown()
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)
    JobLib(session_maker=sessions, identity=identity, worker_token=worker_token).mount(app)
    return app


URL = os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///internal-provider.db")
app = create_app(URL, InMemoryBroker())
