"""Every error is a problem of RFC 9457 whose type is the path of its description."""

import asyncio

import httpx
from databases import on_both
from fastapi import FastAPI
from rest import UNKNOWN_ID, V1, AsUser, expect_problem, register, submit
from sqlalchemy import text

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.problems import PROBLEMS, REMEDIES

BREAK = {
    True: [
        "CREATE TRIGGER broken BEFORE INSERT ON joblib_task WHEN NEW.room_id = 'broken' "
        "BEGIN SELECT RAISE(ABORT, 'secret of the disk'); END"
    ],
    False: [
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'secret of the disk'; END $$",
        "CREATE TRIGGER broken BEFORE INSERT ON joblib_task FOR EACH ROW WHEN (NEW.room_id = 'broken') "
        "EXECUTE FUNCTION broken()",
    ],
}


async def break_a_room(tx: Transaction) -> None:
    """Make the database refuse every task of one room."""
    for statement in BREAK[tx.is_sqlite]:
        await tx.execute(text(statement))


async def test_every_kind_of_problem_has_a_page(client: httpx.AsyncClient) -> None:
    """`/v1/problems/<kind>` describes each; an unknown kind is a problem itself."""
    for kind, cls in PROBLEMS.items():
        page = await client.get(cls.type_uri())
        assert page.status_code == 200, kind
        assert page.headers["content-type"].startswith("text/plain")
        assert f"{cls.__name__} ({cls.status} {cls.title})" in page.text
        assert page.text.endswith(f"\n\nWhat to do: {REMEDIES[cls]}\n")
    for unknown in ("unheard-of", "%00", "x" * 5000, "%E2%80%A8"):
        expect_problem(await client.get(f"/v1/problems/{unknown}"), 404, "not-found")


async def test_each_error_points_to_its_page(
    client: httpx.AsyncClient, as_user: AsUser, app: FastAPI
) -> None:
    """401, 403, 404, 405, 409, 413, 422 have one media type and a documented type."""
    ada, anonymous = await as_user("ada"), await as_user()
    job = await register(client)
    task = await submit(client, job)
    url = f"{V1}/tasks/{task['id']}"
    submits = f"{V1}/rooms/lab/tasks/{job['full_name']}"
    responses = {
        400: await client.get(f"{V1}/rooms/a:b/tasks"),
        401: await anonymous.get(url),
        403: await ada.patch(url, json={"status": "running"}),
        404: await client.get(f"{V1}/tasks/{UNKNOWN_ID}"),
        405: await client.put(url),
        409: await client.patch(url, json={"status": "running"}),
        413: await client.post(submits, json={"payload": {"x": "x" * 2**20}}),
        422: await client.patch(url, json={}),
    }
    for status, response in responses.items():
        kind = response.json()["type"].removeprefix("/v1/problems/")
        body = expect_problem(response, status, kind)
        assert body["detail"]
        page = await anonymous.get(body["type"])
        assert page.status_code == 200
        assert f"({status} {body['title']})" in page.text
    assert "GET" in responses[405].headers["allow"]


async def test_unknown_paths_are_problems_too(client: httpx.AsyncClient) -> None:
    """404 has the same shape under the prefix, beside it and at the root."""
    for url in ("/nothing", "/v1", V1, f"{V1}/nothing", f"{V1}/rooms/lab", "/v1/problems/"):
        expect_problem(await client.get(url), 404, "not-found")
    for method in ("DELETE", "PUT", "POST"):
        expect_problem(await client.request(method, f"{V1}/rooms/lab/workers"), 405, "method-not-allowed")


async def test_a_validation_problem_lists_every_error(client: httpx.AsyncClient) -> None:
    """422 has the location of each error and does not repeat the input."""
    body = {"category": 5, "schema": "secret-text", "worker_id": "x"}
    problem = expect_problem(await client.put(f"{V1}/rooms/lab/jobs", json=body), 422, "invalid-request")
    assert [fault["loc"] for fault in problem["errors"]] == [
        ["body", "schema"],
        ["body", "category"],
        ["body", "name"],
        ["body", "worker_id"],
    ]
    assert all(fault["message"] for fault in problem["errors"])
    assert "secret-text" not in str(problem)


async def test_an_unexpected_error_reveals_no_details(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """500 has the same shape; the log has the details; the next request is served."""
    job = await register(client)
    await runtime.write(break_a_room)
    response = await client.post(f"{V1}/rooms/broken/tasks/{job['full_name']}", json={})
    body = expect_problem(response, 500, "internal-server-error")
    assert "secret" not in response.text
    assert body["detail"]
    assert (await client.get(f"{V1}/rooms/broken/tasks")).json()["total"] == 0


@on_both
async def test_a_failing_request_fails_no_other_in_its_batch(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """Requests that share a commit get their own results."""
    job = await register(client)
    await runtime.write(break_a_room)
    rooms = ["lab", "lab", "broken", "lab", "broken", "lab"]
    urls = [f"{V1}/rooms/{room}/tasks/{job['full_name']}" for room in rooms]
    responses = await asyncio.gather(*(client.post(url, json={}) for url in urls))
    assert [response.status_code for response in responses] == [202, 202, 500, 202, 500, 202]
    served = [response.json()["id"] for response in responses if response.status_code == 202]
    listed = (await client.get(f"{V1}/rooms/lab/tasks")).json()["items"]
    assert sorted(task["id"] for task in listed) == sorted(served)


async def test_too_many_waiting_requests_are_503(client: httpx.AsyncClient, settings: ServerSettings) -> None:
    """503 has `Retry-After` and the reason; requests without a wait are served."""
    settings.max_waiting_requests = 0
    job = await register(client)
    wait = {"Prefer": "wait=5"}
    claim = {"worker_id": job["worker_id"]}
    responses = [await client.post(f"{V1}/tasks/claim", json=claim, headers=wait)]
    task = await submit(client, job)
    responses.append(await client.get(f"{V1}/tasks/{task['id']}", headers=wait))
    for response in responses:
        body = expect_problem(response, 503, "service-unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert "max_waiting_requests" in body["detail"]
    assert (await client.get(f"{V1}/tasks/{task['id']}")).status_code == 200
    claimed = await client.post(f"{V1}/tasks/claim", json=claim, headers=wait)
    assert claimed.json()["task"]["id"] == task["id"]
