"""Sockets that must not stay are closed: of revoked tokens, without an identity, during a stop."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Any

import aiohttp
import httpx
import pytest
import socketio
from rest import V1, register, submit
from waiting import until

from realtime.sockets import LiveServer, Socket, serve
from zndraw_joblib import Identity
from zndraw_joblib.server.admin import rules_token_updates, sql_operators
from zndraw_joblib.server.admin.rules_token_updates import TokenChanges
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.batcher import RowLocked
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.server.realtime.rooms import SocketOwner, SocketSupervisor

ADMIN_TOKEN = "admin-token-of-the-tests"
POLL = "/socket.io/?EIO=4&transport=polling"
ENOUGH = 30.0
STREAM = {"Accept": "text/event-stream"}


async def closed(socket: Socket) -> None:
    """Wait until the server has disconnected a socket."""
    await asyncio.wait_for(socket.client.wait(), ENOUGH)


async def test_a_revoked_token_disconnects_its_sockets(server: LiveServer) -> None:
    """They get no further event; sockets of other tokens stay."""
    token = await server.create_user("eve")
    eve, ada = await server.connect("lab", token=token), await server.connect("lab")
    polling = await server.connect(token=token, transports=["polling"])
    await server.runtime.write(sql_operators.remove_token, name="eve")
    await asyncio.gather(closed(eve), closed(polling))
    received = len(eve.received)
    rest = await server.rest()
    await submit(rest, await register(rest))
    assert await ada.new_statuses() == ["pending"]
    assert len(eve.received) == received
    with pytest.raises(socketio.exceptions.ConnectionError):
        await server.connect(token=token)


@pytest.fixture
async def replicas(postgres_url: str) -> AsyncIterator[list[LiveServer]]:
    """Serve two standalone apps on one PostgreSQL database."""
    apps = [create_app(ServerSettings(database_url=postgres_url, admin_token=ADMIN_TOKEN)) for _ in range(2)]
    async with serve(apps[0], apps[0], ADMIN_TOKEN) as one, serve(apps[1], apps[1], ADMIN_TOKEN) as two:
        yield [one, two]


async def test_a_revoked_token_disconnects_sockets_of_every_replica(replicas: list[LiveServer]) -> None:
    """The command line revokes tokens in the database alone."""
    token = await replicas[0].create_user("eve")
    sockets = [await replica.connect("lab", token=token) for replica in replicas]
    await replicas[0].runtime.write(sql_operators.remove_token, name="eve")
    await asyncio.gather(*map(closed, sockets))


async def test_changed_tokens_lose_sockets_and_streams_of_every_replica(replicas: list[LiveServer]) -> None:
    """A token of workers has its rights until its issuer may not issue it any more."""
    token = await replicas[0].create_user("boss", ["operator"], ["lab"])
    boss = await replicas[0].rest(token)
    body = {"jobs": ["lab:*"], "rooms": ["lab"], "expires_in_seconds": 600}
    issued = (await boss.post(f"{V1}/worker-tokens", json=body)).json()["token"]
    worker = await replicas[1].rest(issued)
    job = await register(worker, room="lab")
    sockets = [await replica.connect("lab", token=issued) for replica in replicas]
    sockets += [await replica.connect("lab", token=token) for replica in replicas]
    join = {"job_name": job["full_name"], "worker_id": job["worker_id"]}
    assert await sockets[1].call("join_job_room", **join) == {}
    assert (await sockets[1].call("join_room", room_id="vault"))["status"] == 403
    assert (await worker.get(f"{V1}/rooms/vault/events", headers=STREAM)).status_code == 403
    async with worker.stream("GET", f"{V1}/rooms/lab/events", headers=STREAM, timeout=ENOUGH) as stream:
        assert stream.status_code == 200
        changes = TokenChanges(roles=["viewer"])
        assert await replicas[0].runtime.write(rules_token_updates.update, "boss", changes) == (None, 1)
        # Not by the check after its next comment, which is 15 s later.
        async with asyncio.timeout(12):
            async for _ in stream.aiter_lines():
                pass
    await asyncio.gather(*map(closed, sockets))
    assert (await boss.post(f"{V1}/worker-tokens", json=body)).status_code == 403


async def test_a_token_that_becomes_limited_loses_what_it_has_just_opened(server: LiveServer) -> None:
    """Also before the first check of its tokens, and if a socket joins another room after the change."""
    token = await server.create_user("eve")
    eve, anonymous = await server.rest(token), await server.rest()
    del anonymous.headers["Authorization"]
    url = f"{V1}/rooms/lab/events"
    query = {"token": (await eve.post(f"{url}/token")).json()["token"]}

    async def read(client: httpx.AsyncClient, **options: Any) -> None:
        async with client.stream("GET", url, headers=STREAM, timeout=ENOUGH, **options) as stream:
            assert stream.status_code == 200
            is_open.release()
            async for _ in stream.aiter_lines():
                pass

    is_open = asyncio.Semaphore(0)
    streams = [asyncio.create_task(each) for each in (read(eve), read(anonymous, params=query))]
    for _ in streams:
        await is_open.acquire()
    sockets = [await server.connect("lab", "vault", token=token) for _ in range(2)]
    changes = TokenChanges(rooms=["lab"])
    assert await server.runtime.write(rules_token_updates.update, "eve", changes) == (None, 0)
    server.joblib.identity.forget("eve")
    assert (await sockets[0].call("join_room", room_id="vault"))["status"] == 403
    assert await sockets[0].call("join_room", room_id="lab") == {}
    # Not by the check after a stream's next comment, which is 15 s later.
    async with asyncio.timeout(12):
        await asyncio.gather(*streams, *map(closed, sockets))


async def test_a_connection_without_an_identity_is_closed(
    server: LiveServer, settings: ServerSettings
) -> None:
    """A client that never sends Socket.IO's CONNECT loses its connection; a connected one keeps it."""
    stays = await server.connect("lab")
    # Not before: on a busy machine a client needs longer to identify itself.
    settings.socket_auth_timeout_seconds = 0.3
    rest = await server.rest()
    opened = json.loads((await rest.get(POLL)).text[1:])
    async with aiohttp.ClientSession() as session:
        url = f"{server.url}/socket.io/?EIO=4&transport=websocket"
        async with session.ws_connect(url) as websocket, asyncio.timeout(ENOUGH):
            while not websocket.closed:
                await websocket.receive()
    refused = [await rest.get(f"{POLL}&sid={opened['sid']}") for _ in range(2)][-1]
    assert refused.status_code == 400
    assert await stays.new_events() == []


async def test_connections_without_an_identity_are_bounded(
    server: LiveServer, settings: ServerSettings
) -> None:
    """One more is refused; sockets with an identity do not count."""
    settings.max_unauthenticated_sockets = 2
    for _ in range(3):
        await server.connect("lab")
    rest = await server.rest()
    assert [(await rest.get(POLL)).status_code for _ in range(3)] == [200, 200, 401]


async def refusal(server: LiveServer, token: str) -> str:
    """Return why a connection with a token is refused."""
    client, refused = socketio.AsyncClient(reconnection=False), list[Any]()
    client.on("connect_error", refused.append)
    with pytest.raises(socketio.exceptions.ConnectionError):
        await client.connect(server.url, auth={"token": token}, transports=["websocket"], wait_timeout=30)
    await client.shutdown()
    return str(refused)


async def test_one_user_leaves_sockets_to_others(server: LiveServer, settings: ServerSettings) -> None:
    """Each of its sockets counts until it is disconnected, by whatever transport."""
    settings.max_sockets, settings.max_share_per_user = 3, 0.7
    eve = await server.create_user("eve")
    first = await server.connect("lab", token=eve)
    await server.connect(token=eve, transports=["polling"])
    assert "(max_share_per_user of max_sockets); close one" in await refusal(server, eve)
    await server.connect("lab")
    assert "3 sockets are open already (max_sockets)" in await refusal(server, ADMIN_TOKEN)
    await first.client.disconnect()

    async def is_admitted() -> bool:
        with suppress(socketio.exceptions.ConnectionError):
            return bool(await server.connect("lab", token=eve))
        return False

    await until(is_admitted, ENOUGH, interval=0.2)


async def test_no_error_ends_the_checks_of_sockets(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is logged, and the next round checks again."""
    errors, checked = [RowLocked(), ValueError("unexpected")], asyncio.Event()

    async def find_revoked(_: Collection[str]) -> set[str]:
        if errors:
            raise errors.pop()
        checked.set()
        return set()

    settings = ServerSettings(admin_token=ADMIN_TOKEN, socket_auth_timeout_seconds=1)
    settings.socket_auth_timeout_seconds = 0.1
    supervisor = SocketSupervisor(socketio.AsyncServer(), server.runtime, settings, find_revoked)
    supervisor.add("sid", SocketOwner(Identity("ada", is_superuser=False), "digest"))
    running = asyncio.create_task(supervisor.run())
    async with asyncio.timeout(ENOUGH):
        await checked.wait()
    assert caplog.text.count("Sockets were not checked") == 2
    running.cancel()


async def test_a_server_that_stops_accepts_no_socket(server: LiveServer) -> None:
    """Otherwise a client that connects during the stop would delay it."""
    rest = await server.rest()
    socket = await server.connect("lab")
    server.joblib.begin_stop()
    await closed(socket)
    response = await rest.get(POLL)
    assert (response.status_code, "stopping" in response.text) == (401, True)
    with pytest.raises(socketio.exceptions.ConnectionError):
        await server.connect("lab")
