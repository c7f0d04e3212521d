"""Wait for the end of a task, and read its result. Flows without I/O."""

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Any

from zndraw_joblib.client import operations
from zndraw_joblib.client.calls import Call, quoted
from zndraw_joblib.client.failures import TaskFailed
from zndraw_joblib.client.flows import Flow, Pause, ask, read
from zndraw_joblib.client.retry import RequestBackoff, RetryRule, describe
from zndraw_joblib.contract import codecs
from zndraw_joblib.contract.history import NumberedLine, TaskExplanation, TaskLog
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.results import decode_content
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
_POLL_PAUSE_SECONDS = 0.25


class Polling:
    """Decides the pauses between requests for tasks while the server may be unreachable."""

    def __init__(self, what: str, rule: RetryRule) -> None:
        self._what = what
        self._rule = rule
        self._backoff = RequestBackoff()

    def answered(self, applied: int, elapsed: float) -> float:
        """Return the pause after a response; 0 if the server itself waited."""
        self._backoff.reset()
        return 0.0 if applied > 0 and elapsed > applied / 2 else _POLL_PAUSE_SECONDS

    def failed(self, error: Exception) -> float:
        """Return the pause after an error. Raises it if it is final."""
        if not self._rule.may_wait_on(error):
            raise error
        pause = self._backoff.after(error)
        log.warning("Waiting for %s: %s; trying again in %.1f s", self._what, describe(error), pause)
        return pause


def wait(
    task_id: str,
    timeout: float | None,
    rule: RetryRule,
    *,
    show: Callable[[TaskResponse], object] | None = None,
    step: float = WAIT_SECONDS,
) -> Flow[TaskResponse]:
    """Return a task once it has ended; go on while the server restarts.

    `show` gets each state that is read, at least every `step` seconds. Raises TimeoutError after `timeout`
    seconds, with the reason why the task waits.
    """
    deadline = time.monotonic() + (inf if timeout is None else timeout)
    polling = Polling(f"task {task_id}", rule)
    while True:
        began = time.monotonic()
        task = None
        try:
            wanted = round(max(0.0, min(deadline - began, step)))
            task, applied = yield from ask(operations.get_task(task_id, wanted))
        except Exception as error:
            pause = polling.failed(error)
        else:
            pause = polling.answered(applied, time.monotonic() - began)
            if show is not None:
                show(task)
            if task.status in TERMINAL:
                return task
        left = deadline - time.monotonic()
        if left <= 0:
            status = task.status if task else "out of reach"
            raise TimeoutError(f"Task {task_id} is {status} after {timeout:g} s{(yield from _why(task))}")
        yield Pause(min(pause, left))


def _why(task: TaskResponse | None) -> Flow[str]:
    """Return the first reason why a task waits, as the end of a sentence."""
    if task is None or task.status != TaskStatus.PENDING:
        return ""
    try:
        found = yield from ask(explain(str(task.id)))
    except Exception as error:
        log.debug("Explaining task %s: %s", task.id, describe(error))
        return ""
    return f": {found.reasons[0].detail}" if found.reasons else ""


def explain(task_id: str) -> Call[TaskExplanation]:
    """Return why a task has its status."""
    return operations.get(f"/tasks/{quoted(task_id)}/explain", TaskExplanation)


def result_of(task: TaskResponse, rule: RetryRule) -> Flow[Any]:
    """Return the result of a task that has ended, as the value that its job returned.

    Raises `TaskFailed`, or `ResultExpired`.
    """
    if task.status != TaskStatus.COMPLETED:
        raise TaskFailed.of(task)
    if task.stored_result is None and task.result is not None:
        return codecs.decode(task.result)
    return (yield from read_result(str(task.id), rule))


def read_result(task_id: str, rule: RetryRule) -> Flow[Any]:
    """Return the result of a task. Raises `ResultNotFound` if it has none (yet), and `ResultExpired`."""
    what = f"Reading the result of task {task_id}"
    return decode_content(*(yield from read(operations.read_task_result(task_id), what, rule)))


def logs(task_id: str, attempt: int | None, rule: RetryRule) -> Flow[list[NumberedLine]]:
    """Return the lines of an attempt's log, by default of the current or last one."""
    lines: list[NumberedLine] = []
    after = 0
    while True:
        call = operations.get(f"/tasks/{quoted(task_id)}/log", TaskLog, attempt=attempt, after=after)
        part = yield from read(call, f"Reading the log of task {task_id}", rule)
        lines += part.lines
        if part.next is None:
            return lines
        attempt, after = part.attempt, part.next
