"""Events over Socket.IO, by a `socketio.AsyncServer` or a wrapper whose `emit` takes models."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import socketio
from pydantic_core import from_json, to_json, to_jsonable_python

from zndraw_joblib.server.process.ports import Reaches, reaches_all
from zndraw_joblib.server.process.pubsub import PubSub
from zndraw_joblib.server.realtime import socketio_internals
from zndraw_joblib.wire.events import Emission, Event, audience

logger = logging.getLogger(__name__)
_EMIT_SECONDS = 5.0
# Messages of python-socketio's managers are JSON objects.
_PREFIX = "event "
_EVENTS = {kind.event_name: kind for kind in Event.__subclasses__()}


class SocketIoPublisher:
    """A publisher that sends each event to its room, in order. An event that cannot be sent is logged.

    `tsio` is a `socketio.AsyncServer`, or any object whose ``emit(model, room=…)`` takes a pydantic model.
    `rooms` is the `socketio.AsyncServer` whose sockets have joined the rooms, if `tsio` is not one itself.
    If it knows only the sockets of its own process, `pubsub` carries the events to other processes.
    """

    def __init__(self, tsio: Any = None, pubsub: PubSub | None = None) -> None:
        self.tsio = tsio
        self.pubsub = pubsub
        self.rooms: Any = None
        if isinstance(tsio, socketio.AsyncServer):
            self.open(tsio)

    @property
    def is_open(self) -> bool:
        """Whether there is a server to send events with."""
        return self.tsio is not None

    def open(self, sio: Any) -> None:
        """Send events to the rooms of `sio`, and with `sio` itself if there is no `tsio`."""
        self.tsio = sio if self.tsio is None else self.tsio
        self.rooms = sio
        self._has_sockets = socketio_internals.subscribers_of(sio)

    def reach(self) -> Reaches | None:
        """Return a function that returns whether a socket of any process may be in a room.

        None if there is no socket.
        """
        if self.rooms is None or self.rooms is not self.tsio:
            return None if self.tsio is None else reaches_all
        if self._carries:
            return reaches_all
        return socketio_internals.may_have_member(self.rooms) if self._has_sockets() else None

    @property
    def _carries(self) -> bool:
        """Return whether other processes get events only by pub/sub."""
        is_connected = self.pubsub is not None and bool(self.pubsub.peers)
        return is_connected and self.rooms is not None and socketio_internals.is_local(self.rooms)

    async def __call__(self, emissions: Iterable[Emission]) -> None:
        """Send the events in their order."""
        for emission in emissions:
            if self.pubsub is not None and self._carries:
                self.pubsub.publish(_encode(emission))
            await self.send_here([emission])

    async def send_here(self, emissions: Iterable[Emission]) -> None:
        """Send events, in their order, to the sockets of this process."""
        for emission in emissions:
            try:
                await self._send(emission)
            except Exception:
                logger.exception("Event not sent: event=%s room=%s", emission.event.event_name, emission.room)

    async def _send(self, emission: Emission) -> None:
        event, room = emission
        rooms = audience(emission)
        if self.rooms is not self.tsio:
            await self.tsio.emit(event, room=room)
            rooms = rooms[1:]
        if self.rooms is not None and rooms and socketio_internals.may_have_members(self.rooms, rooms):
            await self.rooms.emit(event.event_name, to_jsonable_python(event), room=rooms)


def _encode(emission: Emission) -> str:
    event, room = emission
    return _PREFIX + to_json([event.event_name, event, room]).decode()


def decode(text: str) -> Emission | None:
    """Return the event in a message of another process; None if it is unknown, such as a newer one."""
    if not text.startswith(_PREFIX):
        return None
    try:
        name, fields, room = from_json(text.removeprefix(_PREFIX))
        return Emission(_EVENTS[name].model_validate(fields), str(room))
    except (KeyError, TypeError, ValueError) as error:
        logger.debug("Event of another process ignored: %r", error)
        return None


async def emit(tsio: Any, emissions: Iterable[Emission], *, seconds: float = _EMIT_SECONDS) -> None:
    """Send each event to its room, in order; do nothing if `tsio` is None.

    `tsio` is a `socketio.AsyncServer`, or any object whose ``emit(model, room=…)`` takes a pydantic model. An
    event that cannot be sent is logged. All events together may take `seconds`; the number of unsent ones is
    logged. Events are hints: the changes that they announce are committed.
    """
    if tsio is None:
        return
    publisher, listed, sent = SocketIoPublisher(tsio), list(emissions), 0
    try:
        async with asyncio.timeout(seconds):
            for emission in listed:
                await publisher([emission])
                sent += 1
    except TimeoutError:
        logger.warning("Events not sent within %g s: events=%d", seconds, len(listed) - sent)
