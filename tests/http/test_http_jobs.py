"""Jobs over HTTP: registration, lists, names and visibility."""

from itertools import pairwise
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from databases import on_both
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, parse_utc, register, report, submit

from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.events import Emission, JobsInvalidate
from zndraw_joblib.wire.policy import JobPolicy

JOBS = f"{V1}/rooms/lab/jobs"
ROTATE = {"category": "modifiers", "name": "Rotate"}


async def test_a_new_job_gets_a_worker(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """201 with all fields of the job and a new worker; the room is notified."""
    schema = {"type": "object", "properties": {"angle": {"type": "number"}}}
    response = await client.put(JOBS, json={**ROTATE, "schema": schema, "colour": "unknown"})
    assert response.status_code == 201
    job = response.json()
    [worker] = (await client.get(f"{V1}/workers")).json()["items"]
    assert job == {
        "id": job["id"],
        "room_id": "lab",
        "category": "modifiers",
        "name": "Rotate",
        "full_name": "lab:modifiers:Rotate",
        "schema": schema,
        "workers": [worker["id"]],
        "worker_id": worker["id"],
        "paused": False,
        "paused_until": None,
        "unserved_since": None,
        "version": 1,
        "versions": [{"version": 1, "current": True, "workers": 1, "pending": 0, "scheduled": 0}],
        **JobPolicy().model_dump(mode="json"),
    }
    assert events == [(JobsInvalidate(), "room:lab")]


@on_both
async def test_an_operator_registers_and_forgets_a_job_without_workers(
    client: httpx.AsyncClient, as_user: AsUser, events: list[Emission]
) -> None:
    """Tasks wait for its first worker; it is forgotten when no worker serves it and no task is pending."""
    url, body = f"{V1}/rooms/lab/jobs/lab:modifiers:Rotate", {"schema": {"type": "object"}, "max_attempts": 2}
    ada = await as_user("ada")
    for method in ("PUT", "DELETE"):
        expect_problem(await ada.request(method, url, json=body), 403, "forbidden")
    created = await client.put(url, json=body, headers={"Idempotency-Key": "one"})
    assert (created.status_code, created.json()["without_workers"]) == (201, "queue")
    assert (created.json()["workers"], created.json()["worker_id"]) == ([], None)
    assert parse_utc(created.json()["unserved_since"])
    assert events == [(JobsInvalidate(), "room:lab")]
    repeated = await client.put(url, json=body, headers={"Idempotency-Key": "one"})
    assert (repeated.status_code, repeated.json()) == (201, created.json())
    again = await client.put(url, json={"schema": {}, "without_workers": "reject"})
    assert (again.status_code, again.json()["id"]) == (200, created.json()["id"])
    assert (again.json()["max_attempts"], again.json()["schema"]) == (2, {})
    trail = (await client.get(f"{V1}/audit")).json()["items"]
    assert [entry["action"] for entry in trail] == ["job.put", "job.policy", "job.schema", "job.put"]


@on_both
async def test_a_job_without_workers_is_forgotten_when_it_is_unused(
    client: httpx.AsyncClient, as_user: AsUser
) -> None:
    """Not while a task of it is pending, nor while a worker serves it; the first worker gets what waited."""
    url, body = f"{V1}/rooms/lab/jobs/lab:modifiers:Rotate", {"schema": {"type": "object"}}
    ada = await as_user("ada")
    again = await client.put(url, json={"schema": {}})
    waiting = await submit(ada, again.json())
    problem = expect_problem(await client.delete(url), 409, "conflict")
    assert "pending" in problem["detail"]
    expect_problem(await client.put(url, json=body), 409, "schema-conflict")
    worker = await register(ada, room="lab")
    assert (worker["id"], worker["unserved_since"]) == (again.json()["id"], None)
    assert (await claim(ada, worker["worker_id"]))["id"] == waiting["id"]
    problem = expect_problem(await client.delete(url), 409, "conflict")
    assert "stop its workers" in problem["detail"]
    await ada.delete(f"{V1}/workers/{worker['worker_id']}")
    assert (await client.get(url)).json()["unserved_since"] is not None
    assert (await client.delete(url)).status_code == 204
    for method in ("GET", "DELETE"):
        expect_problem(await client.request(method, url), 404, "job-not-found")
    [entry, _] = (await client.get(f"{V1}/audit")).json()["items"]
    assert (entry["action"], entry["target"]) == ("job.delete", "lab:modifiers:Rotate")


async def test_a_job_that_would_be_forgotten_is_not_put(client: httpx.AsyncClient) -> None:
    """Nor one that the server declares, or with an invalid schema or name."""
    url = f"{V1}/rooms/lab/jobs/lab:modifiers:Rotate"
    problem = expect_problem(await client.put(url, json={"without_workers": "forget"}), 409, "conflict")
    assert problem["detail"].startswith("without_workers: ")
    expect_problem(await client.get(url), 404, "job-not-found")
    internal = f"{V1}/rooms/@internal/jobs/@internal:modifiers:Rotate"
    expect_problem(await client.put(internal, json={}), 409, "conflict")
    for schema, text in (
        ({"type": 5}, "schema/type: 5 is not valid"),
        (
            {"$ref": "https://example.org/x"},
            "$ref refers to nothing inside the schema: Resource 'https://example",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}},
            "Pointer '/$defs/b' does not exist. Put the definition",
        ),
    ):
        problem = expect_problem(await client.put(url, json={"schema": schema}), 422, "invalid-schema")
        assert text in problem["detail"]
        assert "Failed validating" not in problem["detail"]
    expect_problem(await client.put(f"{V1}/rooms/lab/jobs/other:modifiers:A", json={}), 404, "job-not-found")
    expect_problem(await client.put(f"{V1}/rooms/lab/jobs/lab:unknown:A", json={}), 400, "invalid-category")


async def test_registering_again_changes_nothing(client: httpx.AsyncClient, events: list[Emission]) -> None:
    """200 with the same job if the schema is equal, in any order of keys; the room is notified again."""
    first = await register(client, room="lab", schema={"a": {"x": 1}, "b": [2]})
    for worker_id in (first["worker_id"], None):
        body = {**ROTATE, "schema": {"b": [2], "a": {"x": 1}}, "worker_id": worker_id}
        response = await client.put(JOBS, json=body)
        assert (response.status_code, response.json()["id"]) == (200, first["id"])
    assert len(set(response.json()["workers"])) == 2
    assert {first["worker_id"], response.json()["worker_id"]} == set(response.json()["workers"])
    assert events == [(JobsInvalidate(), "room:lab")] * 3


async def test_a_deleted_job_is_restored_with_the_new_schema(client: httpx.AsyncClient) -> None:
    """201 with the same id."""
    first = await register(client, room="lab", schema={"type": "object"})
    await client.delete(f"{V1}/workers/{first['worker_id']}")
    response = await client.put(JOBS, json={**ROTATE, "schema": {"title": "new"}})
    assert response.status_code == 201
    assert (response.json()["id"], response.json()["schema"]) == (first["id"], {"title": "new"})
    shown = (await client.get(f"{JOBS}/{first['full_name']}")).json()
    assert (shown["schema"], shown["workers"]) == ({"title": "new"}, [response.json()["worker_id"]])


async def test_reserved_rooms_are_for_superusers(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Only superusers register in `@global` and `@internal`."""
    ada = await as_user("ada")
    for room in ("@global", "@internal"):
        expect_problem(await ada.put(f"{V1}/rooms/{room}/jobs", json=ROTATE), 403, "forbidden")
        assert (await client.put(f"{V1}/rooms/{room}/jobs", json=ROTATE)).status_code == 201
    assert (await ada.put(JOBS, json=ROTATE)).status_code == 201


async def test_an_active_job_keeps_its_schema(client: httpx.AsyncClient) -> None:
    """Another schema is 409 with the text of the contract, and no worker is created."""
    await register(client, room="lab", schema={"type": "object"})
    other = {**ROTATE, "schema": {"type": "object", "minProperties": 1}}
    body = expect_problem(await client.put(JOBS, json=other), 409, "schema-conflict")
    assert body["differences"] == [{"pointer": "/minProperties", "new": 1}]
    assert body["detail"].startswith("Schema mismatch")
    assert (await client.get(f"{V1}/workers")).json()["total"] == 1
    assert (await client.put(f"{V1}/rooms/attic/jobs", json={**ROTATE, "schema": {}})).status_code == 201


async def test_only_the_owner_registers_jobs_for_a_worker(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """An unknown worker and another user's worker are both 404."""
    ada = await as_user("ada")
    other = (await client.post(f"{V1}/workers")).json()
    for worker_id in (UNKNOWN_ID, other["id"]):
        response = await ada.put(JOBS, json={**ROTATE, "worker_id": worker_id})
        expect_problem(response, 404, "worker-not-found")
    assert (await ada.get(JOBS)).json()["total"] == 0


async def test_the_errors_of_a_registration_have_an_order(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Room 400, shape 422, permission 403, category 400, schema 409, worker 404: each hides the next."""
    ada = await as_user("ada")
    await register(client, room="lab")
    body: dict[str, Any] = {"name": "Rotate", "schema": {"a": 1}, "worker_id": UNKNOWN_ID, "category": 5}
    expect_problem(await ada.put(f"{V1}/rooms/a:b/jobs", json=body), 400, "invalid-room-id")
    expect_problem(await ada.put(f"{V1}/rooms/@global/jobs", json=body), 422, "invalid-request")
    body["category"] = "unheard-of"
    expect_problem(await ada.put(f"{V1}/rooms/@global/jobs", json=body), 403, "forbidden")
    expect_problem(await ada.put(JOBS, json=body), 400, "invalid-category")
    body["category"] = "modifiers"
    expect_problem(await ada.put(JOBS, json=body), 409, "schema-conflict")
    body["schema"] = {}
    expect_problem(await ada.put(JOBS, json=body), 404, "worker-not-found")


@on_both
async def test_the_active_jobs_of_a_room_are_bounded(
    client: httpx.AsyncClient, settings: ServerSettings
) -> None:
    """Neither a new nor a deleted job exceeds the limit; workers of active jobs and other rooms register."""
    settings.max_jobs_per_room = 2
    first, _ = [await register(client, name, "lab") for name in ("A", "B")]
    body = expect_problem(await client.put(JOBS, json={**ROTATE, "name": "C"}), 409, "conflict")
    assert "max_jobs_per_room" in body["detail"]
    jobs, workers = (await client.get(JOBS)).json(), (await client.get(f"{V1}/workers")).json()
    assert (jobs["total"], workers["total"]) == (2, 2)
    await register(client, "A", "lab")
    for room in ("attic", "@global"):
        await register(client, "C", room)
    for worker in (await client.get(f"{V1}/workers")).json()["items"]:
        if first["full_name"] in worker["jobs"]:
            await client.delete(f"{V1}/workers/{worker['id']}")
    assert (await client.get(JOBS)).json()["total"] == 2
    await register(client, "C", "lab")
    expect_problem(await client.put(JOBS, json={**ROTATE, "name": "A"}), 409, "conflict")


async def test_allowed_categories_limits_the_categories(
    client: httpx.AsyncClient, settings: ServerSettings
) -> None:
    """400 lists the allowed ones; a change of the setting applies at once."""
    body = {"category": "filters", "name": "Blur"}
    refused = expect_problem(await client.put(JOBS, json=body), 400, "invalid-category")
    assert "modifiers, selections, analysis" in refused["detail"]
    settings.allowed_categories = ["filters"]
    assert (await client.put(JOBS, json=body)).status_code == 201
    expect_problem(await client.put(JOBS, json=ROTATE), 400, "invalid-category")
    body["category"] = "jobs"  # that of jobs without one
    assert (await client.put(JOBS, json=body)).status_code == 201


@on_both
async def test_a_room_lists_its_own_and_reserved_jobs(client: httpx.AsyncClient) -> None:
    """Newest first; a reserved room lists only its own; deleted jobs are not listed."""
    gone = await register(client, "Disconnected", room="lab")
    await client.delete(f"{V1}/workers/{gone['worker_id']}")
    jobs = [
        await register(client, name, room=room)
        for name, room in (("G", "@global"), ("L", "lab"), ("A", "attic"), ("I", "@internal"))
    ]
    seen = {}
    for room in ("lab", "@global", "@internal", "empty"):
        page = (await client.get(f"{V1}/rooms/{room}/jobs")).json()
        assert page["total"] == len(page["items"])
        seen[room] = [item["name"] for item in page["items"]]
    assert seen == {"lab": ["I", "L", "G"], "@global": ["G"], "@internal": ["I"], "empty": ["I", "G"]}
    [item] = (await client.get(f"{V1}/rooms/@global/jobs")).json()["items"]
    assert item == {
        "full_name": "@global:modifiers:G",
        "category": "modifiers",
        "name": "G",
        "workers": [jobs[0]["worker_id"]],
        "paused": False,
        "paused_until": None,
        "unserved_since": None,
    }


@pytest.mark.parametrize("spelled", [str, lambda name: quote(name, safe="")], ids=["raw", "percent"])
async def test_a_job_is_found_by_its_full_name(client: httpx.AsyncClient, spelled: Any) -> None:
    """Raw or percent-encoded, from every room that sees it; `worker_id` is null."""
    job = await register(client, room="räume 1", schema={"x": "é"})
    shown = await client.get(f"{V1}/rooms/{spelled('räume 1')}/jobs/{spelled(job['full_name'])}")
    assert (shown.status_code, shown.json()) == (200, {**job, "worker_id": None})
    glob = await register(client)
    for room in ("lab", "@global", "@internal"):
        response = await client.get(f"{V1}/rooms/{spelled(room)}/jobs/{spelled(glob['full_name'])}")
        assert response.json() == {**glob, "worker_id": None}


async def test_a_misspelt_field_of_a_registration_is_refused(client: httpx.AsyncClient) -> None:
    """The error names the field that is meant. Fields that resemble none are ignored, many at once too."""
    wrong = {"max_atempts": "'max_attempts'", "polcy": "the fields of a policy", "priorty": "'priority'"}
    for name, meant in {**wrong, "policy": "the fields of a policy", "limit": "'limits'"}.items():
        for url, body in ((JOBS, ROTATE), (f"{JOBS}/lab:modifiers:Rotate", {})):
            response = await client.put(url, json={**body, name: 2})
            detail = expect_problem(response, 422, "invalid-request")["detail"]
            assert f"{name}: there is no such field" in detail
            assert meant in detail
    newer = {"colour": 1, "max_pending_per_user": 1, **{f"{number:04}": 1 for number in range(2000)}}
    assert (await client.put(JOBS, json={**ROTATE, **newer, "schema": {}})).status_code == 201


@pytest.mark.parametrize("part", ["", "/tasks"], ids=["job", "tasks"])
async def test_an_unknown_job_name_is_not_found(client: httpx.AsyncClient, part: str) -> None:
    """404; for an invalid full name the detail begins with the text of the contract."""
    for name in ("Rotate", "lab:Rotate"):
        body = expect_problem(await client.get(f"{JOBS}/{name}{part}"), 404, "job-not-found")
        assert body["detail"].startswith("Invalid job name format: ")
    for name in ("lab:modifiers:Unknown", "lab:modifiers:Rot:ate", "lab:modifiers:", "::"):
        expect_problem(await client.get(f"{JOBS}/{name}{part}"), 404, "job-not-found")
    expect_problem(await client.get(f"{V1}/rooms/a:b/jobs/lab:modifiers:X{part}"), 400, "invalid-room-id")


async def test_a_job_of_another_room_is_not_found(
    client: httpx.AsyncClient, settings: ServerSettings
) -> None:
    """Reads, submissions and history are 404; `cross_room_jobs` allows them. Lists never show the job."""
    job = await register(client, room="lab")
    jobs, tasks = f"{V1}/rooms/attic/jobs/{job['full_name']}", f"{V1}/rooms/attic/tasks/{job['full_name']}"
    for _ in range(2):
        expect_problem(await client.get(jobs), 404, "job-not-found")
        expect_problem(await client.get(f"{jobs}/tasks"), 404, "job-not-found")
        expect_problem(await client.post(tasks, json={}), 404, "job-not-found")
        settings.cross_room_jobs = True
        assert (await client.get(jobs)).status_code == 200
        submitted = await client.post(tasks, json={})
        assert (submitted.status_code, submitted.json()["room_id"]) == (202, "attic")
        assert (await client.get(f"{jobs}/tasks")).json()["total"] >= 1
        batch = {"tasks": [{"room_id": "attic", "job_name": job["full_name"]}]}
        [made] = (await client.post(f"{V1}/tasks/submit", json=batch)).json()["results"]
        assert made["task"]["room_id"] == "attic"
        listed = (await client.get(f"{V1}/rooms/attic/jobs")).json()
        assert listed["total"] == 0
        settings.cross_room_jobs = False


@on_both
async def test_the_tasks_of_a_job_are_listed_by_room(client: httpx.AsyncClient) -> None:
    """Newest first, optionally of one status; an unknown status is 422."""
    job, other = await register(client), await register(client, "Scale")
    tasks = [await submit(client, job, room=room) for room in ("lab", "attic", "lab", "lab")]
    await submit(client, other)
    claimed = await claim(client, job["worker_id"])
    url = f"{JOBS}/{job['full_name']}/tasks"
    page = (await client.get(url)).json()
    assert [t["id"] for t in page["items"]] == [tasks[i]["id"] for i in (3, 2, 0)]
    assert [t["queue_position"] for t in page["items"]] == [3, 2, None]
    assert all(later["created_at"] >= earlier["created_at"] for later, earlier in pairwise(page["items"]))
    for status, expected in (("claimed", [claimed["id"]]), ("failed", [])):
        page = (await client.get(url, params={"status": status})).json()
        assert ([t["id"] for t in page["items"]], page["total"]) == (expected, len(expected))
    expect_problem(await client.get(url, params={"status": "lost"}), 422, "invalid-request")


@on_both
async def test_the_history_of_a_deleted_job_is_readable(client: httpx.AsyncClient) -> None:
    """Its finished tasks stay in the lists with job, worker and all times."""
    job = await register(client, room="lab")
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    for status in ("running", "completed"):
        await report(client, task, status)
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    expect_problem(await client.get(f"{JOBS}/{job['full_name']}"), 404, "job-not-found")
    for url in (f"{JOBS}/{job['full_name']}/tasks", f"{V1}/rooms/lab/tasks"):
        [item] = (await client.get(url)).json()["items"]
        assert (item["status"], item["job_name"]) == ("completed", job["full_name"])
        assert item["worker_id"] == job["worker_id"]
        assert (
            parse_utc(item["created_at"]) <= parse_utc(item["started_at"]) <= parse_utc(item["completed_at"])
        )
