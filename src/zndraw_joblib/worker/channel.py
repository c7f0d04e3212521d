"""The worker's Socket.IO: it hears of things sooner. Whatever fails here costs latency, and nothing else."""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.events import Event, JoinJobRoom, LeaveJobRoom, TaskAvailable, TaskStatusEvent
from zndraw_joblib.contract.problems import WorkerNotFound, problem_for
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.realtime import Realtime
from zndraw_joblib.worker.retry import describe

log = logging.getLogger(__name__)

Answered = Callable[..., None]
_RESERVED = frozenset({"connect", "connect_error", "disconnect"})


class Channel:
    """Joins the rooms of the worker's jobs, again after a reconnect, and passes on what is heard there.

    `wake` is set when a task waits to be claimed. `beat_due` is set when the server shall hear soon that
    the worker lives: the connection is gone, which the server may take for the worker's end. A cancellation
    reaches its task by `in_flight`.

    `tsio` is a `Realtime`, a `socketio.Client`, or a wrapper with `on(event, handler)` and `emit(model)`. The
    host's own handlers stay: python-socketio keeps one for each event, so ours calls the one that was there.
    """

    def __init__(self, tsio: Any, in_flight: InFlight) -> None:
        self.wake = threading.Event()
        self.beat_due = threading.Event()
        self._in_flight = in_flight
        self._send = _sender(tsio)
        self._joined: dict[str, UUID] = {}
        self._refused: set[str] = set()
        if tsio is not None:
            _listen(tsio, "connect", self._rejoin)
            _listen(tsio, "disconnect", self._lost)
            _listen(tsio, TaskAvailable.event_name, self._task_available)
            _listen(tsio, TaskStatusEvent.event_name, self._task_moved)

    def join(self, job_name: str, worker_id: UUID) -> None:
        """Hear of a job's tasks from now on."""
        self._joined[job_name] = worker_id
        self._ask_to_join(job_name, worker_id)

    def leave(self, job_name: str) -> None:
        """Hear of a job's tasks no more."""
        self._refused.discard(job_name)
        worker_id = self._joined.pop(job_name, None)
        if worker_id is not None:
            self._emit(LeaveJobRoom(job_name=job_name, worker_id=worker_id))

    def _ask_to_join(self, job_name: str, worker_id: UUID) -> None:
        def answered(*answer: Any) -> None:
            self._note_answer(job_name, worker_id, *answer)

        self._emit(JoinJobRoom(job_name=job_name, worker_id=worker_id), answered)

    def _note_answer(self, job_name: str, worker_id: UUID, answer: Any = None, *_: Any) -> None:
        """Take the server's answer to a join: a problem, or nothing that matters."""
        if self._joined.get(job_name) != worker_id:
            return
        status = answer.get("status") if isinstance(answer, Mapping) else None
        if not isinstance(status, int):
            self._refused.discard(job_name)
            return
        problem = problem_for(status, answer)
        if isinstance(problem, WorkerNotFound):
            self.beat_due.set()
        elif job_name not in self._refused:
            self._refused.add(job_name)
            log.warning("Socket.IO: the server does not tell of tasks of %s: %s", job_name, describe(problem))

    def _rejoin(self, *_: Any) -> None:
        for job_name, worker_id in list(self._joined.items()):
            if self._joined.get(job_name) == worker_id:
                self._ask_to_join(job_name, worker_id)
        self.wake.set()

    def _lost(self, *_: Any) -> None:
        self.beat_due.set()

    def _task_available(self, *_: Any) -> None:
        self.wake.set()

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
