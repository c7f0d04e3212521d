"""Socket.IO events. An event is a hint that may be lost: the database has the facts."""

import re
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple
from uuid import UUID

from pydantic import BeforeValidator, ConfigDict, WithJsonSchema

from zndraw_joblib.wire.models import DeferredModel
from zndraw_joblib.wire.names import GLOBAL, INTERNAL
from zndraw_joblib.wire.progress import Progress
from zndraw_joblib.wire.statuses import TaskStatus

# The id of a worker in the events that it sends; the server checks it.
TextId = Annotated[str, BeforeValidator(str), WithJsonSchema({"type": "string", "format": "uuid"})]


class Event(DeferredModel):
    """A Socket.IO event. Its name on the wire is the class's `event_name`, by default its snake_case name."""

    model_config = ConfigDict(frozen=True)
    event_name: ClassVar[str] = "event"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "event_name" not in cls.__dict__:
            cls.event_name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# The name of version 0.1.x.
FrozenEvent = Event


class JobsInvalidate(Event):
    """Sent to a room: its list of jobs, or of their workers, has changed."""


class TaskAvailable(Event):
    """Sent to the workers of a job: a task waits to be claimed."""

    job_name: str
    room_id: str
    task_id: UUID


class TaskStatusEvent(Event):
    """Sent to a room: one of its tasks has a new status."""

    id: UUID
    name: str
    room_id: str
    status: TaskStatus
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    queue_position: int | None = None
    worker_id: UUID | None = None
    error: str | None = None


class TaskProgress(Event):
    """Sent to a room: one of its running tasks has reported its progress."""

    id: UUID
    name: str
    room_id: str
    attempt: int
    progress: Progress


class ProvidersInvalidate(Event):
    """Sent to a room: its list of providers has changed."""


class ProviderRequest(Event):
    """Sent to the workers of a provider: a request waits. `request_id` is the hash of `params`."""

    request_id: str
    provider_name: str
    params: str


class ProviderResultReady(Event):
    """Sent to a room: a provider request has a result or an error; repeat the request to get it."""

    provider_name: str
    request_hash: str


class JoinJobRoom(Event):
    """Sent by a worker: subscribe to the tasks of a job."""

    job_name: str
    worker_id: TextId


class LeaveJobRoom(Event):
    """Sent by a worker: unsubscribe from the tasks of a job."""

    job_name: str
    worker_id: TextId


class JoinProviderRoom(Event):
    """Sent by a worker: subscribe to the requests of a provider."""

    provider_name: str
    worker_id: TextId


class LeaveProviderRoom(Event):
    """Sent by a worker: unsubscribe from the requests of a provider."""

    provider_name: str
    worker_id: TextId


class JoinRoom(Event):
    """Sent by a front-end: subscribe to a room."""

    room_id: str


class LeaveRoom(Event):
    """Sent by a front-end: unsubscribe from a room."""

    room_id: str


class Emission(NamedTuple):
    """An event and the Socket.IO room that gets it."""

    event: Event
    room: str


def build_task_status_emission(task: Any, job_full_name: str, queue_position: int | None = None) -> Emission:
    """Return the status of a task, a row or a `TaskResponse`, as an event to its room."""
    return status_emission(TaskStatusEvent, task, job_full_name, queue_position)


def status_emission(
    cls: type[TaskStatusEvent], task: Any, job_full_name: str, queue_position: int | None
) -> Emission:
    """Return the status of a task as an event of a class of events, to the task's room."""
    fields = ("id", "room_id", "status", "created_at", "started_at", "completed_at", "worker_id", "error")
    values = {field: getattr(task, field) for field in fields}
    event = cls(name=job_full_name, queue_position=queue_position, **values)
    return Emission(event, room_of(task.room_id))


def room_of(room_id: str) -> str:
    """Return the Socket.IO room of a room's front-ends."""
    return f"room:{room_id}"


def workers_of(job_name: str) -> str:
    """Return the Socket.IO room of a job's workers."""
    return f"jobs:{job_name}"


def providers_of(provider_name: str) -> str:
    """Return the Socket.IO room of a provider's workers."""
    return f"providers:{provider_name}"


def sockets_of(worker_id: UUID) -> str:
    """Return the Socket.IO room of one worker."""
    return f"workers:{worker_id}"


# The Socket.IO room of all front-ends that joined any room. No room can have such an id.
EVERY_ROOM = "room:@*"
_LISTED_EVERYWHERE = {room_of(GLOBAL), room_of(INTERNAL)}


def audience(emission: Emission) -> list[str]:
    """Return all Socket.IO rooms that get an emission, its own first.

    Changes in `@global` and `@internal` go to all rooms, because every room lists what is there. The
    cancellation of a task also goes to the worker that runs it.
    """
    event, room = emission
    rooms = [room]
    if isinstance(event, JobsInvalidate | ProvidersInvalidate | ProviderResultReady):
        if room in _LISTED_EVERYWHERE:
            rooms.append(EVERY_ROOM)
    elif isinstance(event, TaskStatusEvent) and event.status == TaskStatus.CANCELLED and event.worker_id:
        rooms.append(sockets_of(event.worker_id))
    return rooms
