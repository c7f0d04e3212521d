"""Servers are killed between claims and reports of tasks: no limit is exceeded, and no slot is lost."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
from databases import on_both
from invariants import broken_invariants
from rest import V1, parse_utc, register
from servers import ServerProcess
from sqlalchemy import text
from waiting import until

from zndraw_joblib.server.db.engine import open_engine

pytestmark = [pytest.mark.processes, pytest.mark.slow]

USERS, TASKS, KILLS, INTERVAL = 4, 40, 2, 0.05
MAX_CLAIMS = 60
_CLAIMS = "SELECT (SELECT max(claims) FROM joblib_token), (SELECT sum(attempt) FROM joblib_task)"
_HELD = "SELECT payload FROM joblib_task WHERE status IN ('claimed', 'running')"


@asynccontextmanager
async def serving(database_url: str, clients: list[httpx.AsyncClient]) -> AsyncIterator[ServerProcess]:
    """Run a server, with a client in `clients`; kill it at the end."""
    with ServerProcess(database_url, sweeper_interval_seconds=1) as server:
        async with server.client() as client:
            await client.get("/health/ready")
            clients.append(client)
            try:
                yield server
            finally:
                server.process.kill()
                clients.remove(client)


async def run_tasks(clients: list[httpx.AsyncClient], worker_id: str, number: int, **headers: str) -> None:
    """Claim, start and complete tasks with any server, until cancelled; a killed server answers nothing."""
    chance = random.Random(number)
    while True:
        await until(lambda: clients)
        client = chance.choice(clients)
        try:
            body = {"worker_id": worker_id, "max": 2}
            waiting = {**headers, "Prefer": "wait=1"}
            answer = await client.post(f"{V1}/tasks/claim", json=body, headers=waiting)
            for task in answer.json().get("tasks", []):
                for status in ("running", "completed"):
                    report = {"status": status, "attempt": task["attempt"]}
                    await client.patch(f"{V1}/tasks/{task['id']}", json=report, headers=headers)
            await client.patch(f"{V1}/workers/{worker_id}", headers=headers)
        except (httpx.HTTPError, RuntimeError):  # of a killed server, or of its client, which is closed
            await asyncio.sleep(0)


async def watch(database_url: str, most: Counter[str]) -> None:
    """Record the most tasks of each limit and user that are held at once, until cancelled."""
    engine = open_engine(database_url)
    try:
        while True:
            await asyncio.sleep(0.01)
            async with engine.connect() as connection:
                payloads = (await connection.execute(text(_HELD))).scalars().all()
            held = Counter((payload["limit"], payload["user"]) for payload in map(json.loads, payloads))
            for (limit, _), number in held.items():
                most[limit] = max(most[limit], number)
    finally:
        await engine.dispose()


async def add_tasks(client: httpx.AsyncClient) -> str:
    """Register a worker of two jobs, with a limit of slots and one of a rate for each user; submit tasks."""
    policy: dict[str, Any] = {"max_attempts": 1000, "max_crashes": 1000, "retry_on": ["timeout"]}
    policy |= {"backoff": {"base_seconds": 0}, "start_timeout_seconds": 0.5, "timeout_seconds": 1}
    slots = {"key": "/user", "max_in_flight": 1}
    rate = {"key": "/user", "rate": {"count": 1, "per_seconds": INTERVAL}}
    first = await register(client, "Slots", limits=[slots], **policy)
    second = await register(client, "Rates", limits=[rate], worker_id=first["worker_id"], **policy)
    tasks = [
        {
            "job_name": job["full_name"],
            "room_id": f"room{number % 3}",
            "payload": {"user": f"u{number % USERS}", "limit": job["name"]},
        }
        for number in range(TASKS)
        for job in (first, second)
    ]
    assert (await client.post(f"{V1}/tasks/submit", json={"tasks": tasks})).is_success
    return str(first["worker_id"])


async def add_worker_of_token(client: httpx.AsyncClient) -> tuple[str, dict[str, str]]:
    """Issue a token for `MAX_CLAIMS` claims; return a worker of it, which has more tasks, and its header."""
    body = {"jobs": ["lab:*"], "rooms": ["lab"], "max_tasks": MAX_CLAIMS, "expires_in_seconds": 600}
    issued = (await client.post(f"{V1}/worker-tokens", json=body)).json()
    headers = {"Authorization": f"Bearer {issued['token']}"}
    policy = {"max_attempts": 1000, "max_crashes": 1000, "retry_on": ["timeout"]}
    policy |= {"backoff": {"base_seconds": 0}, "start_timeout_seconds": 0.5, "timeout_seconds": 1}
    job = {"category": "modifiers", "name": "Limited", **policy}
    worker = (await client.put(f"{V1}/rooms/lab/jobs", json=job, headers=headers)).json()
    tasks = [{"job_name": worker["full_name"], "room_id": "lab"}] * 2 * MAX_CLAIMS
    assert (await client.post(f"{V1}/tasks/submit", json={"tasks": tasks})).is_success
    return str(worker["worker_id"]), headers


async def claims_of_token(database_url: str) -> tuple[int, int]:
    """Return how many claims the token counts, and how many there were."""
    engine = open_engine(database_url)
    try:
        async with engine.connect() as connection:
            counted, claims = (await connection.execute(text(_CLAIMS))).one()
            return int(counted), int(claims)
    finally:
        await engine.dispose()


async def claims_of_rates(client: httpx.AsyncClient) -> dict[str, list[str]]:
    """Return when attempts of each user's tasks with the rate were claimed."""
    claimed: dict[str, list[str]] = {}
    for room in range(3):
        page = await client.get(f"{V1}/rooms/room{room}/tasks", params={"limit": 500})
        for task in page.json()["items"]:
            if task["payload"]["limit"] == "Rates":
                history = (await client.get(f"{V1}/tasks/{task['id']}/history")).json()
                times = [step["at"] for step in history["transitions"] if step["status"] == "claimed"]
                claimed.setdefault(task["payload"]["user"], []).extend(times)
    return claimed


async def has_ended(client: httpx.AsyncClient, number: int) -> None:
    """Wait until so many tasks are completed."""

    async def is_reached() -> bool:
        return int((await client.get(f"{V1}/tasks/counts")).json()["completed"]) >= number

    await until(is_reached, interval=0.1)


@on_both
async def test_limits_hold_while_servers_are_killed(database_url: str, kind: str) -> None:
    """On SQLite the one server is killed and followed by another, on PostgreSQL one of two."""
    clients: list[httpx.AsyncClient] = []
    most, claimed = Counter[str](), dict[str, list[str]]()
    async with asyncio.timeout(150), AsyncExitStack() as stack:
        if kind == "postgresql":
            await stack.enter_async_context(serving(database_url, clients))
        background = list[asyncio.Task[None]]()
        stack.callback(lambda: [each.cancel() for each in background])
        for number in range(KILLS + 1):
            async with serving(database_url, clients):
                client = clients[-1]
                if not background:
                    worker_id = await add_tasks(client)
                    background.append(asyncio.create_task(watch(database_url, most)))
                    background += [asyncio.create_task(run_tasks(clients, worker_id, n)) for n in range(4)]
                await has_ended(client, 2 * TASKS * (number + 1) // (KILLS + 1))
                claimed = await claims_of_rates(client)
    assert most["Slots"] == 1
    assert await asyncio.to_thread(broken_invariants, database_url) == []
    assert len(claimed) == USERS
    for times in claimed.values():
        moments = sorted(map(parse_utc, times))
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
        assert min(gaps) >= INTERVAL - 0.001


@on_both
async def test_a_token_claims_no_more_tasks_while_servers_are_killed(database_url: str, kind: str) -> None:
    """The claim that a killed server has not answered counts once it is committed, and not otherwise."""
    clients: list[httpx.AsyncClient] = []
    async with asyncio.timeout(150), AsyncExitStack() as stack:
        if kind == "postgresql":
            await stack.enter_async_context(serving(database_url, clients))
        background = list[asyncio.Task[None]]()
        stack.callback(lambda: [each.cancel() for each in background])
        for number in range(1, KILLS + 2):
            async with serving(database_url, clients):
                if not background:
                    worker_id, headers = await add_worker_of_token(clients[-1])
                    running = [run_tasks(clients, worker_id, n, **headers) for n in range(4)]
                    background += map(asyncio.create_task, running)
                least = MAX_CLAIMS * number // (KILLS + 1)

                async def is_reached(least: int = least) -> bool:
                    return (await claims_of_token(database_url))[0] >= least

                await until(is_reached, interval=0.01)
                assert len(set(await claims_of_token(database_url))) == 1
    assert await claims_of_token(database_url) == (MAX_CLAIMS, MAX_CLAIMS)
    assert await asyncio.to_thread(broken_invariants, database_url) == []
