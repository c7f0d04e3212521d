"""The worker's Socket.IO: it hears of tasks sooner. Whatever fails here costs latency, and nothing else."""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.events import Event, JoinJobRoom, LeaveJobRoom, TaskAvailable
from zndraw_joblib.worker.retry import describe

log = logging.getLogger(__name__)


class Channel:
    """Joins the rooms of the worker's jobs, again after a reconnect, and sets `wake` when a task is there.

    `tsio` is a `socketio.Client`, or a wrapper with `on(event, handler)` and `emit(model)`. The host's own
    handlers stay: python-socketio keeps one for each event, so ours calls the one that was there.
    """

    def __init__(self, tsio: Any, wake: threading.Event) -> None:
        self._tsio = tsio
        self._wake = wake
        self._joined: dict[str, UUID] = {}
        if tsio is not None:
            self._listen("connect", self._rejoin)
            self._listen(TaskAvailable.event_name, self._wake.set)

    def join(self, job_name: str, worker_id: UUID) -> None:
        """Hear of a job's tasks from now on."""
        self._joined[job_name] = worker_id
        self._emit(JoinJobRoom(job_name=job_name, worker_id=worker_id))

    def leave(self, job_name: str) -> None:
        """Hear of a job's tasks no more."""
        worker_id = self._joined.pop(job_name, None)
        if worker_id is not None:
            self._emit(LeaveJobRoom(job_name=job_name, worker_id=worker_id))

    def _rejoin(self) -> None:
        for job_name, worker_id in list(self._joined.items()):
            self._emit(JoinJobRoom(job_name=job_name, worker_id=worker_id))
        self._wake.set()

    def _emit(self, event: Event) -> None:
        if self._tsio is None:
            return
        try:
            if _is_plain(self._tsio):
                self._tsio.emit(event.event_name, event.model_dump(mode="json"))
            else:
                self._tsio.emit(event)
        except Exception as error:
            log.debug("Socket.IO: %s not sent: %s", event.event_name, describe(error))

    def _listen(self, event: str, react: Callable[[], None]) -> None:
        former = _former_handler(self._tsio, event)

        def handler(*args: Any) -> Any:
            react()
            return former(*args) if former else None

        self._tsio.on(event, handler)


def _is_plain(tsio: Any) -> bool:
    # Not imported here: it takes as long as all the rest, and who has a client of it has it loaded.
    socketio = sys.modules.get("socketio")
    return socketio is not None and isinstance(tsio, socketio.Client)


def _former_handler(tsio: Any, event: str) -> Callable[..., Any] | None:
    """Return what runs for an event today; an explicit handler would silence it."""
    handlers = getattr(tsio, "handlers", {}).get("/", {})
    if event in handlers:
        return handlers[event]  # type: ignore[no-any-return]
    if event != "connect" and "*" in handlers:
        return lambda *args: handlers["*"](event, *args)
    namespace = getattr(tsio, "namespace_handlers", {}).get("/")
    return (lambda *args: namespace.trigger_event(event, *args)) if namespace else None
