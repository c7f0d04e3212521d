"""The test clock of a server: an advance moves all times of the queue, and answers when they are handled."""

import asyncio
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import V1, AsUser, claim, get_task, register, report, submit

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.settings import ServerSettings


@pytest.fixture
def app(settings: ServerSettings) -> FastAPI:
    """Return an app with a test clock."""
    return create_app(settings, clock=TestClock())


@pytest.fixture
def sweeper_is_slow(settings: ServerSettings) -> None:
    """Let the sweeper run by an advance only."""
    settings.sweeper_interval_seconds = 3600


async def _advance(client: httpx.AsyncClient, seconds: float, **fields: Any) -> dict[str, Any]:
    response = await client.post("/clock/advance", json={"seconds": seconds, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_only_administrators_move_the_clock(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Others are refused before the body is read; who is allowed gets errors that name the field."""
    user, nobody = await as_user("anna"), await as_user()
    for method, path in (("POST", "/clock/advance"), ("GET", "/clock")):
        assert (await user.request(method, path, content=b"{")).json()["type"] == "/v1/problems/forbidden"
        assert (await nobody.request(method, path)).status_code == 401
    for body in ({"seconds": -1}, {"seconds": 1e12}, {"second": 1}, {}, {"seconds": 1, "x": 1}):
        response = await client.post("/clock/advance", json=body)
        assert (response.status_code, "body." in response.json()["detail"]) == (422, True)
    before = (await client.get("/clock")).json()
    after = await _advance(client, 3600)
    assert (before["ahead_seconds"], after["ahead_seconds"]) == (0, 3600)
    assert after["now"] > before["now"]
    assert (await user.get(f"{V1}/me")).json()["clock_ahead_seconds"] == 3600
    ready = await client.get("/health/ready")
    assert (ready.status_code, "3600 s ahead" in ready.json()["checks"]["clock"]) == (200, True)


@on_both
@pytest.mark.usefixtures("sweeper_is_slow")
async def test_an_advance_answers_when_all_is_done(client: httpx.AsyncClient) -> None:
    """Retries, schedules, time limits and silent workers are handled; a claim that waits gets its task."""
    policy = {"max_attempts": 2, "retry_on": ["error"], "backoff": {"base_seconds": 1000, "factor": 1}}
    job = await register(client, room="lab", timeout_seconds=5000, **policy)
    task = await submit(client, job)
    first = await claim(client, job["worker_id"])
    assert first is not None
    await report(client, task, "running", attempt=first["attempt"])
    await report(client, task, "failed", attempt=first["attempt"], error="once")
    waiting = asyncio.create_task(claim(client, job["worker_id"], wait=20))
    await _advance(client, 900, keep_workers=True)
    await _advance(client, 101, keep_workers=True)
    async with asyncio.timeout(10):
        second = await waiting
    assert second is not None
    await report(client, task, "running", attempt=second["attempt"])
    await client.put(
        f"{V1}/rooms/lab/schedules/hourly", json={"job": job["full_name"], "every_seconds": 3600}
    )
    assert (await _advance(client, 3601, keep_workers=True))["cycle"]["failed"] == 0
    listed = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
    assert [entry.get("schedule") for entry in listed] == ["hourly", None]
    cycle = (await _advance(client, 1400, keep_workers=True))["cycle"]
    assert (cycle["expired"], cycle["failed"]) == (0, 1)
    assert (await get_task(client, task))["error_code"] == "run-timeout"
    cycle = (await _advance(client, 61))["cycle"]
    assert (cycle["expired"], cycle["held_back"]) == (1, False)
