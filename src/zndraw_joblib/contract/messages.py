"""The bodies of requests and answers. Unknown fields of a request are ignored."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from zndraw_joblib.contract.names import MAX_NAME_LENGTH, NAME_PATTERN, is_name
from zndraw_joblib.contract.status import TaskStatus

MAX_JSON_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_PAGE = 500
MAX_NAMED_TASKS = 1000


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(
            f"a name has 1 to {MAX_NAME_LENGTH} letters, digits, '_', '-', '.', not starting with '-' or '.'"
        )
    return text


# Not a pattern of pydantic's: its engine and Python's do not agree on what a letter is.
Name = Annotated[
    str,
    AfterValidator(_name),
    Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": NAME_PATTERN}),
]
JsonObject = dict[str, Any]
Item = TypeVar("Item")


class _Schema(BaseModel):
    """A body with a JSON Schema in it; `schema` itself is taken by pydantic's own classes."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: JsonObject = Field(default_factory=dict, alias="schema")


class PaginatedResponse(BaseModel, Generic[Item]):
    """One page of a list, newest first; `total` counts the whole list."""

    items: list[Item]
    total: int
    limit: int
    offset: int


class JobRegisterRequest(_Schema):
    """Register a job, and a worker for it; without `worker_id` a new worker is made."""

    category: Name
    name: Name
    worker_id: UUID | None = None


class JobResponse(_Schema):
    """A job; `worker_id` is the registering worker, in the answer to a registration alone."""

    id: UUID
    room_id: str
    category: str
    name: str
    full_name: str
    workers: list[UUID]
    worker_id: UUID | None = None


class JobSummary(BaseModel):
    """A job in a list."""

    full_name: str
    category: str
    name: str
    workers: list[UUID]


class NamedTask(BaseModel):
    """A task that a worker takes itself to hold; `attempt` is the token of its claim."""

    id: UUID
    attempt: int


class HeartbeatRequest(BaseModel):
    """A worker lives. `tasks` are those that it works on, to learn what has become of them."""

    tasks: list[NamedTask] = Field(default_factory=list, max_length=MAX_NAMED_TASKS)


class Verdict(StrEnum):
    """What a worker shall do with a task that it named.

    `continue`: it holds the task. `cancel`: the task was cancelled while it held it. `lost`: the task is
    not, or no longer, its own: it ended otherwise, was claimed anew, or does not exist.
    """

    CONTINUE = "continue"
    CANCEL = "cancel"
    LOST = "lost"


class TaskVerdict(BaseModel):
    """The verdict on one task that a worker named."""

    id: UUID
    verdict: Verdict


class WorkerResponse(BaseModel):
    """A worker, and how often it shall report: every `heartbeat_interval_seconds`.

    `tasks` has a verdict for each task that the heartbeat named, in their order.
    """

    id: UUID
    last_heartbeat: datetime
    heartbeat_interval_seconds: float
    tasks: list[TaskVerdict] = Field(default_factory=list)


class WorkerSummary(BaseModel):
    """A worker in a list; `job_count` counts the jobs it serves."""

    id: UUID
    last_heartbeat: datetime
    job_count: int


class TaskSubmitRequest(BaseModel):
    """Call a job with `payload`."""

    payload: JsonObject = Field(default_factory=dict)


class TaskResponse(BaseModel):
    """A task.

    `queue_position` counts from 1 among the pending tasks of the job, and is null otherwise.
    `attempt` is the fencing token: it grows with every claim, and a worker's report may carry it.
    """

    id: UUID
    job_name: str
    room_id: str
    status: TaskStatus
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: UUID | None = None
    error: str | None = None
    payload: JsonObject
    queue_position: int | None = None
    attempt: int = 0
    created_by: str | None = None
    result: Any = None


class TaskClaimRequest(BaseModel):
    """Ask for the oldest pending task of the worker's jobs."""

    worker_id: UUID


class TaskClaimResponse(BaseModel):
    """The claimed task, or null where none was pending."""

    task: TaskResponse | None = None


class TaskUpdateRequest(BaseModel):
    """Report on a task. `worker_id` and `attempt`, where given, must be those of the claim."""

    status: TaskStatus
    error: str | None = None
    result: Any = None
    worker_id: UUID | None = None
    attempt: int | None = None
