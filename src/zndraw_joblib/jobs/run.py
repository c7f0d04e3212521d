"""The run of a job's code, in a worker or in the server, and the outcome that is reported of it."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutine
from typing import Any, TypeVar

from zndraw_joblib.jobs.capture import running
from zndraw_joblib.jobs.codecs import NotSerializable, decode
from zndraw_joblib.jobs.extensions import NonRetryable, Retry
from zndraw_joblib.jobs.failures import error_text, error_types, failure_of, misfit_text
from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.jobs.logs import task_fields
from zndraw_joblib.jobs.outputs import PAYLOAD_FAULT
from zndraw_joblib.jobs.results import Content, encode_result
from zndraw_joblib.jobs.task_context import TaskContext, await_until_set
from zndraw_joblib.jobs.traces import TaskSpan
from zndraw_joblib.wire.problems import PredecessorResultInvalid, ResultNotSerializable
from zndraw_joblib.wire.progress import Failure
from zndraw_joblib.wire.statuses import TaskStatus

log = logging.getLogger(__name__)
Settled = TypeVar("Settled")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: with a result as JSON, with content to upload, or with the text of an error.

    A failure with `retry` false is final, whatever the job's policy is. With `retry_after_seconds` the job
    asked for another attempt. `failure` describes the exception, `error_types` are the names of its classes,
    and `error_code` says why the result of a job was not accepted, or that what ran the task was lost. With
    `is_release` the task did not run, and goes back into its queue.
    """

    result: bytes = b"null"
    error: str | None = None
    retry: bool = True
    retry_after_seconds: float | None = None
    error_types: tuple[str, ...] = ()
    failure: Failure | None = None
    content: Content | None = None
    error_code: str | None = None
    is_release: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a `TaskUpdateRequest` that report it."""
        if self.error is None:
            return {"status": TaskStatus.COMPLETED, "result": json.loads(self.result)}
        if self.is_release:
            return {"status": TaskStatus.PENDING, "error": self.error}
        return {
            "status": TaskStatus.FAILED,
            "error": self.error,
            **self._retry_fields,
            **({} if self.failure is None else {"failure": self.failure}),
            **({} if self.error_code is None else {"error_code": self.error_code}),
        }

    @property
    def json(self) -> bytes:
        """Return the same fields as JSON, without the braces around them."""
        if self.error is None:
            return b'"status":"completed","result":%s' % self.result
        if self.is_release:
            return b'"status":"pending","error":%s' % json.dumps(self.error).encode()
        more = b",%s" % json.dumps(fields)[1:-1].encode() if (fields := self._retry_fields) else b""
        if self.failure is not None:
            more += b',"failure":' + self.failure.model_dump_json().encode()
        if self.error_code is not None:
            more += b',"error_code":"%s"' % self.error_code.encode()
        return b'"status":"failed","error":%s%s' % (json.dumps(self.error).encode(), more)

    @property
    def _retry_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {} if self.retry else {"retry": False}
        if self.retry_after_seconds is not None:
            fields["retry_after_seconds"] = self.retry_after_seconds
        if self.error_types:
            fields["error_types"] = list(self.error_types)
        return fields


def make_extension(cls: type[Any], payload: Any) -> tuple[Any, str | None]:
    """Return an instance of a job's class, or the reason why it cannot be made from a payload."""
    try:
        return cls.model_validate(decode(payload)), None
    # BaseException: sys.exit() in a validator ends its task, not the worker.
    except BaseException as error:
        return None, misfit_text(cls, error)


def prepare_extension(cls: type[Any], payload: dict[str, Any]) -> tuple[Any, Outcome | None]:
    """Return an instance of a job's class, or the outcome of a task whose payload makes none."""
    if fault := payload.get(PAYLOAD_FAULT):
        return None, Outcome(error=fault, retry=False, error_code=PredecessorResultInvalid.problem_id())
    extension, fault = make_extension(cls, payload)
    return extension, None if fault is None else Outcome(error=fault, retry=False)


def settle_code(
    call: Callable[[], Any],
    context: TaskContext,
    end: Callable[[Any], Settled],
    fail: Callable[[BaseException], Settled],
    pid: int,
) -> Settled | Coroutine[Any, Any, Any]:
    """Call a job's code; return what `end` or `fail` makes of its end, or the coroutine that it returned.

    `context` is what runs here for this process, `pid`: a task, or the tasks of a batch.
    """
    try:
        with running(context):
            result = call()
            exit_if_forked(pid)
            return result if iscoroutine(result) else end(result)
    # Not Exception: sys.exit() in an extension ends its task, not the worker.
    except BaseException as error:
        exit_if_forked(pid, error)
        return fail(error)


async def settle_coroutine(
    work: Coroutine[Any, Any, Any],
    context: TaskContext,
    end: Callable[[Any], Settled],
    fail: Callable[[BaseException], Settled],
    pid: int,
) -> Settled:
    """Await a coroutine that `settle_code` returned; return what `end` or `fail` makes of its end."""
    try:
        with running(context):
            result = await await_until_set(work, context.cancelled)
            exit_if_forked(pid)
            return end(result)
    # asyncio would end the event loop after a SystemExit.
    except BaseException as error:
        exit_if_forked(pid, error)
        return fail(error)


def run_settled(
    work: Coroutine[Any, Any, Settled], fail: Callable[[BaseException], Settled], pid: int
) -> Settled:
    """Return what a coroutine returns in an event loop of its own."""
    try:
        return asyncio.run(work)
    # asyncio raises a SystemExit of a task that a job started here, not in its coroutine.
    except BaseException as error:
        exit_if_forked(pid, error)
        return fail(error)


def run_job(
    call: Callable[[], Any], task: TaskContext, extension: Any, pid: int
) -> Outcome | Coroutine[Any, Any, Any]:
    """Call a job's code; return the outcome, or the coroutine that it returned, for `await_job`.

    `extension` is the instance of the job's class, and `pid` this process.
    """
    return settle_code(call, task, partial(succeeded, task, extension), partial(failed, task, extension), pid)


async def await_job(work: Coroutine[Any, Any, Any], task: TaskContext, extension: Any, pid: int) -> Outcome:
    """Return the outcome of a coroutine that `run_job` returned."""
    end, fail = partial(succeeded, task, extension), partial(failed, task, extension)
    return await settle_coroutine(work, task, end, fail, pid)


def run_to_end(
    call: Callable[[], Any],
    task: TaskContext,
    extension: Any,
    pid: int,
    wait: Callable[..., Coroutine[Any, Any, Outcome]] = await_job,
) -> Outcome:
    """Return the outcome of a job's code; a coroutine runs in an event loop of its own, by `wait`."""
    outcome = run_job(call, task, extension, pid)
    if isinstance(outcome, Outcome):
        return outcome
    return run_settled(wait(outcome, task, extension, pid), partial(failed, task, extension), pid)


def succeeded(task: TaskContext, extension: Any, result: Any) -> Outcome:
    """Return the outcome of a run that returned `result`; one that cannot be encoded is a failure.

    An exception from the result's own code, such as a generator, is a failure too.
    """
    try:
        return encoded(result)
    except BaseException as error:
        return failed(task, extension, error)


def encoded(result: Any) -> Outcome:
    """Return the outcome with a result; one that cannot be encoded is a failure.

    Raises an exception of the result's own code.
    """
    try:
        value = encode_result(result)
    except NotSerializable as error:
        text = error_text(f"The result cannot be sent as JSON: {error}")
        return Outcome(error=text, error_code=ResultNotSerializable.problem_id())
    return Outcome(content=value) if isinstance(value, Content) else Outcome(value)


def failed(task: TaskContext, extension: Any, error: BaseException) -> Outcome:
    """Return the outcome of a run that raised `error`."""
    log.debug("Task %s raised", task.task_id, exc_info=error, extra=task_fields(task))
    return Outcome(
        error=error_text(error),
        retry=not isinstance(error, NonRetryable),
        retry_after_seconds=error.after_seconds if isinstance(error, Retry) else None,
        error_types=error_types(error),
        failure=failure_of(error, extension),
    )


def end_span(span: TaskSpan | None, task: TaskContext, outcome: Outcome) -> None:
    """End the span of a run, if it has one, with its outcome."""
    if span is not None:
        is_cancelled = task.cancelled.is_set()
        error = None if is_cancelled else outcome.error
        span.end_run(error, outcome.failure, is_cancelled=is_cancelled)
