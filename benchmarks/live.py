"""What is measured of waiters, sockets and several servers."""

import asyncio
import time
from typing import Any

import psutil
import socketio

from benchmarks.load import Connection, connections, quantiles
from benchmarks.scenarios import NAME, PAYLOAD, ROOM, register
from benchmarks.servers import TOKEN

_CLAIMS_EACH = 50
_IDLE_SECONDS = 10.0
_SETTLING_SECONDS = 12.0  # PostgreSQL counts what a connection did up to 10 s later
_AT_ONCE = 100


async def waiters(url: str, server: psutil.Process, count: int, statements: Any) -> str:
    """Let many claims wait; return their memory, their statements while idle, and how soon one is served."""
    before = server.memory_info().rss
    async with connections(url, TOKEN, count + 1) as (submitter, *waiting):
        workers = [await register(submitter) for _ in range(count // _CLAIMS_EACH)]
        served: asyncio.Queue[tuple[Connection, str]] = asyncio.Queue()

        async def poll(connection: Connection, worker: str) -> None:
            path, body = "/v1/joblib/tasks/claim", {"worker_id": worker}
            if (await connection.json("POST", path, body, "Prefer: wait=600\r\n"))["task"]:
                served.put_nowait((connection, worker))

        polls = {
            asyncio.create_task(poll(connection, workers[place // _CLAIMS_EACH]))
            for place, connection in enumerate(waiting)
        }
        await asyncio.sleep(_SETTLING_SECONDS)
        memory = (server.memory_info().rss - before) / count
        asked = await statements()
        await asyncio.sleep(_IDLE_SECONDS)
        rate = (await statements() - asked) / _IDLE_SECONDS
        times = []
        for _ in range(200):
            start = time.perf_counter()
            await submitter.json("POST", f"{ROOM}/tasks/{NAME}", PAYLOAD)
            connection, worker = await served.get()
            times.append(time.perf_counter() - start)
            polls.add(asyncio.create_task(poll(connection, worker)))
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
    p50, p95 = quantiles(times)
    return (
        f"{count:,} claims asleep: {memory / 1024:.1f} KiB each, {rate:.1f} transactions/s while idle, "
        f"a submit reaches one in p50 {p50:.1f} ms, p95 {p95:.1f} ms"
    )


async def sockets(url: str, server: psutil.Process, count: int) -> str:
    """Connect many sockets, one room for each; return their memory, and how soon an event is there."""
    before = server.memory_info().rss
    heard: asyncio.Queue[int] = asyncio.Queue()
    clients = [socketio.AsyncClient(reconnection=False) for _ in range(count)]

    async def connect(number: int, client: Any) -> None:
        client.on("task_status_event", lambda _: heard.put_nowait(number))
        await client.connect(url, auth={"token": TOKEN}, transports=["websocket"])
        assert await client.call("join_room", {"room_id": f"room-{number}"}) == {}

    for start in range(0, count, _AT_ONCE):
        part = range(start, min(start + _AT_ONCE, count))
        await asyncio.gather(*[connect(number, clients[number]) for number in part])
    memory = (server.memory_info().rss - before) / count
    async with connections(url, TOKEN, 1) as (submitter,):
        await register(submitter)
        times = []
        for turn in range(200):
            number = turn * 7919 % count
            start_time = time.perf_counter()
            path = f"/v1/joblib/rooms/room-{number}/tasks/{NAME}"
            await submitter.json("POST", path, PAYLOAD)
            assert await heard.get() == number
            times.append(time.perf_counter() - start_time)
    await _hang_up(clients)
    p50, p95 = quantiles(times)
    return (
        f"{count:,} sockets: {memory / 1024:.1f} KiB each, an event reaches the one it is for in "
        f"p50 {p50:.1f} ms, p95 {p95:.1f} ms"
    )


async def listeners(url: str, count: int, cycles: int) -> str:
    """Let many listen in one room; return how fast all life cycles arrive at all of them, in order."""
    clients = [socketio.AsyncClient(reconnection=False) for _ in range(count)]
    heard: list[list[tuple[str, str]]] = [[] for _ in clients]
    for client, told in zip(clients, heard, strict=True):
        client.on("task_status_event", lambda task, told=told: told.append((task["id"], task["status"])))
        await client.connect(url, auth={"token": TOKEN}, transports=["websocket"])
        await client.call("join_room", {"room_id": "bench"})
    async with connections(url, TOKEN, 1) as (worker,):
        worker_id = await register(worker, "Heard")
        start = time.perf_counter()
        for _ in range(cycles):
            await worker.json("POST", f"{ROOM}/tasks/@global:modifiers:Heard", PAYLOAD)
            got = await worker.json("POST", "/v1/joblib/tasks/claim", {"worker_id": worker_id})
            for status in ("running", "completed"):
                await worker.json("PATCH", f"/v1/joblib/tasks/{got['task']['id']}", {"status": status})
        for client in clients:
            await client.call("leave_room", {"room_id": "bench"}, timeout=60)
        seconds = time.perf_counter() - start
    await _hang_up(clients)
    statuses = ["pending", "claimed", "running", "completed"] * cycles
    assert all([status for _, status in told] == statuses for told in heard), "an event is missing"
    assert len(set(map(tuple, heard))) == 1, "not everybody heard the same"
    return (
        f"{count} listeners, {cycles:,} life cycles: all {count * 4 * cycles:,} events arrived in order, "
        f"{count * 4 * cycles / seconds:,.0f} per second"
    )


async def across(here: str, there: str, rounds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p50 and p95 in ms: a submit at one server to a worker at another, a completion the other way."""
    async with connections(here, TOKEN, 2) as (submitter, waiter), connections(there, TOKEN, 1) as (worker,):
        worker_id = await register(worker, "Far")
        pick_ups: list[float] = []
        completions: list[float] = []
        for _ in range(rounds):
            body = {"worker_id": worker_id}
            poll = worker.json("POST", "/v1/joblib/tasks/claim", body, "Prefer: wait=30\r\n")
            polling = asyncio.create_task(poll)
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            task = await submitter.json("POST", f"{ROOM}/tasks/@global:modifiers:Far", PAYLOAD)
            await polling
            pick_ups.append(time.perf_counter() - start)
            path = f"/v1/joblib/tasks/{task['id']}"
            waiting = asyncio.create_task(waiter.json("GET", path, None, "Prefer: wait=30\r\n"))
            await worker.json("PATCH", path, {"status": "running"})
            await asyncio.sleep(0.01)
            start = time.perf_counter()
            await worker.json("PATCH", path, {"status": "completed"})
            await waiting
            completions.append(time.perf_counter() - start)
        return quantiles(pick_ups), quantiles(completions)


async def _hang_up(clients: list[Any]) -> None:
    for client in clients:
        await client.disconnect()
