"""What happened, as Socket.IO tells it. An event is a hint: the database is the truth."""

import re
from datetime import datetime
from typing import ClassVar, NamedTuple
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from zndraw_joblib.contract.names import GLOBAL, INTERNAL
from zndraw_joblib.contract.status import TaskStatus


class Event(BaseModel):
    """A message whose name on the wire is the snake_case name of its class."""

    model_config = ConfigDict(frozen=True)
    event_name: ClassVar[str] = "event"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.event_name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


class JobsInvalidate(Event):
    """To a room: its list of jobs, or of their workers, is out of date."""


class TaskAvailable(Event):
    """To a job's workers: a task waits to be claimed."""

    job_name: str
    room_id: str
    task_id: UUID


class TaskStatusEvent(Event):
    """To a room: one of its tasks has a new status."""

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


class ProvidersInvalidate(Event):
    """To a room: its list of providers is out of date."""


class ProviderRequest(Event):
    """To those connected for a provider: answer a read. `params` is canonical JSON, `request_id` its hash."""

    request_id: str
    provider_name: str
    params: str


class ProviderResultReady(Event):
    """To a room: a read of one of its providers has an answer, be it an error; ask again."""

    provider_name: str
    request_hash: str


class JoinJobRoom(Event):
    """From a worker: tell me of tasks for this job."""

    job_name: str
    worker_id: UUID


class LeaveJobRoom(Event):
    """From a worker: tell me no more of tasks for this job."""

    job_name: str
    worker_id: UUID


class JoinProviderRoom(Event):
    """From a worker: tell me of reads from this provider."""

    provider_name: str
    worker_id: UUID


class LeaveProviderRoom(Event):
    """From a worker: tell me no more of reads from this provider."""

    provider_name: str
    worker_id: UUID


class JoinRoom(Event):
    """From a front-end: tell me what concerns this room."""

    room_id: str


class LeaveRoom(Event):
    """From a front-end: tell me no more of this room."""

    room_id: str


class Emission(NamedTuple):
    """An event and the Socket.IO room that gets it."""

    event: Event
    room: str


def room_of(room_id: str) -> str:
    """Return the Socket.IO room of a room's front-ends."""
    return f"room:{room_id}"


def workers_of(job_name: str) -> str:
    """Return the Socket.IO room of a job's workers."""
    return f"jobs:{job_name}"


def providers_of(provider_name: str) -> str:
    """Return the Socket.IO room of whoever answers the reads of a provider."""
    return f"providers:{provider_name}"


def sockets_of(worker_id: UUID) -> str:
    """Return the Socket.IO room of one worker."""
    return f"workers:{worker_id}"


# All front-ends that joined any room. No room can have such a name.
EVERY_ROOM = "room:@*"
_SEEN_EVERYWHERE = {room_of(GLOBAL), room_of(INTERNAL)}


def audience(emission: Emission) -> list[str]:
    """Return all Socket.IO rooms that an emission concerns, its own first.

    Every room lists what is in `@global`, and the jobs of `@internal`. A worker hears that a task
    it runs was cancelled.
    """
    event, room = emission
    rooms = [room]
    if isinstance(event, JobsInvalidate | ProvidersInvalidate | ProviderResultReady):
        if room in _SEEN_EVERYWHERE:
            rooms.append(EVERY_ROOM)
    elif isinstance(event, TaskStatusEvent) and event.status == TaskStatus.CANCELLED and event.worker_id:
        rooms.append(sockets_of(event.worker_id))
    return rooms
