"""Many readers, readers that stop reading, and how streams end."""

import asyncio
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from databases import killing_on_both, on_sqlite
from fastapi import FastAPI
from rest import V1, claim, expect_problem, register, submit
from servers import ServerProcess
from waiting import until

from streams.conftest import serving
from streams.sse import ADMIN_TOKEN, STREAM, Reader
from streams.writers import Writers
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

Local = tuple[FastAPI, httpx.AsyncClient]
READERS = 1000


def request(path: str, token: str = ADMIN_TOKEN) -> bytes:
    """Return the request of a stream as bytes."""
    lines = (f"GET {V1}/{path}/events HTTP/1.1", "Host: test", f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "Accept: text/event-stream", "", ""]).encode()


@killing_on_both
async def test_a_thousand_readers_of_one_room(database_url: str) -> None:
    """Each of them gets each event once, in order."""
    with ServerProcess(database_url) as process:
        async with process.client() as client:
            job = await register(client)
            address = urlsplit(process.url)
            streams = [await asyncio.open_connection(address.hostname, address.port) for _ in range(READERS)]
            for _, writer in streams:
                writer.write(request("rooms/lab", str(process.token)))
            async with asyncio.timeout(120):
                for reader, _ in streams:
                    await reader.readuntil(b"event: snapshot")
                tasks = [(await submit(client, job))["id"] for _ in range(10)]
                for reader, _ in streams:
                    text = await reader.readuntil(f'"id":"{tasks[-1]}"'.encode())
                    found = [part[:36].decode() for part in text.split(b'"task_id":"')[1:]]
                    assert found == tasks
            for _, writer in streams:
                writer.close()


async def test_an_idle_stream_keeps_no_snapshot(local: Local) -> None:
    """Its memory does not depend on the size of the snapshot that it has sent."""
    app, client = local
    size, count = 500_000, 20
    task = await submit(client, await register(client), text="x" * size)
    streams = [
        await asyncio.open_connection(client.base_url.host, client.base_url.port, limit=2 * size)
        for _ in range(count)
    ]
    tracemalloc.start()
    try:
        for reader, writer in streams:
            writer.write(request(f"tasks/{task['id']}"))
            await reader.readuntil(b"event: snapshot")
            await reader.readuntil(b"\n\n")
        # Sooner than the first keep-alive.
        most = app.state.joblib.keep_alive_seconds * 0.7
        await until(lambda: tracemalloc.get_traced_memory()[0] < size * count / 4, most)
    finally:
        tracemalloc.stop()
    for _, writer in streams:
        writer.close()


async def progress_until(client: httpx.AsyncClient, is_over: Callable[[], bool]) -> int:
    """Let a task report large progress until a condition holds; return how often it did."""
    job = await register(client)
    await submit(client, job)
    held = await claim(client, job["worker_id"])
    assert held is not None
    for sent in range(5000):
        if is_over():
            return sent
        body = {"attempt": 1, "progress": {"current": sent, "data": {"text": "x" * 15_000}}}
        response = await client.patch(f"{V1}/tasks/{held['id']}", json=body)
        assert response.status_code == 200, response.text
    raise AssertionError("the condition did not hold")


@on_sqlite
@pytest.mark.parametrize(
    ("http", "origins"), [("httptools", []), ("h11", ["http://page"])], ids=["direct", "cors"]
)
async def test_a_reader_that_stops_reading_is_cut_off(
    settings: ServerSettings, http: str, origins: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection is dropped with what it did not read; others get all events meanwhile."""
    settings.stream_send_timeout_seconds = 0.5
    settings.cors_origins = origins
    caplog.set_level("INFO", "zndraw_joblib")
    app = create_app(settings)
    async with serving(app, ADMIN_TOKEN, http) as client:
        stopped = socket.create_connection((client.base_url.host, client.base_url.port or 0))
        stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stopped.sendall(request("rooms/lab"))
        connections = app.state.server.server_state.connections
        await until(lambda: stopped.getsockname() in [each.client for each in connections])
        other = Reader(client, "rooms/lab")
        await other.until(1)
        await until(lambda: len(app.state.joblib.streams) == 2)
        sent = await progress_until(client, lambda: len(app.state.joblib.streams) == 1)
        got = await other.until(3 + sent)
        assert [each.data["data"]["progress"]["current"] for each in got[3:]] == list(range(sent))
        await other.close()
        # Otherwise the server would keep the unsent bytes until the client reads them.
        await until(lambda: stopped.getsockname() not in [each.client for each in connections])
        stopped.close()
    assert "stream_send_timeout_seconds" in caplog.text


@on_sqlite
async def test_the_number_of_streams_is_bounded(local: Local) -> None:
    """One caller has a bound of its own; more streams of a process are refused, and closed ones are free."""
    app, client = local
    app.state.joblib.settings.max_streams_per_user = 2
    readers = [Reader(client, "rooms/lab"), Reader(client, "rooms/den")]
    for reader in readers:
        await reader.until(1)
    refused = await client.get(f"{V1}/rooms/lab/events", headers=STREAM)
    assert "max_streams_per_user" in expect_problem(refused, 429, "too-many-requests")["detail"]
    app.state.joblib.settings.max_streams = 2
    refused = await client.get(f"{V1}/rooms/lab/events")
    assert "max_streams" in expect_problem(refused, 503, "service-unavailable")["detail"]
    await readers[0].close()
    await until(lambda: len(app.state.joblib.streams) == 1)
    assert (await client.get(f"{V1}/rooms/lab/events")).status_code == 200
    await readers[1].close()


@on_sqlite
async def test_an_idle_stream_has_comments(local: Local) -> None:
    """Proxies close connections without traffic, so the server sends a comment now and then."""
    app, client = local
    app.state.joblib.keep_alive_seconds = 0.05
    async with (
        asyncio.timeout(60),
        client.stream("GET", f"{V1}/rooms/lab/events", headers=STREAM) as response,
    ):
        comments = 0
        async for line in response.aiter_lines():
            comments += line == ": ping"
            if comments == 3:
                break
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"


@killing_on_both
async def test_a_server_that_stops_ends_its_streams(database_url: str) -> None:
    """SIGINT ends the streams, so that the server does not wait for them; a client continues elsewhere."""
    with ServerProcess(database_url) as process:
        async with process.client() as client:
            reader = Reader(client, "rooms/lab")
            await reader.until(1)
            process.interrupt()
            [snapshot] = await reader.ended()
            await until(lambda: process.process.poll() is not None)
    with ServerProcess(database_url) as process:
        async with process.client() as client:
            job = await register(client)
            task = await submit(client, job)
            reader = Reader(client, "rooms/lab", snapshot.id)
            [event] = await reader.until(1)
            assert event.data["task_id"] == task["id"]
            with suppress(httpx.HTTPError):
                await reader.close()


class Collector:
    """Reads a stream from several servers in turn, and continues after the last event that it got."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.events: list[Any] = []
        self.last: int | None = None

    async def read(self, client: httpx.AsyncClient, count: int) -> None:
        """Read until there are so many events, or the connection ends."""
        reader = Reader(client, self.path, self.last)
        with suppress(httpx.HTTPError, AssertionError):
            await reader.until(count)
        with suppress(httpx.HTTPError, AssertionError):
            await reader.close()
        for event in reader.events:
            self.last = event.id
            assert event.event != "resync"
            self.events += [event] if event.event != "snapshot" else []


@pytest.mark.slow
async def test_readers_continue_without_a_gap_while_servers_are_killed(kind: str, database_url: str) -> None:
    """Over servers that are killed one after another, a reader gets each event once, in order."""
    with ExitStack() as stack:

        def start() -> ServerProcess:
            return stack.enter_context(ServerProcess(database_url))

        servers = [start() for _ in range(2 if kind == "postgresql" else 1)]
        collector = Collector("rooms/lab")
        async with servers[0].client() as client:
            writers = Writers(servers, await register(client))
            await collector.read(client, 1)
        writing = asyncio.create_task(writers.run())
        for turn in range(3):
            victim = turn % len(servers)
            async with servers[victim].client() as client:
                reading = asyncio.create_task(collector.read(client, 10**6))
                before = len(writers.made)
                await until(lambda before=before: len(writers.made) > before + 5)
                servers[victim].process.kill()
                await reading
            servers[victim] = start()
        writers.is_over = True
        await writing
        async with servers[0].client() as client:
            rest = await client.get(f"{V1}/rooms/lab/events", params={"after": collector.last})
    check_complete([event.data for event in collector.events] + rest.json()["events"], writers.made)


def check_complete(events: list[Any], made: list[str]) -> None:
    """Assert that each of these tasks has one event, and that the numbers are consecutive."""
    numbers = [event["n"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    tasks = [event["task_id"] for event in events]
    assert len(set(tasks)) == len(tasks)
    assert set(tasks) == set(made)
