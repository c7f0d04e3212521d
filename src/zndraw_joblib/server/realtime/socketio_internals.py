"""The undocumented parts of python-socketio and python-engineio that the server relies on.

All have public names, but `_publish` and `_listen`, which a client manager has to define.
"""

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from operator import contains
from time import time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from engineio.exceptions import QueueEmpty
from engineio.packet import MESSAGE, NOOP, Packet
from socketio import AsyncManager, Server
from socketio import packet as socketio_packet
from socketio.async_pubsub_manager import AsyncPubSubManager

from zndraw_joblib.server.process.ports import Reaches, reaches_all

logger = logging.getLogger(__name__)
NAMESPACE = "/"
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Outbox:
    """Sends the packets of a client that is connected by WebSocket, in their order.

    python-engineio puts each packet in a queue, from which a task of the client sends it. While that task
    waits for a packet, an event goes to the WebSocket without the queue and the task: that is most of what
    an event to many clients costs. A client that does not read gets its events through the queue.
    """

    def __init__(self, client: Any, send: Send) -> None:
        self._client = client
        self._send = send
        self._is_waiting = False
        self._unfinished: asyncio.Task[None] | None = None

    def is_open(self, oldest_ping: float) -> bool:
        """Return whether the client is connected, and has responded to each ping before this time."""
        client = self._client
        return not (client.closed or client.closing or (client.last_ping and client.last_ping < oldest_ping))

    async def poll(self) -> list[Any]:
        """Wait for packets of the queue and return them; return none at the end of the connection.

        It replaces the client's own `poll`.
        """
        queue, server = self._client.queue, self._client.server
        self._is_waiting = True
        try:
            async with asyncio.timeout(server.ping_interval + server.ping_timeout):
                packets = [await queue.get()]
        except (TimeoutError, asyncio.CancelledError) as error:
            raise QueueEmpty from error
        finally:
            self._is_waiting = False
        queue.task_done()
        if self._unfinished is not None:
            await asyncio.wait([self._unfinished])
            self._unfinished = None
        while packets[-1] is not None and not queue.empty():
            packets.append(queue.get_nowait())
            queue.task_done()
        if packets[-1] is None and len(packets) > 1:
            queue.put_nowait(packets.pop())
        return [] if packets == [None] else packets

    def put(self, packet: Any, message: dict[str, Any]) -> None:
        """Send a packet, whose ASGI message this is, after those before it. It does not wait."""
        client = self._client
        is_next = self._is_waiting and client.upgraded and client.queue.empty()
        if not is_next or (self._unfinished is not None and not self._unfinished.done()):
            client.queue.put_nowait(packet)
            return
        steps = self._send(message).__await__()
        try:
            future = next(steps)
        except StopIteration:
            return
        except Exception as error:
            # The client's own tasks notice that the connection is lost.
            logger.debug("An event was not sent: %r", error)
            return
        self._unfinished = asyncio.create_task(_finish(_Rest(steps, future)))


class _Rest:
    """The rest of an awaitable whose first step waits for a future."""

    def __init__(self, steps: Generator[Any, Any, None], future: Any) -> None:
        self._steps = steps
        self._future = future

    def __await__(self) -> Generator[Any, Any, None]:
        future = self._future
        with suppress(StopIteration):
            while True:
                try:
                    value = yield future
                except BaseException as error:
                    future = self._steps.throw(error)
                else:
                    future = self._steps.send(value)


async def _finish(rest: _Rest) -> None:
    with suppress(Exception):
        await rest


async def is_poll_right(client: Any) -> bool:
    """Return whether `Outbox.poll` returns the packets of a client as its own `poll` does."""
    answers = []
    try:
        for is_own in (True, False):
            probe = type(client)(client.server, "probe")
            poll = Outbox(probe, _send_nothing).poll if is_own else probe.poll
            for packet in ("first", "second", None):
                probe.queue.put_nowait(packet)
            answers.append([await poll(), await poll(), probe.queue.empty()])
    except Exception:
        return False
    return answers[0] == answers[1] == [["first", "second"], [], True]


async def _send_nothing(_: dict[str, Any]) -> None:
    """Send nothing."""


class LocalManager(AsyncManager):  # type: ignore[misc]
    """A client manager of one process that knows the rooms of each socket, and sends events without tasks.

    python-socketio looks for a socket that disconnects in all rooms, which blocks the event loop for seconds
    if thousands of sockets disconnect at once. It does so here too if its managers are not as expected. It
    also starts a task for each client that gets an event; so it does here for clients without an `Outbox`.
    """

    # Set below.
    is_fast = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rooms_of: dict[tuple[str, str], set[str | None]] = {}
        self.can_send: bool | None = None

    async def add_outbox(self, client: Any, send: Send) -> None:
        """Send events to a new client of a WebSocket by an `Outbox`, if python-engineio is as expected."""
        if self.can_send is None:
            self.can_send = await is_poll_right(client)
        if self.can_send:
            client.poll = Outbox(client, send).poll

    async def emit(
        self, event: str, data: Any, namespace: str | None, room: Any = None, *args: Any, **options: Any
    ) -> None:
        """Send an event to the sockets of rooms: it is encoded once, and no client waits for another one."""
        room = options.get("to") or room
        if not self.can_send or not isinstance(data, dict) or args or any(options.values()):
            await super().emit(event, data, namespace, room, *args, **options)
            return
        encoded = self.server.packet_class(
            socketio_packet.EVENT, namespace=namespace, data=[event, data]
        ).encode()
        if not isinstance(encoded, str):
            await super().emit(event, data, namespace, room)
            return
        packet, sockets = Packet(MESSAGE, encoded), self.server.eio.sockets
        message = {"type": "websocket.send", "bytes": None, "text": packet.encode()}
        oldest_ping = time() - self.server.eio.ping_timeout
        others = []
        for _, eio_sid in self.get_participants(namespace or NAMESPACE, room):
            client = sockets.get(eio_sid)
            outbox = None if client is None else getattr(client.poll, "__self__", None)
            if type(outbox) is Outbox and outbox.is_open(oldest_ping):
                outbox.put(packet, message)
            else:
                # It knows what to do with a client that is gone.
                others.append(asyncio.create_task(self.server.eio.send_packet(eio_sid, packet)))
        if others:
            await asyncio.wait(others)

    def basic_enter_room(
        self, sid: str, namespace: str, room: str | None, eio_sid: str | None = None
    ) -> None:
        """Add a socket to a room; None is the room of all sockets."""
        super().basic_enter_room(sid, namespace, room, eio_sid)
        self.rooms_of.setdefault((namespace, sid), set()).add(room)

    def basic_leave_room(self, sid: str, namespace: str, room: str | None) -> None:
        """Remove a socket from a room."""
        super().basic_leave_room(sid, namespace, room)
        self.rooms_of.get((namespace, sid), set()).discard(room)

    def basic_disconnect(self, sid: str, namespace: str, **options: Any) -> None:
        """Remove a socket from its rooms, and what is stored for it."""
        if not self.is_fast:
            super().basic_disconnect(sid, namespace, **options)
            return
        rooms = self.rooms.get(namespace, {})
        own = {room: rooms[room] for room in self.rooms_of.pop((namespace, sid), ()) if room in rooms}
        self.rooms[namespace] = dict(own)
        super().basic_disconnect(sid, namespace, **options)
        for room, members in own.items():
            if not members:
                del rooms[room]
        if rooms:
            self.rooms[namespace] = rooms
        else:
            self.rooms.pop(namespace, None)


def is_fast_right() -> bool:
    """Return whether a disconnect in `LocalManager` leaves the rooms that python-socketio's own leaves."""
    own, public = LocalManager(), AsyncManager()
    try:
        for manager in (own, public):
            for sid, room in (("a", None), ("b", None), ("a", "lab"), ("b", "lab"), ("a", "attic")):
                manager.basic_enter_room(sid, NAMESPACE, room, f"connection-{sid}")
            manager.basic_disconnect("a", NAMESPACE)
        rooms = [
            {room: dict(sids) for room, sids in manager.rooms[NAMESPACE].items()} for manager in (own, public)
        ]
    except Exception:
        return False
    return rooms[0] == rooms[1]


LocalManager.is_fast = is_fast_right()


class MessageManager(AsyncPubSubManager, LocalManager, ABC):  # type: ignore[misc]
    """A client manager that exchanges its messages with other server processes by `send` and `receive`."""

    @abstractmethod
    def send(self, text: str) -> None:
        """Queue a message for the other processes, without waiting for its delivery."""

    @abstractmethod
    def receive(self) -> AsyncIterator[str | bytes]:
        """Return the messages of the other processes as they come."""

    @property
    def has_subscribers(self) -> bool:
        """Whether any process may have a connected socket."""
        return True

    @property
    def has_others(self) -> bool:
        """Whether other processes may have connected sockets."""
        return True

    @property
    def has_sockets(self) -> bool:
        """Whether this process has a connected socket."""
        return NAMESPACE in self.rooms

    def initialize(self) -> None:
        """Start to receive under a new name for this process, because a fork may have copied the manager."""
        self.host_id = uuid4().hex
        super().initialize()

    async def _publish(self, data: dict[str, Any]) -> None:
        self.send(json.dumps(data))

    async def _listen(self) -> AsyncIterator[str | bytes]:
        async for message in self.receive():
            yield message


_LOCAL = frozenset({AsyncManager, LocalManager})


def subscribers_of(sio: Any) -> Callable[[], bool]:
    """Return a function that returns whether any process may have a connected socket."""
    manager = sio.manager
    if isinstance(manager, MessageManager):
        return lambda: manager.has_subscribers
    return partial(contains, manager.rooms, NAMESPACE) if is_local(sio) else lambda: True


def has_subscribers(sio: Any) -> bool:
    """Return whether any process may have a connected socket."""
    return subscribers_of(sio)()


def is_local(sio: Any) -> bool:
    """Return whether a Socket.IO server knows only the sockets of its own process."""
    return type(sio.manager) in _LOCAL


def redis_channel(sio: Any) -> tuple[str, str] | None:
    """Return the address of the Redis of a host's client manager and its channel; None without Redis.

    The number of the database does not matter: Redis has the same channels for all.
    """
    url = getattr(sio.manager, "redis_url", None)
    if url is None:
        return None
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path, sio.manager.channel


def may_have_member(sio: Any) -> Reaches:
    """Return a function that returns whether a socket of any process may be in a room now."""
    manager = sio.manager
    if manager.has_others if isinstance(manager, MessageManager) else not is_local(sio):
        return reaches_all
    return partial(contains, manager.rooms.get(NAMESPACE, {}))


def may_have_members(sio: Any, rooms: Iterable[str]) -> bool:
    """Return whether a socket of any process may be in one of these rooms."""
    return any(map(may_have_member(sio), rooms))


def find_handler(sio: Any, event: str) -> Any:
    """Return the handler of an event, a function or a method of a namespace, or None."""
    handlers = sio.handlers.get(NAMESPACE, {})
    if event in handlers:
        return handlers[event]
    namespace = sio.namespace_handlers.get(NAMESPACE)
    if namespace is not None and hasattr(namespace, f"on_{event}"):
        return partial(namespace.trigger_event, event)
    return None


def guard_connections(sio: Any, reason_to_refuse: Callable[[], str | None]) -> None:
    """Refuse a new connection if `reason_to_refuse` returns a text, before Socket.IO handles it."""
    connect = sio.eio.handlers["connect"]

    async def guarded(eio_sid: str, environ: dict[str, Any]) -> Any:
        return reason_to_refuse() or await connect(eio_sid, environ)

    sio.eio.on("connect", guarded)


def send_directly(sio: Any) -> None:
    """Let the manager of a server, a `LocalManager`, send events to WebSockets without a task for each."""
    connect = sio.eio.handlers["connect"]

    async def with_outbox(eio_sid: str, environ: dict[str, Any]) -> Any:
        client, send = sio.eio.sockets.get(eio_sid), environ.get("asgi.send")
        if client is not None and environ.get("asgi.scope", {}).get("type") == "websocket":
            await sio.manager.add_outbox(client, send)
        return await connect(eio_sid, environ)

    sio.eio.on("connect", with_outbox)


def count_connections(sio: Any) -> int:
    """Return the number of connections of this process, with and without an identity."""
    return len(sio.eio.sockets)


def unauthenticated(sio: Any) -> set[str]:
    """Return the connections without a namespace: Socket.IO's connect handler has not accepted them."""
    manager = sio.manager
    # Older versions have no state before the handler accepts a socket.
    is_waiting = getattr(manager, "is_pre_connected", lambda *_: False)
    accepted = {
        eio_sid
        for namespace in manager.get_namespaces()
        for sid, eio_sid in manager.rooms[namespace].get(None, {}).items()
        if not is_waiting(sid, namespace)
    }
    return set(sio.eio.sockets) - accepted


async def close_sockets(sio: Any) -> None:
    """Close all connections without a disconnect packet, after which Python clients would not reconnect."""
    for eio_sid in list(sio.eio.sockets):
        await close_connection(sio, eio_sid)


async def close_connection(sio: Any, eio_sid: str) -> None:
    """Close a WebSocket; an open poll gets a packet without content, and the next poll a 400."""
    client = sio.eio.sockets.get(eio_sid)
    if client is not None:
        await client.close(wait=False, abort=True)
        await client.queue.put(None if client.upgraded else Packet(NOOP))


def is_synchronous(sio: Any) -> bool:
    """Return whether it is a server of python-socketio without coroutines."""
    return isinstance(sio, Server)
