"""The reporter of the pipeline: reports of many tasks in one request, repeated until the server responds."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from zndraw_joblib.client import calls, retry
from zndraw_joblib.client.retry import (
    FailureLog,
    Outage,
    RequestBackoff,
    describe,
    is_missing,
    is_too_large_for_proxy,
    is_transient,
    is_unreachable,
    problem_of,
    status_of,
)
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.run import Outcome
from zndraw_joblib.jobs.task_channel import LiveReport
from zndraw_joblib.wire.messages import MAX_BATCH, TaskUpdateRequest
from zndraw_joblib.wire.problems import InvalidTaskTransition
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.reports import RETRY_SECONDS, is_content_refused, is_gone, without_content
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask, HeldTasks


@dataclass(slots=True, eq=False)
class TaskReports:
    """The reports of one task: its start, unless it is `started`, and its outcome, once it has one.

    `due` is when a start is to be reported, `began` and `ended` are when the task ran. After a refusal
    nothing is sent before `not_before`. `gone`: the task is no longer this worker's, or was given up.
    """

    task: ClaimedTask
    due: float = 0.0
    started: bool = False
    began: float | None = None
    ended: float = 0.0
    outcome: Outcome | None = None
    gone: bool = False
    is_replaced: bool = False
    not_before: float = 0.0
    failing_since: float | None = None
    live_size: int = 0
    backoff: RequestBackoff = field(default_factory=RequestBackoff)

    def take(self) -> "Sent":
        """Return the reports that are due now. With an outcome goes what is left of progress and log."""
        live = self.task.channel.take_all() if self.outcome is not None else ()
        return Sent(self, self.outcome, not self.started, live)

    @property
    def size(self) -> int:
        """Return about how many bytes the report of the outcome has, 0 without one."""
        return 0 if self.outcome is None else size_of(self.outcome) + self.live_size


@dataclass(frozen=True, slots=True)
class Sent:
    """The reports of one task in one request; `outcome` is None if it only starts.

    `live` is the progress and the log that was not reported before; the last part goes with the outcome.
    """

    entry: TaskReports
    outcome: Outcome | None
    with_start: bool
    live: Sequence[LiveReport] = ()

    @property
    def size(self) -> int:
        """Return about how many bytes the reports have."""
        size = 200 + (size_of(self.outcome) if self.outcome else 0)
        return size + sum(len(live.json) for live in self.live) if self.live else size

    @property
    def count(self) -> int:
        """Return the number of reports."""
        return self.with_start + (len(self.live) or self.outcome is not None)

    def as_json(self) -> list[bytes]:
        """Return each report as JSON, for `RestApi.report_tasks`."""
        task = self.entry.task
        token = f'{{"id":"{task.task_id}","attempt":{task.attempt},'.encode()
        ages = b"".join(b'"%s":%.6f,' % (name.encode(), ago) for name, ago in self.ages.items())
        reports = [token + ages + b'"status":"running"}'] if self.with_start else []
        reports += [token + live.json + b"}" for live in self.live[:-1]]
        if self.outcome is not None:
            last = self.live[-1].json + b"," if self.live else b""
            reports.append(token + ages + last + self.outcome.json + b"}")
        return reports

    @property
    def ages(self) -> dict[str, Any]:
        """Return the fields that say how many seconds ago the run began and ended."""
        if self.entry.began is None:
            return {}
        now = time.monotonic()
        began = {"started_ago": now - self.entry.began}
        return began if self.outcome is None else began | {"ended_ago": now - self.entry.ended}

    def updates(self) -> Iterator[TaskUpdateRequest]:
        """Yield each report as the body of a request of its own."""
        task = self.entry.task
        token: dict[str, Any] = {"worker_id": task.worker_id, "attempt": task.attempt}
        if self.with_start:
            yield TaskUpdateRequest(status=TaskStatus.RUNNING, **token, **self.ages)
        if self.outcome is not None:
            last = self.live[-1].fields if self.live else {}
            yield TaskUpdateRequest(**token, **self.ages, **self.outcome.fields, **last)


def size_of(outcome: Outcome) -> int:
    """Return about how many bytes the report of an outcome has."""
    size = len(outcome.result) + len(outcome.error or "")
    failure = outcome.failure
    return size + len(failure.traceback) + len(failure.full_traceback) if failure else size


# Report on the tasks of the pipeline: those that end while one request is under way go into the next.

log = logging.getLogger(__name__)

# The start of a task that ends within this time is reported together with its end.
_START_SECONDS = 0.003
_MAX_BATCH_BYTES = 4 * 1024 * 1024
MAX_WAITING = 1000
MAX_WAITING_BYTES = 32 * 1024 * 1024
# The server may be replaced by one that takes many reports in one request.
_SINGLE_SECONDS = 60.0


class Reporter:
    """Sends the reports of the pipeline's tasks, one request after the other.

    Each report is repeated for 15 minutes while the server does not respond, unless `stop` is set. `on_done`
    gets the number of tasks that are over: their outcomes were acknowledged, refused or given up. Outcomes
    of a worker with other tasks to run are reported together, after `gather_seconds` or at `gather_count`.
    """

    def __init__(  # noqa: PLR0913 - most are for tests
        self,
        rest: RestApi,
        held: HeldTasks,
        stop: threading.Event,
        on_done: Callable[[int], None],
        *,
        gather_seconds: float = 0.03,
        gather_count: int = 100,
        outage: Outage | None = None,
    ) -> None:
        self._gather_seconds = gather_seconds
        self._gather_count = gather_count
        self._rest = rest
        self._held = held
        self.stop = stop
        self._on_done = on_done
        self._change = threading.Condition()
        self._waiting: dict[TaskReports, None] = {}
        self._open = 0
        self._bytes = 0
        self._is_hurried = False
        self._sleeps_until = 0.0
        self._backoff, self._failures = RequestBackoff(), FailureLog(log, "Reporting", outage=outage)
        self._not_before = 0.0
        self._single_until = 0.0

    @property
    def is_full(self) -> bool:
        """Return whether too many outcomes wait to claim more tasks."""
        return len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES

    def begin(self, task: ClaimedTask, *, started: bool = False) -> TaskReports:
        """Report the start of a task, unless it has `started` or ends within a few milliseconds."""
        now = time.monotonic()
        entry = TaskReports(task, now + _START_SECONDS, started, now)
        with self._change:
            self._open += 1
            if not started:
                self._waiting[entry] = None
                self._wake_by(entry.due)
        return entry

    def end(self, entry: TaskReports, outcome: Outcome, *, is_busy: bool = False) -> None:
        """Report the outcome of a task that has begun: soon if the worker `is_busy`, otherwise now.

        A worker is busy while another task waits for the slot of this one. Nothing is reported of a task that
        was cancelled or lost, or has returned to its queue.
        """
        # It has ended: it must not return to its queue while its outcome waits, perhaps for the server.
        may_report = self._held.begin_outcome(entry.task)
        with self._change:
            entry.outcome, entry.ended = outcome, time.monotonic()
            if not (may_report or entry.gone):
                self._waiting.pop(entry, None)
                entry.gone = True
                entry.task.channel.close()
            if not entry.gone:
                entry.live_size = entry.task.channel.size
                self._bytes += entry.size
                self._waiting[entry] = None
                self._is_hurried |= not is_busy or len(self._waiting) >= self._gather_count
                entry.due = entry.ended + self._gather_seconds
                self._wake_by(0.0 if self._is_hurried else entry.due)
                return
            self._open -= 1
            self._change.notify()
        self._on_done(1)

    def refuse(self, task: ClaimedTask, outcome: Outcome) -> None:
        """Report the outcome of a task that has not begun."""
        entry = self.begin(task, started=True)
        entry.began = None
        self.end(entry, outcome)

    def wake(self) -> None:
        """Report what waits now, also after a failure; notice that `stop` was set."""
        with self._change:
            self._is_hurried, self._not_before = True, 0.0
            self._change.notify()

    def run(self) -> None:
        """Send reports until `stop` is set and each task has ended."""
        while batch := self._next_batch():
            self._try(batch)

    def _wake_by(self, due: float) -> None:
        if due < self._sleeps_until:
            self._change.notify()

    def _next_batch(self) -> list[Sent]:
        with self._change:
            while True:
                now = time.monotonic()
                wait = self._seconds_until_due(now)
                if wait is not None and wait <= 0:
                    return self._take(now)
                if self.stop.is_set() and not self._open:
                    return []
                self._sleeps_until = math.inf if wait is None else now + wait
                self._change.wait(wait)
                self._sleeps_until = 0.0

    def _seconds_until_due(self, now: float) -> float | None:
        if not self._waiting:
            return None
        if self.stop.is_set():
            return 0.0
        first = min(
            max(e.not_before, 0.0 if self._is_hurried and e.outcome else e.due) for e in self._waiting
        )
        return max(first, self._not_before) - now

    def _take(self, now: float) -> list[Sent]:
        batch: list[Sent] = []
        size = count = 0
        for entry in list(self._waiting):
            if entry.not_before > now and not self.stop.is_set():
                continue
            sent = entry.take()
            size += sent.size
            count += sent.count
            is_other = batch and entry.task.worker_id != batch[0].entry.task.worker_id
            if is_other or (batch and (size > _MAX_BATCH_BYTES or count > MAX_BATCH)):
                break
            del self._waiting[entry]
            batch.append(sent)
        self._is_hurried &= bool(self._waiting)
        return batch

    def _try(self, batch: Sequence[Sent]) -> None:
        """Send reports. Each task's on its own if the cause of an error may be the reports of one task."""
        try:
            self._send(batch)
        # BaseException: the code of a host may call sys.exit().
        except BaseException as error:
            if len(batch) == 1 or is_transient(error) or status_of(error) is not None:
                self._fail(batch, error)
                return
            log.warning("Reporting: %s; reporting %d tasks one by one", describe(error), len(batch))
            for sent in batch:
                self._try([sent])

    def _send(self, batch: Sequence[Sent]) -> None:
        results = self._deliver(batch)
        self._backoff.reset()
        self._failures.succeeded()
        entries: list[TaskReports] = []
        for sent, error in zip(batch, results, strict=True):
            if error is None:
                sent.entry.started, sent.entry.failing_since = True, None
                if sent.outcome is not None:
                    entries.append(sent.entry)
            else:
                pause = sent.entry.backoff.after(error)
                log.log(
                    logging.DEBUG if is_gone(error) else logging.INFO,
                    "Task %s: a report failed: %s",
                    sent.entry.task.task_id,
                    describe(error),
                    extra=task_fields(sent.entry.task),
                )
                self._handle(sent, error, time.monotonic() + pause)
        self._finish(entries)

    def _fail(self, batch: Sequence[Sent], error: BaseException) -> None:
        """Handle the failure of a whole request."""
        pause = self._backoff.after(error)
        self._not_before = time.monotonic() + pause
        self._failures.failed(error, pause)
        for sent in batch:
            self._handle(sent, error, 0.0)

    def _deliver(self, batch: Sequence[Sent]) -> list[Exception | None]:
        """Send the reports; return for each task its first error. Raises what concerns the whole request.

        Reports that were sent before such an error are repeated, which changes nothing.
        """
        if time.monotonic() < self._single_until:
            return [self._deliver_single(sent) for sent in batch]
        reports = [sent.as_json() for sent in batch]
        try:
            flat = self._rest.report_tasks(
                batch[0].entry.task.worker_id, [report for group in reports for report in group]
            )
        except Exception as error:
            if is_missing(error):
                self._single_until = time.monotonic() + _SINGLE_SECONDS
                return [self._deliver_single(sent) for sent in batch]
            if not is_content_refused(error):
                raise
            if len(batch) == 1:
                return [self._deliver_single(batch[0])]
            half = len(batch) // 2
            return self._deliver(batch[:half]) + self._deliver(batch[half:])
        answers = iter(flat)
        results: list[Exception | None] = []
        for sent, group in zip(batch, reports, strict=True):
            errors = [next(answers) for _ in group]
            sent.entry.started |= errors[0] is None
            # The repeat of a start is refused if the outcome has arrived; the repeat of the outcome is not.
            has_ended = sent.outcome is not None and errors[-1] is None
            results.append(None if has_ended else next(filter(None, errors), None))
        return results

    def _deliver_single(self, sent: Sent) -> Exception | None:
        for update in sent.updates():
            try:
                self._rest.send_call(calls.update_task(sent.entry.task.task_id, update))
            except Exception as error:
                if is_unreachable(error) and not is_content_refused(error):
                    raise
                return error
            sent.entry.started = True
        return None

    def _handle(self, sent: Sent, error: BaseException, not_before: float) -> None:
        """Repeat a report that failed, replace an outcome that is refused, or give the task up."""
        entry, task, now = sent.entry, sent.entry.task, time.monotonic()
        if entry.gone or (entry.started and sent.outcome is None):
            return
        entry.failing_since = entry.failing_since or now
        failing = now - entry.failing_since
        is_refused = is_content_refused(error) and not (
            is_too_large_for_proxy(error) and failing < retry.TOO_LARGE_SECONDS
        )
        if is_gone(error):
            # A verdict or an event has said so already.
            level = logging.DEBUG if task.cancelled.is_set() else logging.INFO
            log.log(level, *_gone_text(task.task_id, error), extra=task_fields(task))
            task.cancelled.set()
        elif is_refused and sent.live:
            log.warning(
                "The log of task %s is lost: %s", task.task_id, describe(error), extra=task_fields(task)
            )
            task.channel.close()
            self._put_back(entry)
            return
        elif is_refused and sent.outcome is not None and not entry.is_replaced:
            self._put_back(entry, without_content(sent.outcome, error))
            return
        elif is_transient(error) and not self.stop.is_set() and failing < RETRY_SECONDS:
            entry.not_before = not_before
            self._put_back(entry)
            return
        else:
            log.warning("Gave up task %s: %s", task.task_id, describe(error), extra=task_fields(task))
        self._finish([entry])

    def _put_back(self, entry: TaskReports, outcome: Outcome | None = None) -> None:
        with self._change:
            if outcome is not None:
                self._bytes -= entry.size
                entry.outcome, entry.is_replaced = outcome, True
                self._bytes += entry.size
            self._waiting[entry] = None

    def _finish(self, entries: Sequence[TaskReports]) -> None:
        """Hold tasks no longer. One that still runs is done when it ends."""
        self._held.remove(*[entry.task for entry in entries])
        with self._change:
            ended = [entry for entry in entries if entry.outcome is not None]
            for entry in entries:
                self._waiting.pop(entry, None)
                entry.gone = True
                entry.task.channel.close()
            self._bytes -= sum(entry.size for entry in ended)
            self._open -= len(ended)
        if ended:
            self._on_done(len(ended))


def _gone_text(task_id: str, error: BaseException) -> tuple[str, ...]:
    """Return the line of the log for a task that this worker does not hold: it is cancelled, or lost."""
    if isinstance(problem_of(error), InvalidTaskTransition) and f"from '{TaskStatus.CANCELLED}'" in str(
        error
    ):
        return "Task %s was cancelled", task_id
    return "Task %s is no longer held by this worker: %s", task_id, describe(error)
