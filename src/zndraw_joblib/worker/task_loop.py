"""Claim tasks and run them."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.extensions import NonRetryable
from zndraw_joblib.contract.forks import exit_if_forked
from zndraw_joblib.contract.messages import EmptyReason, TaskResponse
from zndraw_joblib.contract.outcomes import text_of
from zndraw_joblib.worker.poller import NOW, Pace, Poller
from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.reports import HeldTasks, Reports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.retry import RequestBackoff, describe, is_transient, status_of
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

Execute = Callable[[ClaimedTask], Any]

_CONFLICT = 409


class TaskPoller(Poller[TaskResponse]):
    """Claims tasks. It fails a task that cannot run here, and releases one that comes after a stop."""

    def __init__(
        self,
        rest: RestApi,
        registrations: Registrations,
        reports: Reports,
        held: HeldTasks,
        wake: threading.Event,
    ) -> None:
        super().__init__(registrations, wake)
        self._rest = rest
        self._reports = reports
        self._held_tasks = held

    @contextmanager
    def next_task(self, pace: Pace) -> Iterator[ClaimedTask | None]:
        """Wait for a task; it counts as held until the block ends."""
        found = self._next(pace)
        task = None
        try:
            task = self._accept(found) if found else None
            yield task
        finally:
            if task:
                self._held_tasks.remove(task)
            if found:
                self._hold(-1)

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

    def _claim(self, worker_id: UUID, wait: int, claim_id: UUID) -> tuple[TaskResponse | None, int]:
        response, applied = self._rest.claim(worker_id, wait, claim_id)
        if response.reason == EmptyReason.DRAINING:
            self._registrations.drain()
        return response.task, applied

    def _accept(self, found: TaskResponse) -> ClaimedTask | None:
        """Return the task to run; release it after a stop, fail it if it cannot run here.

        It is held from the start: the job's code that checks the payload may take long.
        """
        task = ClaimedTask(
            task_id=str(found.id),
            job_name=found.job_name,
            room_id=found.room_id,
            extension=None,
            attempt=found.attempt,
            payload=found.payload,
            worker_id=found.worker_id or self._registrations.worker(),
        )
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
        extension, fault = _make_extension(cls, task)
        if self.stopped:
            self._reports.try_release(task)
            return None
        if fault is None:
            return replace(task, extension=extension)
        log.error("Task %s of %s cannot run here: %s", task.task_id, task.job_name, fault)
        try:
            # An invalid payload stays invalid; an unknown job may be known to another worker.
            self._reports.fail(task, fault, retry=cls is None)
        except Exception as error:
            log.warning("Task %s could not be failed: %s", task.task_id, describe(error))
        return None


class TaskLoop:
    """Claims one task after the other and runs it, until the worker stops."""

    def __init__(self, poller: TaskPoller, reports: Reports, execute: Execute, pace: Pace) -> None:
        self._poller = poller
        self._reports = reports
        self._execute = execute
        self._pace = pace
        self._pid = os.getpid()

    def run(self) -> None:
        """Serve until the worker stops, whatever fails."""
        self._poller.repeat(self.serve_once, "Claiming")

    def serve_once(self) -> bool:
        """Wait for a task for a limited time and run it; return whether there was one."""
        with self._poller.next_task(self._pace) as task:
            if task is None:
                return False
            self._process(task)
            return True

    def _process(self, task: ClaimedTask) -> None:
        try:
            if not self._start(task):
                return
            result, error = self._run(task)
            if error is None:
                self._reports.complete(task, result)
            else:
                self._reports.fail(task, error, retry=not isinstance(error, NonRetryable))
        # BaseException: the code of a result or of a host may call sys.exit(), and the thread continues.
        except BaseException as error:
            if task.cancelled.is_set() or status_of(error) == _CONFLICT:
                log.info("Task %s is no longer held by this worker: %s", task.task_id, describe(error))
            else:
                log.warning("Gave up task %s: %s", task.task_id, describe(error))

    def _start(self, task: ClaimedTask) -> bool:
        """Report the start; release the task when the worker stops meanwhile. Return whether it started."""
        try:
            self._reports.start(task, self._poller.stopping)
        except Exception as error:
            if not (self._poller.stopped and is_transient(error)):
                raise
            self._reports.try_release(task)
            return False
        return True

    def _run(self, task: ClaimedTask) -> tuple[Any, BaseException | None]:
        try:
            result = self._execute(task)
            exit_if_forked(self._pid)
            return result, None
        # Not Exception: sys.exit() in an extension ends its task, not the worker.
        except BaseException as error:
            exit_if_forked(self._pid, error)
            if task.cancelled.is_set():
                log.info("Task %s ended after it was cancelled: %s", task.task_id, describe(error))
            else:
                log.error("Task %s of %s raised", task.task_id, task.job_name, exc_info=error)
            return None, error


def _make_extension(cls: type[Any] | None, task: ClaimedTask) -> tuple[Any, str | None]:
    """Return a task's extension, or the reason why it cannot be made."""
    if cls is None:
        return None, f"This worker does not know the job {task.job_name!r}"
    try:
        return cls.model_validate(task.payload), None
    # BaseException: sys.exit() in a validator ends its task, not the worker.
    except BaseException as error:
        text = text_of(error) if isinstance(error, ValueError) else describe(error)
        return None, f"The payload does not fit {cls.__name__}: {text}"
