"""How a worker gets its tasks."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.messages import EmptyReason, TaskResponse
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.polls import NOW, Pace, Polls
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.reports import Reports
from zndraw_joblib.worker.retry import Backoff, describe, passing
from zndraw_joblib.worker.roster import Roster
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)


class Claims(Polls[TaskResponse]):
    """Claims tasks. A task that cannot run here is failed and passed over.

    What is given out is in flight from then on; what arrives after a stop is handed back instead.
    """

    def __init__(
        self, remote: Remote, roster: Roster, reports: Reports, in_flight: InFlight, wake: threading.Event
    ) -> None:
        super().__init__(roster, wake)
        self._remote = remote
        self._reports = reports
        self._in_flight = in_flight

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

    def _claim(self, worker_id: UUID, wait: int, claim_id: UUID) -> tuple[TaskResponse | None, int]:
        answer, applied = self._remote.claim(worker_id, wait, claim_id)
        if answer.reason == EmptyReason.DRAINING:
            self._roster.drain()
        return answer.task, applied

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
