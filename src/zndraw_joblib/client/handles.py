"""A task of a synchronous client: its id, and what can be done with it."""

import time
from collections.abc import Iterator
from typing import Any

from zndraw_joblib.client import operations
from zndraw_joblib.client.bars import Bar
from zndraw_joblib.client.calls import quoted
from zndraw_joblib.client.events import Following, TaskEvent
from zndraw_joblib.client.explaining import raise_explained
from zndraw_joblib.client.flows import read, send_once
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.task_id import TaskId
from zndraw_joblib.client.waiting import WAIT_SECONDS, explain, logs, result_of, wait
from zndraw_joblib.contract.history import NumberedLine, TaskExplanation, TaskHistory
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus


class TaskHandle(TaskId[TaskRest]):
    """A task. It is its id as text: equal to it, and usable wherever an id is.

    `state` is the task as this handle read it last, None before that. All times are seconds. A copy or a
    pickle is the plain text.
    """

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Any:
        """Wait for the end of the task, and return its result as the value that its job returned.

        Raises `TaskFailed` with the code, the message and the traceback, `TaskCancelled`, TimeoutError after
        `timeout` seconds, and `ResultExpired`. The wait continues while the server restarts. `progress`
        shows a bar, also in a notebook.
        """
        return self._rest.run(result_of(self.wait(timeout, progress=progress), self._rule))

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> TaskResponse:
        """Wait for the end of the task, and return it. Raises TimeoutError after `timeout` seconds."""
        with Bar(shown=progress) as bar:
            step = bar.SECONDS if progress else WAIT_SECONDS
            flow = wait(self, timeout, self._rule, show=bar.show_task, step=step)
            return self._keep(self._rest.run(flow))

    def refresh(self) -> TaskResponse:
        """Return the task as it is now."""
        call = operations.get_task(self)
        task, _ = self._rest.run(read(call, self._what("Reading"), self._rule))
        return self._keep(task)

    def status(self) -> TaskStatus:
        """Return the status of the task now."""
        return self.refresh().status

    def events(self) -> Iterator[TaskEvent]:
        """Yield the events of the task, first a snapshot, until it has ended.

        After a lost connection it continues behind the last event.
        """
        following = Following(self, self._rule)
        while not following.has_ended:
            error: Exception | None = None
            try:
                with self._rest.stream(following.open()) as response:
                    for piece in response.iter_bytes():
                        yield from following.feed(piece)
            except Exception as caught:
                error = caught
            if not following.has_ended:
                try:
                    pause = following.lost(error)
                except Exception as final:
                    raise_explained(final, self._rest.explain)
                time.sleep(pause)

    def cancel(self) -> TaskResponse:
        """Cancel the task, and return it. Raises `InvalidTaskTransition` if it has ended otherwise."""
        flow = send_once(self._what("Cancelling"), self._cancel_call, None, self._rule)
        return self._keep(self._rest.run(flow))

    def retry(self) -> TaskResponse:
        """Put the failed or cancelled task into its queue again, and return it."""
        flow = send_once(self._what("Retrying"), self._retry_call, None, self._rule)
        return self._keep(self._rest.run(flow))

    def logs(self, attempt: int | None = None) -> list[NumberedLine]:
        """Return the lines of the log of an attempt, by default of the current or last one."""
        return self._rest.run(logs(self, attempt, self._rule))

    def history(self) -> TaskHistory:
        """Return all transitions of the task, and the details of its last attempts."""
        call = operations.get(f"/tasks/{quoted(self)}/history", TaskHistory)
        return self._rest.run(read(call, self._what("Reading the history of"), self._rule))

    def explain(self) -> TaskExplanation:
        """Return why the task has its status, most important reason first."""
        return self._rest.run(read(explain(self), self._what("Explaining"), self._rule))
