"""The standalone app, clients of several users, and the events that it publishes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from databases import only_sqlite  # noqa: F401 - a fixture, found by its name
from fastapi import FastAPI
from rest import AsUser

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.queue.rules_tokens import digest
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission, Event


@pytest.fixture
def runtime(app: FastAPI) -> Runtime:
    """Return the runtime of the server behind `client`."""
    runtime: Runtime = app.state.joblib.runtime
    return runtime


@pytest.fixture
def events(app: FastAPI) -> list[Emission]:
    """Return the events that the server publishes after its commits, in order."""
    published: list[Emission] = []

    async def emit(event: Event, *, room: str) -> None:
        published.append(Emission(event, room))

    app.state.joblib.publisher.tsio = SimpleNamespace(emit=emit)
    return published


@pytest.fixture
async def as_user(
    client: httpx.AsyncClient, app: FastAPI, runtime: Runtime, transport: type[httpx.ASGITransport]
) -> AsyncIterator[AsUser]:
    """Return a function that creates a user and returns a client; without a name the client has no token."""
    async with AsyncExitStack() as stack:

        async def make(name: str | None = None, *, is_superuser: bool = False) -> httpx.AsyncClient:
            headers = {}
            if name is not None:
                token = f"token-of-{name}-for-the-tests"
                add = partial(
                    sql_operators.add_token, name=name, digest=digest(token), is_superuser=is_superuser
                )
                await runtime.write(add)
                headers = {"Authorization": f"Bearer {token}"}
            route = transport(app, raise_app_exceptions=False)
            user = httpx.AsyncClient(transport=route, base_url=client.base_url, headers=headers)
            return await stack.enter_async_context(user)

        yield make
