"""`after` over HTTP: what is refused and how, and who may name predecessors and read their results."""

from typing import Any

import httpx
from databases import on_both
from fastapi import FastAPI, HTTPException, Request
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, register, report

from zndraw_joblib import verify_readable_room

Json = dict[str, Any]


async def send(client: httpx.AsyncClient, job: Json, room: str = "lab", **body: Any) -> httpx.Response:
    """Submit a task."""
    return await client.post(f"{V1}/rooms/{room}/tasks/{job['full_name']}", json={"payload": {}, **body})


async def new(client: httpx.AsyncClient, job: Json, room: str = "lab", **body: Any) -> Json:
    """Submit a task and return it."""
    response = await send(client, job, room, **body)
    assert response.status_code == 202, response.text
    return response.json()


async def make_group(client: httpx.AsyncClient, room: str = "lab") -> str:
    """Create an open group; return its id."""
    response = await client.post(f"{V1}/groups", json={"room": room})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def tasks_of(client: httpx.AsyncClient, **query: Any) -> list[Json]:
    """Return tasks, the newest first."""
    items: list[Json] = (await client.get(f"{V1}/tasks", params={"limit": 100, **query})).json()["items"]
    return items


@on_both
async def test_each_refusal_of_after_names_the_field_and_what_to_do(client: httpx.AsyncClient) -> None:
    """Alone and in a batch. Another room's task or group is refused as one that does not exist."""
    job = await register(client)
    own, other = await new(client, job), await new(client, job, "other")
    group, others_group = await make_group(client), await make_group(client, "other")
    unknown = "a task waits for tasks and groups of its own room that were not deleted. Check the id"
    many = [own["id"]] * 60
    field = ["body", "after"]
    refused: list[tuple[Json, list[str], str]] = [
        ({"after": {}}, field, "name at least one of the tasks or groups to wait for, or leave out after"),
        (
            {"after": {"tasks": many + many}},
            [*field, "tasks"],
            "120 entries, at most 100 together are allowed; submit the",
        ),
        ({"after": {"groups": [group] * 101}}, [*field, "groups"], "101 entries, at most 100 together are"),
        ({"after": {"tasks": many, "groups": [group] * 60}}, field, "submit the tasks to a group, and wait"),
        ({"after": {"tasks": ["first"]}}, [*field, "tasks", "0"], "valid"),
        ({"after": {"tasks": [own["id"]], "on_failure": "skip"}}, [*field, "on_failure"], "'hold'"),
        ({"after": {"task": [own["id"]]}}, [*field, "task"], "after.task"),
        ({"after": {"tasks": [0]}}, [*field, "tasks"], "only a batch takes indexes (submit_many, POST"),
        ({"after": {"tasks": [own["id"], UNKNOWN_ID]}}, [*field, "tasks"], f"task {UNKNOWN_ID}; {unknown}"),
        ({"after": {"tasks": [other["id"]]}}, [*field, "tasks"], f"no task {other['id']}; {unknown}"),
        ({"after": {"groups": [UNKNOWN_ID]}}, [*field, "groups"], f"group {UNKNOWN_ID}; {unknown}"),
        ({"after": {"groups": [others_group]}}, [*field, "groups"], f"no group {others_group}; {unknown}"),
        ({"after": {"groups": [group]}, "group": group}, [*field, "groups"], "seal it before you submit"),
    ]
    for body, loc, text in refused:
        problem = expect_problem(await send(client, job, **body), 422, "invalid-request")
        place = [str(part) for part in problem["errors"][0]["loc"]]
        assert (place[: len(loc)], text in problem["detail"]) == (loc, True), problem
    waiting = await new(client, job, after={"groups": [group]})
    awaited = await send(client, job, after={"tasks": [own["id"]]}, group=group)
    problem = expect_problem(awaited, 422, "invalid-request")
    assert problem["errors"][0]["loc"] == ["body", "group"]
    assert "submit them before, or to another group" in problem["detail"]
    # None of these has made a task or an edge.
    assert [task["id"] for task in await tasks_of(client, room="lab")] == [waiting["id"], own["id"]]
    for task in (own, other):
        assert "successors" not in (await client.get(f"{V1}/tasks/{task['id']}")).json()


@on_both
async def test_each_refusal_in_a_batch_names_the_item(client: httpx.AsyncClient) -> None:
    """Indexes lead to earlier items of a batch that is submitted as a whole; nothing of it is submitted."""
    job = await register(client)
    other = await new(client, job, "other")

    async def batch(*afters: Any, **options: Any) -> httpx.Response:
        item = {"room_id": "lab", "job_name": job["full_name"]}
        tasks = [item if after is None else {**item, "after": after} for after in afters]
        return await client.post(f"{V1}/tasks/submit", json={"tasks": tasks, **options})

    atomic = {"atomic": True}
    ids = [other["id"]] * 100
    for options, afters, text in (
        ({}, [None, {"tasks": [0]}], "tasks.1.after.tasks: indexes need a batch that is atomic or makes a"),
        (atomic, [None, {"tasks": [1]}], "tasks.1.after.tasks: 1 is no earlier item of the batch"),
        (atomic, [{"tasks": [1]}, None], "tasks.0.after.tasks: 1 is no earlier item of the batch"),
        (atomic, [None, {"tasks": [0, 999]}], "tasks.1.after.tasks: 999 is no earlier item"),
        (atomic, [None, {"tasks": [-1]}], "tasks.1.after.tasks.0"),
        ({}, [{"tasks": ids}] * 101, "tasks: they wait for 10100 tasks and groups in all; at most 10000"),
        (atomic, [None, {"tasks": [0, other["id"]]}], f"after.tasks: room 'lab' has no task {other['id']}"),
    ):
        problem = expect_problem(await batch(*afters, **options), 422, "invalid-request")
        assert text in problem["detail"], problem["detail"][:500]
    [good, bad] = (await batch(None, {"tasks": [UNKNOWN_ID]})).json()["results"]
    assert (good["status"], bad["status"]) == (202, 422)
    assert bad["problem"]["errors"][0]["loc"] == ["body", "after", "tasks"]
    assert [task["id"] for task in await tasks_of(client, room="lab")] == [good["id"]]


def guard_reading(app: FastAPI) -> set[str]:
    """Let users whose tokens are in the returned set read no room."""
    refused: set[str] = set()

    def guard(room_id: str, request: Request) -> str:
        if request.headers["authorization"] in refused:
            raise HTTPException(403, "not your room")
        return room_id

    app.dependency_overrides[verify_readable_room] = guard
    return refused


async def test_predecessors_are_readable(client: httpx.AsyncClient, app: FastAPI, as_user: AsUser) -> None:
    """Who may not read a room gets the same refusal for ids that exist; a worker names tasks that it has."""
    refused = guard_reading(app)
    worker, user = await as_user("worker"), await as_user("user")
    job = await register(worker, room="lab")
    held, queued = await new(client, job), await new(client, job)
    group = await make_group(client)
    assert (await claim(worker, job["worker_id"])) is not None
    refused.update(member.headers["authorization"] for member in (worker, user))
    item = {"room_id": "lab", "job_name": job["full_name"]}
    for name, ids in (("tasks", [queued["id"], held["id"], UNKNOWN_ID]), ("groups", [group, UNKNOWN_ID])):
        problems = [
            expect_problem(await send(user, job, after={name: [id_]}), 403, "forbidden") for id_ in ids
        ]
        items = [{**item, "after": {name: [id_]}} for id_ in ids]
        results = (await user.post(f"{V1}/tasks/submit", json={"tasks": items})).json()["results"]
        assert [result["status"] for result in results] == [403] * len(ids)
        problems += [result["problem"] for result in results]
        assert len({problem["detail"] for problem in problems}) == 1
    assert (await send(worker, job, after={"tasks": [held["id"]]})).status_code == 202
    for after in ({"tasks": [held["id"], queued["id"]]}, {"tasks": [held["id"]], "groups": [group]}):
        expect_problem(await send(worker, job, after=after), 403, "forbidden")
    assert len(await tasks_of(client, room="lab")) == 3


async def complete(client: httpx.AsyncClient, task: Json, result: Any) -> None:
    """Report the start and the end of a task."""
    assert (await report(client, task, "running")).status_code == 200
    assert (await report(client, task, "completed", result=result)).status_code == 200


async def take(client: httpx.AsyncClient, job: Json, task: Json) -> Json:
    """Claim tasks until this one is claimed, and return it with its payload."""
    while True:
        held = await claim(client, job["worker_id"], wait=30)
        assert held is not None
        if held["id"] == task["id"]:
            return held


async def read(member: httpx.AsyncClient, task: Json | str, successor: Json | str) -> httpx.Response:
    """Read the result of a task for one that has waited for it."""
    task, successor = (each if isinstance(each, str) else each["id"] for each in (task, successor))
    return await member.get(f"{V1}/tasks/{task}/result", params={"successor": successor})


@on_both
async def test_a_worker_reads_the_results_that_its_task_has_waited_for(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """Without a right to read the room, of these tasks only, and while it has the task."""
    refused = guard_reading(app)
    worker, other = await as_user("worker"), await as_user("other")
    source, job = await register(client, "Source"), await register(worker, room="lab")
    others_job = await register(other, "Other", "lab")
    result = {"s": "x" * 70_000}
    first, beside = [await new(client, source) for _ in range(2)]
    for task in (first, beside):
        await complete(client, await take(client, source, task), result)
    value = {"$result": {"task": first["id"], "pointer": "/s"}}
    waits = {"payload": {"x": value}, "after": {"tasks": [first["id"]]}}
    task, others = await new(client, job, **waits), await new(client, others_job, **waits)
    plain = await new(client, job)
    refused.update(member.headers["authorization"] for member in (worker, other))
    # Not before the claim, although it serves the job.
    expect_problem(await read(worker, first, task), 403, "forbidden")
    assert (await take(worker, job, task))["payload"] == {"x": {**value, "id": first["id"]}}
    await take(other, others_job, others)
    assert (await read(worker, first, task)).json() == result
    assert (await read(other, first, others)).status_code == 200
    # Not with the task of another worker, one without an edge, or one that does not exist.
    for of, successor in ((first, others), (first, plain), (first, UNKNOWN_ID), (beside, task)):
        expect_problem(await read(worker, of, successor), 403, "forbidden")
    expect_problem(await read(worker, UNKNOWN_ID, task), 404, "task-not-found")
    expect_problem(await worker.get(f"{V1}/tasks/{first['id']}/result"), 403, "forbidden")
    expect_problem(await read(client, first, plain), 404, "result-not-found")
    # Not after its end.
    await complete(worker, task, None)
    expect_problem(await read(worker, first, task), 403, "forbidden")
    assert (await read(client, first, task)).status_code == 200
