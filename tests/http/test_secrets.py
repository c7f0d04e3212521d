"""Values that a job's schema marks as secret: only the worker of the task gets them."""

import json
import logging
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from pydantic import BaseModel, SecretStr
from rest import V1, claim, expect_problem, register, report

from zndraw_joblib import Category, Extension
from zndraw_joblib.jobs.codecs import payload_of
from zndraw_joblib.jobs.run import make_extension
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import statement
from zndraw_joblib.server.internal.registry import InternalRegistry
from zndraw_joblib.server.queue import rules_internal, rules_jobs, rules_queues
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.masks import MASK, masked_paths, places_of_mask, without_secrets
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.policy import JobPolicy

SECRET = "hunter2-in-tests"
LOGIN = {"type": "object", "properties": {"user": {}, "password": {"type": "string", "format": "password"}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["steps"],
    "properties": {
        "steps": {"type": "integer"},
        "token": {"type": "string", "writeOnly": True, "maxLength": 40},
        "login": {"$ref": "#/$defs/Login"},
        "mirrors": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Login"}, {"type": "null"}]}},
    },
    "$defs": {"Login": LOGIN},
}
PAYLOAD: dict[str, Any] = {
    "steps": 1,
    "token": SECRET,
    "login": {"user": "ada", "password": SECRET},
    "mirrors": [None, {"user": "bob", "password": SECRET}],
}
MASKED: dict[str, Any] = {
    "steps": 1,
    "token": MASK,
    "login": {"user": "ada", "password": MASK},
    "mirrors": [None, {"user": "bob", "password": MASK}],
}
JOB = "@global:modifiers:Rotate"
TASKS = f"{V1}/rooms/lab/tasks"


class Broker:
    """A broker that records what it is sent."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def kiq(self, **call: Any) -> None:
        """Record one call."""
        self.calls.append(call)


class Answers:
    """Sends requests, and keeps their answers."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.all: list[httpx.Response] = []
        self._client = client

    async def send(self, method: str, path: str, *, key: str | None = None, **request: Any) -> Any:
        """Return the body of an answer."""
        headers = {"Accept": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
        response = await self._client.request(method, f"{V1}{path}", headers=headers, **request)
        self.all.append(response)
        return response.json()


async def _submit_all(answers: Answers) -> str:
    """Submit tasks in all ways, and repeat the requests. Return the id of a group."""
    send, url, body = answers.send, f"/rooms/lab/tasks/{JOB}", {"payload": PAYLOAD}
    first = await send("POST", url, json=body, key="once")
    assert first["payload"] == MASKED
    assert await send("POST", url, json=body, key="once") == first
    await send("POST", url, json={**body, "unique": {}})
    assert (await send("POST", url, json={**body, "unique": {}}))["duplicate"] is True
    whole = {"tasks": [{"room_id": "lab", "job_name": JOB, **body}], "group": {"room": "lab"}}
    many = await send("POST", "/tasks/submit", json=whole, key="all")
    assert many["results"][0]["task"]["payload"] == MASKED
    assert (await send("POST", "/tasks/submit", json=whole, key="all"))["results"] == many["results"]
    group = await send("POST", "/groups", json={"room": "lab", "on_end": {"job": JOB, "payload": PAYLOAD}})
    assert group["on_end"]["payload"] == MASKED
    schedule = {"job": JOB, "every_seconds": 3600, "payload": PAYLOAD}
    assert (await send("PUT", "/rooms/lab/schedules/nightly", json=schedule))["payload"] == MASKED
    ran = await send("POST", "/rooms/lab/schedules/nightly/run", key="run")
    assert ran["payload"] == MASKED
    return str(group["id"])


async def _read_all(answers: Answers, task: str, group: str) -> None:
    """Read and search the tasks, groups and schedules, and what was recorded."""
    assert (await answers.send("GET", task))["payload"] == MASKED
    found = await answers.send("GET", "/tasks", params={"status": ["pending", "claimed"]})
    assert all(MASK in item["payload_preview"] for item in found["items"])
    for path in (
        *(f"{task}/explain", f"{task}/history", f"{task}/events", "/rooms/lab/tasks", "/rooms/lab/events"),
        *(f"/rooms/lab/jobs/{JOB}/tasks", "/groups", f"/groups/{group}", f"/groups/{group}/events"),
        *("/schedules", "/rooms/lab/schedules", "/rooms/lab/schedules/nightly", "/audit", "/overview"),
    ):
        await answers.send("GET", path)


async def _change_all(answers: Answers, task: dict[str, Any], group: str) -> None:
    """End the group, and a task that was claimed; retry the task."""
    await answers.send("PATCH", f"/groups/{group}", json={"sealed": True})
    await answers.send("POST", f"/tasks/{task['id']}/release", json={"attempt": task["attempt"]})
    assert (await answers.send("PATCH", f"/tasks/{task['id']}", json={"status": "cancelled"}))[
        "payload"
    ] == MASKED
    await answers.send("POST", f"/tasks/{task['id']}/retry", json={})
    reports = {"reports": [{"id": task["id"], "status": "cancelled"}]}
    [result] = (await answers.send("POST", "/tasks/report", json=reports))["results"]
    assert result["task"]["payload"] == MASKED


@on_both
async def test_no_answer_has_a_secret_but_that_of_the_claim(
    client: httpx.AsyncClient, events: list[Emission], caplog: pytest.LogCaptureFixture
) -> None:
    """Nor has an event or the log."""
    caplog.set_level(logging.DEBUG, logger="zndraw_joblib")
    job, answers = await register(client, schema=SCHEMA), Answers(client)
    group = await _submit_all(answers)
    body = {"worker_id": job["worker_id"], "tokens": True}
    claimed = (await client.post(f"{V1}/tasks/claim", json=body)).json()["task"]
    assert claimed["payload"] == PAYLOAD
    token = {"Authorization": f"Bearer {claimed['token']}"}
    own = await client.get(f"{V1}/tasks/{claimed['id']}", headers=token)
    assert own.json()["payload"] == PAYLOAD
    await _read_all(answers, f"/tasks/{claimed['id']}", group)
    await _change_all(answers, claimed, group)
    for response in answers.all:
        assert SECRET not in response.text, response.request.url
        assert response.status_code < 400, (response.request.url, response.text)
    assert events
    assert SECRET not in "".join(repr(event) for event in events)
    assert SECRET not in caplog.text


@on_both
async def test_a_search_does_not_show_whether_a_guess_is_right(client: httpx.AsyncClient) -> None:
    """The text of a search is not compared with payloads that have secrets, but with errors."""
    job = await register(client, schema=SCHEMA)
    url = f"{V1}/rooms/lab/tasks/{JOB}"
    task = (await client.post(url, json={"payload": PAYLOAD, "unique": {}})).json()
    assert task.get("unique_key") is None
    plain = await register(client, "Plain")
    other = await client.post(f"{V1}/rooms/lab/tasks/{plain['full_name']}", json={"payload": {"x": SECRET}})
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    await report(client, claimed, "running", attempt=claimed["attempt"])
    await report(client, claimed, "failed", attempt=claimed["attempt"], error="it broke")

    async def ids(text: str) -> list[str]:
        found = (await client.get(f"{V1}/tasks", params={"text": text})).json()
        return [item["id"] for item in found["items"]]

    assert await ids(SECRET) == [other.json()["id"]]
    assert await ids("it broke") == [task["id"]]
    preview = {"action": "retry", "filter": {"text": SECRET, "status": ["failed"]}}
    assert (await client.post(f"{V1}/tasks/bulk/preview", json=preview)).json()["count"] == 0


async def test_errors_of_payloads_have_no_values(client: httpx.AsyncClient) -> None:
    """Neither of a secret that does not fit, nor of an object that has one."""
    await register(client, schema=SCHEMA)
    url = f"{V1}/rooms/lab/tasks/{JOB}"
    for wrong in (
        {"token": SECRET * 9},
        {"login": SECRET},
        {"mirrors": [{"password": [SECRET]}]},
        {"steps": [SECRET]},
        {"login": {"password": {"a": SECRET}}},
    ):
        response = await client.post(url, json={"payload": {**PAYLOAD, **wrong}})
        problem = expect_problem(response, 422, "invalid-payload")
        assert SECRET not in response.text
        assert "the value" in problem["detail"]


async def test_the_mask_is_not_stored_as_a_secret(client: httpx.AsyncClient) -> None:
    """A payload that was copied from an answer is refused with the places to fill."""
    await register(client, schema=SCHEMA)
    on_end, schedule = {"job": JOB, "payload": MASKED}, {"job": JOB, "every_seconds": 60, "payload": MASKED}
    places = ["/token", "/login/password", "/mirrors/1/password"]
    for method, path, body in (
        ("POST", f"/rooms/lab/tasks/{JOB}", {"payload": MASKED}),
        ("POST", "/groups", {"room": "lab", "on_end": on_end}),
        ("PUT", "/rooms/lab/schedules/nightly", schedule),
    ):
        problem = expect_problem(await client.request(method, V1 + path, json=body), 422, "invalid-payload")
        assert sorted(error["pointer"] for error in problem["errors"]) == sorted(places), path
    assert (await client.get(TASKS)).json()["total"] == 0


async def test_a_broker_gets_the_secret(client: httpx.AsyncClient, app: FastAPI) -> None:
    """An internal executor is the worker of the task; the answer to the submit is masked."""
    name = "@internal:modifiers:Rotate"
    broker = Broker()
    app.state.internal_registry = InternalRegistry({name: broker})
    await register(client, room="@internal", schema=SCHEMA)
    answer = await client.post(f"{TASKS}/{name}", json={"payload": PAYLOAD})
    assert answer.json()["payload"] == MASKED
    body = {"tasks": [{"room_id": "lab", "job_name": name, "payload": PAYLOAD}]}
    assert SECRET not in (await client.post(f"{V1}/tasks/submit", json=body)).text
    assert [call["payload"] for call in broker.calls] == [PAYLOAD, PAYLOAD]


@on_both
async def test_a_schema_may_become_secret(client: httpx.AsyncClient) -> None:
    """A worker that marks a value hides it in the tasks that exist, unless its schema is a new version."""
    job = await register(client, schema={"type": "object", "properties": {"a": {"type": "string"}}})
    task = await client.post(f"{V1}/rooms/lab/tasks/{JOB}", json={"payload": {"a": SECRET}})
    assert task.json()["payload"] == {"a": SECRET}
    secret = {"type": "object", "properties": {"a": {"type": "string", "writeOnly": True}}}
    await register(client, schema=secret, worker_id=job["worker_id"])
    assert (await client.get(f"{V1}/tasks/{task.json()['id']}")).json()["payload"] == {"a": MASK}


async def _run_one(
    client: httpx.AsyncClient, name: str, schema: Any, payload: Any, labels: Any
) -> dict[str, Any]:
    """Complete a task of a job with a worker that leaves then. Return the task."""
    job = await register(client, name, schema=schema, worker={"labels": labels})
    body = {"payload": payload, "requires": labels}
    task: dict[str, Any] = (await client.post(f"{TASKS}/{job['full_name']}", json=body)).json()
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    for status in ("running", "completed"):
        await report(client, claimed, status, attempt=claimed["attempt"])
    assert (await client.delete(f"{V1}/workers/{job['worker_id']}")).status_code == 204
    return task


@on_both
async def test_a_schema_of_another_shape_shows_no_secret_of_before(
    client: httpx.AsyncClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of an internal job, which has no versions, nor where a row with ended tasks is used again."""
    name, runtime = "@internal:modifiers:Rotate", app.state.joblib.runtime
    app.state.internal_registry = InternalRegistry({name: Broker()})
    schemas = [SCHEMA] + [{"properties": {"key": {"type": kind}}} for kind in ("string", "integer")]
    payloads = [PAYLOAD, {"key": "a"}, {"key": 1}]
    tasks = []
    for schema, payload in zip(schemas, payloads, strict=True):
        offer = rules_internal.InternalJob(parse_job_name(name), schema, JobPolicy())
        await runtime.write(rules_internal.register, jobs=[offer])
        tasks.append((await client.post(f"{TASKS}/{name}", json={"payload": payload})).json())
    monkeypatch.setattr(rules_jobs, "MAX_VERSIONS", 2)
    monkeypatch.setattr(rules_queues, "MAX_QUEUES", 1)
    for job, labels in (("Turn", [{}, {}, {}]), ("Move", [{"gpu": "a"}, {"gpu": "b"}])):
        for schema, payload, own in zip(schemas, payloads, labels, strict=False):
            tasks.append(await _run_one(client, job, schema, payload, own))
    for task in tasks[::3]:
        assert (await client.get(f"{V1}/tasks/{task['id']}")).json()["payload"] == MASKED


@on_both
async def test_a_task_of_an_old_version_takes_its_secrets_along(client: httpx.AsyncClient) -> None:
    """A current version that marks none hides them in the tasks that were retargeted to it."""
    job = await register(client, schema=SCHEMA)
    task = (await client.post(f"{TASKS}/{JOB}", json={"payload": PAYLOAD})).json()
    assert (await register(client, schema={"type": "object"}, worker_id=job["worker_id"]))["version"] == 2
    bulk = {"action": "retarget", "filter": {"job": [JOB], "version": [1]}}
    shown = (await client.post(f"{V1}/tasks/bulk/preview", json=bulk)).json()
    result = await client.post(f"{V1}/tasks/bulk", json={**bulk, "token": shown["token"]})
    assert result.json()["affected"] == 1
    read = (await client.get(f"{V1}/tasks/{task['id']}")).json()
    assert (read["version"], read["payload"]) == (2, MASKED)


@on_both
async def test_a_job_that_changes_shows_no_secret_of_its_schedules_and_groups(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """Nor have the tasks that these submit one. Of a job that is gone all values are hidden."""
    name, plain = "lab:modifiers:Rotate", {"schema": {"type": "object"}}
    job, urls = f"{V1}/rooms/lab/jobs/{name}", [f"{V1}/rooms/lab/schedules/nightly", f"{V1}/schedules"]
    own = {"job": name, "payload": PAYLOAD}
    await client.put(job, json={"schema": SCHEMA})
    await client.put(urls[0], json={**own, "every_seconds": 3600, "paused": True})
    group = (await client.post(f"{V1}/groups", json={"room": "lab", "on_end": own})).json()
    urls.append(f"{V1}/groups/{group['id']}")

    async def check(shown: dict[str, Any]) -> None:
        responses = [await client.get(url) for url in urls]
        assert SECRET not in "".join(response.text for response in responses)
        assert responses[0].json()["payload"] == responses[2].json()["on_end"]["payload"] == shown

    # No task or worker has used the schema, so the next one takes its place.
    assert (await client.put(job, json=plain)).json()["version"] == 1
    await check(MASKED)
    await client.patch(urls[2], json={"sealed": True})
    task = (await client.get(urls[2])).json()["on_end_task"]
    ran = (await client.post(f"{urls[0]}/run")).json()
    shown = [(await client.get(f"{V1}/tasks/{id_}")).json()["payload"] for id_ in (task, ran["id"])]
    assert [ran["payload"], *shown] == [MASKED] * 3
    problem = await client.put(urls[0], json={"job": name, "payload": MASKED, "every_seconds": 60})
    assert "/token" in str(expect_problem(problem, 422, "invalid-payload")["errors"])
    # As retention does once the tasks are old.
    await runtime.write(_delete_jobs)
    await check(dict.fromkeys(PAYLOAD, MASK))
    await client.put(job, json=plain)
    await check(MASKED)


async def _delete_jobs(tx: Transaction) -> None:
    for table in (
        "joblib_task",
        "joblib_room_queue",
        "joblib_room_count",
        "joblib_queue_block",
        "joblib_job",
    ):
        await tx.execute(statement(f"DELETE FROM {table}"))  # noqa: S608


class Login(BaseModel):
    """A part of a payload."""

    user: str
    password: SecretStr


class Fetch(Extension):
    """A job with secrets."""

    category = Category.MODIFIER
    login: Login
    tokens: list[SecretStr]

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Do nothing."""


def test_the_sdk_sends_and_reads_secrets() -> None:
    """An instance has the values that pydantic does not dump, and an error of a wrong one has none."""
    fetch = Fetch(login=Login(user="ada", password=SecretStr(SECRET)), tokens=[SecretStr("a")])
    payload = payload_of(fetch)
    assert payload == {"login": {"user": "ada", "password": SECRET}, "tokens": ["a"]}
    assert make_extension(Fetch, payload) == (fetch, None)
    assert json.loads(masked_paths(Fetch.model_json_schema()) or "") == [
        ["login", "password"],
        ["tokens", None],
    ]
    _, fault = make_extension(Fetch, {"login": [SECRET]})
    assert fault is not None
    assert fault.startswith("The payload does not fit Fetch: login: Input should be")
    assert SECRET not in fault


NODE = {"properties": {"name": {}, "key": {"writeOnly": True}, "below": {"items": {"$ref": "#/$defs/N"}}}}


@pytest.mark.parametrize(
    ("schema", "payload", "masked"),
    [
        ({"properties": {"a": {"type": "string"}}}, {"a": "x"}, {"a": "x"}),
        ({"properties": {"a": {"writeOnly": False}}}, {"a": "x"}, {"a": "x"}),
        ({"properties": {"a": {"writeOnly": True}}}, {"a": None, "b": 1}, {"a": None, "b": 1}),
        ({"properties": {"a": {"writeOnly": True}}}, {"a": {"b": [1]}}, {"a": MASK}),
        ({"patternProperties": {"^s_": {"writeOnly": True}}}, {"s_a": 1}, {"s_a": MASK}),
        ({"additionalProperties": {"format": "password"}}, {"x": "1"}, {"x": MASK}),
        (
            {"properties": {"a": {"prefixItems": [{}, {"writeOnly": True}]}}},
            {"a": [1, 2, 3]},
            {"a": [1, MASK, 3]},
        ),
        (
            {"allOf": [{"if": {}, "then": {"properties": {"a": {"format": "password"}}}}]},
            {"a": "x", "b": 1},
            {"a": MASK, "b": 1},
        ),
        (
            {"$defs": {"N": NODE}, "properties": {"top": {"$ref": "#/$defs/N"}}},
            {"top": {"name": "a", "key": 1, "below": [{"name": "b", "key": 2}]}},
            {"top": {"name": "a", "key": MASK, "below": [MASK]}},
        ),
        # A value that one alternative hides as a whole, and another in part.
        (
            {"properties": {"a": {"anyOf": [{"format": "password"}, LOGIN]}}},
            {"a": "x", "b": 1},
            {"a": MASK, "b": 1},
        ),
        # What is not understood hides all.
        (
            {"properties": {"a": {"writeOnly": True}, "b": {"$ref": "x.json"}}},
            {"b": 1, "c": 2},
            {"b": MASK, "c": MASK},
        ),
        ({"properties": {"a": {"writeOnly": True}}, "allOf": 3}, {"b": 1}, {"b": MASK}),
        ({"writeOnly": True}, {"b": 1}, {"b": MASK}),
    ],
)
def test_the_secret_values_of_a_schema(schema: Any, payload: Any, masked: Any) -> None:
    """At any depth, also of lists, alternatives and references; all that a schema hides is one object."""
    paths = masked_paths(schema)
    assert without_secrets(payload, paths) == masked
    if payload == masked:
        assert without_secrets(payload, paths) is payload
        assert places_of_mask(payload, paths) == []
