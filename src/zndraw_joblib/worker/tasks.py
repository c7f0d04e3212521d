"""A claimed task."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import UUID

from zndraw_joblib.jobs.task_channel import NO_WORKER, TaskChannel
from zndraw_joblib.jobs.task_context import CancelEvent, TaskContext


@dataclass(frozen=True, slots=True)
class ClaimedTask(TaskContext):
    """A task that this worker holds: `extension` is the job's class, made from `payload`.

    `worker_id` and `attempt` are the token of the claim; every report carries them. `cancelled` is set once
    the task was cancelled, or is lost to this worker: a job that checks it can stop early. A copy in another
    process has an event of its own, which is set for coroutines only. `channel` holds what the job reports
    of its progress and its log. `traceparent` is the trace context of its submit (W3C Trace Context), None
    without one. `run_kwargs` are the keywords that the job was registered with, for `run`.

    A task may also be built by hand, with `task_id`, `job_name`, `room_id` and `extension`, to report on it:
    without a token the server accepts what the owner of its worker reports.
    """

    task_id: str
    job_name: str
    room_id: str
    extension: Any
    attempt: int = 0
    payload: dict[str, Any] = field(default_factory=dict)
    worker_id: UUID = NO_WORKER
    cancelled: CancelEvent = field(default_factory=CancelEvent, compare=False, repr=False)
    channel: TaskChannel = field(default_factory=TaskChannel, compare=False, repr=False)
    traceparent: str | None = field(default=None, compare=False, repr=False)
    run_kwargs: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def token(self) -> dict[str, Any]:
        """Return the fields of a report that are the token of the claim; none for a task built by hand."""
        return {"worker_id": self.worker_id, "attempt": self.attempt} if self.attempt else {}

    def with_extension(self, extension: Any, run_kwargs: Mapping[str, Any]) -> "ClaimedTask":
        """Return the same task, with the same event and the same channel, as its job is registered here."""
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
            run_kwargs,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the event out of pickles and deep copies: it belongs to this process."""
        kept = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "cancelled"}
        return _copy, (kept,)


def _copy(kept: dict[str, Any]) -> ClaimedTask:
    return ClaimedTask(**kept)
