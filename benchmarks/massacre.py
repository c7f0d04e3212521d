"""What is measured of a sweep: thousands of workers are dead at once, and the living go on."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, insert, select

from benchmarks.load import connections, quantiles
from benchmarks.scenarios import NAME, register
from benchmarks.servers import TOKEN
from zndraw_joblib.server.store.engine import open_database
from zndraw_joblib.server.store.tables import Job, Task, Worker

_SETTINGS = {"WORKER_TIMEOUT_SECONDS": "4", "SWEEPER_INTERVAL_SECONDS": "1"}
_HELD_EACH = 2
_BEAT_SECONDS = 0.005
_LONG_AGO = timedelta(days=1)


@contextmanager
def impatience() -> Iterator[None]:
    """Let servers that start in this block take workers for dead soon."""
    names = {f"ZNDRAW_JOBLIB_{name}": value for name, value in _SETTINGS.items()}
    os.environ |= names
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


async def sweep(server: str, url: str, dead: int) -> str:
    """Let workers be dead that hold two tasks each; return how long their sweep takes, and a heartbeat."""
    async with connections(server, TOKEN, 2) as (living, watcher):
        worker = await register(living)
        database = open_database(url)
        await database.run_sync(partial(_die, count=dead))
        await database.close()
        over, times = asyncio.Event(), []

        async def beat() -> None:
            while not over.is_set():
                start = time.perf_counter()
                await living.json("PATCH", f"/v1/joblib/workers/{worker}")
                times.append(time.perf_counter() - start)
                await asyncio.sleep(_BEAT_SECONDS)

        beating = asyncio.create_task(beat())
        cycle: dict[str, Any] = {"expired": 0}
        while not cycle["expired"]:
            await asyncio.sleep(0.2)
            state = await watcher.json("GET", "/v1/joblib/admin/sweeper")
            cycle = max(state["cycles"], key=lambda each: each["expired"], default=cycle)
        over.set()
        await beating
    assert (cycle["expired"], cycle["failed"]) == (dead, _HELD_EACH * dead), cycle
    p50, p95 = quantiles(times)
    return (
        f"{dead:,} dead workers with {_HELD_EACH * dead:,} tasks swept in {cycle['elapsed']:.2f} s; "
        f"a heartbeat meanwhile p50 {p50:.1f} ms, p95 {p95:.1f} ms, at most {1000 * max(times):.0f} ms"
    )


def _die(connection: Connection, count: int) -> None:
    jobs = Job.__table__
    job, now = connection.execute(select(jobs.c.id, jobs.c.created_at).where(jobs.c.full_name == NAME)).one()
    ids = [uuid4() for _ in range(count)]
    rows = [
        {"id": each, "owner_id": "dead", "created_at": now, "last_heartbeat": now - _LONG_AGO} for each in ids
    ]
    connection.execute(insert(Worker.__table__), rows)
    held = {"job_id": job, "room_id": "bench", "status": "claimed", "created_by": "bench", "payload": {}}
    tasks = [
        {**held, "id": uuid4(), "created_at": now, "claimed_at": now, "attempt": 1, "worker_id": each}
        for each in ids
        for _ in range(_HELD_EACH)
    ]
    connection.execute(insert(Task.__table__), tasks)
