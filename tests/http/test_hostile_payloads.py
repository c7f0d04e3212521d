"""Payloads and schemas that are made to cost much: work and memory grow with their size alone."""

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, register, report, submit

from zndraw_joblib.server.http.access import QueueState
from zndraw_joblib.server.http.requests import bytes_of_responses
from zndraw_joblib.server.queue import rules_payloads
from zndraw_joblib.wire.masks import (
    ALL_PATHS,
    MASK,
    joined_paths,
    masked_paths,
    places_of_mask,
    without_secrets,
)
from zndraw_joblib.wire.successors import places, result_nodes

LONG = "k" * 200_000
MIB = 2**20


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return how much memory a function takes at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_places_of_a_payload_take_no_more_memory_than_the_payload() -> None:
    """A long name before many values: their pointers would have 20 GB."""
    payload = {LONG: [[]] * 100_000}
    assert peak_bytes(lambda: list(places(payload))) < 20 * MIB
    nested = {LONG: [{"$result": {"task": str(UNKNOWN_ID)}}] * 10_000}
    with pytest.raises(ValueError, match="more than 1000 characters"):
        list(places(nested))
    assert len(list(result_nodes(nested))) == 10_000
    secrets = {LONG: dict.fromkeys(map(str, range(20_000)), MASK)}
    paths = masked_paths({"additionalProperties": {"additionalProperties": {"writeOnly": True}}})
    named: list[str] = []
    assert peak_bytes(lambda: named.extend(places_of_mask(secrets, paths))) < 20 * MIB
    assert (len(named), max(map(len, named))) == (100, 1002)


async def test_a_value_with_a_long_pointer_is_refused_with_the_remedy(client: httpx.AsyncClient) -> None:
    """In the payload of a step, and of the task at the end of a group."""
    job = await register(client)
    first = await submit(client, job)
    value = {"$result": {"task": first["id"]}}
    body = {"payload": {"k" * 1001: value}, "after": {"tasks": [first["id"]]}}
    response = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json=body)
    assert "use shorter names" in expect_problem(response, 422, "invalid-request")["detail"]
    on_end = {"job": job["full_name"], "payload": {"k" * 1001: {"$group": "counts"}}}
    response = await client.post(f"{V1}/groups", json={"room": "lab", "on_end": on_end})
    assert "use shorter names" in expect_problem(response, 422, "invalid-payload")["detail"]


def test_a_value_to_which_many_paths_lead_is_secret_as_a_whole() -> None:
    """Each part of it would be compared with all of the paths: 256 of them at 60,000 parts took 5 s."""

    def nested(depth: int) -> dict[str, Any]:
        if not depth:
            return {"additionalProperties": {"writeOnly": True}}
        return {"prefixItems": [nested(depth - 1)], "contains": nested(depth - 1)}

    paths = masked_paths({"properties": {"a": nested(8)}})
    value: Any = dict.fromkeys(map(str, range(60_000)), 1)
    for _ in range(8):
        value = [value]
    started = time.process_time()
    assert without_secrets({"a": value}, paths) == {"a": [[[[MASK]]]]}
    assert time.process_time() - started < 0.5


def test_the_paths_of_schemas_are_bounded() -> None:
    """Long names before many secrets, and many schemas together, hide all values."""
    fields = {f"f{number}": {"writeOnly": True} for number in range(400)}
    assert masked_paths({"properties": {"k" * 1000: {"properties": fields}}}) == ALL_PATHS
    versions = [
        masked_paths({"properties": {f"v{version}{name}": field for name, field in fields.items()}})
        for version in range(20)
    ]
    assert joined_paths(versions) == ALL_PATHS
    assert joined_paths(versions[:2]) not in {ALL_PATHS, None}


def test_errors_are_compared_with_many_places_at_once() -> None:
    """A hundred errors and 30,000 places took a second."""
    filled = [f"/values/{number}/x" for number in range(30_000)]
    errors = [{"pointer": f"/values/{number}/x/deep", "message": ""} for number in range(0, 30_000, 300)]
    other = {"pointer": "/values/7", "message": ""}
    started = time.process_time()
    assert rules_payloads.errors_outside([*errors, other], filled) == [other]
    assert time.process_time() - started < 0.2


async def test_a_search_reads_long_payloads_once(client: httpx.AsyncClient) -> None:
    """`LIKE` compares the whole text at each place: four such searches stopped all reads for 15 s."""
    job = await register(client)
    for _ in range(4):
        await submit(client, job, text="a" * 1_000_000)
    last = await submit(client, job, text="Aä%_~b")
    started = time.process_time()
    found = await client.get(f"{V1}/tasks", params={"room": "lab", "text": "a" * 199 + "b"})
    assert time.process_time() - started < 1
    assert (found.status_code, found.json()["items"]) == (200, [])
    found = await client.get(f"{V1}/tasks", params={"room": "lab", "text": "aä%_~B"})
    assert [task["id"] for task in found.json()["items"]] == [last["id"]]


async def test_one_user_leaves_responses_to_others(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """What a client does not take counts for its user, beyond whose share a response is a 429."""
    queue: QueueState = app.state.joblib
    queue.response_bytes = bytes_of_responses(queue.runtime.settings, 400_000)
    job, text = await register(client), "x" * 120_000
    task = await submit(client, job, text=text)
    ada, bob = await as_user("ada"), await as_user("bob")
    url = f"{V1}/tasks/{task['id']}"
    async with unread(app, ada.build_request("GET", url)):
        refused = await ada.get(url)
        assert "its share (max_share_per_user" in expect_problem(refused, 429, "too-many-requests")["detail"]
        assert refused.headers["x-request-id"]
        assert (await bob.get(url)).status_code == 200
    assert (await ada.get(url)).status_code == 200
    assert len(queue.response_bytes) == 0


@on_both
async def test_lists_of_long_schemas_and_payloads_are_bounded(client: httpx.AsyncClient) -> None:
    """Any worker may register, and any submitter schedule, hundreds with 1 MiB each."""
    job, long = await register(client), "x" * 1_000_000
    times = {"job": job["full_name"], "at": "2099-01-01T00:00:00Z", "payload": {"a": long}}
    for number in range(9):
        assert (await client.put(f"{V1}/rooms/lab/schedules/s{number}", json=times)).status_code == 201
        provider = {"category": "data", "name": f"p{number}", "schema": {"title": long}}
        assert (await client.put(f"{V1}/rooms/lab/providers", json=provider)).status_code == 201
    for noun in ("schedules", "providers"):
        refused = await client.get(f"{V1}/rooms/lab/{noun}")
        assert "Request fewer" in expect_problem(refused, 413, "content-too-large")["detail"]
        page = await client.get(f"{V1}/rooms/lab/{noun}", params={"limit": 8})
        assert len(page.json()["items"]) == 8
        first = (await client.get(f"{V1}/{noun}")).json()
        rest = (await client.get(f"{V1}/{noun}", params={"cursor": first["next"]})).json()
        assert (len(first["items"]), len(rest["items"]), rest["next"]) == (8, 1, None)
    own = {"category": "modifiers", "name": "Long", "schema": {"title": long}}
    await client.put(f"{V1}/rooms/lab/jobs", json=own)
    for path in ("/rooms/lab/overview", "/jobs"):
        listed = (await client.get(f"{V1}{path}")).json()
        entries = {entry["name"]: entry["schema"] for entry in listed.get("jobs") or listed["items"]}
        assert (entries["Long"], entries["Rotate"]) == ({}, job["schema"])
    assert (await client.get(f"{V1}/rooms/lab/jobs/lab:modifiers:Long")).json()["schema"] == own["schema"]


def scope_of(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """Return the ASGI scope of a GET request of a client."""
    headers = [(name.lower(), value) for name, value in client.build_request("GET", path).headers.raw]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "headers": headers, "root_path": ""}
    return {**scope, "asgi": {"version": "3.0"}}


@asynccontextmanager
async def unread(app: FastAPI, request: httpx.Request) -> AsyncIterator[None]:
    """Send a request whose client does not take the response in the block."""
    sent, is_taken = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.set()
            await is_taken.wait()

    path = request.url.path
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "headers": headers, "root_path": ""}
    sending = asyncio.create_task(app({**scope, "asgi": {"version": "3.0"}}, asyncio.Event().wait, send))
    await sent.wait()
    try:
        yield
    finally:
        is_taken.set()
        await sending


async def downloads(client: httpx.AsyncClient) -> list[str]:
    """Return the paths of the results of a group, and of tasks: two large results and a short one."""
    job = await register(client)
    group = (await client.post(f"{V1}/groups", json={"room": "lab"})).json()
    urls = [f"{V1}/groups/{group['id']}/results"]
    for size in (2 * 1024 * 1024, 100_000, 100):
        task = await submit(client, job)
        await claim(client, job["worker_id"])
        await report(client, task, "running")
        urls.append(f"{V1}/tasks/{task['id']}/result")
        stored = await client.put(urls[-1], params={"attempt": 1}, content=bytes(size))
        assert stored.status_code == 200
        await report(client, task, "completed")
    return urls


async def test_one_user_leaves_downloads_to_others(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """Stored results and lines of groups count until the client has taken them; short ones never do."""
    queue: QueueState = app.state.joblib
    queue.runtime.settings.max_downloads = 3
    queue.runtime.settings.max_share_per_user = 0.7
    *large, short = await downloads(client)
    ada, bob, eve = [await as_user(name) for name in ("ada", "bob", "eve")]
    async with (
        unread(app, ada.build_request("GET", large[0])),
        unread(app, ada.build_request("GET", large[1])),
    ):
        for url in large:
            detail = expect_problem(await ada.get(url), 429, "too-many-requests")["detail"]
            assert "max_share_per_user of max_downloads" in detail
        assert [(await ada.get(short)).status_code, (await ada.head(large[1])).status_code] == [200, 200]
        assert (await bob.get(large[2])).content == bytes(100_000)
        async with unread(app, bob.build_request("GET", large[2])):
            refused = await eve.get(large[1])
            assert "max_downloads" in expect_problem(refused, 503, "service-unavailable")["detail"]
            assert refused.headers["retry-after"]
    assert len((await ada.get(large[1])).content) == 2 * 1024 * 1024
    assert len(queue.downloads) == 0
