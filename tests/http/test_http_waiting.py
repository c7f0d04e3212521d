"""`Prefer: wait=N`: the commit wakes waiting requests."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import pytest
from databases import on_both
from fastapi import FastAPI
from rest import NO_TASK, V1, AsUser, claim, expect_problem, get_task, register, report, revoke_token, submit
from waiting import until

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.runtime.runtime import Runtime

# Long enough that an earlier response can only come from a wake-up.
WAIT = 60
SOON = 30
PREFER = {"Prefer": f"wait={WAIT}"}


@pytest.fixture
def no_recheck(runtime: Runtime) -> None:
    """Disable the recheck, so that only a wake-up ends a wait."""
    runtime.recheck.seconds = (10 * WAIT, 10 * WAIT)


@pytest.fixture
async def replica(settings: ServerSettings, client: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a second server process on the same database."""
    app = create_app(settings)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = client.headers
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://replica", headers=headers) as other,
    ):
        yield other


def waiting_for(
    client: httpx.AsyncClient, task: dict[str, Any], wait: int = WAIT
) -> asyncio.Future[httpx.Response]:
    """Start to wait for the end of a task."""
    headers = {"Prefer": f"wait={wait}"}
    return asyncio.ensure_future(client.get(f"{V1}/tasks/{task['id']}", headers=headers))


def claiming(
    client: httpx.AsyncClient, worker_id: str, wait: int = WAIT
) -> asyncio.Future[dict[str, Any] | None]:
    """Start a claim that waits."""
    return asyncio.ensure_future(claim(client, worker_id, wait))


HONOURED = [
    ["wait=3"],
    ["Wait=3"],
    ["WAIT=3"],
    ['wait="3"'],
    ["wait = 3"],
    ["  wait=3  "],
    ["wait=3; foo=bar"],
    ["respond-async, wait=3"],
    ["respond-async", "wait=3"],
    ["handling=lenient,wait=3,return=minimal"],
    ['foo="bar", wait=3'],
    ["wait=007"],
    ["wait=999999999"],
    ["wait=9999999999999999999999"],
]
IGNORED = [
    [],
    [""],
    ["wait=0"],
    ["wait=abc"],
    ["wait=-3"],
    ["wait=3x"],
    ["wait"],
    ["wait="],
    ["foo-wait=3"],
    ["await=3"],
    ["respond-async"],
    ["foo; wait=3"],
    ['foo="bar, wait=3"'],
    ["wait=0, wait=3"],
]


async def test_prefer_is_parsed_by_rfc_7240(client: httpx.AsyncClient, settings: ServerSettings) -> None:
    """Any case, quoted or not, in several headers; the first counts, and other values are ignored."""
    settings.long_poll_max_wait_seconds = 0.01
    job = await register(client)
    task = await submit(client, job)
    idle = (await client.post(f"{V1}/workers")).json()
    wrong = []
    for headers in HONOURED + IGNORED:
        prefer = [("Prefer", value) for value in headers]
        responses = [
            await client.get(f"{V1}/tasks/{task['id']}", headers=prefer),
            await client.post(f"{V1}/tasks/claim", json={"worker_id": idle["id"]}, headers=prefer),
        ]
        for response in responses:
            assert response.status_code == 200, headers
            if ("preference-applied" in response.headers) != (headers in HONOURED):
                wrong.append((response.request.method, headers))
    assert wrong == []


async def test_a_wait_ends_at_its_time(client: httpx.AsyncClient) -> None:
    """200 with the current state, not before the requested seconds and not much later."""
    job = await register(client)
    task = await submit(client, job)
    idle = (await client.post(f"{V1}/workers")).json()
    wait = {"Prefer": "wait=1"}

    async def timed(requests: Awaitable[httpx.Response]) -> tuple[httpx.Response, float]:
        started = time.monotonic()
        return await requests, time.monotonic() - started

    (returned, first), (claimed, second) = await asyncio.gather(
        timed(client.get(f"{V1}/tasks/{task['id']}", headers=wait)),
        timed(client.post(f"{V1}/tasks/claim", json={"worker_id": idle["id"]}, headers=wait)),
    )
    assert (returned.status_code, returned.json()) == (200, task)
    assert (claimed.status_code, claimed.json()) == (200, NO_TASK)
    for response, seconds in ((returned, first), (claimed, second)):
        assert response.headers["preference-applied"] == "wait=1"
        assert 1 <= seconds < SOON


async def test_the_server_limits_waits(client: httpx.AsyncClient, settings: ServerSettings) -> None:
    """The setting limits the wait, also after a change; the response returns the applied wait."""
    task = await submit(client, await register(client))
    settings.long_poll_max_wait_seconds = 1
    started = time.monotonic()
    response = await waiting_for(client, task, 3600)
    assert response.headers["preference-applied"] == "wait=1"
    assert 1 <= time.monotonic() - started < SOON
    settings.long_poll_max_wait_seconds = 0
    response = await waiting_for(client, task, 3600)
    assert (response.status_code, "preference-applied" in response.headers) == (200, False)


async def test_a_finished_task_is_returned_at_once(client: httpx.AsyncClient) -> None:
    """So are a claim with a pending task and the 404 of an unknown task."""
    job = await register(client)
    task = await submit(client, job)
    response = await client.post(
        f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]}, headers={"Prefer": f"wait={WAIT}"}
    )
    assert response.json()["task"]["id"] == task["id"]
    await report(client, task, "cancelled")
    response = await waiting_for(client, task)
    assert (response.json()["status"], "preference-applied" in response.headers) == ("cancelled", False)
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    claimed = await client.post(
        f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]}, headers={"Prefer": f"wait={WAIT}"}
    )
    expect_problem(claimed, 404, "worker-not-found")


@pytest.mark.usefixtures("no_recheck")
async def test_the_end_of_a_task_wakes_its_waiters(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """The response comes with the commit; other transitions wake no waiter."""
    for end in ("completed", "failed", "cancelled", "removed"):
        job = await register(client)
        await submit(client, job)
        task = await claim(client, job["worker_id"])
        requests = [waiting_for(client, task) for _ in range(3)]
        await until(lambda: len(runtime.waiters) == 3)
        await report(client, task, "running")
        assert len(runtime.waiters) == 3
        if end == "removed":
            await client.delete(f"{V1}/workers/{job['worker_id']}")
        else:
            await report(client, task, end)
        async with asyncio.timeout(SOON):
            responses = await asyncio.gather(*requests)
        for response in responses:
            assert response.json()["status"] == {"removed": "failed"}.get(end, end)
            assert response.headers["preference-applied"] == f"wait={WAIT}"
        assert len(runtime.waiters) == 0


@pytest.mark.usefixtures("no_recheck")
async def test_a_submit_wakes_a_waiting_claim(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """The claim returns the task within the time of a commit."""
    job = await register(client)
    requests = claiming(client, job["worker_id"])
    await until(lambda: len(runtime.waiters) == 1)
    task = await submit(client, job)
    async with asyncio.timeout(SOON):
        returned = await requests
    assert (returned["id"], returned["worker_id"]) == (task["id"], job["worker_id"])


@pytest.mark.usefixtures("no_recheck")
async def test_waiting_claims_are_served_in_order(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """Three workers wait; each task goes once to the claim that has waited longest."""
    first = await register(client)
    workers = [first["worker_id"], *[(await register(client))["worker_id"] for _ in range(2)]]
    requests = []
    for count, worker_id in enumerate(workers, 1):
        requests.append(claiming(client, worker_id))
        await until(lambda count=count: len(runtime.waiters) == count)
    for position in range(3):
        task = await submit(client, first)
        async with asyncio.timeout(SOON):
            assert (await requests[position])["id"] == task["id"]
        assert [done.done() for done in requests] == [index <= position for index in range(3)]


@pytest.mark.usefixtures("no_recheck")
async def test_a_burst_of_tasks_wakes_as_many_claims(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """Each waiting claim gets another task."""
    first = await register(client)
    workers = [first["worker_id"], *[(await register(client))["worker_id"] for _ in range(7)]]
    requests = [claiming(client, worker_id) for worker_id in workers]
    await until(lambda: len(runtime.waiters) == len(workers))
    tasks = await asyncio.gather(*(submit(client, first) for _ in workers))
    async with asyncio.timeout(SOON):
        returned = await asyncio.gather(*requests)
    assert sorted(task["id"] for task in returned) == sorted(task["id"] for task in tasks)


@pytest.mark.usefixtures("no_recheck")
async def test_a_waiting_claim_covers_new_jobs_of_its_worker(
    client: httpx.AsyncClient, runtime: Runtime
) -> None:
    """A job that the worker left wakes its claim no longer."""
    job = await register(client)
    requests = claiming(client, job["worker_id"])
    await until(lambda: len(runtime.waiters) == 1)
    other = await register(client, "Scale", worker_id=job["worker_id"])
    await register(client)
    await client.delete(f"{V1}/workers/{job['worker_id']}/jobs/{job['full_name']}")
    await submit(client, job)
    task = await submit(client, other)
    async with asyncio.timeout(SOON):
        assert (await requests)["id"] == task["id"]


@pytest.mark.usefixtures("no_recheck")
async def test_removing_a_worker_ends_its_waiting_claim(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """404 with the commit of the removal."""
    job = await register(client)
    requests = asyncio.ensure_future(
        client.post(
            f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]}, headers={"Prefer": f"wait={WAIT}"}
        )
    )
    await until(lambda: len(runtime.waiters) == 1)
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    async with asyncio.timeout(SOON):
        expect_problem(await requests, 404, "worker-not-found")


@on_both
async def test_a_recheck_finds_changes_of_another_server(
    client: httpx.AsyncClient, replica: httpx.AsyncClient, runtime: Runtime
) -> None:
    """Without a wake-up a waiter rechecks, long before its wait ends."""
    job = await register(client)
    ends = await submit(client, job)
    await claim(client, job["worker_id"])
    requests = [waiting_for(client, ends), claiming(client, job["worker_id"])]
    await until(lambda: len(runtime.waiters) == 2)
    await report(replica, ends, "cancelled")
    task = await submit(replica, job)
    async with asyncio.timeout(SOON):
        ended, returned = await asyncio.gather(*requests)
    assert (ended.json()["status"], returned["id"]) == ("cancelled", task["id"])


@on_both
async def test_waiting_requests_block_no_other_request(client: httpx.AsyncClient, runtime: Runtime) -> None:
    """Fifty requests wait, more than there are connections to the database."""
    job = await register(client)
    idle = await register(client, "Idle")
    task = await submit(client, job)
    requests = [waiting_for(client, task) for _ in range(40)]
    requests += [claiming(client, idle["worker_id"]) for _ in range(10)]
    await until(lambda: len(runtime.waiters) == 50)
    async with asyncio.timeout(SOON):
        for _ in range(5):
            assert (await get_task(client, task))["status"] == "pending"
            await client.patch(f"{V1}/workers/{job['worker_id']}")
        await report(client, task, "cancelled")
        await asyncio.gather(*requests[:40])
    for claiming_request in requests[40:]:
        claiming_request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


async def test_a_waiting_claim_is_a_heartbeat(
    client: httpx.AsyncClient, settings: ServerSettings, runtime: Runtime
) -> None:
    """The worker needs no other heartbeat during a long-poll."""
    settings.worker_timeout_seconds = 0.4
    job = await register(client)
    requests = claiming(client, job["worker_id"])
    await until(lambda: len(runtime.waiters) == 1)
    seen: set[str] = set()
    async with asyncio.timeout(SOON):
        while len(seen) < 4:
            [worker] = (await client.get(f"{V1}/workers")).json()["items"]
            seen.add(worker["last_heartbeat"])
    runtime.waiters.close()
    assert await requests is None


async def test_a_refused_claim_does_not_wait(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """403 and 404 are returned at once."""
    eve = await as_user("eve")
    job = await register(client)
    started = time.monotonic()
    response = await eve.post(
        f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]}, headers={"Prefer": f"wait={WAIT}"}
    )
    expect_problem(response, 403, "forbidden")
    assert time.monotonic() - started < SOON


async def answer(client: httpx.AsyncClient, worker_id: str) -> None:
    """Claim a provider request and upload its result."""
    body = {"worker_id": worker_id}
    request = (await client.post(f"{V1}/providers/requests/claim", json=body, headers=PREFER)).json()[
        "request"
    ]
    url = f"{V1}/providers/{request['provider_id']}/results"
    headers = {"X-Request-Hash": request["request_id"]}
    assert (await client.post(url, content=b"{}", headers=headers)).status_code == 204


@pytest.mark.parametrize("kind", ["claim", "task", "events", "request", "answer"])
async def test_a_waiting_request_of_a_revoked_token_gets_nothing(
    app: FastAPI, client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime, kind: str
) -> None:
    """No new task, no end of a task, no event, and no request to or result of a provider."""
    app.state.joblib.trusted_seconds = 0.0
    ada = await as_user("ada")
    job, other = await register(ada, room="lab"), await register(client, "Other")
    task = await submit(client, other)
    provider = {"category": "files", "name": "home"}
    worker_of = {
        user: (await user.put(f"{V1}/rooms/{room}/providers", json=provider)).json()["worker_id"]
        for user, room in ((ada, "lab"), (client, "den"))
    }
    asking = f"{V1}/providers/requests/claim"
    read = V1 + "/rooms/{0}/providers/{0}:files:home?x=1"
    await client.post(asking, json={"worker_id": worker_of[client]})
    after = (await ada.get(f"{V1}/tasks/{task['id']}/events")).json()["next"]
    started = {
        "claim": lambda: ada.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]}, headers=PREFER),
        "task": lambda: ada.get(f"{V1}/tasks/{task['id']}", headers=PREFER),
        "events": lambda: ada.get(f"{V1}/tasks/{task['id']}/events?after={after}", headers=PREFER),
        "request": lambda: ada.post(asking, json={"worker_id": worker_of[ada]}, headers=PREFER),
        "answer": lambda: ada.get(read.format("den"), headers=PREFER),
    }
    waiting = asyncio.ensure_future(started[kind]())
    await until(lambda: runtime.waiters.waiting_count or len(app.state.joblib.streams))
    await revoke_token(app, "ada", "token-of-ada-for-the-tests")
    submitted = await submit(client, job)
    claimed = await claim(client, other["worker_id"])
    assert claimed is not None
    asked = asyncio.ensure_future(client.get(read.format("lab"), headers={"Prefer": "wait=1"}))
    for status in ("running", "completed"):
        await report(client, claimed, status)
    if kind == "answer":
        await answer(client, worker_of[client])
    expect_problem(await waiting, 401, "unauthorized")
    await asked
    assert (await get_task(client, submitted))["status"] == "pending"
