"""The results of the demo, and the check that no task is missing."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from examples.demo.jobs import is_valid_python
from examples.demo.processes import WORKERS
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

DISCONNECTED = "Worker disconnected"


class Kill(NamedTuple):
    """The killed process, the task it ran, and the time of the kill."""

    pid: int
    task: TaskResponse
    at: datetime


@dataclass(frozen=True, slots=True)
class Summary:
    """The submitted ids, the server's tasks, the kill, and the latencies of tasks for idle workers."""

    submitted: set[UUID]
    tasks: list[TaskResponse]
    kill: Kill
    latencies: list[timedelta]

    def count(self, status: TaskStatus) -> int:
        """Return the number of tasks with a status."""
        return Counter(task.status for task in self.tasks)[status]

    @property
    def completed(self) -> list[TaskResponse]:
        """The completed tasks."""
        return [task for task in self.tasks if task.status == TaskStatus.COMPLETED]

    @property
    def disconnected(self) -> list[TaskResponse]:
        """The tasks that failed because their worker was killed."""
        return [task for task in self.tasks if task.error == DISCONNECTED]

    @property
    def invalid(self) -> list[TaskResponse]:
        """The tasks that failed for another reason."""
        failed = [task for task in self.tasks if task.status == TaskStatus.FAILED]
        return [task for task in failed if task.error != DISCONNECTED]

    @property
    def seconds(self) -> float:
        """The time from the first submit to the last completion."""
        ends = [task.completed_at for task in self.completed if task.completed_at]
        return (max(ends) - min(task.created_at for task in self.tasks)).total_seconds()

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that the jobs themselves used."""
        return float(sum(task.result["cpu_seconds"] for task in self.completed))

    @property
    def job_seconds(self) -> float:
        """The time that the tasks' slots spent in the jobs themselves."""
        return float(sum(task.result["seconds"] for task in self.completed))

    @property
    def slot_seconds(self) -> float:
        """The time that the slots of all workers had from the first submit on, one slot each."""
        first = min(task.created_at for task in self.tasks)
        return (WORKERS - 1) * self.seconds + (self.kill.at - first).total_seconds()

    def problems(self) -> list[str]:
        """Return a sentence for each failed check."""
        checks = {
            "the server does not have exactly the submitted tasks": (
                {task.id for task in self.tasks} == self.submitted and len(self.tasks) == len(self.submitted)
            ),
            "some tasks have not ended": all(task.status in TERMINAL for task in self.tasks),
            "some tasks were cancelled": self.count(TaskStatus.CANCELLED) == 0,
            f"the killed worker's tasks are not those with the error {DISCONNECTED!r}": (
                self.kill.task.id in {task.id for task in self.disconnected}
                and {task.worker_id for task in self.disconnected} == {self.kill.task.worker_id}
            ),
            "tasks failed for modules that are valid Python": not any(
                is_valid_python(task.payload["path"]) for task in self.invalid
            ),
        }
        return [problem for problem, is_fine in checks.items() if not is_fine]
