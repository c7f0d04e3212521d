"""Events over Socket.IO, by a `socketio.AsyncServer` or a wrapper whose `emit` takes models."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import socketio
from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.events import Emission, audience
from zndraw_joblib.server.realtime import socketio_internals

logger = logging.getLogger(__name__)
_EMIT_SECONDS = 5.0


class SocketIoPublisher:
    """A publisher that sends each event to its room, in order. An event that cannot be sent is logged.

    `tsio` is a `socketio.AsyncServer`, or any object whose ``emit(model, room=…)`` takes a pydantic model.
    `rooms` is the `socketio.AsyncServer` whose sockets have joined the rooms, if `tsio` is not one itself.
    """

    def __init__(self, tsio: Any = None) -> None:
        self._tsio = tsio
        self.rooms: Any = tsio if isinstance(tsio, socketio.AsyncServer) else None

    @property
    def is_open(self) -> bool:
        """Whether there is a server to send events with."""
        return self._tsio is not None

    def open(self, sio: Any) -> None:
        """Send events to the rooms of `sio`, and with `sio` itself if there is no `tsio`."""
        self._tsio = sio if self._tsio is None else self._tsio
        self.rooms = sio

    @property
    def has_subscribers(self) -> bool:
        """Whether a socket of any process may receive an event."""
        if self.rooms is not self._tsio:
            return True
        return self.rooms is not None and socketio_internals.has_subscribers(self.rooms)

    async def __call__(self, emissions: Iterable[Emission]) -> None:
        """Send the events in their order."""
        for emission in emissions:
            try:
                await self._send(emission)
            except Exception:
                logger.exception("Event not sent: event=%s room=%s", emission.event.event_name, emission.room)

    async def _send(self, emission: Emission) -> None:
        event, room = emission
        rooms = audience(emission)
        if self.rooms is not self._tsio:
            await self._tsio.emit(event, room=room)
            rooms = rooms[1:]
        if self.rooms is not None and rooms and socketio_internals.may_have_members(self.rooms, rooms):
            await self.rooms.emit(event.event_name, to_jsonable_python(event), room=rooms)


async def emit(tsio: Any, emissions: Iterable[Emission]) -> None:
    """Send each event to its room, in order; do nothing if `tsio` is None.

    `tsio` is a `socketio.AsyncServer`, or any object whose ``emit(model, room=…)`` takes a pydantic model. An
    event that cannot be sent is logged, and so are those that are not sent within 5 s together: they are
    hints, and the changes that they announce are committed.
    """
    if tsio is None:
        return
    publisher, listed, sent = SocketIoPublisher(tsio), list(emissions), 0
    try:
        async with asyncio.timeout(_EMIT_SECONDS):
            for emission in listed:
                await publisher([emission])
                sent += 1
    except TimeoutError:
        logger.warning("Events not sent within %g s: events=%d", _EMIT_SECONDS, len(listed) - sent)
