"""Reports about tasks, uploads of their results, and the progress and log of tasks that run."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from zndraw_joblib.client import calls
from zndraw_joblib.client.retry import (
    FailureLog,
    RequestBackoff,
    describe,
    is_missing,
    is_too_large_for_proxy,
    is_transient,
    problem_of,
    retry,
    status_of,
)
from zndraw_joblib.jobs.capture import outside_tasks
from zndraw_joblib.jobs.failures import error_text
from zndraw_joblib.jobs.forks import check_not_forked
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.results import Content
from zndraw_joblib.jobs.run import Outcome, encoded, failed
from zndraw_joblib.jobs.task_channel import (
    REPORT_INTERVAL_SECONDS,
    LiveReport,
    TakenReport,
    TaskChannel,
    WaitingChannels,
)
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import (
    MAX_BATCH,
    NamedTask,
    TaskActionRequest,
    TaskReport,
    TaskResponse,
    TaskUpdateRequest,
    Verdict,
    WorkerResponse,
)
from zndraw_joblib.wire.problems import InvalidRequest, ResultStoreFull, TaskNotFound, WorkerLost
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask, HeldTasks
from zndraw_joblib.worker.threads import make_loop

log = logging.getLogger(__name__)

# Longer than any restart of a server: a success that is not reported is work done twice.
RETRY_SECONDS = 900.0
_SHORTEST_RELEASE_SECONDS = 0.1
_NOT_FOUND, _CONFLICT, _TOO_LARGE, _UNPROCESSABLE = 404, 409, 413, 422


class ResultUploads:
    """Uploads results, repeated for 15 minutes while the server does not respond, unless `stop` is set."""

    def __init__(self, rest: RestApi, stop: threading.Event) -> None:
        self._rest = rest
        self._stop = stop

    def upload(self, task: ClaimedTask, outcome: Outcome) -> Outcome:
        """Upload the content of an outcome; return what to report, a failure if it was not stored."""
        content = outcome.content
        if content is None:
            return outcome
        try:
            if not task.cancelled.is_set():
                self._send(task, content)
        except Exception as error:
            about = task.task_id, describe(error)
            if not _is_lost(error):
                log.warning("The result of task %s was not stored: %s", *about, extra=task_fields(task))
                return Outcome(error=error_text(_reason(error)))
            log.info("The result of task %s is not needed: %s", *about, extra=task_fields(task))
        finally:
            content.discard()
        return replace(outcome, content=None)

    def _send(self, task: ClaimedTask, content: Content) -> None:
        def send() -> None:
            self._rest.upload_task_result(task.task_id, task.attempt, content, content.pieces())

        retry(
            send,
            f"Upload of the result of task {task.task_id}",
            seconds=RETRY_SECONDS,
            stop=self._stop,
            is_retryable=partial(_is_retryable, task),
        )


def _is_retryable(task: ClaimedTask, error: BaseException) -> bool:
    is_full = isinstance(problem_of(error), ResultStoreFull)
    return is_transient(error) and not is_full and not task.cancelled.is_set()


def _is_lost(error: Exception) -> bool:
    return status_of(error) == _CONFLICT or isinstance(problem_of(error), TaskNotFound)


def _reason(error: Exception) -> str:
    if is_missing(error):
        return (
            "This server stores no results: upgrade it, or return a JSON value of at most 1 MiB "
            f"({describe(error)})"
        )
    if status_of(error) is None:
        return f"The result could not be uploaded: {describe(error)}"
    return f"The server refused the result: {describe(error)}"


class Reports:
    """Start, complete, fail, cancel and release tasks, with the token of their claim.

    Each report is repeated for 15 minutes while the server does not respond, unless `stop` is set. A
    refusal of the server is raised; a task that this worker no longer holds is an `InvalidTaskTransition`.
    A task that has ended is removed from `held`.
    """

    def __init__(
        self, rest: RestApi, held: HeldTasks, stop: threading.Event, *, release_seconds: float = 5.0
    ) -> None:
        self._rest = rest
        self._held = held
        self._release_seconds = release_seconds
        self._stop = stop
        self._pid = os.getpid()
        self.uploads = ResultUploads(rest, stop)

    def upload(self, task: ClaimedTask, outcome: Outcome) -> Outcome:
        """Upload the content of the outcome of a task whose code has ended; return what to report."""
        self._held.end_run(task)
        return self.uploads.upload(task, outcome)

    def start(self, task: ClaimedTask, stop: threading.Event | None = None) -> TaskResponse:
        """Report that the task starts; do not repeat this once `stop` is set."""
        return self._report(task, {"status": TaskStatus.RUNNING}, stop)

    def complete(self, task: ClaimedTask, result: Any = None) -> TaskResponse:
        """Report a success; fail the task when its result cannot be sent or is refused.

        A large or binary result is uploaded first. An exception from the result's own code, such as a
        generator, fails the task. If it is not an `Exception`, it is also raised after the report.
        """
        try:
            outcome = encoded(result)
        except BaseException as error:
            response = self._fail(task, failed(task, task.extension, error))
            if not isinstance(error, Exception):
                raise
            return response
        outcome = self.upload(task, outcome)
        if outcome.error is not None:
            return self._fail(task, outcome)
        try:
            return self._report(task, outcome.fields)
        except Exception as error:
            if not is_content_refused(error):
                raise
            return self._fail(task, without_content(outcome, error))

    def fail(self, task: ClaimedTask, error: object, *, retry: bool = True) -> TaskResponse:
        """Report a failure; `error` is a text or an exception. Without `retry` the failure is final."""
        if isinstance(error, BaseException):
            outcome = failed(task, task.extension, error)
        else:
            outcome = Outcome(error=error_text(error))
        return self._fail(task, outcome if retry else replace(outcome, retry=False, retry_after_seconds=None))

    def _fail(self, task: ClaimedTask, outcome: Outcome) -> TaskResponse:
        log.info("Task %s failed: %s", task.task_id, outcome.error, extra=task_fields(task))
        try:
            return self._report(task, outcome.fields)
        except Exception as refusal:
            if not is_content_refused(refusal):
                raise
            return self._report(task, without_content(outcome, refusal).fields)

    def cancel(self, task: ClaimedTask) -> TaskResponse:
        """Report that this worker cancelled the task."""
        return self._report(task, {"status": TaskStatus.CANCELLED})

    def release(self, task: ClaimedTask) -> TaskResponse:
        """Put the task back into its queue."""
        response = self._retry(task, "release", partial(self._release, task), self._stop)
        self._held.remove(task)
        return response

    def drop(self, task: ClaimedTask) -> None:
        """Hold a task no longer, without a report."""
        self._held.remove(task)

    def try_release(self, *tasks: ClaimedTask, when: str = "before it started") -> None:
        """Put tasks back into their queues, with one request for each 1,000; log a failure.

        Each request is repeated for `release_seconds` while the server does not respond. Of tasks that are
        not released the server notices later that this worker does not hold them.
        """
        self._held.begin_report(*tasks)
        released = 0
        try:
            for start in range(0, len(tasks), MAX_BATCH):
                part = tasks[start : start + MAX_BATCH]
                refusals = self._release_all(part)
                released += len(part)
                for task, refusal in zip(part, refusals, strict=True):
                    how = f"was released {when}" if refusal is None else "was not released"
                    reason = "" if refusal is None else f": {describe(refusal)}"
                    log.info("Task %s %s%s", task.task_id, how, reason, extra=task_fields(task))
        except Exception as error:
            log.info("%d task(s) were not released: %s", len(tasks) - released, describe(error))
        finally:
            self._held.remove(*tasks)

    def _release_all(self, tasks: Sequence[ClaimedTask]) -> Sequence[Exception | None]:
        """Return the refusal of each task. Raises what concerns the whole request."""
        deadline = time.monotonic() + self._release_seconds
        reports = [
            TaskReport(id=UUID(task.task_id), status=TaskStatus.PENDING, **task.token)
            .model_dump_json(exclude_unset=True)
            .encode()
            for task in tasks
        ]

        def send() -> Sequence[Exception | None]:
            # A request or an answer that is lost leaves time for another one.
            timeout = max((deadline - time.monotonic()) / 2, _SHORTEST_RELEASE_SECONDS)
            return self._rest.report_tasks(tasks[0].worker_id, reports, timeout)

        what = f"Release of {len(tasks)} task(s)"
        return retry(send, what, seconds=self._release_seconds, stop=self._stop)

    def _release(self, task: ClaimedTask) -> TaskResponse:
        token = TaskActionRequest(**task.token)
        return self._rest.send_call(calls.act_on_task(ops.RELEASE_TASK, task.task_id, token))

    def _send(self, task: ClaimedTask, update: TaskUpdateRequest) -> TaskResponse:
        return self._rest.send_call(calls.update_task(task.task_id, update))

    def _report(
        self, task: ClaimedTask, fields: Mapping[str, Any], stop: threading.Event | None = None
    ) -> TaskResponse:
        status, update = fields["status"], TaskUpdateRequest(**task.token, **fields)
        call = partial(self._send, task, update)
        if status not in TERMINAL:
            return self._retry(task, status, call, stop or self._stop)
        live = self._send_log(task)
        if live is not None:
            update = TaskUpdateRequest(**{**update.model_dump(exclude_unset=True), **live.fields})
            call = partial(self._send, task, update)
        self._held.begin_report(task)
        try:
            response = self._retry(task, status, call, stop or self._stop)
        except BaseException as error:
            self._held.abandon_report(task)
            if live is not None and is_content_refused(error):
                log.warning(
                    "The log of task %s is lost: %s", task.task_id, describe(error), extra=task_fields(task)
                )
                task.channel.close()
                return self._report(task, fields, stop)
            raise
        task.channel.close()
        self._held.remove(task)
        return response

    def _send_log(self, task: ClaimedTask) -> LiveReport | None:
        """Send what is left of a task's log, except for its last part, which is returned."""
        live = task.channel.take_all()
        if len(live) > 1:
            try:
                reports = [report_json(task.channel, report) for report in live[:-1]]
                self._rest.report_tasks(task.worker_id, reports)
            except Exception as error:
                log.info(
                    "Not all of the log of task %s was sent: %s",
                    task.task_id,
                    describe(error),
                    extra=task_fields(task),
                )
        return live[-1] if live else None

    def _retry(
        self, task: ClaimedTask, what: str, call: Callable[[], TaskResponse], stop: threading.Event
    ) -> TaskResponse:
        check_not_forked(self._pid)
        try:
            return retry(call, f"Report {what} of task {task.task_id}", seconds=RETRY_SECONDS, stop=stop)
        except Exception as error:
            if is_gone(error):
                self._held.remove(task)
            raise


def report_json(channel: TaskChannel, report: LiveReport) -> bytes:
    """Return a report without a status as JSON, for `RestApi.report_tasks`."""
    token = f'{{"id":"{channel.task_id}","attempt":{channel.attempt},"worker_id":"{channel.worker_id}",'
    return token.encode() + report.json + b"}"


def is_content_refused(error: BaseException) -> bool:
    """Return whether the same report without its result or text may be accepted."""
    return status_of(error) in {_TOO_LARGE, _UNPROCESSABLE} or is_too_large_for_proxy(error)


def without_content(outcome: Outcome, error: BaseException) -> Outcome:
    """Return the failure to report instead of an outcome that the server refuses."""
    if outcome.error is None:
        return Outcome(error=f"The server refused the result: {describe(error)}")
    text = f"The task failed; the server refused the text of its error: {describe(error)[:1000]}"
    # A server of an earlier release does not know that code.
    code = None if outcome.error_code == WorkerLost.problem_id() else outcome.error_code
    return replace(outcome, error=text, failure=None, error_code=code)


def is_gone(error: BaseException) -> bool:
    """Return whether this worker does not hold the task."""
    return status_of(error) in {_NOT_FOUND, _CONFLICT}


# Live reports: the progress and the log of tasks that run, at most twice a second.

# The server may be replaced by a newer one.
_UNKNOWN_SECONDS = 300.0
_MAX_REQUEST_BYTES = 1024 * 1024
_MAX_REPORTS = 500
# A heartbeat must not take long.
_MAX_HEARTBEAT_BYTES = 256 * 1024


class LiveReports:
    """Sends what channels hold, in one request for all of them, half a second after the request before.

    A heartbeat that is due meanwhile carries it. What belongs to a task that ends is sent with its outcome. A
    server that does not know such reports gets none for 5 minutes. The thread starts with the first content,
    and ends when `stop` is set. Without `has_thread`, only `send_once`, `run` and heartbeats send.
    """

    def __init__(
        self, rest: RestApi, stop: threading.Event, *, captures: bool = False, has_thread: bool = True
    ) -> None:
        self._has_thread = has_thread
        self._rest = rest
        self._captures = captures
        self._stop = stop
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._arrived = threading.Event()
        self._waiting = WaitingChannels()
        self._backoff = RequestBackoff()
        self._failures = FailureLog(log, "Reporting progress", level=logging.INFO)
        self._warned = False
        # An older server accepts a heartbeat with such fields, and ignores them.
        self._is_known = False

    def channel(self, task_id: str, attempt: int, worker_id: UUID) -> TaskChannel:
        """Return the channel of an attempt; with `captures` it also gets what the job prints."""
        return TaskChannel(task_id, attempt, worker_id, captures=self._captures, on_content=self.add)

    def add(self, channel: TaskChannel) -> None:
        """Send the content of a channel soon."""
        self._waiting.add(channel)
        with self._lock:
            if self._has_thread and self._thread is None and not self._stop.is_set():
                self._thread = make_loop("live-reports", self.run, self._stop)
                # It starts in a thread of the job, whose output it must not take for its own.
                outside_tasks(self._thread.start)
        self._arrived.set()

    def send_heartbeat(
        self, named: Sequence[NamedTask], send: Callable[[Sequence[NamedTask]], WorkerResponse]
    ) -> WorkerResponse:
        """Send a heartbeat that names tasks, with what waits of them, and return its response.

        If the server refuses the content, the heartbeat is sent without it.
        """
        reports = self._take(_MAX_HEARTBEAT_BYTES) if self._is_known else []
        carried: dict[int, TakenReport] = {}
        tasks = list(named)
        for index, task, content in _named_with_content(named, reports):
            tasks[index], carried[index] = task, content
        try:
            try:
                response = send(tasks)
            except Exception as error:
                if not (carried and is_content_refused(error)):
                    raise
                return send(named)
            for index, verdict in enumerate(response.tasks):
                if index in carried:
                    channel, report = carried[index]
                    channel.acknowledge(report)
                    if verdict.verdict != Verdict.CONTINUE:
                        channel.close()
        finally:
            for channel, _ in reports:
                channel.notice_again()
        return response

    def end(self, seconds: float) -> None:
        """Wait for the end of the thread, at most `seconds`; `stop` was set."""
        self._arrived.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def run(self) -> None:
        """Send what waits and what arrives, until `stop` is set."""
        self._arrived.set()
        while not self._stop.is_set():
            self._arrived.wait()
            # Short tasks end meanwhile: what they hold needs no request of its own.
            if not self._stop.wait(REPORT_INTERVAL_SECONDS):
                self._stop.wait(self.send_once())

    def send_once(self) -> float:
        """Send what waits; return the seconds to wait before the next request, besides the interval."""
        self._arrived.clear()
        reports = self._take()
        pause = 0.0
        try:
            if reports:
                self._send(reports)
                self._backoff.reset()
                self._failures.succeeded()
        # BaseException: the code of a host may call sys.exit().
        except BaseException as error:
            pause = self._pause_after(error)
        for channel, _ in reports:
            channel.notice_again()
        return pause

    def _take(self, max_bytes: int = _MAX_REQUEST_BYTES) -> list[TakenReport]:
        reports = self._waiting.take(max_bytes, _MAX_REPORTS)
        if self._waiting:
            self._arrived.set()
        return reports

    def _send(self, reports: Sequence[TakenReport]) -> None:
        """Send reports; where the server refuses the content of the request, one by one."""
        bodies = [report_json(channel, report) for channel, report in reports]
        results: Sequence[Exception | None]
        try:
            results = self._rest.report_tasks(reports[0][0].worker_id, bodies)
            self._is_known = True
        except Exception as error:
            if not is_content_refused(error) or needs_status(error):
                raise
            if len(reports) > 1:
                for one in reports:
                    self._send([one])
                return
            results = [error]
        for sent, refusal in zip(reports, results, strict=True):
            _apply(sent, refusal)

    def _pause_after(self, error: BaseException) -> float:
        if is_missing(error) or needs_status(error):
            self._is_known = False
            if not self._warned:
                log.warning("The server is too old for the progress and the log of tasks that run")
            self._warned = True
            return _UNKNOWN_SECONDS
        pause = self._backoff.after(error)
        self._failures.failed(error, pause)
        return pause


def _named_with_content(
    named: Sequence[NamedTask], reports: Sequence[TakenReport]
) -> Iterator[tuple[int, NamedTask, TakenReport]]:
    """Yield the named tasks with their content, unless the server would refuse it, and their indexes."""
    indexes = {(str(task.id), task.attempt): index for index, task in enumerate(named)}
    for content in reports:
        channel, report = content
        index = indexes.get((channel.task_id, channel.attempt))
        if index is not None:
            with suppress(ValidationError):
                task = NamedTask(id=named[index].id, attempt=channel.attempt, **report.fields)
                yield index, task, content


def _apply(sent: TakenReport, refusal: Exception | None) -> None:
    """Forget what has arrived or can never arrive; other content is sent again."""
    if refusal is None:
        sent.channel.acknowledge(sent.report)
    elif is_gone(refusal):
        sent.channel.close()
    elif is_content_refused(refusal):
        sent.drop(describe(refusal))


def needs_status(error: BaseException) -> bool:
    """Return whether the server is too old for a report without a status."""
    problem = problem_of(error)
    return isinstance(problem, InvalidRequest) and "status" in str(problem)
