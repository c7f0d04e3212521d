"""Claims of a worker, of one task or several at once: one long-poll is open at a time."""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar
from uuid import UUID, uuid4

from zndraw_joblib.client.retry import FailureLog, RequestBackoff, describe, is_transient, status_of
from zndraw_joblib.jobs.forks import check_not_forked, exit_if_forked
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.run import Outcome
from zndraw_joblib.jobs.traces import parse_traceparent
from zndraw_joblib.wire.messages import ClaimBatch, EmptyReason, TaskResponse
from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.reports import LiveReports, Reports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import (
    ClaimedTask,
    HeldTasks,
    TaskCredential,
    TaskServer,
    prepared,
    record_claim,
)

log = logging.getLogger(__name__)

Work = TypeVar("Work")

_EARLY_PAUSE_SECONDS = 0.1
_LONG_POLL_SECONDS = 5.0
_TOO_MANY_WAIT = 503


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait for work, in seconds.

    `poll` is the wait of one long-poll on the server; `pause` is the pause between two claims where the
    server does not wait.
    """

    poll: float
    pause: float


NOW = Pace(0, 0)


class Poller(ABC, Generic[Work]):
    """Claims work of one kind for one worker. Thread-safe.

    `wake` ends a pause between two claims. Once `stopping` is set, there are no more claims.
    """

    def __init__(self, registrations: Registrations, wake: threading.Event) -> None:
        self._registrations = registrations
        self._wake = wake
        self._pid = os.getpid()
        self.stopping = threading.Event()
        self._poll_lock = threading.Lock()
        self._change = threading.Condition()
        self._polling = False
        self._held = 0
        # By the number of a claim: a repeat of a claim for many needs the same number.
        self._unanswered: list[tuple[UUID, int | None]] = []

    @abstractmethod
    def _claim(self, worker_id: UUID, wait: int, claim_id: UUID, limit: int | None) -> tuple[list[Work], int]:
        """Claim from the server; return the work and how many seconds the server agreed to wait.

        With `limit` None, at most one piece of work is claimed.
        """

    @property
    def stopped(self) -> bool:
        """Return whether there are no more claims."""
        return self.stopping.is_set()

    def stop(self) -> None:
        """Claim no more. An open long-poll stays open until the worker is removed."""
        self.stopping.set()
        self._wake.set()

    def wait_for_poll(self, seconds: float) -> None:
        """Wait until no long-poll is open, at most `seconds`."""
        with self._change:
            self._change.wait_for(lambda: not self._polling, seconds)

    def wait_until_idle(self, timeout: float | None, besides: int = 0) -> bool:
        """Wait until at most `besides` pieces of work are held; return whether that happened in time."""
        with self._change:
            return self._change.wait_for(lambda: self._held <= besides, timeout)

    def repeat(self, serve_once: Callable[[], object], what: str) -> None:
        """Call `serve_once` until the worker stops, whatever it raises; `what` names it in the log."""
        backoff = RequestBackoff()
        failures = FailureLog(log, what, outage=self._registrations.outage)
        while not self.stopped:
            began = time.monotonic()
            try:
                serve_once()
                exit_if_forked(self._pid)
            # BaseException: the code of a host may call sys.exit().
            except BaseException as error:
                exit_if_forked(self._pid, error)
                # A proxy that cuts long-polls fails slowly: that error needs no growing pauses.
                if time.monotonic() - began > _LONG_POLL_SECONDS:
                    backoff.reset()
                pause = backoff.after(error)
                failures.failed(error, pause)
                self.stopping.wait(pause)
            else:
                backoff.reset()
                # A claim that a stop has ended got no response.
                if not self.stopped:
                    failures.succeeded()

    def _next(self, pace: Pace) -> Work | None:
        """Claim one piece of work, and count it as held."""
        work = self._next_many(pace, None)
        return work[0] if work else None

    def _next_many(self, pace: Pace, limit: int | None) -> list[Work]:
        """Claim, and count what is found as held. Only one thread of a worker waits on the server."""
        check_not_forked(self._pid)
        if pace == NOW:
            return self._claim_with_recovery(0, limit)[0]
        if not self._poll_lock.acquire(timeout=max(pace.poll, pace.pause)):
            return []
        try:
            return [] if self.stopped else self._poll(pace, limit)
        finally:
            self._poll_lock.release()

    def _poll(self, pace: Pace, limit: int | None) -> list[Work]:
        self._wake.clear()
        self._polling = True
        began = time.monotonic()
        try:
            work, applied = self._claim_with_recovery(ceil(pace.poll), limit)
        finally:
            with self._change:
                self._polling = False
                self._change.notify_all()
        if not work and not self.stopped:
            self._pause(applied, time.monotonic() - began, pace.pause)
        return work

    def _pause(self, applied: int, waited: float, pause: float) -> None:
        """Pause after an empty response that came early; `wake` ends the pause."""
        if applied <= 0:
            self._wake.wait(pause)
        elif waited < applied / 2:
            self._wake.wait(min(pause, _EARLY_PAUSE_SECONDS))

    def _claim_with_recovery(self, wait: int, limit: int | None) -> tuple[list[Work], int]:
        """Claim; repeat it at once where the server cannot wait, or the worker was registered again."""
        worker_id = self._registrations.worker()
        try:
            return self._claim_once(worker_id, wait, limit)
        except Exception as error:
            if self.stopped:
                log.debug("The open claim ended: %s", describe(error))
                return [], 0
            if wait and status_of(error) == _TOO_MANY_WAIT:
                return self._claim_once(worker_id, 0, limit)
            if not self._registrations.renew_if_unknown(worker_id, error):
                raise
        return self._claim_once(self._registrations.worker(), wait, limit)

    def _claim_once(self, worker_id: UUID, wait: int, limit: int | None) -> tuple[list[Work], int]:
        """Claim with a new id, or repeat a claim of the same kind whose response was lost."""
        with self._change:
            lost = [claim for claim in self._unanswered if (claim[1] is None) == (limit is None)]
            claim_id, limit = lost[0] if lost else (uuid4(), limit)
            if lost:
                self._unanswered.remove(lost[0])
        try:
            work, applied = self._claim(worker_id, wait, claim_id, limit)
        except BaseException:
            self._unanswered.append((claim_id, limit))
            raise
        if work:
            self._hold(len(work))
        return work, applied

    def _hold(self, number: int) -> None:
        with self._change:
            self._held += number
            self._change.notify_all()


# Claim tasks, one by one or several at once.

_LATE_SECONDS = 1.0
# Between two claims of a worker without a job that fits.
_NO_TIME_SECONDS = 5.0


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
        self._server = TaskServer(rest.api)
        self._reports = reports
        self._held_tasks = held
        self._live = live
        self._claimed_at = 0.0
        # How long tasks may run, None for any time.
        self.remaining: Callable[[], float | None] = lambda: None
        # Whether some of its jobs fit into the rest of its allocation.
        self.has_time = True
        self._batches: Sequence[ClaimBatch] = ()

    def claim_many(
        self, pace: Pace, limit: int, batches: Sequence[ClaimBatch] = ()
    ) -> tuple[list[ClaimedTask], float]:
        """Return up to `limit` tasks, without their extensions, and when the server surely gave them to it.

        They may be one of the `batches` instead. Only one thread may call it.

        Each is held until `done`. The time is the wall clock's: that of the answer, or of the request if the
        answer came late, because this process may have been suspended since the server sent it.
        """
        self._batches = batches
        tasks = [self._task(response) for response in self._next_many(pace, limit)]
        self._held_tasks.add(*tasks)
        return tasks, self._claimed_at

    def add_job(self) -> None:
        """Claim again soon if there was no time for any of the jobs: there is another one."""
        if not self.has_time:
            self.has_time = True
            self._wake.set()

    def done(self, count: int = 1) -> None:
        """Count tasks of `claim_many` as no longer held."""
        self._hold(-count)

    def claim(self, pace: Pace = NOW) -> ClaimedTask | None:
        """Return a claimed task, None if there was none within `pace.poll` seconds."""
        deadline = time.monotonic() + pace.poll
        while True:
            response = self._next(pace)
            if response is not None:
                try:
                    task = self._accept(response)
                finally:
                    self._hold(-1)
                if task is not None:
                    return task
            remaining = deadline - time.monotonic()
            if self.stopped or (response is None and remaining <= 0):
                return None
            pace = Pace(remaining, min(pace.pause, remaining)) if remaining > 0 else NOW

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
        self, worker_id: UUID, wait: int, claim_id: UUID, limit: int | None
    ) -> tuple[list[TaskResponse], int]:
        sent_at, began = time.time(), time.monotonic()
        batches = () if limit is None else self._batches
        response, applied = self._rest.claim(worker_id, wait, claim_id, limit, batches, self.remaining())
        self.has_time = response.reason != EmptyReason.NO_TIME
        if limit is not None:
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

    def _pause(self, applied: int, waited: float, pause: float) -> None:
        if self.has_time:
            super()._pause(applied, waited, pause)
        else:
            self._wake.wait(_NO_TIME_SECONDS)

    def _task(self, response: TaskResponse) -> ClaimedTask:
        """Return a task without its extension."""
        task_id, worker_id = str(response.id), response.worker_id or self._registrations.worker()
        return ClaimedTask(
            task_id=task_id,
            job_name=response.job_name,
            room_id=response.room_id,
            extension=None,
            attempt=response.attempt,
            payload=response.payload,
            worker_id=worker_id,
            channel=self._live.channel(task_id, response.attempt, worker_id),
            traceparent=parse_traceparent(response.traceparent or ""),
            cost=response.cost or 1,
            server=self._server,
            credential=None if response.token is None else TaskCredential(response.token),
        )

    def _accept(self, response: TaskResponse) -> ClaimedTask | None:
        """Return the task to run; release it after a stop, fail it if it cannot run here."""
        task = self._task(response)
        # It is held from now on: the job's code that checks the payload may take long.
        self._held_tasks.add(task)
        accepted = None
        try:
            accepted = self._try_prepare(task)
        finally:
            if accepted is None:
                self._held_tasks.remove(task)
        return accepted

    def prepare(self, task: ClaimedTask) -> tuple[ClaimedTask, Outcome | None]:
        """Return a task as its job is registered here, or with the outcome to report if it cannot run."""
        job = self._registrations.job_of(task.job_name)
        task, refusal = prepared(task, *(job.cls, job.run_kwargs) if job else (None, {}))
        if refusal is not None:
            about = task.task_id, task.job_name, refusal.error
            log.error("Task %s of %s cannot run here: %s", *about, extra=task_fields(task))
        return task, refusal

    def _try_prepare(self, task: ClaimedTask) -> ClaimedTask | None:
        task, refusal = self.prepare(task)
        if self.stopped:
            self._reports.try_release(task)
            return None
        if refusal is None:
            return task
        try:
            self._reports.fail(task, refusal.error, retry=refusal.retry)
        except Exception as error:
            log.warning(
                "Task %s could not be failed: %s", task.task_id, describe(error), extra=task_fields(task)
            )
        return None
