"""Recovery over HTTP: what is refused and why, who may do what by hand, and what a claim is told."""

from typing import Any

import httpx
import pytest
from databases import on_sqlite
from fastapi import FastAPI, HTTPException
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report, submit

from zndraw_joblib import verify_readable_room

CLAIM = f"{V1}/tasks/claim"
pytestmark = on_sqlite


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("retry_on", ["bad luck"]),
        ("backoff", {"factor": 0.5}),
        ("backoff", {"jitter": 2}),
        ("max_crashes", -1),
        ("timeout_seconds", 0),
        ("start_timeout_seconds", -1),
        ("max_in_flight", 0),
        ("priority", 10_000),
        ("max_tasks", 0),
    ],
)
async def test_a_policy_that_cannot_be_is_refused(client: httpx.AsyncClient, field: str, value: Any) -> None:
    """422, with the name of the field; nothing is registered."""
    body = {"category": "modifiers", "name": "Rotate", field: value}
    told = expect_problem(await client.put(f"{V1}/rooms/lab/jobs", json=body), 422, "invalid-request")
    assert field in told["detail"]
    assert (await client.get(f"{V1}/workers")).json()["total"] == 0


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"delay_seconds": -1}, "delay_seconds"),
        ({"expires_in_seconds": 0}, "expires_in_seconds"),
        ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "not both"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"priority": "high"}, "priority"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused(
    client: httpx.AsyncClient, wish: dict[str, Any], named: str
) -> None:
    """422, with what is wrong; no task is made."""
    job = await register(client)
    answer = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=wish)
    assert named in expect_problem(answer, 422, "invalid-request")["detail"]
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 0


async def test_a_claim_that_gets_nothing_says_why_and_when_to_ask_again(client: httpx.AsyncClient) -> None:
    """A queue that is empty has no such time; a cap, a pause and a drain have."""
    job = await register(client, max_in_flight=1)
    body = {"worker_id": job["worker_id"]}
    empty = await client.post(CLAIM, json=body)
    assert "retry-after" not in empty.headers
    for _ in range(2):
        await submit(client, job)
    assert await claim(client, job["worker_id"]) is not None
    told = []
    for change in (None, f"rooms/lab/jobs/{job['full_name']}/pause", f"workers/{job['worker_id']}/drain"):
        if change:
            assert (await client.post(f"{V1}/{change}")).status_code == 200
        answer = await client.post(CLAIM, json=body)
        assert (answer.status_code, answer.json()["task"]) == (200, None)
        assert answer.headers["retry-after"] == "1"
        told.append(answer.json()["reason"])
    assert told == ["at_capacity", "paused", "draining"]


async def test_who_may_do_what_by_hand(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """A worker's owner releases, a submitter tries again, a superuser fails, pauses and sees the sweeper."""
    owner, submitter, stranger = [await as_user(name) for name in ("owner", "submitter", "stranger")]
    job = await register(owner, room="lab")
    task = await submit(submitter, job)
    url, paused = f"{V1}/tasks/{task['id']}", f"{V1}/rooms/lab/jobs/{job['full_name']}/pause"
    assert await claim(owner, job["worker_id"]) is not None
    for user, what in [
        (stranger, "release"),
        (submitter, "release"),
        (stranger, "retry"),
        (owner, "retry"),
        (owner, "fail"),
        (submitter, "fail"),
    ]:
        expect_problem(await user.post(f"{url}/{what}"), 403, "forbidden")
    for user in (owner, submitter):
        expect_problem(await user.post(paused), 403, "forbidden")
    expect_problem(await stranger.post(f"{V1}/workers/{job['worker_id']}/drain"), 403, "forbidden")
    assert (await owner.post(f"{url}/release", json={"attempt": 1})).json()["status"] == "pending"
    assert (await client.post(f"{url}/fail", json={"error": "no use"})).json()["error"] == "no use"
    assert (await submitter.post(f"{url}/retry")).json()["status"] == "pending"
    assert (await owner.post(f"{V1}/workers/{job['worker_id']}/drain")).json()["drain"] is True
    for what in ("release", "retry", "fail"):
        expect_problem(await client.post(f"{V1}/tasks/{UNKNOWN_ID}/{what}"), 404, "task-not-found")


async def test_the_fence_of_what_is_done_by_hand(client: httpx.AsyncClient) -> None:
    """A task that has moved on is not released: 409, with where it is now."""
    job = await register(client)
    task = await submit(client, job)
    await claim(client, job["worker_id"])
    answer = await client.post(f"{V1}/tasks/{task['id']}/release", json={"attempt": 2})
    told = expect_problem(answer, 409, "stale-report")
    assert (told["current_status"], told["current_attempt"]) == ("claimed", 1)
    assert (await get_task(client, task))["status"] == "claimed"
    expect_problem(await client.post(f"{V1}/tasks/{task['id']}/retry"), 409, "invalid-task-transition")


async def test_the_past_of_a_task_is_for_those_who_may_read_its_room(
    client: httpx.AsyncClient, app: FastAPI
) -> None:
    """Its history and its explanation ask the host, as the task itself does."""
    job = await register(client, max_attempts=2, retry_on=["error"])
    task = await submit(client, job)
    await claim(client, job["worker_id"])
    await report(client, task, "running")
    await report(client, task, "failed", error="no luck")
    url = f"{V1}/tasks/{task['id']}"
    told = (await client.get(f"{url}/history")).json()["transitions"]
    assert [step["status"] for step in told] == ["pending", "claimed", "running", "pending"]
    assert (told[-1]["reason"], told[-1]["error"]) == ("error", "no luck")
    assert "scheduled" in {why["code"] for why in (await client.get(f"{url}/explain")).json()["reasons"]}

    async def nobody(room_id: str) -> str:
        raise HTTPException(404, "no such room")

    app.dependency_overrides[verify_readable_room] = nobody
    for what in ("", "/history", "/explain"):
        assert (await client.get(url + what)).status_code == 404
