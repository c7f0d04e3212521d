"""Each server reports itself after a cycle of its sweeper, so that every server can list all of them."""

from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI
from replica import ManualClock
from rest import V1
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from sweeper.mounted_queue import MonotonicClock, MountedQueue, identify
from zndraw_joblib import JobLib, JobLibSettings
from zndraw_joblib.server.db.tables import Server, SweepCycle

Sessions = async_sessionmaker[AsyncSession]


def other_server(sessions: Sessions, clock: ManualClock) -> tuple[FastAPI, JobLib]:
    """Return another server on the same database."""
    joblib = JobLib(
        session_maker=sessions,
        identity=identify,
        settings=JobLibSettings(),
        clock=clock,
        monotonic=MonotonicClock(),
    )
    app = FastAPI()
    joblib.mount(app)
    return app, joblib


async def test_every_server_lists_all_servers_and_their_cycles(
    queue: MountedQueue, sessions: Sessions, clock: ManualClock
) -> None:
    """Quiet cycles too. A server that stops is removed; one that is killed is silent, and removed later."""
    app, other = other_server(sessions, clock)
    async with app.router.lifespan_context(app):
        await queue.sweep()
        await other.sweeper.cycle()
        await queue.sweep()
        state = await queue.request("GET", "/admin/sweeper")
        assert len({server["id"] for server in state["servers"]}) == 2
        assert [server["is_silent"] for server in state["servers"]] == [False, False]
        first, second, third = [cycle["server_id"] for cycle in state["history"]]
        assert first == third != second
        assert state["history"][0]["mode"] == state["servers"][0]["sweeper_mode"] == "enforce"
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://other") as client:
            found = (await client.get(f"{V1}/admin/sweeper")).json()
        assert (found["servers"], found["history"]) == (state["servers"], state["history"])
    [own] = (await queue.request("GET", "/admin/sweeper"))["servers"]
    assert own["id"] == first
    clock.advance(92)
    [own] = (await queue.request("GET", "/admin/sweeper"))["servers"]
    assert own["is_silent"]
    clock.advance(3600)
    await other.sweeper.cycle()
    [left] = (await queue.request("GET", "/admin/sweeper"))["servers"]
    assert (left["id"], left["is_silent"]) == (second, False)


async def test_old_cycles_are_deleted(queue: MountedQueue, sessions: Sessions, clock: ManualClock) -> None:
    """They are kept for a week, servers for an hour."""
    _, other = other_server(sessions, clock)
    await other.sweeper.cycle()
    clock.advance(timedelta(days=6).total_seconds())
    await queue.sweep()
    clock.advance(timedelta(days=2).total_seconds())
    for _ in range(4):
        await queue.sweep()
    async with sessions() as session:
        assert len((await session.execute(select(SweepCycle.n))).all()) == 5
        assert len((await session.execute(select(Server.id))).all()) == 1


async def test_a_report_that_fails_fails_no_cycle(
    queue: MountedQueue, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the next cycle reports again."""
    job = await queue.register()
    await queue.submit_and_claim(job)
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE joblib_server RENAME TO joblib_server_away"))
    cycle = await queue.sweep()
    assert cycle.errors == 0
    assert "did not report its cycle" in caplog.text
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE joblib_server_away RENAME TO joblib_server"))
    await queue.sweep()
    assert len((await queue.request("GET", "/admin/sweeper"))["history"]) == 1
