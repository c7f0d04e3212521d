"""The event models of version 0.1.x, whose ids are strings, and a function that builds one.

An event that the queue sends has UUIDs; it counts as an instance of these classes too.
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from zndraw_joblib.compat_0_1.instances import OldModel
from zndraw_joblib.wire import events, providers
from zndraw_joblib.wire.events import Emission, status_emission

Text = Annotated[str, BeforeValidator(str)]
TextOrNone = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]


class TaskAvailable(events.TaskAvailable, metaclass=OldModel):
    """`TaskAvailable` with the task's id as a string."""

    task_id: Text  # type: ignore[assignment]


class TaskStatusEvent(events.TaskStatusEvent, metaclass=OldModel):
    """`TaskStatusEvent` with ids as strings."""

    id: Text  # type: ignore[assignment]
    worker_id: TextOrNone = None  # type: ignore[assignment]


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


def build_task_status_emission(task: Any, job_full_name: str, queue_position: int | None = None) -> Emission:
    """Return the status of a task, a row or a `TaskResponse`, as an event to its room."""
    return status_emission(TaskStatusEvent, task, job_full_name, queue_position)
