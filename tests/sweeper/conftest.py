"""A queue whose clock goes when it is told, with a sweeper that sweeps when it is told."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from sweeper.queue import Clock, Queue, Wall, Wrapper, somebody
from zndraw_joblib import JobLib, JobLibSettings
from zndraw_joblib.server.background import sweeper as sweeper_module


@pytest.fixture
def sessions(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Return the host's session maker, on either database."""
    return async_sessionmaker(engine, expire_on_commit=False)


@pytest.fixture
async def queue(sessions: async_sessionmaker[AsyncSession], settings: JobLibSettings) -> AsyncIterator[Queue]:
    """Return a queue on either database; its loop does not run, the test calls `sweep`."""
    clock, told = Clock(), Wrapper()
    settings = JobLibSettings()
    joblib = JobLib(session_maker=sessions, identity=somebody, settings=settings, tsio=told, clock=clock)
    app = FastAPI()
    joblib.mount(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://queue", timeout=30) as client:
        yield Queue(client, joblib, sessions, clock, told, Wall())


@pytest.fixture
def wall(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sweeper look at a clock that goes when it is told, and start it by that clock."""
    monkeypatch.setattr(sweeper_module, "time", queue.wall)
    queue.restart()
