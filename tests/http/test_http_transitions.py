"""Permissions and transitions of tasks over HTTP: every cell of the table in `wire.statuses`."""

import asyncio
from itertools import product
from typing import Any

import httpx
from databases import on_both
from forms import transport  # noqa: F401 - a fixture
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report, submit

from zndraw_joblib.wire.statuses import TERMINAL, TRANSITIONS, Role, TaskStatus, may_move

WAY = {
    TaskStatus.CLAIMED: [],
    TaskStatus.RUNNING: ["running"],
    TaskStatus.COMPLETED: ["running", "completed"],
    TaskStatus.FAILED: ["running", "failed"],
    TaskStatus.CANCELLED: ["cancelled"],
}


def test_the_transition_table_matches_the_contract() -> None:
    """It has exactly these transitions and roles."""
    table = {(str(a), str(b)): {str(role) for role in roles} for (a, b), roles in TRANSITIONS.items()}
    holder, everyone = {"worker", "superuser"}, {"worker", "superuser", "submitter"}
    assert table == {
        ("pending", "claimed"): {"server"},
        ("pending", "cancelled"): {"submitter", "superuser"},
        ("pending", "failed"): {"server"},
        ("claimed", "pending"): holder | {"server"},
        ("running", "pending"): holder | {"server"},
        ("failed", "pending"): {"server"},
        ("cancelled", "pending"): {"server"},
        ("claimed", "running"): holder,
        ("claimed", "failed"): holder | {"server"},
        ("claimed", "cancelled"): everyone,
        ("running", "completed"): holder,
        ("running", "failed"): holder | {"server"},
        ("running", "cancelled"): everyone,
    }


def expected(status: TaskStatus, target: TaskStatus, role: Role | None) -> tuple[int, str]:
    """Return the expected status code and problem kind."""
    is_known = role is not None and not (role == Role.WORKER and status == TaskStatus.PENDING)
    if not is_known or (role == Role.SUBMITTER and target != TaskStatus.CANCELLED):
        return 403, "forbidden"
    is_repeat = status == target and status in TERMINAL | {TaskStatus.RUNNING}
    if is_repeat or may_move(frozenset({role}), status, target):
        return 200, ""
    return 409, "invalid-task-transition"


def apart(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task without the fields that other tasks change."""
    return {**task, "queue_position": None}


@on_both
async def test_every_role_may_do_what_the_table_allows(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """200 for an allowed transition or a repeat, 409 for an invalid one, 403 for a wrong role."""
    people: dict[Role | None, httpx.AsyncClient] = {
        Role.SUBMITTER: await as_user("ada"),
        Role.WORKER: await as_user("wim"),
        Role.SUPERUSER: client,
        None: await as_user("eve"),
    }
    owner = people[Role.WORKER]
    waiting = await register(owner, "Waiting", room="lab")
    moving = await register(owner, "Moving", room="lab")

    async def task_with_status(status: TaskStatus) -> dict[str, Any]:
        if status == TaskStatus.PENDING:
            return await submit(people[Role.SUBMITTER], waiting)
        await submit(people[Role.SUBMITTER], moving)
        task = await claim(owner, moving["worker_id"])
        for step in WAY[status]:
            assert (await report(owner, task, step)).status_code == 200
        return await get_task(owner, task)

    async def check(status: TaskStatus, target: TaskStatus, role: Role | None) -> None:
        before = await task_with_status(status)
        response = await report(people[role], before, target)
        code, kind = expected(status, target, role)
        where = f"{role}: {status} to {target}: {response.text}"
        assert response.status_code == code, where
        if code == 200:
            assert response.json()["status"] == target, where
            assert status != target or response.json() == before, where
        else:
            expect_problem(response, code, kind)
            assert apart(await get_task(client, before)) == apart(before), where

    # Few at a time: requests wait 10 s at most for a connection of the pool.
    cells = list(product(TaskStatus, TaskStatus, people))
    for start in range(0, len(cells), 16):
        await asyncio.gather(*(check(*cell) for cell in cells[start : start + 16]))


async def test_a_refusal_has_the_state_and_a_reason(client: httpx.AsyncClient) -> None:
    """409 has the current status, the attempt, a reason for programs, and what is possible or happened."""
    job = await register(client)
    for status, target, reason, end in (
        (
            TaskStatus.CLAIMED,
            "completed",
            "wrong order",
            "from there it can go to pending, running, failed, cancelled",
        ),
        (TaskStatus.COMPLETED, "failed", "finished", "it has ended"),
        (TaskStatus.CANCELLED, "completed", "cancelled", "it has ended"),
        (TaskStatus.FAILED, "completed", "finished", f"it has ended ({'x' * 200})"),
    ):
        await submit(client, job)
        task = await claim(client, job["worker_id"])
        for step in WAY[status]:
            error = {"error": "x" * 300} if step == "failed" else {}
            await report(client, task, step, **error)
        body = expect_problem(await report(client, task, target), 409, "invalid-task-transition")
        assert (body["current_status"], body["current_attempt"], body["reason"]) == (status, 1, reason)
        assert body["detail"] == f"Cannot transition from '{status}' to '{target}': {end}"


async def test_strangers_get_the_text_of_the_contract(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """403 has the same details before and after a claim."""
    eve = await as_user("eve")
    job = await register(client)
    task = await submit(client, job)
    body = expect_problem(await report(eve, task, "cancelled"), 403, "forbidden")
    assert body["detail"] == "Task not claimed by any worker"
    await claim(client, job["worker_id"])
    body = expect_problem(await report(eve, task, "cancelled"), 403, "forbidden")
    assert body["detail"] == "Not authorized to update this task"


async def test_a_repeated_report_changes_nothing(client: httpx.AsyncClient) -> None:
    """200 with the unchanged task, with or without the attempt."""
    job = await register(client)
    for end in ("completed", "failed", "cancelled"):
        await submit(client, job)
        task = await claim(client, job["worker_id"])
        token = {"attempt": task["attempt"], "worker_id": job["worker_id"]}
        for status, fields in (("running", {}), (end, {"error": "why", "result": 1})):
            first = await report(client, task, status, **fields, **token)
            for again in (token, {}):
                repeated = await report(client, task, status, **fields, **again)
                assert (repeated.status_code, repeated.json()) == (200, first.json())


@on_both
async def test_many_tasks_are_released_in_one_request(client: httpx.AsyncClient) -> None:
    """The repeat of a release changes nothing; that of an earlier claim is stale."""
    job = await register(client)
    for _ in range(3):
        await submit(client, job)
    tasks = [await claim(client, job["worker_id"]) for _ in range(3)]
    await report(client, tasks[1], "running")
    items = [{"id": task["id"], "attempt": 1, "status": "pending"} for task in tasks]
    body = {"worker_id": job["worker_id"], "reports": items}
    first, again = [(await client.post(f"{V1}/tasks/report", json=body)).json() for _ in range(2)]
    assert [result["status"] for result in (*first["results"], *again["results"])] == [200] * 6
    released = [await get_task(client, task) for task in tasks]
    assert {(task["status"], task["attempt"], task["worker_id"]) for task in released} == {
        ("pending", 1, None)
    }
    assert (await claim(client, job["worker_id"]))["id"] == tasks[0]["id"]
    late = (await client.post(f"{V1}/tasks/report", json={**body, "reports": items[:1]})).json()
    assert late["results"][0]["problem"]["reason"] == "taken over"


async def test_a_report_that_does_not_hold_the_task_is_stale(client: httpx.AsyncClient) -> None:
    """409 with the reason for another attempt or another worker; the task does not change."""
    job = await register(client)
    other = await register(client)
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    await report(client, task, "running", attempt=1, worker_id=job["worker_id"])
    before = await get_task(client, task)
    tokens: list[dict[str, Any]] = [
        {"attempt": 0},
        {"attempt": 2},
        {"attempt": -1},
        {"attempt": 10**30},
        {"worker_id": other["worker_id"]},
        {"worker_id": UNKNOWN_ID, "attempt": 1},
    ]
    for token in tokens:
        for status in ("running", "completed", "failed", "cancelled"):
            body = expect_problem(await report(client, task, status, **token), 409, "stale-report")
            assert body["reason"] == "taken over"
            assert (body["current_status"], body["current_attempt"]) == ("running", 1)
    assert await get_task(client, task) == before


async def test_the_report_of_a_removed_worker_changes_nothing(client: httpx.AsyncClient) -> None:
    """The task has failed, and the late success is 409 `finished`."""
    job = await register(client)
    await submit(client, job)
    task = await claim(client, job["worker_id"])
    await report(client, task, "running")
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    before = await get_task(client, task)
    assert before["error"] == "Worker disconnected"
    token = {"attempt": task["attempt"], "worker_id": task["worker_id"]}
    for status in ("running", "completed", "cancelled"):
        body = expect_problem(await report(client, task, status, **token), 409, "invalid-task-transition")
        assert body["reason"] == "finished"
    assert await get_task(client, task) == before


async def test_a_submitter_may_only_cancel(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Its own task, at any time before the end; the worker's next report is a 409 with that reason."""
    ada, bob = await as_user("ada"), await as_user("bob")
    job = await register(client)
    for steps in ([], ["claim"], ["claim", "running"]):
        task = await submit(ada, job)
        for step in steps:
            await (claim(client, job["worker_id"]) if step == "claim" else report(client, task, step))
        for status in ("pending", "claimed", "running", "completed", "failed"):
            expect_problem(await report(ada, task, status), 403, "forbidden")
        expect_problem(await report(bob, task, "cancelled"), 403, "forbidden")
        response = await report(ada, task, "cancelled")
        assert (response.status_code, response.json()["status"]) == (200, "cancelled")
        if steps:
            body = expect_problem(await report(client, task, "completed"), 409, "invalid-task-transition")
            assert body["reason"] == "cancelled"
