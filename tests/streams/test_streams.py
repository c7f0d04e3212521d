"""A client reads a snapshot and then each event of a task or of a room, over a real connection."""

import asyncio
from typing import Any

import httpx
from rest import V1, claim, expect_problem, register, report, submit

from streams.sse import STREAM, Reader


async def events_of(client: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    """Return the answer of an event stream as JSON."""
    response = await client.get(f"{V1}/{path}/events", params=params)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_a_task_from_its_snapshot_to_its_end(server: httpx.AsyncClient) -> None:
    """A stream of a task begins with its state, has each change once, and ends with it."""
    job = await register(server)
    task, other = await submit(server, job), await submit(server, job)
    reader = Reader(server, f"tasks/{task['id']}")
    [snapshot] = await reader.until(1)
    assert (snapshot.event, snapshot.data["id"], snapshot.data["status"]) == (
        "snapshot",
        task["id"],
        "pending",
    )
    claimed = await claim(server, job["worker_id"])
    assert claimed is not None
    for status in ("running", "completed"):
        await report(server, claimed, status, attempt=1)
    events = await reader.ended()
    assert [each.event for each in events] == ["snapshot", "status", "status", "status", "end"]
    assert [each.data["data"]["status"] for each in events[1:4]] == ["claimed", "running", "completed"]
    assert {each.data["task_id"] for each in events[1:4]} == {task["id"]}
    numbers = [each.id for each in events]
    assert numbers == sorted(numbers)
    assert [each.data["n"] for each in events[1:4]] == numbers[1:4]
    assert (await events_of(server, f"tasks/{other['id']}"))["snapshot"]["id"] == other["id"]


async def test_a_room_has_the_events_of_all_its_tasks(server: httpx.AsyncClient) -> None:
    """A stream of a room begins with its newest tasks, and does not end with a task."""
    job = await register(server)
    first = await submit(server, job)
    await submit(server, job, "other")
    reader = Reader(server, "rooms/lab")
    [snapshot] = await reader.until(1)
    assert [task["id"] for task in snapshot.data["tasks"]] == [first["id"]]
    assert snapshot.data["total"] == 1
    second = await submit(server, job)
    await submit(server, job, "other")
    claimed = await claim(server, job["worker_id"])
    await report(server, claimed, "failed", attempt=1, error="no")
    events = await reader.until(4)
    assert [(each.data["task_id"], each.data["data"]["status"]) for each in events[1:]] == [
        (second["id"], "pending"),
        (first["id"], "claimed"),
        (first["id"], "failed"),
    ]
    assert [each.id for each in events] == [snapshot.id + place for place in range(4)]
    await reader.close()


async def test_a_stream_continues_after_a_position(server: httpx.AsyncClient) -> None:
    """`Last-Event-ID` and `after` continue without a snapshot; a header is newer than the URL."""
    job = await register(server)
    start = await events_of(server, "rooms/lab")
    assert start == {
        "snapshot": {"tasks": [], "total": 0},
        "events": [],
        "next": start["next"],
        "ended": False,
    }
    tasks = [await submit(server, job) for _ in range(3)]
    got = await events_of(server, "rooms/lab", after=start["next"])
    assert [event["task_id"] for event in got["events"]] == [task["id"] for task in tasks]
    assert "snapshot" not in got
    first = got["events"][0]["n"]
    reader = Reader(server, "rooms/lab", first, after=start["next"])
    events = await reader.until(2)
    assert [event.id for event in events] == [first + 1, first + 2]
    await reader.close()
    of_task = await events_of(server, f"tasks/{tasks[1]['id']}", after=start["next"])
    assert [event["n"] for event in of_task["events"]] == [first + 1]
    assert of_task["next"] == first + 2


async def test_an_ended_task_ends_its_stream_at_once(server: httpx.AsyncClient) -> None:
    """The stream of an ended task has its state and the end, also when it continues after the last event."""
    job = await register(server)
    task = await submit(server, job)
    watched = await events_of(server, f"tasks/{task['id']}")
    await report(server, task, "cancelled")
    events = await Reader(server, f"tasks/{task['id']}").ended()
    assert [each.event for each in events] == ["snapshot", "end"]
    events = await Reader(server, f"tasks/{task['id']}", watched["next"]).ended()
    assert [each.event for each in events] == ["status", "end"]
    assert [each.event for each in await Reader(server, f"tasks/{task['id']}", events[-1].id).ended()] == [
        "end"
    ]
    assert (await events_of(server, f"tasks/{task['id']}", after=events[-1].id))["ended"]


async def test_json_waits_for_the_next_event(server: httpx.AsyncClient) -> None:
    """`Prefer: wait` answers with the next event, and with none after the time."""
    job = await register(server)
    start = await events_of(server, "rooms/lab")
    url, params = f"{V1}/rooms/lab/events", {"after": start["next"]}
    nothing = await server.get(url, params=params, headers={"Prefer": "wait=1"})
    assert nothing.headers["Preference-Applied"] == "wait=1"
    assert nothing.json() == {"events": [], "next": start["next"], "ended": False}
    waiting = asyncio.create_task(server.get(url, params=params, headers={"Prefer": "wait=60"}))
    task = await submit(server, job)
    async with asyncio.timeout(55):
        got = (await waiting).json()
    assert [event["task_id"] for event in got["events"]] == [task["id"]]


async def test_what_cannot_be_read(server: httpx.AsyncClient) -> None:
    """An unknown task, a wrong position and an unknown caller get problems, also as a stream."""
    unknown = await server.get(f"{V1}/tasks/{'0' * 32}/events", headers=STREAM)
    expect_problem(unknown, 404, "task-not-found")
    for position in ("x", "-1", "1" * 17):
        wrong = await server.get(f"{V1}/rooms/lab/events", params={"after": position}, headers=STREAM)
        assert "query.after" in expect_problem(wrong, 422, "invalid-request")["detail"]
    stranger = await server.get(f"{V1}/rooms/lab/events", headers=STREAM | {"Authorization": "Bearer x"})
    expect_problem(stranger, 401, "unauthorized")


async def test_positions_that_are_not_kept(server: httpx.AsyncClient) -> None:
    """A position before or after the kept events gets `resync` and a new snapshot."""
    now = (await events_of(server, "rooms/lab"))["next"]
    for position, reason in ((now - 1, "pruned"), (now + 1, "unknown")):
        got = await events_of(server, "rooms/lab", after=position)
        assert got["resync"] == {"reason": reason, "after": position}
        assert got["next"] == now
        reader = Reader(server, "rooms/lab", position)
        resync, snapshot = await reader.until(2)
        assert (resync.event, resync.id, snapshot.event, snapshot.id) == ("resync", None, "snapshot", now)
        await reader.close()
