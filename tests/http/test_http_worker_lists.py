"""What a worker says about itself, and who sees it."""

import os
from typing import Any

import httpx
from databases import on_both
from rest import UNKNOWN_ID, V1, AsUser, claim, expect_problem, register, report, submit

from zndraw_joblib.server.process.settings import ServerSettings

WORKERS = f"{V1}/workers"
ABOUT = {"name": "bench-7", "host": "node-7.example.org", "pid": 4711, "version": "1.2.3", "slots": 4}
UNKNOWN = {**dict.fromkeys((*ABOUT, "owner_id", "created_at", "max_tasks", "held")), "jobs": []}


async def by_id(client: httpx.AsyncClient, url: str = WORKERS) -> dict[str, dict[str, Any]]:
    """Return the workers of a list by id."""
    response = await client.get(url)
    assert response.status_code == 200, response.text
    return {worker["id"]: worker for worker in response.json()["items"]}


def about(worker: dict[str, Any]) -> dict[str, Any]:
    """Return what a worker said about itself."""
    return {name: worker[name] for name in ABOUT}


@on_both
async def test_each_form_of_registration_describes_the_worker(client: httpx.AsyncClient) -> None:
    """A new worker, a job and a provider with a new worker; heartbeats change what they name."""
    created = (await client.post(WORKERS, json=ABOUT)).json()["id"]
    with_job = (await register(client, worker=ABOUT, max_tasks=9))["worker_id"]
    provider = {"category": "files", "name": "Share", "worker": {"name": "share"}}
    with_provider = (await client.put(f"{V1}/rooms/lab/providers", json=provider)).json()["worker_id"]
    silent = (await client.post(WORKERS)).json()["id"]
    found = await by_id(client)
    assert about(found[created]) == about(found[with_job]) == ABOUT
    assert about(found[with_provider]) == {**dict.fromkeys(ABOUT), "name": "share"}
    assert about(found[silent]) == dict.fromkeys(ABOUT)
    assert [found[each]["max_tasks"] for each in (created, with_job)] == [None, 9]
    assert found[with_job]["jobs"] == ["@global:modifiers:Rotate"]

    for sent, expected in (
        ({"slots": 2}, {**ABOUT, "slots": 2}),
        ({}, {**ABOUT, "slots": 2}),
        ({"name": "bench-8", "slots": None}, {**ABOUT, "name": "bench-8", "slots": 2}),
    ):
        response = await client.patch(f"{WORKERS}/{created}", json={"worker": sent})
        assert response.status_code == 200
        assert about((await by_id(client))[created]) == expected
    invalid: list[dict[str, Any]] = [{"name": ""}, {"name": "a\nb"}, {"name": "n" * 129}, {"host": "h" * 256}]
    invalid += [{"pid": -1}, {"pid": 2**31}, {"version": "v" * 65}, {"slots": 0}, {"slots": "many"}]
    for body in invalid:
        for response in (
            await client.post(WORKERS, json=body),
            await client.patch(f"{WORKERS}/{created}", json={"worker": body}),
        ):
            problem = expect_problem(response, 422, "invalid-request")
            assert next(iter(body)) in problem["detail"]


@on_both
async def test_who_sees_what_of_a_worker(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Its owner and superusers see all; others its name, if it serves a job that they may see."""
    ada, eve = await as_user("ada"), await as_user("eve")
    private = (await register(ada, room="attic", worker=ABOUT))["worker_id"]
    public = (await register(ada, room="lab", worker=ABOUT))["worker_id"]
    job = await register(client, worker_id=(await register(client))["worker_id"], worker=ABOUT)
    await register(client, "Secret", room="attic", worker_id=job["worker_id"])
    for caller in (ada, client):
        found = await by_id(caller)
        for worker_id in (private, public):
            assert about(found[worker_id]) == ABOUT
            assert (found[worker_id]["owner_id"], found[worker_id]["held"]) == ("ada", 0)
    found = await by_id(eve)
    for worker_id in (private, public):
        assert {name: found[worker_id][name] for name in UNKNOWN} == UNKNOWN
        assert (found[worker_id]["job_count"], found[worker_id]["state"]) == (1, "active")
    everywhere = found[job["worker_id"]]
    assert (everywhere["jobs"], everywhere["job_count"]) == (["@global:modifiers:Rotate"], 2)
    assert (everywhere["created_at"] is not None, everywhere["owner_id"]) == (True, None)
    of_lab = await by_id(eve, f"{V1}/rooms/lab/workers")
    assert set(of_lab) == {public, job["worker_id"]}
    assert about(of_lab[public]) == {**ABOUT, "host": None, "pid": None}
    assert of_lab[public]["jobs"] == ["lab:modifiers:Rotate"]
    for worker_id in (private, public):
        expect_problem(await eve.get(f"{WORKERS}/{worker_id}"), 403, "forbidden")
    expect_problem(await ada.get(f"{WORKERS}/{UNKNOWN_ID}"), 404, "worker-not-found")
    expect_problem(await ada.get(f"{WORKERS}/x"), 422, "invalid-request")


@on_both
async def test_a_worker_with_its_tasks(
    client: httpx.AsyncClient, as_user: AsUser, settings: ServerSettings
) -> None:
    """The held tasks, newest first, without payload; the state follows heartbeats and draining."""
    ada = await as_user("ada")
    job = await register(ada, room="lab", worker={"pid": os.getpid()})
    for _ in range(3):
        await submit(ada, job, secret="payload")
    held = [await claim(ada, job["worker_id"]) for _ in range(3)]
    await report(ada, held[0], "running")
    await report(ada, held[1], "running")
    await report(ada, held[1], "completed")
    overview = (await client.get(f"{V1}/overview")).json()
    assert (overview["slots"], overview["slots_used"]) == (1, 1)  # a task that is claimed ahead uses none
    url = f"{WORKERS}/{job['worker_id']}"
    for caller in (ada, client):
        worker = (await caller.get(url)).json()
        assert [(task["id"], task["status"]) for task in worker["tasks"]] == [
            (held[2]["id"], "claimed"),
            (held[0]["id"], "running"),
        ]
        assert (worker["held"], worker["running"], worker["state"]) == (2, 1, "active")
        assert worker["pid"] == os.getpid()
    [task, _] = worker["tasks"]
    assert (task["job_name"], task["room_id"], task["attempt"]) == (job["full_name"], "lab", 1)
    assert "payload" not in task
    await client.post(f"{url}/drain")
    assert (await ada.get(url)).json()["state"] == "draining"
    settings.heartbeat_interval_seconds = 1e-9
    assert (await ada.get(url)).json()["state"] == "silent"


async def test_a_repeated_creation_returns_the_same_worker(client: httpx.AsyncClient) -> None:
    """With an idempotency key the description is part of the request."""
    headers = {"Idempotency-Key": '"8a8d7b62-0001"'}
    first, second = [(await client.post(WORKERS, json=ABOUT, headers=headers)).json() for _ in range(2)]
    assert first["id"] == second["id"]
    other = await client.post(WORKERS, json={"name": "other"}, headers=headers)
    expect_problem(other, 422, "idempotency-key-reused")
