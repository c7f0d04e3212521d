"""Run the code of a task, and turn whatever comes of it into an outcome to report."""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any

from zndraw_joblib.contract.cancellation import await_until_set
from zndraw_joblib.contract.capture import running
from zndraw_joblib.contract.codecs import NotSerializable, decode
from zndraw_joblib.contract.extensions import NonRetryable
from zndraw_joblib.contract.failures import failure_of
from zndraw_joblib.contract.forks import exit_if_forked
from zndraw_joblib.contract.logs import task_fields
from zndraw_joblib.contract.outcomes import error_text, misfit_text
from zndraw_joblib.contract.problems import ResultNotSerializable
from zndraw_joblib.contract.progress import Failure
from zndraw_joblib.contract.results import Content, encode_result
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)

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
