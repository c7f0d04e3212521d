"""The measured requests: submit, claim, the life cycle of a task, and latencies of waiting requests."""

import asyncio
import time
from typing import Any

from benchmarks.http_client import Connection, Rate, connections, measure, quantiles
from benchmarks.servers import TOKEN

V1 = "/v1/joblib"
ROOM = f"{V1}/rooms/bench"
PAYLOAD = {"payload": {"angle": 1.5, "name": "benchmark"}}
JOB = "@global:modifiers:Work"
LONG_POLL = "Prefer: wait=30\r\n"


async def noop(url: str, count: int, seconds: float, body: Any = PAYLOAD) -> Rate:
    """POST the body of a submit to a FastAPI endpoint that validates it and sends it back."""
    async with connections(url, TOKEN, count) as opened:
        return await measure(opened, lambda c: c.json("POST", "/noop/bench/work", body), seconds)


async def register(connection: Connection, name: str = "Work") -> str:
    """Register the job for a new worker; return the worker's id."""
    body = {"category": "modifiers", "name": name, "schema": {"type": "object"}}
    job = await connection.json("PUT", f"{V1}/rooms/@global/jobs", body)
    return str(job["worker_id"])


async def submit_task(connection: Connection, job: str = JOB, room: str = ROOM, body: Any = PAYLOAD) -> Any:
    """Submit a task and return it."""
    return await connection.json("POST", f"{room}/tasks/{job}", body)


async def claim_task(connection: Connection, worker_id: str, headers: str = "") -> Any:
    """Claim a task and return it."""
    body = {"worker_id": worker_id}
    claimed = await connection.json("POST", f"{V1}/tasks/claim", body, headers)
    assert claimed["task"] is not None, "No task is pending: the backlog is too small"
    return claimed["task"]


async def report_status(connection: Connection, task: Any, status: str) -> None:
    """Report a status of a claimed task."""
    body = {"status": status, "worker_id": task["worker_id"], "attempt": task["attempt"]}
    await connection.json("PATCH", f"{V1}/tasks/{task['id']}", body)


async def submit(url: str, count: int, seconds: float) -> Rate:
    """Submit tasks on each connection."""
    async with connections(url, TOKEN, count) as opened:
        await register(opened[0])
        return await measure(opened, submit_task, seconds)


async def claim(url: str, count: int, seconds: float) -> Rate:
    """Claim tasks of a backlog on each connection, each with its own worker."""
    async with connections(url, TOKEN, count) as opened:
        workers = {c: await register(c) for c in opened}
        return await measure(opened, lambda c: claim_task(c, workers[c]), seconds)


async def life_cycle(url: str, count: int, seconds: float) -> Rate:
    """Claim, start and complete tasks on each connection, each with its own worker."""
    async with connections(url, TOKEN, count) as opened:
        workers = {c: await register(c) for c in opened}

        async def run_task(c: Connection) -> None:
            task = await claim_task(c, workers[c])
            for status in ("running", "completed"):
                await report_status(c, task, status)

        return await measure(opened, run_task, seconds)


async def latencies(
    submitter_url: str, worker_url: str, rounds: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p50 and p95 in ms: from submit to a waiting claim, from completion to a waiting submitter."""
    async with (
        connections(submitter_url, TOKEN, 2) as (submitter, waiter),
        connections(worker_url, TOKEN, 1) as (worker,),
    ):
        worker_id = await register(worker, "Quick")
        claims: list[float] = []
        completions: list[float] = []
        for _ in range(rounds):
            claiming = asyncio.create_task(claim_task(worker, worker_id, LONG_POLL))
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            await submit_task(submitter, "@global:modifiers:Quick")
            task = await claiming
            claims.append(time.perf_counter() - start)
            path = f"{V1}/tasks/{task['id']}"
            waiting = asyncio.create_task(waiter.json("GET", path, None, LONG_POLL))
            await report_status(worker, task, "running")
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            await report_status(worker, task, "completed")
            await waiting
            completions.append(time.perf_counter() - start)
        return quantiles(claims), quantiles(completions)
