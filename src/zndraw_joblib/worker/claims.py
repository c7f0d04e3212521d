"""How a worker gets its tasks: by one open long-poll, whichever thread has the turn."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Any
from uuid import UUID, uuid4

from zndraw_joblib.contract.messages import NoTask, TaskClaimResponse, TaskResponse
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.reports import Reports
from zndraw_joblib.worker.retry import Backoff, describe, passing, status_of
from zndraw_joblib.worker.roster import Roster
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

_EARLY_PAUSE_SECONDS = 0.1
_TOO_MANY_WAIT = 503


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait for a task, in seconds.

    `poll` is asked of the server as a long-poll; `pause` is slept where the server does not wait.
    """

    poll: float
    pause: float


NOW = Pace(0, 0)


class Claims:
    """Claims tasks for one worker. Thread-safe; a task that cannot run here is failed and passed over.

    What is given out is in flight from then on; what arrives after a stop is handed back instead. `wake`
    ends a pause between two claims, `stopping` tells that there will be none.
    """

    def __init__(
        self, remote: Remote, roster: Roster, reports: Reports, in_flight: InFlight, wake: threading.Event
    ) -> None:
        self._remote = remote
        self._roster = roster
        self._reports = reports
        self._in_flight = in_flight
        self._wake = wake
        self.stopping = threading.Event()
        self._turn = threading.Lock()
        self._change = threading.Condition()
        self._polling = False
        self._held = 0
        self._unanswered: set[UUID] = set()

    @property
    def stopped(self) -> bool:
        """Tell whether no more tasks will be claimed."""
        return self.stopping.is_set()

    def stop(self) -> None:
        """Claim no more. A long-poll that is open stays so until the worker is removed."""
        self.stopping.set()
        self._wake.set()

    def settle(self, seconds: float) -> None:
        """Give a task that is on its way to an open long-poll `seconds` to arrive."""
        with self._change:
            self._change.wait_for(lambda: not self._polling, seconds)

    def quiet(self, timeout: float | None, besides: int = 0) -> bool:
        """Wait until no more than `besides` tasks are being worked on; tell whether it came to that."""
        with self._change:
            return self._change.wait_for(lambda: self._held <= besides, timeout)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond a stop."""
        self.stopping.wait(seconds)

    @contextmanager
    def taking(self, pace: Pace) -> Iterator[ClaimedTask | None]:
        """Claim a task, waiting for it; it counts as held until the block ends."""
        found = self._next(pace)
        task = None
        try:
            task = self._accept(found) if found else None
            yield task
        finally:
            if task:
                self._in_flight.remove(task)
            if found:
                self._hold(-1)

    def ask(self, pace: Pace = NOW) -> ClaimedTask | None:
        """Claim a task for the caller to see through; None if none came in `pace.poll` seconds."""
        deadline = time.monotonic() + pace.poll
        while True:
            found = self._next(pace)
            if found is not None:
                try:
                    task = self._accept(found)
                finally:
                    self._hold(-1)
                if task is not None:
                    return task
            left = deadline - time.monotonic()
            if self.stopped or (found is None and left <= 0):
                return None
            pace = Pace(left, min(pace.pause, left)) if left > 0 else NOW

    def stream(self, pace: Pace, stop: threading.Event | None = None) -> Iterator[ClaimedTask]:
        """Yield tasks until `stop` is set or the worker stops; faults that pass are waited out."""
        backoff = Backoff()
        while not self.stopped and not (stop and stop.is_set()):
            try:
                task = self.ask(pace)
            except Exception as error:
                if not passing(error):
                    raise
                log.warning("Claiming: %s", describe(error))
                (stop or self.stopping).wait(backoff.after(error))
                continue
            backoff.reset()
            if task is not None:
                yield task

    def _next(self, pace: Pace) -> TaskResponse | None:
        """Claim; only one thread waits at a time, as the server keeps one open poll for each worker."""
        if pace == NOW:
            return self._heard(self._ask(0)[0])
        if not self._turn.acquire(timeout=max(pace.poll, pace.pause)):
            return None
        try:
            return None if self.stopped else self._poll(pace)
        finally:
            self._turn.release()

    def _poll(self, pace: Pace) -> TaskResponse | None:
        self._wake.clear()
        self._polling = True
        began = time.monotonic()
        try:
            answer, applied = self._ask(ceil(pace.poll))
            task = self._heard(answer)
        finally:
            with self._change:
                self._polling = False
                self._change.notify_all()
        if task is None and not self.stopped:
            self._pause(applied, time.monotonic() - began, pace.pause)
        return task

    def _pause(self, applied: int, waited: float, pause: float) -> None:
        """Sleep where the server answered "nothing" before its time; a wake-up ends it."""
        if applied <= 0:
            self._wake.wait(pause)
        elif waited < applied / 2:
            self._wake.wait(min(pause, _EARLY_PAUSE_SECONDS))

    def _ask(self, wait: int) -> tuple[TaskClaimResponse, int]:
        worker_id = self._roster.worker()
        try:
            return self._claim(worker_id, wait)
        except Exception as error:
            if self.stopped:
                log.debug("The open claim ended: %s", describe(error))
                return TaskClaimResponse(), 0
            if wait and status_of(error) == _TOO_MANY_WAIT:
                return self._claim(worker_id)
            if not self._roster.lost(worker_id, error):
                raise
        return self._claim(self._roster.worker(), wait)

    def _claim(self, worker_id: UUID, wait: int = 0) -> tuple[TaskClaimResponse, int]:
        """Claim by a new id, or by that of a claim whose answer was lost: its task may be ours."""
        with self._change:
            claim_id = self._unanswered.pop() if self._unanswered else uuid4()
        try:
            return self._remote.claim(worker_id, wait, claim_id)
        except BaseException:
            self._unanswered.add(claim_id)
            raise

    def _heard(self, answer: TaskClaimResponse) -> TaskResponse | None:
        if answer.task is not None:
            self._hold(+1)
        elif answer.reason == NoTask.DRAINING:
            self._roster.drain()
        return answer.task

    def _hold(self, number: int) -> None:
        with self._change:
            self._held += number
            self._change.notify_all()

    def _accept(self, found: TaskResponse) -> ClaimedTask | None:
        """Return the task ready to run; where it cannot run, fail it and return None.

        A task that comes after the stop is handed back.
        """
        cls = self._roster.class_of(found.job_name)
        extension, fault = _made(cls, found)
        task = ClaimedTask(
            task_id=str(found.id),
            job_name=found.job_name,
            room_id=found.room_id,
            extension=extension,
            attempt=found.attempt,
            payload=found.payload,
            worker_id=found.worker_id or self._roster.worker(),
        )
        if self.stopped:
            self._reports.release_in_haste(task)
            return None
        if fault is None:
            self._in_flight.add(task)
            return task
        log.error("Task %s of %s cannot run here: %s", task.task_id, task.job_name, fault)
        try:
            # A payload that does not fit will not fit the next time; another worker may know the job.
            self._reports.fail(task, fault, retry=cls is None)
        except Exception as error:
            log.warning("Task %s could not be failed: %s", task.task_id, describe(error))
        return None


def _made(cls: type[Any] | None, found: TaskResponse) -> tuple[Any, str | None]:
    """Return a task's extension, or what keeps it from being made."""
    if cls is None:
        return None, f"This worker does not know the job {found.job_name!r}"
    try:
        return cls.model_validate(found.payload), None
    except Exception as error:
        return None, f"The payload does not fit {cls.__name__}: {error}"
