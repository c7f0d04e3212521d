"""The stream of a group: its state, changes at most four times a second, and the end; access and bounds."""

import asyncio
from typing import Any

import httpx
from databases import on_postgresql, on_sqlite
from fastapi import FastAPI
from rest import V1, claim, expect_problem, get_task, register, report
from servers import ServerProcess
from waiting import until

from streams.sse import STREAM, Reader
from zndraw_joblib.server.process.ports import Identity, identity_key

Local = tuple[FastAPI, httpx.AsyncClient]
Json = dict[str, Any]


async def made(client: httpx.AsyncClient, tasks: int) -> tuple[Json, Json]:
    """Return a job, and a sealed group with some of its tasks."""
    job = await register(client)
    body = {
        "group": {"room": "lab", "on_end": {"job": job["full_name"]}},
        "tasks": [{"room_id": "lab", "job_name": job["full_name"], "payload": {}} for _ in range(tasks)],
    }
    response = await client.post(f"{V1}/tasks/submit", json=body)
    assert response.status_code == 200, response.text
    task = await get_task(client, response.json()["results"][0])
    return job, {"id": task["group"]}


async def run(client: httpx.AsyncClient, job: Json) -> None:
    """Run the next task of a job."""
    task = await claim(client, job["worker_id"])
    assert task is not None
    for status in ("running", "completed"):
        assert (await report(client, task, status)).status_code == 200


async def completed(reader: Reader, count: int) -> None:
    """Wait until a reader has got that so many tasks have completed."""
    await until(lambda: bool(reader.events) and reader.events[-1].data["counts"]["completed"] == count)


async def test_readers_get_the_state_each_change_and_the_end(local: Local) -> None:
    """All readers get the same; one that has the state gets only what follows, another the state."""
    app, client = local
    job, group = await made(client, 3)
    path = f"groups/{group['id']}"
    readers = [Reader(client, path) for _ in range(3)]
    for reader in readers:
        await reader.until(1)
        assert reader.events[0].event == "snapshot"
        assert (reader.events[0].data["id"], reader.events[0].data["total"]) == (group["id"], 3)
    await run(client, job)
    for reader in readers:
        await completed(reader, 1)
        assert set(reader.events[-1].data) == {"sealed", "total", "counts", "progress"}
    await run(client, job)
    for reader in readers:
        await completed(reader, 2)
    await run(client, job)
    for reader in readers:
        end = (await reader.ended())[-1]
        assert (end.event, end.data["counts"]["completed"]) == ("end", 3)
        assert (end.data["ended_at"] is None, end.data["on_end_state"]) == (False, "submitted")
    late = await Reader(client, path, end.id).ended()
    assert [event.event for event in late] == ["end"]
    await until(lambda: len(app.state.joblib.streams) == 0)


@on_sqlite
async def test_a_client_continues_after_the_state_that_it_has(local: Local) -> None:
    """It gets only what follows; a client that has an earlier state gets the present one first."""
    _, client = local
    job, group = await made(client, 3)
    path = f"groups/{group['id']}"
    reader = Reader(client, path)
    await reader.until(1)
    await run(client, job)
    await completed(reader, 1)
    behind, present = (Reader(client, path, reader.events[index].id) for index in (0, -1))
    assert (await behind.until(1))[0].data["id"] == group["id"]
    await until(lambda: present.response is not None)
    assert present.events == []
    await run(client, job)
    for each in (reader, behind, present):
        await completed(each, 2)
        await each.close()
    assert present.events[0].event == "snapshot"


@on_postgresql
async def test_a_reader_of_another_server_gets_the_changes(local: Local, database_url: str) -> None:
    """And continues there with the number of a state that this server sent."""
    _, client = local
    job, group = await made(client, 2)
    path = f"groups/{group['id']}"
    with ServerProcess(database_url) as process:
        async with process.client() as other:
            reader = Reader(other, path)
            first = (await reader.until(1))[0]
            assert first.id is not None
            await run(client, job)
            await completed(reader, 1)
            events = (await client.get(f"{V1}/{path}/events", params={"after": first.id})).json()
            assert (events["group"]["counts"]["completed"], events["ended"]) == (1, False)
            assert events["next"] == reader.events[-1].id
            await run(client, job)
            assert (await reader.ended())[-1].event == "end"


async def test_a_busy_group_is_read_at_most_four_times_a_second(local: Local) -> None:
    """However many clients follow it, and however they do; nothing is read once none follows it."""
    app, client = local
    job, group = await made(client, 10)
    path, reads = f"groups/{group['id']}", 0
    database = app.state.joblib.runtime.database
    read_snapshot = database.read_snapshot

    async def counted(work: Any, *args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += str(args[0]) == group["id"]
        return await read_snapshot(work, *args, **options)

    database.read_snapshot = counted
    readers = [Reader(client, path) for _ in range(3)]
    for reader in readers:
        await reader.until(1)
    headers = {"Prefer": "wait=20"}
    state = (await client.get(f"{V1}/{path}/events")).json()["next"]
    began, before = asyncio.get_running_loop().time(), reads
    for _ in range(9):
        await run(client, job)
        state = (await client.get(f"{V1}/{path}/events", params={"after": state}, headers=headers)).json()[
            "next"
        ]
    seconds = asyncio.get_running_loop().time() - began
    assert 2 <= reads - before <= seconds / 0.25 + 2
    assert all(len(reader.events) <= reads for reader in readers)
    for reader in readers:
        await reader.close()
    await until(lambda: not list(app.state.joblib.group_streams.pollers()))


@on_sqlite
async def test_json_waits_for_a_change(local: Local) -> None:
    """Without a change it has no group; the number of an unknown state, or none, returns at once."""
    _, client = local
    job, group = await made(client, 2)
    url = f"{V1}/groups/{group['id']}/events"
    first = (await client.get(url, headers={"Prefer": "wait=20"})).json()
    assert (first["group"]["total"], first["ended"]) == (2, False)
    params = {"after": first["next"]}
    same = await client.get(url, params=params, headers={"Prefer": "wait=0.3"})
    assert same.json() == {"next": first["next"], "ended": False}
    assert (await client.get(url, params={"after": 7})).json() == first
    waiting = asyncio.create_task(client.get(url, params=params, headers={"Prefer": "wait=50"}))
    await run(client, job)
    changed = await waiting
    assert changed.json()["group"]["counts"]["pending"] < 2
    assert changed.headers["Preference-Applied"] == "wait=50"
    expect_problem(await client.get(url, params={"after": "x"}), 422, "invalid-request")
    unknown = f"{V1}/groups/{job['worker_id']}/events"
    expect_problem(await client.get(unknown), 404, "group-not-found")


@on_sqlite
async def test_a_token_opens_a_bounded_stream(local: Local) -> None:
    """Of its group only. It counts as an event stream, and ends with the sockets of its user."""
    app, client = local
    joblib = app.state.joblib
    _, group = await made(client, 1)
    path = f"groups/{group['id']}"
    token = (await client.post(f"{V1}/{path}/events/token")).json()["token"]
    async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as anonymous:
        reader = Reader(anonymous, path, token=token)
        await reader.until(1)
        for other in (f"{V1}/groups/{'0' * 32}/events", f"{V1}/rooms/lab/events", f"{V1}/{path}"):
            expect_problem(await anonymous.get(other, params={"token": token}), 401, "unauthorized")
        joblib.settings.max_streams = 1
        response = await client.get(f"{V1}/{path}/events", headers=STREAM)
        expect_problem(response, 503, "service-unavailable")
        me = (await client.get(f"{V1}/me")).json()["id"]
        joblib.runtime.waiters.wake(identity_key(me))
        await reader.ended()


@on_sqlite
async def test_a_stream_ends_with_access_and_with_the_server(local: Local) -> None:
    """Access is checked again while nothing happens."""
    app, client = local
    joblib = app.state.joblib
    _, group = await made(client, 1)
    path = f"groups/{group['id']}"
    joblib.keep_alive_seconds, joblib.trusted_seconds = 0.05, 0.0
    token = (await client.post(f"{V1}/{path}/events/token")).json()["token"]
    is_allowed = True

    async def find_reader(identity: Identity, *_: object) -> Identity | None:
        return identity if is_allowed else None

    joblib.find_reader = find_reader
    readers = [Reader(client, path, token=token), Reader(client, path)]
    for reader in readers:
        await reader.until(1)
    is_allowed = False
    await readers[0].ended()
    joblib.begin_stop()
    await readers[1].ended()
