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
from benchmarks.servers import TOKEN, allow_many_connections
from benchmarks.socketio_client import SocketIO, connect

_CLAIMS = 2_000
_SOCKETS = 2_000
_LISTENERS = 100
_CLAIMS_PER_WORKER = 50
_IDLE_SECONDS = 3.0
_SETTLE_SECONDS = 2.0
_CONNECTS_AT_ONCE = 100
_ROUNDS = 100
_USED = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
AND state_change > now() - $1 * interval '1 second'
"""


def run(bench: Bench) -> None:
    """Report the memory of thousands of waiting clients, and the latency to reach one of them."""
    allow_many_connections()
    server, url = bench.shared_server
    process = [child for child in psutil.Process().children() if "joblib" in child.cmdline()][-1]
    used = partial(_used_connections, url) if bench.kind == "postgresql" else None
    p50, p95 = uvloop.run(waiting_claims(bench.report, server, process, used))
    bench.add_times({"submit to one of them, p50": p50, "submit to one of them, p95": p95})
    p50, p95 = uvloop.run(sockets(bench.report, server, process))
    bench.add_times({"submit to event, p50": p50, "submit to event, p95": p95})
    rate = uvloop.run(listeners(server))
    name = f"events to {_LISTENERS} connections in one room, in order"
    bench.report.add(name, rate, "/s", rate / bench.empty_rate())


async def _used_connections(url: str) -> int:
    """Return how many connections to a PostgreSQL database run a statement in some seconds."""
    await asyncio.sleep(_IDLE_SECONDS)
    connection = await asyncpg.connect(url)
    count: int = await connection.fetchval(_USED, _IDLE_SECONDS)
    await connection.close()
    return count


async def waiting_claims(
    report: Report,
    url: str,
    server: psutil.Process,
    used_connections: Callable[[], Awaitable[int]] | None,
    count: int = _CLAIMS,
) -> tuple[float, float]:
    """Open many claims that wait; report their memory and their statements, and return their latency."""
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
        await asyncio.sleep(_SETTLE_SECONDS)
        memory = (server.memory_info().rss - before) / count
        if used_connections is not None:
            report.add("connections used while idle", await used_connections(), "")
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
    report.add(f"{count:,} waiting claims, each", memory / 1024, "KiB")
    return quantiles(times)


async def sockets(
    report: Report, url: str, server: psutil.Process, count: int = _SOCKETS
) -> tuple[float, float]:
    """Open Socket.IO connections, each in its own room; report their memory, and return the event latency."""
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
    report.add(f"{count:,} Socket.IO connections, each", memory / 1024, "KiB")
    return quantiles(times)


async def listeners(url: str, count: int = _LISTENERS, cycles: int = 50) -> float:
    """Open many connections in one room; return the rate at which all of them receive all events in order."""
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
    return count * 4 * cycles / seconds
