"""Groups over HTTP: create, fill, seal, follow to the end, and what the end submits; access and problems."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, HTTPException, Request
from rest import V1, AsUser, claim, expect_problem, get_task, register, report

from zndraw_joblib import verify_readable_room, verify_writable_room
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.queue import rules_groups
from zndraw_joblib.server.runtime.runtime import Runtime

Json = dict[str, Any]
GROUPS = f"{V1}/groups"


async def create(client: httpx.AsyncClient, room: str = "lab", **fields: Any) -> Json:
    """Create a group."""
    response = await client.post(GROUPS, json={"room": room, **fields})
    assert response.status_code == 201, response.text
    group: Json = response.json()
    return group


async def add(client: httpx.AsyncClient, job: Json, group: Json, **body: Any) -> httpx.Response:
    """Submit a task to a group."""
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    return await client.post(url, json={"payload": {}, "group": group["id"], **body})


async def seal(client: httpx.AsyncClient, group: Json) -> Json:
    """Seal a group."""
    response = await client.patch(f"{GROUPS}/{group['id']}", json={"sealed": True})
    assert response.status_code == 200, response.text
    sealed: Json = response.json()
    return sealed


async def read(client: httpx.AsyncClient, group: Json, wait: float = 0) -> Json:
    """Return a group."""
    headers = {"Prefer": f"wait={wait}"} if wait else {}
    response = await client.get(f"{GROUPS}/{group['id']}", headers=headers)
    assert response.status_code == 200, response.text
    current: Json = response.json()
    return current


async def run(client: httpx.AsyncClient, job: Json, end: str = "completed", **fields: Any) -> Json:
    """Claim the next task of a job, start it and end it."""
    task = await claim(client, job["worker_id"])
    assert task is not None
    for status in ("running", end):
        response = await report(client, task, status, **(fields if status == end else {}))
        assert response.status_code == 200, response.text
    return task


@on_both
async def test_a_group_counts_its_tasks_and_ends_with_the_last(client: httpx.AsyncClient) -> None:
    """It ends only when it is sealed; its on_end is submitted once, with the counts and a reference."""
    job = await register(client)
    group = await create(client, name="nightly", on_end={"job": job["full_name"]})
    assert (group["sealed"], group["total"], group["progress"], group["ended_at"]) == (False, 0, None, None)
    tasks = [(await add(client, job, group)).json() for _ in range(3)]
    assert [task["group"] for task in tasks] == [group["id"]] * 3
    assert (await get_task(client, tasks[0]))["group"] == group["id"]
    await run(client, job)
    started = await claim(client, job["worker_id"])
    await report(client, started, "running", progress={"current": 1, "total": 2})
    current = await read(client, group)
    assert (current["total"], current["counts"]["completed"], current["counts"]["running"]) == (3, 1, 1)
    assert current["progress"] == 0.5
    await report(client, started, "failed", error="ValueError: no")
    await run(client, job)
    current = await read(client, group)
    assert (current["ended_at"], current["progress"], current["on_end_state"]) == (None, 1.0, "waiting")
    failure = {"id": started["id"], "job_name": job["full_name"], "error": "ValueError: no"}
    assert current["failures"] == [failure | {"error_code": "error"}]
    ended = await seal(client, group)
    assert (ended["ended_at"] is None, ended["on_end_state"]) == (False, "submitted")
    assert await seal(client, group) == await read(client, group, wait=5) == ended


async def test_the_end_fills_in_counts_and_a_reference(client: httpx.AsyncClient) -> None:
    """In the payload of the task that it submits, for the creator of the group and in its room."""
    job = await register(client)
    payload = {"counts": {"$group": "counts"}, "all": [{"$group": "results"}], "x": 1}
    group = await create(client, on_end={"job": job["full_name"], "payload": payload})
    for _ in range(2):
        await add(client, job, group)
    await run(client, job)
    await run(client, job, "failed")
    last = await get_task(client, {"id": (await seal(client, group))["on_end_task"]})
    counts = {"total": 2, "completed": 1, "failed": 1, "cancelled": 0}
    reference = {"$group": "results", "id": group["id"]}
    assert last["payload"] == {"counts": counts, "all": [reference], "x": 1}
    assert (last["created_by"], last["room_id"], "group" in last) == (group["created_by"], "lab", False)


@on_both
async def test_the_last_report_ends_a_sealed_group(client: httpx.AsyncClient) -> None:
    """Also one that fails, is cancelled, or is in a batch with others."""
    job = await register(client)
    for end in ("completed", "failed", "cancelled"):
        group = await create(client, on_end={"job": job["full_name"]})
        await add(client, job, group)
        await seal(client, group)
        if end == "cancelled":
            task = (await client.get(f"{V1}/tasks", params={"group": group["id"], "room": "lab"})).json()
            assert (await report(client, task["items"][0], "cancelled")).status_code == 200
        else:
            await run(client, job, end)
        ended = await read(client, group, wait=5)
        assert ended["ended_at"] is not None
        assert ended["counts"][end] == 1
        await run(client, job)  # the task of its on_end


async def test_a_sealed_group_takes_no_more_tasks(client: httpx.AsyncClient) -> None:
    """Adding is a 409; without tasks it ends at once."""
    job = await register(client)
    group = await create(client)
    assert (await seal(client, group))["ended_at"] is not None
    expect_problem(await add(client, job, group), 409, "group-sealed")
    for wrong in (str(uuid4()), (await create(client, "other"))["id"]):
        expect_problem(await add(client, job, {"id": wrong}), 404, "group-not-found")
    assert (
        "body.group" in expect_problem(await add(client, job, {"id": "x"}), 422, "invalid-request")["detail"]
    )


async def test_on_end_may_wait_for_success(client: httpx.AsyncClient) -> None:
    """With `completed` it is skipped if one task failed; a retry afterwards reopens nothing."""
    job = await register(client)
    on_end = {"job": job["full_name"], "when": "completed"}
    groups = [await create(client, on_end=on_end) for _ in range(2)]
    for group, end in zip(groups, ("completed", "failed"), strict=True):
        await add(client, job, group)
        await seal(client, group)
        task = await run(client, job, end)
        ended = await read(client, group)
        assert ended["on_end_state"] == {"completed": "submitted", "failed": "skipped"}[end]
        if end == "completed":
            await run(client, job)
    assert (await client.post(f"{V1}/tasks/{task['id']}/retry")).status_code == 200
    retried = await read(client, group)
    assert (retried["ended_at"], retried["counts"]["pending"]) == (ended["ended_at"], 1)
    assert retried["counts"]["failed"] == 0
    await run(client, job)
    again = await read(client, group)
    assert (again["ended_at"], again["counts"]["completed"]) == (ended["ended_at"], 1)
    assert "on_end_task" not in again


async def test_one_request_makes_fills_and_seals(client: httpx.AsyncClient) -> None:
    """All tasks are submitted or none; a repeat with the same key makes no second group."""
    job = await register(client)
    tasks = [{"room_id": "lab", "job_name": job["full_name"], "payload": {"n": n}} for n in range(3)]
    body = {"tasks": tasks, "group": {"room": "lab", "name": "all"}}
    headers = {"Idempotency-Key": "one"}
    response = await client.post(f"{V1}/tasks/submit", json=body, headers=headers)
    assert response.status_code == 200
    group = await read(client, {"id": response.json()["group"]})
    assert (group["sealed"], group["total"], group["name"]) == (True, 3, "all")
    repeat = await client.post(f"{V1}/tasks/submit", json=body, headers=headers)
    assert repeat.json() == response.json()
    tasks.append({**tasks[0], "room_id": "other"})
    refused = await client.post(f"{V1}/tasks/submit", json=body)
    assert "tasks.3" in expect_problem(refused, 404, "group-not-found")["detail"]
    listed = (await client.get(GROUPS, params={"room": "lab"})).json()
    assert [one["id"] for one in listed["items"]] == [group["id"]]
    open_one = {"tasks": tasks[:3], "group": {"room": "lab", "sealed": False}}
    made = (await client.post(f"{V1}/tasks/submit", json=open_one)).json()["group"]
    assert (await read(client, {"id": made}))["sealed"] is False


async def test_groups_are_listed_and_their_tasks_found(client: httpx.AsyncClient) -> None:
    """The list is read in parts; tasks of a group are found by its id, newest first."""
    job = await register(client)
    groups = [await create(client, name=f"g{n}") for n in range(3)]
    first = (await client.get(GROUPS, params={"room": "lab", "limit": 2})).json()
    rest = (await client.get(GROUPS, params={"room": "lab", "limit": 2, "cursor": first["next"]})).json()
    names = [group["name"] for group in first["items"] + rest["items"]]
    assert (names, rest["next"]) == (["g2", "g1", "g0"], None)
    assert (await client.get(GROUPS, params={"room": "other"})).json()["items"] == []
    tasks = [(await add(client, job, groups[n % 2])).json()["id"] for n in range(5)]
    params: Json = {"group": groups[0]["id"], "room": "lab", "limit": 2}
    part = (await client.get(f"{V1}/tasks", params=params)).json()
    assert [task["id"] for task in part["items"]] == [tasks[4], tasks[2]]
    part = (await client.get(f"{V1}/tasks", params={**params, "cursor": part["next"]})).json()
    assert [task["id"] for task in part["items"]] == [tasks[0]]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"names": "x"}, "names"),
        ({"expires_in_seconds": 0}, "expires_in_seconds"),
        ({"on_end": {"job": "@global:modifiers:Rotate", "whenn": "ended"}}, "on_end.whenn"),
        ({"on_end": {"job": "@global:modifiers:Rotate", "when": "never"}}, "on_end.when"),
    ],
)
async def test_wrong_fields_are_named(client: httpx.AsyncClient, fields: Json, error: str) -> None:
    """The problem names the field."""
    response = await client.post(GROUPS, json={"room": "lab", **fields})
    assert error in expect_problem(response, 422, "invalid-request")["detail"]


async def test_on_end_is_checked_when_the_group_is_made(client: httpx.AsyncClient) -> None:
    """Its job exists and its payload fits; what the end fills in counts as any value."""
    schema = {"properties": {"n": {"type": "integer"}, "all": {"type": "array"}}, "required": ["n"]}
    job = await register(client, schema=schema)

    async def send(job_name: str, **payload: Any) -> httpx.Response:
        on_end = {"job": job_name, "payload": payload}
        return await client.post(GROUPS, json={"room": "lab", "on_end": on_end})

    expect_problem(await send("@global:modifiers:Unknown"), 404, "job-not-found")
    expect_problem(await send(job["full_name"]), 422, "invalid-payload")
    expect_problem(await send(job["full_name"], n="x"), 422, "invalid-payload")
    unknown = expect_problem(await send(job["full_name"], n={"$group": "all"}), 422, "invalid-payload")
    assert "payload/n/$group: it must be one of counts, results" in unknown["detail"]
    filled = await send(job["full_name"], n={"$group": "counts"}, all={"$group": "results"})
    assert filled.status_code == 201


async def test_a_job_that_refuses_tasks_does_not_keep_a_group_from_its_end(
    client: httpx.AsyncClient, as_user: AsUser
) -> None:
    """The group has the error, and operators see a finding."""
    job, other = await register(client), await register(client, name="Report", without_workers="reject")
    group = await create(client, on_end={"job": other["full_name"]})
    await add(client, job, group)
    await seal(client, group)
    assert (await client.delete(f"{V1}/workers/{other['worker_id']}")).status_code == 204
    await run(client, job)
    ended = await read(client, group)
    assert (ended["on_end_state"], "on_end_task" in ended) == ("failed", False)
    assert ended["error"].startswith("no-workers-available: ")
    admin = await as_user("root", is_superuser=True)
    findings = (await admin.get(f"{V1}/overview")).json()["findings"]
    assert [(one["code"], one["room"]) for one in findings] == [("group-on-end-failed", "lab")]


async def test_a_group_expires(client: httpx.AsyncClient, runtime: Runtime, app: FastAPI) -> None:
    """Waiting tasks fail then, running ones end, and nothing is added."""
    job = await register(client)
    group = await create(client, expires_in_seconds=60)
    tasks = [(await add(client, job, group, **own)).json() for own in ({}, {"expires_in_seconds": 3600}, {})]
    assert {task["expires_at"] for task in tasks} == {group["expires_at"]}
    started = await claim(client, job["worker_id"])
    await report(client, started, "running")
    later = datetime.now(UTC) + timedelta(hours=1)
    runtime.database.use_clock(lambda: later)
    sweeper: Sweeper = app.state.joblib.sweeper
    await sweeper.cycle()
    current = await read(client, group)
    assert (current["sealed"], current["ended_at"], current["counts"]["failed"]) == (True, None, 2)
    expect_problem(await add(client, job, group), 409, "group-sealed")
    await report(client, started, "completed")
    assert (await read(client, group))["ended_at"] is not None


async def test_a_user_has_a_share_of_the_groups(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """Of those that have not ended."""
    app.state.joblib.settings.max_groups = 6
    app.state.joblib.runtime.stored.groups.pauses = 0, 0
    user = await as_user("ada")
    answers = [await user.post(GROUPS, json={"room": "lab"}) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [201] * 3 + [429] * 3
    assert "max_groups" in expect_problem(answers[-1], 429, "too-many-requests")["detail"]
    assert (await create(client))["sealed"] is False


async def test_rooms_are_guarded(client: httpx.AsyncClient, app: FastAPI, as_user: AsUser) -> None:
    """Readers of the room read its groups, and writers change them."""
    group, user = await create(client), await as_user("ada")

    async def refuse(request: Request, room_id: str) -> str:
        raise HTTPException(403, "closed")

    app.dependency_overrides[verify_writable_room] = refuse
    assert (await user.post(GROUPS, json={"room": "lab"})).status_code == 403
    assert (await user.patch(f"{GROUPS}/{group['id']}", json={"sealed": True})).status_code == 403
    assert (await user.get(f"{GROUPS}/{group['id']}")).status_code == 200
    app.dependency_overrides[verify_readable_room] = refuse
    assert (await user.get(f"{GROUPS}/{group['id']}")).status_code == 403
    assert (await user.get(GROUPS, params={"room": "lab"})).status_code == 403
    assert (await user.get(GROUPS)).status_code == 403


@on_both
async def test_a_part_of_the_results_is_small(
    client: httpx.AsyncClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is slow keeps one part in memory: as many results as have 1 MiB, or one."""
    job, group = await register(client), await create(client)
    for size in (20, 20, 60, 10, 10):
        await add(client, job, group)
        await run(client, job, result="x" * size)
    monkeypatch.setattr(rules_groups, "_RESULT_BYTES", 50)
    counts, after = [], 0
    while after is not None:
        part = await runtime.database.read(rules_groups.results, UUID(group["id"]), after)
        counts.append(part.lines.count(b"\n"))
        after = part.after
    assert counts == [2, 1, 2]
    whole = (await client.get(f"{GROUPS}/{group['id']}/results")).text.splitlines()
    assert [len(json.loads(line)["result"]) for line in whole] == [20, 20, 60, 10, 10]


async def test_results_end_with_the_access_of_their_reader(
    client: httpx.AsyncClient,
    app: FastAPI,
    as_user: AsUser,
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader whose token is revoked after the first part gets no other, and no complete response."""
    monkeypatch.setattr(rules_groups, "_RESULTS_AT_ONCE", 1)
    monkeypatch.setattr(app.state.joblib, "trusted_seconds", 0.0)
    job, group = await register(client), await create(client)
    for _ in range(3):
        await add(client, job, group)
    ada = await as_user("ada")
    request = ada.build_request("GET", f"{GROUPS}/{group['id']}/results")
    path, headers = request.url.path, [(name.lower(), value) for name, value in request.headers.raw]
    scope = {
        **{"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""},
        **{"http_version": "1.1", "scheme": "http", "headers": headers, "root_path": ""},
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }
    messages: list[Json] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if message["type"] == "http.response.body" and len(messages) == 2:
            await runtime.write(sql_operators.remove_token, "ada")
            app.state.joblib.identity.forget("ada")

    async def receive() -> Json:
        await asyncio.Event().wait()
        return {}

    with suppress(Exception):
        await app(scope, receive, send)
    assert messages[0]["status"] == 200
    assert [message["body"].count(b"\n") for message in messages[1:]] == [1]
    assert messages[-1]["more_body"]


async def test_results_are_lines_in_the_order_of_submission(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """More than one read of the database; with `on_end_task`, only for the task of the end."""
    job, report_job = await register(client), await register(client, name="Report")
    group = await create(client, on_end={"job": report_job["full_name"]})
    tasks = [{"room_id": "lab", "job_name": job["full_name"], "group": group["id"]}] * 40
    submitted = (await client.post(f"{V1}/tasks/submit", json={"tasks": tasks})).json()["results"]
    await seal(client, group)
    url = f"{GROUPS}/{group['id']}/results"
    lines = [json.loads(line) for line in (await client.get(url)).text.splitlines()]
    assert lines == [{"id": one["id"], "status": "pending", "result": None} for one in submitted]
    claimed = await client.post(
        f"{V1}/tasks/claim", json={"worker_id": job["worker_id"], "max": 40, "start": True}
    )
    for number, task in enumerate(claimed.json()["tasks"]):
        ends: Json = (
            {"status": "failed", "error": "no"} if number == 3 else {"status": "completed", "result": number}
        )
        await report(client, task, **ends)
    response = await client.get(url)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["result"] for line in lines] == [*range(3), None, *range(4, 40)]
    assert (lines[3]["status"], lines[3]["error"]) == ("failed", "no")
    last = (await read(client, group))["on_end_task"]
    assert (await client.get(url, params={"on_end_task": last})).status_code == 200
    wrong = await client.get(url, params={"on_end_task": submitted[0]["id"]})
    expect_problem(wrong, 404, "group-not-found")

    async def refuse(request: Request, room_id: str) -> str:
        raise HTTPException(403, "closed")

    app.dependency_overrides[verify_readable_room] = refuse
    assert (await (await as_user("ada")).get(url)).status_code == 403


@on_both
async def test_groups_without_tasks_are_no_way_around_the_bounds(client: httpx.AsyncClient) -> None:
    """Their tasks count for `max_pending`: the group ends with the reason. A large payload is refused."""
    job = await register(client, max_pending=1)
    ends = []
    for _ in range(3):
        group = await create(client, on_end={"job": job["full_name"]})
        ends.append(await seal(client, group))
    assert [end["on_end_state"] for end in ends] == ["submitted", "failed", "failed"]
    assert "max_pending of its policy is 1" in ends[1]["error"]
    on_end = {"job": job["full_name"], "payload": {"x": "a" * 65_536}}
    answer = await client.post(GROUPS, json={"room": "lab", "on_end": on_end})
    assert "65536 are allowed" in expect_problem(answer, 413, "content-too-large")["detail"]
