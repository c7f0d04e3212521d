"""Claims of workers of one, a hundred and a thousand jobs that all have pending tasks."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from statistics import median
from uuid import UUID, uuid4

import uvloop
from sqlalchemy import Connection as SqlConnection
from sqlalchemy import insert

from benchmarks import scenarios
from benchmarks.bench import Bench
from benchmarks.http_client import Rate, connections, measure
from benchmarks.scenarios import LONG_POLL, V1
from benchmarks.servers import TOKEN
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.db.tables import Job, RoomQueue, Task, WorkerJobLink
from zndraw_joblib.server.queue import sql_recount

JOBS = (1, 100, 1000)
MANY = JOBS[-1]
_TASKS = 6000  # more than the claims of a worker of each number of jobs
_CLAIM_SECONDS = 0.15
_ROUNDS = 25
_FIRST = "First"


def run(bench: Bench) -> None:
    """Report the time of a claim by the number of jobs, of an empty claim, and from a submit to a claim."""
    server, url = bench.shared_server
    workers = {count: add_workers(server, url, count, _TASKS) for count in JOBS}
    times: dict[int, list[float]] = {count: [] for count in JOBS}
    for _ in range(max(bench.repeats, 5)):
        # In turns: the speed of a shared machine changes from second to second.
        for count, ids in workers.items():
            times[count].append(uvloop.run(claim(server, ids, _CLAIM_SECONDS)).p50)
    for count in JOBS:
        bench.report.add(f"claim, {_jobs(count)}", median(times[count]), "ms")
    ratio = median(many / one for one, many in zip(times[1], times[MANY], strict=True))
    bench.report.add(f"claim, {_jobs(MANY)} ÷ {_jobs(1)}", ratio, "x")
    for count in (1, MANY):
        [worker_id] = add_workers(server, url, count, 0)
        empty, wake_up = uvloop.run(_wait(server, worker_id, f"{_FIRST}{count}of0"))
        bench.report.add(f"empty claim, {_jobs(count)}", empty, "ms")
        bench.report.add(f"submit to waiting claim, {_jobs(count)}", wake_up, "ms")


def add_workers(server: str, url: str, jobs: int, tasks: int, count: int = 1) -> list[UUID]:
    """Register workers of the same jobs, and add tasks, one of each job in turns. Return the workers' ids."""
    ids = uvloop.run(_register(server, f"{_FIRST}{jobs}of{tasks}", count))
    asyncio.run(_seed(url, ids, jobs - 1, tasks))
    return ids


async def claim(server: str, workers: Sequence[UUID], seconds: float) -> Rate:
    """Claim one task after the other for each worker, each on its own connection."""
    async with connections(server, TOKEN, len(workers)) as opened:
        worker_of = dict(zip(opened, map(str, workers), strict=True))
        return await measure(opened, lambda c: scenarios.claim_task(c, worker_of[c]), seconds)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


async def _register(server: str, name: str, count: int) -> list[UUID]:
    async with connections(server, TOKEN, 1) as (opened,):
        return [UUID(await scenarios.register(opened, name)) for _ in range(count)]


async def _seed(url: str, workers: Sequence[UUID], jobs: int, tasks: int) -> None:
    database = open_database(url)
    await database.run_sync(partial(_insert, workers=workers, jobs=jobs, tasks=tasks))
    await sql_recount.repair(database)
    await database.close()


def _insert(connection: SqlConnection, workers: Sequence[UUID], jobs: int, tasks: int) -> None:
    links = WorkerJobLink.__table__
    linked = connection.execute(links.select().where(links.c.worker_id == workers[0])).one()
    ids = [linked.job_id, *(uuid4() for _ in range(jobs))]
    now = datetime.now(UTC)
    if jobs:
        base = {
            "room_id": "@global",
            "category": "modifiers",
            "schema": {"type": "object"},
            "created_at": now,
        }
        rows = [
            {**base, "id": job_id, "name": str(job_id), "deleted": False, "pending": 0} for job_id in ids[1:]
        ]
        connection.execute(insert(Job.__table__), rows)
        of_workers = [{"worker_id": worker, "job_id": job_id} for worker in workers for job_id in ids[1:]]
        connection.execute(insert(links), of_workers)
    if tasks:
        task = {
            "room_id": "bench",
            "status": "pending",
            "created_by": "bench",
            "payload": {},
            "created_at": now,
        }
        of_jobs = [
            {**task, "id": uuid4(), "job_id": ids[number % len(ids)], "attempt": 0} for number in range(tasks)
        ]
        connection.execute(insert(Task.__table__), of_jobs)
        queues = [{"job_id": job_id, "room_id": "bench", "lane": 0, "seq": 0} for job_id in ids]
        connection.execute(insert(RoomQueue.__table__), queues)


async def _wait(server: str, worker_id: UUID, job: str) -> tuple[float, float]:
    """Return in ms how long an empty claim takes, and how long it is from a submit to a waiting claim."""
    body = {"worker_id": str(worker_id)}
    async with connections(server, TOKEN, 2) as (worker, submitter):
        empty: list[float] = []
        wake_ups: list[float] = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            await worker.json("POST", f"{V1}/tasks/claim", body)
            empty.append(time.perf_counter() - start)
            claiming = asyncio.create_task(scenarios.claim_task(worker, str(worker_id), LONG_POLL))
            await asyncio.sleep(0.02)
            start = time.perf_counter()
            await scenarios.submit_task(submitter, f"@global:modifiers:{job}")
            await claiming
            wake_ups.append(time.perf_counter() - start)
    return 1000 * median(empty), 1000 * median(wake_ups)
