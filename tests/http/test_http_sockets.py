"""Behaviour on a real port: clients that disconnect, and a server that stops."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn
from rest import NO_TASK, V1, claim, get_task, register, submit
from servers import ServerProcess
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from waiting import until

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.runtime.runtime import Runtime


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Use SQLite only: sockets behave the same on PostgreSQL."""
    return sqlite_url


@asynccontextmanager
async def serving(
    settings: ServerSettings, http: Any = "auto"
) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime]]:
    """Serve on a real port by a protocol of uvicorn; return a client and the runtime."""
    app = create_app(settings)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, http=http)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {settings.admin_token.get_secret_value()}"}
        running = asyncio.create_task(server.serve([listener]))
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
            assert (await client.get("/health/live")).json() == {"status": "alive"}
            yield client, app.state.joblib.runtime
        app.state.joblib.runtime.waiters.close()
        server.should_exit = True
        await running


@pytest.fixture
async def port(settings: ServerSettings) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime]]:
    """Serve while the test runs."""
    async with serving(settings) as served:
        yield served


class RecordedWrites:
    """A transport that records what is written to it."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Record what is written."""
        self._writes.append(data)
        self._transport.write(data)


@pytest.mark.parametrize("protocol", [HttpToolsProtocol, H11Protocol])
async def test_a_response_is_one_write(settings: ServerSettings, protocol: Any) -> None:
    """The client wakes up once for the head and the body, also where the connection closes then."""
    writes: list[bytes] = []

    class Recording(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(RecordedWrites(transport, writes))

    async with serving(settings, Recording) as (client, _):
        job = await register(client)
        payload = {"text": "x" * 1000}
        for headers in ({}, {"Connection": "close"}):
            writes.clear()
            url = f"{V1}/rooms/lab/tasks/{job['full_name']}"
            response = await client.post(url, json={"payload": payload}, headers=headers)
            assert response.json()["payload"] == payload
            assert len(writes) == 1
            assert writes[0].endswith(response.content)
            # Another request uses the same connection, or a new one.
            assert (await client.get(response.headers["Location"])).json()["payload"] == payload


async def close_sockets(request: "asyncio.Task[Any]") -> None:
    """Close the connection of a request before its response."""
    request.cancel()
    with suppress(asyncio.CancelledError):
        await request


async def test_a_disconnected_claim_gets_no_task(port: tuple[httpx.AsyncClient, Runtime]) -> None:
    """The server notices at once; the task stays pending for the next claim."""
    client, runtime = port
    job = await register(client)
    pending_requests = asyncio.create_task(claim(client, job["worker_id"], 30))
    await until(lambda: len(runtime.waiters) == 1)
    await close_sockets(pending_requests)
    await until(lambda: len(runtime.waiters) == 0, 20)
    task = await submit(client, job)
    assert (await get_task(client, task))["status"] == "pending"
    assert (await claim(client, job["worker_id"]))["id"] == task["id"]


async def test_a_wake_up_skips_a_disconnected_claim(port: tuple[httpx.AsyncClient, Runtime]) -> None:
    """The first of two waiting claims disconnects; the second gets the next task without delay."""
    client, runtime = port
    first, second = await register(client), await register(client)
    gone = asyncio.create_task(claim(client, first["worker_id"], 30))
    await until(lambda: len(runtime.waiters) == 1)
    stays = asyncio.create_task(claim(client, second["worker_id"], 30))
    await until(lambda: len(runtime.waiters) == 2)
    _, task = await asyncio.gather(close_sockets(gone), submit(client, first))
    async with asyncio.timeout(20):
        returned = await stays
    after = await get_task(client, task)
    assert returned is None or returned["id"] == task["id"]
    assert after["worker_id"] in {first["worker_id"], second["worker_id"]}


async def test_a_waiter_ends_with_its_client(port: tuple[httpx.AsyncClient, Runtime]) -> None:
    """The server keeps no waiter of a disconnected client."""
    client, runtime = port
    task = await submit(client, await register(client))
    pending_requests = [
        asyncio.create_task(client.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": "wait=30"}))
        for _ in range(5)
    ]
    await until(lambda: len(runtime.waiters) == 5)
    for request in pending_requests:
        await close_sockets(request)
    await until(lambda: len(runtime.waiters) == 0, 20)


@pytest.mark.processes
async def test_ctrl_c_stops_a_server_with_waiting_requests(sqlite_url: str, settings: ServerSettings) -> None:
    """Waiting requests get their responses, the server stops within seconds, and no task is lost."""
    token = settings.admin_token.get_secret_value()
    with ServerProcess(sqlite_url, admin_token=token) as server:
        async with server.client() as client:
            job = await register(client)
            other = await register(client, "Other")
            task = await submit(client, job)
            wait = {"Prefer": "wait=60"}
            worker = {"worker_id": other["worker_id"]}
            pending_requests = [
                asyncio.create_task(client.get(f"{V1}/tasks/{task['id']}", headers=wait)),
                asyncio.create_task(client.post(f"{V1}/tasks/claim", json=worker, headers=wait)),
            ]

            async def both_wait() -> bool:
                metrics = (await client.get("/metrics")).text
                return bool(
                    re.search(r"^zndraw_joblib_waiting_requests\{.*\} 2(\.0)?$", metrics, re.MULTILINE)
                )

            await until(both_wait)
            started = time.monotonic()
            server.interrupt()
            returned, claimed = await asyncio.gather(*pending_requests)
            assert await asyncio.to_thread(server.process.wait, 40) == 0
            assert time.monotonic() - started < 40
            assert (returned.status_code, returned.json()) == (200, task)
            assert (claimed.status_code, claimed.json()) == (200, NO_TASK)
    async with serving(settings) as (client, _):
        assert (await claim(client, job["worker_id"]))["id"] == task["id"]


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection ends, also by a reset."""
    answer = b""
    with suppress(ConnectionResetError):
        while part := await reader.read(4096):
            answer += part
    return answer


async def test_a_body_that_does_not_arrive_is_refused(port: tuple[httpx.AsyncClient, Runtime]) -> None:
    """With a 408 that names the setting, and the connection is closed; bytes one by one change nothing."""
    client, runtime = port
    runtime.settings.request_timeout_seconds = 0.3
    url = client.base_url
    head = (
        f"POST {V1}/workers HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n"
        f"Content-Type: application/json\r\nAuthorization: {client.headers['Authorization']}\r\n\r\n"
    ).encode()
    for is_slow in (False, True):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head + b'{"name": "')
        read = asyncio.create_task(read_all(reader))
        while is_slow and not read.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        answer = await read
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b"/v1/problems/upload-stalled" in answer
        assert b"request_timeout_seconds" in answer
        writer.close()


async def test_a_slow_body_may_take_longer_if_bytes_arrive(port: tuple[httpx.AsyncClient, Runtime]) -> None:
    """Each 64 KiB add a second."""
    client, runtime = port
    runtime.settings.request_timeout_seconds = 0.3
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.6

    async def body() -> AsyncIterator[bytes]:
        yield b'{"worker": {}' + b" " * 200_000
        while loop.time() < end:
            await asyncio.sleep(0.05)
            yield b" "
        yield b"}"

    response = await client.post(f"{V1}/workers", content=body())
    assert response.status_code == 201, response.text
