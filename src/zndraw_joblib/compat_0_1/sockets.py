"""Socket.IO wrappers that register handlers by the model of an event."""

from collections.abc import Callable
from typing import Any

from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.compat_0_1 import events
from zndraw_joblib.worker.handlers import is_socketio_client

_MODELS = {
    model.event_name: model
    for model in (events.ProviderRequest, events.TaskAvailable, events.TaskStatusEvent)
}


def by_model(tsio: Any) -> Any:
    """Return a Socket.IO client as it is, and a wrapper of one as `ByModel`."""
    is_plain = tsio is None or isinstance(tsio, Realtime) or is_socketio_client(tsio)
    return tsio if is_plain else ByModel(tsio)


class ByModel:
    """A wrapper of a Socket.IO client, whose `on` gets models in place of the names of their events."""

    def __init__(self, tsio: Any) -> None:
        self._tsio = tsio

    def on(self, event: str, handler: Callable[..., Any]) -> Any:
        """Register a handler."""
        return self._tsio.on(_MODELS.get(event, event), handler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tsio, name)
