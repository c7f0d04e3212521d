"""Event streams: thousands of idle clients, and how late the clients of a room get an event."""

import asyncio
import resource
import time

import psutil
import uvloop

from benchmarks.bench import Bench
from benchmarks.figures import Report
from benchmarks.http_client import connections, quantiles
from benchmarks.scenarios import JOB, PAYLOAD, ROOM, V1, register, submit_task
from benchmarks.servers import TOKEN, allow_many_connections, serving
from benchmarks.sse_client import EventReader, read_streams

_CLIENTS = 5_000
_CLIENTS_OF_A_ROOM = (1, 100, 1_000)
_OTHER_FILES = 500
# A server sends a comment every 15 s to a client that gets no event.
_IDLE_SECONDS = 15.5
_SETTLE_SECONDS = 1.0
_ROUNDS = 40
# Clients of a room that got an event 5 ms ago get the next one with those that follow within 5 ms.
_PAUSE_SECONDS = 0.02
_EVENT_SECONDS = 30.0
_WARM_UP = 10
_TASKS_PER_SUBMIT = 1_000


def run(bench: Bench) -> None:
    """Report what idle clients cost the server, and the time from a commit to its event at each client."""
    allow_many_connections()
    with serving("joblib", bench.new_url()) as server:
        process = [child for child in psutil.Process().children() if "joblib" in child.cmdline()][-1]
        uvloop.run(_idle_clients(bench.report, server, process, _possible_clients()))
    with serving("joblib", bench.new_url()) as server:
        for count in _CLIENTS_OF_A_ROOM:
            uvloop.run(_latency(bench.report, server, count))


def _possible_clients() -> int:
    """Return how many clients of rooms, and as many of tasks, the limit of open files allows."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    possible = min(_CLIENTS, (limit - _OTHER_FILES) // 2)
    if possible < _CLIENTS:
        print(
            f"  {possible:,} clients instead of {_CLIENTS:,}: a process may open {limit:,} files (ulimit -Hn)"
        )
    return possible


async def _idle_clients(report: Report, url: str, server: psutil.Process, count: int) -> None:
    tasks = await _submit(url, count + _WARM_UP)
    paths = {
        "one room": [f"{ROOM}/events"] * (count + _WARM_UP),
        "a task": [f"{V1}/tasks/{task}/events" for task in tasks],
    }
    readers: list[EventReader] = []
    for name, wanted in paths.items():
        # The first streams of a server also load code.
        _close(await read_streams(url, TOKEN, wanted[:_WARM_UP], _ignore))
        await asyncio.sleep(_SETTLE_SECONDS)
        before = server.memory_info().rss
        readers += await read_streams(url, TOKEN, wanted[_WARM_UP:], _ignore)
        await asyncio.sleep(_SETTLE_SECONDS)
        memory = (server.memory_info().rss - before) / count
        report.add(f"{count:,} idle clients of {name}, each", memory / 1024, "KiB")
        share = await _processor_share(server)
        report.add(f"{len(readers):,} idle clients, share of a processor", 100 * share, "%")
    _close(readers)


async def _submit(url: str, count: int) -> list[str]:
    """Submit tasks; return their ids."""
    task = {"room_id": "bench", "job_name": JOB, **PAYLOAD}
    ids: list[str] = []
    async with connections(url, TOKEN, 1) as (connection,):
        await register(connection)
        while len(ids) < count:
            body = {"tasks": [task] * min(_TASKS_PER_SUBMIT, count - len(ids))}
            submitted = await connection.json("POST", f"{V1}/tasks/submit", body)
            ids += [result["task"]["id"] for result in submitted["results"]]
    return ids


async def _processor_share(server: psutil.Process) -> float:
    """Return the processor time that the server uses in each second while its clients are idle."""
    began, used = time.perf_counter(), sum(server.cpu_times()[:2])
    await asyncio.sleep(_IDLE_SECONDS)
    return (sum(server.cpu_times()[:2]) - used) / (time.perf_counter() - began)


async def _latency(report: Report, url: str, count: int) -> None:
    """Report how long after the response to a submit the clients of its room have the event."""
    times: list[float] = []
    after_response: list[float] = []
    all_have_it = asyncio.Event()

    def record(data: bytes) -> None:
        times.extend([time.perf_counter()] * data.count(b"event: status\n"))
        if len(times) == count:
            all_have_it.set()

    async with connections(url, TOKEN, 1) as (submitter,):
        await register(submitter)
        readers = await read_streams(url, TOKEN, [f"{ROOM}/events"] * count, record)
        for _ in range(_ROUNDS):
            await asyncio.sleep(_PAUSE_SECONDS)
            await submit_task(submitter)
            responded = time.perf_counter()
            await asyncio.wait_for(all_have_it.wait(), _EVENT_SECONDS)
            after_response += [at - responded for at in times]
            times.clear()
            all_have_it.clear()
    _close(readers)
    p50, p95 = quantiles(after_response)
    clients = "1 client" if count == 1 else f"{count:,} clients"
    report.add(f"commit to event, {clients} of the room, p50", p50, "ms")
    report.add(f"commit to event, {clients} of the room, p95", p95, "ms")


def _close(readers: list[EventReader]) -> None:
    for reader in readers:
        reader.close()


def _ignore(_: bytes) -> None:
    """Do nothing with events."""
