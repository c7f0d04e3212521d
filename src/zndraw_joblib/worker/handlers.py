"""Share the event handlers of a Socket.IO client between several workers."""

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.contract.events import ProviderRequest, TaskAvailable, TaskStatusEvent

Handlers = Mapping[str, Callable[..., None]]
# The events for which a wrapper registers handlers by their classes.
_CLASSES = {cls.event_name: cls for cls in (ProviderRequest, TaskAvailable, TaskStatusEvent)}
_RESERVED = frozenset({"connect", "connect_error", "disconnect"})
_lock = threading.Lock()
_shared: "dict[int, SharedHandlers]" = {}


@dataclass(frozen=True, slots=True)
class _Installed:
    """A handler of an event; `placed` is what the client has for it: a wrapper may put its own around it."""

    handler: Callable[..., Any]
    placed: Callable[..., Any] | None
    former: Callable[..., Any] | None


class SharedHandlers:
    """The handlers of all workers of one client, behind one handler for each event.

    `tsio` is a `Realtime`, a `socketio.Client`, or a wrapper whose `on` takes the class of an event. The
    host's own handlers still run: python-socketio keeps one handler for each event, so the new handler calls
    the former one. When the last worker leaves, the client gets its former handlers back.
    """

    def __init__(self, key: object, *, is_kept: bool) -> None:
        self._key = id(key)
        self._kept = key if is_kept else None
        self._members: dict[int, Handlers] = {}
        self._installed: dict[str, _Installed] = {}

    def add(self, tsio: Any, member: Handlers) -> None:
        """Call the handlers of a member, by their events, until `remove`. The caller has the lock."""
        self._members = {**self._members, id(member): member}
        for event in member:
            known = self._installed.get(event)
            # A handler that the host has set since replaced the known one.
            if known is None or _handlers_of(tsio).get(event) is not known.placed:
                self._installed[event] = _install(tsio, event, self._call)

    def remove(self, tsio: Any, member: Handlers) -> None:
        """Stop calling the handlers of a member."""
        with _lock:
            self._members = {key: known for key, known in self._members.items() if key != id(member)}
            if not self._members:
                for event, installed in list(self._installed.items()):
                    if _uninstall(tsio, event, installed):
                        del self._installed[event]
            if self._kept is not None and not self._installed:
                _shared.pop(self._key, None)

    def _call(self, event: str, *args: Any) -> None:
        for member in self._members.values():
            member[event](*args)


def share_handlers(tsio: Any, member: Handlers) -> SharedHandlers:
    """Call the handlers of a member; return what the workers of the client share, to `remove` it again.

    Several wrappers of a client share its handlers if they have its `handlers`.
    """
    handlers = getattr(tsio, "handlers", None)
    key = handlers if isinstance(handlers, dict) else tsio
    with _lock:
        shared = _shared.get(id(key)) or _new_shared(key)
        shared.add(tsio, member)
    return shared


def _new_shared(key: Any) -> SharedHandlers:
    # By its id, because a wrapper may have no hash. A key without weak references is kept: its id stays its.
    try:
        finalize(key, _shared.pop, id(key), None).atexit = False
        is_kept = False
    except TypeError:
        is_kept = True
    shared = _shared[id(key)] = SharedHandlers(key, is_kept=is_kept)
    return shared


def is_socketio_client(tsio: Any) -> bool:
    """Return whether `tsio` is a client of python-socketio."""
    # It does not import socketio, which takes half a second: if `tsio` is a client, the module is loaded.
    cls = getattr(sys.modules.get("socketio"), "Client", None)
    return cls is not None and isinstance(tsio, cls)


def is_wrapper(tsio: Any) -> bool:
    """Return whether `tsio` is a host's wrapper, which takes events and their classes, not names and data."""
    return tsio is not None and not isinstance(tsio, Realtime) and not is_socketio_client(tsio)


def _install(tsio: Any, event: str, call: Callable[..., None]) -> _Installed:
    before = _handlers_of(tsio).get(event)
    former = None if isinstance(tsio, Realtime) else _former_handler(tsio, event)

    def handler(*args: Any) -> Any:
        call(event, *args)
        return former(*args) if former else None

    tsio.on(_CLASSES.get(event, event) if is_wrapper(tsio) else event, handler)
    return _Installed(handler, _handlers_of(tsio).get(event), before)


def _uninstall(tsio: Any, event: str, installed: _Installed) -> bool:
    """Remove a handler; return whether it was removed. A wrapper may hide its handlers."""
    if isinstance(tsio, Realtime):
        tsio.off(event, installed.handler)
        return True
    if installed.placed is None:
        return False
    handlers = _handlers_of(tsio)
    if handlers.get(event) is installed.placed:
        if installed.former is not None:
            handlers[event] = installed.former
        else:
            del handlers[event]
            if not handlers:
                tsio.handlers.pop("/", None)  # it would hide the host's handlers of all namespaces
    return _handlers_of(tsio).get(event) is not installed.placed


def _handlers_of(tsio: Any) -> dict[str, Callable[..., Any]]:
    namespaces = getattr(tsio, "handlers", None)
    handlers = namespaces.get("/") if isinstance(namespaces, dict) else None
    return handlers if isinstance(handlers, dict) else {}


def _former_handler(tsio: Any, event: str) -> Callable[..., Any] | None:
    """Return the handler that now runs for an event, which a new handler would replace."""
    handlers = _handlers_of(tsio)
    if event in handlers:
        return handlers[event]
    if event not in _RESERVED and "*" in handlers:
        return lambda *args: handlers["*"](event, *args)
    namespace = getattr(tsio, "namespace_handlers", {}).get("/")
    return (lambda *args: namespace.trigger_event(event, *args)) if namespace else None
