"""JSON Schemas are untrusted: they cause no requests and do not block the server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from replica import TIMEOUT
from rest import V1, AsUser, expect_problem, register, submit

from zndraw_joblib.server.process.settings import ServerSettings

JOB = {"category": "modifiers", "name": "Rotate"}


def doubled(prefix: str) -> dict[str, Any]:
    """Return a schema whose references double 60 times; `prefix` is what they begin with."""
    targets = {f"d{level}": [{"$ref": f"{prefix}{level + 1}"}] * 2 for level in range(60)}
    decoys = {f"%64{level}": {} for level in range(61)}
    definitions: dict[str, Any] = {**decoys, **{name: {"allOf": both} for name, both in targets.items()}}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, "d60": {}}}


EMBEDDED = {"$id": "http://a.test/b", **doubled("#/$defs/d")}
UNEVALUATED: dict[str, Any] = {"properties": {"a": {}}}
for _ in range(60):
    UNEVALUATED = {"allOf": [UNEVALUATED], "unevaluatedProperties": False}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Use SQLite only: schemas are checked before any query."""
    return sqlite_url


@pytest.fixture
async def listener() -> AsyncIterator[tuple[str, list[object]]]:
    """Return the address of a listener and the list of its connections."""
    calls: list[object] = []

    async def response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(writer.get_extra_info("peername"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(response, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/schema.json", calls


def pointing_to(address: str) -> list[dict[str, Any]]:
    """Return schemas with different references to an address."""
    return [
        {"$ref": address},
        {"$ref": f"{address}#/$defs/x"},
        {"properties": {"a": {"items": [{"$ref": address}]}}},
        {"$defs": {"unused": {"$ref": address}}},
        {"$dynamicRef": address},
        {"$schema": address},
        {"$id": address, "$ref": "other.json"},
        {"allOf": [{"$id": address}, {"$ref": "next"}], "$id": address},
    ]


async def test_a_remote_reference_is_refused(
    client: httpx.AsyncClient, settings: ServerSettings, listener: tuple[str, list[object]]
) -> None:
    """A reference to a URL or to a file is 422, and no request is sent."""
    address, calls = listener
    for settings.validate_payload in (True, False):
        for base in (address, "file:///etc/hostname", "ftp://127.0.0.1/x", "other.json"):
            for schema in pointing_to(base):
                response = await client.put(f"{V1}/rooms/lab/jobs", json={**JOB, "schema": schema})
                assert response.status_code in {201, 422}, schema
                if response.status_code == 201:
                    assert base == "other.json", schema
                    await client.delete(f"{V1}/workers/{response.json()['worker_id']}")
                    continue
                body = expect_problem(response, 422, "invalid-schema")
                assert body["detail"].startswith("schema")
    assert calls == []


async def test_references_inside_a_schema_work(client: httpx.AsyncClient) -> None:
    """References to its own definitions, by pointer and by anchor, may be recursive."""
    schema = {
        "$defs": {
            "node": {
                "$anchor": "node",
                "properties": {"next": {"$ref": "#node"}, "value": {"type": "integer"}},
            }
        },
        "properties": {"list": {"$ref": "#/$defs/node"}},
    }
    job = await register(client, schema=schema)
    await submit(client, job, list={"next": {"next": {"value": 1}}})
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    response = await client.post(url, json={"payload": {"list": {"next": {"next": {"value": "x"}}}}})
    assert [f["pointer"] for f in expect_problem(response, 422, "invalid-payload")["errors"]] == [
        "/list/next/next/value"
    ]


async def test_an_invalid_schema_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """422 with the error at the registration, not at the submission."""
    for schema in [
        {"type": "nonsense"},
        {"type": 5},
        {"$ref": 5},
        {"$ref": "#/nowhere"},
        {"$ref": "http://[::"},
        {"$schema": 5},
        {"$id": "\x00"},
        {"properties": []},
        {"required": "x"},
        {"minimum": "1"},
        {"pattern": "("},
        {"pattern": "(?=a)b"},
        {"patternProperties": {r"(a)\1": {}}},
        {"pattern": "((a{1000}){1000}){1000}"},
        {"pattern": "a{0,60000}" * 50},
        {"pattern": "a{1001}"},
        {"pattern": "a" * 2001},
        {"patternProperties": {f"a{number}": {} for number in range(101)}},
        {"allOf": [{"pattern": f"{number}[^/]{{99}}"} for number in range(2000)]},
        {"required": [10**30 + number for number in range(30_000)]},
    ]:
        with subtests.test(schema=schema):
            response = await client.put(f"{V1}/rooms/lab/jobs", json={**JOB, "schema": schema})
            body = expect_problem(response, 422, "invalid-schema")
            assert body["detail"].startswith("schema")
            assert len(body["detail"]) < 2000
            assert (await client.get(f"{V1}/workers")).json()["total"] == 0


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 200_000 + "!"}),
        ({"properties": {"a": {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}}}, {"a": "a" * 200_000}),
        ({"patternProperties": {"^(x+x+)+y": {"type": "null"}}}, {"x" * 100_000: 1}),
        ({"additionalProperties": False, "patternProperties": {"^(a|aa)+$": {}}}, {"a" * 100_000 + "b": 1}),
        ({"$ref": "#"}, {}),
        ({"allOf": [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}]}, {}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [[i] for i in range(20_000)]}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [10**30 + i for i in range(30_000)]}),
        (doubled("#/$defs/%64"), {}),
        ({"$defs": {f"d{level}": {} for level in range(61)}, "not": EMBEDDED}, {}),
        (UNEVALUATED, {"a": 1}),
    ],
    ids=[
        *("nested", "overlap", "property", "alternatives", "self", "circle", "unique", "equal-hashes"),
        *("encoded", "embedded", "unevaluated"),
    ],
)
async def test_the_validation_of_a_payload_has_a_time_limit(
    client: httpx.AsyncClient, schema: dict[str, Any], payload: dict[str, Any]
) -> None:
    """No pattern and no recursive reference blocks other requests."""
    job = await register(client, schema=schema)
    async with asyncio.timeout(TIMEOUT):
        response = await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={"payload": payload})
    assert response.status_code in {202, 422}
    assert len(response.content) < 3 * 2**20


async def test_the_list_of_errors_is_bounded(client: httpx.AsyncClient) -> None:
    """The response stays smaller than the request."""
    job = await register(client, schema={"additionalProperties": {"items": {"type": "string"}}})
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    for key in ("a", "k" * 200_000):
        response = await client.post(url, json={"payload": {key: list(range(2000))}})
        body = expect_problem(response, 422, "invalid-payload")
        assert 1 <= len(body["errors"]) <= 100
        assert len(response.content) < 2**20


async def test_jobs_of_the_same_name_have_their_own_schemas(
    client: httpx.AsyncClient, as_user: AsUser
) -> None:
    """The payload is checked by the schema of the job in its room."""
    ada = await as_user("ada")
    strict = await register(ada, room="lab", schema={"required": ["x"]})
    loose = await register(ada, room="attic")
    expect_problem(
        await ada.post(f"{V1}/rooms/lab/tasks/{strict['full_name']}", json={}), 422, "invalid-payload"
    )
    await submit(ada, loose, room="attic")
