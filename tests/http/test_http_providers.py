"""Providers over REST: registrations, provider requests and results."""

import asyncio
import hashlib
import json
import random
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import PROBLEM, UNKNOWN_ID, V1, AsUser, expect_problem, parse_utc
from sqlalchemy import select

from zndraw_joblib import get_result_backend, verify_readable_room, verify_writable_room
from zndraw_joblib.server.db.tables import ProviderRecord, ProviderRequestRecord
from zndraw_joblib.server.queue import rules_providers, sql_providers
from zndraw_joblib.server.queue.rules_providers import MAX_PENDING_REQUESTS
from zndraw_joblib.server.results.stores import MemoryResults
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.problems import ServiceUnavailable

BOUND = 25
NAME = "lab:files:home"
URL = f"{V1}/rooms/lab/providers/{NAME}"
NOW = {"Prefer": "wait=0"}


@pytest.fixture(autouse=True)
def patient(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers that have claimed stay connected, and callers wait for results, on a slow machine too."""
    monkeypatch.setattr(rules_providers, "CLAIM_GRACE", timedelta(hours=1))
    runtime.settings.provider_long_poll_default_seconds = BOUND


async def put_provider(
    client: httpx.AsyncClient, room: str = "lab", name: str = "home", **fields: Any
) -> Any:
    """Register a provider and return it. Its worker counts as connected for 5 seconds."""
    body = {"category": "files", "name": name, **fields}
    response = await client.put(f"{V1}/rooms/{room}/providers", json=body)
    assert response.status_code in {200, 201}, response.text
    return response.json()


async def register_provider(client: httpx.AsyncClient, *args: Any, **fields: Any) -> Any:
    """Register a provider whose worker has just asked for requests, and return it."""
    provider = await put_provider(client, *args, **fields)
    assert await claim_request(client, provider["worker_id"]) is None
    return provider


async def claim_request(client: httpx.AsyncClient, worker_id: str, wait: float = 0, **fields: Any) -> Any:
    """Claim a provider request; return it, or None if none is pending."""
    body = {"worker_id": worker_id, **fields}
    response = await client.post(
        f"{V1}/providers/requests/claim", json=body, headers={"Prefer": f"wait={wait}"}
    )
    assert response.status_code == 200, response.text
    return response.json()["request"]


async def upload(
    client: httpx.AsyncClient, provider: Any, request_id: str, content: Any, **headers: str
) -> httpx.Response:
    """Upload a result; return the response, which may be a problem."""
    url = f"{V1}/providers/{provider['id']}/results"
    return await client.post(url, content=content, headers={"X-Request-Hash": request_id, **headers})


async def serve(client: httpx.AsyncClient, provider: Any, content: bytes, **headers: str) -> Any:
    """Wait for one provider request and upload its result; return the request."""
    claimed_request = await claim_request(client, provider["worker_id"], wait=BOUND)
    assert claimed_request is not None
    response = await upload(client, provider, claimed_request["request_id"], content, **headers)
    assert response.status_code == 204, response.text
    return claimed_request


def hashed(**params: Any) -> str:
    """Return the hash of parameters as the contract defines it."""
    return hashlib.sha256(json.dumps(params, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# Registration


@on_both
async def test_a_provider_is_registered(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """201 with all fields; a worker is created and the room is notified."""
    provider = await register_provider(
        client, schema={"type": "object"}, content_type="text/plain; charset=utf-8"
    )
    assert provider["full_name"] == NAME
    assert (provider["room_id"], provider["category"], provider["name"]) == ("lab", "files", "home")
    assert provider["schema"] == {"type": "object"}
    assert provider["content_type"] == "text/plain; charset=utf-8"
    parse_utc(provider["created_at"])
    workers = (await client.get(f"{V1}/workers")).json()["items"]
    assert [worker["id"] for worker in workers] == [provider["worker_id"]]
    assert [(event.event_name, room) for event, room in events] == [("providers_invalidate", "room:lab")]


@on_both
async def test_a_second_registration_replaces_the_first(client: httpx.AsyncClient) -> None:
    """200 with the same id and time, and the new schema, content type and worker."""
    first = await register_provider(client)
    response = await client.put(
        f"{V1}/rooms/lab/providers",
        json={"category": "files", "name": "home", "schema": {"x": 1}, "content_type": "image/png"},
    )
    assert response.status_code == 200
    second = response.json()
    assert (second["id"], second["created_at"]) == (first["id"], first["created_at"])
    assert (second["schema"], second["content_type"]) == ({"x": 1}, "image/png")
    assert second["worker_id"] != first["worker_id"]
    assert (await client.get(f"{URL}/info")).json() == second


async def test_permissions_to_register_a_provider(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Only superusers register in ``@global``, no user in ``@internal``; they may replace a provider."""
    ada, eve = await as_user("ada"), await as_user("eve")
    body = {"category": "files", "name": "home"}
    expect_problem(await ada.put(f"{V1}/rooms/@global/providers", json=body), 403, "forbidden")
    await register_provider(client, "@global")
    for user in (ada, client):
        expect_problem(await user.put(f"{V1}/rooms/@internal/providers", json=body), 403, "forbidden")
    provider = await register_provider(ada)
    expect_problem(
        await eve.put(f"{V1}/rooms/lab/providers", json={"category": "files", "name": "home"}),
        403,
        "forbidden",
    )
    assert (await ada.get(f"{URL}/info")).json() == provider
    assert (await register_provider(client))["id"] == provider["id"]
    expect_problem(await ada.delete(f"{V1}/providers/{provider['id']}"), 403, "forbidden")


async def test_only_the_owner_registers_providers_for_a_worker(
    client: httpx.AsyncClient, as_user: AsUser
) -> None:
    """An unknown worker or another user's worker is 404, and no provider is registered."""
    ada = await as_user("ada")
    others = (await client.post(f"{V1}/workers")).json()["id"]
    for worker_id in (UNKNOWN_ID, others):
        body = {"category": "files", "name": "home", "worker_id": worker_id}
        expect_problem(await ada.put(f"{V1}/rooms/lab/providers", json=body), 404, "worker-not-found")
    assert (await ada.get(f"{V1}/rooms/lab/providers")).json()["total"] == 0


async def test_an_invalid_registration_names_the_field(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """422 with the place of the error; no provider is registered."""
    for fields in [
        {"name": ""},
        {"name": "a:b"},
        {"name": "../up"},
        {"category": "x" * 129},
        {"content_type": "text"},
        {"content_type": "text/html\r\nSet-Cookie: a=b"},
        {"content_type": "a/" + "b" * 300},
        {"content_type": 'text/plain; a="\u20ac"'},
        {"content_type": 'text/plain; a="\u00e9"'},
        {"schema": []},
        {"worker_id": "me"},
    ]:
        with subtests.test(fields=fields):
            body = {"category": "files", "name": "home"} | fields
            problem = expect_problem(
                await client.put(f"{V1}/rooms/lab/providers", json=body), 422, "invalid-request"
            )
            assert next(iter(fields)) in problem["detail"]
            assert (await client.get(f"{V1}/rooms/lab/providers")).json()["total"] == 0


async def test_allowed_provider_categories_limits_the_categories(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """The setting is read at each request."""
    await register_provider(client)
    runtime.settings.allowed_provider_categories = ["frames"]
    body = {"category": "files", "name": "other"}
    expect_problem(await client.put(f"{V1}/rooms/lab/providers", json=body), 400, "invalid-category")
    assert (await client.get(f"{V1}/rooms/lab/providers")).json()["total"] == 1


async def test_the_room_guards_of_a_host_apply(client: httpx.AsyncClient, app: FastAPI) -> None:
    """Registrations check that the room is writable, lists and requests that it is readable."""
    await register_provider(client)

    def locked() -> str:
        from fastapi import HTTPException

        raise HTTPException(423, "locked")

    app.dependency_overrides[verify_writable_room] = locked
    expect_problem(
        await client.put(f"{V1}/rooms/lab/providers", json={"category": "files", "name": "x"}), 423, "locked"
    )
    assert (await client.get(f"{V1}/rooms/lab/providers")).status_code == 200

    def hidden() -> str:
        from fastapi import HTTPException

        raise HTTPException(403, "hidden")

    app.dependency_overrides[verify_readable_room] = hidden
    for url in (f"{V1}/rooms/lab/providers", URL, f"{URL}/info"):
        expect_problem(await client.get(url), 403, "forbidden")
    app.dependency_overrides.clear()


@on_both
async def test_concurrent_registrations_of_one_provider(client: httpx.AsyncClient) -> None:
    """None fails; one worker is active, and all are registered."""
    body = {"category": "files", "name": "home"}
    responses = await asyncio.gather(*[client.put(f"{V1}/rooms/lab/providers", json=body) for _ in range(20)])
    assert sorted(response.status_code for response in responses) == [200] * 19 + [201]
    assert len({response.json()["id"] for response in responses}) == 1
    last = (await client.get(f"{URL}/info")).json()
    assert last["worker_id"] in {response.json()["worker_id"] for response in responses}


# Lists


@on_both
async def test_a_room_sees_its_own_and_global_providers(client: httpx.AsyncClient) -> None:
    """`@global` sees only its own; an invisible provider is 404."""
    own_provider = await register_provider(client)
    everybodys = await register_provider(client, "@global")
    listed = {
        room: [
            found["full_name"] for found in (await client.get(f"{V1}/rooms/{room}/providers")).json()["items"]
        ]
        for room in ("lab", "attic", "@global", "@internal")
    }
    assert listed == {
        "lab": [everybodys["full_name"], own_provider["full_name"]],
        "attic": [everybodys["full_name"]],
        "@global": [everybodys["full_name"]],
        "@internal": [everybodys["full_name"]],
    }
    for room in ("attic", "@global"):
        for end in ("", "/info"):
            response = await client.get(f"{V1}/rooms/{room}/providers/{NAME}{end}", headers=NOW)
            expect_problem(response, 404, "provider-not-found")
    assert (await client.get(f"{V1}/rooms/lab/providers/@global:files:home/info")).json() == everybodys


async def test_cross_room_jobs_covers_providers(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """With the setting every room sees all providers, as in version 0.1.7."""
    provider = await register_provider(client)
    runtime.settings.cross_room_jobs = True
    assert (await client.get(f"{V1}/rooms/attic/providers/{NAME}/info")).json() == provider


async def test_a_list_of_providers_has_pages(client: httpx.AsyncClient) -> None:
    """Newest first, each once, with the total."""
    registered = [(await register_provider(client, name=f"p{n}"))["full_name"] for n in range(7)]
    found: list[str] = []
    for offset in range(0, 8, 2):
        params = {"limit": 2, "offset": offset}
        page = (await client.get(f"{V1}/rooms/lab/providers", params=params)).json()
        assert (page["total"], page["limit"], page["offset"]) == (7, 2, offset)
        found += [provider["full_name"] for provider in page["items"]]
    assert found == registered[::-1]


async def test_an_unknown_provider_is_not_found(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """404 for its information and for a request."""
    for name in ("home", "files:home", "lab:files:none", "lab:fi les:home", "a@b:files:home"):
        with subtests.test(name=name):
            await register_provider(client)
            for end in ("", "/info"):
                expect_problem(
                    await client.get(f"{V1}/rooms/lab/providers/{name}{end}"), 404, "provider-not-found"
                )


# Requests and results


@on_both
async def test_the_worker_that_claims_a_request_answers_it(
    client: httpx.AsyncClient, events: list[Emission]
) -> None:
    """The caller gets bytes and content type; the room gets one event with the hash of the parameters."""
    provider = await register_provider(client, content_type="text/csv")
    events.clear()
    url, headers = f"{URL}?b=2&a=1", {"Prefer": "wait=27"}
    response, claimed_request = await asyncio.gather(
        client.get(url, headers=headers), serve(client, provider, b"x,y\n1,2\n")
    )
    assert (response.status_code, response.content) == (200, b"x,y\n1,2\n")
    assert response.headers["content-type"] == "text/csv"
    assert response.headers["preference-applied"] == "wait=27"
    params = '{"a":"1","b":"2"}'
    request_id = hashed(a="1", b="2")
    request_body = {"request_id": request_id, "provider_name": NAME, "params": params}
    assert claimed_request == {**request_body, "provider_id": provider["id"]}
    emission = [(event.event_name, event.model_dump(), room) for event, room in events]
    assert emission == [
        ("provider_request", request_body, f"providers:{NAME}"),
        ("provider_result_ready", {"provider_name": NAME, "request_hash": request_id}, "room:lab"),
    ]


@on_both
async def test_a_result_is_cached(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """The second request gets the cached result, with the parameters in any order."""
    provider = await register_provider(client)
    await asyncio.gather(client.get(f"{URL}?a=1&b=2"), serve(client, provider, b"{}"))
    events.clear()
    response = await client.get(f"{URL}?b=2&a=1", headers={"Prefer": "wait=5"})
    assert (response.status_code, response.content) == (200, b"{}")
    assert "preference-applied" not in response.headers
    assert events == []
    assert await claim_request(client, provider["worker_id"]) is None


async def test_repeated_parameters_are_a_list(client: httpx.AsyncClient) -> None:
    """Another order or another count is another request."""
    provider = await register_provider(client)
    queries = ["x=1&x=2", "x=2&x=1", "x=1", "x=", "x=1&y=%5B%221%22%5D", "x=%C3%A4&x=%C3%A4", ""]
    seen = {}
    for query in queries:
        expect_problem(await client.get(f"{URL}?{query}", headers=NOW), 504, "provider-timeout")
        claimed_request = await claim_request(client, provider["worker_id"])
        seen[claimed_request["request_id"]] = json.loads(claimed_request["params"])
    assert list(seen.values()) == [
        {"x": ["1", "2"]},
        {"x": ["2", "1"]},
        {"x": "1"},
        {"x": ""},
        {"x": "1", "y": '["1"]'},
        {"x": ["ä", "ä"]},
        {},
    ]
    assert list(seen) == [hashed(**params) for params in seen.values()]


async def test_parameters_have_at_most_32_kib(client: httpx.AsyncClient) -> None:
    """413 names the limit; no worker is notified."""
    provider = await register_provider(client)
    expect_problem(await client.get(URL, params={"x": "y" * 40_000}, headers=NOW), 413, "content-too-large")
    expect_problem(await client.get(URL, params={"x": "y" * 30_000}, headers=NOW), 504, "provider-timeout")
    claimed_request = await claim_request(client, provider["worker_id"])
    assert len(json.loads(claimed_request["params"])["x"]) == 30_000


@on_both
async def test_two_hundred_identical_requests_reach_the_provider_once(
    client: httpx.AsyncClient, events: list[Emission]
) -> None:
    """All callers get the same bytes."""
    provider = await register_provider(client)
    await claim_request(client, provider["worker_id"])  # the worker is connected
    events.clear()
    waiting = [
        asyncio.ensure_future(client.get(f"{URL}?x=1", headers={"Prefer": "wait=20"})) for _ in range(200)
    ]
    claimed_request = await claim_request(client, provider["worker_id"], wait=BOUND)
    second = asyncio.ensure_future(claim_request(client, provider["worker_id"], wait=1))
    await upload(client, provider, claimed_request["request_id"], b"the same")
    responses = await asyncio.gather(*waiting)
    assert {(response.status_code, response.content) for response in responses} == {(200, b"the same")}
    assert await second is None
    assert [event.event_name for event, _ in events].count("provider_request") == 1


async def test_repeated_requests_for_a_slow_result_reach_the_provider_once(client: httpx.AsyncClient) -> None:
    """504 with Retry-After until the result arrives; then it is cached."""
    provider = await register_provider(client)
    for _ in range(3):
        response = await client.get(URL, headers=NOW)
        expect_problem(response, 504, "provider-timeout")
        assert response.headers["retry-after"] == "2"
        assert "preference-applied" not in response.headers
    claimed_request = await claim_request(client, provider["worker_id"])
    assert await claim_request(client, provider["worker_id"]) is None
    await upload(client, provider, claimed_request["request_id"], b"late")
    assert (await client.get(URL, headers=NOW)).content == b"late"


async def test_a_wait_is_bounded(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """The setting bounds it, the response returns the applied wait; without `Prefer` the default applies."""
    provider = await register_provider(client)
    await claim_request(client, provider["worker_id"])  # the worker is connected
    runtime.settings.provider_long_poll_max_seconds = 0.2
    runtime.settings.provider_long_poll_default_seconds = 0.1
    for headers, least in (({"Prefer": "wait=60"}, 0.2), ({}, 0.1)):
        began = time.monotonic()
        response = await client.get(URL, headers=headers)
        expect_problem(response, 504, "provider-timeout")
        assert least <= time.monotonic() - began < BOUND


async def test_a_provider_without_a_connected_worker_is_503(client: httpx.AsyncClient) -> None:
    """503 with Retry-After, long before the end of the wait."""
    await put_provider(client)
    began = time.monotonic()
    response = await client.get(URL, headers={"Prefer": "wait=30"})
    expect_problem(response, 503, "provider-not-connected")
    assert int(response.headers["retry-after"]) >= 1
    assert time.monotonic() - began < BOUND
    began = time.monotonic()
    expect_problem(await client.get(URL, headers={"Prefer": "wait=30"}), 503, "provider-not-connected")
    assert time.monotonic() - began < BOUND


async def test_a_worker_that_closes_its_claim_is_not_connected(
    app: FastAPI, client: httpx.AsyncClient
) -> None:
    """An open claim counts as connected; after it is closed, callers are soon refused."""
    provider = await register_provider(client)
    with pytest.raises(httpx.ReadTimeout):
        await _close_waiting_claim(app, client, provider["worker_id"])
    began = time.monotonic()
    expect_problem(await client.get(URL, headers={"Prefer": "wait=30"}), 503, "provider-not-connected")
    assert time.monotonic() - began < BOUND


async def _close_waiting_claim(app: FastAPI, client: httpx.AsyncClient, worker_id: str) -> None:
    """Send a claim over ASGI and disconnect while it waits."""
    body = json.dumps({"worker_id": worker_id}).encode()
    headers = [
        (b"authorization", client.headers["authorization"].encode()),
        (b"content-type", b"application/json"),
        (b"prefer", b"wait=30"),
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{V1}/providers/requests/claim",
        "raw_path": b"",
        "query_string": b"",
        "headers": headers,
    }
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    waiters = app.state.joblib.runtime.waiters

    async def receive() -> dict[str, Any]:
        message = next(messages, None)
        if message is not None:
            return message
        async with asyncio.timeout(BOUND):
            while not waiters.has(f"requests:{worker_id}"):  # noqa: ASYNC110 - there is no event to await
                await asyncio.sleep(0.005)
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    await app({**scope, "http_version": "1.1", "scheme": "http", "server": ("t", 80)}, receive, send)
    raise httpx.ReadTimeout("hung up")


async def test_a_provider_error_reaches_the_caller(client: httpx.AsyncClient) -> None:
    """The problem has the text of the worker; a new request reaches the provider again."""
    provider = await register_provider(client)
    failure = json.dumps({"error": "FileNotFoundError", "detail": "no such file: /x"}).encode()
    waiting = [asyncio.ensure_future(client.get(f"{URL}?path=/x")) for _ in range(5)]
    await serve(client, provider, failure, **{"X-Result-Status": "error"})
    for response in await asyncio.gather(*waiting):
        body = expect_problem(response, 400, "provider-execution-failed")
        assert body["error"] == "FileNotFoundError"
        assert "no such file: /x" in body["detail"]
    response, _ = await asyncio.gather(client.get(f"{URL}?path=/x"), serve(client, provider, b"found"))
    assert (response.status_code, response.content) == (200, b"found")


async def test_invalid_parameters_are_422(client: httpx.AsyncClient) -> None:
    """The problem has the text of the provider."""
    provider = await register_provider(client)
    failure = json.dumps({"error": "ValidationError", "detail": "frame: not a number", "is_invalid": True})
    response, _ = await asyncio.gather(
        client.get(f"{URL}?frame=x"),
        serve(client, provider, failure.encode(), **{"X-Result-Status": "error"}),
    )
    assert "frame: not a number" in expect_problem(response, 422, "invalid-request")["detail"]


async def test_a_provider_error_may_have_any_text(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """A long text is truncated."""
    for body in [
        b"",
        b"out of reach",
        b"\xff\xfe",
        b'{"detail": 7}',
        b"x" * 200_000,
        json.dumps({"detail": "\x01" * 65_000}).encode(),
    ]:
        with subtests.test(body=body):
            provider = await register_provider(client)
            response, _ = await asyncio.gather(
                client.get(URL), serve(client, provider, body, **{"X-Result-Status": "error"})
            )
            problem = expect_problem(response, 400, "provider-execution-failed")
            assert len(problem["detail"]) < 70_000


@on_both
async def test_a_problem_in_place_of_a_result_is_stored_like_one(client: httpx.AsyncClient) -> None:
    """Readers get it with its status until it expires, or a result or another registration comes."""
    provider = await register_provider(client)
    problem = {
        "type": "https://host.example/busy",
        "title": "Busy",
        "status": 409,
        "detail": "in use",
        "by": 7,
    }
    first, claimed = await asyncio.gather(
        client.get(f"{URL}?path=/x"),
        serve(client, provider, json.dumps(problem).encode(), **{"X-Result-Status": "error"}),
    )
    again = await client.get(f"{URL}?path=/x", headers=NOW)
    for response in (first, again):
        assert (response.status_code, response.headers["content-type"]) == (409, PROBLEM)
        assert response.json() == problem
    assert (await upload(client, provider, claimed["request_id"], b"found")).status_code == 204
    assert (await client.get(f"{URL}?path=/x", headers=NOW)).content == b"found"
    error = {"X-Result-Status": "error"}
    response = await upload(client, provider, claimed["request_id"], b'{"status": 404}', **error)
    assert response.status_code == 204
    missing = await client.get(f"{URL}?path=/x", headers=NOW)
    assert (missing.status_code, missing.json()["type"]) == (404, "/v1/problems/provider-execution-failed")
    await register_provider(client)
    expect_problem(await client.get(f"{URL}?path=/x", headers=NOW), 504, "provider-timeout")


async def test_the_texts_of_an_uploaded_problem_are_truncated(client: httpx.AsyncClient) -> None:
    """Its title and its detail, so that readers get at most 64 KiB."""
    provider = await register_provider(client)
    error = {"X-Result-Status": "error"}
    texts = {"title": "t" * 70_000, "detail": "d\0" * 40_000}
    response, _ = await asyncio.gather(
        client.get(URL), serve(client, provider, json.dumps({"status": 404, **texts}).encode(), **error)
    )
    problem = expect_problem(response, 404, "provider-execution-failed")
    assert len(response.content) < 64 * 1024
    for name, text in texts.items():
        beginning, mark = problem[name].rsplit("\n", 1)
        assert text.replace("\0", "\ufffd").startswith(beginning)
        assert "cut" in mark


async def test_a_problem_that_readers_cannot_get_is_refused(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """The error names the member; the request stays open."""
    for body, text in [
        ({"status": 200}, "body.status: 200 is not the status of a provider's problem"),
        ({"status": 401}, "body.status: 401 is not the status of a provider's problem"),
        ({"status": 600}, "body.status"),
        ({"status": "soon"}, "body.status"),
        ({"status": 404, "title": 7}, "body.title"),
        ({"type": None}, "body.type"),
        ({"type": "javascript:alert(1)"}, "body.type: 'javascript:alert(1)' is not the type"),
        ({"status": 404, "by": "x" * 66_000}, "body.by: it has 66002 bytes"),
        ({"status": 404, **{f"x{n}": "y" * 1000 for n in range(70)}}, "body.x0"),
    ]:
        with subtests.test(body=body, text=text):
            provider = await register_provider(client)
            await client.get(URL, headers=NOW)
            claimed = await claim_request(client, provider["worker_id"], wait=BOUND)
            content = json.dumps(body).encode()
            response = await upload(
                client, provider, claimed["request_id"], content, **{"X-Result-Status": "error"}
            )
            assert text in expect_problem(response, 422, "invalid-request")["detail"]
            assert (await upload(client, provider, claimed["request_id"], b"found")).status_code == 204
            assert (await client.get(URL, headers=NOW)).content == b"found"


@on_both
async def test_a_new_registration_never_serves_old_bytes(client: httpx.AsyncClient) -> None:
    """Neither after a change of the worker or the content type, nor after a removal of the provider."""
    provider = await register_provider(client, content_type="text/plain")
    await asyncio.gather(client.get(URL), serve(client, provider, b"old"))
    assert (await client.get(URL, headers=NOW)).content == b"old"
    renewed = await register_provider(client, content_type="text/html")
    expect_problem(await client.get(URL, headers=NOW), 504, "provider-timeout")
    response, _ = await asyncio.gather(client.get(URL), serve(client, renewed, b"new"))
    assert (response.content, response.headers["content-type"]) == (b"new", "text/html")
    await client.delete(f"{V1}/providers/{provider['id']}")
    expect_problem(await client.get(URL), 404, "provider-not-found")
    again = await register_provider(client)
    expect_problem(await client.get(URL, headers=NOW), 504, "provider-timeout")
    response, _ = await asyncio.gather(client.get(URL), serve(client, again, b"newest"))
    assert response.content == b"newest"


@on_both
async def test_a_pending_request_moves_to_the_new_registration(client: httpx.AsyncClient) -> None:
    """The result of the old worker is refused and reaches no caller."""
    old = await put_provider(client)
    waiting = asyncio.ensure_future(client.get(URL, headers={"Prefer": "wait=20"}))
    claimed_request = await claim_request(client, old["worker_id"], wait=BOUND)
    new = await put_provider(client)
    response = await upload(
        client, old, claimed_request["request_id"], b"old", **{"X-Worker-ID": old["worker_id"]}
    )
    expect_problem(response, 409, "stale-result")
    await serve(client, new, b"new", **{"X-Worker-ID": new["worker_id"]})
    assert (await waiting).content == b"new"


@on_both
async def test_the_previous_worker_takes_over(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """A provider stays while one worker is registered for it, with that worker's fields."""
    first = await register_provider(client, content_type="text/plain")
    second = await register_provider(client, content_type="text/csv")
    waiting = asyncio.ensure_future(client.get(URL, headers={"Prefer": "wait=20"}))
    await claim_request(client, second["worker_id"], wait=BOUND)
    events.clear()
    await client.delete(f"{V1}/workers/{second['worker_id']}")
    assert [event.event_name for event, _ in events].count("providers_invalidate") == 1
    assert (await client.get(f"{URL}/info")).json() == first
    await serve(client, first, b"of the first")
    response = await waiting
    assert (response.content, response.headers["content-type"]) == (b"of the first", "text/plain")
    await client.delete(f"{V1}/workers/{first['worker_id']}")
    expect_problem(await client.get(f"{URL}/info"), 404, "provider-not-found")


@on_both
async def test_removing_the_worker_ends_waiting_requests(client: httpx.AsyncClient) -> None:
    """They fail at once with the problem `provider-not-found`."""
    provider = await register_provider(client)
    began = time.monotonic()
    waiting = asyncio.ensure_future(client.get(URL, headers={"Prefer": "wait=30"}))
    assert await claim_request(client, provider["worker_id"], wait=BOUND) is not None
    await client.delete(f"{V1}/workers/{provider['worker_id']}")
    expect_problem(await waiting, 404, "provider-not-found")
    assert time.monotonic() - began < BOUND


async def test_a_recreated_provider_is_requested_at_once(client: httpx.AsyncClient) -> None:
    """The lock of a pending request to the removed provider does not delay it."""
    provider = await register_provider(client)
    expect_problem(await client.get(URL, headers=NOW), 504, "provider-timeout")
    await client.delete(f"{V1}/providers/{provider['id']}")
    provider = await register_provider(client)
    expect_problem(await client.get(URL, headers=NOW), 504, "provider-timeout")
    assert await claim_request(client, provider["worker_id"]) is not None


# Caching


async def test_a_request_with_the_current_etag_is_304(client: httpx.AsyncClient) -> None:
    """The response has no body; a new result has another ETag."""
    provider = await register_provider(client)
    response, _ = await asyncio.gather(client.get(URL), serve(client, provider, b"one"))
    etag = response.headers["etag"]
    assert response.headers["cache-control"] == "private, no-cache"
    for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        again = await client.get(URL, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert (await client.get(URL, headers={"If-None-Match": '"other"'})).status_code == 200
    renewed = await register_provider(client)
    response, _ = await asyncio.gather(
        client.get(URL, headers={"If-None-Match": etag}), serve(client, renewed, b"two")
    )
    assert (response.status_code, response.content) == (200, b"two")
    assert response.headers["etag"] != etag


async def test_a_browser_does_not_execute_a_result(client: httpx.AsyncClient) -> None:
    """The headers prevent it, whatever the content type is."""
    provider = await register_provider(client, content_type="text/html")
    response, _ = await asyncio.gather(client.get(URL), serve(client, provider, b"<script>"))
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-security-policy"] == "sandbox"
    for destination, status in (("document", 200), ("image", 200), ("script", 403), ("serviceworker", 403)):
        response = await client.get(URL, headers={"Sec-Fetch-Dest": destination})
        assert response.status_code == status, destination


async def test_a_cached_result_expires(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """After `provider_result_ttl_seconds` the provider gets a new request."""
    runtime.settings.provider_result_ttl_seconds = 1
    provider = await register_provider(client)
    await asyncio.gather(client.get(URL), serve(client, provider, b"one"))
    runtime.settings.provider_result_ttl_seconds = 60
    response, _ = await asyncio.gather(_until_new(client), serve(client, provider, b"two"))
    assert response.content == b"two"


async def _until_new(client: httpx.AsyncClient) -> httpx.Response:
    async with asyncio.timeout(BOUND):
        while (response := await client.get(URL)).content == b"one":  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0.05)
    return response


async def test_a_host_may_override_the_result_backend(client: httpx.AsyncClient, app: FastAPI) -> None:
    """The override of `get_result_backend` gets the keys of the contract, and its values are served."""
    backend = HostBackend()
    app.dependency_overrides[get_result_backend] = lambda: backend
    provider = await register_provider(client, content_type="text/plain")
    response, claimed_request = await asyncio.gather(client.get(URL), serve(client, provider, b"kept"))
    assert response.content == b"kept"
    assert await backend.get(f"provider-result:{NAME}:{claimed_request['request_id']}") == b"kept"
    assert f"provider-inflight:{NAME}:{claimed_request['request_id']}" in backend.locks
    order = [what for what in backend.log if what[1].endswith(claimed_request["request_id"])]
    end = [what for what, key in order if key.startswith(("provider-result", "provider-inflight"))]
    assert end[-3:] == ["store", "release", "notify"]
    await backend.store(f"provider-result:{NAME}:{hashed(frame='7')}", b"of the host", 60)
    response = await client.get(f"{URL}?frame=7", headers=NOW)
    assert (response.content, response.headers["content-type"]) == (b"of the host", "text/plain")


@pytest.mark.parametrize(("status", "code", "content"), [("ok", 200, b"last words"), ("error", 400, None)])
async def test_a_result_is_served_though_its_provider_is_removed(
    client: httpx.AsyncClient, app: FastAPI, status: str, code: int, content: bytes | None
) -> None:
    """The provider is removed when the waiters are notified."""

    class RemovesProvider(MemoryResults):
        async def notify_key(self, key: str) -> None:
            await client.delete(f"{V1}/providers/{provider['id']}")
            await super().notify_key(key)

    backend = RemovesProvider(2**20)
    app.dependency_overrides[get_result_backend] = lambda: backend
    provider = await register_provider(client)
    waiting = asyncio.ensure_future(client.get(URL))
    claimed_request = await claim_request(client, provider["worker_id"], wait=BOUND)
    await upload(
        client, provider, claimed_request["request_id"], b"last words", **{"X-Result-Status": status}
    )
    response = await waiting
    assert response.status_code == code
    assert content in {None, response.content}
    expect_problem(await client.get(URL), 404, "provider-not-found")


async def test_a_host_may_hold_the_lock_of_a_request(client: httpx.AsyncClient, app: FastAPI) -> None:
    """Other callers wait for its result, and the server sends no provider request."""
    backend = HostBackend()
    app.dependency_overrides[get_result_backend] = lambda: backend
    provider = await register_provider(client)
    request_id = hashed(frame="1")
    await backend.acquire_inflight(f"provider-inflight:{NAME}:{request_id}", 30)
    await claim_request(client, provider["worker_id"])
    app.state.joblib.runtime.settings.provider_inflight_ttl_seconds = 1
    # A lock is never left over from an earlier provider once this provider is older than the ttl of a lock.
    await asyncio.sleep(1)
    waiting = asyncio.ensure_future(client.get(f"{URL}?frame=1", headers={"Prefer": "wait=20"}))
    assert await claim_request(client, provider["worker_id"], wait=1) is None
    assert (await upload(client, provider, request_id, b"frame")).status_code == 204
    assert (await waiting).content == b"frame"


async def test_one_of_many_callers_takes_the_lock(client: httpx.AsyncClient, app: FastAPI) -> None:
    """If it fails, another one sends the request at once."""
    backend = HostBackend()
    backend.refused_locks = 1
    app.dependency_overrides[get_result_backend] = lambda: backend
    provider = await register_provider(client)
    await claim_request(client, provider["worker_id"])
    waiting = [asyncio.ensure_future(client.get(URL, headers={"Prefer": "wait=20"})) for _ in range(20)]
    claimed_request = await claim_request(client, provider["worker_id"], wait=BOUND)
    await upload(client, provider, claimed_request["request_id"], b"data")
    statuses = [response.status_code for response in await asyncio.gather(*waiting)]
    assert sorted(statuses) == [200] * 19 + [503]
    assert len([key for key in backend.locks if key.startswith("provider-inflight")]) == 2


class HostBackend:
    """A host's backend with only the seven operations of the contract."""

    def __init__(self) -> None:
        self._kept = MemoryResults(10**6)
        self.locks: list[str] = []
        self.log: list[tuple[str, str]] = []
        self.is_broken = False
        self.refused_locks = 0

    async def store(self, key: str, data: bytes, ttl: int) -> None:
        """Store a value."""
        if self.is_broken and key.startswith("provider-result"):
            raise OSError("no space left")
        self.log.append(("store", key))
        await self._kept.store(key, data, ttl)

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        return await self._kept.get(key)

    async def delete(self, key: str) -> None:
        """Delete a value."""
        await self._kept.delete(key)

    async def acquire_inflight(self, key: str, ttl: int) -> bool:
        """Acquire a lock."""
        self.locks.append(key)
        if self.refused_locks:
            self.refused_locks -= 1
            raise ServiceUnavailable("no connection")
        return await self._kept.acquire_inflight(key, ttl)

    async def release_inflight(self, key: str) -> None:
        """Release a lock."""
        self.log.append(("release", key))
        await self._kept.release_inflight(key)

    async def wait_for_key(self, key: str, timeout: float) -> bytes | None:
        """Wait for a notification."""
        return await self._kept.wait_for_key(key, timeout)

    async def notify_key(self, key: str) -> None:
        """Wake the waiters of a key."""
        self.log.append(("notify", key))
        await self._kept.notify_key(key)


# Uploads and removals


async def test_permissions_to_upload_and_remove(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """The owner and superusers; an unknown provider is 404."""
    ada, eve = await as_user("ada"), await as_user("eve")
    provider = await register_provider(ada)
    expect_problem(await upload(eve, provider, "x", b""), 403, "forbidden")
    expect_problem(await eve.delete(f"{V1}/providers/{provider['id']}"), 403, "forbidden")
    assert (await upload(client, provider, "x", b"1")).status_code == 204
    assert (await upload(ada, provider, "x", b"2")).status_code == 204
    assert (await ada.delete(f"{V1}/providers/{provider['id']}")).status_code == 204
    expect_problem(await upload(ada, provider, "x", b""), 404, "provider-not-found")
    expect_problem(await ada.delete(f"{V1}/providers/{provider['id']}"), 404, "provider-not-found")
    assert (await ada.get(f"{V1}/workers")).json()["total"] == 1


async def test_one_worker_is_removed_from_a_provider(client: httpx.AsyncClient) -> None:
    """With `worker_id`; the other worker stays."""
    first, second = await register_provider(client), await register_provider(client)
    url = f"{V1}/providers/{first['id']}"
    expect_problem(await client.delete(url, params={"worker_id": UNKNOWN_ID}), 404, "provider-not-found")
    assert (await client.delete(url, params={"worker_id": second["worker_id"]})).status_code == 204
    assert (await client.get(f"{URL}/info")).json()["worker_id"] == first["worker_id"]
    expect_problem(await client.delete(url, params={"worker_id": "x"}), 422, "invalid-request")


async def test_an_invalid_upload_header_is_named(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """422 with the name of the header."""
    for header, value in [
        ("X-Request-Hash", None),
        ("X-Request-Hash", "a:b"),
        ("X-Request-Hash", "x" * 129),
        ("X-Result-Status", "maybe"),
        ("X-Worker-ID", "me"),
    ]:
        with subtests.test(header=header, value=value):
            provider = await register_provider(client)
            headers = {"X-Request-Hash": "x", header: value}
            url = f"{V1}/providers/{provider['id']}/results"
            given = {name: text for name, text in headers.items() if text is not None}
            assert (
                header
                in expect_problem(await client.post(url, headers=given), 422, "invalid-request")["detail"]
            )


async def test_a_result_is_bounded(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """413 by the announced length or as soon as the body is too long; the result is not stored."""
    runtime.settings.max_result_bytes = 100_000
    provider = await register_provider(client)
    request_id = hashed()
    taken = 0

    async def endless() -> Any:
        nonlocal taken
        while True:
            taken += 10_000
            yield b"x" * 10_000

    expect_problem(await upload(client, provider, request_id, b"x" * 100_001), 413, "content-too-large")
    expect_problem(await upload(client, provider, request_id, endless()), 413, "content-too-large")
    assert taken <= 120_000
    await claim_request(client, provider["worker_id"])  # the worker stays connected, however slow the machine
    expect_problem(await client.get(URL, headers=NOW), 504, "provider-timeout")
    assert (await upload(client, provider, request_id, b"x" * 100_000)).status_code == 204
    assert len((await client.get(URL)).content) == 100_000


@on_both
async def test_large_results_are_streamed(client: httpx.AsyncClient) -> None:
    """5 MB are uploaded in parts and returned with their length."""
    provider = await register_provider(client, content_type="application/octet-stream")
    whole = bytes(range(256)) * 20_000

    async def parts() -> Any:
        for start in range(0, len(whole), 77_777):
            yield whole[start : start + 77_777]

    assert (await upload(client, provider, hashed(), parts())).status_code == 204
    response = await client.get(URL)
    assert response.content == whole
    assert response.headers["content-length"] == str(len(whole))


# Claims of provider requests


async def test_only_the_owner_claims_provider_requests(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Other users are refused."""
    ada = await as_user("ada")
    provider = await register_provider(ada)
    for other, status, kind in ((client, 403, "forbidden"), (await as_user("eve"), 403, "forbidden")):
        body = {"worker_id": provider["worker_id"]}
        expect_problem(await other.post(f"{V1}/providers/requests/claim", json=body), status, kind)
    response = await ada.post(f"{V1}/providers/requests/claim", json={"worker_id": UNKNOWN_ID})
    expect_problem(response, 404, "worker-not-found")
    expect_problem(await ada.post(f"{V1}/providers/requests/claim", json={}), 422, "invalid-request")


@on_both
async def test_each_request_is_claimed_once_and_the_oldest_first(client: httpx.AsyncClient) -> None:
    """Also by concurrent claims; each worker gets requests to its own providers."""
    own_provider, other = await register_provider(client), await register_provider(client, name="other")
    for n in range(5):
        await client.get(f"{URL}?n={n}", headers=NOW)
    await client.get(f"{V1}/rooms/lab/providers/lab:files:other", headers=NOW)
    first = await claim_request(client, own_provider["worker_id"])
    assert json.loads(first["params"]) == {"n": "0"}
    rest = await asyncio.gather(*[claim_request(client, own_provider["worker_id"]) for _ in range(10)])
    numbers = sorted(json.loads(claimed["params"])["n"] for claimed in rest if claimed)
    assert numbers == ["1", "2", "3", "4"]
    assert (await claim_request(client, other["worker_id"]))["provider_name"] == "lab:files:other"


@on_both
async def test_a_claim_with_a_lost_response_is_repeated(client: httpx.AsyncClient) -> None:
    """The same `claim_id` returns the same request until its result is uploaded."""
    provider = await register_provider(client)
    await client.get(f"{URL}?n=1", headers=NOW)
    await client.get(f"{URL}?n=2", headers=NOW)
    claim_id = UNKNOWN_ID
    first = await claim_request(client, provider["worker_id"], claim_id=claim_id)
    assert await claim_request(client, provider["worker_id"], claim_id=claim_id) == first
    await upload(client, provider, first["request_id"], b"1")
    second = await claim_request(client, provider["worker_id"], claim_id=claim_id)
    assert json.loads(second["params"]) == {"n": "2"}


async def test_claims_keep_a_worker_alive(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """Every request of a worker counts as a heartbeat."""
    provider = await put_provider(client)
    before = (await client.get(f"{V1}/workers")).json()["items"][0]["last_heartbeat"]
    await claim_request(client, provider["worker_id"])
    assert (await client.get(f"{V1}/workers")).json()["items"][0]["last_heartbeat"] > before


async def test_a_worker_with_a_claimed_request_is_connected(client: httpx.AsyncClient, app: FastAPI) -> None:
    """It may claim nothing for long, because all its threads may be busy."""
    provider = await register_provider(client)
    await client.get(URL, headers=NOW)
    assert await claim_request(client, provider["worker_id"]) is not None

    async def connected_for(tx: Any) -> float:
        found = (await tx.execute(select(ProviderRecord.__table__.c.connected_until))).scalar_one()
        return (found - await tx.now()).total_seconds()

    assert await app.state.joblib.runtime.database.read(connected_for) > 60


async def test_waiting_requests_are_bounded(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """429 with Retry-After; the next one is accepted when a slot is free."""
    provider = await register_provider(client)

    async def insert_requests(tx: Any) -> None:
        row = await sql_providers.by_id(tx, UUID(provider["id"]))
        assert row is not None
        until = await tx.now() + timedelta(minutes=1)
        for n in range(MAX_PENDING_REQUESTS):
            await sql_providers.add(tx, row, f"read-{n}", "{}", until)

    await runtime.write(insert_requests)
    response = await client.get(f"{URL}?n=3", headers=NOW)
    expect_problem(response, 429, "too-many-requests")
    assert "retry-after" in response.headers
    claimed_request = await claim_request(client, provider["worker_id"])
    await upload(client, provider, claimed_request["request_id"], b"")
    expect_problem(await client.get(f"{URL}?n=3", headers=NOW), 504, "provider-timeout")


@on_both
async def test_one_user_leaves_open_requests_to_others(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime
) -> None:
    """Beyond its share a user's requests get 429, and another user's are sent."""
    runtime.settings.max_share_per_user = 2 / MAX_PENDING_REQUESTS
    ada, bob = await as_user("ada"), await as_user("bob")
    await register_provider(client)
    for n in range(2):
        expect_problem(await ada.get(f"{URL}?n={n}", headers=NOW), 504, "provider-timeout")
    refused = await ada.get(f"{URL}?n=2", headers=NOW)
    assert "max_share_per_user" in expect_problem(refused, 429, "too-many-requests")["detail"]
    assert refused.headers["retry-after"] == "2"
    # A request that is open already needs no more of the share.
    expect_problem(await ada.get(f"{URL}?n=1", headers=NOW), 504, "provider-timeout")
    expect_problem(await bob.get(f"{URL}?n=2", headers=NOW), 504, "provider-timeout")


async def test_a_request_wakes_a_waiting_claim(client: httpx.AsyncClient) -> None:
    """The commit wakes it; several waiting claims get one request each."""
    provider = await register_provider(client)
    waiting = [
        asyncio.ensure_future(claim_request(client, provider["worker_id"], wait=BOUND)) for _ in range(3)
    ]
    began = time.monotonic()
    for n in range(3):
        await client.get(f"{URL}?n={n}", headers=NOW)
    claimed_requests = await asyncio.gather(*waiting)
    assert sorted(json.loads(claimed["params"])["n"] for claimed in claimed_requests) == ["0", "1", "2"]
    assert time.monotonic() - began < BOUND / 2


@on_both
async def test_no_category_is_special(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """Removing a worker removes its providers of every category, with events."""
    worker = (await client.post(f"{V1}/workers")).json()["id"]
    for category in ("frames", "files"):
        await register_provider(client, category=category, worker_id=worker)
    events.clear()
    await client.delete(f"{V1}/workers/{worker}")
    assert [(event.event_name, room) for event, room in events] == [("providers_invalidate", "room:lab")]
    assert (await client.get(f"{V1}/rooms/lab/providers")).json()["total"] == 0


@on_both
async def test_the_sweeper_deletes_abandoned_requests(
    client: httpx.AsyncClient, app: FastAPI, runtime: Runtime
) -> None:
    """Requests without a waiter for an hour are deleted; others stay."""
    provider = await register_provider(client)
    for n in range(3):
        await client.get(f"{URL}?n={n}", headers=NOW)
    hour = timedelta(hours=1)

    async def age(tx: Any) -> None:
        table = ProviderRequestRecord.__table__
        old = table.c.params != '{"n":"2"}'
        await tx.execute(table.update().where(old).values(expires_at=await tx.now() - hour))

    await runtime.write(age)
    await app.state.joblib.sweeper.cycle()

    async def left(tx: Any) -> list[str]:
        return list((await tx.execute(select(ProviderRequestRecord.__table__.c.params))).scalars())

    assert await runtime.database.read(left) == ['{"n":"2"}']
    assert json.loads((await claim_request(client, provider["worker_id"]))["params"]) == {"n": "2"}


@on_both
async def test_concurrent_operations_cause_no_errors(client: httpx.AsyncClient) -> None:
    """Registrations, requests, claims, results and removals of one provider at the same time."""
    chance, odd = random.Random(7), []
    expected = {200, 201, 204, 404, 409, 502, 503, 504}

    async def note(asking: Any) -> httpx.Response:
        response: httpx.Response = await asking
        if response.status_code not in expected:
            odd.append(response.text)
        return response

    async def live() -> None:
        for _ in range(6):
            body = {"category": "files", "name": "home"}
            provider = (await note(client.put(f"{V1}/rooms/lab/providers", json=body))).json()
            for _ in range(3):
                await note(client.get(f"{URL}?n={chance.randrange(3)}", headers=NOW))
                claim = {"worker_id": provider["worker_id"]}
                response = await note(client.post(f"{V1}/providers/requests/claim", json=claim))
                claimed_request = response.json().get("request")
                if claimed_request:
                    await note(upload(client, provider, claimed_request["request_id"], b"data"))
            gone = chance.choice([f"workers/{provider['worker_id']}", f"providers/{provider['id']}"])
            await note(client.delete(f"{V1}/{gone}"))

    async with asyncio.timeout(120):
        await asyncio.gather(*[live() for _ in range(8)])
    assert odd == []


async def test_a_result_that_cannot_be_stored_is_requested_again(
    client: httpx.AsyncClient, app: FastAPI
) -> None:
    """A failing backend leaves no lock: the callers request again and get the next result."""
    backend = HostBackend()
    app.dependency_overrides[get_result_backend] = lambda: backend
    provider = await register_provider(client)
    waiting = asyncio.ensure_future(client.get(URL, headers={"Prefer": "wait=20"}))
    claimed_request = await claim_request(client, provider["worker_id"], wait=BOUND)
    backend.is_broken = True
    response = await upload(client, provider, claimed_request["request_id"], b"lost")
    expect_problem(response, 500, "internal-server-error")
    backend.is_broken = False
    assert await serve(client, provider, b"kept") == claimed_request
    assert (await waiting).content == b"kept"


async def test_callers_are_notified_of_a_result_that_is_too_large(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """They get a problem that names the limit at once."""
    runtime.settings.max_result_bytes = 1000
    provider = await register_provider(client)
    waiting = asyncio.ensure_future(client.get(URL, headers={"Prefer": "wait=20"}))
    claimed_request = await claim_request(client, provider["worker_id"], wait=BOUND)
    expect_problem(
        await upload(client, provider, claimed_request["request_id"], b"x" * 1001), 413, "content-too-large"
    )
    problem = expect_problem(await waiting, 502, "provider-failed")
    assert problem["error"] == "ContentTooLarge"
    assert "1000 bytes" in problem["detail"]


async def test_one_user_leaves_provider_uploads_to_others(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime
) -> None:
    """Slow uploads of one user reach its share: its further ones get 429, and another user uploads."""
    runtime.settings.max_result_bytes = 1000
    ada, bob = await as_user("ada"), await as_user("bob")
    adas, bobs = await put_provider(ada, name="adas"), await put_provider(bob, name="bobs")
    end = asyncio.Event()
    arrived = asyncio.Semaphore(0)

    async def slow() -> Any:
        yield b"x" * 1000
        arrived.release()
        await end.wait()

    uploads = [asyncio.ensure_future(upload(ada, adas, hashed(n=n), slow())) for n in range(4)]
    for _ in uploads:
        await arrived.acquire()
    refused = await upload(ada, adas, hashed(n="more"), b"x")
    assert "max_share_per_user" in expect_problem(refused, 429, "too-many-requests")["detail"]
    assert refused.headers["retry-after"] == "5"
    assert (await upload(bob, bobs, hashed(n="bobs"), b"x" * 1000)).status_code == 204
    end.set()
    assert [answer.status_code for answer in await asyncio.gather(*uploads)] == [204] * 4


async def test_one_upload_at_a_time(client: httpx.AsyncClient) -> None:
    """A concurrent upload gets a 503; an upload that ends after a new registration gets a 409."""
    old = await put_provider(client, content_type="text/plain")
    await client.get(URL, headers=NOW)
    claimed_request = await claim_request(client, old["worker_id"])
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        yield b"old "
        begun.set()
        await go_on.wait()
        yield b"bytes"

    uploading = asyncio.ensure_future(upload(client, old, claimed_request["request_id"], slow()))
    await begun.wait()
    expect_problem(
        await upload(client, old, claimed_request["request_id"], b"more"), 503, "service-unavailable"
    )
    new = await put_provider(client, content_type="text/csv")
    go_on.set()
    expect_problem(await uploading, 409, "stale-result")
    response, _ = await asyncio.gather(client.get(URL), serve(client, new, b"new"))
    assert (response.content, response.headers["content-type"]) == (b"new", "text/csv")


async def test_a_stored_content_type_that_no_header_can_have_is_not_sent(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """An earlier release accepted it; the bytes arrive without it."""
    provider = await register_provider(client)

    async def change(tx: Any) -> None:
        await tx.execute(ProviderRecord.__table__.update().values(content_type='text/plain; a="\u20ac"'))

    await runtime.database.write(change)
    response, _ = await asyncio.gather(
        client.get(URL, headers={"Prefer": "wait=27"}), serve(client, provider, b"x")
    )
    assert (response.status_code, response.content) == (200, b"x")
    assert response.headers["content-type"] == "application/octet-stream"


async def test_each_name_of_a_parameter_reaches_the_provider(client: httpx.AsyncClient) -> None:
    """Also `token`, which is a stream's token elsewhere, and other names that the API uses."""
    provider = await register_provider(client)
    names = ["token", "limit", "cursor", "wait", "worker_id", "room_id", "name", "attempt", "key"]
    query = [(name, "a b&c") for name in names] + [("token", "2"), ("token", "")]
    response, request = await asyncio.gather(
        client.get(URL, params=query, headers={"Prefer": "wait=27"}), serve(client, provider, b"x")
    )
    assert response.status_code == 200
    assert json.loads(request["params"]) == {**dict.fromkeys(names, "a b&c"), "token": ["a b&c", "2", ""]}
