"""Claim tasks, one by one or several at once."""

import logging
import threading
import time
from collections.abc import Iterator
from uuid import UUID

from zndraw_joblib.client.retry import RequestBackoff, describe, is_transient
from zndraw_joblib.contract.logs import task_fields
from zndraw_joblib.contract.messages import EmptyReason, TaskResponse
from zndraw_joblib.contract.traces import parse_traceparent
from zndraw_joblib.worker.execution import make_extension
from zndraw_joblib.worker.live_reports import LiveReports
from zndraw_joblib.worker.poller import NOW, Pace, Poller
from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.reports import HeldTasks, Reports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.spans import record_claim
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

_LATE_SECONDS = 1.0


class TaskPoller(Poller[TaskResponse]):
    """Claims tasks. `claim` fails a task that cannot run here, and releases one that comes after a stop."""

    def __init__(
        self,
        rest: RestApi,
        registrations: Registrations,
        reports: Reports,
        held: HeldTasks,
        wake: threading.Event,
        live: LiveReports,
    ) -> None:
        super().__init__(registrations, wake)
        self._rest = rest
        self._reports = reports
        self._held_tasks = held
        self._live = live
        self._claimed_at = 0.0

    def claim_many(self, pace: Pace, most: int) -> tuple[list[ClaimedTask], float]:
        """Return up to `most` tasks, without their extensions, and when the server surely gave them to it.

        Each is held until `done`. The time is the wall clock's: that of the answer, or of the request if the
        answer came late, because this process may have been suspended since the server sent it.
        """
        tasks = [self._task(found) for found in self._next_many(pace, most)]
        self._held_tasks.add(*tasks)
        return tasks, self._claimed_at

    def done(self, count: int = 1) -> None:
        """Count tasks of `claim_many` as no longer held."""
        self._hold(-count)

    def claim(self, pace: Pace = NOW) -> ClaimedTask | None:
        """Return a claimed task, None if there was none within `pace.poll` seconds."""
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
        """Yield tasks until `stop` is set or the worker stops; retry after transient errors."""
        backoff = RequestBackoff()
        while not self.stopped and not (stop and stop.is_set()):
            try:
                task = self.claim(pace)
            except Exception as error:
                if not is_transient(error):
                    raise
                log.warning("Claiming: %s", describe(error))
                (stop or self.stopping).wait(backoff.after(error))
                continue
            backoff.reset()
            if task is not None:
                yield task

    def _claim(
        self, worker_id: UUID, wait: int, claim_id: UUID, most: int | None
    ) -> tuple[list[TaskResponse], int]:
        sent_at, began = time.time(), time.monotonic()
        response, applied = self._rest.claim(worker_id, wait, claim_id, most)
        if most is not None:
            elapsed = time.time() - sent_at
            # The monotonic clock stands still while the machine is suspended.
            is_late = (
                elapsed > applied + _LATE_SECONDS or elapsed - (time.monotonic() - began) > _LATE_SECONDS
            )
            self._claimed_at = sent_at if is_late else sent_at + elapsed
        if response.reason == EmptyReason.DRAINING:
            self._registrations.drain()
        tasks = response.tasks or ([response.task] if response.task else [])
        if tasks:
            record_claim(worker_id, tasks, sent_at)
        return tasks, applied

    def _task(self, found: TaskResponse) -> ClaimedTask:
        """Return a task without its extension."""
        task_id, worker_id = str(found.id), found.worker_id or self._registrations.worker()
        return ClaimedTask(
            task_id=task_id,
            job_name=found.job_name,
            room_id=found.room_id,
            extension=None,
            attempt=found.attempt,
            payload=found.payload,
            worker_id=worker_id,
            channel=self._live.channel(task_id, found.attempt, worker_id),
            traceparent=parse_traceparent(found.traceparent or ""),
        )

    def _accept(self, found: TaskResponse) -> ClaimedTask | None:
        """Return the task to run; release it after a stop, fail it if it cannot run here."""
        task = self._task(found)
        # It is held from now on: the job's code that checks the payload may take long.
        self._held_tasks.add(task)
        accepted = None
        try:
            accepted = self._prepare(task)
        finally:
            if accepted is None:
                self._held_tasks.remove(task)
        return accepted

    def _prepare(self, task: ClaimedTask) -> ClaimedTask | None:
        cls = self._registrations.class_of(task.job_name)
        extension, fault = make_extension(cls, task)
        if self.stopped:
            self._reports.try_release(task)
            return None
        if fault is None:
            return task.with_extension(extension, self._registrations.run_kwargs_of(task.job_name))
        log.error(
            "Task %s of %s cannot run here: %s", task.task_id, task.job_name, fault, extra=task_fields(task)
        )
        try:
            # An invalid payload stays invalid; an unknown job may be known to another worker.
            self._reports.fail(task, fault, retry=cls is None)
        except Exception as error:
            log.warning(
                "Task %s could not be failed: %s", task.task_id, describe(error), extra=task_fields(task)
            )
        return None
