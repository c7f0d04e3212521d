"""The worker's Socket.IO: it hears of things sooner. Whatever fails here costs latency, and nothing else."""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

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
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.realtime import Realtime
from zndraw_joblib.worker.retry import describe

log = logging.getLogger(__name__)

Answered = Callable[..., None]
Place = tuple[str, str]
_RESERVED = frozenset({"connect", "connect_error", "disconnect"})


class Channel:
    """Joins the rooms of the worker's jobs and providers, again after a reconnect; passes on what it hears.

    `wake` is set when a task waits to be claimed, `wake_readers` when a read does. `beat_due` is set when
    the server shall hear soon that the worker lives: the connection is gone, which the server may take for
    the worker's end. A cancellation reaches its task by `in_flight`.

    `tsio` is a `Realtime`, a `socketio.Client`, or a wrapper with `on(event, handler)` and `emit(model)`. The
    host's own handlers stay: python-socketio keeps one for each event, so ours calls the one that was there.
    """

    def __init__(self, tsio: Any, in_flight: InFlight) -> None:
        self.wake = threading.Event()
        self.wake_readers = threading.Event()
        self.beat_due = threading.Event()
        self._in_flight = in_flight
        self._send = _sender(tsio)
        self._joined: dict[Place, tuple[Event, Event]] = {}
        self._refused: set[Place] = set()
        if tsio is not None:
            _listen(tsio, "connect", self._rejoin)
            _listen(tsio, "disconnect", self._lost)
            _listen(tsio, TaskAvailable.event_name, self._task_available)
            _listen(tsio, TaskStatusEvent.event_name, self._task_moved)
            _listen(tsio, ProviderRequest.event_name, self._read_asked)

    def join(self, job_name: str, worker_id: UUID) -> None:
        """Hear of a job's tasks from now on."""
        join = JoinJobRoom(job_name=job_name, worker_id=worker_id)
        self._enter(("tasks", job_name), join, LeaveJobRoom(job_name=job_name, worker_id=worker_id))

    def leave(self, job_name: str) -> None:
        """Hear of a job's tasks no more."""
        self._exit(("tasks", job_name))

    def join_provider(self, provider_name: str, worker_id: UUID) -> None:
        """Hear of a provider's reads from now on."""
        join = JoinProviderRoom(provider_name=provider_name, worker_id=worker_id)
        leave = LeaveProviderRoom(provider_name=provider_name, worker_id=worker_id)
        self._enter(("reads", provider_name), join, leave)

    def leave_provider(self, provider_name: str) -> None:
        """Hear of a provider's reads no more."""
        self._exit(("reads", provider_name))

    def _enter(self, place: Place, join: Event, leave: Event) -> None:
        self._joined[place] = join, leave
        self._ask_to_join(place, join)

    def _exit(self, place: Place) -> None:
        self._refused.discard(place)
        joined = self._joined.pop(place, None)
        if joined is not None:
            self._emit(joined[1])

    def _ask_to_join(self, place: Place, join: Event) -> None:
        def answered(*answer: Any) -> None:
            self._note_answer(place, join, *answer)

        self._emit(join, answered)

    def _note_answer(self, place: Place, join: Event, answer: Any = None, *_: Any) -> None:
        """Take the server's answer to a join: a problem, or nothing that matters."""
        if not self._is_wanted(place, join):
            return
        status = answer.get("status") if isinstance(answer, Mapping) else None
        if not isinstance(status, int):
            self._refused.discard(place)
            return
        problem = problem_for(status, answer)
        if isinstance(problem, WorkerNotFound):
            self.beat_due.set()
        elif place not in self._refused:
            self._refused.add(place)
            log.warning("Socket.IO: the server does not tell of %s of %s: %s", *place, describe(problem))

    def _is_wanted(self, place: Place, join: Event) -> bool:
        wanted = self._joined.get(place)
        return wanted is not None and wanted[0] == join

    def _rejoin(self, *_: Any) -> None:
        for place, (join, _leave) in list(self._joined.items()):
            if self._is_wanted(place, join):
                self._ask_to_join(place, join)
        self.wake.set()
        self.wake_readers.set()

    def _lost(self, *_: Any) -> None:
        self.beat_due.set()

    def _task_available(self, *_: Any) -> None:
        self.wake.set()

    def _read_asked(self, *_: Any) -> None:
        self.wake_readers.set()

    def _task_moved(self, told: Any = None, *_: Any) -> None:
        if isinstance(told, TaskStatusEvent):
            told = told.model_dump(mode="json")
        if isinstance(told, Mapping) and told.get("status") == TaskStatus.CANCELLED:
            self._in_flight.cancel(str(told.get("id")), str(told.get("worker_id")))

    def _emit(self, event: Event, answered: Answered | None = None) -> None:
        try:
            self._send(event, answered)
        except Exception as error:
            log.debug("Socket.IO: %s not sent: %s", event.event_name, describe(error))


def _sender(tsio: Any) -> Callable[[Event, Answered | None], None]:
    """Return how to send an event; a wrapper's `emit` may take no callback."""
    if tsio is None:
        return lambda event, answered: None
    if isinstance(tsio, Realtime):
        return tsio.emit
    if _is_plain(tsio):
        return lambda event, answered: tsio.emit(
            event.event_name, event.model_dump(mode="json"), callback=answered
        )
    return lambda event, answered: tsio.emit(event)


def _is_plain(tsio: Any) -> bool:
    # Not imported here: it takes as long as all the rest, and who has a client of it has it loaded.
    plain = getattr(sys.modules.get("socketio"), "Client", None)
    return plain is not None and isinstance(tsio, plain)


def _listen(tsio: Any, event: str, react: Callable[..., None]) -> None:
    former = _former_handler(tsio, event)

    def handler(*args: Any) -> Any:
        react(*args)
        return former(*args) if former else None

    tsio.on(event, handler)


def _former_handler(tsio: Any, event: str) -> Callable[..., Any] | None:
    """Return what runs for an event today; an explicit handler would silence it."""
    handlers = getattr(tsio, "handlers", {}).get("/", {})
    if event in handlers:
        return handlers[event]  # type: ignore[no-any-return]
    if event not in _RESERVED and "*" in handlers:
        return lambda *args: handlers["*"](event, *args)
    namespace = getattr(tsio, "namespace_handlers", {}).get("/")
    return (lambda *args: namespace.trigger_event(event, *args)) if namespace else None
