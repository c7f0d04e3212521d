"""What a worker tells of its tasks. A report is repeated until the server has it."""

import logging
import threading
from typing import Any

from zndraw_joblib.contract.messages import TaskResponse, TaskUpdateRequest
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.retry import describe, persist, status_of
from zndraw_joblib.worker.tasks import ClaimedTask, ResultRefused, error_text, result_of

log = logging.getLogger(__name__)

# Longer than any restart of a server: a success that is not told is work done twice.
PATIENCE_SECONDS = 900.0
_NOT_FOUND, _CONFLICT, _TOO_LARGE, _UNPROCESSABLE = 404, 409, 413, 422


class Reports:
    """Start, complete, fail and cancel tasks, with the token of their claim.

    Each is repeated for 15 minutes while the server cannot be asked, unless `over` is set. The problem of
    a server that refuses is raised; a task that was taken away is an `InvalidTaskTransition`. What has
    ended leaves `in_flight`.
    """

    def __init__(self, remote: Remote, in_flight: InFlight, over: threading.Event) -> None:
        self._remote = remote
        self._in_flight = in_flight
        self._over = over

    def start(self, task: ClaimedTask) -> TaskResponse:
        """Tell that the work begins."""
        return self._send(task, TaskStatus.RUNNING)

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

    def fail(self, task: ClaimedTask, error: object) -> TaskResponse:
        """Tell that the work failed; `error` is a text, or the exception."""
        text = error_text(error)
        log.info("Task %s failed: %s", task.task_id, text)
        try:
            return self._send(task, TaskStatus.FAILED, error=text)
        except Exception as refusal:
            if status_of(refusal) not in {_TOO_LARGE, _UNPROCESSABLE}:
                raise
            text = f"The task failed; the server refused the text of its error: {describe(refusal)[:1000]}"
            return self._send(task, TaskStatus.FAILED, error=text)

    def cancel(self, task: ClaimedTask) -> TaskResponse:
        """Tell that the work is given up."""
        return self._send(task, TaskStatus.CANCELLED)

    def _send(self, task: ClaimedTask, status: TaskStatus, **outcome: Any) -> TaskResponse:
        update = TaskUpdateRequest(status=status, worker_id=task.worker_id, attempt=task.attempt, **outcome)
        try:
            told = persist(
                lambda: self._remote.report(task.task_id, update),
                f"Report {status} of task {task.task_id}",
                patience=PATIENCE_SECONDS,
                over=self._over,
            )
        except Exception as error:
            if status_of(error) in {_NOT_FOUND, _CONFLICT}:
                self._in_flight.remove(task)
            raise
        if status in TERMINAL:
            self._in_flight.remove(task)
        return told
