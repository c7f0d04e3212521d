"""Thousands of clients that wait: open claims and Socket.IO connections."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg
import psutil
import uvloop

from benchmarks.bench import Bench
from benchmarks.figures import Report
from benchmarks.http_client import Connection, connections, quantiles
from benchmarks.scenarios import V1, claim_task, register, report_status, submit_task
from benchmarks.servers import TOKEN, allow_many_connections, serving
from benchmarks.socketio_client import SocketIO, connect

_CLIENTS = 5_000
_CLAIMS_PER_WORKER = 50
_IDLE_SECONDS = 5.0
_SETTLE_SECONDS = 3.0
_COUNT_SECONDS = 12.0  # PostgreSQL counts the transactions of a connection up to 10 s later
_CONNECTS_AT_ONCE = 100
_ROUNDS = 200


def run(bench: Bench) -> None:
    """Report the memory of thousands of waiting clients, and the latency to reach one of them."""
    allow_many_connections()
    url = bench.new_url()
    with serving("joblib", url) as server:
        process = [child for child in psutil.Process().children() if "joblib" in child.cmdline()][-1]
        count = partial(_count_transactions, url) if bench.kind == "postgresql" else None
        uvloop.run(waiting_claims(bench.report, server, process, count))
        uvloop.run(sockets(bench.report, server, process))
        uvloop.run(listeners(bench.report, server, 100, 150))


async def _count_transactions(url: str) -> int:
    """Return the number of transactions of a PostgreSQL database so far."""
    connection = await asyncpg.connect(url)
    count: int = await connection.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    await connection.close()
    return count


async def waiting_claims(
    report: Report,
    url: str,
    server: psutil.Process,
    count_transactions: Callable[[], Awaitable[int]] | None,
    count: int = _CLIENTS,
) -> None:
    """Open many claims that wait; report their memory, their transactions while idle, and their latency."""
    before = server.memory_info().rss
    async with connections(url, TOKEN, count + 1) as (submitter, *waiting):
        workers = [await register(submitter) for _ in range(count // _CLAIMS_PER_WORKER)]
        served: asyncio.Queue[tuple[Connection, str]] = asyncio.Queue()

        async def claim(connection: Connection, worker: str) -> None:
            await claim_task(connection, worker, "Prefer: wait=600\r\n")
            served.put_nowait((connection, worker))

        claims = {
            asyncio.create_task(claim(connection, workers[index // _CLAIMS_PER_WORKER]))
            for index, connection in enumerate(waiting)
        }
        await asyncio.sleep(_SETTLE_SECONDS if count_transactions is None else _COUNT_SECONDS)
        memory = (server.memory_info().rss - before) / count
        if count_transactions is not None:
            report.add("transactions while idle", await _idle_rate(count_transactions), "/s")
        times = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            await submit_task(submitter)
            connection, worker = await served.get()
            times.append(time.perf_counter() - start)
            claims.add(asyncio.create_task(claim(connection, worker)))
        for task in claims:
            task.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
    p50, p95 = quantiles(times)
    report.add(f"{count:,} waiting claims, each", memory / 1024, "KiB")
    report.add("submit to one of them, p50", p50, "ms")
    report.add("submit to one of them, p95", p95, "ms")


async def _idle_rate(count_transactions: Callable[[], Awaitable[int]]) -> float:
    before = await count_transactions()
    await asyncio.sleep(_IDLE_SECONDS)
    return (await count_transactions() - before) / _IDLE_SECONDS


async def sockets(report: Report, url: str, server: psutil.Process, count: int = _CLIENTS) -> None:
    """Open many Socket.IO connections, each in its own room; report their memory and the event latency."""
    before = server.memory_info().rss
    received: asyncio.Queue[int] = asyncio.Queue()

    async def open_one(number: int) -> SocketIO:
        return await connect(url, TOKEN, f"room-{number}", lambda _: received.put_nowait(number))

    clients: list[SocketIO] = []
    while len(clients) < count:
        some = range(len(clients), min(len(clients) + _CONNECTS_AT_ONCE, count))
        clients += await asyncio.gather(*map(open_one, some))
    memory = (server.memory_info().rss - before) / count
    async with connections(url, TOKEN, 1) as (submitter,):
        await register(submitter)
        times = []
        for index in range(_ROUNDS):
            number = index * 7919 % count
            start = time.perf_counter()
            await submit_task(submitter, room=f"{V1}/rooms/room-{number}")
            assert await received.get() == number
            times.append(time.perf_counter() - start)
    for client in clients:
        client.close()
    p50, p95 = quantiles(times)
    report.add(f"{count:,} Socket.IO connections, each", memory / 1024, "KiB")
    report.add("submit to event, p50", p50, "ms")
    report.add("submit to event, p95", p95, "ms")


async def listeners(report: Report, url: str, count: int, cycles: int) -> None:
    """Open many connections in one room; report the rate at which all of them receive all events in order."""
    received: list[list[tuple[str, str]]] = [[] for _ in range(count)]
    clients = [
        await connect(
            url, TOKEN, "bench", lambda task, events=events: events.append((task["id"], task["status"]))
        )
        for events in received
    ]
    async with connections(url, TOKEN, 1) as (worker,):
        worker_id = await register(worker, "Observed")
        start = time.perf_counter()
        for _ in range(cycles):
            await submit_task(worker, "@global:modifiers:Observed")
            task = await claim_task(worker, worker_id)
            for status in ("running", "completed"):
                await report_status(worker, task, status)
        for client in clients:
            await client.call("leave_room", {"room_id": "bench"})
        seconds = time.perf_counter() - start
    for client in clients:
        client.close()
    statuses = ["pending", "claimed", "running", "completed"] * cycles
    assert all([status for _, status in events] == statuses for events in received), "an event is missing"
    assert len(set(map(tuple, received))) == 1, "the clients received different events"
    report.add(f"events to {count} connections in one room, in order", count * 4 * cycles / seconds, "/s")
