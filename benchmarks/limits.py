"""Life cycles of tasks with limits, by the number of keys and of named limits; bounded queues; schedules."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import uvloop
from sqlalchemy import insert, update

from benchmarks.bench import Bench
from benchmarks.http_client import Connection, connections
from benchmarks.scenarios import V1, claim_task, report_status, submit_task
from benchmarks.servers import TOKEN
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import Schedule

_TASKS, _BATCH = 10_000, 1000
_MANY_NAMES = 1000
_SCHEDULES = 10_000
_FREE = {"max_in_flight": 100_000}
_RATE = {"rate": {"count": 1_000_000, "per_seconds": 1, "burst": 1_000_000}}
# The name of each job, its policy, and how many values its tasks have.
_JOBS: dict[str, tuple[dict[str, Any], int]] = {
    "no limit": ({}, 1),
    "a limit of slots": ({"limits": [_FREE]}, 1),
    "a rate": ({"limits": [_RATE]}, 1),
    "a limit with 1 key": ({"limits": [{"key": "/user", **_FREE}]}, 1),
    "a limit with 10,000 keys": ({"limits": [{"key": "/user", **_FREE}]}, 10_000),
    "1 of 1 named limit": ({"limits": [{"name": "limit0"}]}, 1),
    "1 of 1,000 named limits": ({"limits": [{"name": "limit7"}]}, 1),
    "max_pending": ({"max_pending": 1_000_000}, 1),
}


def run(bench: Bench) -> None:
    """Report the times of a submit, and of a life cycle, for jobs with limits; and of many schedules."""
    server, url = bench.shared_server
    times = uvloop.run(_life_cycles(server, max(bench.repeats, 3), bench.seconds))
    for name, of_name in times.items():
        bench.report.add(name, min(of_name), "ms")
    idle, seconds = uvloop.run(_schedules(server, url, bench.seconds))
    bench.report.add(f"submit beside {_SCHEDULES:,} idle schedules", idle, "ms")
    bench.report.add(f"{_SCHEDULES:,} schedules due at once, until all have a task", seconds, "s")


async def _life_cycles(server: str, repeats: int, seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    async with connections(server, TOKEN, 1) as (connection,):
        await connection.json("PUT", f"{V1}/limits/limit0", _FREE)
        workers = {}
        for number, (name, (policy, values)) in enumerate(_JOBS.items()):
            if name == "1 of 1,000 named limits":
                for limit in range(1, _MANY_NAMES):
                    await connection.json("PUT", f"{V1}/limits/limit{limit}", _FREE)
            body = {"category": "modifiers", "name": f"Limit{number}", "schema": {}, **policy}
            job = await connection.json("PUT", f"{V1}/rooms/@global/jobs", body)
            workers[name] = job["worker_id"], job["full_name"]
            await _add_tasks(connection, job["full_name"], values)
        for _ in range(repeats):
            # In turns: the speed of a shared machine changes from second to second.
            for name, (worker_id, job) in workers.items():
                submits, cycles = await _measure(connection, worker_id, job, seconds)
                times.setdefault(f"submit, {name}", []).append(submits)
                times.setdefault(f"claim and report, {name}", []).append(cycles)
    return times


async def _add_tasks(connection: Connection, job: str, values: int) -> None:
    for start in range(0, _TASKS, _BATCH):
        numbers = range(start, start + _BATCH)
        tasks = [
            {"room_id": "bench", "job_name": job, "payload": {"user": number % values}} for number in numbers
        ]
        await connection.json("POST", f"{V1}/tasks/submit", {"tasks": tasks})


async def _measure(connection: Connection, worker_id: str, job: str, seconds: float) -> tuple[float, ...]:
    """Return the times in ms of a submit, and of the claim, the start and the completion of a task.

    One of ten is faster: others wait for a processor on a machine with other work.
    """
    submits, cycles = list[float](), list[float]()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await submit_task(connection, job, body={"payload": {"user": 0}})
        submitted = time.perf_counter()
        task = await claim_task(connection, worker_id)
        for status in ("running", "completed"):
            await report_status(connection, task, status)
        submits.append(1000 * (submitted - began))
        cycles.append(1000 * (time.perf_counter() - submitted))
    return tuple(sorted(times)[len(times) // 10] for times in (submits, cycles))


async def _schedules(server: str, url: str, seconds: float) -> tuple[float, float]:
    """Return the time of a submit beside idle schedules, in ms, and that until all due ones have a task."""
    database, table = open_database(url), Schedule.__table__
    async with connections(server, TOKEN, 1) as (connection,):
        body = {"category": "modifiers", "name": "Scheduled", "schema": {}}
        job = await connection.json("PUT", f"{V1}/rooms/@global/jobs", body)
        now, day = datetime.now(UTC), timedelta(days=1)
        row = {"room_id": "bench", "owner_id": "admin", "job_name": job["full_name"], "paused": False}
        row |= {"spec": '{"every_seconds": 86400}', "created_at": now, "updated_at": now}
        row |= {"anchor_at": now, "next_due_at": now + day}
        rows = [{**row, "id": uuid4(), "name": f"s{number}"} for number in range(_SCHEDULES)]
        await database.run_sync(lambda session: session.execute(insert(table), rows))
        idle, _ = await _measure(connection, job["worker_id"], job["full_name"], seconds)
        before = (await connection.json("GET", f"{V1}/tasks/counts"))["pending"]
        now = datetime.now(UTC)
        due = update(table).values(anchor_at=now - day, next_due_at=now)
        await database.run_sync(lambda session: session.execute(due))
        await database.close()
        began = time.perf_counter()
        # A change wakes the servers.
        times = {"job": job["full_name"], "every_seconds": 86400}
        await connection.json("PUT", f"{V1}/rooms/bench/schedules/s0", times)
        pending = before
        while pending < before + _SCHEDULES:
            pending = (await connection.json("GET", f"{V1}/tasks/counts"))["pending"]
        return idle, time.perf_counter() - began
