"""The bodies of requests and responses about jobs, workers, tasks, batches and the sweeper.

The server ignores unknown fields of a request, but refuses those of registrations and submits that resemble a
field.
"""

import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from importlib.metadata import version
from typing import Annotated, Any, Generic, Literal, Self, TypedDict, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zndraw_joblib.wire.bodies import (
    JsonObject,
    Moment,
    Name,
    Printable,
    RequestBody,
    ResponseBody,
    Tags,
    is_none,
)
from zndraw_joblib.wire.groups import BatchGroup
from zndraw_joblib.wire.models import DeferredModel
from zndraw_joblib.wire.names import MAX_KEY_LENGTH
from zndraw_joblib.wire.policy import (
    MAX_ERROR_TYPE,
    Attempts,
    BatchSize,
    BatchWait,
    Cost,
    Delay,
    JobPolicy,
    Priority,
    Seconds,
)
from zndraw_joblib.wire.problems import Problem
from zndraw_joblib.wire.progress import Failure, LogPart, Progress, StoredResult
from zndraw_joblib.wire.requirements import Labels, Requires
from zndraw_joblib.wire.schedules import ScheduleTimes
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.wire.successors import After, TaskAfter, check_batch
from zndraw_joblib.wire.unique import Debounce, Unique, check_debounce
from zndraw_joblib.wire.webhooks import TaskWebhook

MAX_WORKER_NAME = 128
MAX_HOST = 255


class WorkerInfo(BaseModel):
    """What the process of a worker says about itself; all fields are optional.

    `name` is for people, by default the name of the host. `version` is that of its package, `slots` how many
    tasks it runs at once. `labels` are what tasks may require of it.
    """

    name: Annotated[str, Printable, Field(min_length=1, max_length=MAX_WORKER_NAME)] | None = None
    host: Annotated[str, Printable, Field(min_length=1, max_length=MAX_HOST)] | None = None
    pid: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    version: Annotated[str, Printable, Field(min_length=1, max_length=64)] | None = None
    slots: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    labels: Labels | None = None


def this_process(
    name: str | None = None, slots: int | None = None, labels: Mapping[str, Any] | None = None
) -> WorkerInfo:
    """Return what this process says about itself; `name` is by default that of the host.

    Raises ValueError for an invalid name or label.
    """
    host = "".join(letter for letter in socket.gethostname() if letter.isprintable())[:MAX_HOST] or None
    return WorkerInfo(
        name=host and host[:MAX_WORKER_NAME] if name is None else name,
        host=host,
        pid=os.getpid(),
        version=version("zndraw-joblib"),
        slots=slots,
        labels=None if labels is None else dict(labels),
    )


MAX_JSON_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_PAGE = 500
MAX_NAMED_TASKS = 1000
MAX_BATCH = 1000
MAX_ERROR_TYPES = 32


Item = TypeVar("Item")


class SchemaBody(BaseModel):
    """A body with a JSON Schema; the field is not named `schema` because pydantic's models have that name."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: JsonObject = Field(default_factory=dict, alias="schema")


class PaginatedResponse(ResponseBody, Generic[Item]):
    """One page of a list, newest first; `total` counts the whole list."""

    items: list[Item]
    total: int
    limit: int
    offset: int


class CursorResponse(ResponseBody, Generic[Item]):
    """A part of a list; `next` is the `cursor` of the request that reads on, null at the end."""

    items: list[Item]
    next: str | None = None


MaxTasks = Annotated[int, Field(ge=1, le=10_000)]


class RegistrationBody(SchemaBody, JobPolicy):
    """The schema and the policy of a registration.

    Unknown fields are ignored, because a newer worker may send some. One that resembles a field is refused.
    """

    @model_validator(mode="before")
    @classmethod
    def _has_no_misspelt_field(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            names = {field.alias or name for name, field in cls.model_fields.items()}
            _refuse_near(values.keys() - names - {"schema_"}, {*names, "policy"})
        return values


def _refuse_near(unknown: Iterable[Any], names: Collection[str]) -> None:
    """Raise ValueError for an unknown field that resembles a field."""
    for name in sorted(str(name)[:_MAX_FIELD] for name in unknown)[:_MAX_UNKNOWN]:
        if near := get_close_matches(name, names, n=1, cutoff=_NEAR):
            is_policy = near == ["policy"]
            meant = "the fields of a policy are here" if is_policy else f"did you mean {near[0]!r}?"
            raise ValueError(f"{name}: there is no such field ({meant})")


# One letter of ten is wrong.
_NEAR = 0.9
# The most characters of a field, and the most unknown fields, that are compared.
_MAX_FIELD, _MAX_UNKNOWN = 40, 20


class JobPutRequest(RegistrationBody):
    """Register a job without a worker, or change the policy of one.

    Without `schema`, a job that exists keeps its own. Omitted policy fields keep their registered or default
    value; `without_workers` of a new job is ``queue``.
    """


class JobRegisterRequest(RegistrationBody):
    """Register a job and link a worker to it; without `worker_id` a new worker is created.

    Omitted policy fields keep their registered or default value. `max_tasks`: how many tasks the worker may
    hold at once, null for no limit. `worker` describes a new worker. `schedule` creates or replaces the
    schedule of the room that has the job's name; it stays when the worker leaves.
    """

    category: Name
    name: Name
    worker_id: UUID | None = None
    max_tasks: MaxTasks | None = None
    worker: WorkerInfo | None = None
    schedule: ScheduleTimes | None = None


class JobVersion(ResponseBody):
    """A version of a job: tasks that were validated against one schema.

    `workers` is how many workers may serve it, by their schemas; `pending` are the tasks in its queue, and
    `scheduled` those that enter it later. New tasks are of the `current` one.
    """

    version: int
    current: bool
    workers: int
    pending: int
    scheduled: int


class JobResponse(SchemaBody, JobPolicy, ResponseBody):
    """A job. `workers` are the ids of the workers that serve it.

    `worker_id` is the registering worker, only in the response to a registration. `paused`: an operator has
    paused the job, so none of its tasks are claimed, until `paused_until` if that is set. `unserved_since` is
    when its last worker left, null while one serves it.

    `version` is the number of its schema: the current one, or in the response to a registration that of the
    worker. `versions` lists the current one, and those with workers or waiting tasks.
    """

    id: UUID
    room_id: str
    category: str
    name: str
    full_name: str
    workers: list[UUID]
    worker_id: UUID | None = None
    paused: bool = False
    paused_until: datetime | None = None
    unserved_since: datetime | None = None
    version: int = 1
    versions: list[JobVersion] = []


class JobSummary(ResponseBody):
    """A job in a list. For `paused` to `unserved_since` see a job; servers before 1.0 return none of them."""

    full_name: str
    category: str
    name: str
    workers: list[UUID]
    paused: bool = False
    paused_until: datetime | None = None
    unserved_since: datetime | None = None


class NamedTask(RequestBody):
    """A task that a worker believes it holds; `attempt` is the token of its claim.

    `progress` and `log` are what its job did since the last report, as in a report.
    """

    id: UUID
    attempt: int
    progress: Progress | None = None
    log: LogPart | None = None

    @property
    def has_details(self) -> bool:
        """Whether it has progress or lines of the log."""
        return self.progress is not None or self.log is not None


class HeartbeatRequest(RequestBody):
    """A heartbeat. `tasks` are all tasks that the worker holds; the response has a verdict for each.

    The server releases, retries or fails a held task that the list omits for three heartbeats. Without the
    field, no task is omitted.

    `max_tasks` changes how many tasks the worker may hold at once, `worker` what is known about it. With
    `tokens`, the verdict on each task that the worker holds has a new `token` of the task.
    """

    tasks: list[NamedTask] = Field(default_factory=list, max_length=MAX_NAMED_TASKS, fail_fast=True)
    max_tasks: MaxTasks | None = None
    worker: WorkerInfo | None = None
    tokens: bool = False


class Verdict(StrEnum):
    """What a worker has to do with a task that it named in a heartbeat.

    `continue`: the worker holds the task. `cancel`: the task was cancelled while the worker held it. `lost`:
    the worker does not hold the task: it ended, was claimed again, or does not exist.
    """

    CONTINUE = "continue"
    CANCEL = "cancel"
    LOST = "lost"


class TaskVerdict(ResponseBody):
    """The verdict on one task that a worker named, with a new `token` of it if the heartbeat asked."""

    id: UUID
    verdict: Verdict
    token: str | None = Field(default=None, exclude_if=is_none, repr=False)


class WorkerResponse(ResponseBody):
    """A worker; it has to send a heartbeat every `heartbeat_interval_seconds`.

    `drain`: an operator drains the worker: it has to claim no more, finish its tasks, and disconnect.
    `tasks` has a verdict for each task that the heartbeat named, in the same order.
    """

    id: UUID
    last_heartbeat: datetime
    heartbeat_interval_seconds: float
    drain: bool = False
    tasks: list[TaskVerdict] = Field(default_factory=list)


class SubmitOptions(TypedDict, total=False):
    """The options of a submit that `TaskSubmitRequest` explains. Times are seconds or aware datetimes."""

    priority: int | None
    run_at: datetime | None
    delay_seconds: float | None
    expires_in_seconds: float | None
    max_attempts: int | None
    unique: Unique | Mapping[str, Any] | None
    debounce: Debounce | Mapping[str, Any] | None
    tags: Sequence[str] | None
    parent: UUID | str | None
    group: UUID | None
    webhook: TaskWebhook | Mapping[str, Any] | str | None
    after: Any
    requires: Mapping[str, Any] | None
    cost: int | None
    prefer: Mapping[str, Any] | None


class TaskSubmitRequest(RequestBody):
    """Submit a task with `payload`.

    `priority` and `max_attempts` override those of the job. The task enters its queue at `run_at`, or
    `delay_seconds` from now, by default at once. It fails if no worker claims it within `expires_in_seconds`
    from now. With `unique`, no second task with the same key is submitted; with `debounce` besides, each
    submit with the key postpones the task and replaces its payload. Unknown fields are ignored, but one that
    resembles a field is refused.

    `tags` are texts by which tasks are found, at most 10 of at most 64 characters; one that is repeated
    counts once. `parent` is the id of the task of the same room that submits this one. `group` is the id
    of a group of the same room, which the task belongs to. `webhook` gets the end of the task,
    but not that of another task which holds the key.

    `after` are tasks and groups of the same room that the task waits for. Then values ``{"$result": {"task":
    id, "pointer": "/x"}}`` of the payload are replaced by these parts of the results of its predecessors
    before a worker gets it. Its priority is by default the highest of its job and its predecessors.

    `requires` are conditions on the labels of the worker that may run it, besides those of the job, which it
    may only narrow. `cost` is how many slots of its worker it takes; it may only raise that of the job.
    `prefer` are conditions on the labels of workers that get it first, if they wait for a task now.
    """

    # The unknown fields, for `_checked`.
    model_config = ConfigDict(extra="allow")

    payload: JsonObject = Field(default_factory=dict)
    priority: Priority | None = None
    run_at: Moment | None = None
    delay_seconds: Delay | None = None
    expires_in_seconds: Seconds | None = None
    max_attempts: Attempts | None = None
    unique: Unique | None = Field(default=None, exclude_if=is_none)
    debounce: Debounce | None = Field(default=None, exclude_if=is_none)
    tags: Tags | None = Field(default=None, exclude_if=is_none)
    parent: UUID | None = Field(default=None, exclude_if=is_none)
    group: UUID | None = Field(default=None, exclude_if=is_none)
    webhook: TaskWebhook | None = Field(default=None, exclude_if=is_none)
    after: After | None = Field(default=None, exclude_if=is_none)
    requires: Requires | None = Field(default=None, exclude_if=is_none)
    cost: Cost | None = Field(default=None, exclude_if=is_none)
    prefer: Requires | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if unknown := self.__pydantic_extra__:
            _refuse_near(unknown, type(self).model_fields.keys())
            self.__pydantic_fields_set__.difference_update(unknown)
            unknown.clear()
        if self.run_at is not None and self.delay_seconds is not None:
            raise ValueError("give run_at or delay_seconds, not both")
        if self.debounce is not None:
            check_debounce(self, "run_at", "delay_seconds")
        replaces = self.debounce is not None or (self.unique and self.unique.on_conflict == "replace")
        if self.after is not None and replaces:
            raise ValueError(
                "after: a submit that may replace a task cannot wait for others; remove debounce, or use "
                "another unique.on_conflict"
            )
        return self


class TaskResponse(ResponseBody):
    """A task.

    - `queue_position`: the place of a waiting task in the job's queue, from 1; null for other tasks.
    - `attempt`: the fencing token; it grows with every claim, and a worker's report may carry it.
    - `attempts`: how many attempts have begun. A claim that is released before its start is none.
    - `error`, `error_code`: why the task, or its last attempt, ended without success. The code is ``error``
      for a failure that a worker reported, or the last part of a URL under ``/v1/problems/``.
    - `run_at`: when the task enters its queue, because its submitter set a time, or before a retry.
    - `expires_at`: when the task fails if no worker has claimed it; null after the claim.
    - `progress`, `failure`: the last progress of its current or last attempt, and the exception that
      ended it, without the full traceback. Only responses to requests that read tasks have them, and only if
      there are any.
    - `stored_result`: the result, if it is kept as bytes.
    - `traceparent`: the trace context of its submit, if it had one; only in responses to claims.
    - `unique_key`: the key that no other task may hold at the same time, only in responses to submits and to
      requests that read tasks, and only if there is one.
    - `duplicate`: true in the response to a submit that made no task, because this one holds its key.
    - `schedule`, `due_at`: the schedule of its room that submitted it, and the due time. They are omitted for
      other tasks, and `due_at` for a schedule's task that was run by hand.
    - `version`: the number of the job's schema that its payload was validated against.
    - `tags`, `parent`: as in its submit. `root` is the first task of its tree: the parent of its parent, and
      so on. They are omitted for tasks without them, and in the responses to claims and to reports of a start
      or an end. The ids stay when those tasks are deleted.
    - `group`: the group that it belongs to, only in responses to submits and to requests that read tasks.
    - `waits`: true while it is pending because of its predecessors. `after`: what it waits for, or has waited
      for. `successors`: the first hundred tasks that wait for it, or have waited. The last two are only in
      responses to requests that read one task.
    - `requires`: what its submit requires of the labels of its worker, besides its job; only in responses to
      claims, to submits and to requests that read one task.
    - `cost`: how many slots of its worker it takes, if these are several; only in responses to claims, to
      submits that have said so, and to requests that read one task.
    - `token`: a bearer token with the rights of this claim alone; only in responses to claims with `tokens`.
    """

    # What a new field needs is in CONTRIBUTING, "How to add a field or an option".
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
    attempts: int = 0
    created_by: str | None = None
    result: Any = None
    error_code: str | None = None
    priority: int = 0
    run_at: datetime | None = None
    expires_at: datetime | None = None
    progress: Progress | None = Field(default=None, exclude_if=is_none)
    failure: Failure | None = Field(default=None, exclude_if=is_none)
    stored_result: StoredResult | None = Field(default=None, exclude_if=is_none)
    traceparent: str | None = Field(default=None, exclude_if=is_none)
    unique_key: str | None = Field(default=None, exclude_if=is_none)
    duplicate: Literal[True] | None = Field(default=None, exclude_if=is_none)
    schedule: str | None = Field(default=None, exclude_if=is_none)
    due_at: datetime | None = Field(default=None, exclude_if=is_none)
    version: int = 1
    tags: list[str] | None = Field(default=None, exclude_if=is_none)
    parent: UUID | None = Field(default=None, exclude_if=is_none)
    root: UUID | None = Field(default=None, exclude_if=is_none)
    group: UUID | None = Field(default=None, exclude_if=is_none)
    waits: Literal[True] | None = Field(default=None, exclude_if=is_none)
    after: TaskAfter | None = Field(default=None, exclude_if=is_none)
    successors: list[UUID] | None = Field(default=None, exclude_if=is_none)
    requires: dict[str, Any] | None = Field(default=None, exclude_if=is_none)
    cost: int | None = Field(default=None, exclude_if=is_none)
    token: str | None = Field(default=None, exclude_if=is_none, repr=False)


MAX_BATCH_JOBS = 64
# For how long the token of a claim is valid at most.
MAX_TASK_TOKEN_SECONDS = 86_400
TokenSeconds = Annotated[int, Field(ge=1, le=MAX_TASK_TOKEN_SECONDS)]


class ClaimBatch(RequestBody):
    """A job whose tasks the worker runs together: a claim gets up to `max` of them, and no others.

    If it may take fewer, a claim with ``Prefer: wait`` waits for more, until the oldest has waited for
    `wait_seconds`; nothing is claimed meanwhile. With `only_full`, which cannot wait, it takes `max` or none.
    """

    model_config = ConfigDict(extra="forbid")

    job: Annotated[str, Field(min_length=1, max_length=512)]
    max: BatchSize
    wait_seconds: BatchWait = 0.0
    only_full: bool = False


class TaskClaimRequest(RequestBody):
    """Claim the oldest pending task of the worker's jobs, or up to `max` of them.

    A claim that is repeated with the same `claim_id`, because its response was lost, gets the same tasks that
    the worker still holds. With `start`, each task is claimed and started in one step. With `batches`, which
    needs `max`, a claim gets a batch of one of these jobs, or up to `max` tasks of the other jobs. With
    `tokens`, each task has a `token` for its code, which is valid for `token_seconds`, an hour by default;
    heartbeats renew it. Ask for more where a renewed token does not reach the code.

    `remaining_seconds` is how much time the worker has from now on, also while the claim waits: it gets no
    task of a job whose `expected_seconds` are more.
    """

    worker_id: UUID
    claim_id: UUID | None = None
    max: BatchSize | None = None
    start: bool = False
    tokens: bool = False
    token_seconds: TokenSeconds | None = Field(default=None, exclude_if=is_none)
    batches: list[ClaimBatch] = Field(default_factory=list, max_length=MAX_BATCH_JOBS, fail_fast=True)
    remaining_seconds: Delay | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        if self.batches and self.max is None:
            raise ValueError("batches needs max, the number of tasks of other jobs that the claim may get")
        if len({batch.job for batch in self.batches}) < len(self.batches):
            raise ValueError("batches names a job twice: give each job one entry")
        return self


class EmptyReason(StrEnum):
    """Why a claim got no task.

    `empty`: no task waits. `paused`: the jobs or rooms of the waiting tasks, or all rooms, are paused.
    `at_capacity`: the concurrency limit of the job or of the room is reached. `max_tasks`: the worker holds
    as many tasks as it may. `draining`: an operator drains the worker. `no_time`: each of its jobs is
    expected to run for longer than its `remaining_seconds`; the claim does not wait. `no_slots`: the first
    task takes more slots than the worker has free.
    """

    EMPTY = "empty"
    PAUSED = "paused"
    AT_CAPACITY = "at_capacity"
    MAX_TASKS = "max_tasks"
    DRAINING = "draining"
    NO_TIME = "no_time"
    NO_SLOTS = "no_slots"


class TaskClaimResponse(DeferredModel):
    """The claimed task, or null with the reason.

    The response to a claim with `max` has `tasks` instead, oldest first; if there are none, with the reason.
    """

    task: TaskResponse | None = None
    tasks: list[TaskResponse] = Field(default_factory=list)
    reason: EmptyReason | None = None


# Longer than any run: about 30 years.
SecondsAgo = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class TaskUpdateRequest(RequestBody):
    """Report on a task. `worker_id` and `attempt`, if given, must be those of the claim.

    A report has a new `status`, or what the job did: `progress` and lines of the `log`, or both. Only a task
    that is held has the latter. The status ``pending`` releases the task. `error_code` says why a success is
    reported as a failure, that the payload needs a part of a result that does not exist, or, with
    ``worker-lost``, that what ran the task for the worker was lost: the policy decides as for a lost worker.

    With the status ``cancelled`` and `tree`, all tasks below the task are cancelled too: its children,
    theirs, and so on. Then the task itself may have ended.

    Only a report with the status ``failed`` has the following. `failure` is the exception, and `error_types`
    are the names of its class and base classes, which the policy's `non_retryable` may name. With `retry`
    false the failure is final, whatever the job's policy is. With `retry_after_seconds` the task is tried
    again after this pause, if `max_attempts` allows one more attempt.

    `started_ago` and `ended_ago` are how many seconds before this request the run began and ended, by the
    worker's monotonic clock: `started_at` and `completed_at` are when that was, instead of when the report
    arrives. An end counts as at most 2 seconds ago, and nothing as before the claim.
    """

    status: TaskStatus | None = None
    error: str | None = None
    result: Any = None
    worker_id: UUID | None = None
    attempt: int | None = None
    retry: bool = True
    retry_after_seconds: Delay | None = None
    error_types: list[Annotated[str, Field(max_length=MAX_ERROR_TYPE)]] = Field(
        default_factory=list, max_length=MAX_ERROR_TYPES, fail_fast=True
    )
    error_code: Literal["result-not-serializable", "predecessor-result-invalid", "worker-lost"] | None = None
    progress: Progress | None = None
    log: LogPart | None = None
    failure: Failure | None = None
    started_ago: SecondsAgo | None = None
    ended_ago: SecondsAgo | None = None
    tree: bool = False

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.status is None and self.progress is None and self.log is None:
            raise ValueError("a report needs a status, progress or log")
        if self.tree and self.status != TaskStatus.CANCELLED:
            raise ValueError("tree: only a report with the status 'cancelled' may have it")
        if self.status != TaskStatus.FAILED:
            for name in ("failure", "retry_after_seconds", "error_types"):
                if getattr(self, name):
                    raise ValueError(f"{name}: only a report with the status 'failed' may have one")
        elif self.retry_after_seconds is not None and not self.retry:
            raise ValueError(
                "retry_after_seconds: a report with `retry` false is final; leave one of them out"
            )
        return self

    @property
    def has_details(self) -> bool:
        """Whether it has more than a status: progress, lines of the log, or a failure."""
        return self.progress is not None or self.log is not None or self.failure is not None


class TaskActionRequest(RequestBody):
    """Release, retry or fail a task.

    `worker_id` and `attempt`, if given, must be those of the current or last claim. `error` is the reason.
    """

    worker_id: UUID | None = None
    attempt: int | None = None
    error: str | None = None


class PlannedChange(ResponseBody):
    """What the sweeper would do with a task; `reason` is as in the task's history."""

    id: UUID
    before: TaskStatus
    after: TaskStatus
    reason: str
    run_at: datetime | None = None


class SweeperPreview(ResponseBody):
    """What a cycle of the sweeper would do now, at most one batch of each kind.

    `scanned` and `stale` are numbers of workers; `workers` are the ids that would be removed.
    """

    scanned: int
    stale: int
    workers: list[UUID]
    tasks: list[PlannedChange]


class SweeperMode(StrEnum):
    """`enforce`: the sweeper acts. `observe`: it only logs what it would do. `off`: it does nothing."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


class SweeperUpdate(RequestBody):
    """Change the mode of the sweepers of all servers."""

    mode: SweeperMode


class SweeperCycle(ResponseBody):
    """The summary of one cycle of the sweeper; `elapsed` is in seconds, the other numbers are counts.

    `scanned`, `stale` and `expired`: workers seen, silent for too long, removed. `released` and `failed`:
    tasks. `pruned`: deleted old tasks. `held_back`: the mass-expiry guard stopped the cycle, because most
    workers would have expired at once. `mode` is null if it could not be read from the database.
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


class SweeperState(ResponseBody):
    """The sweeper of the responding server. It expires no worker for `grace_remaining_seconds` more."""

    mode: SweeperMode
    interval_seconds: float
    grace_remaining_seconds: float
    cycles: list[SweeperCycle]


# The bodies of requests and responses for many tasks at once.

MAX_BATCH_BYTES = 8 * 1024 * 1024


ItemKey = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH, pattern=r"^[ -~]+$")]


class TaskToSubmit(TaskSubmitRequest):
    """A task to submit from the room `room_id`; `job_name` is the full name of its job.

    In a batch that is not atomic, `idempotency_key` is a key for this task alone: the same task with the same
    key is submitted once, in whatever batch it is. It takes the place of the header `Idempotency-Key`.
    """

    room_id: str
    job_name: str
    idempotency_key: ItemKey | None = Field(default=None, exclude_if=is_none)


class BatchSubmitRequest(RequestBody):
    """Submit tasks of any rooms and jobs, in order.

    With `atomic`, either all are submitted, in one transaction, or none. With `group`, the same transaction
    makes a group of them, and seals it.
    """

    tasks: list[TaskToSubmit] = Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)
    atomic: bool = False
    group: BatchGroup | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _group_is_atomic(self) -> Self:
        if self.group is not None and any(task.group is not None for task in self.tasks):
            raise ValueError("group: the batch makes a group of its tasks, so none of them may name one")
        self.atomic = self.atomic or self.group is not None
        if self.atomic and (
            keyed := [n for n, it in enumerate(self.tasks) if it.idempotency_key is not None]
        ):
            raise ValueError(
                f"tasks.{keyed[0]}.idempotency_key: an atomic batch is applied once as a whole, so send the "
                "header Idempotency-Key instead"
            )
        check_batch([task.after for task in self.tasks], is_atomic=self.atomic)
        return self


class TaskReport(TaskUpdateRequest):
    """A report of the task `id`, with the same fields as a report of a single task."""

    id: UUID


class BatchReportRequest(RequestBody):
    """Report on tasks. `worker_id` holds for each report that has none of its own."""

    worker_id: UUID | None = None
    reports: list[TaskReport] = Field(min_length=1, max_length=MAX_BATCH, fail_fast=True)


class BatchResult(DeferredModel):
    """The result of one item: the `status` and the body that the request for it alone would have got.

    A success has the `id` of its task, `waits` if that waits for others, and, unless the request prefers
    ``return=minimal``, the `task`; a failure has a `problem`. Reported tasks beyond 8 MiB of payloads and
    results are left out.
    """

    status: int
    id: UUID | None = None
    waits: Literal[True] | None = Field(default=None, exclude_if=is_none)
    task: TaskResponse | None = None
    problem: Problem | None = None


class BatchResponse(ResponseBody):
    """The results of the items, in their order; `group` is the id of the group that the batch has made."""

    results: list[BatchResult]
    group: UUID | None = Field(default=None, exclude_if=is_none)
