"""The event models of version 0.1.x, whose ids are strings, and a function that builds one.

An event that the queue sends has UUIDs; it counts as an instance of these classes too.
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from zndraw_joblib.compat_0_1.instances import OldModel
from zndraw_joblib.contract import events, providers
from zndraw_joblib.contract.events import Emission, room_of

Text = Annotated[str, BeforeValidator(str)]
TextOrNone = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]


class TaskAvailable(events.TaskAvailable, metaclass=OldModel):
    """`TaskAvailable` with the task's id as a string."""

    task_id: Text  # type: ignore[assignment]


class TaskStatusEvent(events.TaskStatusEvent, metaclass=OldModel):
    """`TaskStatusEvent` with ids as strings."""

    id: Text  # type: ignore[assignment]
    worker_id: TextOrNone = None  # type: ignore[assignment]


class JoinJobRoom(events.JoinJobRoom, metaclass=OldModel):
    """`JoinJobRoom` with the worker's id as a string."""

    worker_id: Text  # type: ignore[assignment]


class LeaveJobRoom(events.LeaveJobRoom, metaclass=OldModel):
    """`LeaveJobRoom` with the worker's id as a string."""

    worker_id: Text  # type: ignore[assignment]


class JoinProviderRoom(events.JoinProviderRoom, metaclass=OldModel):
    """`JoinProviderRoom` with the worker's id as a string."""

    worker_id: Text  # type: ignore[assignment]


class LeaveProviderRoom(events.LeaveProviderRoom, metaclass=OldModel):
    """`LeaveProviderRoom` with the worker's id as a string."""

    worker_id: Text  # type: ignore[assignment]


class ProviderRequest(events.ProviderRequest, metaclass=OldModel):
    """`ProviderRequest` that can be built from parameters that are not JSON yet."""

    @classmethod
    def from_dict_params(
        cls, request_id: str | None = None, provider_name: str = "", params: dict[str, Any] | None = None
    ) -> Self:
        """Return the event of a request; its id is by default the hash of its parameters."""
        canonical = providers.canonical(params or {})
        request_id = request_id or providers.request_hash(canonical)
        return cls(request_id=request_id, provider_name=provider_name, params=canonical)


def build_task_status_emission(task: Any, name: str, queue_position: int | None = None) -> Emission:
    """Return the status of a task, a row or a `TaskResponse`, as an event to its room.

    `name` is the full name of its job.
    """
    fields = ("id", "room_id", "status", "created_at", "started_at", "completed_at", "worker_id", "error")
    event = TaskStatusEvent(
        name=name, queue_position=queue_position, **{field: getattr(task, field) for field in fields}
    )
    return Emission(event, room_of(task.room_id))
