"""What is measured."""

import asyncio
import time
from typing import Any

from benchmarks.load import Connection, Rate, connections, measure, quantiles
from benchmarks.servers import TOKEN

ROOM = "/v1/joblib/rooms/bench"
JOB = {"category": "modifiers", "name": "Work", "schema": {"type": "object"}}
PAYLOAD = {"payload": {"angle": 1.5, "name": "benchmark"}}
NAME = "@global:modifiers:Work"


async def noop(url: str, count: int, seconds: float, path: str = "/noop/bench/work") -> Rate:
    """POST a submit's body to a FastAPI endpoint that does nothing: it is validated and sent back."""
    async with connections(url, TOKEN, count) as opened:
        return await measure(opened, lambda c, _: c.json("POST", path, PAYLOAD), seconds)


async def register(connection: Connection, name: str = "Work") -> str:
    """Register the job for a worker of its own; return the worker's id."""
    job = await connection.json("PUT", "/v1/joblib/rooms/@global/jobs", {**JOB, "name": name})
    return str(job["worker_id"])


async def submit(url: str, count: int, seconds: float) -> Rate:
    """Submit one task after another on each connection."""
    async with connections(url, TOKEN, count) as opened:
        await register(opened[0])
        return await measure(opened, _submit, seconds)


async def _submit(connection: Connection, _: int = 0) -> Any:
    return await connection.json("POST", f"{ROOM}/tasks/{NAME}", PAYLOAD)


async def claim(url: str, count: int, seconds: float) -> Rate:
    """Claim one task after another, each connection as a worker of its own, from a backlog."""
    async with connections(url, TOKEN, count) as opened:
        workers = {c: await register(c) for c in opened}
        return await measure(opened, lambda c, _: _claim(c, workers[c]), seconds)


async def _claim(connection: Connection, worker_id: str) -> Any:
    got = await connection.json("POST", "/v1/joblib/tasks/claim", {"worker_id": worker_id})
    assert got["task"] is not None, "the backlog was too small"
    return got["task"]


async def life_cycle(url: str, count: int, seconds: float) -> Rate:
    """Claim, start and complete one task after another, each connection as a worker of its own."""
    async with connections(url, TOKEN, count) as opened:
        workers = {c: await register(c) for c in opened}

        async def one(c: Connection, _: int) -> None:
            task = await _claim(c, workers[c])
            token = {"worker_id": workers[c], "attempt": task["attempt"]}
            for status in ("running", "completed"):
                await c.json("PATCH", f"/v1/joblib/tasks/{task['id']}", {"status": status, **token})

        return await measure(opened, one, seconds)


async def latencies(url: str, rounds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p50 and p95 in ms: from a submit to the long-polling worker, from the report to the waiter."""
    async with connections(url, TOKEN, 3) as (submitter, worker, waiter):
        worker_id = await register(worker, "Quick")
        pick_ups: list[float] = []
        completions: list[float] = []
        for _ in range(rounds):
            poll = asyncio.create_task(
                worker.json("POST", "/v1/joblib/tasks/claim", {"worker_id": worker_id}, "Prefer: wait=30\r\n")
            )
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            task = await submitter.json("POST", f"{ROOM}/tasks/@global:modifiers:Quick", PAYLOAD)
            await poll
            pick_ups.append(time.perf_counter() - start)
            path = f"/v1/joblib/tasks/{task['id']}"
            wait = asyncio.create_task(waiter.json("GET", path, None, "Prefer: wait=30\r\n"))
            await worker.json("PATCH", path, {"status": "running"})
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            await worker.json("PATCH", path, {"status": "completed"})
            await wait
            completions.append(time.perf_counter() - start)
        return quantiles(pick_ups), quantiles(completions)
