"""Successors: the time from the last end before a task to its start, as the worker sees both."""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.bench import Bench, databases
from benchmarks.http_client import Connection, connections, quantiles
from benchmarks.scenarios import V1, claim_task, register, report_status, submit_task
from benchmarks.sdk_worker import worker_processes
from benchmarks.servers import TOKEN, serving

TASKS = 1_000
CHAIN = "chain, end to start"
FAN_OUT = "fan, end of the first to each start"
FAN_IN = "fan, last end to start"
ON_END = "group, last end to start of on_end"
ROUNDS = 5  # of fans and of groups, each of which has one last end
_WAIT_SECONDS = 60.0
_STEP, _GATE = "@global:modifiers:Step", "@global:modifiers:Gate"
_MODULE = Path(__file__).with_name("marked_job.py")


def run(bench: Bench) -> None:
    """Report p50 and p95 of that time in a chain, in a fan, and after a group, with one worker process."""
    for name, seconds in _times_on(bench.new_url()).items():
        p50, p95 = quantiles(seconds)
        bench.report.add(f"{name}, p50", p50, "ms")
        bench.report.add(f"{name}, p95", p95, "ms")
    print(f"  load {psutil.getloadavg()[0]:.1f}", flush=True)


def times_of(kind: str) -> dict[str, list[float]]:
    """Measure on a new database of this kind; return the seconds by the names of the figures."""
    with tempfile.TemporaryDirectory() as folder, databases(kind, Path(folder)) as new_url:
        return _times_on(new_url())


def _times_on(url: str) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, serving("joblib", url) as server:
        marks = Marks(Path(folder) / "marks")
        with worker_processes(server, 1, _MODULE, {"BENCH_MARKS": str(marks.path)}):
            return uvloop.run(_measure(server, marks))


class Marks:
    """The times that tasks have written into a file, by the numbers of the tasks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._times: dict[int, tuple[float, float]] = {}
        path.touch()

    async def of(self, numbers: range) -> Mapping[int, tuple[float, float]]:
        """Wait until tasks of all these numbers have run; return when each began and ended, by number."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while missing := sum(number not in self._times for number in numbers):
            assert time.monotonic() < deadline, f"{missing} of {len(numbers)} tasks have not run"
            await asyncio.sleep(0.05)
            self._add_new()
        return {number: self._times[number] for number in numbers}

    def _add_new(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        for line in whole.splitlines():
            number, began, ended = line.split()
            assert int(number) not in self._times, f"Task {int(number)} ran twice"
            self._times[int(number)] = (float(began), float(ended))


async def _measure(server: str, marks: Marks) -> dict[str, list[float]]:
    async with connections(server, TOKEN, 1) as (connection,):
        gate = await register(connection, "Gate")
        await _wait_for_worker(connection, marks)
        times = {CHAIN: await _chain(connection, marks, 1)}
        times |= {name: list[float]() for name in (FAN_OUT, FAN_IN, ON_END)}
        number = 1 + TASKS
        for _ in range(ROUNDS):
            spread, joined = await _fan(connection, gate, marks, number)
            times[FAN_OUT] += spread
            times[FAN_IN].append(joined)
            number += TASKS + 1
            times[ON_END].append(await _group(connection, marks, number))
            number += TASKS + 1
        return times


async def _wait_for_worker(connection: Connection, marks: Marks) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while (await connection.json("GET", "/v1/joblib/workers?limit=1"))["total"] < 2:
        assert time.monotonic() < deadline, "The worker did not register in time"
        await asyncio.sleep(0.05)
    await submit_task(connection, _STEP, body={"payload": {"number": 0}})
    await marks.of(range(1))


async def _chain(connection: Connection, marks: Marks, first: int) -> list[float]:
    """Run a chain that one request submits; return the time from each end to the start after it."""
    tasks = [_task(first + i, {"tasks": [i - 1]} if i else None) for i in range(TASKS)]
    await _submit(connection, {"tasks": tasks, "atomic": True})
    times = await marks.of(range(first, first + TASKS))
    return [times[number][0] - times[number - 1][1] for number in range(first + 1, first + TASKS)]


async def _fan(connection: Connection, gate: str, marks: Marks, first: int) -> tuple[list[float], float]:
    """Run a fan that one task starts and one joins.

    Return the times from the report of the first end to each start, and from the last end to the start of
    the task that joins the fan.
    """
    root = await submit_task(connection, _GATE)
    tasks = [_task(first + i, {"tasks": [root["id"]]}) for i in range(TASKS)]
    made = await _submit(connection, {"tasks": tasks, "group": {"room": "bench"}})
    last = _task(first + TASKS, {"groups": [made["group"]]})
    await _submit(connection, {"tasks": [last]})
    held = await claim_task(connection, gate)
    await report_status(connection, held, "running")
    ended = time.monotonic()
    await report_status(connection, held, "completed")
    times = dict(await marks.of(range(first, first + TASKS + 1)))
    began, _ = times.pop(first + TASKS)
    return [start - ended for start, _ in times.values()], began - max(end for _, end in times.values())


async def _group(connection: Connection, marks: Marks, first: int) -> float:
    """Run the tasks of a group; return the time from the last end to the start of its `on_end`."""
    on_end = {"job": _STEP, "payload": {"number": first + TASKS}}
    tasks = [_task(first + i, None) for i in range(TASKS)]
    await _submit(connection, {"tasks": tasks, "group": {"room": "bench", "on_end": on_end}})
    times = dict(await marks.of(range(first, first + TASKS + 1)))
    began, _ = times.pop(first + TASKS)
    return began - max(end for _, end in times.values())


def _task(number: int, after: dict[str, Any] | None) -> dict[str, Any]:
    options = {"after": after} if after else {}
    return {"room_id": "bench", "job_name": _STEP, "payload": {"number": number}, **options}


async def _submit(connection: Connection, body: dict[str, Any]) -> Any:
    response = await connection.json("POST", f"{V1}/tasks/submit", body, "Prefer: return=minimal\r\n")
    assert all(result["status"] == 202 for result in response["results"]), response["results"][0]
    return response
