"""The example of a host: its users, rooms and rules."""

from types import ModuleType

import httpx
import pytest
from databases import on_both
from rest import ROTATE, V1, claim, register, report, run_task, submit

from host.conftest import Start


@pytest.fixture
async def people(host_app: ModuleType, async_url: str, start: Start) -> list[httpx.AsyncClient]:
    """Sign up an admin, ada and bob; return their clients."""
    app = host_app.create_app(async_url)
    anonymous = await start(app)
    keys = [
        (await anonymous.post("/users", json={"name": name})).json()["key"] for name in ("root", "ada", "bob")
    ]
    return [await start(app, **{"X-Key": key}) for key in keys]


@on_both
async def test_a_task_runs_in_a_host(people: list[httpx.AsyncClient]) -> None:
    """A user of the host registers, submits, claims, reports and reads."""
    _, ada, _ = people
    ended = await run_task(ada)
    assert ended["created_by"] == "2"


async def test_the_users_of_the_host_are_the_users_of_the_queue(people: list[httpx.AsyncClient]) -> None:
    """Without a key 401 with the host's challenge; the host's superuser is a superuser."""
    root, ada, _ = people
    for key in ("", "unknown"):
        response = await ada.get(f"{V1}/workers", headers={"X-Key": key})
        assert response.status_code == 401
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["www-authenticate"] == "X-Key"
        assert response.json()["type"] == "/v1/problems/unauthorized"
    assert (await ada.put(f"{V1}/rooms/@global/jobs", json=ROTATE)).status_code == 403
    assert (await root.put(f"{V1}/rooms/@global/jobs", json=ROTATE)).status_code == 201


async def test_a_submitter_cancels_in_a_host(people: list[httpx.AsyncClient]) -> None:
    """Its own task and no other user's."""
    root, ada, bob = people
    job = await register(root)
    task = await submit(ada, job)
    assert (await report(bob, task, "cancelled")).status_code == 403
    assert (await report(ada, task, "cancelled")).json()["status"] == "cancelled"


async def test_a_locked_room_refuses_changes(people: list[httpx.AsyncClient]) -> None:
    """423 as a problem for registrations and submissions; reads and reports continue."""
    root, ada, bob = people
    job = await register(bob, room="lab")
    task = await submit(ada, job)
    assert (await ada.put("/rooms/lab", json={"is_locked": True})).status_code == 200
    for response in (
        await ada.post(f"{V1}/rooms/lab/tasks/{job['full_name']}", json={}),
        await bob.put(f"{V1}/rooms/lab/jobs", json={**ROTATE, "name": "New"}),
    ):
        assert response.status_code == 423
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == "/v1/problems/locked"
        assert "locked" in response.json()["detail"]
    assert (await bob.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 1
    assert (await claim(bob, job["worker_id"]))["id"] == task["id"]
    assert (await report(bob, task, "running")).status_code == 200
    await submit(root, job)
    await ada.put("/rooms/lab", json={"is_locked": False})
    await submit(bob, job)


async def test_a_private_room_does_not_exist_for_others(people: list[httpx.AsyncClient]) -> None:
    """404 for every request of other users, also for a task by its id; its owner sees all."""
    root, ada, bob = people
    job = await register(root)
    assert (await ada.put("/rooms/den", json={"is_private": True})).status_code == 200
    task = await submit(ada, job, room="den")
    reads = ["jobs", "tasks", "workers", f"jobs/{job['full_name']}", f"jobs/{job['full_name']}/tasks"]
    for url in (*(f"{V1}/rooms/den/{part}" for part in reads), f"{V1}/tasks/{task['id']}"):
        assert (await ada.get(url)).status_code == 200, url
        for headers in ({}, {"Prefer": "wait=5"}):
            response = await bob.get(url, headers=headers)
            assert response.status_code == 404, url
            assert response.headers["content-type"] == "application/problem+json"
            assert "den" in response.json()["detail"]
    response = await bob.post(f"{V1}/rooms/den/tasks/{job['full_name']}", json={})
    assert response.status_code == 404
    assert (await ada.get(f"{V1}/rooms/den/tasks")).json()["total"] == 1
    claimed = await claim(root, job["worker_id"])
    assert claimed["id"] == task["id"]


async def test_routes_of_the_host_may_use_the_rules_of_the_queue(people: list[httpx.AsyncClient]) -> None:
    """Its problems are formatted because the host installed the handler."""
    _, ada, bob = people
    response = await ada.put("/rooms/a:b", json={})
    assert (response.status_code, response.json()["type"]) == (400, "/v1/problems/invalid-room-id")
    await ada.put("/rooms/den", json={})
    assert (await bob.put("/rooms/den", json={})).json() == {"detail": "The room belongs to another user"}
    assert (await ada.post("/users", json={"name": "ada"})).json() == {"detail": "'ada' is taken"}
