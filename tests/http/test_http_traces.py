"""The trace context of a submit is kept with its task, for the worker that claims it."""

from typing import Any
from uuid import uuid4

import httpx
from databases import on_both
from fastapi import FastAPI
from opentelemetry.trace import SpanKind, StatusCode
from rest import V1, register
from spans import Spans, traceparent_of

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LATER = TRACE.replace("00-", "cc-", 1)
# Headers, and what is kept of them.
GIVEN = [
    (TRACE, TRACE),
    (f" {TRACE}\t", TRACE),
    (TRACE[:-2] + "ff", TRACE[:-2] + "ff"),
    (f"{LATER[:-2]}ff-what-the-future-brings", TRACE),
    (LATER, TRACE),
    ("", None),
    ("x", None),
    (TRACE.upper(), None),
    (TRACE + "-", None),
    (TRACE + "0", None),
    (LATER + "0", None),
    (TRACE.replace("00-", "ff-", 1), None),
    (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
    (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", None),
    ("00-" + "é" * 32, None),
    ("0" * 5000, None),
]


def trace(number: int) -> str:
    """Return one of many trace contexts."""
    return f"00-{number + 1:032x}-00f067aa0ba902b7-01"


async def submit(
    client: httpx.AsyncClient, job: dict[str, Any], *given: str, key: str | None = None, **body: Any
) -> dict[str, Any]:
    """Submit a task with these headers `traceparent`."""
    headers = [("traceparent", value.encode()) for value in given]
    headers += [("Idempotency-Key", key.encode())] if key else []
    response = await client.post(
        f"{V1}/rooms/lab/tasks/{job['full_name']}", json={"payload": {}, **body}, headers=headers
    )
    assert response.status_code == 202, response.text
    task: dict[str, Any] = response.json()
    assert "traceparent" not in task
    return task


async def submit_batch(
    client: httpx.AsyncClient, job: dict[str, Any], count: int, given: str, *, atomic: bool
) -> list[str]:
    """Submit tasks in one request; return their ids."""
    body = {"tasks": [{"job_name": job["full_name"], "room_id": "lab"}] * count, "atomic": atomic}
    response = await client.post(f"{V1}/tasks/submit", json=body, headers={"traceparent": given})
    assert "traceparent" not in response.text
    return [result["id"] for result in response.json()["results"]]


async def submit_on_each_path(client: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, str | None]:
    """Submit tasks with and without a context; return the expected context of each."""
    expected: dict[str, str | None] = {}
    for turn in range(2):  # the first submit reads the job, later ones assume it
        for number, options in enumerate(({}, {"priority": 3}, {"key": f'"{turn}"'})):
            task = await submit(client, job, trace(10 * turn + number), **options)
            if "key" in options:
                again = await submit(client, job, trace(99), **options)
                assert again["id"] == task["id"]
            expected[task["id"]] = trace(10 * turn + number)
            expected[(await submit(client, job))["id"]] = None
        for atomic in (False, True):
            ids = await submit_batch(client, job, 3, trace(20 + atomic), atomic=atomic)
            expected |= dict.fromkeys(ids, trace(20 + atomic))
    return expected


async def claim_tasks(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    """Claim one or several tasks."""
    got = (await client.post(f"{V1}/tasks/claim", json=body)).json()
    return [got["task"]] if "task" in got else got["tasks"]


@on_both
async def test_claims_return_what_submits_sent(client: httpx.AsyncClient) -> None:
    """On each path of a submit and of a claim, with and without a context; no other response has it."""
    job = await register(client)
    expected = await submit_on_each_path(client, job)
    worker = {"worker_id": job["worker_id"]}
    repeated = {**worker, "claim_id": str(uuid4())}
    [first] = await claim_tasks(client, **repeated)
    assert await claim_tasks(client, **repeated) == [first]
    claimed = [first, *await claim_tasks(client, **worker, max=5)]
    claimed += await claim_tasks(client, **worker, max=100, start=True)
    assert {task["id"]: task.get("traceparent") for task in claimed} == expected
    assert all("traceparent" not in task for task in claimed if expected[task["id"]] is None)
    url = f"{V1}/tasks/{first['id']}"
    released = await client.post(f"{url}/release")
    for response in (released, await client.get(url), await client.get(f"{V1}/rooms/lab/tasks?limit=100")):
        assert response.status_code == 200, response.text
        assert "traceparent" not in response.text
    [again] = await claim_tasks(client, **worker, max=5)
    assert again["traceparent"] == expected[first["id"]]
    assert "traceparent" not in (await client.patch(url, json={"status": "running"})).text


async def test_an_invalid_context_is_ignored(client: httpx.AsyncClient) -> None:
    """It is no error; two headers have no meaning."""
    job = await register(client)
    expected = {(await submit(client, job, given))["id"]: kept for given, kept in GIVEN}
    expected[(await submit(client, job, TRACE, trace(1)))["id"]] = None
    claimed = await claim_tasks(client, worker_id=job["worker_id"], max=100)
    assert {task["id"]: task.get("traceparent") for task in claimed} == expected


async def test_a_submit_has_a_span_if_its_request_has_one(client: httpx.AsyncClient, app: FastAPI) -> None:
    """Its context is kept with the task: it is a child of the request's span, which continues the header."""
    spans = Spans()
    app._native_telemetry.config["tracer_provider"] = spans.provider
    job = await register(client)
    name = job["full_name"]
    await submit(client, job, TRACE)
    await submit_batch(client, job, 2, TRACE, atomic=False)
    await submit(client, job)
    refused = await client.post(f"{V1}/rooms/lab/tasks/@global:modifiers:Unknown", json={})
    assert refused.status_code == 404
    one, batch, root = spans.named(f"submit {name}")
    claimed = await claim_tasks(client, worker_id=job["worker_id"], max=100)
    kept = [task["traceparent"] for task in claimed]
    assert kept == list(map(traceparent_of, (one, batch, batch, root)))
    requests = {span.get_span_context().span_id: span for span in spans.all if span.kind is SpanKind.SERVER}
    parents = [requests[span.parent.span_id] for span in (one, batch, root) if span.parent]
    ancestors = [request.parent and f"{request.parent.span_id:016x}" for request in parents]
    assert ancestors == [TRACE.split("-")[2], TRACE.split("-")[2], None]
    assert {kept[0].split("-")[1], kept[1].split("-")[1]} == {TRACE.split("-")[1]}
    assert all(span.kind is SpanKind.PRODUCER for span in (one, batch, root))
    assert dict(one.attributes or {}) == {
        "messaging.system": "zndraw_joblib",
        "messaging.operation.type": "send",
        "messaging.operation.name": "submit",
        "messaging.destination.name": name,
    }
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2
    [failed] = spans.named("submit @global:modifiers:Unknown")
    assert failed.status.status_code is StatusCode.ERROR
