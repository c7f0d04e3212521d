"""Reports about single tasks, uploads of their results, and the tasks that this worker holds."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.retry import (
    describe,
    is_missing,
    is_too_large_for_proxy,
    is_transient,
    is_unreachable,
    problem_of,
    retry,
    status_of,
)
from zndraw_joblib.jobs.failures import error_text, failure_of
from zndraw_joblib.jobs.forks import check_not_forked
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.results import Content
from zndraw_joblib.jobs.run import Outcome, encoded, failed
from zndraw_joblib.jobs.task_channel import LiveReport, TaskChannel
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import (
    MAX_NAMED_TASKS,
    NamedTask,
    TaskActionRequest,
    TaskResponse,
    TaskUpdateRequest,
    TaskVerdict,
    Verdict,
)
from zndraw_joblib.wire.problems import ResultStoreFull, TaskNotFound
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

# Longer than any restart of a server: a success that is not reported is work done twice.
RETRY_SECONDS = 900.0
_HURRIED_SECONDS = 5.0
_NOT_FOUND, _CONFLICT, _TOO_LARGE, _UNPROCESSABLE = 404, 409, 413, 422
_CANCELLED, _LOST = "was cancelled", "is no longer held by this worker"


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

    def __init__(self, rest: RestApi, held: "HeldTasks", stop: threading.Event) -> None:
        self._rest = rest
        self._held = held
        self._stop = stop
        self._pid = os.getpid()
        self.uploads = ResultUploads(rest, stop)

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
        outcome = self.uploads.upload(task, outcome)
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
        failure = failure_of(error, task.extension) if isinstance(error, BaseException) else None
        return self._fail(task, Outcome(error=error_text(error), retry=retry, failure=failure))

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

    def try_release(self, *tasks: ClaimedTask) -> None:
        """Put tasks back into their queues, with one request for each; log a failure.

        If the server cannot be reached, or after 5 seconds, the others are not released. The server notices
        later that this worker does not hold them.
        """
        deadline = time.monotonic() + _HURRIED_SECONDS
        try:
            for task in tasks:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    log.info("Not all of %d tasks were released: the server is slow", len(tasks))
                    return
                try:
                    self._release(task, remaining)
                except Exception as error:
                    log.info(
                        "Task %s was not released: %s", task.task_id, describe(error), extra=task_fields(task)
                    )
                    if is_unreachable(error):
                        return
                else:
                    log.info("Task %s was released before it started", task.task_id, extra=task_fields(task))
        finally:
            self._held.remove(*tasks)

    def _release(self, task: ClaimedTask, timeout: float | None = None) -> TaskResponse:
        token = TaskActionRequest(**task.token)
        return self._rest.send_call(calls.act_on_task(ops.RELEASE_TASK, task.task_id, token, timeout))

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
    return replace(outcome, error=text, failure=None)


def is_gone(error: BaseException) -> bool:
    """Return whether this worker does not hold the task."""
    return status_of(error) in {_NOT_FOUND, _CONFLICT}


class _Token(NamedTuple):
    task_id: str
    attempt: int
    worker_id: str


class HeldTasks:
    """The tasks that this worker holds. Thread-safe.

    A task that turns out to be cancelled or lost is removed, and its event `cancelled` is set; not while its
    outcome is being reported, because the server may have applied a report whose response was lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._events: dict[_Token, threading.Event] = {}
        self._reported: set[_Token] = set()

    def add(self, *tasks: ClaimedTask) -> None:
        """Add tasks."""
        with self._lock:
            self._events.update((_token_of(task), task.cancelled) for task in tasks)

    def remove(self, *tasks: ClaimedTask) -> None:
        """Remove tasks, if they are there."""
        with self._lock:
            for token in map(_token_of, tasks):
                self._events.pop(token, None)
                self._reported.discard(token)
            self._lock.notify_all()

    def begin_report(self, *tasks: ClaimedTask) -> None:
        """Let only the answer to the report of its outcome end each of these tasks, until `remove`."""
        with self._lock:
            self._reported.update(token for task in tasks if (token := _token_of(task)) in self._events)

    def abandon_report(self, task: ClaimedTask) -> None:
        """Hold a task like any other again: its outcome was not reported."""
        with self._lock:
            self._reported.discard(_token_of(task))

    def ids(self) -> list[str]:
        """Return the ids of the tasks that this worker holds."""
        with self._lock:
            return [token.task_id for token in self._events]

    def wait_for_none(self) -> None:
        """Wait until this worker holds no task."""
        with self._lock:
            self._lock.wait_for(lambda: not self._events)

    def to_name(self) -> list[NamedTask]:
        """Return the tasks for the next heartbeat; if there are too many, others each time."""
        with self._lock:
            tokens = list(self._events)[:MAX_NAMED_TASKS]
            if len(tokens) < len(self._events):
                for token in tokens:
                    self._events[token] = self._events.pop(token)
        return [NamedTask(id=UUID(token.task_id), attempt=token.attempt) for token in tokens]

    def apply_verdicts(self, named: Sequence[NamedTask], verdicts: Sequence[TaskVerdict]) -> None:
        """Apply the server's verdicts on the tasks of a heartbeat, which are in the same order."""
        for task, verdict in zip(named, verdicts, strict=False):
            if task.id == verdict.id and verdict.verdict != Verdict.CONTINUE:
                reason = _CANCELLED if verdict.verdict == Verdict.CANCEL else _LOST
                self._end(_same_attempt(str(task.id), task.attempt), reason)

    def cancel(self, task_id: str, worker_id: str) -> None:
        """Mark a task as cancelled if this worker held it."""
        self._end(lambda token: (token.task_id, token.worker_id) == (task_id, worker_id), _CANCELLED)

    def lose_all(self, worker_id: UUID) -> None:
        """Mark the tasks of a worker as lost: the server does not know the worker."""
        self._end(lambda token: token.worker_id == str(worker_id), _LOST)

    def _end(self, matches: Callable[[_Token], bool], reason: str) -> None:
        with self._lock:
            tokens = [token for token in self._events if matches(token) and token not in self._reported]
            ended = {token: self._events.pop(token) for token in tokens}
            self._lock.notify_all()
        for token, event in ended.items():
            log.info(
                "Task %s %s",
                token.task_id,
                reason,
                extra={"task_id": token.task_id, "worker_id": token.worker_id},
            )
            event.set()


def _same_attempt(task_id: str, attempt: int) -> Callable[[_Token], bool]:
    return lambda token: (token.task_id, token.attempt) == (task_id, attempt)


def _token_of(task: ClaimedTask) -> _Token:
    return _Token(task.task_id, task.attempt, str(task.worker_id))
