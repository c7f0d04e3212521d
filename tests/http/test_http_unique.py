"""Unique tasks over HTTP, in single requests and in batches: statuses, problems, access."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from forms import transport  # noqa: F401 - a fixture
from rest import V1, claim, expect_problem, register, report

from zndraw_joblib import verify_readable_room

KEY = {"key": "report"}
Json = dict[str, Any]


async def send(
    client: httpx.AsyncClient, job: Json, room: str = "lab", key: str | None = None, **body: object
) -> httpx.Response:
    """Submit a task."""
    headers = {} if key is None else {"Idempotency-Key": key}
    url = f"{V1}/rooms/{room}/tasks/{job['full_name']}"
    return await client.post(url, json={"payload": {}, **body}, headers=headers)


async def test_a_duplicate_is_a_200_and_a_refusal_a_409(client: httpx.AsyncClient) -> None:
    """Responses without duplicates are as they were."""
    job = await register(client)
    plain = await send(client, job)
    assert plain.status_code == 202
    assert plain.json().keys().isdisjoint({"unique_key", "duplicate"})
    first = await send(client, job, payload={"x": 1}, unique=KEY)
    assert (first.status_code, first.json()["unique_key"]) == (202, "report")
    listed = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
    assert {task["id"]: task.get("unique_key") for task in listed}[first.json()["id"]] == "report"
    second = await send(client, job, payload={"x": 2}, unique=KEY)
    assert (second.status_code, second.json()) == (200, {**first.json(), "duplicate": True})
    assert second.headers["location"] == first.headers["location"]
    replaced = await send(client, job, payload={"x": 2}, unique={**KEY, "on_conflict": "replace"})
    assert (replaced.status_code, replaced.json()["payload"]) == (200, {"x": 2})
    problem = expect_problem(
        await send(client, job, unique={**KEY, "on_conflict": "reject"}), 409, "duplicate-task"
    )
    assert problem["task_id"] == first.json()["id"]
    large = {"x": "y" * 900_000}
    await send(client, job, payload=large, unique={"key": "large"})
    assert (await send(client, job, unique={"key": "large"})).json()["payload"] == large


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"unique": {"key": ""}}, "unique.key"),
        ({"unique": {"key": "x" * 256}}, "unique.key"),
        ({"unique": {"key": "a\nb"}}, "unique.key"),
        ({"unique": {"scope": "all"}}, "unique.scope"),
        ({"unique": {"for_seconds": 31_536_001}}, "unique.for_seconds"),
        ({"unique": {"for_seconds": 5, "until": "ended"}}, "give until or for_seconds, not both"),
        ({"unique": {}, "payload": {"x": 2**60}}, "body.unique: the payload has no canonical JSON"),
        ({"debounce": {"seconds": 5}}, "debounce: it needs unique"),
        ({"unique": KEY, "debounce": {"seconds": 0}}, "debounce.seconds"),
        ({"unique": KEY, "debounce": {"seconds": 1}, "delay_seconds": 1}, "remove run_at and delay_seconds"),
        (
            {"unique": {**KEY, "on_conflict": "return"}, "debounce": {"seconds": 1}},
            "remove unique.on_conflict",
        ),
    ],
)
async def test_wrong_options_are_named(client: httpx.AsyncClient, wrong: Json, error: str) -> None:
    """The problem names the field and the remedy."""
    job = await register(client)
    assert error in expect_problem(await send(client, job, **wrong), 422, "invalid-request")["detail"]


async def test_a_repeat_has_the_first_response(client: httpx.AsyncClient) -> None:
    """With an Idempotency-Key too: a duplicate has the payload of the task that it returned."""
    job = await register(client)
    first = await send(client, job, key="a", payload={"x": 1}, unique=KEY)
    duplicate = await send(client, job, key="b", payload={"x": 2}, unique=KEY)
    task = await claim(client, job["worker_id"])
    assert task is not None
    for status in ("running", "completed"):
        assert (await report(client, task, status)).status_code == 200
    assert (await send(client, job, payload={"x": 3}, unique=KEY)).status_code == 202
    assert (await send(client, job, key="a", payload={"x": 1}, unique=KEY)).json() == first.json()
    repeat = await send(client, job, key="b", payload={"x": 2}, unique=KEY)
    assert (repeat.status_code, repeat.json()) == (200, duplicate.json())


async def test_a_retry_has_the_key(client: httpx.AsyncClient) -> None:
    """As a submit and a read have it."""
    job = await register(client)
    task = (await send(client, job, unique=KEY)).json()
    cancelled = await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    assert cancelled.status_code == 200
    retried = (await client.post(f"{V1}/tasks/{task['id']}/retry")).json()
    assert (retried["status"], retried["unique_key"]) == ("pending", task["unique_key"])


async def test_a_task_of_an_unreadable_room_is_not_shown(client: httpx.AsyncClient, app: FastAPI) -> None:
    """The key of a job is shared by all rooms, the tasks are not."""
    job = await register(client)
    unique = {**KEY, "scope": "job"}
    first = await send(client, job, room="vault", payload={"secret": 1}, unique=unique)

    async def refuse(request: Request, room_id: str) -> str:
        if room_id == "vault":
            raise HTTPException(403, "the vault is closed")
        return room_id

    assert (await send(client, job, unique=unique)).json()["payload"] == {"secret": 1}

    async def fail(request: Request, room_id: str) -> str:
        if room_id == "vault":
            raise HTTPException(503, "the guard has no connection")
        return room_id

    task = {"room_id": "lab", "job_name": job["full_name"], "unique": unique}
    app.dependency_overrides[verify_readable_room] = fail
    assert (await send(client, job, unique=unique)).status_code == 503
    [result] = (await client.post(f"{V1}/tasks/submit", json={"tasks": [task]})).json()["results"]
    assert result["status"] == 503
    app.dependency_overrides[verify_readable_room] = refuse
    [result] = (await client.post(f"{V1}/tasks/submit", json={"tasks": [task]})).json()["results"]
    assert result["status"] == 409
    for on_conflict in ("return", "replace", "reject"):
        response = await send(client, job, unique={**unique, "on_conflict": on_conflict})
        assert expect_problem(response, 409, "duplicate-task")["task_id"] == first.json()["id"]
        assert "secret" not in response.text
