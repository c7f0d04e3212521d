"""Who may move a task from where to where, over HTTP: the table of `contract.status`, cell by cell."""

import asyncio
from itertools import product
from typing import Any

import httpx
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, get_task, register, report, submit

from zndraw_joblib.contract.status import TERMINAL, TRANSITIONS, Role, TaskStatus, may_move

WAY = {
    TaskStatus.CLAIMED: [],
    TaskStatus.RUNNING: ["running"],
    TaskStatus.COMPLETED: ["running", "completed"],
    TaskStatus.FAILED: ["running", "failed"],
    TaskStatus.CANCELLED: ["cancelled"],
}


def test_the_table_is_the_contracts() -> None:
    """From where to where, and by whom: nothing more and nothing less."""
    table = {(str(a), str(b)): {str(role) for role in roles} for (a, b), roles in TRANSITIONS.items()}
    holder, anybody = {"worker", "superuser"}, {"worker", "superuser", "submitter"}
    assert table == {
        ("pending", "claimed"): {"server"},
        ("pending", "cancelled"): {"submitter", "superuser"},
        ("pending", "failed"): {"server"},
        ("claimed", "pending"): {"server"},
        ("running", "pending"): {"server"},
        ("failed", "pending"): {"server"},
        ("cancelled", "pending"): {"server"},
        ("claimed", "running"): holder,
        ("claimed", "failed"): holder | {"server"},
        ("claimed", "cancelled"): anybody,
        ("running", "completed"): holder,
        ("running", "failed"): holder | {"server"},
        ("running", "cancelled"): anybody,
    }


def expected(status: TaskStatus, target: TaskStatus, role: Role | None) -> tuple[int, str]:
    """Return the answer's status code and its kind of problem."""
    is_known = role is not None and not (role == Role.WORKER and status == TaskStatus.PENDING)
    if not is_known or (role == Role.SUBMITTER and target != TaskStatus.CANCELLED):
        return 403, "forbidden"
    is_repeat = status == target and status in TERMINAL | {TaskStatus.RUNNING}
    if is_repeat or may_move(frozenset({role}), status, target):
        return 200, ""
    return 409, "invalid-task-transition"


def apart(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task without what its neighbours change."""
    return {**task, "queue_position": None}


async def test_every_role_moves_a_task_as_the_table_says(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """200 where the table has the step or it is a repeat, 409 where it has not, 403 for whom it never has."""
    people: dict[Role | None, httpx.AsyncClient] = {
        Role.SUBMITTER: await as_user("ada"),
        Role.WORKER: await as_user("wim"),
        Role.SUPERUSER: client,
        None: await as_user("eve"),
    }
    owner = people[Role.WORKER]
    waiting = await register(owner, "Waiting", room="lab")
    moving = await register(owner, "Moving", room="lab")

    async def bring(status: TaskStatus) -> dict[str, Any]:
        if status == TaskStatus.PENDING:
            return await submit(people[Role.SUBMITTER], waiting)
        await submit(people[Role.SUBMITTER], moving)
        task = await claim(owner, moving["worker_id"])
        for step in WAY[status]:
            assert (await report(owner, task, step)).status_code == 200
        return await get_task(owner, task)

    async def check(status: TaskStatus, target: TaskStatus, role: Role | None) -> None:
        before = await bring(status)
        answer = await report(people[role], before, target)
        code, kind = expected(status, target, role)
        where = f"{role}: {status} to {target}: {answer.text}"
        assert answer.status_code == code, where
        if code == 200:
            assert answer.json()["status"] == target, where
            assert status != target or answer.json() == before, where
        else:
            expect_problem(answer, code, kind)
            assert apart(await get_task(client, before)) == apart(before), where

    await asyncio.gather(*(check(*cell) for cell in product(TaskStatus, TaskStatus, people)))


async def test_a_refusal_says_where_the_task_is_and_why(client: httpx.AsyncClient) -> None:
    """409 carries the present status, the attempt and a reason a program can read."""
    job = await register(client)
    for status, target, reason in (
        (TaskStatus.CLAIMED, "completed", "wrong order"),
        (TaskStatus.COMPLETED, "failed", "finished"),
        (TaskStatus.CANCELLED, "completed", "cancelled"),
    ):
        await submit(client, job)
        task = await claim(client, job["worker_id"])
        for step in WAY[status]:
            await report(client, task, step)
        body = expect_problem(await report(client, task, target), 409, "invalid-task-transition")
        assert (body["current_status"], body["current_attempt"], body["reason"]) == (status, 1, reason)
        assert status in body["detail"]
        assert target in body["detail"]


async def test_strangers_are_told_what_a_task_lacks(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """403 with the pinned details, before and after a claim."""
    eve = await as_user("eve")
    job = await register(client)
    task = await submit(client, job)
    body = expect_problem(await report(eve, task, "cancelled"), 403, "forbidden")
    assert body["detail"] == "Task not claimed by any worker"
    await claim(client, job["worker_id"])
    body = expect_problem(await report(eve, task, "cancelled"), 403, "forbidden")
    assert body["detail"] == "Not authorized to update this task"


async def test_a_repeat_of_ones_own_report_changes_nothing(client: httpx.AsyncClient) -> None:
    """200 with the task as it is, times and all, whether the token is repeated or left out."""
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


async def test_a_report_that_does_not_hold_the_task_is_stale(client: httpx.AsyncClient) -> None:
    """409 with the reason for another attempt or another worker, whatever it reports; nothing changes."""
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


async def test_a_zombies_report_changes_nothing(client: httpx.AsyncClient) -> None:
    """After its worker was removed the task has failed, and the holder's late success is 409 `finished`."""
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


async def test_a_submitter_cancels_and_nothing_else(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Its own task, at any time before the end; the worker then learns it from its next report."""
    ada, bob = await as_user("ada"), await as_user("bob")
    job = await register(client)
    for steps in ([], ["claim"], ["claim", "running"]):
        task = await submit(ada, job)
        for step in steps:
            await (claim(client, job["worker_id"]) if step == "claim" else report(client, task, step))
        for status in ("pending", "claimed", "running", "completed", "failed"):
            expect_problem(await report(ada, task, status), 403, "forbidden")
        expect_problem(await report(bob, task, "cancelled"), 403, "forbidden")
        answer = await report(ada, task, "cancelled")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        if steps:
            body = expect_problem(await report(client, task, "completed"), 409, "invalid-task-transition")
            assert body["reason"] == "cancelled"
