"""The private parts of python-socketio and python-engineio behave as the server expects."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import socketio
from waiting import until

from realtime.sockets import LiveServer
from zndraw_joblib.server.process.pubsub import PubSub
from zndraw_joblib.server.realtime import socketio_internals
from zndraw_joblib.server.realtime.client_managers import PubSubManager
from zndraw_joblib.server.realtime.socketio_internals import LocalManager, MessageManager, is_fast_right


async def test_the_manager_knows_the_sockets_and_rooms_of_this_process(server: LiveServer) -> None:
    """`manager.rooms` has an entry for the namespace and for each occupied room."""
    assert server.rooms is not None
    sio = server.rooms.sio
    assert not socketio_internals.has_subscribers(sio)
    socket = await server.connect("lab")
    assert socketio_internals.has_subscribers(sio)
    assert socketio_internals.may_have_members(sio, ["room:attic", "room:lab"])
    assert not socketio_internals.may_have_members(sio, ["room:attic"])
    reaches = server.joblib.publisher.reach()
    assert (reaches("room:lab"), reaches("room:attic")) == (True, False)
    await socket.disconnect()
    await until(lambda: not socketio_internals.has_subscribers(sio))
    assert server.joblib.publisher.reach() is None


async def test_events_of_empty_rooms_are_not_sent_without_other_replicas() -> None:
    """As soon as there is one, it may have sockets in any room."""
    pubsub = PubSub(lambda *_: None, asyncio.Event().wait)
    sio = socketio.AsyncServer(async_mode="asgi", client_manager=PubSubManager(pubsub))
    await sio.manager.connect("eio", socketio_internals.NAMESPACE)
    assert socketio_internals.has_subscribers(sio)
    assert not socketio_internals.may_have_members(sio, ["room:attic"])
    pubsub.receive('other 1 1 {"hello": true}')
    assert socketio_internals.may_have_members(sio, ["room:attic"])


def test_handlers_are_found() -> None:
    """A handler is a function or a method of a namespace class; a function comes first."""
    sio = socketio.AsyncServer(async_mode="asgi")
    assert socketio_internals.find_handler(sio, "ping_me") is None

    class Own(socketio.AsyncNamespace):
        async def on_ping_me(self, sid: str) -> str:
            return "namespace"

    sio.register_namespace(Own("/"))
    handler = socketio_internals.find_handler(sio, "ping_me")
    assert asyncio.run(handler("sid")) == "namespace"
    sio.on("ping_me", print)
    assert socketio_internals.find_handler(sio, "ping_me") is print


async def test_a_websocket_closes(server: LiveServer) -> None:
    """The client notices the end of the connection."""
    assert server.rooms is not None
    socket = await server.connect()
    await socketio_internals.close_sockets(server.rooms.sio)
    async with asyncio.timeout(30):
        await socket.client.wait()
    assert not socketio_internals.has_subscribers(server.rooms.sio)


async def test_an_open_poll_ends(server: LiveServer) -> None:
    """It gets a packet without content, and the next poll a 400."""
    assert server.rooms is not None
    client, url = await server.rest(), "/socket.io/?EIO=4&transport=polling"
    opened = json.loads((await client.get(url)).text[1:])
    url += f"&sid={opened['sid']}"
    poll = asyncio.create_task(client.get(url))
    waiting = server.rooms.sio.eio.sockets[opened["sid"]].queue
    await until(lambda: waiting._getters)
    await socketio_internals.close_sockets(server.rooms.sio)
    assert (await poll).text == "6"
    assert (await client.get(url)).status_code == 400


class QueueManager(MessageManager):
    """A manager whose messages go to the queue of another manager."""

    def __init__(self) -> None:
        super().__init__()
        self.incoming: asyncio.Queue[str] = asyncio.Queue()
        self.other = self
        self.handled: list[tuple[str, object]] = []

    def send(self, text: str) -> None:
        """Queue a message for the other manager."""
        self.other.incoming.put_nowait(text)

    async def receive(self) -> AsyncIterator[str]:
        """Return the messages of the other manager."""
        while True:
            yield await self.incoming.get()

    async def _handle_emit(self, message: dict[str, object]) -> None:
        self.handled.append((str(message["event"]), message["data"]))


async def test_messages_pass_between_processes() -> None:
    """An event that one server emits reaches the manager of another one, by `send` and `receive`."""
    here, there = QueueManager(), QueueManager()
    here.other = there
    servers = [socketio.AsyncServer(async_mode="asgi", client_manager=manager) for manager in (here, there)]
    there.initialize()
    try:
        await servers[0].emit("greeting", {"n": 1}, room="lab")
        await until(lambda: there.handled == [("greeting", [{"n": 1}])])
    finally:
        there.thread.cancel()


class Untouched(dict[str, str]):
    """The sockets of a room that must not be searched."""

    def __contains__(self, sid: object) -> bool:
        """Fail."""
        raise AssertionError("looked for a socket in a room that it has not joined")


class Alone(MessageManager):
    """A manager without other processes."""

    def send(self, text: str) -> None:
        """Send nothing."""

    async def receive(self) -> AsyncIterator[str]:
        """Receive nothing."""
        return
        yield


def shape_of(manager: socketio.AsyncManager, sids: list[str]) -> dict[object, list[int]]:
    """Return the rooms and their sockets, each socket as its number."""
    number = {sid: place for place, sid in enumerate(sids)}
    rooms = manager.rooms.get("/", {})
    return {number.get(room, room): [number[sid] for sid in members] for room, members in rooms.items()}


async def connect(manager: socketio.AsyncManager, eio_sid: str) -> str:
    """Add an accepted socket to a manager, and return its id. Older versions do so in one step."""
    if not hasattr(manager, "pre_connect"):
        return str(await manager.connect(eio_sid, "/"))
    sid = await manager.pre_connect(eio_sid, "/")
    await manager.connect(sid, "/")
    return str(sid)


async def test_a_disconnect_looks_only_into_own_rooms() -> None:
    """It costs the same with thousands of other rooms, and leaves the same as python-socketio's own."""
    managers = Alone(), socketio.AsyncManager()
    sids: tuple[list[str], list[str]] = ([], [])
    for manager, found in zip(managers, sids, strict=True):
        manager.set_server(socketio.AsyncServer(async_mode="asgi"))
        for number in range(3):
            found.append(await connect(manager, f"eio-{number}"))
            for room in ("all", f"room-{number}", "left"):
                manager.basic_enter_room(found[-1], "/", room)
            manager.basic_leave_room(found[-1], "/", "left")
    mine, theirs = managers
    for left in (2, 0, 1):
        mine.rooms["/"]["other"] = Untouched()
        for manager, found in zip(managers, sids, strict=True):
            manager.pre_disconnect(found[left], "/")
            manager.basic_disconnect(found[left], "/")
        del mine.rooms["/"]["other"]
        assert shape_of(mine, sids[0]) == shape_of(theirs, sids[1])
    assert (mine.rooms["/"], theirs.rooms) == ({}, {})
    assert (mine.pending_disconnect, mine.rooms_of) == ({}, {})


async def test_managers_that_are_not_as_expected_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a disconnect is that of python-socketio, with the same rooms left."""
    assert LocalManager.is_fast
    assert is_fast_right()
    leave = socketio.AsyncManager.basic_disconnect

    def leave_slowly(manager: LocalManager, sid: str, namespace: str, **options: object) -> None:
        if manager.is_fast:
            raise KeyError(namespace)
        leave(manager, sid, namespace, **options)

    monkeypatch.setattr(socketio.AsyncManager, "basic_disconnect", leave_slowly)
    assert not is_fast_right()
    monkeypatch.setattr(socketio.AsyncManager, "basic_disconnect", leave)
    monkeypatch.setattr(LocalManager, "is_fast", False)
    manager = Alone()
    manager.set_server(socketio.AsyncServer(async_mode="asgi"))
    sids = [await connect(manager, f"eio-{number}") for number in range(2)]
    for sid in sids:
        manager.basic_enter_room(sid, "/", "lab")
    manager.basic_disconnect(sids[0], "/")
    assert shape_of(manager, sids) == {None: [1], 1: [1], "lab": [1]}
