"""Many tasks in one request: each item gets the result that its own request would get."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from databases import on_both
from rest import UNKNOWN_ID, V1, AsUser, expect_problem, get_task, register

SUBMIT, CLAIM, REPORT = f"{V1}/tasks/submit", f"{V1}/tasks/claim", f"{V1}/tasks/report"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

_NUMBERS = [{"n": 1}, {"n": 2}, {"n": 3}]


def of(job: Any, *payloads: Any, room: str = "lab") -> list[dict[str, Any]]:
    """Return a task of a job for each payload."""
    return [{"room_id": room, "job_name": job["full_name"], "payload": payload} for payload in payloads]


async def results(client: httpx.AsyncClient, url: str, body: Any, **headers: str) -> list[Any]:
    """Return the results of a batch."""
    response = await client.post(url, json=body, headers=headers)
    assert response.status_code == 200, response.text
    found: list[Any] = response.json()["results"]
    return found


async def test_each_item_has_a_result_or_a_problem_in_order(client: httpx.AsyncClient) -> None:
    """A bad item spoils no other one."""
    job = await register(client, schema=SCHEMA)
    tasks = of(job, {"n": 1}, {"n": "one"}, {"n": 2})
    tasks[2:2] = [{"room_id": "lab", "job_name": "@global:modifiers:Unknown"}, *of(job, {"n": 3}, room="a:b")]
    got = await results(client, SUBMIT, {"tasks": tasks})
    assert [each["status"] for each in got] == [202, 422, 404, 400, 202]
    assert [each["task"]["queue_position"] for each in got if "task" in each] == [1, 2]
    assert got[1]["problem"]["type"] == "/v1/problems/invalid-payload"
    assert got[0]["task"] == await get_task(client, got[0])


async def test_a_misspelt_field_of_a_submit_is_refused(client: httpx.AsyncClient) -> None:
    """The error names the field that is meant, alone and in a batch. Other unknown fields are ignored."""
    job = await register(client)
    url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    for name, meant in {
        "priorty": "priority",
        "delay_second": "delay_seconds",
        "payloads": "payload",
    }.items():
        alone = await client.post(url, json={"payload": {}, name: 5})
        batch = await client.post(SUBMIT, json={"tasks": [{**of(job, {})[0], name: 5}]})
        for response in (alone, batch):
            detail = expect_problem(response, 422, "invalid-request")["detail"]
            assert f"{name}: there is no such field (did you mean {meant!r}?)" in detail
    newer = {"colour": 1, **{f"{number:04}": 1 for number in range(2000)}}
    response = await client.post(url, json={"payload": {"priorty": 1}, **newer})
    assert (response.status_code, response.json()["payload"]) == (202, {"priorty": 1})


@on_both
async def test_an_atomic_batch_submits_all_or_nothing(client: httpx.AsyncClient) -> None:
    """The problem names the item."""
    job = await register(client, schema=SCHEMA)
    tasks = of(job, {"n": 1}, {"n": "one"})
    response = await client.post(SUBMIT, json={"tasks": tasks, "atomic": True})
    problem = expect_problem(response, 422, "invalid-payload")
    assert problem["detail"].startswith("tasks.1: payload/n")
    [error] = problem["errors"]
    assert (error["loc"], error["type"]) == (["body", "tasks", "1"], "invalid-payload")
    assert problem["detail"] == f"tasks.1: {error['message']}"
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 0
    got = await results(client, SUBMIT, {"tasks": tasks[:1] * 3, "atomic": True})
    assert [each["status"] for each in got] == [202] * 3
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 3


@on_both
async def test_reports_of_a_batch_end_or_postpone_retries(client: httpx.AsyncClient) -> None:
    """As single reports do. Fields that contradict each other, or the status, are refused by name."""
    policy = {"max_attempts": 3, "retry_on": ["error"], "non_retryable": ["ValueError"]}
    job = await register(client, **policy)
    await results(client, SUBMIT, {"tasks": of(job, {}, {}, {})})
    claim = {"worker_id": job["worker_id"], "max": 3, "start": True}
    tasks = (await client.post(CLAIM, json=claim)).json()["tasks"]
    reports: list[dict[str, Any]] = [
        {"error_types": ["app.Wrong", "ValueError"]},
        {"retry_after_seconds": 600},
        {},
    ]
    failed = [
        {"id": task["id"], "status": "failed", **fields} for task, fields in zip(tasks, reports, strict=True)
    ]
    got = await results(client, REPORT, {"reports": failed})
    assert [each["task"]["status"] for each in got] == ["failed", "pending", "pending"]
    later, sooner = (datetime.fromisoformat(each["task"]["run_at"]) for each in got[1:])
    assert later - sooner > timedelta(minutes=9)
    url = f"{V1}/tasks/{tasks[0]['id']}"
    for field, body in (
        ("retry_after_seconds", {"status": "completed", "retry_after_seconds": 5}),
        ("retry_after_seconds", {"status": "failed", "retry_after_seconds": -1}),
        ("retry_after_seconds", {"status": "failed", "retry_after_seconds": 5, "retry": False}),
        ("error_types", {"status": "running", "error_types": ["KeyError"]}),
        ("error_types", {"status": "failed", "error_types": ["KeyError"] * 33}),
    ):
        problem = expect_problem(await client.patch(url, json=body), 422, "invalid-request")
        assert field in problem["detail"], body


@on_both
async def test_a_repeated_batch_submits_nothing_again(client: httpx.AsyncClient) -> None:
    """With the same key it gets the same results."""
    job = await register(client)
    for body in ({"tasks": of(job, {"n": 1}, {"n": 2})}, {"tasks": of(job, {"n": 3}), "atomic": True}):
        key = {"Idempotency-Key": str(uuid4())}
        first, again = [await results(client, SUBMIT, body, **key) for _ in range(2)]
        assert first == again
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 3


@on_both
async def test_a_key_of_an_item_submits_it_once_in_any_batch(client: httpx.AsyncClient) -> None:
    """Also twice in one batch. Another task with the key is refused; an atomic batch takes no such key."""
    job = await register(client)
    first, second, third = ({**it, "idempotency_key": f"k{it['payload']['n']}"} for it in of(job, *_NUMBERS))
    ids = [each["id"] for each in await results(client, SUBMIT, {"tasks": [first, second]})]
    changed = {**first, "payload": {"n": 9}}
    got = await results(client, SUBMIT, {"tasks": [third, third, second, changed, first, *of(job, {"n": 4})]})
    assert [each["status"] for each in got] == [202, 202, 202, 422, 202, 202]
    assert got[3]["problem"]["type"] == "/v1/problems/idempotency-key-reused"
    assert (got[0]["id"], got[2]["id"], got[4]["id"]) == (got[1]["id"], ids[1], ids[0])
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 4
    refused = await client.post(SUBMIT, json={"tasks": [*of(job, {}), first], "atomic": True})
    detail = expect_problem(refused, 422, "invalid-request")["detail"]
    assert "tasks.1.idempotency_key: an atomic batch is applied once as a whole" in detail


@on_both
async def test_a_worker_claims_starts_and_reports_many(client: httpx.AsyncClient) -> None:
    """Oldest first; a repeated claim gets the same tasks; each report is fenced by itself."""
    job = await register(client)
    made = await results(client, SUBMIT, {"tasks": of(job, *[{"n": n} for n in range(5)])})
    body = {"worker_id": job["worker_id"], "claim_id": str(uuid4()), "max": 3, "start": True}
    first, again = [(await client.post(CLAIM, json=body)).json() for _ in range(2)]
    assert first == again
    assert "task" not in first
    assert [task["id"] for task in first["tasks"]] == [each["id"] for each in made[:3]]
    assert {task["status"] for task in first["tasks"]} == {"running"}
    reports = [
        {"id": task["id"], "attempt": attempt, "status": "completed", "result": n}
        for n, (task, attempt) in enumerate(zip(first["tasks"], [1, 7, 1], strict=True))
    ]
    reports.append({"id": UNKNOWN_ID, "status": "completed"})
    got = await results(client, REPORT, {"worker_id": job["worker_id"], "reports": reports})
    assert [each["status"] for each in got] == [200, 409, 200, 404]
    assert [each["task"]["result"] for each in got if "task" in each] == [0, 2]
    rest = (await client.post(CLAIM, json={"worker_id": job["worker_id"], "max": 10})).json()
    assert [(task["id"], task["status"]) for task in rest["tasks"]] == [
        (each["id"], "claimed") for each in made[3:]
    ]
    empty = (await client.post(CLAIM, json={"worker_id": job["worker_id"], "max": 10})).json()
    assert empty == {"tasks": [], "reason": "empty"}


async def test_a_client_may_ask_for_ids_alone(client: httpx.AsyncClient) -> None:
    """With ``Prefer: return=minimal``."""
    job = await register(client)
    got = await results(client, SUBMIT, {"tasks": of(job, {}, {})}, Prefer="return=minimal")
    assert [set(each) for each in got] == [{"status", "id"}] * 2


async def test_malformed_batches_are_refused_as_a_whole(client: httpx.AsyncClient) -> None:
    """The problem names the item and the field."""
    job = await register(client)
    tasks = [*of(job, {}), {**of(job, {})[0], "priority": "high"}]
    problem = expect_problem(await client.post(SUBMIT, json={"tasks": tasks}), 422, "invalid-request")
    assert problem["detail"].startswith("body.tasks.1.priority: ")
    for body in ({"tasks": []}, {"tasks": of(job, {}) * 1001}):
        expect_problem(await client.post(SUBMIT, json=body), 422, "invalid-request")
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 0


async def test_a_stranger_reports_nothing(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """403 for each task."""
    job = await register(client)
    [made] = await results(client, SUBMIT, {"tasks": of(job, {})})
    stranger = await as_user("eve")
    got = await results(stranger, REPORT, {"reports": [{"id": made["id"], "status": "cancelled"}]})
    assert [each["status"] for each in got] == [403]


LINES = {"first": 1, "lines": [1] * 1000}
# Bodies of some 100 kB in which nearly everything is wrong.
MALFORMED: dict[str, tuple[str, dict[str, Any], int]] = {
    "submits": (SUBMIT, {"tasks": [{"payload": []}] * 1000}, 966),
    "one item": (SUBMIT, {"tasks": [1]}, 0),
    "submits at the end": (SUBMIT, {"tasks": [{"room_id": "lab", "job_name": "a"}] * 990 + [1] * 10}, 0),
    "too many submits": (SUBMIT, {"tasks": [1] * 100_000}, 99_900),
    "logs of reports": (REPORT, {"reports": [{"status": 1, "log": LINES}] * 100}, 66),
    "logs of a heartbeat": ("workers/{}", {"tasks": [{"id": 1, "attempt": 1, "log": LINES}] * 200}, 150),
    "notes": (REPORT, {"reports": [{"failure": {"type": "A", "notes": [1] * 20}}] * 1000}, 950),
}


async def test_few_errors_of_a_malformed_body_are_listed(
    client: httpx.AsyncClient, subtests: pytest.Subtests
) -> None:
    """The answer has 100 errors at most, and says how many items were not checked."""
    for case, (path, body, unchecked) in MALFORMED.items():
        with subtests.test(case):
            worker = (await client.post(f"{V1}/workers", json={})).json()["id"]
            is_heartbeat = not path.startswith("/")
            url = f"{V1}/{path.format(worker)}" if is_heartbeat else path
            response = await client.request("PATCH" if is_heartbeat else "POST", url, json=body)
            problem = expect_problem(response, 422, "invalid-request")
            assert 0 < len(problem["errors"]) <= 100
            assert len(response.content) < 50_000
            name, items = next(iter(body.items()))
            assert all(error["loc"][:2] == ["body", name] for error in problem["errors"])
            note = f"{unchecked} of {len(items)} {name} were not checked"
            assert (note in problem["detail"]) == bool(unchecked), problem["detail"]


async def test_few_errors_of_all_payloads_are_listed(client: httpx.AsyncClient) -> None:
    """An answer has 100 errors of payloads, and one for each further problem."""
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    job = await register(client, schema=schema)
    payload = {str(number): "x" for number in range(60)}
    got = await results(client, SUBMIT, {"tasks": of(job, *[payload] * 10)})
    assert [len(each["problem"]["errors"]) for each in got] == [60, 40, *[1] * 8]
    assert all("(and 57 more)" in each["problem"]["detail"] for each in got)


async def test_a_claim_of_batches_names_jobs_and_their_sizes(client: httpx.AsyncClient) -> None:
    """A misspelt or missing field is refused by name; what is right gets a batch of one job."""
    job = await register(client)
    worker, name = job["worker_id"], job["full_name"]
    wrong: dict[str, dict[str, Any]] = {
        "batches needs max": {"batches": [{"job": name, "max": 2}]},
        "names a job twice": {"max": 1, "batches": [{"job": name, "max": 2}, {"job": name, "max": 3}]},
        "body.batches.0.wait": {"max": 1, "batches": [{"job": name, "max": 2, "wait": 1}]},
        "body.batches.0.max": {"max": 1, "batches": [{"job": name, "max": 1001}]},
        "body.batches.0.wait_seconds": {"max": 1, "batches": [{"job": name, "max": 2, "wait_seconds": 61}]},
    }
    for text, body in wrong.items():
        response = await client.post(CLAIM, json={"worker_id": worker, **body})
        assert text in expect_problem(response, 422, "invalid-request")["detail"]
    await results(client, SUBMIT, {"tasks": of(job, {}, {}, {})})
    body = {"worker_id": worker, "max": 1, "start": True, "batches": [{"job": name, "max": 2}]}
    claimed = [(await client.post(CLAIM, json=body)).json() for _ in range(3)]
    assert [len(answer["tasks"]) for answer in claimed] == [2, 1, 0]
    assert [task["status"] for task in claimed[0]["tasks"]] == ["running"] * 2
    assert claimed[2] == {"tasks": [], "reason": "empty"}
