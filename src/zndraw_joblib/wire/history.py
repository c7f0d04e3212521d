"""The responses with what happened to a task: history, log, reason of its state, and the event streams."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import Field

from zndraw_joblib.wire.bodies import ResponseBody, is_none
from zndraw_joblib.wire.events import TaskStatusEvent
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.progress import Failure, LogLine, Progress
from zndraw_joblib.wire.statuses import TaskStatus

# The reason of the change with which a task has waited for its predecessors.
WAIT_ENDED = "wait_ended"


class Transition(ResponseBody):
    """A change of a task's status. `attempt` counts its claims; `worker_id` held it before or after.

    `attempt_number` counts its attempts. It is null before the first claim, and for a claim that ended before
    its start, which is no attempt. A task that has waited for others is pending twice: the second has the
    `reason` `wait_ended`, and the time at which they had ended or it was run by hand.
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


# The event streams of a task and of a room: first a snapshot, then numbered events.


class EventKind(StrEnum):
    """What an event is about."""

    STATUS = "status"
    PROGRESS = "progress"
    LOG = "log"
    RESULT = "result"


class StreamEvent(ResponseBody):
    """An event of a task. `n` grows from event to event; those of one task need not be consecutive.

    `data` is, for `status`, what the event `task_status_event` has; for `progress`, the `attempt` and the
    `progress`; for `log`, the `attempt` and the fields of a `LogPart`; for `result`, a `StoredResult`.
    """

    n: int
    kind: EventKind
    task_id: UUID
    at: datetime
    data: dict[str, Any]


class ResyncReason(StrEnum):
    """Why a stream cannot continue after the requested position."""

    PRUNED = "pruned"
    UNKNOWN = "unknown"


class Resync(ResponseBody):
    """Events are missing: a new snapshot follows.

    - `pruned`: the events after the position are no longer kept.
    - `unknown`: the position is not one of this stream.
    """

    reason: ResyncReason
    after: int


class RoomSnapshot(ResponseBody):
    """The newest tasks of a room, newest first, and the count of all its tasks."""

    tasks: list[TaskStatusEvent]
    total: int


class _Events(ResponseBody):
    """Events after a position. `next` is the position to continue from.

    `ended`: the task has ended, and no further events follow.
    """

    resync: Resync | None = Field(default=None, exclude_if=is_none)
    events: list[StreamEvent]
    next: int
    ended: bool = False


class TaskEvents(_Events):
    """Events of a task. Without a position, or after `resync`, its state comes first."""

    snapshot: TaskResponse | None = Field(default=None, exclude_if=is_none)


class RoomEvents(_Events):
    """Events of a room. Without a position, or after `resync`, its newest tasks come first."""

    snapshot: RoomSnapshot | None = Field(default=None, exclude_if=is_none)


class StreamToken(ResponseBody):
    """A token that opens one event stream, as ``?token=…``, until `expires_at`."""

    token: str
    expires_at: datetime
