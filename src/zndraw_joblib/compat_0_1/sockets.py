"""Socket.IO wrappers that register handlers by the class of an event of version 0.1.x."""

from collections.abc import Callable
from typing import Any

from zndraw_joblib.compat_0_1 import events
from zndraw_joblib.worker.subscriptions import is_wrapper

_OLD: dict[Any, Any] = {
    cls.__bases__[0]: cls for cls in (events.ProviderRequest, events.TaskAvailable, events.TaskStatusEvent)
}


def by_model(tsio: Any) -> Any:
    """Return a Socket.IO client as it is, and a wrapper of one as `ByModel`."""
    return ByModel(tsio) if is_wrapper(tsio) else tsio


class ByModel:
    """A wrapper of a Socket.IO client, whose `on` gets the classes of version 0.1.x, with texts as ids."""

    def __init__(self, tsio: Any) -> None:
        self._tsio = tsio

    def on(self, event: Any, handler: Callable[..., Any]) -> Any:
        """Register a handler."""
        return self._tsio.on(_OLD.get(event, event), handler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tsio, name)
