"""The worker's Socket.IO rooms. They only save time: without events the worker polls."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from zndraw_joblib.client.realtime import Realtime
from zndraw_joblib.client.retry import describe
from zndraw_joblib.contract.events import (
    Event,
    JoinJobRoom,
    JoinProviderRoom,
    LeaveJobRoom,
    LeaveProviderRoom,
    ProviderRequest,
    TaskAvailable,
    TaskStatusEvent,
)
from zndraw_joblib.contract.problems import WorkerNotFound, problem_for
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.handlers import SharedHandlers, is_socketio_client, share_handlers
from zndraw_joblib.worker.reports import HeldTasks

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
            "connect": self._on_connect,
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

    def _on_connect(self, *_: Any) -> None:
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
