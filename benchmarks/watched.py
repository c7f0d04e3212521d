"""Watched rooms: tasks at a fixed rate whose rooms clients read, with progress and log lines."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import uvloop

from benchmarks import batches
from benchmarks.bench import Bench
from benchmarks.figures import Report
from benchmarks.http_client import Connection, Rate, connections, quantiles
from benchmarks.scenarios import JOB, ROOM, V1, submit_task
from benchmarks.sdk_worker import workers
from benchmarks.servers import TOKEN, serving
from benchmarks.sse_client import read_streams

_READERS = 20
_OFFERED = 500  # tasks per second
_SECONDS = 4.0
_REST_SECONDS = 4.0
_CONNECTIONS = 16
_MODULE = Path(__file__).with_name("watched_job.py")
_LINE = {"at": "2026-01-01T00:00:00Z", "text": "half"}
_DETAILS = {"progress": {"current": 1, "total": 2}, "log": {"first": 1, "lines": [_LINE]}}
_COMPLETED = re.compile(rb'"kind":"status","task_id":"([^"]+)"[^\n]*"status":"completed"')


def run(bench: Bench) -> None:
    """Report how many of 500 tasks/s are completed, and when the clients that watch their rooms know it."""
    url = bench.new_url()
    before = bench.empty_rate()
    with serving("joblib", url) as server, workers(server, 1, _MODULE):
        process = [child for child in psutil.Process().children() if "joblib" in child.cmdline()][-1]
        p50, p95 = uvloop.run(_offer(bench.report, server, process, before))
    name = "due to completed at a reader"
    bench.add_times({f"{name}, p50": p50, f"{name}, p95": p95})


async def claim_and_report(server: str, size: int, seconds: float) -> Rate:
    """Complete tasks with progress and a log line; return the rate at which all readers get them."""
    seen, all_seen, expected = 0, asyncio.Event(), 0

    def count(data: bytes) -> None:
        nonlocal seen
        seen += len(_COMPLETED.findall(data))
        if seen == expected:
            all_seen.set()

    readers = await read_streams(server, TOKEN, [f"{ROOM}/events"] * _READERS, count)
    began = time.perf_counter()
    rate = await batches.claim_and_report(server, size, seconds, _DETAILS)
    expected = _READERS * rate.count
    if seen < expected:
        await asyncio.wait_for(all_seen.wait(), _REST_SECONDS)
    for reader in readers:
        reader.close()
    return replace(rate, per_second=rate.count / (time.perf_counter() - began))


async def _offer(report: Report, url: str, server: psutil.Process, empty: float) -> tuple[float, float]:
    """Report the rates and the processor time; return p50 and p95 of the time to a reader, in ms."""
    number = int(_OFFERED * _SECONDS)
    seen = _Seen(number)
    rooms = [f"{V1}/rooms/watched-{number}" for number in range(_READERS)]
    readers = await read_streams(url, TOKEN, [f"{room}/events" for room in rooms], seen.record)
    submitted: dict[str, float] = {}
    async with connections(url, TOKEN, _CONNECTIONS) as opened:
        used, began = sum(server.cpu_times()[:2]), time.perf_counter()
        due = iter([(began + index / _OFFERED, rooms[index % _READERS]) for index in range(number)])
        await asyncio.gather(*[_submit(connection, due, submitted) for connection in opened])
        offered = time.perf_counter() - began
        with suppress(TimeoutError):
            await asyncio.wait_for(seen.all_completed.wait(), _REST_SECONDS)
        spent = time.perf_counter() - began
        cpu = (sum(server.cpu_times()[:2]) - used) / number
    for reader in readers:
        reader.close()
    completed = seen.completed
    for name, rate in (("submitted", number / offered), ("completed", len(completed) / spent)):
        report.add(name, rate, "/s", rate / empty)
    report.add("server, for each task", 1000 * cpu, "ms")
    report.add("completions that no reader got", number - len(completed), "")
    return quantiles([at - submitted[task] for task, at in completed.items()])


class _Seen:
    """When readers got the completion of each task."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.completed: dict[str, float] = {}
        self.all_completed = asyncio.Event()

    def record(self, data: bytes) -> None:
        """Record the completions in what a reader got."""
        now = time.perf_counter()
        for task_id in _COMPLETED.findall(data):
            self.completed[task_id.decode()] = now
        if len(self.completed) == self._number:
            self.all_completed.set()


async def _submit(
    connection: Connection, due: Iterator[tuple[float, str]], submitted: dict[str, float]
) -> None:
    """Submit the next task when it is due, until none is left."""
    for at, room in due:
        await asyncio.sleep(at - time.perf_counter())
        task = await submit_task(connection, JOB, room)
        submitted[task["id"]] = at
