"""Events over Socket.IO, by a plain `socketio.AsyncServer` or a wrapper that takes models."""

import logging
from collections.abc import Iterable
from typing import Any

import socketio
from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.events import Emission

logger = logging.getLogger(__name__)


async def emit(tsio: Any, emissions: Iterable[Emission]) -> None:
    """Send each emission to its room, in order; without `tsio`, nothing.

    `tsio` is a `socketio.AsyncServer`, or anything whose ``emit(model, room=…)`` takes a pydantic
    model. What cannot be sent is logged: an event is a hint, what it tells of is committed.
    """
    if tsio is None:
        return
    for event, room in emissions:
        try:
            if isinstance(tsio, socketio.AsyncServer):
                await tsio.emit(event.event_name, to_jsonable_python(event), room=room)
            else:
                await tsio.emit(event, room=room)
        except Exception:
            logger.exception("%s was not sent to %s", event.event_name, room)
