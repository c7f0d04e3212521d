"""Socket.IO of workers: event handlers that workers share, and the rooms that they join."""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from weakref import finalize

from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.client.retry import describe
from zndraw_joblib.wire.events import (
    Event,
    JoinJobRoom,
    JoinProviderRoom,
    LeaveJobRoom,
    LeaveProviderRoom,
    ProviderRequest,
    TaskAvailable,
    TaskStatusEvent,
)
from zndraw_joblib.wire.problems import WorkerNotFound, problem_for
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.tasks import HeldTasks

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
            installed = self._installed.get(event)
            # A handler that the host has set since replaced the installed one.
            if installed is None or _handlers_of(tsio).get(event) is not installed.placed:
                self._installed[event] = _install(tsio, event, self._call)

    def remove(self, tsio: Any, member: Handlers) -> None:
        """Stop calling the handlers of a member."""
        with _lock:
            self._members = {key: handlers for key, handlers in self._members.items() if key != id(member)}
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


# The worker's Socket.IO rooms. They only save time: without events the worker polls.

log = logging.getLogger(__name__)

Acknowledge = Callable[..., None]
RoomKey = tuple[str, str]


class Subscriptions:
    """Joins the rooms of the worker's jobs and providers, also after a reconnect, and handles their events.

    `wake` is set when a task waits to be claimed, `wake_providers` when a provider request does.
    `heartbeat_due` is set when the connection is lost, because the server then removes a silent worker. A
    cancelled task is marked in `held`.

    `tsio` is a `Realtime`, a `socketio.Client`, or a wrapper with `on(class, handler)` and `emit(event)`. Its
    events are handled from the first join until `close`.
    """

    def __init__(self, tsio: Any, held: HeldTasks) -> None:
        self.wake = threading.Event()
        self.wake_providers = threading.Event()
        self.heartbeat_due = threading.Event()
        self._held = held
        self._send = _sender_of(tsio)
        self._joined: dict[RoomKey, tuple[Event, Event]] = {}
        self._refused: set[RoomKey] = set()
        self._tsio = tsio
        self._shared: SharedHandlers | None = None
        self._handlers = {
            "connect": self.on_connect,
            "disconnect": self._on_disconnect,
            TaskAvailable.event_name: self._on_task_available,
            TaskStatusEvent.event_name: self._on_task_status,
            ProviderRequest.event_name: self._on_provider_request,
        }

    def close(self) -> None:
        """Stop handling events until the next join; the client keeps no handlers of this worker."""
        self._joined.clear()
        self._refused.clear()
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.remove(self._tsio, self._handlers)

    def join(self, job_name: str, worker_id: UUID) -> None:
        """Join the room of a job's workers."""
        join = JoinJobRoom(job_name=job_name, worker_id=str(worker_id))
        self._join(("tasks", job_name), join, LeaveJobRoom(job_name=job_name, worker_id=str(worker_id)))

    def leave(self, job_name: str) -> None:
        """Leave the room of a job's workers."""
        self._leave(("tasks", job_name))

    def join_provider(self, provider_name: str, worker_id: UUID) -> None:
        """Join the room of a provider."""
        join = JoinProviderRoom(provider_name=provider_name, worker_id=str(worker_id))
        leave = LeaveProviderRoom(provider_name=provider_name, worker_id=str(worker_id))
        self._join(("requests", provider_name), join, leave)

    def leave_provider(self, provider_name: str) -> None:
        """Leave the room of a provider."""
        self._leave(("requests", provider_name))

    def _join(self, key: RoomKey, join: Event, leave: Event) -> None:
        if self._shared is None and self._tsio is not None:
            self._shared = share_handlers(self._tsio, self._handlers)
        self._joined[key] = join, leave
        self._emit_join(key, join)

    def _leave(self, key: RoomKey) -> None:
        self._refused.discard(key)
        joined = self._joined.pop(key, None)
        if joined is not None:
            self._emit(joined[1])

    def _emit_join(self, key: RoomKey, join: Event) -> None:
        def acknowledge(*answer: Any) -> None:
            self._on_join_answer(key, join, *answer)

        self._emit(join, acknowledge)

    def _on_join_answer(self, key: RoomKey, join: Event, answer: Any = None, *_: Any) -> None:
        """Handle the server's answer to a join: a problem, or anything else for a success."""
        if not self._is_current(key, join):
            return
        status = answer.get("status") if isinstance(answer, Mapping) else None
        if not isinstance(status, int):
            self._refused.discard(key)
            return
        problem = problem_for(status, answer)
        if isinstance(problem, WorkerNotFound):
            self.heartbeat_due.set()
        elif key not in self._refused:
            self._refused.add(key)
            log.warning("Socket.IO: the server sends no events for %s of %s: %s", *key, describe(problem))

    def _is_current(self, key: RoomKey, join: Event) -> bool:
        joined = self._joined.get(key)
        return joined is not None and joined[0] == join

    def on_connect(self, *_: Any) -> None:
        """Join again after the connection was made, and let the worker ask for what it has missed."""
        for key, (join, _leave) in list(self._joined.items()):
            if self._is_current(key, join):
                self._emit_join(key, join)
        self.wake.set()
        self.wake_providers.set()

    def _on_disconnect(self, *_: Any) -> None:
        self.heartbeat_due.set()

    def _on_task_available(self, *_: Any) -> None:
        self.wake.set()

    def _on_provider_request(self, *_: Any) -> None:
        self.wake_providers.set()

    def _on_task_status(self, event: Any = None, *_: Any) -> None:
        if isinstance(event, TaskStatusEvent):
            event = event.model_dump(mode="json")
        if isinstance(event, Mapping) and event.get("status") == TaskStatus.CANCELLED:
            self._held.cancel(str(event.get("id")), str(event.get("worker_id")))

    def _emit(self, event: Event, acknowledge: Acknowledge | None = None) -> None:
        try:
            self._send(event, acknowledge)
        except Exception as error:
            log.debug("Socket.IO: %s not sent: %s", event.event_name, describe(error))


def _sender_of(tsio: Any) -> Callable[[Event, Acknowledge | None], None]:
    """Return a function that sends an event; a wrapper's `emit` may take no callback."""
    if tsio is None:
        return lambda event, acknowledge: None
    if isinstance(tsio, Realtime):
        return tsio.emit
    if is_socketio_client(tsio):
        return lambda event, acknowledge: tsio.emit(
            event.event_name, event.model_dump(mode="json"), callback=acknowledge
        )
    return lambda event, acknowledge: tsio.emit(event)
