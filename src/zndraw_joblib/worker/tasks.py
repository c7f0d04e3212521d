"""A claimed task."""

import threading
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.task_channel import TaskChannel
from zndraw_joblib.contract.task_context import TaskContext


@dataclass(frozen=True, slots=True)
class ClaimedTask(TaskContext):
    """A task that this worker holds: `extension` is the job's class, made from `payload`.

    `worker_id` and `attempt` are the token of the claim; every report carries them. `cancelled` is set once
    the task was cancelled, or is lost to this worker: a job that checks it can stop early. A copy in another
    process has an event of its own, which is never set. `channel` holds what the job reports of its progress
    and its log. `traceparent` is the trace context of its submit (W3C Trace Context), None without one.
    """

    task_id: str
    job_name: str
    room_id: str
    extension: Any
    attempt: int
    payload: dict[str, Any]
    worker_id: UUID
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    channel: TaskChannel = field(default_factory=TaskChannel, compare=False, repr=False)
    traceparent: str | None = field(default=None, compare=False, repr=False)

    def with_extension(self, extension: Any) -> "ClaimedTask":
        """Return the same task, with the same event and the same channel, with its extension."""
        return ClaimedTask(
            self.task_id,
            self.job_name,
            self.room_id,
            extension,
            self.attempt,
            self.payload,
            self.worker_id,
            self.cancelled,
            self.channel,
            self.traceparent,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the event out of pickles and deep copies: it belongs to this process."""
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "cancelled"}
        return _copy, (kept,)


def _copy(kept: dict[str, Any]) -> ClaimedTask:
    return ClaimedTask(**kept)
