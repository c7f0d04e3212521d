"""Policies, actions and reasons over HTTP."""

import asyncio

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, HTTPException
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report, submit
from waiting import until

from zndraw_joblib import verify_readable_room
from zndraw_joblib.server.runtime.runtime import Runtime

CLAIM = f"{V1}/tasks/claim"


async def test_an_invalid_policy_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """422 names the field; no job is registered."""
    for field, value in [
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
    ]:
        with subtests.test(field=field, value=value):
            body = {"category": "modifiers", "name": "Rotate", field: value}
            problem = expect_problem(
                await client.put(f"{V1}/rooms/lab/jobs", json=body), 422, "invalid-request"
            )
            assert field in problem["detail"]
            assert (await client.get(f"{V1}/workers")).json()["total"] == 0


async def test_an_invalid_schedule_or_priority_is_refused(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """422 names the error; no task is submitted."""
    for wish, named in [
        ({"delay_seconds": -1}, "delay_seconds"),
        ({"expires_in_seconds": 0}, "expires_in_seconds"),
        ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"run_at": "9999-12-31T23:59:59-12:00"}, "run_at"),
        ({"run_at": "9999-12-31T23:59:59.999999Z"}, "run_at"),
        ({"run_at": "0001-01-01T00:00:00+14:00"}, "run_at"),
        ({"run_at": 1e300}, "run_at"),
        ({"run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "not both"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"priority": "high"}, "priority"),
    ]:
        with subtests.test(wish=wish, named=named):
            job = await register(client)
            response = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=wish)
            assert named in expect_problem(response, 422, "invalid-request")["detail"]
            assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 0


async def test_an_empty_claim_returns_its_reason(client: httpx.AsyncClient) -> None:
    """A limit, a pause and a drain also return `Retry-After`; an empty queue does not."""
    job = await register(client, max_in_flight=1)
    body = {"worker_id": job["worker_id"]}
    empty = await client.post(CLAIM, json=body)
    assert "retry-after" not in empty.headers
    for _ in range(2):
        await submit(client, job)
    assert await claim(client, job["worker_id"]) is not None
    reasons = []
    for change in (None, f"rooms/lab/jobs/{job['full_name']}/pause", f"workers/{job['worker_id']}/drain"):
        if change:
            assert (await client.post(f"{V1}/{change}")).status_code == 200
        response = await client.post(CLAIM, json=body)
        assert (response.status_code, response.json()["task"]) == (200, None)
        assert response.headers["retry-after"] == "1"
        reasons.append(response.json()["reason"])
    assert reasons == ["at_capacity", "paused", "draining"]


async def test_permissions_of_actions(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """An owner releases, a submitter retries, a superuser fails, pauses and reads the sweeper."""
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
        (stranger, "run-now"),
        (owner, "run-now"),
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
    for what in ("release", "retry", "run-now", "fail"):
        expect_problem(await client.post(f"{V1}/tasks/{UNKNOWN_ID}/{what}"), 404, "task-not-found")


@on_both
async def test_a_delayed_task_runs_now(client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime) -> None:
    """It wakes a waiting claim. A repeat changes nothing. The audit trail has what an operator does."""
    ada = await as_user("ada")
    job = await register(client)
    path = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    later = [(await ada.post(path, json={"delay_seconds": 3600})).json() for _ in range(2)]
    waiting = asyncio.ensure_future(claim(client, job["worker_id"], 30))
    await until(lambda: len(runtime.waiters) == 1)
    url = f"{V1}/tasks/{later[1]['id']}/run-now"
    first, again = [await ada.post(url, headers={"Idempotency-Key": '"now"'}) for _ in range(2)]
    assert first.json() == again.json()
    assert (first.json()["status"], first.json()["run_at"]) == ("pending", None)
    assert (await waiting)["id"] == later[1]["id"]
    problem = expect_problem(await ada.post(url), 409, "invalid-task-transition")
    assert problem["detail"] == "Only a task that is pending can be run now; this one is claimed"
    now = f"{V1}/tasks/{later[0]['id']}/run-now"
    refused = await ada.post(f"{V1}/tasks/{later[0]['id']}/retry")
    detail = expect_problem(refused, 409, "invalid-task-transition")["detail"]
    assert detail.endswith("this one is pending. 'run-now' queues it before its time")
    expect_problem(await ada.post(now, json={"attempt": 3}), 409, "stale-report")
    bodies = [(await client.post(now)).json() for _ in range(2)]
    assert [body["queue_position"] for body in bodies] == [1, 1]
    entries = (await client.get(f"{V1}/audit")).json()["items"]
    assert [entry["action"] for entry in entries] == ["task.run-now"]
    entry = next(entry for entry in (await client.get(f"{V1}/jobs")).json()["items"])
    assert (entry["queued"], entry["scheduled"], entry["counts"]["claimed"]) == (1, 0, 1)


@on_both
async def test_a_pause_before_the_next_attempt_ends_now(client: httpx.AsyncClient) -> None:
    """The task keeps its error, its attempts and its place before later tasks."""
    retries = {"max_attempts": 2, "retry_on": ["error"], "backoff": {"base_seconds": 600}}
    job = await register(client, **retries)
    task, other = [await submit(client, job) for _ in range(2)]
    held = await claim(client, job["worker_id"])
    assert held["id"] == task["id"]
    await report(client, held, "running")
    await report(client, held, "failed", error="ValueError: bad")
    before = await get_task(client, task)
    assert before["run_at"] is not None
    after = (await client.post(f"{V1}/tasks/{task['id']}/run-now")).json()
    assert after == before | {"run_at": None, "queue_position": 1}
    assert (await claim(client, job["worker_id"]))["id"] == task["id"]
    assert (await claim(client, job["worker_id"]))["id"] == other["id"]


async def test_an_action_on_a_changed_task_is_refused(client: httpx.AsyncClient) -> None:
    """409 returns the current state."""
    job = await register(client)
    task = await submit(client, job)
    await claim(client, job["worker_id"])
    response = await client.post(f"{V1}/tasks/{task['id']}/release", json={"attempt": 2})
    problem = expect_problem(response, 409, "stale-report")
    assert (problem["current_status"], problem["current_attempt"]) == ("claimed", 1)
    assert (await get_task(client, task))["status"] == "claimed"
    expect_problem(await client.post(f"{V1}/tasks/{task['id']}/retry"), 409, "invalid-task-transition")


async def test_history_and_explanation_need_a_readable_room(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """The host's guard applies, as for the task itself; the task's own worker may read it."""
    stranger = await as_user("stranger")
    job = await register(client, max_attempts=2, retry_on=["error"])
    task = await submit(client, job)
    await claim(client, job["worker_id"])
    await report(client, task, "running")
    await report(client, task, "failed", error="no luck")
    url = f"{V1}/tasks/{task['id']}"
    transitions = (await client.get(f"{url}/history")).json()["transitions"]
    assert [step["status"] for step in transitions] == ["pending", "claimed", "running", "pending"]
    assert (transitions[-1]["reason"], transitions[-1]["error"]) == ("error", "no luck")
    assert "scheduled" in {why["code"] for why in (await client.get(f"{url}/explain")).json()["reasons"]}

    async def refuse(room_id: str) -> str:
        raise HTTPException(404, "no such room")

    app.dependency_overrides[verify_readable_room] = refuse
    for what in ("", "/history", "/explain"):
        assert (await stranger.get(url + what)).status_code == 404
        assert (await client.get(url + what)).status_code == 200
