"""Pauses of jobs, rooms and the queue over HTTP: who may, until when, and what operators read."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from databases import on_both, on_postgresql
from rest import V1, AsUser, claim, expect_problem, parse_utc, register, submit
from servers import ServerProcess
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from zndraw_joblib.server.db.tables import Job

END = "2100-01-01T00:00:00Z"


@on_both
async def test_a_room_and_the_queue_are_paused(client: httpx.AsyncClient) -> None:
    """With an end and without; a resume of all rooms keeps the pause of a room. Each is audited."""
    job = await register(client)
    task = await submit(client, job)
    room = await client.post(f"{V1}/rooms/lab/pause", json={"until": END})
    [pause] = room.json()["pauses"]
    assert (room.json()["room"], room.json()["paused"]) == ("lab", True)
    assert (pause["room"], pause["until"], pause["paused_by"]) == ("lab", END, "admin")
    assert parse_utc(pause["paused_at"]) <= datetime.now(UTC)
    assert await claim(client, job["worker_id"]) is None
    queue = (await client.post(f"{V1}/pause")).json()
    assert (queue["room"], [each["room"] for each in queue["pauses"]]) == (None, [None])
    listed = (await client.get(f"{V1}/pauses")).json()["items"]
    assert [(each["room"], each["until"]) for each in listed] == [(None, None), ("lab", END)]
    assert (await client.get(f"{V1}/overview")).json()["pauses"] == listed
    of_room = (await client.get(f"{V1}/rooms/lab/overview")).json()["pauses"]
    assert [each["room"] for each in of_room] == [None, "lab"]
    assert (await client.post(f"{V1}/resume")).json() == {"room": None, "paused": False, "pauses": []}
    assert await claim(client, job["worker_id"]) is None
    reasons = (await client.get(f"{V1}/tasks/{task['id']}/explain")).json()["reasons"]
    assert reasons[0]["detail"] == "Room lab is paused until 2100-01-01 00:00:00 UTC by admin"
    assert (await client.post(f"{V1}/rooms/lab/resume")).json()["paused"] is False
    assert await claim(client, job["worker_id"]) is not None
    audit = (await client.get(f"{V1}/audit")).json()["items"]
    assert [(entry["action"], entry["target"], entry["room_id"], entry["detail"]) for entry in audit] == [
        ("room.resume", "lab", "lab", None),
        ("rooms.resume", "all rooms", None, None),
        ("rooms.pause", "all rooms", None, None),
        ("room.pause", "lab", "lab", {"until": END.replace("Z", "+00:00")}),
    ]


async def test_pauses_are_measured(client: httpx.AsyncClient) -> None:
    """The number of paused rooms, and whether all are."""
    await client.post(f"{V1}/rooms/lab/pause")
    await client.post(f"{V1}/pause")
    metrics = (await client.get(f"{V1}/metrics")).text
    assert "zndraw_joblib_paused_rooms 1" in metrics
    assert "zndraw_joblib_queue_paused 1" in metrics


async def test_a_job_is_paused_until_a_time(client: httpx.AsyncClient) -> None:
    """The job, the lists and the audit trail have the time; a resume or a further pause replaces it."""
    job = await register(client)
    url = f"{V1}/rooms/lab/jobs/{job['full_name']}"
    paused = (await client.post(f"{url}/pause", json={"until": END})).json()
    assert (paused["paused"], paused["paused_until"]) == (True, END)
    assert (await client.get(url)).json()["paused_until"] == END
    assert [each["paused_until"] for each in (await client.get(f"{V1}/jobs")).json()["items"]] == [END]
    for what, state in (("pause", (True, None)), ("resume", (False, None))):
        answer = (await client.post(f"{url}/{what}")).json()
        assert (answer["paused"], answer["paused_until"]) == state


@on_both
async def test_jobs_whose_pause_is_over_are_not_paused(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Also in the filter of the list of jobs, before a server has ended the pause."""
    jobs = [await register(client, name, room="lab") for name in ("A", "B", "C")]
    for job in jobs[:2]:
        await client.post(f"{V1}/rooms/lab/jobs/{job['full_name']}/pause", json={"until": END})
    past = datetime.now(UTC) - timedelta(seconds=1)
    async with engine.begin() as connection:
        await connection.execute(update(Job).where(Job.name == "A").values(paused_until=past))
    for query, names in (("true", ["B"]), ("false", ["A", "C"])):
        items = (await client.get(f"{V1}/jobs?paused={query}")).json()["items"]
        assert [(job["name"], job["paused"]) for job in items] == [(name, query == "true") for name in names]
    listed = (await client.get(f"{V1}/rooms/lab/jobs")).json()["items"]
    assert [(job["name"], job["paused"], job["paused_until"]) for job in listed] == [
        ("C", False, None),
        ("B", True, END),
        ("A", False, None),
    ]


async def test_only_superusers_pause(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Also not the writers of a room. A reader of the room sees that it is paused."""
    user = await as_user("user")
    for path in ("rooms/lab/pause", "rooms/lab/resume", "pause", "resume"):
        expect_problem(await user.post(f"{V1}/{path}"), 403, "forbidden")
    expect_problem(await user.get(f"{V1}/pauses"), 403, "forbidden")
    await client.post(f"{V1}/rooms/lab/pause")
    overview = (await user.get(f"{V1}/rooms/lab/overview")).json()
    assert [finding["code"] for finding in overview["findings"]] == ["room-paused"]


async def test_a_wrong_end_is_refused(client: httpx.AsyncClient) -> None:
    """A past time, one without a zone, and no time at all: the field is named, and nothing is paused."""
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    wrong: list[Any] = [past, "2100-01-01T00:00:00", "tomorrow", 1e300]
    job = await register(client)
    for path in ("rooms/lab/pause", "pause", f"rooms/lab/jobs/{job['full_name']}/pause"):
        for until in wrong:
            response = await client.post(f"{V1}/{path}", json={"until": until})
            problem = expect_problem(response, 422, "invalid-request")
            assert "until" in problem["detail"]
            assert problem["errors"][0]["loc"] == ["body", "until"]
    assert (await client.get(f"{V1}/pauses")).json()["items"] == []


async def test_a_repeated_request_pauses_once(client: httpx.AsyncClient) -> None:
    """With an `Idempotency-Key` it gets the first answer, also after a resume."""
    first, _, again = [
        await client.post(f"{V1}/rooms/lab/{what}", headers={"Idempotency-Key": key})
        for what, key in (("pause", "k1"), ("resume", "k2"), ("pause", "k1"))
    ]
    assert first.json() == again.json()
    assert (await client.get(f"{V1}/pauses")).json()["items"] == []


async def test_the_number_of_paused_rooms_is_bounded(client: httpx.AsyncClient) -> None:
    """1,000 rooms; one that is paused already may be paused again, and the list is read in parts."""
    for number in range(1000):
        assert (await client.post(f"{V1}/rooms/r{number}/pause")).is_success
    expect_problem(await client.post(f"{V1}/rooms/lab/pause"), 409, "conflict")
    assert (await client.post(f"{V1}/rooms/r7/pause", json={"until": END})).is_success
    rooms, cursor = [], None
    while True:
        query = {"limit": 150} | ({"cursor": cursor} if cursor else {})
        part = (await client.get(f"{V1}/pauses", params=query)).json()
        rooms += [each["room"] for each in part["items"]]
        cursor = part["next"]
        if cursor is None:
            break
    assert rooms == sorted(f"r{number}" for number in range(1000))


@pytest.mark.slow
@on_postgresql
async def test_a_pause_ends_although_its_server_was_killed(database_url: str) -> None:
    """The server that paused is killed; a claim that waits at another one gets the task at the end."""
    async with asyncio.timeout(100):
        with ServerProcess(database_url) as stays, ServerProcess(database_url) as killed:
            async with stays.client() as client, killed.client() as other:
                job = await register(client)
                task = await submit(client, job)
                end = datetime.now(UTC) + timedelta(seconds=3)
                paused = await other.post(f"{V1}/rooms/lab/pause", json={"until": end.isoformat()})
                assert paused.json()["paused"]
                killed.process.kill()
                body, wait = {"worker_id": job["worker_id"]}, {"Prefer": "wait=30"}
                claimed = (await client.post(f"{V1}/tasks/claim", json=body, headers=wait)).json()
                assert claimed["task"]["id"] == task["id"]
                assert datetime.now(UTC) >= end
                assert (await client.get(f"{V1}/pauses")).json()["items"] == []
