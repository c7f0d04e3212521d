"""Worker processes of the SDK, started by the command line, on tasks that do nothing."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import MappingProxyType

import uvloop

from benchmarks.backlog import add_pending_tasks
from benchmarks.bench import Bench
from benchmarks.http_client import Connection, connections, quantiles
from benchmarks.scenarios import LONG_POLL, ROOM, V1, submit_task
from benchmarks.servers import TOKEN, serving

_PROCESSES = (1, 4)
_MAX_TASKS_PER_SECOND = 15_000
_SECONDS = 0.5  # of one measurement
_MEASUREMENTS = 3
_LONE_TASKS = 100
_START_SECONDS = 30.0
_MODULE = Path(__file__).with_name("empty_job.py")


def run(bench: Bench) -> None:
    """Report how many empty tasks per second one worker process and four execute, and how long one takes."""
    url = bench.new_url()
    with serving("joblib", url) as server:
        for processes in _PROCESSES:
            before = bench.empty_rate()
            with workers(server, processes):
                if processes == 1:
                    p50, p95 = uvloop.run(_lone_tasks(server))
                    name = "lone task, submit to completed"
                    bench.add_times({f"{name}, p50": p50, f"{name}, p95": p95})
                rates = uvloop.run(executed_rates(server, url, _MEASUREMENTS))
            ratio = 2 * median(rates) / (before + bench.empty_rate())
            name = "1 process" if processes == 1 else f"{processes} processes"
            bench.report.add(name, median(rates), "/s", ratio)


@contextmanager
def workers(server: str, processes: int, module: Path = _MODULE) -> Iterator[None]:
    """Run worker processes until the end of the block; at its beginning they have run a task."""
    with worker_processes(server, processes, module):
        uvloop.run(_wait_for_workers(server, processes))
        yield


@contextmanager
def worker_processes(
    server: str, processes: int, module: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Run worker processes, with these variables in their environment, until the end of the block."""
    command = [sys.executable, "-m", "zndraw_joblib", "worker", str(module), "--url", server]
    command += ["--processes", str(processes), "--log-level", "warning"]
    environment = {**os.environ, "ZNDRAW_JOBLIB_TOKEN": TOKEN, **variables}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


async def _wait_for_workers(server: str, processes: int) -> None:
    """Wait until each process has registered and the first task is completed."""
    deadline = time.monotonic() + _START_SECONDS
    async with connections(server, TOKEN, 1) as (connection,):
        while (await connection.json("GET", "/v1/joblib/workers?limit=1"))["total"] < processes:
            assert time.monotonic() < deadline, "The workers did not register in time"
            await asyncio.sleep(0.05)
        await submit_task(connection)
        while not await _completed(connection):
            assert time.monotonic() < deadline, "The workers did not complete the first task in time"
            await asyncio.sleep(0.05)


async def _lone_tasks(server: str) -> tuple[float, float]:
    """Return p50 and p95 in ms from a submit until a client sees that an idle worker completed the task."""
    times: list[float] = []
    async with connections(server, TOKEN, 1) as (connection,):
        for _ in range(_LONE_TASKS):
            await asyncio.sleep(0.01)  # the worker claims again
            begin = time.perf_counter()
            task = await submit_task(connection)
            await connection.json("GET", f"{V1}/tasks/{task['id']}", None, LONG_POLL)
            times.append(time.perf_counter() - begin)
    return quantiles(times)


async def executed_rates(server: str, url: str, measurements: int) -> list[float]:
    """Add a backlog; return how many of its tasks per second the running workers complete, several times."""
    async with connections(server, TOKEN, 1) as (connection,):
        await add_pending_tasks(url, int((measurements + 1) * _SECONDS * _MAX_TASKS_PER_SECOND))
        await submit_task(connection)  # wakes the waiting claims
        await asyncio.sleep(_SECONDS / 2)
        rates = []
        for _ in range(measurements):
            began, done = time.perf_counter(), await _completed(connection)
            await asyncio.sleep(_SECONDS)
            rates.append((await _completed(connection) - done) / (time.perf_counter() - began))
        pending = await connection.json("GET", f"{ROOM}/tasks?status=pending&limit=1")
        assert pending["total"], "The workers were faster than the backlog is long: increase it"
        return rates


async def _completed(connection: Connection) -> int:
    page = await connection.json("GET", f"{ROOM}/tasks?status=completed&limit=1")
    return int(page["total"])
