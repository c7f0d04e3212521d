"""Events over Socket.IO, by a plain `socketio.AsyncServer` or a wrapper that takes models."""

import logging
from collections.abc import Iterable
from typing import Any

import socketio
from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.events import Emission, audience

logger = logging.getLogger(__name__)


class SocketIoPublisher:
    """Publishes events: each to its room, in order. What cannot be sent is logged: an event is a hint.

    `tsio` is a `socketio.AsyncServer`, or anything whose ``emit(model, room=…)`` takes a pydantic model.
    `rooms` is the plain server whose sockets have joined rooms of ours, where that is not `tsio` itself.
    """

    def __init__(self, tsio: Any = None) -> None:
        self._tsio = tsio
        self.rooms: Any = tsio if isinstance(tsio, socketio.AsyncServer) else None

    @property
    def is_open(self) -> bool:
        """Whether there is a server to send events through."""
        return self._tsio is not None

    def open(self, sio: Any) -> None:
        """Send events to the rooms of `sio`, through `sio` itself where there is no `tsio`."""
        self._tsio = self._tsio or sio
        self.rooms = sio

    @property
    def has_subscribers(self) -> bool:
        """Whether anybody may hear of an event, here or at another process."""
        if self.rooms is not self._tsio:
            return True
        if self.rooms is None:
            return False
        manager = self.rooms.manager
        if type(manager) is socketio.AsyncManager:
            return "/" in manager.rooms
        return bool(getattr(manager, "has_subscribers", True))

    async def __call__(self, emissions: Iterable[Emission]) -> None:
        """Send the emissions in their order."""
        for emission in emissions:
            try:
                await self._send(emission)
            except Exception:
                logger.exception("%s was not sent to %s", emission.event.event_name, emission.room)

    async def _send(self, emission: Emission) -> None:
        event, room = emission
        rooms = audience(emission)
        if self.rooms is not self._tsio:
            await self._tsio.emit(event, room=room)
            rooms = rooms[1:]
        if self.rooms is not None and self._is_joined(rooms):
            await self.rooms.emit(event.event_name, to_jsonable_python(event), room=rooms)

    def _is_joined(self, rooms: list[str]) -> bool:
        manager = self.rooms.manager
        if type(manager) is not socketio.AsyncManager:
            return bool(rooms)  # other processes have sockets of their own
        joined = manager.rooms.get("/", {})
        return any(room in joined for room in rooms)


async def emit(tsio: Any, emissions: Iterable[Emission]) -> None:
    """Send each emission to its room, in order; without `tsio`, nothing.

    `tsio` is a `socketio.AsyncServer`, or anything whose ``emit(model, room=…)`` takes a pydantic
    model. What cannot be sent is logged: an event is a hint, what it tells of is committed.
    """
    if tsio is not None:
        await SocketIoPublisher(tsio)(emissions)
