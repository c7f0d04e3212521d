"""The token of a task, which a claim returns: each operation of the table, for its own task and for others.

What is expected follows from the row of the operation, so a new row is tested without a change here.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, Header, HTTPException
from rest import V1, claim, expect_problem, register, report, submit
from test_one_room import OPERATIONS, Room, fill, send, state, status_of
from test_roles import SORTED

from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operations import ForTask
from zndraw_joblib.wire.statuses import TaskStatus


class Claimed(NamedTuple):
    """A host with two rooms, a running task of the first, and a client with its token."""

    app: FastAPI
    olga: httpx.AsyncClient
    own: Room
    other: Room
    task: dict[str, Any]
    client: httpx.AsyncClient


async def current_user(
    x_id: Annotated[str, Header()] = "", x_jobs: Annotated[str | None, Header()] = None
) -> Identity:
    """Return the user in the header, with its patterns of jobs. The token of a task has none."""
    if not x_id:
        raise HTTPException(401, "Who are you?")
    return Identity(x_id, x_id == "root", jobs=None if x_jobs is None else x_jobs.split(","))


async def room_guard(room_id: str, x_id: Annotated[str, Header()]) -> str:
    """Let the users of the host into a room; a request without one fails."""
    return room_id if x_id else ""


@pytest.fixture
async def claimed(database_url: str) -> AsyncIterator[Claimed]:
    """Return a running task of a host with guards of its own, and a client with the token of its claim."""
    database, app = open_database(database_url), FastAPI()
    settings = JobLibSettings(worker_timeout_seconds=3600)
    guards = {"readable_room": room_guard, "writable_room": room_guard}
    JobLib(session_maker=database, identity=current_user, settings=settings, **guards).mount(app)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        await stack.enter_async_context(app.router.lifespan_context(app))

        async def client(**headers: str) -> httpx.AsyncClient:
            made = httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://host", headers=headers
            )
            return await stack.enter_async_context(made)

        olga = await client(**{"X-Id": "olga"})
        own, other = [await fill(olga, room) for room in ("lab", "vault")]
        task = await start(olga, own)
        token = await client(Authorization=f"Bearer {task['token']}")
        own = own._replace(running=task["id"], worker_id=task["worker_id"])
        yield Claimed(app, olga, own, other, task, token)


async def start(olga: httpx.AsyncClient, room: Room, **options: Any) -> dict[str, Any]:
    """Claim and start a task of a room with a token."""
    body = {"worker_id": room.worker_id, "start": True, "tokens": True}
    return (await olga.post(f"{V1}/tasks/claim", json=body, **options)).json()["task"]


async def test_a_token_permits_what_its_rows_say_for_its_own_task(claimed: Claimed) -> None:
    """Without a user of the host or a guard of its rooms. All else is refused, and nothing changes."""
    before = await state_of(claimed)
    for row in SORTED:
        request, operation = (
            OPERATIONS[f"{row.method.lower()} {row.template}"],
            f"{row.method} {row.template}",
        )
        if row.for_task is None:
            response = await send(claimed.client, operation, request, claimed.own)
            assert status_of(response, request) == 403, row.name
            assert row.method == "HEAD" or claimed.task["id"] in response.text, row.name
        elif row.for_task is not ForTask.CALLER:
            # Things of the other room, also through paths of the token's own.
            own = claimed.other._replace(room_id="lab")
            names_no_room = row.for_task not in {ForTask.ROOM, ForTask.CHILDREN} or "{name}" in row.template
            for room in (claimed.other, own) if names_no_room else (claimed.other,):
                response = await send(claimed.client, operation, request, room)
                assert status_of(response, request) in {403, 404}, (row.name, room, response.text)
    assert await state_of(claimed) == before
    made = await claimed.client.post(f"{V1}/groups", json={"room": "lab"})
    own = claimed.own._replace(group_id=made.json()["id"])
    # The last one ends the task.
    for row in sorted(SORTED, key=lambda row: row is ops.REPORT_TASKS):
        if row.for_task is not None:
            request = OPERATIONS[f"{row.method.lower()} {row.template}"]._replace(task="running")
            if row is ops.UPDATE_TASK:
                request = request._replace(json=lambda _: {"progress": {"current": 1}})
            response = await send(claimed.client, f"{row.method} {row.template}", request, own)
            assert status_of(response, request) not in {401, 403}, (row.name, response.text)


async def test_a_token_names_only_the_jobs_of_its_owner(claimed: Claimed) -> None:
    """Also one that a heartbeat has renewed. With more patterns than a token can have, it names none."""
    other = (await register(claimed.olga, "Other", room="lab"))["full_name"]
    many = ",".join(f"lab:{uuid4()}:*" for _ in range(300))
    for patterns, statuses in (
        (f"lab:{'*' * 20},a", [202, 202]),
        (claimed.own.job, [202, 403]),
        (many, [403, 403]),
    ):
        await submit(claimed.olga, {"full_name": claimed.own.job})
        # The worker serves its job already.
        headers = {"X-Jobs": f"{claimed.own.job},{patterns}" if patterns == many else patterns}
        task = await start(claimed.olga, claimed.own, headers=headers)
        body = {"tasks": [{"id": task["id"], "attempt": task["attempt"]}], "tokens": True}
        url = f"{V1}/workers/{claimed.own.worker_id}"
        [verdict] = (await claimed.olga.patch(url, json=body, headers=headers)).json()["tasks"]
        for token in (task["token"], verdict["token"]):
            bearer = {"Authorization": f"Bearer {token}"}
            for job, status in zip((claimed.own.job, other), statuses, strict=True):
                url = f"{V1}/rooms/lab/tasks/{job}"
                response = await claimed.client.post(url, json={"payload": {}}, headers=bearer)
                assert response.status_code == status, (patterns[:50], response.text)
                batch = {"tasks": [{"room_id": "lab", "job_name": job, "payload": {}}]}
                response = await claimed.client.post(f"{V1}/tasks/submit", json=batch, headers=bearer)
                assert response.json()["results"][0]["status"] == status


async def test_the_key_of_a_request_is_that_of_its_task(claimed: Claimed) -> None:
    """Tasks of one user that send the same key submit a child each, and a repeat of a task gets its own."""
    await submit(claimed.olga, {"full_name": claimed.own.job})
    second = await start(claimed.olga, claimed.own)
    children = []
    for task in (claimed.task, second, claimed.task):
        headers = {"Authorization": f"Bearer {task['token']}", "Idempotency-Key": "child"}
        url = f"{V1}/rooms/lab/tasks/{claimed.own.job}"
        response = await claimed.client.post(url, json={"payload": {}}, headers=headers)
        children.append(response.json())
    assert [child["parent"] for child in children] == [claimed.task["id"], second["id"], claimed.task["id"]]
    assert children[2]["id"] == children[0]["id"]


async def state_of(claimed: Claimed) -> list[Any]:
    """Return what is in both rooms."""
    root = httpx.AsyncClient(
        transport=httpx.ASGITransport(claimed.app), base_url="http://host", headers={"X-Id": "root"}
    )
    world: Any = type("World", (), {"users": {"root": root}})
    return await state(world, claimed.own, claimed.other)


@on_both
async def test_a_token_reads_reports_and_submits_until_its_claim_ends(claimed: Claimed) -> None:
    """Its children, whose parent it is, and its predecessors too. A retry has another token."""
    token, task = claimed.client, claimed.task
    url = f"{V1}/rooms/lab/tasks/{claimed.own.job}"
    child = (await token.post(url, json={"payload": {"n": 1}})).json()
    assert (child["parent"], child["created_by"]) == (task["id"], "olga")
    for fields in (
        {"parent": claimed.own.completed},
        {"after": {"tasks": [claimed.own.completed]}},
        {"after": {"groups": [claimed.own.group_id]}},
        {"group": claimed.own.group_id},
    ):
        expect_problem(await token.post(url, json={"payload": {}, **fields}), 403, "forbidden")
        batch = {"tasks": [{"room_id": "lab", "job_name": claimed.own.job, "payload": {}, **fields}]}
        response = await token.post(f"{V1}/tasks/submit", json=batch)
        assert 403 in {response.status_code, response.json().get("results", [{}])[0].get("status")}
    assert (await token.post(url, json={"after": {"tasks": [child["id"]]}})).json()["waits"]
    for id_, status in ((task["id"], 200), (child["id"], 200), (claimed.own.completed, 403)):
        assert (await token.get(f"{V1}/tasks/{id_}")).status_code == status
    body, query = {"progress": {"current": 1}}, {"attempt": task["attempt"]}
    assert (await token.patch(f"{V1}/tasks/{task['id']}", json=body)).status_code == 200
    stored = await token.put(f"{V1}/tasks/{task['id']}/result", content=b"12", params=query)
    assert stored.status_code == 200, stored.text
    # It is held by the next attempt now.
    await report(claimed.olga, task, "pending", attempt=task["attempt"])
    expect_problem(await token.get(f"{V1}/tasks/{task['id']}"), 401, "unauthorized")
    again = await start(claimed.olga, claimed.own)
    assert (again["id"], again["attempt"]) == (task["id"], task["attempt"] + 1)
    expect_problem(await token.get(f"{V1}/tasks/{task['id']}"), 401, "unauthorized")
    renewed = {"Authorization": f"Bearer {again['token']}"}
    ended = await token.patch(
        f"{V1}/tasks/{task['id']}", json={"status": "completed", "result": 3}, headers=renewed
    )
    assert (ended.status_code, ended.json()["result"]) == (200, 3)
    expect_problem(await token.get(f"{V1}/tasks/{task['id']}", headers=renewed), 401, "unauthorized")


@on_both
async def test_the_groups_of_a_token_have_only_children_of_its_task(claimed: Claimed) -> None:
    """Also by users and with the token of another task, in batches, and for tasks after the group."""
    token, olga, own = claimed.client, claimed.olga, claimed.task["id"]
    second = await second_token(claimed)
    job, url = claimed.own.job, f"{V1}/rooms/lab/tasks/{claimed.own.job}"
    on_end = {"room": "lab", "on_end": {"job": job, "payload": {}}}
    expect_problem(await token.post(f"{V1}/groups", json=on_end), 403, "forbidden")
    group = (await token.post(f"{V1}/groups", json={"room": "lab"})).json()["id"]
    after = {"after": {"groups": [group]}}
    for client, fields, headers, status in (
        (token, {"group": group}, {}, 202),
        (token, {"group": group}, second, 403),
        (token, after, {}, 202),
        (token, after, second, 403),
        (olga, {"group": group}, {}, 403),
        (olga, {"group": group, "parent": claimed.own.completed}, {}, 403),
        (olga, {"group": group, "parent": own}, {}, 202),
        (olga, after, {}, 202),
    ):
        response = await client.post(url, json={"payload": {}, **fields}, headers=headers)
        assert response.status_code == status, response.text
        entry = {"room_id": "lab", "job_name": job, "payload": {}, **fields}
        response = await client.post(f"{V1}/tasks/submit", json={"tasks": [entry]}, headers=headers)
        assert response.json()["results"][0]["status"] == status, response.text
    shown, listed = [(await olga.get(f"{V1}/groups{part}")).json() for part in (f"/{group}", "?room=lab")]
    assert (shown["total"], shown["parent"]) == (4, own)
    assert [item.get("parent") for item in listed["items"]] == [own, None]


@on_both
async def test_a_token_reads_and_seals_the_groups_of_its_task(claimed: Claimed) -> None:
    """Also that of the next attempt; another token does not."""
    token, task, olga = claimed.client, claimed.task, claimed.olga
    second = await second_token(claimed)
    group = (await token.post(f"{V1}/groups", json={"room": "lab"})).json()
    path = f"{V1}/groups/{group['id']}"
    entry = {"room_id": "lab", "job_name": claimed.own.job, "payload": {}}
    added = {"tasks": [{**entry, "group": group["id"]}] * 2}
    assert (await token.post(f"{V1}/tasks/submit", json=added)).status_code == 200
    batch = {"tasks": [entry], "group": {"room": "lab", "sealed": True}}
    [made] = (await token.post(f"{V1}/tasks/submit", json=batch)).json()["results"]
    await report(olga, task, "pending", attempt=task["attempt"])
    again = await start(olga, claimed.own)
    own = {"Authorization": f"Bearer {again['token']}"}
    for headers, status in ((own, 200), (second, 403)):
        for place in (path, f"{path}/results", f"{path}/events", f"{V1}/groups/{made['task']['group']}"):
            assert (await token.get(place, headers=headers)).status_code == status, place
        sealed = await token.patch(path, json={"sealed": True}, headers=headers)
        assert sealed.status_code == status
    wait = asyncio.create_task(token.get(path, headers={**own, "Prefer": "wait=60"}))
    body = {"worker_id": claimed.own.worker_id, "start": True, "max": 3}
    for child in (await olga.post(f"{V1}/tasks/claim", json=body)).json()["tasks"]:
        await report(olga, child, "completed", result=1, attempt=child["attempt"])
    async with asyncio.timeout(30):
        assert (await wait).json()["counts"]["completed"] == 2
    lines = (await token.get(f"{path}/results", headers=own)).text.splitlines()
    assert [json.loads(line)["result"] for line in lines] == [1, 1]


@on_both
async def test_a_token_cancels_only_tasks_below_its_task(claimed: Claimed) -> None:
    """Its children, those that they have submitted, and with `tree` what is below them; reports on none."""
    token, olga, own = claimed.client, claimed.olga, claimed.task
    second = await second_token(claimed)
    url = f"{V1}/rooms/lab/tasks/{claimed.own.job}"

    async def child(parent: str) -> str:
        submitted = await olga.post(url, json={"payload": {}, "parent": parent})
        return f"{V1}/tasks/{submitted.json()['id']}"

    first, tree = [await child(own["id"]) for _ in range(2)]
    below = await child(tree.rpartition("/")[2])
    lowest = await child(below.rpartition("/")[2])
    other = f"{V1}/tasks/{(await submit(olga, {'full_name': claimed.own.job}))['id']}"
    cancel: dict[str, Any] = {"status": "cancelled"}
    for path, body, headers in (
        (other, cancel, {}),
        (other, {**cancel, "tree": True}, {}),
        (f"{V1}/tasks/{claimed.own.completed}", {**cancel, "tree": True}, {}),
        (f"{V1}/tasks/{uuid4()}", cancel, {}),
        (first, cancel, second),
        (first, {"status": "failed"}, {}),
        (first, {"progress": {"current": 1}}, {}),
        (first, {**cancel, "progress": {"current": 1}}, {}),
    ):
        expect_problem(await token.patch(path, json=body, headers=headers), 403, "forbidden")
        batch = {"reports": [{"id": path.rpartition("/")[2], **body}]}
        response = await token.post(f"{V1}/tasks/report", json=batch, headers=headers)
        assert response.json()["results"][0]["status"] == 403, (path, body)
    assert {(await olga.get(path)).json()["status"] for path in (first, tree, below, other)} == {"pending"}
    cancelled = await token.patch(lowest, json=cancel)
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    for _ in range(2):  # a repeat of the whole changes nothing
        assert (await token.patch(tree, json={**cancel, "tree": True})).status_code == 200
        assert (await olga.get(below)).json()["status"] == "cancelled"


@on_both
async def test_a_token_cancels_nothing_after_its_claim(claimed: Claimed) -> None:
    """Also if this ends in the same transaction."""
    token, olga, own = claimed.client, claimed.olga, claimed.task
    submitted = await token.post(f"{V1}/rooms/lab/tasks/{claimed.own.job}", json={"payload": {}})
    first, cancel = f"{V1}/tasks/{submitted.json()['id']}", {"status": "cancelled"}
    reports = [{"id": own["id"], "status": "completed"}, {"id": first.rpartition("/")[2], **cancel}]
    batch = {"reports": reports}
    results = (await token.post(f"{V1}/tasks/report", json=batch)).json()["results"]
    assert [result["status"] for result in results] == [200, 401]
    assert (await olga.get(first)).json()["status"] == "pending"
    expect_problem(await token.patch(first, json=cancel), 401, "unauthorized")


async def second_token(claimed: Claimed) -> dict[str, str]:
    """Start another task of the room, and return the header with its token."""
    await submit(claimed.olga, {"full_name": claimed.own.job})
    return {"Authorization": f"Bearer {(await start(claimed.olga, claimed.own))['token']}"}


@on_both
async def test_a_token_replaces_only_children_of_its_task(claimed: Claimed) -> None:
    """A debounced submit of another task with the same key gets the refusal of a duplicate."""
    second = await second_token(claimed)
    url = f"{V1}/rooms/lab/tasks/{claimed.own.job}"
    kinds = (
        {"unique": {"key": "k", "on_conflict": "replace"}},
        {"unique": {"key": "d"}, "debounce": {"seconds": 60}},
    )
    for fields in kinds:
        first, repeat = [await claimed.client.post(url, json={"payload": {"n": n}, **fields}) for n in (1, 2)]
        assert (first.status_code, repeat.status_code) == (202, 200), repeat.text
        assert (repeat.json()["id"], repeat.json()["payload"]) == (first.json()["id"], {"n": 2})
        body = {"payload": {"n": 3}, **fields}
        other = await claimed.client.post(url, json=body, headers=second)
        assert expect_problem(other, 409, "duplicate-task")["task_id"] == first.json()["id"]
        batch = {"tasks": [{**body, "room_id": "lab", "job_name": claimed.own.job}]}
        [result] = (await claimed.client.post(f"{V1}/tasks/submit", json=batch, headers=second)).json()[
            "results"
        ]
        assert result["status"] == 409
        assert (await claimed.client.get(f"{V1}/tasks/{first.json()['id']}")).json()["payload"] == {"n": 2}
        assert (await claimed.olga.post(url, json=body)).json()["payload"] == {"n": 3}


async def test_a_successor_reads_its_predecessor(claimed: Claimed) -> None:
    """And not another task of the room."""
    olga, own = claimed.olga, claimed.own
    body = {"payload": {}, "after": {"tasks": [own.completed]}, "priority": 5}
    await olga.post(f"{V1}/rooms/lab/tasks/{own.job}", json=body)
    # A loop of the server releases it, so the claim waits for it.
    task = await start(olga, own, headers={"Prefer": "wait=30"})
    headers = {"Authorization": f"Bearer {task['token']}"}
    result = await claimed.client.get(f"{V1}/tasks/{own.completed}/result", headers=headers)
    assert (result.status_code, result.json()) == (200, "lab-result")
    refused = await claimed.client.get(f"{V1}/tasks/{own.running}", headers=headers)
    expect_problem(refused, 403, "forbidden")


async def test_heartbeats_renew_a_token_and_waits_end_with_it(
    claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that of a held task. A token that expired, or that another server signed, is refused."""
    token, olga, task = claimed.client, claimed.olga, claimed.task
    named = [{"id": task["id"], "attempt": task["attempt"]}, {"id": claimed.own.completed, "attempt": 1}]
    url = f"{V1}/workers/{claimed.own.worker_id}"
    verdicts = (await olga.patch(url, json={"tasks": named, "tokens": True})).json()["tasks"]
    assert ["token" in verdict for verdict in verdicts] == [True, False]
    fresh = {"Authorization": f"Bearer {verdicts[0]['token']}"}
    assert (await token.get(f"{V1}/me", headers=fresh)).json()["rooms"] == ["lab"]
    forged = verdicts[0]["token"][:-2] + ("AA" if not verdicts[0]["token"].endswith("AA") else "BB")
    for text in (forged, "jlt_", f"{forged}x", "jlt_" + "é" * 76):
        headers = {"Authorization": f"Bearer {text}".encode()}
        expect_problem(await token.get(f"{V1}/me", headers=headers), 401, "unauthorized")
    child = (await token.post(f"{V1}/rooms/lab/tasks/{claimed.own.job}", json={"payload": {}})).json()
    claimed.app.state.joblib.trusted_seconds = 0.1
    wait = asyncio.create_task(token.get(f"{V1}/tasks/{child['id']}", headers={"Prefer": "wait=60"}))
    await report(olga, task, "failed", attempt=task["attempt"])
    async with asyncio.timeout(30):
        expect_problem(await wait, 401, "unauthorized")
    monkeypatch.setattr("time.time", lambda: 2e9)
    detail = expect_problem(await token.get(f"{V1}/me", headers=fresh), 401, "unauthorized")["detail"]
    assert "expired" in detail


async def test_claims_without_tokens_have_none(claimed: Claimed) -> None:
    """A worker of an earlier release gets no field that it does not know; sockets take no token of a task."""
    job = await register(claimed.olga, "Plain", room="lab")
    await submit(claimed.olga, job)
    task = await claim(claimed.olga, job["worker_id"])
    assert task is not None
    assert (task["status"], "token" in task) == (TaskStatus.CLAIMED, False)
