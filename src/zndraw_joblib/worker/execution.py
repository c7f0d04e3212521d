"""Run the code of a task, and turn whatever comes of it into an outcome to report."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any
from uuid import UUID

from zndraw_joblib.client.retry import describe
from zndraw_joblib.jobs.capture import running
from zndraw_joblib.jobs.codecs import NotSerializable, decode
from zndraw_joblib.jobs.extensions import NonRetryable
from zndraw_joblib.jobs.failures import error_text, failure_of, misfit_text, one_line
from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.jobs.logs import TASK_LOG, task_fields
from zndraw_joblib.jobs.results import Content, encode_result
from zndraw_joblib.jobs.task_context import await_until_set
from zndraw_joblib.jobs.traces import RunSpans, TaskSpan, start_run, start_span
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.problems import ResultNotSerializable
from zndraw_joblib.wire.progress import Failure
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)
# The start and the end of each task, one line each.
_task_log = logging.getLogger(TASK_LOG)

Execute = Callable[[ClaimedTask], Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended: with a result as JSON, with content to upload, or with the text of an error.

    A failure with `retry` false is final, whatever the job's policy is. `failure` describes the exception,
    and `error_code` says why the result of a job was not accepted.
    """

    result: bytes = b"null"
    error: str | None = None
    retry: bool = True
    failure: Failure | None = None
    content: Content | None = None
    error_code: str | None = None


def run_task(execute: Execute, task: ClaimedTask, pid: int) -> Outcome | Coroutine[Any, Any, Any]:
    """Call `execute`; return the outcome, or the coroutine that it returned. `pid` is this process."""
    try:
        with running(task):
            result = execute(task)
            exit_if_forked(pid)
            return result if iscoroutine(result) else succeeded(task, result)
    # Not Exception: sys.exit() in an extension ends its task, not the worker.
    except BaseException as error:
        exit_if_forked(pid, error)
        return failed(task, error)


async def await_task(work: Coroutine[Any, Any, Any], task: ClaimedTask, pid: int) -> Outcome:
    """Return the outcome of a coroutine that `execute` returned."""
    try:
        with running(task):
            result = await await_until_set(work, task.cancelled)
            exit_if_forked(pid)
            return succeeded(task, result)
    # asyncio would end the event loop after a SystemExit.
    except BaseException as error:
        exit_if_forked(pid, error)
        return failed(task, error)


def succeeded(task: ClaimedTask, result: Any) -> Outcome:
    """Return the outcome of a task that returned `result`; one that cannot be encoded is a failure.

    An exception from the result's own code, such as a generator, is a failure too.
    """
    try:
        encoded = encode_result(result)
        return Outcome(encoded) if isinstance(encoded, bytes) else Outcome(content=encoded)
    except NotSerializable as error:
        return not_serializable(error)
    except BaseException as error:
        log.debug("The result of task %s raised", task.task_id, exc_info=error, extra=task_fields(task))
        return _failure(task, error)


def not_serializable(error: NotSerializable) -> Outcome:
    """Return the outcome of a task whose result cannot be encoded."""
    text = error_text(f"The result cannot be sent as JSON: {error}")
    return Outcome(error=text, error_code=ResultNotSerializable.problem_id())


def failed(task: ClaimedTask, error: BaseException) -> Outcome:
    """Return the outcome of a task that raised `error`."""
    log.debug("Task %s of %s raised", task.task_id, task.job_name, exc_info=error, extra=task_fields(task))
    return _failure(task, error)


def _failure(task: ClaimedTask, error: BaseException) -> Outcome:
    final = isinstance(error, NonRetryable)
    return Outcome(error=error_text(error), retry=not final, failure=failure_of(error, task.extension))


def make_extension(cls: type[Any] | None, task: ClaimedTask) -> tuple[Any, str | None]:
    """Return a task's extension, or the reason why it cannot be made."""
    if cls is None:
        return None, f"This worker does not know the job {task.job_name!r}"
    try:
        return cls.model_validate(decode(task.payload)), None
    # BaseException: sys.exit() in a validator ends its task, not the worker.
    except BaseException as error:
        return None, misfit_text(cls, error)


# Run the coroutines of jobs with an `async def run`, all in one thread.


class Coroutines:
    """An event loop in a thread, which starts with the first coroutine. Thread-safe.

    `upload` stores the content of an outcome; it is called in other threads.
    """

    def __init__(self, pid: int, upload: Callable[[ClaimedTask, Outcome], Outcome]) -> None:
        self._pid = pid
        self._upload = upload
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.running = 0

    @property
    def is_current_thread(self) -> bool:
        """Return whether the caller is in a coroutine."""
        return threading.current_thread() is self._thread

    def run(
        self, work: Coroutine[Any, Any, Any], task: ClaimedTask, on_end: Callable[[Outcome], None]
    ) -> None:
        """Await what `execute` returned for a task, and call `on_end` in the thread of the loop.

        If that thread cannot start, the task has failed, and `on_end` is called in this one.
        """

        async def await_and_end() -> None:
            outcome = await await_task(work, task, self._pid)
            if outcome.content is not None:
                outcome = await asyncio.to_thread(self._upload, task, outcome)
            with self._lock:
                self.running -= 1
            on_end(outcome)

        try:
            with self._lock:
                loop = self._loop or self._start()
                self.running += 1
        except Exception as error:
            work.close()
            on_end(failed(task, error))
        else:
            asyncio.run_coroutine_threadsafe(await_and_end(), loop)

    def close(self) -> None:
        """End the thread, once no coroutine runs."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            # The thread may have ended, if a coroutine left the event loop meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run_until_closed, args=(loop,), name="zndraw-joblib-async", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            self._loop = None
            loop.close()
            raise
        return loop

    def _run_until_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        with closing(loop):
            while self._loop is loop:
                self._run_once(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())

    def _run_once(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            exit_if_forked(self._pid)
        # asyncio raises a SystemExit of a task that a job started, and leaves the loop; its other tasks wait.
        except BaseException as error:
            exit_if_forked(self._pid, error)
            log.warning("A coroutine ended the event loop, which continues: %s", describe(error))


# Log the start and the end of each task of a worker, one line each.


def log_start(task: ClaimedTask) -> None:
    """Log that a task starts."""
    if _task_log.isEnabledFor(logging.INFO):
        _task_log.info("Task %s of %s started", task.task_id, task.job_name, extra=task_fields(task))


def log_end(task: ClaimedTask, outcome: Outcome, seconds: float) -> None:
    """Log how a task ended here; a failure with the last line of the job's own code that it passed."""
    is_failure = outcome.error is not None and not task.cancelled.is_set()
    level = logging.ERROR if is_failure else logging.INFO
    if not _task_log.isEnabledFor(level):
        return
    took = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"
    if task.cancelled.is_set():
        how = f"ended after {took}: it was cancelled"
    elif outcome.error is None:
        how = f"completed in {took}"
    else:
        how = f"failed after {took}: {one_line(outcome.error, outcome.failure)}"
    _task_log.log(level, "Task %s of %s %s", task.task_id, task.job_name, how, extra=task_fields(task))


# Spans of a worker, if the program has set up OpenTelemetry: of claims that got tasks, and of runs.


def record_claim(worker_id: UUID, tasks: Sequence[TaskResponse], sent_at: float) -> None:
    """Record the span of a claim that got tasks, linked to their submits. `sent_at` is a wall-clock time."""
    about = {
        "messaging.operation.type": "receive",
        "messaging.operation.name": "claim",
        "messaging.client.id": str(worker_id),
        "messaging.batch.message_count": len(tasks),
    }
    given = [task.traceparent for task in tasks]
    span = start_span("claim", "CONSUMER", about, given=given, started_ns=int(sent_at * 1e9))
    if span is not None:
        span.end()


def start_task_span(task: ClaimedTask, how: RunSpans) -> TaskSpan | None:
    """Start the span of a task's run. A failure is logged: the task runs without a span."""
    worker, context = str(task.worker_id), task.traceparent
    try:
        return start_run(task.job_name, task.task_id, worker, task.attempt, traceparent=context, how=how)
    except Exception:
        log.exception("Task %s runs without a span: the tracer provider of the program failed", task.task_id)
        return None


def end_task_span(span: TaskSpan | None, task: ClaimedTask, outcome: Outcome) -> None:
    """End the span of a task's run with its outcome."""
    if span is not None:
        error = None if task.cancelled.is_set() else outcome.error
        span.end_run(error, outcome.failure, is_cancelled=task.cancelled.is_set())
