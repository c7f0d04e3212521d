"""The tasks that a worker works on, and how each learns that it was taken away."""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.contract.messages import MAX_NAMED_TASKS, NamedTask, TaskVerdict, Verdict
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

_CANCELLED, _LOST = "was cancelled", "is not ours any more"


class _Claim(NamedTuple):
    task_id: str
    attempt: int
    worker_id: str


class InFlight:
    """Knows which tasks are worked on here. Thread-safe.

    One that turns out to be cancelled or lost gets its event `cancelled` set, and is forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._events: dict[_Claim, threading.Event] = {}

    def add(self, task: ClaimedTask) -> None:
        """Note that a task is worked on from now on."""
        with self._lock:
            self._events[_claim_of(task)] = task.cancelled

    def remove(self, task: ClaimedTask) -> None:
        """Note that a task is worked on no more, if it was."""
        with self._lock:
            self._events.pop(_claim_of(task), None)
            self._lock.notify_all()

    def wait_for_none(self) -> None:
        """Wait until nothing is worked on."""
        with self._lock:
            self._lock.wait_for(lambda: not self._events)

    def named(self) -> list[NamedTask]:
        """Return the tasks for a heartbeat to name; where there are too many, others each time."""
        with self._lock:
            claims = list(self._events)[:MAX_NAMED_TASKS]
            if len(claims) < len(self._events):
                for claim in claims:
                    self._events[claim] = self._events.pop(claim)
        return [NamedTask(id=UUID(claim.task_id), attempt=claim.attempt) for claim in claims]

    def heed(self, named: Sequence[NamedTask], verdicts: Sequence[TaskVerdict]) -> None:
        """Do as the server says of the tasks that a heartbeat named; it answers in their order."""
        for task, said in zip(named, verdicts, strict=False):
            if task.id == said.id and said.verdict != Verdict.CONTINUE:
                why = _CANCELLED if said.verdict == Verdict.CANCEL else _LOST
                self._give_up(_by_token(str(task.id), task.attempt), why)

    def cancel(self, task_id: str, worker_id: str) -> None:
        """Note that a task was cancelled that a worker held; nothing, where that is not this one."""
        self._give_up(lambda claim: (claim.task_id, claim.worker_id) == (task_id, worker_id), _CANCELLED)

    def lose(self, worker_id: UUID) -> None:
        """Note that the server does not know a worker any more, and so has settled what it held."""
        self._give_up(lambda claim: claim.worker_id == str(worker_id), _LOST)

    def _give_up(self, matches: Callable[[_Claim], bool], why: str) -> None:
        with self._lock:
            gone = {claim: self._events.pop(claim) for claim in list(self._events) if matches(claim)}
            self._lock.notify_all()
        for claim, event in gone.items():
            log.info("Task %s %s", claim.task_id, why)
            event.set()


def _by_token(task_id: str, attempt: int) -> Callable[[_Claim], bool]:
    return lambda claim: (claim.task_id, claim.attempt) == (task_id, attempt)


def _claim_of(task: ClaimedTask) -> _Claim:
    return _Claim(task.task_id, task.attempt, str(task.worker_id))
