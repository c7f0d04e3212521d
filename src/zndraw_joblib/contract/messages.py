"""The bodies of requests and answers. Unknown fields of a request are ignored."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from zndraw_joblib.contract.names import MAX_NAME_LENGTH, NAME_PATTERN, is_name
from zndraw_joblib.contract.policy import Attempts, JobPolicy, Priority, Seconds
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


class SchemaBody(BaseModel):
    """A body with a JSON Schema in it; `schema` itself is taken by pydantic's own classes."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: JsonObject = Field(default_factory=dict, alias="schema")


class PaginatedResponse(BaseModel, Generic[Item]):
    """One page of a list, newest first; `total` counts the whole list."""

    items: list[Item]
    total: int
    limit: int
    offset: int


MaxTasks = Annotated[int, Field(ge=1, le=10_000)]


class JobRegisterRequest(SchemaBody, JobPolicy):
    """Register a job, and a worker for it; without `worker_id` a new worker is made.

    What is not said of the job's policy is as it is by default, or as it was registered before.
    `max_tasks`: how many tasks the worker may hold at once; as many as it likes without it.
    """

    category: Name
    name: Name
    worker_id: UUID | None = None
    max_tasks: MaxTasks | None = None


class JobResponse(SchemaBody, JobPolicy):
    """A job; `worker_id` is the registering worker, in the answer to a registration alone.

    `paused`: an operator has stopped its claims.
    """

    id: UUID
    room_id: str
    category: str
    name: str
    full_name: str
    workers: list[UUID]
    worker_id: UUID | None = None
    paused: bool = False


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
    """A worker lives. `tasks` are those that it works on, to learn what has become of them.

    `max_tasks`, where given, is how many it may hold at once from now on.
    """

    tasks: list[NamedTask] = Field(default_factory=list, max_length=MAX_NAMED_TASKS)
    max_tasks: MaxTasks | None = None


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

    `drain`: an operator asks it to claim no more, to finish what it runs, and to leave.
    `tasks` has a verdict for each task that the heartbeat named, in their order.
    """

    id: UUID
    last_heartbeat: datetime
    heartbeat_interval_seconds: float
    drain: bool = False
    tasks: list[TaskVerdict] = Field(default_factory=list)


class WorkerSummary(BaseModel):
    """A worker in a list; `job_count` counts the jobs it serves."""

    id: UUID
    last_heartbeat: datetime
    job_count: int


class TaskSubmitRequest(BaseModel):
    """Call a job with `payload`.

    `priority` and `max_attempts` take the place of the job's own. The task enters its queue at `run_at`,
    or `delay_seconds` from now, else at once; it fails unless it is claimed within `expires_in_seconds`
    of the submit.
    """

    payload: JsonObject = Field(default_factory=dict)
    priority: Priority | None = None
    run_at: AwareDatetime | None = None
    delay_seconds: Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False)] | None = None
    expires_in_seconds: Seconds | None = None
    max_attempts: Attempts | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.run_at is not None and self.delay_seconds is not None:
            raise ValueError("give run_at or delay_seconds, not both")
        return self


class TaskResponse(BaseModel):
    """A task.

    `queue_position` counts from 1 among the tasks that wait in the job's queue, and is null otherwise.
    `attempt` is the fencing token: it grows with every claim, and a worker's report may carry it.
    `error` and `error_code` tell what ended the task without success, or the attempt before the next one;
    the code is a worker's `error`, or the last part of an address under ``/v1/problems/``.
    `run_at` is set while the task waits for its time, be it by the wish of its submitter or after a failure;
    `expires_at` until it is claimed.
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
    error_code: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    expires_at: datetime | None = None


class TaskClaimRequest(BaseModel):
    """Ask for the oldest pending task of the worker's jobs.

    Who repeats a claim with the same `claim_id`, for its answer was lost, gets the same task again, as long
    as the worker holds it.
    """

    worker_id: UUID
    claim_id: UUID | None = None


class EmptyReason(StrEnum):
    """Why a claim got nothing.

    `empty`: nothing waits. `paused`: what waits is of jobs that are paused. `at_capacity`: as many tasks
    of the job, or of the room, are under way as may be. `max_tasks`: as many as the worker may hold.
    `draining`: an operator asked the worker to leave.
    """

    EMPTY = "empty"
    PAUSED = "paused"
    AT_CAPACITY = "at_capacity"
    MAX_TASKS = "max_tasks"
    DRAINING = "draining"


class TaskClaimResponse(BaseModel):
    """The claimed task, or null, and then the reason."""

    task: TaskResponse | None = None
    reason: EmptyReason | None = None


class TaskUpdateRequest(BaseModel):
    """Report on a task. `worker_id` and `attempt`, where given, must be those of the claim.

    A failure with `retry` false is final, whatever the job's policy says.
    """

    status: TaskStatus
    error: str | None = None
    result: Any = None
    worker_id: UUID | None = None
    attempt: int | None = None
    retry: bool = True


class TaskActionRequest(BaseModel):
    """Release, retry or fail a task by hand.

    `worker_id` and `attempt`, where given, must be those of the claim, or of the last one. `error` says why.
    """

    worker_id: UUID | None = None
    attempt: int | None = None
    error: str | None = None


class Transition(BaseModel):
    """A task got a new status. `attempt` counts its claims so far; `worker_id` held it, before or after."""

    at: datetime
    status: TaskStatus
    attempt: int
    worker_id: UUID | None = None
    reason: str | None = None
    error: str | None = None
    run_at: datetime | None = None


class TaskHistory(BaseModel):
    """All that has happened to a task, oldest first."""

    id: UUID
    transitions: list[Transition]


class PlannedChange(BaseModel):
    """What the sweeper would do with a task; `reason` as in its history."""

    id: UUID
    before: TaskStatus
    after: TaskStatus
    reason: str
    run_at: datetime | None = None


class SweeperPreview(BaseModel):
    """What a cycle of the sweeper would do now, of each kind at most one batch.

    `scanned` and `stale` count workers; `workers` would be removed.
    """

    scanned: int
    stale: int
    workers: list[UUID]
    tasks: list[PlannedChange]


class SweeperMode(StrEnum):
    """`enforce`: the sweeper acts. `observe`: it decides, tells, and touches nothing. `off`: it rests."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


class SweeperUpdate(BaseModel):
    """Change how the sweepers of all servers work."""

    mode: SweeperMode


class SweeperCycle(BaseModel):
    """What one cycle found and did; `elapsed` in seconds. `expired` counts removed workers.

    `released` counts tasks that went back to their queues, `failed` those that ended. `held_back`: most
    workers would have gone at once, so the cycle waited for the next one. `mode` is null where the database
    did not tell it.
    """

    at: datetime
    mode: SweeperMode | None
    scanned: int
    stale: int
    expired: int
    released: int
    failed: int
    pruned: int
    errors: int
    elapsed: float
    held_back: bool


class SweeperState(BaseModel):
    """The sweeper of the server that answers. `grace_remaining_seconds`: nobody is judged before."""

    mode: SweeperMode
    interval_seconds: float
    grace_remaining_seconds: float
    cycles: list[SweeperCycle]


class Reason(BaseModel):
    """One reason for which a task waits, or what holds it. `code` is for programs, `detail` for people."""

    code: str
    detail: str


class TaskExplanation(BaseModel):
    """Why a task is where it is; all reasons that hold at once, the first to mend first."""

    id: UUID
    status: TaskStatus
    queue_position: int | None = None
    reasons: list[Reason]
