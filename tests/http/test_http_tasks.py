"""Tasks over HTTP: submissions, claims, reports and lists."""

from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from databases import on_both
from forms import transport  # noqa: F401 - a fixture
from rest import (
    NO_TASK,
    UNKNOWN_ID,
    V1,
    AsUser,
    claim,
    expect_problem,
    get_task,
    parse_utc,
    register,
    report,
    submit,
)

from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.wire.events import JobsInvalidate, TaskAvailable, TaskStatusEvent

CLAIM = f"{V1}/tasks/claim"


def statuses(events: list[Any]) -> list[tuple[str, str, int | None]]:
    """Return status, room and position of each event of a task's status."""
    return [
        (emission.event.status, emission.room, emission.event.queue_position)
        for emission in events
        if isinstance(emission.event, TaskStatusEvent)
    ]


@pytest.mark.parametrize("spelled", [str, lambda name: quote(name, safe="")], ids=["raw", "percent"])
async def test_a_submitted_task_is_pending(
    client: httpx.AsyncClient, as_user: AsUser, events: list[Any], spelled: Any
) -> None:
    """202 with Location, Retry-After and every field; the room and the workers are notified once."""
    ada = await as_user("ada")
    job = await register(client)
    events.clear()
    url = f"{V1}/rooms/lab/tasks/{spelled(job['full_name'])}"
    response = await ada.post(url, json={"payload": {"angle": 3}})
    assert response.status_code == 202
    task = response.json()
    assert response.headers["location"] == f"/v1/joblib/tasks/{task['id']}"
    assert response.headers["retry-after"] == "1"
    parse_utc(task["created_at"])
    assert task == {
        "id": task["id"],
        "job_name": "@global:modifiers:Rotate",
        "room_id": "lab",
        "status": "pending",
        "created_at": task["created_at"],
        "started_at": None,
        "completed_at": None,
        "worker_id": None,
        "error": None,
        "payload": {"angle": 3},
        "queue_position": 1,
        "attempt": 0,
        "attempts": 0,
        "created_by": "ada",
        "result": None,
        "error_code": None,
        "priority": 0,
        "run_at": None,
        "expires_at": None,
        "version": 1,
    }
    assert await get_task(ada, task) == task
    status, available = events
    assert statuses(events) == [("pending", "room:lab", 1)]
    assert status.event.model_dump(mode="json") == {
        "id": task["id"],
        "name": task["job_name"],
        **{field: task[field] for field in ("room_id", "status", "created_at", "queue_position")},
        **dict.fromkeys(("started_at", "completed_at", "worker_id", "error")),
    }
    expected = TaskAvailable(job_name=task["job_name"], room_id="lab", task_id=task["id"])
    assert available == (expected, "jobs:@global:modifiers:Rotate")


async def test_a_payload_may_be_left_out_but_not_the_body(client: httpx.AsyncClient) -> None:
    """`{}` submits an empty payload; no body or another shape is 422."""
    job = await register(client)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    response = await client.post(url, json={})
    assert (response.status_code, response.json()["payload"]) == (202, {})
    expect_problem(await client.post(url), 422, "invalid-request")
    for body in ([], None, 3, "text", {"payload": []}, {"payload": None}, {"payload": "{}"}):
        expect_problem(await client.post(url, json=body), 422, "invalid-request")
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1


async def test_positions_count_the_pending_tasks_of_a_job(client: httpx.AsyncClient) -> None:
    """They start at 1 over all rooms, decrease as tasks are claimed, and are null after the claim."""
    job, other = await register(client), await register(client, "Scale")
    await submit(client, other)
    tasks = [await submit(client, job, room=room) for room in ("lab", "attic", "lab", "lab")]
    assert [task["queue_position"] for task in tasks] == [1, 2, 3, 4]
    await claim(client, job["worker_id"])
    await report(client, tasks[2], "cancelled")
    assert [(await get_task(client, task))["queue_position"] for task in tasks] == [None, 1, None, 2]
    page = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
    assert {t["id"]: t["queue_position"] for t in page if t["job_name"] == job["full_name"]} == {
        tasks[0]["id"]: None,
        tasks[2]["id"]: None,
        tasks[3]["id"]: 2,
    }


async def test_a_payload_must_match_the_schema_of_the_job(
    client: httpx.AsyncClient, settings: ServerSettings
) -> None:
    """422 lists every error with its JSON pointer; `validate_payload` disables the check."""
    schema = {
        "properties": {"angle": {"type": "number"}, "a/b~c": {"items": {"maximum": 1}}},
        "required": ["axis"],
    }
    job = await register(client, schema=schema)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    payload = {"angle": "wide", "a/b~c": [0, 2]}
    body = expect_problem(await client.post(url, json={"payload": payload}), 422, "invalid-payload")
    assert sorted(fault["pointer"] for fault in body["errors"]) == ["", "/angle", "/a~1b~0c/1"]
    assert all(fault["message"] for fault in body["errors"])
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 0
    settings.validate_payload = False
    assert (await client.post(url, json={"payload": payload})).status_code == 202


async def test_the_errors_of_a_submission_have_an_order(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Room 400, job 404, executor 503, payload 422: each hides the next, and no row is written."""
    ada = await as_user("ada")
    inside = await register(client, room="@internal", schema={"required": ["x"]})
    url = f"{V1}/rooms/lab/tasks"
    expect_problem(
        await ada.post(f"{V1}/rooms/a:b/tasks/{inside['full_name']}", json={}), 400, "invalid-room-id"
    )
    expect_problem(await ada.post(f"{url}/lab:modifiers:X", json={}), 404, "job-not-found")
    body = expect_problem(await ada.post(f"{url}/Rotate", json={}), 404, "job-not-found")
    assert body["detail"].startswith("Invalid job name format: ")
    assert body["detail"].endswith(", such as @global:jobs:Rotate")
    response = await ada.post(f"{url}/{inside['full_name']}", json={})
    expect_problem(response, 503, "internal-job-not-configured")
    glob = await register(client, schema={"required": ["x"]})
    body = expect_problem(await ada.post(f"{url}/{glob['full_name']}", json={"x": 1}), 422, "invalid-payload")
    assert body["detail"].endswith(
        'required property. The body has no field "payload", which holds the fields of the job'
    )
    assert [fault["pointer"] for fault in body["errors"]] == [""]
    assert (await ada.get(url)).json()["total"] == 0


async def test_a_long_payload_is_returned_and_stored_as_it_was_sent(client: httpx.AsyncClient) -> None:
    """It is encoded once for both, also if a text in it looks like a field of the response."""
    job = await register(client)
    payload = {"payload": {}, "é": '"payload":{}\\\x00', "list": [1, 2.5, 1e300, None, True, "x" * 5_000]}
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    for sent in ({**payload, "list": []}, payload):
        response = await client.post(url, json={"payload": sent})
        assert int(response.headers["content-length"]) == len(response.content)
        task = response.json()
        stored = (await client.get(f"{V1}/tasks/{task['id']}")).json()
        assert task["payload"] == stored["payload"] == sent
        assert list(task) == list(stored)


async def test_a_task_may_be_submitted_from_a_reserved_room(client: httpx.AsyncClient) -> None:
    """The room of a task may be `@global` or `@internal`."""
    job = await register(client)
    for room in ("@global", "@internal"):
        assert (await submit(client, job, room=room))["room_id"] == room


async def test_a_claim_returns_the_oldest_task_of_all_jobs_of_a_worker(
    client: httpx.AsyncClient, events: list[Any]
) -> None:
    """First come, first served over its jobs and no others; null when none is pending."""
    job = await register(client)
    second = await register(client, "Scale", worker_id=job["worker_id"])
    foreign = await register(client, "Foreign")
    tasks = [await submit(client, which) for which in (second, foreign, job, second, job)]
    events.clear()
    claimed = [await claim(client, job["worker_id"]) for _ in range(5)]
    assert [task and task["id"] for task in claimed] == [tasks[i]["id"] for i in (0, 2, 3, 4)] + [None]
    assert statuses(events) == [("claimed", "room:lab", None)] * 4
    assert len(events) == 4
    for task in claimed[:4]:
        assert (task["status"], task["worker_id"], task["attempt"]) == ("claimed", job["worker_id"], 1)
        assert (task["started_at"], task["queue_position"]) == (None, None)
        assert await get_task(client, task) == task


async def test_a_worker_without_jobs_gets_null(client: httpx.AsyncClient) -> None:
    """200 with null while it has no jobs."""
    worker = (await client.post(f"{V1}/workers")).json()
    response = await client.post(CLAIM, json={"worker_id": worker["id"]})
    assert (response.status_code, response.json()) == (200, NO_TASK)


async def test_only_the_owner_claims_for_a_worker(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """An unknown worker is 404, another user or a superuser 403, an invalid id 422."""
    ada, eve = await as_user("ada"), await as_user("eve")
    job = await register(ada, room="lab")
    await submit(ada, job)
    for other in (eve, client):
        expect_problem(await other.post(CLAIM, json={"worker_id": job["worker_id"]}), 403, "forbidden")
    expect_problem(await ada.post(CLAIM, json={"worker_id": UNKNOWN_ID}), 404, "worker-not-found")
    for body in ({}, {"worker_id": None}, {"worker_id": "x"}, [], None):
        expect_problem(await ada.post(CLAIM, json=body), 422, "invalid-request")
    assert (await claim(ada, job["worker_id"]))["status"] == "claimed"


async def test_a_claim_of_a_removed_worker_is_not_found(client: httpx.AsyncClient) -> None:
    """404, so that the worker registers again; the task stays pending."""
    job = await register(client)
    task = await submit(client, job)
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    response = await client.post(CLAIM, json={"worker_id": job["worker_id"]})
    expect_problem(response, 404, "worker-not-found")
    assert (await get_task(client, task))["status"] == "pending"


async def test_an_unknown_task_is_not_found(client: httpx.AsyncClient) -> None:
    """404 for an unknown id, 422 for an invalid one."""
    for method in ("GET", "PATCH"):
        body = {"status": "cancelled"}
        response = await client.request(method, f"{V1}/tasks/{UNKNOWN_ID}", json=body)
        expect_problem(response, 404, "task-not-found")
        response = await client.request(method, f"{V1}/tasks/x", json=body)
        expect_problem(response, 422, "invalid-request")


async def test_a_task_keeps_the_times_of_its_steps(client: httpx.AsyncClient, events: list[Any]) -> None:
    """`started_at` and `completed_at` are set; the room gets each event once, in order."""
    job = await register(client)
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    events.clear()
    running = (await report(client, task, "running")).json()
    assert running == {**task, "status": "running", "started_at": running["started_at"]}
    done = (await report(client, task, "completed", result={"x": [1, None]})).json()
    assert done == {
        **running,
        "status": "completed",
        "completed_at": done["completed_at"],
        "result": {"x": [1, None]},
    }
    assert parse_utc(done["created_at"]) <= parse_utc(done["started_at"]) <= parse_utc(done["completed_at"])
    assert await get_task(client, task) == done
    assert statuses(events) == [("running", "room:lab", None), ("completed", "room:lab", None)]
    assert len(events) == 2


async def test_a_failure_has_an_error_text(client: httpx.AsyncClient, events: list[Any]) -> None:
    """The text is kept and published with every end; only a success has a result."""
    job = await register(client)
    for status in ("failed", "completed", "cancelled"):
        await submit(client, job)
        task = await claim(client, job["worker_id"])
        await report(client, task, "running")
        ended = (await report(client, task, status, error="so it is", result=[1])).json()
        assert (ended["status"], ended["error"]) == (status, "so it is")
        assert ended["result"] == ([1] if status == "completed" else None)
        assert events[-1].event.error == "so it is"


@on_both
async def test_a_server_may_refuse_tasks_that_no_worker_serves(
    client: httpx.AsyncClient, settings: ServerSettings
) -> None:
    """409 names the job and the setting; by default such a task waits, and the queue says since when."""
    job = await register(client)
    await submit(client, job)
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    waiting = await submit(client, job)
    [reason, _] = (await client.get(f"{V1}/tasks/{waiting['id']}/explain")).json()["reasons"]
    found = (await client.get(f"{V1}/rooms/lab/jobs/{job['full_name']}")).json()
    since = datetime.fromisoformat(found["unserved_since"])
    assert reason == {
        "code": "no_worker",
        "detail": f"No worker serves {job['full_name']} since {since:%Y-%m-%d %H:%M:%S} UTC; 2 tasks wait in "
        "its queue",
    }
    url, body = f"{V1}/rooms/lab/tasks", {"job_name": job["full_name"], "payload": {}}
    settings.without_workers = "reject"
    problem = expect_problem(
        await client.post(f"{url}/{job['full_name']}", json={"payload": {}}), 409, "no-workers-available"
    )
    assert job["full_name"] in problem["detail"]
    assert "without_workers" in problem["detail"]
    batch = (await client.post(f"{V1}/tasks/submit", json={"tasks": [{**body, "room_id": "lab"}]})).json()
    assert "no-workers-available" in str(batch)
    await register(client)
    await submit(client, job)


@on_both
async def test_the_last_pending_task_deletes_a_job_without_workers(
    client: httpx.AsyncClient, events: list[Any]
) -> None:
    """The job is deleted in the same transaction, and its room is notified."""
    job = await register(client)
    task = await submit(client, job)
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    url = f"{V1}/rooms/lab/jobs/{job['full_name']}"
    assert (await client.get(url)).status_code == 200
    events.clear()
    await report(client, task, "cancelled")
    expect_problem(await client.get(url), 404, "job-not-found")
    assert statuses(events) == [("cancelled", "room:lab", None)]
    assert events[1:] == [(JobsInvalidate(), "room:@global")]


async def test_no_event_is_published_without_a_change(
    client: httpx.AsyncClient, as_user: AsUser, events: list[Any]
) -> None:
    """Heartbeats, reads, repeats, refusals and empty claims publish no event."""
    eve = await as_user("eve")
    job = await register(client, schema={"required": ["x"]})
    await submit(client, job, x=1)
    task = await claim(client, job["worker_id"])
    await report(client, task, "running")
    events.clear()
    codes = [
        (await client.patch(f"{V1}/workers/{job['worker_id']}")).status_code,
        (await client.get(f"{V1}/tasks/{task['id']}")).status_code,
        (await client.get(f"{V1}/rooms/lab/jobs")).status_code,
        (await report(client, task, "running")).status_code,
        (await report(client, task, "claimed")).status_code,
        (await report(eve, task, "cancelled")).status_code,
        (await report(client, task, "completed", attempt=9)).status_code,
        (await client.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={})).status_code,
        (await client.put(f"{V1}/rooms/@global/jobs", json={"category": "x", "name": "X"})).status_code,
    ]
    assert codes == [200, 200, 200, 200, 409, 403, 409, 422, 400]
    assert await claim(client, job["worker_id"]) is None
    assert events == []


async def test_an_invalid_status_is_refused(client: httpx.AsyncClient) -> None:
    """422 for an unknown or missing status and for fields of the wrong type."""
    task = await submit(client, await register(client))
    for body in (
        {},
        {"status": "lost"},
        {"status": "CANCELLED"},
        {"status": None},
        {"status": "cancelled", "error": 5},
        {"status": "cancelled", "attempt": "x"},
        {"status": "cancelled", "worker_id": "x"},
    ):
        expect_problem(await client.patch(f"{V1}/tasks/{task['id']}", json=body), 422, "invalid-request")
    assert (await get_task(client, task))["status"] == "pending"


@on_both
async def test_a_room_lists_its_tasks(client: httpx.AsyncClient) -> None:
    """The tasks of that room only, of all jobs, newest first, optionally of one status."""
    job, other = await register(client), await register(client, "Scale")
    tasks = [
        await submit(client, which, room=room)
        for which, room in ((job, "lab"), (other, "attic"), (other, "lab"), (job, "@global"))
    ]
    url = f"{V1}/rooms/lab/tasks"
    page = (await client.get(url)).json()
    assert page == {"items": [tasks[2], tasks[0]], "total": 2, "limit": 50, "offset": 0}
    await claim(client, job["worker_id"])
    for status, expected in (("claimed", [0]), ("pending", [2]), ("completed", [])):
        page = (await client.get(url, params={"status": status})).json()
        assert [t["id"] for t in page["items"]] == [tasks[i]["id"] for i in expected]
        assert page["total"] == len(expected)
    assert (await client.get(f"{V1}/rooms/nowhere/tasks")).json()["items"] == []
    expect_problem(await client.get(url, params={"status": "lost"}), 422, "invalid-request")
    expect_problem(await client.get(f"{V1}/rooms/a:b/tasks"), 400, "invalid-room-id")
