"""What came of the demo, and whether every task is accounted for."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.cli.demo.modules import can_parse
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

DISCONNECTED = "Worker disconnected"


class Kill(NamedTuple):
    """The killed process, the task it held, and when it was killed."""

    pid: int
    task: TaskResponse
    at: datetime


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ids that were submitted, the tasks that the server has, and the waits of idle workers' tasks."""

    submitted: set[UUID]
    tasks: list[TaskResponse]
    kill: Kill
    pick_ups: list[timedelta]

    def count(self, status: TaskStatus) -> int:
        """Count the tasks of a status."""
        return Counter(task.status for task in self.tasks)[status]

    @property
    def completed(self) -> list[TaskResponse]:
        """The tasks that were completed."""
        return [task for task in self.tasks if task.status == TaskStatus.COMPLETED]

    @property
    def lost(self) -> list[TaskResponse]:
        """The tasks that failed because their worker died."""
        return [task for task in self.tasks if task.error == DISCONNECTED]

    @property
    def unreadable(self) -> list[TaskResponse]:
        """The tasks that failed by themselves."""
        return [task for task in self.tasks if task.status == TaskStatus.FAILED and task not in self.lost]

    @property
    def seconds(self) -> float:
        """How long it took from the first submit to the last completion."""
        ends = [task.completed_at for task in self.completed if task.completed_at]
        return (max(ends) - min(task.created_at for task in self.tasks)).total_seconds()

    def faults(self) -> list[str]:
        """Return what is not as it must be, in sentences."""
        checks = {
            "the server does not have exactly the submitted tasks": (
                {task.id for task in self.tasks} == self.submitted and len(self.tasks) == len(self.submitted)
            ),
            "tasks have not ended": all(task.status in TERMINAL for task in self.tasks),
            "tasks were cancelled": self.count(TaskStatus.CANCELLED) == 0,
            "the killed worker's task is not the one that was lost": (
                [task.id for task in self.lost] == [self.kill.task.id]
            ),
            "modules failed that can be read": not any(can_parse(t.payload["path"]) for t in self.unreadable),
        }
        return [sentence for sentence, is_fine in checks.items() if not is_fine]
