"""Providers that are connected by Socket.IO, as clients of the package before are: asked by an event."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import socketio
from rest import UNKNOWN_ID, V1
from waiting import until

from live.sockets import Live, Socket, names, serving
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import ServerSettings

BOUND = 10
NAME = "lab:files:home"
READ = f"{V1}/rooms/lab/providers/{NAME}"
LONG = {"Prefer": "wait=20"}


async def offer(rest: httpx.AsyncClient, room: str = "lab", **fields: Any) -> Any:
    """Register a provider and return it."""
    body = {"category": "files", "name": "home", **fields}
    answer = await rest.put(f"{V1}/rooms/{room}/providers", json=body)
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


async def join(socket: Socket, provider: Any) -> Any:
    """Let a socket join the room of a provider, in the name of its worker."""
    return await socket.ask(
        "join_provider_room", provider_name=provider["full_name"], worker_id=provider["worker_id"]
    )


async def asked(socket: Socket, count: int = 1) -> list[dict[str, Any]]:
    """Wait until a socket was asked for so many reads; return them."""

    def requests() -> list[dict[str, Any]]:
        return [data for name, data in socket.heard if name == "provider_request"]

    async with asyncio.timeout(BOUND):
        while len(requests()) < count:  # noqa: ASYNC110 - there is no event to await
            await asyncio.sleep(0.005)
    return requests()


async def bring(rest: httpx.AsyncClient, provider: Any, request_id: str, content: bytes) -> None:
    """Bring a result."""
    url = f"{V1}/providers/{provider['id']}/results"
    answer = await rest.post(url, content=content, headers={"X-Request-Hash": request_id})
    assert answer.status_code == 204, answer.text


async def test_a_socket_is_asked_and_answers(live: Live) -> None:
    """It hears of a read once, by its hash and its parameters; front-ends of the room hear of the answer."""
    rest, socket, front = await live.rest(), await live.socket(), await live.socket("lab")
    provider = await offer(rest)
    assert await join(socket, provider) == {}
    reading = [asyncio.ensure_future(rest.get(f"{READ}?x=1", headers=LONG)) for _ in range(20)]
    [request] = await asked(socket)
    assert (request["provider_name"], request["params"]) == (NAME, '{"x":"1"}')
    await bring(rest, provider, request["request_id"], b"answer")
    assert {answer.content for answer in await asyncio.gather(*reading)} == {b"answer"}
    assert names(await socket.settled()).count("provider_request") == 1
    heard = await front.settled()
    assert names(heard) == ["providers_invalidate", "provider_result_ready"]
    assert heard[-1][1] == {"provider_name": NAME, "request_hash": request["request_id"]}


async def test_who_may_join(live: Live) -> None:
    """The owner of a worker that is registered for the provider."""
    rest, eve = await live.rest(await live.user("ada")), await live.socket(token=await live.user("eve"))
    ada = await live.socket(token="token-of-ada-for-the-tests")
    provider = await offer(rest)
    assert (await join(eve, provider))["status"] == 403
    assert (await join(ada, {**provider, "worker_id": UNKNOWN_ID}))["status"] == 404
    assert (await join(ada, {**provider, "full_name": "lab:files:none"}))["status"] == 404
    assert (await join(ada, {**provider, "full_name": "none"}))["status"] == 404
    other = (await rest.post(f"{V1}/workers")).json()["id"]
    assert (await join(ada, {**provider, "worker_id": other}))["status"] == 404
    assert await join(ada, provider) == {}


async def test_a_read_that_waits_is_told_to_whoever_joins(live: Live) -> None:
    """A request that nobody heard is not lost: it is sent again to the socket that comes."""
    rest, socket = await live.rest(), await live.socket()
    provider = await offer(rest)
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    await until(lambda: _waits(live, provider))
    await join(socket, provider)
    [request] = await asked(socket)
    await bring(rest, provider, request["request_id"], b"late")
    assert (await reading).content == b"late"


async def test_a_read_that_is_asked_while_a_socket_joins(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker is noted as connected already, and it is not in the room yet: it is told once it is."""
    rest, socket = await live.rest(), await live.socket()
    provider = await offer(rest)
    assert live.rooms is not None
    presence, enter = live.rooms.presence, live.rooms.presence._enter

    async def enter_late(sid: str, room: str) -> bool:
        assert (await rest.get(READ, headers={"Prefer": "wait=0"})).status_code == 504
        return await enter(sid, room)

    monkeypatch.setattr(presence, "_enter", enter_late)
    assert await join(socket, provider) == {}
    await asked(socket)


async def _waits(live: Live, provider: Any) -> bool:
    return live.runtime.waiters.has(f"provider:{provider['full_name']}")


async def test_a_provider_that_is_killed_during_a_read(live: Live) -> None:
    """Its readers hear soon that nobody is connected; when it comes back, it is asked."""
    rest, socket = await live.rest(), await live.socket()
    provider = await offer(rest)
    await join(socket, provider)
    began = time.monotonic()
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    await asked(socket)
    await socket.close_sockets()
    answer = await reading
    assert (answer.status_code, answer.json()["type"]) == (503, "/v1/problems/provider-not-connected")
    assert time.monotonic() - began < BOUND
    again = await rest.get(READ, headers=LONG)
    assert again.status_code == 503
    back = await live.socket()
    await join(back, provider)
    [request] = await asked(back)  # the first read is wanted still
    await bring(rest, provider, request["request_id"], b"back")
    assert (await rest.get(READ, headers=LONG)).content == b"back"


async def test_a_blink_of_the_connection_is_no_end(live: Live) -> None:
    """Who comes back at once is asked again, and its reader notices nothing."""
    rest, socket = await live.rest(), await live.socket()
    provider = await offer(rest)
    await join(socket, provider)
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    await asked(socket)
    await socket.close_sockets()
    back = await live.socket()
    await join(back, provider)
    [request] = await asked(back)
    await bring(rest, provider, request["request_id"], b"good")
    assert (await reading).content == b"good"


async def test_who_hangs_up_an_upload_is_asked_again(live: Live) -> None:
    """What came of it is forgotten; its reader waits on, and gets what comes whole."""
    rest = await live.rest()
    provider = await offer(rest)
    claim, url = {"worker_id": provider["worker_id"]}, f"{V1}/providers/requests/claim"
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    read = (await rest.post(url, json=claim, headers=LONG)).json()["request"]
    host, port = live.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST {V1}/providers/{provider['id']}/results HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {live.token}\r\nX-Request-Hash: {read['request_id']}\r\n"
        "Content-Length: 100\r\n\r\nhalf"
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    assert (await rest.post(url, json=claim, headers=LONG)).json()["request"] == read
    await bring(rest, provider, read["request_id"], b"whole")
    assert (await reading).content == b"whole"


async def test_one_of_two_sockets_may_go(live: Live) -> None:
    """As long as another one of the worker is there, it is connected."""
    rest, first, second = await live.rest(), await live.socket(), await live.socket()
    provider = await offer(rest)
    await join(first, provider)
    await join(second, provider)
    await first.close_sockets()
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    [request] = await asked(second)
    await bring(rest, provider, request["request_id"], b"second")
    assert (await reading).content == b"second"


async def test_who_leaves_the_room_is_asked_no_more(live: Live) -> None:
    """And the reader hears that nobody is there."""
    rest, socket = await live.rest(), await live.socket()
    provider = await offer(rest)
    await join(socket, provider)
    left = {"provider_name": NAME, "worker_id": provider["worker_id"]}
    assert await socket.ask("leave_provider_room", **left) == {}
    assert (await rest.get(READ, headers=LONG)).status_code == 503
    assert await socket.settled() == []


async def test_the_newest_worker_alone_is_asked(live: Live) -> None:
    """And the one before again, once the newest is gone: reads that wait go to it."""
    rest, old_one, new_one = await live.rest(), await live.socket(), await live.socket()
    old = await offer(rest)
    await join(old_one, old)
    new = await offer(rest)
    await join(new_one, new)
    assert new["id"] == old["id"]
    await until(lambda: _left(live, old_one))
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    await asked(new_one)
    assert names(await old_one.settled()) == []
    await rest.delete(f"{V1}/workers/{new['worker_id']}")
    [request] = await asked(old_one)
    await bring(rest, old, request["request_id"], b"old")
    assert (await reading).content == b"old"


async def _left(live: Live, socket: Socket) -> bool:
    assert live.rooms is not None
    members = live.rooms._sio.manager.rooms["/"].get(f"providers:{NAME}", {})
    return socket.client.get_sid() not in members


async def test_readers_of_global_providers_hear_of_answers(live: Live) -> None:
    """Front-ends of every room, for any of them may have asked."""
    rest, socket, front = await live.rest(), await live.socket(), await live.socket("attic")
    provider = await offer(rest, "@global")
    await join(socket, provider)
    await rest.get(f"{V1}/rooms/attic/providers/{provider['full_name']}", headers={"Prefer": "wait=0"})
    [request] = await asked(socket)
    await bring(rest, provider, request["request_id"], b"")
    assert names(await front.settled()) == ["providers_invalidate", "provider_result_ready"]


async def test_a_worker_whose_socket_is_gone_loses_its_providers(
    live: Live, settings: ServerSettings
) -> None:
    """After `disconnect_grace_seconds`, as its jobs."""
    live.runtime.settings.disconnect_grace_seconds = 0.2
    rest, socket, front = await live.rest(), await live.socket(), await live.socket("lab")
    provider = await offer(rest)
    await join(socket, provider)
    await front.settled()
    await socket.close_sockets()

    async def is_gone() -> bool:
        return (await rest.get(f"{READ}/info")).status_code == 404

    await until(is_gone)
    assert names(await front.settled()) == ["providers_invalidate"]


@pytest.fixture
async def hosts(sqlite_url: str) -> AsyncIterator[tuple[Live, socketio.AsyncServer]]:
    """Serve an app whose own handler lets sockets into the rooms of providers."""
    from fastapi import FastAPI

    from zndraw_joblib import JobLib, JobLibSettings, register_socketio_handlers
    from zndraw_joblib.server.ports import Identity
    from zndraw_joblib.server.store import schema
    from zndraw_joblib.server.store.database import SessionDatabase
    from zndraw_joblib.server.store.engine import open_engine, open_sessions

    engine = open_engine(sqlite_url)
    await schema.prepare(SessionDatabase(open_sessions(engine)))
    app, sio = FastAPI(), socketio.AsyncServer(async_mode="asgi", cors_allowed_origins=[])

    async def anybody() -> Identity:
        return Identity("ada", is_superuser=True)

    @sio.on("join_provider_room")
    async def let_in(sid: str, data: dict[str, str]) -> dict[str, str]:
        await sio.enter_room(sid, f"providers:{data['provider_name']}")
        return {"by": "the host"}

    joblib = JobLib(
        session_maker=open_sessions(engine), identity=anybody, settings=JobLibSettings(), tsio=sio
    )
    joblib.mount(app)
    register_socketio_handlers(sio, joblib)
    async with serving(socketio.ASGIApp(sio, app), app, "any") as live:
        yield live, sio
    await engine.dispose()


async def test_a_host_lets_its_sockets_in_by_itself(hosts: tuple[Live, socketio.AsyncServer]) -> None:
    """Its handler stays; as we cannot know who is connected, readers wait as long as they like to."""
    live, _ = hosts
    rest, socket = await live.rest(), await live.socket()
    provider = await offer(rest)
    assert await join(socket, provider) == {"by": "the host"}
    await asyncio.sleep(2.1)  # longer than the patience with a new provider that nobody has joined
    reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
    [request] = await asked(socket)
    await bring(rest, provider, request["request_id"], b"hosted")
    assert (await reading).content == b"hosted"
    began = time.monotonic()
    assert (await rest.get(f"{READ}?x=1", headers={"Prefer": "wait=1"})).status_code == 504
    assert time.monotonic() - began >= 1


async def test_a_host_may_take_the_rooms_over_later(live: Live) -> None:
    """From then on we do not know who is connected, and say so to nobody."""
    rest = await live.rest()
    await offer(rest)
    assert live.rooms is not None
    assert (await rest.get(READ, headers={"Prefer": "wait=3"})).status_code == 503
    live.rooms._sio.on("join_provider_room", lambda sid, data: None)
    assert (await rest.get(READ, headers={"Prefer": "wait=1"})).status_code == 504


async def test_a_server_that_restarts_during_a_read(settings: ServerSettings) -> None:
    """The reader asks again; the provider joins the new server, and is asked what it had not answered."""
    token = "admin-token-of-the-tests"
    app = create_app(settings)
    async with serving(app, app, token) as live:
        rest, socket = await live.rest(), await live.socket()
        provider = await offer(rest)
        await join(socket, provider)
        reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
        [request] = await asked(socket)
        live.runtime.waiters.close()  # as a stop does
        assert (await reading).status_code in {503, 504}
    app = create_app(settings)
    async with serving(app, app, token) as live:
        rest, socket = await live.rest(), await live.socket()
        reading = asyncio.ensure_future(rest.get(READ, headers=LONG))
        assert await join(socket, provider) == {}
        assert (await asked(socket))[0] == request
        await bring(rest, provider, request["request_id"], b"after the restart")
        assert (await reading).content == b"after the restart"
