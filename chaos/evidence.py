"""What is known after a run: what was asked for, what was done to it, and what came of it."""

from dataclasses import dataclass, field
from functools import cached_property

from chaos.journal import Call, Effect
from zndraw_joblib.contract.messages import TaskHistory, TaskResponse
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

WORKER_LOST = "worker-lost"
_LOST_OF_OLD = "Worker disconnected"


@dataclass(slots=True)
class Submission:
    """A submit. It was accepted if it has the id of a task; else it is in doubt.

    It shall fail `failures` times, and take a `share` of the longest time that a task takes.
    """

    number: int
    job: str
    room: str
    failures: int = 0
    share: float = 0.0
    sent_at: float = 0.0
    answered_at: float | None = None
    task: str | None = None


@dataclass(slots=True)
class Fault:
    """Something that was done, from `at` to `until`.

    `pids` are the workers that it hit; without them it hit all. Where it kept the server away, that came
    back no sooner than `back_at`.
    """

    kind: str
    at: float
    until: float = 0.0
    pids: tuple[int, ...] = ()
    back_at: float | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The server took a task from a worker, which it held for lost."""

    at: float
    task: str
    worker: str
    attempt: int


@dataclass
class Evidence:
    """All that the checker looks at. Times are seconds of the machine's clock, the server's own included."""

    submissions: list[Submission]
    tasks: list[TaskResponse]
    effects: list[Effect]
    calls: list[Call]
    faults: list[Fault] = field(default_factory=list)
    histories: dict[str, TaskHistory] = field(default_factory=dict)
    policies: dict[str, JobPolicy] = field(default_factory=dict)
    lines: frozenset[str] = frozenset()
    deadlocks: int = 0
    worker_timeout_seconds: float = 60.0
    sweeper_interval_seconds: float = 30.0

    @cached_property
    def by_id(self) -> dict[str, TaskResponse]:
        """The tasks by their ids."""
        return {str(task.id): task for task in self.tasks}

    @cached_property
    def ends(self) -> list[Call]:
        """The reports that the server has taken, and by which it said that the task has ended."""
        reports = (call for call in self.calls if call.kind == "report" and call.is_accepted)
        return [call for call in reports if call.asked == call.became and call.became in TERMINAL]

    @cached_property
    def losses(self) -> list[Loss]:
        """Each time that a worker was held for lost, for each task that it held."""
        if self.histories:
            return [loss for history in self.histories.values() for loss in _losses(history)]
        return [
            Loss(task.completed_at.timestamp(), str(task.id), str(task.worker_id), task.attempt)
            for task in self.tasks
            if task.status == TaskStatus.FAILED and task.error == _LOST_OF_OLD and task.completed_at
        ]

    def policy(self, job: str) -> JobPolicy:
        """Return how the tasks of a job are treated."""
        return self.policies.get(job) or JobPolicy()


def _losses(history: TaskHistory) -> list[Loss]:
    return [
        Loss(step.at.timestamp(), str(history.id), str(step.worker_id), step.attempt)
        for step in history.transitions
        if step.reason == WORKER_LOST
    ]
