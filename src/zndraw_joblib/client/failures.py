"""The failure of a task as an exception of its submitter."""

from typing import Self
from uuid import UUID

from zndraw_joblib.contract.failures import one_line
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus


class TaskFailed(Exception):
    """A task has ended without a result: it failed, or it was cancelled (`TaskCancelled`).

    - `task_id`, `task`: its id and its last state.
    - `code`: ``error`` for an exception of the job, or the name of a problem, like ``worker-lost``.
    - `message`: the text of the failure.
    - `type`, `traceback`: the class of the job's exception and the frames of the job's code; None if the
      job raised none.
    """

    def __init__(self, task: TaskResponse) -> None:
        self.task_id: UUID = task.id
        self.task = task
        self.code = task.error_code or str(task.status)
        self.message = task.error or f"The task is {task.status}"
        self.type = task.failure.type if task.failure else None
        self.traceback = task.failure.traceback if task.failure else None
        super().__init__(
            f"Task {task.id} {task.status} ({self.code}): {one_line(self.message, task.failure)}"
        )
        if self.traceback:
            self.add_note(f"In the worker:\n{self.traceback.rstrip()}")

    @classmethod
    def of(cls, task: TaskResponse) -> Self | "TaskCancelled":
        """Return the exception for a task that failed or was cancelled."""
        return TaskCancelled(task) if task.status == TaskStatus.CANCELLED else cls(task)

    def __reduce__(self) -> tuple[type[Self], tuple[TaskResponse]]:
        return type(self), (self.task,)


class TaskCancelled(TaskFailed):
    """A task was cancelled, so it has no result."""


class AmbiguousJob(LookupError):
    """A room sees several jobs of this name; pass the full name of one."""
