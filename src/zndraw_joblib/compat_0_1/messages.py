"""Messages, events and statuses of version 0.1.x: their ids are strings.

An event that the queue sends has UUIDs; it counts as an instance of these classes too.
"""

from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, Field

from zndraw_joblib.wire import events, messages, providers
from zndraw_joblib.wire.bodies import JsonObject
from zndraw_joblib.wire.events import Emission, status_emission
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus, targets

TERMINAL_STATUSES = set(TERMINAL)
# A claim is no report, so it is not among the targets; a report that releases a task is newer.
VALID_TRANSITIONS = {source: set(targets(source)) - {TaskStatus.PENDING} for source in TaskStatus}
VALID_TRANSITIONS[TaskStatus.PENDING].add(TaskStatus.CLAIMED)

Text = Annotated[str, BeforeValidator(str)]
TextOrNone = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]
# A text that is no UUID stays one.
Id = Annotated[UUID | str, Field(union_mode="left_to_right")]


# pydantic does not export the class of its classes.
class OldModel(type(BaseModel)):  # type: ignore[misc]
    """The type of an old model, whose base is the current one: `isinstance` accepts both."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__bases__[0] in type(instance).__mro__


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


class TaskResponse(messages.TaskResponse, metaclass=OldModel):
    """`TaskResponse` whose ids may be any strings, and whose `payload` may be left out."""

    id: Id  # type: ignore[assignment]
    worker_id: Id | None = None  # type: ignore[assignment]
    payload: JsonObject = Field(default_factory=dict)
