"""The record of a run: what submitter, workers and faults did, and what the server stored."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.history import TaskHistory
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import TERMINAL
from zndraw_joblib.wire.successors import OnFailure

WORKER_LOST = "worker-lost"


class WorkerLog:
    """A file of one worker process, one JSON line per event. A killed process leaves only whole lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **fields: Any) -> None:
        """Append an event with the current time, in one write."""
        line = {"event": event, "at": time.time(), "pid": os.getpid(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class ExecutionEvent:
    """A worker process `started` or `finished` executing an attempt of a task."""

    event: str
    at: float
    pid: int
    task_id: str
    attempt: int
    worker_id: str


@dataclass(slots=True)
class WorkerRequest:
    """A request of a worker and its response, if the worker received one.

    `kind` is `claim`, `report`, `heartbeat`, `register` or `delete`. `worker_id`, `task_id` and `attempt`
    come from the request or, for a claim and a registration, from the response. A report sets `status`;
    `resulting_status` is in its response.
    """

    kind: str
    pid: int
    sent_at: float
    worker_id: str | None = None
    task_id: str | None = None
    attempt: int | None = None
    status: str | None = None
    response_at: float | None = None
    status_code: int | None = None
    resulting_status: str | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the response reports success."""
        return self.status_code is not None and self.status_code < 300

    @property
    def ends_task(self) -> bool:
        """Whether this is a report of a terminal status."""
        return self.kind == "report" and self.status in TERMINAL


def read_worker_logs(folder: Path) -> tuple[list[ExecutionEvent], list[WorkerRequest]]:
    """Return the events and the requests of all workers, ordered by time."""
    executions: list[ExecutionEvent] = []
    requests: list[WorkerRequest] = []
    for path in folder.rglob("*.jsonl"):
        unanswered: dict[int, WorkerRequest] = {}
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            event, number = line.pop("event"), line.pop("number", 0)
            if event == "sent":
                request = unanswered[number] = WorkerRequest(sent_at=line.pop("at"), **line)
                requests.append(request)
            elif event == "answered":
                request = unanswered.pop(number)
                request.response_at = line.pop("at")
                for name, value in line.items():
                    setattr(request, name, value)
            else:
                executions.append(ExecutionEvent(event, **line))
    return sorted(executions, key=lambda it: it.at), sorted(requests, key=lambda it: it.sent_at)


@dataclass(slots=True)
class Submission:
    """A submit request. `task_id` is None if the submitter received no response; the task may exist or not.

    The first `failures` attempts fail. `duration_share` is a share of the longest duration of a task.
    """

    number: int
    job: str
    room: str
    failures: int = 0
    duration_share: float = 0.0
    sent_at: float = 0.0
    response_at: float | None = None
    task_id: str | None = None


@dataclass(slots=True)
class Fault:
    """An injected fault, from `started_at` to `ended_at`.

    `pids` are the affected worker processes; an empty tuple means all. If the fault stopped the server,
    `server_back_at` is a time before which the server did not work again.
    """

    kind: str
    started_at: float
    ended_at: float = 0.0
    pids: tuple[int, ...] = ()
    server_back_at: float | None = None


@dataclass(slots=True)
class GroupRecord:
    """A group of the load. `id` is None if the submitter received no response to its last request.

    `number` is in the payload of the task at its end; `summaries` are all tasks with this number.
    """

    number: int
    id: str | None = None
    members: list[str] = field(default_factory=list)
    is_after_recovery: bool = False
    summary_id: str | None = None
    response: GroupResponse | None = None
    summaries: list[TaskResponse] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A task of a graph. It waits for the tasks `after`, and gets the results of `fills`.

    `fails` says that its job fails, `is_kept` that retention does not delete it.
    """

    id: str
    after: Sequence[str] = ()
    fills: Sequence[str] = ()
    fails: bool = False
    is_kept: bool = True


@dataclass(slots=True)
class GraphRecord:
    """A chain or a fan of the load: its accepted tasks, each after its predecessors.

    `refusal` is the response to a submit that was refused for good.
    """

    number: int
    on_failure: OnFailure
    steps: list[StepRecord] = field(default_factory=list)
    success_file: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A delivery that the receiver accepted: of a task or a group, whose id is `subject`."""

    at: float
    target: str
    message: str
    event: str
    subject: str


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt that the server ended because it removed the worker."""

    at: float
    task_id: str
    worker_id: str
    attempt: int


@dataclass
class RunRecord:
    """Everything that the checker reads. All times are seconds of the clock of this machine.

    `wrong_counts` describes kept counts that differ from the tasks in the database. `steps` are the tasks of
    `graphs` that are kept, and `waves` counts the ends of predecessors that were not handled.
    """

    submissions: list[Submission]
    tasks: list[TaskResponse]
    executions: list[ExecutionEvent]
    requests: list[WorkerRequest]
    faults: list[Fault] = field(default_factory=list)
    groups: list[GroupRecord] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    graphs: list[GraphRecord] = field(default_factory=list)
    steps: dict[str, TaskResponse] = field(default_factory=dict)
    waves: int = 0
    histories: dict[str, TaskHistory] = field(default_factory=dict)
    policies: dict[str, JobPolicy] = field(default_factory=dict)
    ordered_jobs: frozenset[str] = frozenset()
    deadlocks: int = 0
    wrong_counts: Sequence[str] = ()
    worker_timeout_seconds: float = 60.0
    sweeper_interval_seconds: float = 30.0

    @cached_property
    def tasks_by_id(self) -> dict[str, TaskResponse]:
        """The tasks by id."""
        return {str(task.id): task for task in self.tasks}

    @cached_property
    def final_reports(self) -> list[WorkerRequest]:
        """The accepted reports that ended a task."""
        return [
            it for it in self.requests if it.ends_task and it.is_accepted and it.status == it.resulting_status
        ]

    @property
    def retried_by_hand(self) -> set[str]:
        """The tasks that fail, and are retried at the end of the run."""
        held = [graph for graph in self.graphs if graph.on_failure is OnFailure.HOLD]
        return {step.id for graph in held for step in graph.steps if step.fails}

    @cached_property
    def lost_attempts(self) -> list[LostAttempt]:
        """The attempts of removed workers."""
        return [
            LostAttempt(step.at.timestamp(), str(history.id), str(step.worker_id), step.attempt)
            for history in self.histories.values()
            for step in history.transitions
            if step.reason == WORKER_LOST
        ]

    def policy_of(self, job: str) -> JobPolicy:
        """Return the policy of a job."""
        return self.policies.get(job) or JobPolicy()
