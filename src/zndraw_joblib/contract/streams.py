"""The event streams of a task and of a room: first a snapshot, then numbered events."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import Field

from zndraw_joblib.contract.bodies import ResponseBody, is_none
from zndraw_joblib.contract.events import TaskStatusEvent
from zndraw_joblib.contract.messages import TaskResponse


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
