"""The responses with what happened to a task: its history, its log, and why it is in its state."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from zndraw_joblib.contract.bodies import ResponseBody
from zndraw_joblib.contract.progress import Failure, LogLine, Progress
from zndraw_joblib.contract.status import TaskStatus


class Transition(ResponseBody):
    """A change of a task's status. `attempt` counts its claims; `worker_id` held it before or after.

    `attempt_number` counts its attempts. It is null before the first claim, and for a claim that ended before
    its start, which is no attempt.
    """

    at: datetime
    status: TaskStatus
    attempt: int
    attempt_number: int | None = None
    worker_id: UUID | None = None
    reason: str | None = None
    error: str | None = None
    run_at: datetime | None = None


class AttemptDetail(ResponseBody):
    """The details of an attempt: its last progress, the number of lines of its log, and its failure.

    `log_dropped` counts the lines that are not kept: they were dropped by the worker, or are the oldest of a
    long log.
    """

    attempt: int
    progress: Progress | None = None
    progress_at: datetime | None = None
    log_lines: int = 0
    log_dropped: int = 0
    failure: Failure | None = None


class TaskHistory(ResponseBody):
    """All transitions of a task, oldest first, and the details of its last 20 attempts.

    An attempt without details is not in `attempts`.
    """

    id: UUID
    transitions: list[Transition]
    attempts: list[AttemptDetail] = Field(default_factory=list)


class NumberedLine(LogLine):
    """A line of a log with its number `n`, counted from 1. Numbers that are missing were dropped."""

    n: int


class TaskLog(ResponseBody):
    """Lines of the log of one attempt, oldest first.

    `last` is the number of the last line so far, and `dropped` how many of them are not kept. `next` is the
    `after` of the request that reads on; null if there are no more lines yet.
    """

    id: UUID
    attempt: int
    lines: list[NumberedLine]
    last: int
    dropped: int
    next: int | None = None


class Reason(ResponseBody):
    """One reason why a task waits or is held. `code` is for programs, `detail` is a sentence."""

    code: str
    detail: str


class TaskExplanation(ResponseBody):
    """Why a task has its status: all reasons that apply, the most important one first.

    `wait_seconds`: about how long a queued task waits at the current rate of its job; null if unknown.
    """

    id: UUID
    status: TaskStatus
    queue_position: int | None = None
    reasons: list[Reason]
    wait_seconds: float | None = None
