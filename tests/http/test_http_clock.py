"""The test clock of a server: an advance moves all times of the queue, and answers when they are handled."""

import asyncio
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import V1, AsUser, claim, get_task, register, report, submit
from waiting import until

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
    await _advance(client, 10, keep_workers=True)
    await _advance(client, 991, keep_workers=True)
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


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_waits_follow_the_clock(client: httpx.AsyncClient, app: FastAPI) -> None:
    """An advance ends the requests that would wait for less than it; the others go on."""
    job = await register(client, room="lab")
    task = await submit(client, await register(client, name="Slow", room="lab"))
    path = f"{V1}/tasks/{task['id']}"
    seen = (await client.get(f"{path}/events")).json()["next"]
    short, long = {"Prefer": "wait=20"}, {"Prefer": "wait=30"}
    claiming = asyncio.create_task(claim(client, job["worker_id"], wait=20))
    ending = [
        asyncio.create_task(client.get(path, headers=short)),
        asyncio.create_task(client.get(f"{path}/events", params={"after": seen}, headers=short)),
    ]
    staying = asyncio.create_task(client.get(path, headers=long))
    joblib = app.state.joblib
    await until(lambda: len(joblib.runtime.waiters) == 3 and len(joblib.streams) == 1)
    async with asyncio.timeout(15):
        await _advance(client, 21, keep_workers=True)
        response, events = await asyncio.gather(*ending)
        assert (await claiming, response.json()["status"], events.json()["events"]) == (None, "pending", [])
        assert not staying.done()
        await _advance(client, 10, keep_workers=True)
        assert (await staying).json()["status"] == "pending"


async def test_tokens_end_by_the_clock(client: httpx.AsyncClient) -> None:
    """Those of users also where a server has just seen them; those of tasks unless the workers are kept."""
    job = await register(client, room="lab")
    task = await submit(client, job)
    body = {"worker_id": job["worker_id"], "tokens": True}
    token = (await client.post(f"{V1}/tasks/claim", json=body)).json()["task"]["token"]
    await report(client, task, "running", attempt=1)
    body = {"jobs": ["lab:*"], "rooms": ["lab"], "expires_in_seconds": 3600}
    users = (await client.post(f"{V1}/worker-tokens", json=body)).json()["token"]
    for headers in (_bearer(token), _bearer(users)):
        assert (await client.get(f"{V1}/me", headers=headers)).status_code == 200
    await _advance(client, 3601, keep_workers=True)
    assert (await client.get(f"{V1}/me", headers=_bearer(users))).status_code == 401
    assert (await client.get(f"{V1}/me", headers=_bearer(token))).status_code == 200
    await _advance(client, 3601)
    ended = await client.get(f"{V1}/me", headers=_bearer(token))
    assert (ended.status_code, "has expired" in ended.json()["detail"]) == (401, True)
