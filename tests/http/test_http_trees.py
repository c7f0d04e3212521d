"""Tags and trees of tasks over HTTP: submits, lists, searches, counts, and cancels of trees."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI, HTTPException, Request
from forms import transport  # noqa: F401 - a fixture
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report
from sqlalchemy import func, select, text

from zndraw_joblib import verify_readable_room
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import TaskTag
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.queue import rules_task_retention, rules_trees
from zndraw_joblib.server.queue.rules_task_retention import TaskPruning
from zndraw_joblib.server.runtime.runtime import Runtime

Json = dict[str, Any]


async def send(client: httpx.AsyncClient, job: Json, room: str = "lab", **body: Any) -> httpx.Response:
    """Submit a task."""
    return await client.post(f"{V1}/rooms/{room}/tasks/{job['full_name']}", json={"payload": {}, **body})


async def new(client: httpx.AsyncClient, job: Json, room: str = "lab", **body: Any) -> Json:
    """Submit a task and return it."""
    response = await send(client, job, room, **body)
    assert response.status_code == 202, response.text
    return response.json()


async def ids(client: httpx.AsyncClient, path: str = "/rooms/lab/tasks", **query: Any) -> list[str]:
    """Return the ids of the tasks of a list, of all its parts."""
    found: list[str] = []
    while True:
        response = await client.get(f"{V1}{path}", params=query)
        assert response.status_code == 200, response.text
        body = response.json()
        found += [task["id"] for task in body["items"]]
        if body.get("next") is None:
            return found
        query["cursor"] = body["next"]


@on_both
async def test_tags_are_kept_once_in_their_order(client: httpx.AsyncClient) -> None:
    """In the responses to submits and reads, also after a retry."""
    job = await register(client)
    task = await new(client, job, tags=["b", "a", "b"])
    assert task["tags"] == ["b", "a"]
    plain = await new(client, job)
    assert plain.keys().isdisjoint({"tags", "parent", "root"})
    held = await claim(client, job["worker_id"])
    assert held is not None
    assert held["id"] == task["id"]
    assert (await report(client, held, "failed")).status_code == 200
    retried = await client.post(f"{V1}/tasks/{task['id']}/retry")
    assert retried.json()["tags"] == (await get_task(client, task))["tags"] == ["b", "a"]


@on_both
async def test_tasks_are_found_by_their_tags(client: httpx.AsyncClient) -> None:
    """In the lists of rooms and in searches: by one tag or by several, each task once."""
    job = await register(client)
    task = await new(client, job, tags=["b", "a", "b"])
    batch = {"tasks": [{"room_id": "lab", "job_name": job["full_name"], "tags": ["a"]}] * 2}
    both = (await client.post(f"{V1}/tasks/submit", json=batch)).json()["results"]
    assert [result["task"]["tags"] for result in both] == [["a"], ["a"]]
    newest = [both[1]["id"], both[0]["id"], task["id"]]
    assert await ids(client, tag="a") == newest
    assert await ids(client, tag="a", limit=2, offset=1) == newest[1:]
    assert await ids(client, tag="b", status="pending") == [task["id"]]
    assert await ids(client, tag="b", status="failed") == await ids(client, tag="c") == []
    assert await ids(client, "/rooms/other/tasks", tag="a") == []
    listed = (await client.get(f"{V1}/rooms/lab/tasks", params={"tag": "a", "limit": 1})).json()
    assert (listed["total"], listed["items"][0]["tags"]) == (3, ["a"])
    for query in ({"tag": "a"}, {"tag": ["a", "b"]}, {"tag": ["b", "a"], "room": ["lab", "other"]}):
        assert await ids(client, "/tasks", **query, limit=2) == newest
    assert await ids(client, "/tasks", tag="b", room="lab", status="pending") == [task["id"]]
    assert await ids(client, "/tasks", tag="a", room="other") == []
    other = await new(client, await register(client, "Other"), tags=["a"])
    of_job, of_other = (f"/rooms/lab/jobs/{name}/tasks" for name in (job["full_name"], other["job_name"]))
    assert await ids(client, of_job, tag="a") == newest
    assert await ids(client, of_job, tag="a", status="pending", limit=1, offset=2) == [task["id"]]
    assert await ids(client, of_other, tag="a") == [other["id"]]
    assert await ids(client, of_other, tag="b") == await ids(client, of_job, tag="a", status="failed") == []
    assert await ids(client, tag="a", limit=1) == [other["id"]]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"tags": [f"t{number}" for number in range(11)]}, "tags"),
        ({"tags": [""]}, "tags.0"),
        ({"tags": ["x" * 65]}, "tags.0"),
        ({"tags": ["a\nb"]}, "tags.0: it may have printable characters only"),
        ({"tags": "nightly"}, "tags"),
        ({"parent": "none"}, "parent"),
        ({"parent": UNKNOWN_ID}, f"parent: room 'lab' has no task {UNKNOWN_ID}"),
    ],
)
async def test_wrong_tags_and_parents_are_named(client: httpx.AsyncClient, wrong: Json, error: str) -> None:
    """The problem names the field and the remedy."""
    job = await register(client)
    assert error in expect_problem(await send(client, job, **wrong), 422, "invalid-request")["detail"]


@on_both
async def test_a_root_is_inherited(client: httpx.AsyncClient) -> None:
    """Lists and searches find children and trees; ids of deleted tasks stay."""
    job = await register(client)
    top = await new(client, job)
    first = await new(client, job, parent=top["id"])
    assert (first["parent"], first["root"]) == (top["id"], top["id"])
    second = await new(client, job, parent=first["id"], tags=["leaf"])
    assert (second["parent"], second["root"]) == (first["id"], top["id"])
    assert (await get_task(client, second))["root"] == top["id"]
    for path, query in (("/rooms/lab/tasks", {}), ("/tasks", {}), ("/tasks", {"room": "lab"})):
        assert await ids(client, path, **query, parent=top["id"]) == [first["id"]]
        assert await ids(client, path, **query, root=top["id"]) == [second["id"], first["id"]]
        assert await ids(client, path, **query, root=top["id"], tag="leaf") == [second["id"]]
        assert await ids(client, path, **query, parent=first["id"], root=UNKNOWN_ID) == []
    assert await ids(client, "/tasks", root=top["id"], limit=1) == [second["id"], first["id"]]
    found = (await client.get(f"{V1}/tasks", params={"tag": "leaf"})).json()["items"][0]
    assert (found["tags"], found["parent"], found["root"]) == (["leaf"], first["id"], top["id"])
    found = (await client.get(f"{V1}/tasks")).json()["items"]
    assert [task["has_children"] for task in found] == [False, True, True]
    counted = (await client.get(f"{V1}/tasks/counts", params={"root": top["id"]})).json()
    assert (counted["pending"], counted["is_complete"]) == (2, True)


@on_both
async def test_a_parent_is_a_task_of_the_room(client: httpx.AsyncClient) -> None:
    """Another room's task is refused like one that does not exist, and a cancelled one as a conflict."""
    job = await register(client)
    other = await new(client, job, "other")
    problem = expect_problem(await send(client, job, parent=other["id"]), 422, "invalid-request")
    assert problem["errors"][0]["loc"] == ["body", "parent"]
    top = await new(client, job)
    items = [
        {"room_id": "lab", "job_name": job["full_name"], "parent": parent}
        for parent in (top["id"], other["id"], UNKNOWN_ID)
    ]
    results = (await client.post(f"{V1}/tasks/submit", json={"tasks": items})).json()["results"]
    assert [result["status"] for result in results] == [202, 422, 422]
    atomic = await client.post(f"{V1}/tasks/submit", json={"tasks": items, "atomic": True})
    assert expect_problem(atomic, 422, "invalid-request")["errors"][0]["loc"] == ["body", "tasks", "1"]
    assert (await report(client, top, "cancelled")).status_code == 200
    expect_problem(await send(client, job, parent=top["id"]), 409, "conflict")
    assert (await client.post(f"{V1}/tasks/{top['id']}/retry")).status_code == 200
    assert (await new(client, job, parent=top["id"]))["root"] == top["id"]


async def test_a_parent_is_readable(client: httpx.AsyncClient, app: FastAPI, as_user: AsUser) -> None:
    """A user who may write to a room but not read it names no parent there, but the worker of it may."""
    refused: set[str] = set()

    def guard(room_id: str, request: Request) -> str:
        if request.headers["authorization"] in refused:
            raise HTTPException(403, "not your room")
        return room_id

    app.dependency_overrides[verify_readable_room] = guard
    worker, user = await as_user("worker"), await as_user("user")
    job = await register(worker, room="lab")
    top, second = await new(client, job), await new(client, job)
    assert (await send(user, job, parent=top["id"])).status_code == 202
    refused.update(member.headers["authorization"] for member in (worker, user))
    assert (await send(user, job)).status_code == 202
    expect_problem(await send(user, job, parent=top["id"]), 403, "forbidden")
    items = [{"room_id": "lab", "job_name": job["full_name"], "parent": top["id"]}]
    [result] = (await user.post(f"{V1}/tasks/submit", json={"tasks": items})).json()["results"]
    assert result["status"] == 403
    held = await claim(worker, job["worker_id"])
    assert held is not None
    assert (await send(worker, job, parent=held["id"])).status_code == 202
    several = [
        {**items[0], "parent": parent} for parent in (second["id"], held["id"], UNKNOWN_ID, held["id"])
    ]
    results = (await worker.post(f"{V1}/tasks/submit", json={"tasks": several})).json()["results"]
    assert [result["status"] for result in results] == [403, 202, 403, 202]
    [result] = (await worker.post(f"{V1}/tasks/submit", json={"tasks": items})).json()["results"]
    assert result["status"] == 202


@on_both
async def test_a_replaced_task_has_the_tags_of_the_last_submit(client: httpx.AsyncClient) -> None:
    """It keeps its parent, as it keeps its id."""
    job = await register(client)
    top, other = await new(client, job), await new(client, job)
    rule = {"key": "k", "on_conflict": "replace"}
    first = await new(client, job, unique=rule, tags=["a", "b"], parent=top["id"])
    second = (await send(client, job, unique=rule, tags=["b", "c"], parent=other["id"])).json()
    assert (second["id"], second["tags"], second["parent"]) == (first["id"], ["b", "c"], top["id"])
    assert await ids(client, tag="a") == []
    assert await ids(client, tag="c") == [first["id"]]
    third = (await send(client, job, unique=rule)).json()
    assert "tags" not in third
    assert await ids(client, tag="b") == []


@on_both
async def test_a_tree_is_cancelled_in_waves(
    client: httpx.AsyncClient, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may cancel a task cancels what others have submitted below it, and nothing beside it."""
    monkeypatch.setattr(rules_trees, "WAVE", 2)
    monkeypatch.setattr(rules_trees, "_READ", 3)
    user, worker = await as_user("user"), await as_user("worker")
    job = await register(worker, room="lab")
    top = await new(user, job)
    below = [await new(worker, job, parent=top["id"]) for _ in range(5)]
    deep = await new(worker, job, parent=below[0]["id"])
    beside = await new(worker, job)
    for task in (top, below[0]):
        held = await claim(worker, job["worker_id"])
        assert held is not None
        assert held["id"] == task["id"]
    assert (await report(worker, top, "running")).status_code == 200
    assert (await report(worker, top, "completed", result=1)).status_code == 200
    stranger = await as_user("stranger")
    expect_problem(await report(stranger, top, "cancelled", tree=True), 403, "forbidden")
    expect_problem(await report(worker, top, "cancelled", tree=True), 409, "invalid-task-transition")
    part = await report(worker, below[0], "cancelled", tree=True)
    assert part.json()["status"] == "cancelled"
    assert [(await get_task(user, task))["status"] for task in (*below[1:], deep)] == [
        *["pending"] * 4,
        "cancelled",
    ]
    await _assert_whole_tree_is_cancelled(client, user, top, [*below, deep], beside)


async def _assert_whole_tree_is_cancelled(
    client: httpx.AsyncClient, user: httpx.AsyncClient, top: Json, below: list[Json], beside: Json
) -> None:
    response = await report(user, top, "cancelled", tree=True)
    assert (response.status_code, response.json()["status"]) == (200, "completed")
    states = {(await get_task(user, task))["status"] for task in below}
    assert (states, (await get_task(user, beside))["status"]) == ({"cancelled"}, "pending")
    again = await report(client, top, "cancelled", tree=True)
    assert again.status_code == 200
    wrong = await report(client, beside, "failed", tree=True)
    assert "tree" in expect_problem(wrong, 422, "invalid-request")["detail"]


@on_both
async def test_an_operator_who_cancels_a_tree_is_recorded(
    client: httpx.AsyncClient, as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry has the number of all tasks below."""
    monkeypatch.setattr(rules_trees, "WAVE", 2)
    user = await as_user("user")
    job = await register(client)
    top = await new(user, job)
    for _ in range(5):
        await new(user, job, parent=top["id"])
    assert (await report(client, top, "cancelled", tree=True)).status_code == 200
    entries = (await client.get(f"{V1}/audit")).json()["items"]
    assert [(entry["action"], entry["detail"]) for entry in entries] == [
        ("task.cancel-tree", {"affected": 5}),
        ("task.cancel", None),
    ]
    assert {entry["target"] for entry in entries} == {top["id"]}


@on_both
async def test_a_bulk_cancel_takes_trees(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """The preview counts what is below the tasks that match, each once; also for users."""
    user = await as_user("user")
    job = await register(client)
    top = await new(user, job, tags=["night"])
    child = await new(user, job, parent=top["id"], tags=["night"])
    deep = await new(client, job, parent=child["id"])
    alone, other = await new(user, job, tags=["night"]), await new(user, job)
    body: Json = {"action": "cancel", "filter": {"room": ["lab"], "tag": ["night"]}, "tree": True}
    shown = (await user.post(f"{V1}/tasks/bulk/preview", json=body)).json()
    assert (shown["count"], shown["below"]) == (3, 1)
    without = {**body, "tree": False, "token": shown["token"]}
    expect_problem(await user.post(f"{V1}/tasks/bulk", json=without), 422, "invalid-request")
    result = (await user.post(f"{V1}/tasks/bulk", json={**body, "token": shown["token"]})).json()
    assert (result["affected"], result["is_complete"]) == (4, True)
    states = [(await get_task(user, task))["status"] for task in (top, child, deep, alone, other)]
    assert states == ["cancelled"] * 4 + ["pending"]
    wrong = await client.post(f"{V1}/tasks/bulk/preview", json={**body, "action": "retry"})
    assert "tree" in expect_problem(wrong, 422, "invalid-request")["detail"]
    shown = (
        await client.post(f"{V1}/tasks/bulk/preview", json={"action": "retry", "filter": {"root": top["id"]}})
    ).json()
    assert shown["count"] == 2


async def get(member: httpx.AsyncClient, path: str, **query: Any) -> Any:
    """Return the body of a response."""
    response = await member.get(f"{V1}{path}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


@on_both
async def test_tags_are_listed_and_counted(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime
) -> None:
    """Users name rooms; statistics and failures of a tag are those of its tasks."""
    # All in one minute, which is an interval of the statistics.
    now = datetime.now(UTC)
    runtime.database.use_clock(lambda: now)
    user = await as_user("user")
    job = await register(client)
    failing = await new(client, job, tags=["night", "night/1"])
    await new(client, job, tags=["day"])
    await new(client, job, "other", tags=["night", "else"])
    held = await claim(client, job["worker_id"])
    assert held is not None
    assert held["id"] == failing["id"]
    assert (await report(client, held, "running")).status_code == 200
    assert (await report(client, held, "failed", error="ValueError: no")).status_code == 200

    assert await get(user, "/tasks/tags", room="lab") == {"tags": ["day", "night", "night/1"]}
    assert await get(user, "/tasks/tags", room="lab", prefix="night") == {"tags": ["night", "night/1"]}
    assert await get(client, "/tasks/tags") == {"tags": ["day", "else", "night", "night/1"]}
    expect_problem(await user.get(f"{V1}/tasks/tags"), 403, "forbidden")
    counts = await get(user, "/tasks/counts", room="lab", tag=["night", "day"])
    assert (counts["failed"], counts["pending"], counts["is_complete"]) == (1, 1, True)
    groups = await get(user, "/tasks/failures", room="lab", tag="night")
    assert [group["exception"] for group in groups["groups"]] == ["ValueError"]
    await _assert_statistics_of_a_tag(client, user, job)


async def _assert_statistics_of_a_tag(client: httpx.AsyncClient, user: httpx.AsyncClient, job: Json) -> None:
    statistics = await get(user, "/statistics", tag="night", room="lab")
    assert statistics["tag"] == "night"
    [interval] = statistics["intervals"]
    assert (interval["submitted"], interval["failed"], interval["causes"]) == (1, 1, {"error": 1})
    assert sum(interval["running"]["buckets"]) == 1
    [interval] = (await get(client, "/statistics", tag="night"))["intervals"]
    assert interval["submitted"] == 2
    expect_problem(await user.get(f"{V1}/statistics", params={"tag": "night"}), 403, "forbidden")
    both = await client.get(f"{V1}/statistics", params={"tag": "night", "job": job["full_name"]})
    expect_problem(both, 422, "invalid-request")


@on_both
async def test_tags_go_with_their_task_and_children_stay(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """A deleted parent leaves its id with its children: lists still find them, and submits refuse it."""
    job = await register(client)
    top = await new(client, job, tags=["a"])
    child = await new(client, job, parent=top["id"], tags=["a"])
    assert (await report(client, top, "cancelled")).status_code == 200

    async def purge(tx: Transaction) -> int:
        # The statistics would read the end before.
        await tx.execute(text("DELETE FROM joblib_statistic_position"), {})
        settings = JobLibSettings(keep_finished_days=1e-9)
        return (await rules_task_retention.prune(tx, settings, TaskPruning())).deleted

    assert await runtime.write(purge) == 1
    rows = await runtime.database.read(_count_tags)
    assert rows == 1
    assert await ids(client, tag="a") == await ids(client, parent=top["id"]) == [child["id"]]
    kept = await get_task(client, child)
    assert (kept["parent"], kept["root"]) == (top["id"], top["id"])
    expect_problem(await send(client, job, parent=top["id"]), 422, "invalid-request")
    assert (await new(client, job, parent=child["id"]))["root"] == top["id"]
    expect_problem(await report(client, top, "cancelled", tree=True), 404, "task-not-found")


async def _count_tags(tx: Transaction) -> int:
    number: int = (await tx.execute(select(func.count()).select_from(TaskTag.__table__), {})).scalar_one()
    return number


@on_both
async def test_a_schedule_has_tags(client: httpx.AsyncClient) -> None:
    """Each task of it has them."""
    job = await register(client, room="lab")
    body = {"job": job["full_name"], "every_seconds": 60, "tags": ["night", "night"]}
    schedule = await client.put(f"{V1}/rooms/lab/schedules/nightly", json=body)
    assert schedule.json()["tags"] == ["night"]
    task = (await client.post(f"{V1}/rooms/lab/schedules/nightly/run")).json()
    assert (task["tags"], task["schedule"]) == (["night"], "nightly")


@on_both
async def test_a_tag_behind_many_others_is_found(client: httpx.AsyncClient) -> None:
    """A tag for each commit hides none that begins with a later letter."""
    job = await register(client)
    tags = [f"commit-{number:04}" for number in range(1_010)]
    tasks = [
        {"room_id": "lab", "job_name": job["full_name"], "payload": {}, "tags": tags[start : start + 10]}
        for start in range(0, len(tags), 10)
    ]
    tasks.append({**tasks[0], "tags": ["zebra"]})
    assert (await client.post(f"{V1}/tasks/submit", json={"tasks": tasks})).status_code == 200
    response = await client.get(f"{V1}/tasks/tags", params={"room": "lab", "prefix": "zeb"})
    assert response.json() == {"tags": ["zebra"]}
