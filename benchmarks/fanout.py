"""One event to many Socket.IO clients: the processor time of the server."""

import asyncio
from collections.abc import Callable
from statistics import median

import psutil
import uvloop

from benchmarks.bench import Bench
from benchmarks.http_client import connections
from benchmarks.scenarios import V1, register, submit_task
from benchmarks.servers import TOKEN, allow_many_connections
from benchmarks.socketio_client import SocketIO, connect

CLIENTS = 1_000
_EVENTS = 20
_CONNECTS_AT_ONCE = 50
_SECONDS = 60.0


def run(bench: Bench) -> None:
    """Report the processor time of an event to a thousand clients; its ratio is that of empty requests."""
    allow_many_connections()
    server, _ = bench.shared_server
    process = _process(server)
    costs = uvloop.run(_measure(server, lambda: _spent(process), bench.repeats))
    noop = _process(bench.noop)
    before = _spent(noop)
    count = bench.empty_rate() * bench.seconds / 2
    empty = (_spent(noop) - before) / count
    ratio = empty / median(costs) * CLIENTS  # of an event to one of them
    bench.report.add(f"event to {CLIENTS:,} clients", 1000 * median(costs), "ms", ratio)


async def _measure(url: str, spent: Callable[[], float], repeats: int) -> list[float]:
    received = 0

    def count(_: object) -> None:
        nonlocal received
        received += 1

    clients: list[SocketIO] = []
    while len(clients) < CLIENTS:
        new = (connect(url, TOKEN, "bench", count) for _ in range(_CONNECTS_AT_ONCE))
        clients += await asyncio.gather(*new)
    costs = []
    async with connections(url, TOKEN, 1) as (submitter,):
        await register(submitter)
        for _ in range(repeats):
            received, before = 0, spent()
            for number in range(1, _EVENTS + 1):
                await submit_task(submitter, room=f"{V1}/rooms/bench")
                async with asyncio.timeout(_SECONDS):
                    while received < number * CLIENTS:  # noqa: ASYNC110 - other tasks count
                        await asyncio.sleep(0.002)
            costs.append((spent() - before) / _EVENTS)
    for client in clients:
        client.close()
    return costs


def _process(url: str) -> psutil.Process:
    port = url.rpartition(":")[2]
    return next(child for child in psutil.Process().children() if port in child.cmdline())


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
