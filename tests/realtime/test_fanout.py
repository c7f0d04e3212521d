"""Events to many sockets: encoded once, in order for each client, and no client waits for a slow one."""

import asyncio
from typing import Any

import pytest
import socketio
from engineio.async_socket import AsyncSocket
from engineio.packet import MESSAGE, Packet
from waiting import until

from realtime.sockets import LiveServer
from zndraw_joblib.server.realtime.socketio_internals import LocalManager, Outbox, is_poll_right


class Browser:
    """A client of a Socket.IO server, whose WebSocket may be full: then a message waits for `writable`."""

    def __init__(self, sio: socketio.AsyncServer, eio_sid: str) -> None:
        self.texts: list[str] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.socket = sio.eio.sockets[eio_sid] = AsyncSocket(sio.eio, eio_sid)
        self.socket.connected = self.socket.upgraded = True
        self.writer: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message as uvicorn does."""
        await self.writable.wait()
        self.texts.append(message["text"])

    async def write(self) -> None:
        """Send packets as python-engineio's task does."""
        while packets := await self.socket.poll():
            for packet in packets:
                await self.send({"text": packet.encode()})

    async def join(self, manager: LocalManager, room: str) -> None:
        """Connect by a WebSocket, and join a room."""
        await manager.add_outbox(self.socket, self.send)
        if hasattr(manager, "pre_connect"):
            sid = await manager.pre_connect(self.socket.sid, "/")
            await manager.connect(sid, "/")
        else:  # older versions
            sid = await manager.connect(self.socket.sid, "/")
        manager.basic_enter_room(sid, "/", room)
        self.writer = asyncio.create_task(self.write())
        await asyncio.sleep(0)


async def two_browsers() -> tuple[socketio.AsyncServer, Browser, Browser]:
    """Return a server with two clients in the room ``lab``."""
    sio = socketio.AsyncServer(async_mode="asgi", client_manager=LocalManager())
    browsers = Browser(sio, "one"), Browser(sio, "two")
    for browser in browsers:
        await browser.join(sio.manager, "lab")
    return sio, *browsers


async def stop(*browsers: Browser) -> None:
    """End the tasks of clients."""
    for browser in browsers:
        browser.socket.queue.put_nowait(None)
        browser.writable.set()
        assert browser.writer is not None
        await browser.writer


def text_of(number: int) -> str:
    """Return an event as it is sent."""
    return f'42["event",{{"n":{number}}}]'


async def test_an_event_is_encoded_once_and_sent_at_once() -> None:
    """Each client that waits for packets has the same text when `emit` returns."""
    sio, one, two = await two_browsers()
    encoded = 0

    class Counted(sio.packet_class):  # type: ignore[name-defined, misc]
        def encode(self) -> Any:
            nonlocal encoded
            encoded += 1
            return super().encode()

    sio.packet_class = Counted
    await sio.emit("event", {"n": 1}, room="lab")
    assert one.texts == two.texts == [text_of(1)]
    assert encoded == 1
    await stop(one, two)


async def test_a_slow_client_does_not_hold_others() -> None:
    """It gets all events in their order later."""
    sio, slow, other = await two_browsers()
    slow.writable.clear()
    for number in range(5):
        await sio.emit("event", {"n": number}, room="lab")
    assert (slow.texts, other.texts) == ([], [text_of(number) for number in range(5)])
    slow.writable.set()
    await until(lambda: slow.texts == other.texts)
    await sio.emit("event", {"n": 5}, room="lab")
    await until(lambda: slow.texts == other.texts == [text_of(number) for number in range(6)])
    await stop(slow, other)


async def test_an_event_follows_the_packets_before_it() -> None:
    """Packets that wait in the queue, such as acknowledgements, are sent first."""
    sio, one, two = await two_browsers()
    one.socket.queue.put_nowait(Packet(MESSAGE, "30[]"))
    await sio.emit("event", {"n": 1}, room="lab")
    await until(lambda: one.texts == ["430[]", text_of(1)])
    assert two.texts == [text_of(1)]
    await stop(one, two)


async def test_clients_by_polling_and_by_websocket_get_the_same_events(server: LiveServer) -> None:
    """An event to a room is the same for each transport, in the same order."""
    assert server.rooms is not None
    sockets = [await server.connect("lab"), await server.connect("lab", transports=["polling"])]
    events = [("counted", {"n": number}) for number in range(10)]
    for name, event in events:
        await server.rooms.sio.emit(name, event, room="room:lab")
    for socket in sockets:
        assert await socket.new_events() == events


async def test_another_engineio_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a client's `poll` does something else, events go through python-socketio's own `emit`."""
    sio, one, two = await two_browsers()
    assert isinstance(one.socket.poll.__self__, Outbox)
    await stop(one, two)

    async def poll(_: AsyncSocket) -> list[Any]:
        return []

    monkeypatch.setattr(AsyncSocket, "poll", poll)
    assert not await is_poll_right(AsyncSocket(sio.eio, "probe"))
    monkeypatch.undo()
    assert await is_poll_right(AsyncSocket(sio.eio, "probe"))
    sio = socketio.AsyncServer(async_mode="asgi", client_manager=LocalManager())
    sio.manager.can_send = False
    browser = Browser(sio, "one")
    await browser.join(sio.manager, "lab")
    assert browser.socket.poll.__self__ is browser.socket
    await sio.emit("event", {"n": 1}, room="lab")
    await until(lambda: browser.texts == [text_of(1)])
    await stop(browser)
