"""What operators list: jobs and rooms with their counts; the caller and the release."""

import platform
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any
from uuid import UUID

import httpx
from databases import on_both
from rest import V1, AsUser, claim, expect_problem, parse_utc, register, report, submit

from zndraw_joblib.server.admin.sql_lists import encode_cursor
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue.sql_providers import end_connection, extend_connection
from zndraw_joblib.server.runtime.runtime import Runtime

NO_TASKS = dict.fromkeys(("pending", "claimed", "running", "completed", "failed", "cancelled"), 0)


async def all_parts(client: httpx.AsyncClient, url: str, limit: int, **query: Any) -> list[dict[str, Any]]:
    """Return the items of a whole list, read in parts of at most `limit`."""
    items: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        response = await client.get(f"{V1}/{url}", params={"limit": limit, **query, **cursor})
        assert response.status_code == 200, response.text
        part = response.json()
        assert len(part["items"]) <= limit
        items += part["items"]
        if part["next"] is None:
            return items
        assert len(part["items"]) == limit
        cursor = {"cursor": part["next"]}


@on_both
async def test_jobs_of_all_rooms_with_their_counts(client: httpx.AsyncClient) -> None:
    """Schema, policy, workers, slots, and counts by status over all rooms; in parts, by full name."""
    rotate = await register(
        client, "Rotate", schema={"type": "object"}, max_attempts=2, max_tasks=3, priority=1
    )
    await register(client, "Rotate", schema={"type": "object"})
    await register(client, "Scale", room="lab")
    await register(client, "Sum", room="attic", category="analysis")
    first, *_ = [
        await submit(client, rotate, room) for room in ("lab", "lab", "attic", "attic", "lab", "lab")
    ]
    for status in ("completed", "failed", "running", None):
        task = await claim(client, rotate["worker_id"])
        assert task is not None
        if status is not None:
            await report(client, task, "running")
        if status in {"completed", "failed"}:
            await report(client, task, status, retry=False)
    # The oldest task of the queue has a lower priority, so it is not its first.
    waiting = (await client.get(f"{V1}/rooms/lab/tasks", params={"status": "pending"})).json()["items"]
    for fields in ({"delay_seconds": 3600}, {"priority": 5}):
        url = f"{V1}/rooms/lab/tasks/{rotate['full_name']}"
        assert (await client.post(url, json={"payload": {}, **fields})).status_code == 202

    for limit in (1, 2, 50):
        names = [job["full_name"] for job in await all_parts(client, "jobs", limit)]
        assert names == ["@global:modifiers:Rotate", "attic:analysis:Sum", "lab:modifiers:Scale"]
    [job] = await all_parts(client, "jobs", 50, room="@global")
    assert job["counts"] == {
        **NO_TASKS,
        "pending": 4,
        "claimed": 1,
        "running": 1,
        "completed": 1,
        "failed": 1,
    }
    assert (job["queued"], job["scheduled"], job["workers"], job["slots"]) == (3, 1, 2, 3 + 1)
    assert parse_utc(job["oldest_waiting_at"]) == min(parse_utc(task["created_at"]) for task in waiting)
    assert {
        name: job[name] for name in ("id", "schema", "max_attempts", "priority", "paused", "deleted")
    } == {
        **{name: rotate[name] for name in ("id", "schema", "max_attempts", "priority", "paused")},
        "deleted": False,
    }
    assert parse_utc(job["created_at"]) <= parse_utc(first["created_at"])


@on_both
async def test_jobs_are_filtered(client: httpx.AsyncClient) -> None:
    """By room, category and state; a job without tasks has counts of 0."""
    await register(client, "Rotate", room="lab")
    await register(client, "Sum", room="attic", category="analysis")
    gone = await register(client, "Gone", room="lab")
    await client.post(f"{V1}/rooms/lab/jobs/lab:modifiers:Rotate/pause")
    await client.delete(f"{V1}/workers/{gone['worker_id']}")
    expected = {
        "": {"Rotate", "Sum"},
        "room=lab": {"Rotate"},
        "room=cellar": set(),
        "name=Sum&category=analysis": {"Sum"},
        "category=analysis": {"Sum"},
        "paused=true": {"Rotate"},
        "paused=false&room=attic": {"Sum"},
        "deleted=true&room=lab": {"Rotate", "Gone"},
    }
    for query, names in expected.items():
        items = (await client.get(f"{V1}/jobs?{query}")).json()["items"]
        assert {job["name"] for job in items} == names, query
        for job in items:
            assert (job["counts"], job["oldest_waiting_at"]) == (NO_TASKS, None)
            assert (job["deleted"], job["workers"]) == ((True, 0) if job["name"] == "Gone" else (False, 1))
    expect_problem(await client.get(f"{V1}/jobs?room=a:b"), 400, "invalid-room-id")
    for query in ("category=%00", "paused=x", "limit=0", "limit=201", "limit=x"):
        problem = expect_problem(await client.get(f"{V1}/jobs?{query}"), 422, "invalid-request")
        assert f"query.{query.split('=')[0]}" in problem["detail"]


@on_both
async def test_rooms_with_their_shares(client: httpx.AsyncClient) -> None:
    """Rooms with tasks or jobs, by id, each with its counts and its share of the held tasks."""
    job = await register(client)
    await register(client, "Scale", room="empty")
    for room in ("lab", "attic", "lab", "lab", "attic"):
        oldest = await submit(client, job, room)
    for _ in range(3):
        await claim(client, job["worker_id"])
    for limit in (1, 2, 3, 4, 50):
        rooms = await all_parts(client, "rooms", limit)
        assert [room["id"] for room in rooms] == sorted(["@global", "attic", "empty", "lab"])
    by_id = {room["id"]: room for room in rooms}
    assert by_id["lab"]["counts"] == {**NO_TASKS, "pending": 1, "claimed": 2}
    assert by_id["attic"]["counts"] == {**NO_TASKS, "pending": 1, "claimed": 1}
    assert [round(by_id[room]["share"], 3) for room in ("lab", "attic", "empty")] == [0.667, 0.333, 0.0]
    assert [by_id[room]["jobs"] for room in ("@global", "lab", "empty")] == [1, 0, 1]
    assert by_id["attic"]["oldest_waiting_at"] == oldest["created_at"]
    assert by_id["empty"]["oldest_waiting_at"] is None
    # The first pending tasks of this room are all scheduled.
    for _ in range(16):
        body = {"payload": {}, "delay_seconds": 3600}
        await client.post(f"{V1}/rooms/later/tasks/{job['full_name']}", json=body)
    late = await submit(client, job, "later")
    [room] = [room for room in await all_parts(client, "rooms", 50) if room["id"] == "later"]
    assert (room["counts"]["pending"], room["oldest_waiting_at"]) == (17, late["created_at"])


async def test_a_cursor_belongs_to_one_list(client: httpx.AsyncClient) -> None:
    """422 names the parameter for a cursor of another list, a changed one, and text that is none."""
    others = ["", "x", "é", "e30", "A" * 3000, "[1]", encode_cursor("rooms", "lab")]
    others += [encode_cursor("jobs"), encode_cursor("jobs", 1), encode_cursor("jobs", "a\x00")]
    for cursor in others:
        problem = expect_problem(
            await client.get(f"{V1}/jobs", params={"cursor": cursor}), 422, "invalid-request"
        )
        assert problem["detail"].startswith("query.cursor: ")
    assert (await client.get(f"{V1}/jobs", params={"cursor": encode_cursor("jobs", "z")})).json() == {
        "items": [],
        "next": None,
    }


async def test_the_caller_and_the_release(
    client: httpx.AsyncClient, as_user: AsUser, settings: ServerSettings, kind: str
) -> None:
    """Each caller reads both; a superuser may operate. An invalid room is a 400."""
    ada = await as_user("ada")
    assert (await ada.get(f"{V1}/me")).json() == {
        "id": "ada",
        "is_superuser": False,
        "roles": [],
        "scopes": ["read", "submit", "work"],
        "rooms": None,
        "jobs": None,
        "room": None,
        "permissions": [],
    }
    of_room = (await ada.get(f"{V1}/me?room=lab")).json()
    assert (of_room["room"], of_room["permissions"]) == ("lab", ["room:read", "room:write"])
    admin = (await client.get(f"{V1}/me")).json()
    assert (admin["is_superuser"], admin["permissions"]) == (True, ["all:read", "all:operate"])
    expect_problem(await ada.get(f"{V1}/me?room=a:b"), 400, "invalid-room-id")
    settings.build = "4f2c1d0"
    release = (await ada.get(f"{V1}/version")).json()
    database, number = release.pop("database").split()
    assert (database, number[0].isdigit()) == (kind, True)
    assert release == {
        "version": version("zndraw-joblib"),
        "build": "4f2c1d0",
        "python": platform.python_version(),
        "schema_version": schema.newest(),
        "socketio": True,
        "page": "./",
    }


@on_both
async def test_providers_of_all_rooms(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """By full name, in parts, each with its worker and how many of its requests are open."""
    made = {}
    for room, name in (("lab", "Files"), ("attic", "Files"), ("lab", "Data"), ("@global", "Files")):
        body = {"category": "files", "name": name, "schema": {"type": "object"}}
        provider = (await client.put(f"{V1}/rooms/{room}/providers", json=body)).json()
        made[f"{room}:files:{name}"] = provider
        # Without a connection, a worker counts as connected for two seconds.
        in_an_hour = datetime.now(UTC) + timedelta(hours=1)
        await runtime.write(extend_connection, UUID(provider["worker_id"]), in_an_hour)
    asked = made["lab:files:Data"]
    for number in (1, 1, 2):
        url = f"{V1}/rooms/lab/providers/{asked['full_name']}?n={number}"
        await client.get(url, headers={"Prefer": "wait=0"})
    for limit in (1, 3, 4, 50):
        listed = await all_parts(client, "providers", limit)
        assert [provider["full_name"] for provider in listed] == sorted(made)
    by_name = {provider["full_name"]: provider for provider in listed}
    assert {name: found["open_requests"] for name, found in by_name.items()} == {
        **dict.fromkeys(made, 0),
        asked["full_name"]: 2,
    }
    for name, provider in by_name.items():
        assert provider["connected"] is True
        assert {field: provider[field] for field in made[name]} == made[name]
    await runtime.write(end_connection, UUID(asked["worker_id"]), datetime(2026, 1, 1, tzinfo=UTC))
    by_name = {provider["full_name"]: provider for provider in await all_parts(client, "providers", 50)}
    assert [name for name, found in by_name.items() if not found["connected"]] == [asked["full_name"]]
