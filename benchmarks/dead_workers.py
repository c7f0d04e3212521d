"""The sweeper removes thousands of dead workers while a live worker sends heartbeats."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import uvloop
from sqlalchemy import Connection, insert, select

from benchmarks.bench import Bench
from benchmarks.http_client import connections, quantiles
from benchmarks.scenarios import JOB, V1, register
from benchmarks.servers import TOKEN, serving
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import Job, Task, Worker
from zndraw_joblib.server.queue import sql_recount

_SETTINGS = {"WORKER_TIMEOUT_SECONDS": "4", "SWEEPER_INTERVAL_SECONDS": "1"}
_COUNT = 10_000
_TASKS_EACH = 2
_HEARTBEAT_SECONDS = 0.005
_SILENCE = timedelta(days=1)


@contextmanager
def short_timeouts() -> Iterator[None]:
    """Set a short worker timeout for the servers that start in this block."""
    names = {f"ZNDRAW_JOBLIB_{name}": value for name, value in _SETTINGS.items()}
    os.environ |= names
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def run(bench: Bench) -> None:
    """Report how long the sweeper takes to remove thousands of dead workers with two tasks each."""
    url = bench.new_url()
    with short_timeouts(), serving("joblib", url) as server:
        seconds, times = uvloop.run(sweep(server, url, _COUNT))
    ratio = _COUNT / seconds / bench.empty_rate()
    bench.report.add(f"{_COUNT:,} dead workers removed", seconds, "s", ratio)
    names = (f"heartbeat meanwhile, {name}" for name in ("p50", "p95", "longest"))
    bench.add_times(dict(zip(names, (*quantiles(times), 1000 * max(times)), strict=True)))


async def sweep(server: str, url: str, count: int) -> tuple[float, list[float]]:
    """Insert dead workers; return how long one cycle takes, and how long each heartbeat meanwhile."""
    async with connections(server, TOKEN, 2) as (live, admin):
        # Without heartbeats it would expire while the others are inserted.
        await live.json("DELETE", f"{V1}/workers/{await register(live)}")
        await _add_dead_workers(url, count)
        worker = await register(live)
        swept, heartbeats = asyncio.Event(), []

        async def send_heartbeats() -> None:
            while not swept.is_set():
                at, start = time.time(), time.perf_counter()
                await live.json("PATCH", f"{V1}/workers/{worker}")
                heartbeats.append((at, time.perf_counter() - start))
                await asyncio.sleep(_HEARTBEAT_SECONDS)

        sending = asyncio.create_task(send_heartbeats())
        cycle: dict[str, Any] = {"expired": 0}
        while not cycle["expired"]:
            await asyncio.sleep(0.2)
            state = await admin.json("GET", f"{V1}/admin/sweeper")
            cycle = max(state["cycles"], key=lambda each: each["expired"], default=cycle)
        swept.set()
        await sending
    assert (cycle["expired"], cycle["failed"]) == (count, _TASKS_EACH * count), cycle
    began = datetime.fromisoformat(cycle["at"]).timestamp()
    end = began + cycle["elapsed"]
    return cycle["elapsed"], [took for at, took in heartbeats if began < at + took and at < end]


async def _add_dead_workers(url: str, count: int) -> None:
    database = open_database(url)
    await database.run_sync(partial(_insert_dead_workers, count=count))
    await sql_recount.repair(database)
    await database.close()


def _insert_dead_workers(connection: Connection, count: int) -> None:
    jobs = Job.__table__
    job, now = connection.execute(select(jobs.c.id, jobs.c.created_at).where(jobs.c.full_name == JOB)).one()
    ids = [uuid4() for _ in range(count)]
    workers = [
        {"id": worker, "owner_id": "dead", "created_at": now, "last_heartbeat": now - _SILENCE}
        for worker in ids
    ]
    connection.execute(insert(Worker.__table__), workers)
    task = {"job_id": job, "room_id": "bench", "status": "claimed", "created_by": "bench", "payload": {}}
    times = {"created_at": now, "claimed_at": now}
    tasks = [
        {**task, **times, "id": uuid4(), "attempt": 1, "worker_id": worker}
        for worker in ids
        for _ in range(_TASKS_EACH)
    ]
    connection.execute(insert(Task.__table__), tasks)
