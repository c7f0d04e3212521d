"""A mounted queue with clocks that the test advances, and a sweeper whose cycles the test runs."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from replica import ManualClock
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from sweeper.mounted_queue import EventRecorder, MonotonicClock, MountedQueue, identify
from zndraw_joblib import JobLib, JobLibSettings


@pytest.fixture
def sessions(engine: AsyncEngine) -> async_sessionmaker[AsyncSession]:
    """Return the host's session maker, on each database."""
    return async_sessionmaker(engine, expire_on_commit=False)


@pytest.fixture
async def queue(
    sessions: async_sessionmaker[AsyncSession], clock: ManualClock
) -> AsyncIterator[MountedQueue]:
    """Return a queue on each database, without background loops."""
    settings, monotonic, events = JobLibSettings(), MonotonicClock(), EventRecorder()
    joblib = JobLib(
        session_maker=sessions,
        identity=identify,
        settings=settings,
        tsio=events,
        clock=clock,
        monotonic=monotonic,
    )
    app = FastAPI()
    joblib.mount(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://queue", timeout=30) as client:
        yield MountedQueue(client, joblib, sessions, clock, monotonic, events, app)
