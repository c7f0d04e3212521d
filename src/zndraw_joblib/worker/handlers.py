"""Share the event handlers of a Socket.IO client between several workers."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from zndraw_joblib.worker.realtime import Realtime

Handlers = Mapping[str, Callable[..., None]]
_RESERVED = frozenset({"connect", "connect_error", "disconnect"})
_lock = threading.Lock()
_shared: "WeakKeyDictionary[Any, SharedHandlers]" = WeakKeyDictionary()


class SharedHandlers:
    """The handlers of all workers of one client, behind one handler for each event.

    `tsio` is a `Realtime`, a `socketio.Client`, or a wrapper with `on(event, handler)`. The host's own
    handlers still run: python-socketio keeps one handler for each event, so the new handler calls the former
    one. When the last worker leaves, the client gets its former handlers back.
    """

    def __init__(self) -> None:
        self._members: dict[int, Handlers] = {}
        self._installed: dict[str, Callable[..., Any]] = {}

    def add(self, tsio: Any, member: Handlers) -> None:
        """Call the handlers of a member, by their events, until `remove`."""
        with _lock:
            self._members = {**self._members, id(member): member}
            for event in member:
                if event not in self._installed:
                    self._installed[event] = _install(tsio, event, self._call)

    def remove(self, tsio: Any, member: Handlers) -> None:
        """Stop calling the handlers of a member."""
        with _lock:
            self._members = {key: known for key, known in self._members.items() if key != id(member)}
            if not self._members:
                for event, handler in list(self._installed.items()):
                    if _uninstall(tsio, event, handler):
                        del self._installed[event]

    def _call(self, event: str, *args: Any) -> None:
        for member in self._members.values():
            member[event](*args)


def shared_handlers(tsio: Any) -> SharedHandlers:
    """Return the handlers that all workers of a client share."""
    with _lock:
        try:
            return _shared.setdefault(tsio, SharedHandlers())
        except TypeError:  # a wrapper that has no hash, or allows no weak reference
            return SharedHandlers()


def is_socketio_client(tsio: Any) -> bool:
    """Return whether `tsio` is a client of python-socketio."""
    # It does not import socketio, which takes half a second: if `tsio` is a client, the module is loaded.
    cls = getattr(sys.modules.get("socketio"), "Client", None)
    return cls is not None and isinstance(tsio, cls)


def _install(tsio: Any, event: str, call: Callable[..., None]) -> Callable[..., Any]:
    if isinstance(tsio, Realtime):
        handler: Callable[..., Any] = lambda *args: call(event, *args)  # noqa: E731
    else:
        former = _former_handler(tsio, event)

        def handler(*args: Any) -> Any:
            call(event, *args)
            return former(*args) if former else None

        handler.former = _handlers_of(tsio).get(event)  # type: ignore[attr-defined]
    tsio.on(event, handler)
    return handler


def _uninstall(tsio: Any, event: str, handler: Callable[..., Any]) -> bool:
    """Remove a handler; return whether it was removed. A wrapper does not allow that."""
    if isinstance(tsio, Realtime):
        tsio.off(event, handler)
        return True
    handlers = _handlers_of(tsio)
    if not is_socketio_client(tsio):
        return False
    if handlers.get(event) is handler:
        former = handler.former  # type: ignore[attr-defined]
        if former is not None:
            handlers[event] = former
        else:
            del handlers[event]
            if not handlers:
                del tsio.handlers["/"]  # it would hide the host's handlers of all namespaces
    return True


def _handlers_of(tsio: Any) -> dict[str, Callable[..., Any]]:
    handlers: dict[str, Callable[..., Any]] = getattr(tsio, "handlers", {}).get("/", {})
    return handlers


def _former_handler(tsio: Any, event: str) -> Callable[..., Any] | None:
    """Return the handler that now runs for an event, which a new handler would replace."""
    handlers = _handlers_of(tsio)
    if event in handlers:
        return handlers[event]
    if event not in _RESERVED and "*" in handlers:
        return lambda *args: handlers["*"](event, *args)
    namespace = getattr(tsio, "namespace_handlers", {}).get("/")
    return (lambda *args: namespace.trigger_event(event, *args)) if namespace else None
