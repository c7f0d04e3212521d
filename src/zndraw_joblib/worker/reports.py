"""What a worker tells of its tasks. A report is repeated until the server has it."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from zndraw_joblib.contract.messages import TaskActionRequest, TaskResponse, TaskUpdateRequest
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.retry import describe, persist, status_of
from zndraw_joblib.worker.tasks import ClaimedTask, ResultRefused, error_text, result_of

log = logging.getLogger(__name__)

# Longer than any restart of a server: a success that is not told is work done twice.
PATIENCE_SECONDS = 900.0
_HASTE_SECONDS = 5.0
_NOT_FOUND, _CONFLICT, _TOO_LARGE, _UNPROCESSABLE = 404, 409, 413, 422


class Reports:
    """Start, complete, fail, cancel and release tasks, with the token of their claim.

    Each is repeated for 15 minutes while the server cannot be asked, unless `over` is set. The problem of
    a server that refuses is raised; a task that was taken away is an `InvalidTaskTransition`. What has
    ended leaves `in_flight`.
    """

    def __init__(self, remote: Remote, in_flight: InFlight, over: threading.Event) -> None:
        self._remote = remote
        self._in_flight = in_flight
        self._over = over

    def start(self, task: ClaimedTask, stop: threading.Event | None = None) -> TaskResponse:
        """Tell that the work begins; this is not repeated once `stop` is set."""
        return self._send(task, TaskStatus.RUNNING, over=stop)

    def complete(self, task: ClaimedTask, result: Any = None) -> TaskResponse:
        """Tell that the work is done; with a result that cannot be sent, the task fails and says why."""
        try:
            plain = result_of(result)
        except ResultRefused as error:
            return self.fail(task, str(error))
        try:
            return self._send(task, TaskStatus.COMPLETED, result=plain)
        except Exception as error:
            if status_of(error) not in {_TOO_LARGE, _UNPROCESSABLE}:
                raise
            return self.fail(task, f"The server refused the result: {describe(error)}")

    def fail(self, task: ClaimedTask, error: object, *, retry: bool = True) -> TaskResponse:
        """Tell that the work failed; `error` is a text, or the exception. Without `retry` that is final."""
        text = error_text(error)
        log.info("Task %s failed: %s", task.task_id, text)
        final: dict[str, Any] = {} if retry else {"retry": False}
        try:
            return self._send(task, TaskStatus.FAILED, error=text, **final)
        except Exception as refusal:
            if status_of(refusal) not in {_TOO_LARGE, _UNPROCESSABLE}:
                raise
            text = f"The task failed; the server refused the text of its error: {describe(refusal)[:1000]}"
            return self._send(task, TaskStatus.FAILED, error=text, **final)

    def cancel(self, task: ClaimedTask) -> TaskResponse:
        """Tell that the work is given up."""
        return self._send(task, TaskStatus.CANCELLED)

    def release(self, task: ClaimedTask) -> TaskResponse:
        """Hand the task back to its queue."""
        told = self._ask(task, "release", lambda: self._release(task))
        self._in_flight.remove(task)
        return told

    def release_in_haste(self, task: ClaimedTask) -> None:
        """Hand the task back before the worker leaves; what the server does not hear of, it finds out."""
        self._in_flight.remove(task)
        try:
            self._release(task, _HASTE_SECONDS)
        except Exception as error:
            log.info("Task %s was not handed back: %s", task.task_id, describe(error))
        else:
            log.info("Task %s was handed back before it was begun", task.task_id)

    def _release(self, task: ClaimedTask, timeout: float | None = None) -> TaskResponse:
        token = TaskActionRequest(worker_id=task.worker_id, attempt=task.attempt)
        return self._remote.act(task.task_id, "release", token, timeout)

    def _send(
        self, task: ClaimedTask, status: TaskStatus, *, over: threading.Event | None = None, **outcome: Any
    ) -> TaskResponse:
        update = TaskUpdateRequest(status=status, worker_id=task.worker_id, attempt=task.attempt, **outcome)
        told = self._ask(task, status, lambda: self._remote.report(task.task_id, update), over)
        if status in TERMINAL:
            self._in_flight.remove(task)
        return told

    def _ask(
        self,
        task: ClaimedTask,
        what: str,
        call: Callable[[], TaskResponse],
        over: threading.Event | None = None,
    ) -> TaskResponse:
        what = f"Report {what} of task {task.task_id}"
        try:
            return persist(call, what, patience=PATIENCE_SECONDS, over=over or self._over)
        except Exception as error:
            if status_of(error) in {_NOT_FOUND, _CONFLICT}:
                self._in_flight.remove(task)
            raise
