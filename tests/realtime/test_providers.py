"""Providers that are connected by Socket.IO get each request as an event, as 0.1.x clients expect."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
import socketio
from rest import UNKNOWN_ID, V1
from waiting import until

from realtime.sockets import LiveServer, Socket, names, serve
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.queue import rules_providers

WAIT_SECONDS = 20
NAME = "lab:files:home"
URL = f"{V1}/rooms/lab/providers/{NAME}"
LONG = {"Prefer": f"wait={WAIT_SECONDS}"}


async def register_provider(rest: httpx.AsyncClient, room: str = "lab", **fields: Any) -> Any:
    """Register a provider and return it."""
    body = {"category": "files", "name": "home", **fields}
    response = await rest.put(f"{V1}/rooms/{room}/providers", json=body)
    assert response.status_code in {200, 201}, response.text
    return response.json()


async def join(socket: Socket, provider: Any) -> Any:
    """Let a socket join the room of a provider for its worker."""
    return await socket.call(
        "join_provider_room", provider_name=provider["full_name"], worker_id=provider["worker_id"]
    )


async def wait_for_requests(socket: Socket, count: int = 1) -> list[dict[str, Any]]:
    """Wait until a socket has received this many requests, and return them."""

    def requests() -> list[dict[str, Any]]:
        return [data for name, data in socket.received if name == "provider_request"]

    await until(lambda: len(requests()) >= count)
    return requests()


async def upload(rest: httpx.AsyncClient, provider: Any, request_id: str, content: bytes) -> None:
    """Upload a result."""
    url = f"{V1}/providers/{provider['id']}/results"
    response = await rest.post(url, content=content, headers={"X-Request-Hash": request_id})
    assert response.status_code == 204, response.text


@pytest.fixture
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker without a socket count as connected for longer than a busy machine needs."""
    monkeypatch.setattr(rules_providers, "GRACE", timedelta(minutes=5))


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker without a socket count as connected for a moment only."""
    monkeypatch.setattr(rules_providers, "GRACE", timedelta(seconds=0.05))


async def test_a_socket_receives_a_request_once(server: LiveServer) -> None:
    """20 equal requests are one event; front-ends of the room get the event of the result."""
    rest, socket, front = await server.rest(), await server.connect(), await server.connect("lab")
    provider = await register_provider(rest)
    assert await join(socket, provider) == {}
    request_task = [asyncio.ensure_future(rest.get(f"{URL}?x=1", headers=LONG)) for _ in range(20)]
    [request] = await wait_for_requests(socket)
    assert (request["provider_name"], request["params"]) == (NAME, '{"x":"1"}')
    await upload(rest, provider, request["request_id"], b"answer")
    assert {response.content for response in await asyncio.gather(*request_task)} == {b"answer"}
    assert names(await socket.new_events()).count("provider_request") == 1
    events = await front.new_events()
    assert names(events) == ["providers_invalidate", "provider_result_ready"]
    assert events[-1][1] == {"provider_name": NAME, "request_hash": request["request_id"]}


async def test_only_a_registered_worker_of_the_owner_joins(server: LiveServer) -> None:
    """Other users, other workers and unknown providers are refused."""
    token = await server.create_user("ada")
    rest, ada = await server.rest(token), await server.connect(token=token)
    eve = await server.connect(token=await server.create_user("eve"))
    provider = await register_provider(rest)
    assert (await join(eve, provider))["status"] == 403
    assert (await join(ada, {**provider, "worker_id": UNKNOWN_ID}))["status"] == 404
    assert (await join(ada, {**provider, "full_name": "lab:files:none"}))["status"] == 404
    assert (await join(ada, {**provider, "full_name": "none"}))["status"] == 404
    other = (await rest.post(f"{V1}/workers")).json()["id"]
    assert (await join(ada, {**provider, "worker_id": other}))["status"] == 404
    assert await join(ada, provider) == {}


@pytest.mark.usefixtures("long_grace")
async def test_a_pending_request_is_sent_to_a_socket_that_joins(server: LiveServer) -> None:
    """A request that no socket has received is not lost."""
    rest, socket = await server.rest(), await server.connect()
    provider = await register_provider(rest)
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    await until(lambda: _waits(server, provider))
    await join(socket, provider)
    [request] = await wait_for_requests(socket)
    await upload(rest, provider, request["request_id"], b"late")
    assert (await request_task).content == b"late"


async def _waits(server: LiveServer, provider: Any) -> bool:
    return server.runtime.waiters.has(f"provider:{provider['full_name']}")


@pytest.mark.usefixtures("short_grace")
async def test_a_provider_that_disconnects_during_a_request(server: LiveServer) -> None:
    """The caller soon gets a 503; the request is sent again when the provider reconnects."""
    rest, socket = await server.rest(), await server.connect()
    provider = await register_provider(rest)
    await join(socket, provider)
    began = time.monotonic()
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    await wait_for_requests(socket)
    await socket.disconnect()
    response = await request_task
    assert (response.status_code, response.json()["type"]) == (503, "/v1/problems/provider-not-connected")
    assert time.monotonic() - began < WAIT_SECONDS
    again = await rest.get(URL, headers=LONG)
    assert again.status_code == 503
    back = await server.connect()
    await join(back, provider)
    [request] = await wait_for_requests(back)  # of the first call
    await upload(rest, provider, request["request_id"], b"back")
    assert (await rest.get(URL, headers=LONG)).content == b"back"


@pytest.mark.usefixtures("long_grace")
async def test_a_short_disconnect_does_not_end_a_request(server: LiveServer) -> None:
    """A provider that reconnects at once gets the request again, and the caller gets the result."""
    rest, socket = await server.rest(), await server.connect()
    provider = await register_provider(rest)
    await join(socket, provider)
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    await wait_for_requests(socket)
    await socket.disconnect()
    back = await server.connect()
    await join(back, provider)
    [request] = await wait_for_requests(back)
    await upload(rest, provider, request["request_id"], b"good")
    assert (await request_task).content == b"good"


async def test_an_upload_that_breaks_off_is_requested_again(server: LiveServer) -> None:
    """The server drops the incomplete result; the caller gets the complete one."""
    rest = await server.rest()
    provider = await register_provider(rest)
    claim, url = {"worker_id": provider["worker_id"]}, f"{V1}/providers/requests/claim"
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    claimed_request = (await rest.post(url, json=claim, headers=LONG)).json()["request"]
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST {V1}/providers/{provider['id']}/results HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {server.token}\r\nX-Request-Hash: {claimed_request['request_id']}\r\n"
        "Content-Length: 100\r\n\r\nhalf"
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    assert (await rest.post(url, json=claim, headers=LONG)).json()["request"] == claimed_request
    await upload(rest, provider, claimed_request["request_id"], b"whole")
    assert (await request_task).content == b"whole"


async def test_a_provider_with_another_socket_stays_connected(server: LiveServer) -> None:
    """A worker is connected for a provider as long as it has a socket in the room."""
    rest, first, second = await server.rest(), await server.connect(), await server.connect()
    provider = await register_provider(rest)
    await join(first, provider)
    await join(second, provider)
    await first.disconnect()
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    [request] = await wait_for_requests(second)
    await upload(rest, provider, request["request_id"], b"second")
    assert (await request_task).content == b"second"


@pytest.mark.usefixtures("short_grace")
async def test_a_socket_that_left_the_room_gets_no_requests(server: LiveServer) -> None:
    """The caller gets a 503."""
    rest, socket = await server.rest(), await server.connect()
    provider = await register_provider(rest)
    await join(socket, provider)
    left = {"provider_name": NAME, "worker_id": provider["worker_id"]}
    assert await socket.call("leave_provider_room", **left) == {}
    assert (await rest.get(URL, headers=LONG)).status_code == 503
    assert await socket.new_events() == []


async def test_the_newest_worker_gets_the_requests(server: LiveServer) -> None:
    """After its removal the worker before it gets them, pending ones too."""
    rest, old_one, new_one = await server.rest(), await server.connect(), await server.connect()
    old = await register_provider(rest)
    await join(old_one, old)
    new = await register_provider(rest)
    await join(new_one, new)
    assert new["id"] == old["id"]
    await until(lambda: _left(server, old_one))
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    await wait_for_requests(new_one)
    assert names(await old_one.new_events()) == []
    await rest.delete(f"{V1}/workers/{new['worker_id']}")
    [request] = await wait_for_requests(old_one)
    await upload(rest, old, request["request_id"], b"old")
    assert (await request_task).content == b"old"


async def _left(server: LiveServer, socket: Socket) -> bool:
    assert server.rooms is not None
    return f"providers:{NAME}" not in server.rooms.sio.rooms(socket.client.get_sid())


async def test_results_of_global_providers_are_announced_in_every_room(server: LiveServer) -> None:
    """A caller in any room may have sent the request."""
    rest, socket, front = await server.rest(), await server.connect(), await server.connect("attic")
    provider = await register_provider(rest, "@global")
    await join(socket, provider)
    await rest.get(f"{V1}/rooms/attic/providers/{provider['full_name']}", headers={"Prefer": "wait=0"})
    [request] = await wait_for_requests(socket)
    await upload(rest, provider, request["request_id"], b"")
    assert names(await front.new_events()) == ["providers_invalidate", "provider_result_ready"]


async def test_a_disconnected_worker_loses_its_providers(
    server: LiveServer, settings: ServerSettings
) -> None:
    """Its providers are removed after `disconnect_grace_seconds`, as its jobs are."""
    server.runtime.settings.disconnect_grace_seconds = 0.2
    rest, socket, front = await server.rest(), await server.connect(), await server.connect("lab")
    provider = await register_provider(rest)
    await join(socket, provider)
    await front.new_events()
    await socket.disconnect()

    async def is_gone() -> bool:
        return (await rest.get(f"{URL}/info")).status_code == 404

    await until(is_gone)
    assert names(await front.new_events()) == ["providers_invalidate"]


@asynccontextmanager
async def serve_host(url: str, sio: socketio.AsyncServer) -> AsyncIterator[LiveServer]:
    """Serve an app with its own Socket.IO server."""
    from fastapi import FastAPI

    from zndraw_joblib import JobLib, JobLibSettings, register_socketio_handlers
    from zndraw_joblib.server.db import schema
    from zndraw_joblib.server.db.engine import open_engine, open_sessions
    from zndraw_joblib.server.db.host_sessions import SessionDatabase
    from zndraw_joblib.server.process.ports import Identity

    engine = open_engine(url)
    await schema.prepare(SessionDatabase(open_sessions(engine)))
    app = FastAPI()

    async def identity() -> Identity:
        return Identity("ada", is_superuser=True)

    joblib = JobLib(
        session_maker=open_sessions(engine), identity=identity, settings=JobLibSettings(), tsio=sio
    )
    joblib.mount(app)
    register_socketio_handlers(sio, joblib)
    async with serve(socketio.ASGIApp(sio, app), app, "any") as server:
        yield server
    await engine.dispose()


class LateServer(socketio.AsyncServer):  # type: ignore[misc]
    """A Socket.IO server that adds a socket to a provider's room when the test allows it."""

    def __init__(self) -> None:
        super().__init__(async_mode="asgi")
        self.is_entering, self.may_enter = asyncio.Event(), asyncio.Event()

    async def enter_room(self, sid: str, room: str, namespace: str | None = None) -> None:
        """Add a socket to a room."""
        if room == f"providers:{NAME}":
            self.is_entering.set()
            await self.may_enter.wait()
        await super().enter_room(sid, room, namespace)


async def test_a_request_during_a_join_is_sent(sqlite_url: str) -> None:
    """The worker counts as connected before its socket is in the room; then the socket gets the request."""
    async with serve_host(sqlite_url, sio := LateServer()) as server:
        rest, socket = await server.rest(), await server.connect()
        joining = asyncio.create_task(join(socket, await register_provider(rest)))
        await sio.is_entering.wait()
        assert (await rest.get(URL, headers={"Prefer": "wait=0"})).status_code == 504
        sio.may_enter.set()
        assert await joining == {}
        await wait_for_requests(socket)


@pytest.fixture
async def host(sqlite_url: str) -> AsyncIterator[tuple[LiveServer, socketio.AsyncServer]]:
    """Serve an app whose own handler lets sockets join the rooms of providers."""
    sio = socketio.AsyncServer(async_mode="asgi", cors_allowed_origins=[])

    @sio.on("join_provider_room")
    async def join_room(sid: str, data: dict[str, str]) -> dict[str, str]:
        await sio.enter_room(sid, f"providers:{data['provider_name']}")
        return {"by": "the host"}

    async with serve_host(sqlite_url, sio) as server:
        yield server, sio


@pytest.mark.usefixtures("short_grace")
async def test_a_host_may_handle_the_rooms_of_providers(
    host: tuple[LiveServer, socketio.AsyncServer],
) -> None:
    """The server does not know which sockets are connected, so callers wait for their whole wait time."""
    server, _ = host
    rest, socket = await server.rest(), await server.connect()
    provider = await register_provider(rest)
    assert await join(socket, provider) == {"by": "the host"}
    await asyncio.sleep(0.1)  # longer than the grace period of a new provider without a socket
    request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
    [request] = await wait_for_requests(socket)
    await upload(rest, provider, request["request_id"], b"hosted")
    assert (await request_task).content == b"hosted"
    began = time.monotonic()
    assert (await rest.get(f"{URL}?x=1", headers={"Prefer": "wait=1"})).status_code == 504
    assert time.monotonic() - began >= 1


@pytest.mark.usefixtures("short_grace")
async def test_a_host_may_replace_the_join_handler_later(server: LiveServer) -> None:
    """From then on the server does not know which sockets are connected, and gives no 503."""
    rest = await server.rest()
    await register_provider(rest)
    assert server.rooms is not None
    assert (await rest.get(URL, headers=LONG)).status_code == 503
    server.rooms.sio.on("join_provider_room", lambda sid, data: None)
    assert (await rest.get(URL, headers={"Prefer": "wait=1"})).status_code == 504


@pytest.mark.usefixtures("long_grace")
async def test_a_server_restart_during_a_request(settings: ServerSettings) -> None:
    """The caller repeats the request; the provider joins the new server and gets the request again."""
    token = "admin-token-of-the-tests"
    app = create_app(settings)
    async with serve(app, app, token) as server:
        rest, socket = await server.rest(), await server.connect()
        provider = await register_provider(rest)
        await join(socket, provider)
        request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
        [request] = await wait_for_requests(socket)
        server.runtime.waiters.close()  # as a stop does
        assert (await request_task).status_code in {503, 504}
    app = create_app(settings)
    async with serve(app, app, token) as server:
        rest, socket = await server.rest(), await server.connect()
        request_task = asyncio.ensure_future(rest.get(URL, headers=LONG))
        assert await join(socket, provider) == {}
        assert (await wait_for_requests(socket))[0] == request
        await upload(rest, provider, request["request_id"], b"after the restart")
        assert (await request_task).content == b"after the restart"
