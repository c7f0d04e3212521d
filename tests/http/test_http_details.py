"""Progress, logs and failures over HTTP, in single reports and in batches."""

from typing import Any

import httpx
import pytest
from forms import transport  # noqa: F401 - a fixture
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report, submit

AT = "2026-01-02T03:04:05.000678Z"
TRACE = {"type": "KeyError", "traceback": "line 1", "full_traceback": "all lines", "notes": ["frame 7"]}


def part(first: int, *texts: str) -> dict[str, Any]:
    """Return a part of a log."""
    return {"first": first, "lines": [{"at": AT, "text": text} for text in texts]}


async def report_details(client: httpx.AsyncClient, task: dict[str, Any], **fields: Any) -> httpx.Response:
    """Report on an attempt without a status."""
    body = {"attempt": task["attempt"], **fields}
    return await client.patch(f"{V1}/tasks/{task['id']}", json=body)


async def running(client: httpx.AsyncClient, **policy: Any) -> dict[str, Any]:
    """Return a running task of a new job."""
    job = await register(client, **policy)
    await submit(client, job)
    claimed = await claim(client, job["worker_id"])
    assert claimed is not None
    assert (await report(client, claimed, "running", attempt=1)).status_code == 200
    return {**claimed, "worker": job["worker_id"]}


async def log(client: httpx.AsyncClient, task: dict[str, Any], **query: Any) -> dict[str, Any]:
    """Return the log of a task."""
    response = await client.get(f"{V1}/tasks/{task['id']}/log", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_task_has_its_progress_its_log_and_its_failure(client: httpx.AsyncClient) -> None:
    """Readers get the progress with the task, the lines with their numbers, and the traceback."""
    task = await running(client)
    progress = {"current": 1, "total": 4.5, "unit": "frames", "message": "relax", "data": {"e": -1.5}}
    response = await report_details(client, task, progress=progress, log=part(1, "one", "two"))
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "running"
    assert "progress" not in response.json()
    assert (await get_task(client, task))["progress"] == progress
    listed = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
    assert [each["progress"] for each in listed] == [progress]
    ended = await report(client, task, "failed", error="KeyError: 7", failure=TRACE, log=part(3, "three"))
    assert (ended.status_code, ended.json()["status"]) == (200, "failed")
    found = await get_task(client, task)
    assert found["failure"] == {**TRACE, "full_traceback": ""}
    history = (await client.get(f"{V1}/tasks/{task['id']}/history")).json()
    [detail] = history["attempts"]
    assert (detail["failure"], detail["log_lines"], detail["log_dropped"]) == (TRACE, 3, 0)
    read = await log(client, task)
    assert [(line["n"], line["text"]) for line in read["lines"]] == [(1, "one"), (2, "two"), (3, "three")]
    assert read["lines"][0] == {"n": 1, "at": AT, "text": "one", "level": "info", "source": "log"}
    assert {name: read[name] for name in ("id", "attempt", "last", "dropped", "next")} == {
        **{"id": task["id"], "attempt": 1, "last": 3, "dropped": 0, "next": None}
    }
    page = await log(client, task, after=1, limit=1, attempt=1)
    assert ([line["n"] for line in page["lines"]], page["next"]) == ([2], 2)


async def test_a_stale_attempt_gets_the_same_problem(client: httpx.AsyncClient) -> None:
    """A report without a status has the fence of one with a status; repeating it is harmless."""
    task = await running(client)
    for _ in range(2):
        assert (await report_details(client, task, log=part(1, "one"))).status_code == 200
    stale = await report_details(client, {**task, "attempt": 2}, progress={"current": 1})
    assert expect_problem(stale, 409, "stale-report")["reason"] == "taken over"
    other = await report_details(client, task, worker_id=UNKNOWN_ID, progress={"current": 1})
    expect_problem(other, 409, "stale-report")
    failure = {"error": "oh", "error_code": "result-not-serializable"}
    assert (await report(client, task, "failed", attempt=1, **failure)).status_code == 200
    late = expect_problem(await report_details(client, task, log=part(2, "late")), 409, "stale-report")
    assert late["detail"] == "No worker holds the task: it is failed, attempt 1"
    assert (late["reason"], late["error_code"]) == ("finished", "result-not-serializable")
    assert (late["current_status"], late["current_attempt"]) == ("failed", 1)
    assert [line["text"] for line in (await log(client, task))["lines"]] == ["one"]


async def test_an_invalid_report_is_refused(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    """422 names the field; nothing is stored."""
    for fields, named in [
        ({}, "needs a status, progress or log"),
        ({"progress": {"current": "many"}}, "progress.current"),
        ({"progress": {"unit": "x" * 65}}, "progress.unit"),
        ({"progress": {"data": {"text": "x" * 20_000}}}, "16384"),
        ({"log": {"first": 0, "lines": [{"at": AT, "text": "x"}]}}, "log.first"),
        ({"log": {"first": 3_000_000_000, "lines": [{"at": AT, "text": "x"}]}}, "log.first"),
        ({"log": {"first": 1, "lines": []}}, "log.lines"),
        ({"log": {"first": 1, "lines": [{"at": AT, "text": "x" * 8193}]}}, "log.lines.0.text"),
        ({"log": {"first": 1, "lines": [{"at": AT, "text": "x"}] * 1001}}, "log.lines"),
        ({"status": "completed", "failure": TRACE}, "failure"),
    ]:
        with subtests.test(fields=fields, named=named):
            task = await running(client)
            problem = expect_problem(await report_details(client, task, **fields), 422, "invalid-request")
            assert named in problem["detail"]
            assert "progress" not in await get_task(client, task)


async def test_only_the_worker_reports_details(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """A stranger and the submitter get a 403; readers of the room read the log."""
    task = await running(client)
    stranger = await as_user("ada")
    expect_problem(await report_details(stranger, task, progress={"current": 1}), 403, "forbidden")
    assert (await log(stranger, task))["lines"] == []
    response = await (await as_user()).get(f"{V1}/tasks/{task['id']}/log")
    expect_problem(response, 401, "unauthorized")


async def test_the_log_of_no_attempt(client: httpx.AsyncClient) -> None:
    """An unknown task or attempt is a 404, a bad number a 422."""
    task = await running(client)
    for url in (f"{UNKNOWN_ID}/log", f"{task['id']}/log?attempt=2"):
        expect_problem(await client.get(f"{V1}/tasks/{url}"), 404, "task-not-found")
    for query in ("attempt=-1", "after=-1", "limit=0", "limit=1001", "after=x", "after=3000000000"):
        response = await client.get(f"{V1}/tasks/{task['id']}/log?{query}")
        assert query.split("=")[0] in expect_problem(response, 422, "invalid-request")["detail"]


async def test_a_heartbeat_carries_progress_and_log(client: httpx.AsyncClient) -> None:
    """It may have the details of the tasks that it names."""
    task = await running(client)
    named = {"id": task["id"], "attempt": 1, "progress": {"current": 3}, "log": part(1, "one")}
    for _ in range(2):
        response = await client.patch(f"{V1}/workers/{task['worker']}", json={"tasks": [named]})
        assert response.json()["tasks"] == [{"id": task["id"], "verdict": "continue"}]
    assert (await get_task(client, task))["progress"] == {
        **{"current": 3, "total": None, "unit": None, "message": None, "data": None}
    }
    assert [line["text"] for line in (await log(client, task))["lines"]] == ["one"]


async def test_a_repeated_key_reports_once(client: httpx.AsyncClient) -> None:
    """A report with an Idempotency-Key is applied once, and its repeat gets the same answer."""
    task = await running(client)
    key = {"Idempotency-Key": "one-report"}
    body = {"attempt": 1, "progress": {"current": 1}, "log": part(1, "one")}
    first, second = [await client.patch(f"{V1}/tasks/{task['id']}", json=body, headers=key) for _ in range(2)]
    assert (first.status_code, first.json()) == (200, second.json())
    assert (await log(client, task))["last"] == 1
