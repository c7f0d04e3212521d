"""Limits and contents of request bodies: too large is 413, invalid JSON 422, valid JSON returns unchanged."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import V1, AsUser, claim, expect_problem, get_task, register, report, submit

from zndraw_joblib.server.http import requests

MIB = 1024 * 1024
CUT = 64 * 1024
JSON = {"Content-Type": "application/json"}


def sized(size: int, fill: str = "x") -> dict[str, str]:
    """Return an object of exactly this many bytes as compact JSON."""
    room = size - len('{"x":""}')
    text = fill * (room // len(fill.encode()))
    return {"x": text + "x" * (room - len(text.encode()))}


@pytest.fixture
async def job(client: httpx.AsyncClient) -> dict[str, Any]:
    """Register a job that accepts any payload."""
    return await register(client)


@pytest.fixture
def url(job: dict[str, Any]) -> str:
    """Return the URL for submissions of the job."""
    return f"{V1}/rooms/lab/tasks/{job['full_name']}"


async def test_a_payload_has_at_most_one_mebibyte(client: httpx.AsyncClient, url: str) -> None:
    """One byte more is 413, and no task is submitted."""
    for fill in ("x", "é", "名"):
        response = await client.post(url, json={"payload": sized(MIB, fill)})
        assert (response.status_code, response.json().get("payload")) == (202, sized(MIB, fill))
        expect_problem(
            await client.post(url, json={"payload": sized(MIB + 1, fill)}), 413, "content-too-large"
        )
    assert (await client.get(f"{V1}/rooms/lab/tasks", params={"limit": 0})).json()["total"] == 3


async def test_escapes_count_as_the_characters_they_encode(client: httpx.AsyncClient, url: str) -> None:
    """Clients may send ASCII only."""
    for fill in ("é", "名"):
        body = json.dumps({"payload": sized(MIB, fill)}, ensure_ascii=True)
        response = await client.post(url, content=body, headers=JSON)
        assert (response.status_code, response.json().get("payload")) == (202, sized(MIB, fill))


async def test_a_schema_has_at_most_one_mebibyte(client: httpx.AsyncClient) -> None:
    """A larger schema is 413; no job and no worker is registered."""
    body = {"category": "modifiers", "name": "Big"}
    response = await client.put(f"{V1}/rooms/lab/jobs", json={**body, "schema": sized(MIB + 1)})
    expect_problem(response, 413, "content-too-large")
    assert (await client.get(f"{V1}/workers")).json()["total"] == 0
    response = await client.put(f"{V1}/rooms/lab/jobs", json={**body, "schema": sized(MIB)})
    assert (response.status_code, response.json()["schema"]) == (201, sized(MIB))


async def test_a_result_has_at_most_one_mebibyte(client: httpx.AsyncClient, job: dict[str, Any]) -> None:
    """A larger result is 413; the task keeps running and may end with a smaller one."""
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    await report(client, task, "running")
    expect_problem(await report(client, task, "completed", result=sized(MIB + 1)), 413, "content-too-large")
    assert (await get_task(client, task))["status"] == "running"
    assert (await report(client, task, "completed", result=sized(MIB))).json()["result"] == sized(MIB)


async def test_a_body_that_is_too_large_is_not_read_completely(client: httpx.AsyncClient, url: str) -> None:
    """The server responds with 413 at the limit, with or without a Content-Length."""
    sent = 0

    async def stream() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += MIB
            yield b" " * MIB

    expect_problem(await client.post(url, content=stream(), headers=JSON), 413, "content-too-large")
    assert sent <= 100 * MIB
    expect_problem(await client.post(url, content=b" " * (8 * MIB), headers=JSON), 413, "content-too-large")


async def test_one_user_leaves_bodies_to_others(app: FastAPI, as_user: AsUser, url: str) -> None:
    """Slow bodies of one user reach its share (429), those of all the limit (503); small ones pass."""
    app.state.joblib.body_bytes = requests.bytes_of_bodies(app.state.joblib.settings, 20 * MIB)
    ada, bob, eve, kim = [await as_user(name) for name in ("ada", "bob", "eve", "kim")]
    body = b'{"payload":{}}'.ljust(4 * MIB - CUT)
    end, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def slow() -> AsyncIterator[bytes]:
        yield body
        arrived.release()
        await end.wait()

    posts = []
    for user in (ada, ada, bob, eve, eve):
        posts.append(asyncio.ensure_future(user.post(url, content=slow())))
        await arrived.acquire()
        if len(posts) == 2:
            refused = await ada.post(url, content=body)
            assert "max_share_per_user" in expect_problem(refused, 429, "too-many-requests")["detail"]
    assert len(app.state.joblib.body_bytes) == 5 * (len(body) - CUT)
    refused = await kim.post(url, content=body)
    assert "bytes of bodies" in expect_problem(refused, 503, "service-unavailable")["detail"]
    assert refused.headers["retry-after"] == "5"
    for user in (ada, kim):
        assert (await user.post(url, content=body.strip())).status_code == 202
    end.set()
    assert [response.status_code for response in await asyncio.gather(*posts)] == [202] * 5
    assert len(app.state.joblib.body_bytes) == 0
    expect_problem(await ada.post(url, content=b"{".ljust(MIB)), 422, "invalid-request")
    assert len(app.state.joblib.body_bytes) == 0


async def test_a_long_error_is_truncated(client: httpx.AsyncClient, job: dict[str, Any]) -> None:
    """64 KiB remain with a mark at the end, and no character is split."""
    for text in ("e" * CUT, "e" * (CUT + 1), "é" * CUT, "x" + "名" * CUT, "🧪" * CUT, "e" * 500_000):
        await submit(client, job)
        task = await claim(client, job["worker_id"])
        response = await report(client, task, "failed", error=text)
        assert response.status_code == 200
        kept = response.json()["error"]
        assert (await get_task(client, task))["error"] == kept
        if len(text.encode()) <= CUT:
            assert kept == text
            continue
        assert CUT - 200 < len(kept.encode()) <= CUT
        beginning, mark = kept.rsplit("\n", 1)
        assert text.startswith(beginning)
        assert "cut" in mark
        again = await report(client, task, "failed", error=text)
        assert (again.status_code, again.json()["error"]) == (200, kept)


@on_both
async def test_control_characters_of_an_error_are_replaced(
    client: httpx.AsyncClient, job: dict[str, Any]
) -> None:
    """NUL is replaced, because not every database stores it; other characters stay."""
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    response = await report(client, task, "failed", error="a\x00b\x1b[31m\u2028\U0010ffff\r\n")
    assert response.json()["error"] == "a\ufffdb\x1b[31m\u2028\U0010ffff\r\n"
    assert (
        await report(client, task, "failed", error="a\x00b\x1b[31m\u2028\U0010ffff\r\n")
    ).status_code == 200


VALUES: list[dict[str, Any]] = [
    {"a": [0, -0.0, 1e-7, 5e-324, 1.7976931348623157e308, 0.1, 2**53 + 1, 2**64, -(10**40), True, None]},
    {"": {"": [[], {}, ""]}},
    {"b": 1, "a": 2, "\u0000": "\u0000", "é": "e\u0301"},
    {"deep": json.loads("[" * 100 + "]" * 100)},
]


@on_both
async def test_json_returns_unchanged(client: httpx.AsyncClient, job: dict[str, Any]) -> None:
    """Payload, result and schema keep numbers, the order of keys, empty keys and nesting."""
    for number, value in enumerate(VALUES):
        expected = json.dumps(value)
        task = await submit(client, job, **value)
        assert json.dumps(task["payload"]) == expected
        claimed = await claim(client, job["worker_id"])
        assert json.dumps(claimed["payload"]) == expected
        await report(client, task, "running")
        await report(client, task, "completed", result=value)
        listed = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"][0]
        assert json.dumps(listed["result"]) == expected
        other = await register(client, f"Other{number}", schema={"default": value})
        shown = await client.get(f"{V1}/rooms/lab/jobs/{other['full_name']}")
        assert json.dumps(shown.json()["schema"]["default"]) == expected


NO_JSON = [
    b"{",
    b'{"a":1}}',
    b"{'a':1}",
    b"\xff\xfe{}",
    b'{"a":"\xff"}',
    b'{"a":"\xed\xa0\x80"}',
    rb'{"a":"\ud800"}',
    rb'{"\udfff":1}',
    rb'{"a":"\ud800\ud800"}',
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":Infinity}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"[" * 900_000,
    b'{"a":01}',
    b'{"a":"\x00"}',
]
NO_NUMBERS = [
    b'{"a":1e400}',
    b'{"a":[-1E+999]}',
    b'{"a":0.5e+0400}',
    b'{"a":1' + b"0" * 299 + b"e20}",
    b'{"a":' + b"9" * 400 + b".0}",
    b'{"text":"' + b"x" * 100_000 + b'","a":[{"b":-1e400}]}',
    b'{"text":"' + b"x" * 100_000 + b'","a":[' + b"1," * 1000 + b"1e400]}",
]


async def test_invalid_json_is_refused(client: httpx.AsyncClient, job: dict[str, Any], url: str) -> None:
    """As a body or as a field it is 422, and the server writes no row."""
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    await report(client, task, "running")
    for text in [b"", b" ", *NO_JSON, *NO_NUMBERS]:
        wrapped = b'{"%s":' + text + b',"status":"completed","category":"modifiers","name":"X"}'
        bodies = [
            ("POST", url, wrapped.replace(b"%s", b"payload")),
            ("PATCH", f"{V1}/tasks/{task['id']}", wrapped.replace(b"%s", b"result")),
            ("PUT", f"{V1}/rooms/lab/jobs", wrapped.replace(b"%s", b"schema")),
        ]
        if text not in NO_NUMBERS:
            bodies.append(("POST", url, text))
        for method, address, content in bodies:
            response = await client.request(method, address, content=content, headers=JSON)
            assert response.status_code == 422, (method, text[:40], response.text[:300])
            expect_problem(response, 422, "invalid-request")
    assert (await get_task(client, task))["status"] == "running"
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1


@on_both
async def test_deep_nesting_is_refused_or_kept(
    client: httpx.AsyncClient, job: dict[str, Any], url: str
) -> None:
    """A deeply nested value returns unchanged or is 4xx, never 500."""
    for depth in (50, 120, 180, 195, 199, 200, 201, 220, 250, 253, 254, 255, 256, 260, 300, 500, 1000):
        for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            response = await client.post(url, content=f'{{"payload":{{"x":{text}}}}}', headers=JSON)
            if response.status_code != 202:
                assert response.status_code in {413, 422}, (depth, response.text)
                expect_problem(response, response.status_code, response.json()["type"].rsplit("/", 1)[1])
                continue
            assert json.dumps(response.json()["payload"]["x"], separators=(",", ":")) == text
            listed = (await client.get(f"{V1}/rooms/lab/tasks", params={"limit": 1})).json()["items"][0]
            assert listed["payload"] == response.json()["payload"]
            body = f'{{"category":"modifiers","name":"D{depth}{len(text)}","schema":{{"default":{text}}}}}'
            put = await client.put(f"{V1}/rooms/lab/jobs", content=body, headers=JSON)
            assert put.status_code in {201, 413, 422}, (depth, put.text)


async def test_the_last_of_repeated_keys_counts(client: httpx.AsyncClient, url: str) -> None:
    """The server behaves like most JSON parsers."""
    response = await client.post(url, content=b'{"payload":{"a":1},"payload":{"a":2,"a":3}}', headers=JSON)
    assert (response.status_code, response.json()["payload"]) == (202, {"a": 3})


async def test_every_response_is_strict_json(client: httpx.AsyncClient, url: str) -> None:
    """A number that is too large for a float never becomes NaN or Infinity."""
    response = await client.post(url, content=b'{"payload":{"a":1e400}}', headers=JSON)
    listed = await client.get(f"{V1}/rooms/lab/tasks")
    for text in (response.text, listed.text):
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


async def test_another_content_type_is_refused_or_read_as_json(client: httpx.AsyncClient, url: str) -> None:
    """It is 4xx or works, never 500."""
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "image/png",
        "\x7f",
    ):
        response = await client.post(url, content=b'{"payload":{}}', headers={"Content-Type": kind})
        assert response.status_code in {202, 415, 422}, kind
    response = await client.post(
        url, content=b'{"payload":{}}', headers={"Content-Type": "application/json; charset=utf-8"}
    )
    assert response.status_code == 202


async def test_unknown_fields_are_ignored(client: httpx.AsyncClient, job: dict[str, Any], url: str) -> None:
    """Old and new clients may send more than this server knows."""
    extra = {"unknown": {"x": 1}, "id": "mine", "room_id": "other"}
    task = (await client.post(url, json={"payload": {}, **extra})).json()
    assert task["room_id"] == "lab"
    response = await client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"], **extra})
    assert response.json()["task"]["id"] == task["id"]
    assert (await report(client, task, "running", **extra)).status_code == 200
    assert (await register(client, "Other", **extra))["room_id"] == "@global"
