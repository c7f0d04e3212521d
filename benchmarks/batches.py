"""Many tasks in one request: submit, and claim and report."""

import json
from typing import Any
from uuid import uuid4

import uvloop

from benchmarks.backlog import add_pending_tasks
from benchmarks.bench import Bench
from benchmarks.http_client import Connection, Rate, connections, measure
from benchmarks.scenarios import JOB, PAYLOAD, V1, register
from benchmarks.servers import TOKEN

_CONNECTIONS = 2
_SIZES = (100, 1_000)
_SUBMITS = (("submit", False), ("submit with Idempotency-Key", True))
_MAX_TASKS_PER_SECOND = 40_000
_MINIMAL = "Prefer: return=minimal\r\n"


def run(bench: Bench) -> None:
    """Report the rates of batches in tasks per second, over two connections."""
    server, url = bench.shared_server
    for size in _SIZES:
        for name, is_once in _SUBMITS if size == _SIZES[-1] else _SUBMITS[:1]:
            rate, ratio = bench.compare(
                lambda size=size, is_once=is_once: (
                    uvloop.run(submit(server, size, bench.seconds, is_once=is_once)).per_second
                )
            )
            bench.report.add(f"{name}, {size:,} per request", rate, "/s", ratio)
        uvloop.run(add_pending_tasks(url, int(bench.repeats * bench.seconds * _MAX_TASKS_PER_SECOND)))
        rate, ratio = bench.compare(
            lambda size=size: uvloop.run(claim_and_report(server, size, bench.seconds)).per_second
        )
        bench.report.add(f"claim and report, {size:,} per request", rate, "/s", ratio)


async def submit(server: str, size: int, seconds: float, *, is_once: bool = False) -> Rate:
    """Return how many tasks per second are submitted, `size` in each request."""
    task = {"room_id": "bench", "job_name": JOB, **PAYLOAD}
    body = json.dumps({"tasks": [task] * size}).encode()

    async def submit_many(connection: Connection) -> None:
        key = f"Idempotency-Key: {uuid4()}\r\n" if is_once else ""
        status, content = await connection.request("POST", f"{V1}/tasks/submit", body, _MINIMAL + key)
        assert status == 200, (status, content[:500])
        assert content.count(b'"status":202') == size, content[:500]

    async with connections(server, TOKEN, _CONNECTIONS) as opened:
        await register(opened[0])
        return await measure(opened, submit_many, seconds, size)


async def claim_and_report(server: str, size: int, seconds: float, details: Any = None) -> Rate:
    """Return how many pending tasks per second are claimed, started and completed, `size` in each request.

    `details` are further fields of each report.
    """
    async with connections(server, TOKEN, _CONNECTIONS) as opened:
        workers = {connection: await register(connection) for connection in opened}

        async def work(connection: Connection) -> None:
            body = {"worker_id": workers[connection], "max": size, "start": True}
            claimed = (await connection.json("POST", f"{V1}/tasks/claim", body))["tasks"]
            assert len(claimed) == size, "No task is pending: the backlog is too small"
            completed = {"status": "completed", **(details or {})}
            reports = [{"id": task["id"], "attempt": task["attempt"], **completed} for task in claimed]
            body = {"worker_id": workers[connection], "reports": reports}
            status, content = await connection.request("POST", f"{V1}/tasks/report", body, _MINIMAL)
            assert status == 200, (status, content[:500])
            assert content.count(b'"status":200') == size, content[:500]

        return await measure(opened, work, seconds, size)
