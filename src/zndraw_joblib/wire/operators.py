"""Models for operators: statistics, searches, bulk actions, lists, settings, findings, the overview."""

import operator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from zndraw_joblib.wire.bodies import Moment, RequestBody, ResponseBody, Tag, is_none
from zndraw_joblib.wire.messages import (
    JobVersion,
    SchemaBody,
    SweeperCycle,
    SweeperMode,
    SweeperState,
    WorkerInfo,
)
from zndraw_joblib.wire.policy import JobPolicy, Rate
from zndraw_joblib.wire.progress import Progress
from zndraw_joblib.wire.statuses import StatusCounts, TaskStatus

# Upper bounds in seconds of all buckets but the last, which has none.
BUCKET_BOUNDS = (
    0.01,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    21600.0,
    86400.0,
)
MINUTE = 60
HOUR = 3600


class Histogram(ResponseBody):
    """How many durations are in each bucket; `buckets` has one count more than `BUCKET_BOUNDS`.

    A bucket has the durations up to its bound that are in no bucket before it. `sum` is in seconds.
    """

    buckets: list[int] = Field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS) + 1))
    sum: float = 0.0

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.buckets)


class Counters(ResponseBody):
    """What happened to tasks.

    `submitted` tasks were created; `completed`, `failed` and `cancelled` ones ended. `retried`: attempts that
    failed and whose tasks returned to their queues. `lost`: attempts that ended because the worker was lost
    or a time limit passed. `causes`: failed and lost attempts by error code. `waiting`: from the entry into
    the queue to the claim, `running`: from the start to the end, of attempts that ended.
    """

    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    lost: int = 0
    causes: dict[str, int] = Field(default_factory=dict)
    waiting: Histogram = Field(default_factory=Histogram)
    running: Histogram = Field(default_factory=Histogram)


class Interval(Counters):
    """The counts of one interval, which begins at `start`."""

    start: datetime


class Statistics(ResponseBody):
    """Statistics of all jobs, or of one, oldest interval first. Intervals without any task are not in it.

    `resolution` is the length of an interval in seconds. The statistics include everything up to `until`, and
    the last interval may be incomplete. Those of a `tag` are of the newest 10,000 tasks with it that have not
    been deleted.
    """

    job_id: UUID | None = None
    tag: str | None = Field(default=None, exclude_if=is_none)
    resolution: int
    until: datetime
    intervals: list[Interval]


# The demand for workers.

MAX_DEMANDS = 100


class RequirementDemand(ResponseBody):
    """The demand of the tasks that require the same labels of a worker, and take `cost` slots each.

    `slots` are those of present workers with these labels.
    """

    requires: dict[str, Any]
    cost: int = 1
    queued: int
    held_back: int
    running: int
    slots: int
    oldest_seconds: float
    desired_slots: int


class Demand(ResponseBody):
    """How many slots of workers the tasks need that wait or run.

    `queued` counts the tasks that a worker with a free slot would get now. Other tasks in the queues are
    `held_back`, by a pause or a limit; scheduled tasks count nowhere. `running` are those that run on the
    workers whose `slots`, free and busy, are counted: those that send heartbeats and do not drain.
    `desired_slots` is `queued` plus `running`, each task with its cost. `oldest_seconds` is how long the
    first queued task has waited. `by_requirement` has the parts with the most desired slots, at most 100.
    `unknown_jobs` is there if some of several jobs that were asked for were never registered, or were deleted
    long after they were forgotten: these have no tasks.
    """

    queued: int
    held_back: int
    running: int
    slots: int
    oldest_seconds: float
    desired_slots: int
    by_requirement: list[RequirementDemand]
    unknown_jobs: list[str] | None = Field(default=None, exclude_if=is_none)


# The bodies of searches across rooms, and of actions on all tasks that match a filter.

MAX_FILTER_VALUES = 20
MAX_DEMAND_JOBS = 100
MAX_SEARCH_TEXT = 200
MAX_BULK_TASKS = 10_000


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("it must not contain the character U+0000, which no stored text contains")
    return text


Text = Annotated[str, Field(min_length=1, max_length=MAX_SEARCH_TEXT), AfterValidator(_without_nul)]
SearchedName = Annotated[str, Field(min_length=1, max_length=400), AfterValidator(_without_nul)]
Names = Annotated[list[SearchedName], Field(max_length=MAX_FILTER_VALUES)]
DemandJobs = Annotated[list[SearchedName], Field(max_length=MAX_DEMAND_JOBS)]


Versions = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=MAX_FILTER_VALUES)]


TagNames = Annotated[list[Tag], Field(max_length=MAX_FILTER_VALUES)]


class DemandFilter(RequestBody):
    """Of which jobs, or of the jobs of which rooms, to return the demand."""

    job: DemandJobs = Field(default_factory=list)
    room: Names = Field(default_factory=list)


class TaskFilter(RequestBody):
    """Which tasks to find: a task has to match every field that is given, and any value of a list.

    `job` has full names of jobs (``room:category:name``), `room` ids of rooms. `worker` is the id of the
    current or last worker. `error_code` is as in a task. `exception` has texts before the first colon of the
    error, where Python workers write the class of the exception: ``ValueError``. `text` is part of the
    payload as JSON text, or of the error; the letters a to z match without regard to case. Times are those of
    creation: `since` is included, `until` is not. `version` has numbers of versions, and needs `job`.
    `scheduled`: pending tasks that are not due yet; if false, all others. `tag` has tags of tasks. `parent`
    is the task that has submitted them, `root` the first task of their tree, which does not match itself.
    `group` is the id of a group.
    """

    model_config = ConfigDict(extra="forbid")

    status: Annotated[list[TaskStatus], Field(max_length=len(TaskStatus))] = Field(default_factory=list)
    job: Names = Field(default_factory=list)
    room: Names = Field(default_factory=list)
    worker: UUID | None = None
    created_by: SearchedName | None = None
    error_code: Names = Field(default_factory=list)
    exception: Names = Field(default_factory=list)
    text: Text | None = None
    since: Moment | None = None
    until: Moment | None = None
    version: Versions = Field(default_factory=list)
    scheduled: bool | None = None
    tag: TagNames = Field(default_factory=list)
    parent: UUID | None = None
    root: UUID | None = None
    group: UUID | None = Field(default=None, exclude_if=is_none)

    @model_validator(mode="after")
    def _version_needs_job(self) -> Self:
        if self.version and not self.job:
            raise ValueError("version: it needs job, because versions are counted for each job")
        return self


class WaitsFor(StrEnum):
    """What a pending task waits for, beside a free slot.

    `predecessor`: the ends of other tasks or groups. `time`: its due time. `resume`: its job, its room or all
    rooms are paused. `worker`: no worker serves its job.
    """

    PREDECESSOR = "predecessor"
    TIME = "time"
    RESUME = "resume"
    WORKER = "worker"


class FoundTask(ResponseBody):
    """A task in the result of a search, without payload and result. `error` has at most 300 characters.

    In a search, and in the preview of an action on many tasks, `payload_preview` are the first 200 characters
    of the payload as JSON text, `worker_name` is what the worker calls itself while it is there, for
    superusers, `progress` is the last of a held task, `waits_for` is null unless a pending task waits for
    something else than a free slot, and `has_children` is whether it has submitted other tasks. In other
    answers these are null, or false.
    """

    id: UUID
    job_name: str
    room_id: str
    status: TaskStatus
    created_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    worker_id: UUID | None = None
    created_by: str | None = None
    attempt: int = 0
    attempts: int = 0
    priority: int = 0
    run_at: datetime | None = None
    error: str | None = None
    error_code: str | None = None
    version: int = 1
    payload_preview: str | None = None
    worker_name: str | None = None
    progress: Progress | None = None
    waits_for: WaitsFor | None = None
    tags: list[str] | None = Field(default=None, exclude_if=is_none)
    parent: UUID | None = Field(default=None, exclude_if=is_none)
    root: UUID | None = Field(default=None, exclude_if=is_none)
    has_children: bool = False


class FailureGroup(ResponseBody):
    """Failed tasks of one job with the same error code and exception.

    `exception` is the text before the first colon of the error if that can be the name of a class, else null.
    `first_at` and `last_at` are when the first and the last of these tasks ended; `example` is the newest,
    `error` its error, at most 300 characters.
    """

    job_name: str
    error_code: str | None = None
    exception: str | None = None
    count: int
    first_at: datetime
    last_at: datetime
    example: UUID
    error: str | None = None


class FailureGroups(ResponseBody):
    """The newest failed tasks that match a filter, in groups, the largest first.

    `count` is how many tasks were grouped. `is_complete` is false if older ones match too: at most 2,000 are
    read.
    """

    groups: list[FailureGroup]
    count: int
    is_complete: bool = True


class TaskCounts(StatusCounts):
    """How many tasks have each status: all, or those of a tree or of tags.

    Of the latter at most the newest 10,000 are counted; `is_complete` is false if there are more.
    """

    is_complete: bool = True


class TagList(ResponseBody):
    """Tags of tasks that have not been deleted, in their order, at most 50."""

    tags: list[str]


class BulkAction(StrEnum):
    """What to do with all tasks that match a filter.

    `retry`: failed and cancelled tasks. `cancel`: tasks that have not ended. `release`: held tasks.
    `purge`: delete tasks that have ended. `retarget`: pending tasks of earlier versions of the jobs of the
    filter get the current version, if their payloads match its schema. Tasks in another status are not
    affected.
    """

    RETRY = "retry"
    CANCEL = "cancel"
    RELEASE = "release"
    PURGE = "purge"
    RETARGET = "retarget"


class BulkPreviewRequest(RequestBody):
    """Ask how many tasks an action would affect.

    With `tree`, an action that cancels also cancels the tasks below those that match.
    """

    action: BulkAction
    filter: TaskFilter
    tree: bool = False

    @model_validator(mode="after")
    def _tree_is_cancelled(self) -> Self:
        if self.tree and self.action is not BulkAction.CANCEL:
            raise ValueError("tree: only the action 'cancel' may have it")
        return self


class BulkPreview(ResponseBody):
    """How many tasks an action would affect; `examples` are the first of them.

    `count` is at most `limit`, and `is_complete` is false if there are more: the action affects at most that
    many, a retry the oldest ones, any other the newest. With `tree` it affects `below` more tasks, which are
    below them. `token` confirms the action, for its caller and this filter, until `expires_at`.
    """

    action: BulkAction
    count: int
    limit: int
    is_complete: bool
    examples: list[FoundTask]
    token: str
    expires_at: datetime
    below: int = 0


class BulkRequest(BulkPreviewRequest):
    """Apply an action that was previewed: `token` is that of the preview. The filter must be the same."""

    token: Annotated[str, Field(max_length=2000)]


class RefusedTask(ResponseBody):
    """A task whose payload does not match the current schema of its job, and why."""

    id: UUID
    detail: str


class BulkResult(ResponseBody):
    """How many tasks the action has affected, and how many that match it has `skipped`.

    Those had another status by then, were locked, or, for a purge, ended so recently that the statistics
    have not read them yet, or are needed by a group or a step that has not ended: a later action affects
    them.

    Tasks that were created after the preview are not affected. `is_complete` is false if there may be more
    tasks that match: the action affects a limited number; preview it again. `refused` lists the first 100 of
    the skipped tasks whose payloads do not match the current schema.
    """

    action: BulkAction
    affected: int
    skipped: int
    refused: list[RefusedTask] = Field(default_factory=list, exclude_if=operator.not_)
    is_complete: bool = True


class PrefixMatches(ResponseBody):
    """The ids of tasks, workers and groups that begin with a prefix: at most ten of each."""

    tasks: list[UUID] = Field(default_factory=list)
    workers: list[UUID] = Field(default_factory=list)
    groups: list[UUID] = Field(default_factory=list)


# What operators see: the caller's permissions, jobs, rooms, workers, servers, settings, the audit trail.


class Permission(StrEnum):
    """What a caller may do. Those of a room are returned only for the room that the request names."""

    READ_ALL = "all:read"
    OPERATE = "all:operate"
    READ_ROOM = "room:read"
    WRITE_ROOM = "room:write"
    OPERATE_ROOM = "room:operate"


class Me(ResponseBody):
    """The caller. `permissions` are what it may do; endpoints check them again.

    `all:read`: read every room, the audit trail, servers and settings. `all:operate`: pause jobs, drain
    workers, change the sweeper, and act on all tasks. `room:read`, `room:write` and `room:operate` are those
    of `room`.

    `roles` are those of its token or user, empty without one. `rooms` are the rooms in which it has the
    rights `scopes`, and `jobs` patterns of the jobs that it may submit and serve; null for all.

    `expires_in_seconds` is there if the token of the request ends by itself: for how much longer it is valid.
    `clock_ahead_seconds` is there if the server has a test clock: how far that is ahead of the real time.
    """

    id: str
    is_superuser: bool
    roles: list[str] = Field(default_factory=list)
    scopes: list[str] = Field(default_factory=list)
    rooms: list[str] | None = None
    jobs: list[str] | None = None
    room: str | None = None
    permissions: list[Permission]
    expires_in_seconds: float | None = Field(default=None, exclude_if=is_none)
    clock_ahead_seconds: float | None = Field(default=None, exclude_if=is_none)


class Version(ResponseBody):
    """The release of the server that responds: of the package, of Python, and of the database's schema.

    `socketio` is false if the server sends no Socket.IO events. `page` is the URL of the operators' page,
    relative to the URL that clients have, like ``./``; null if the server has none.
    """

    version: str
    build: str | None = None
    python: str
    database: str
    schema_version: str
    socketio: bool = True
    page: str | None = None


class JobEntry(SchemaBody, JobPolicy, ResponseBody):
    """A job with its counts, of all its versions. `workers` serve the current `version`, with these `slots`.

    `versions` lists the current one, and those with workers or waiting tasks; an overview has none.

    `oldest_waiting_at` is when the oldest task of its queue was created, null if the queue is empty.
    `unserved_since` is when its last worker left, null while one serves it. `paused_until` is null for a
    pause that a resume ends.
    """

    id: UUID
    full_name: str
    room_id: str
    category: str
    name: str
    paused: bool = False
    paused_until: datetime | None = None
    deleted: bool = False
    created_at: datetime
    workers: int
    slots: int
    queued: int
    scheduled: int
    counts: StatusCounts
    oldest_waiting_at: datetime | None = None
    unserved_since: datetime | None = None
    version: int = 1
    versions: list[JobVersion] = Field(default_factory=list)


class LimitEntry(ResponseBody):
    """A limit that jobs share by its name, and who defined it last."""

    name: str
    max_in_flight: int | None = None
    rate: Rate | None = None
    created_at: datetime
    updated_at: datetime
    updated_by: str


class PauseRequest(RequestBody):
    """Pause a job, a room or all rooms until a time, or without one until a resume."""

    until: Moment | None = None


class PauseEntry(ResponseBody):
    """A pause of a room, or of all rooms if `room` is null, until a time or, without one, until a resume."""

    room: str | None = None
    until: datetime | None = None
    paused_at: datetime
    paused_by: str


class PauseState(ResponseBody):
    """Whether a room, or the whole queue if `room` is null, is paused, and the pauses that do it.

    A room is paused by its own pause and by that of all rooms: then it has two.
    """

    room: str | None = None
    paused: bool
    pauses: list[PauseEntry]


class RoomEntry(ResponseBody):
    """A room with its counts. `share` is its part, from 0 to 1, of all tasks that are claimed or running."""

    id: str
    counts: StatusCounts
    jobs: int
    share: float
    oldest_waiting_at: datetime | None = None


class WorkerState(StrEnum):
    """`active`: it sends heartbeats. `silent`: it has not for two intervals. `draining`: it finishes."""

    ACTIVE = "active"
    SILENT = "silent"
    DRAINING = "draining"


class WorkerSummary(WorkerInfo, ResponseBody):
    """A worker in a list; `job_count` is the number of jobs it serves.

    `name` to `slots` are what the worker said about itself. `jobs` are the jobs that the caller may see, at
    most 100; `held` is how many tasks are claimed by the worker or run in it, and `running` how many of them
    run. `ends_at` is when its allocation on a cluster ends. `owner_id`, `host` and `pid` are null unless the
    caller owns the worker or is a superuser. Of a worker that serves no job that the caller may see, only
    `id`, `last_heartbeat`, `job_count` and `state` are known. Servers before 1.0 return only the first three.
    """

    id: UUID
    last_heartbeat: datetime
    job_count: int
    state: WorkerState | None = None
    max_tasks: int | None = None
    owner_id: str | None = None
    created_at: datetime | None = None
    jobs: list[str] = Field(default_factory=list)
    held: int | None = None
    running: int | None = None
    ends_at: datetime | None = Field(default=None, exclude_if=is_none)


class WorkerDetail(WorkerSummary):
    """A worker with its current tasks, the newest first, at most 100."""

    tasks: list[FoundTask] = Field(default_factory=list)


class ProviderEntry(SchemaBody, ResponseBody):
    """A provider. `open_requests` is how many of its requests have no result yet."""

    id: UUID
    full_name: str
    room_id: str
    category: str
    name: str
    content_type: str
    worker_id: UUID | None
    created_at: datetime
    connected: bool
    open_requests: int


class ServerEntry(ResponseBody):
    """A server process. `is_silent`: its sweeper has not reported for three intervals."""

    id: UUID
    host: str
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    is_silent: bool
    sweeper_mode: SweeperMode | None = None
    sweep_interval_seconds: float
    grace_remaining_seconds: float
    last_good_at: datetime | None = None


class ServerCycle(SweeperCycle):
    """A cycle of the sweeper of one server."""

    server_id: UUID


class SweeperDetail(SweeperState):
    """The sweeper of the responding server, all servers, and the last 100 cycles of their sweepers."""

    servers: list[ServerEntry]
    history: list[ServerCycle]


class AuditEntry(ResponseBody):
    """An action. `target` is what it changed: a task or worker by id, a job by name, or a filter."""

    n: int
    at: datetime
    actor: str
    action: str
    room_id: str | None = None
    target: str
    detail: dict[str, Any] | None = None
    request_id: str | None = None


class SettingEntry(ResponseBody):
    """A setting in force; a secret has no value.

    `source` is `default`, `environment`, `file` or `argument`.
    """

    name: str
    value: Any = None
    default: Any = None
    source: str
    is_secret: bool = False
    description: str = ""


class Settings(ResponseBody):
    """The settings of the server that responds. `unknown` are variables that no setting has."""

    settings: list[SettingEntry]
    unknown: list[str] = Field(default_factory=list)


class KeptTime(ResponseBody):
    """How long ended tasks of a status are kept; null for ever. `older` is how many are older than that.

    It counts no task that is kept for others: for a step that waits, or for a group that has not ended.
    `source` is `job`, `settings` or `proposed`.
    """

    keep_seconds: float | None
    source: Literal["job", "settings", "proposed"]
    older: int


class KeptTasks(ResponseBody):
    """How long ended tasks are kept: those of `job`, or with null of all jobs without times of their own.

    The server deletes those that are older. It counts up to 10,000 tasks for each time: without `is_complete`
    there may be more. `applies_at`: default times apply from then on; null if they do already.
    """

    job: str | None
    completed: KeptTime
    failed: KeptTime
    cancelled: KeptTime
    is_complete: bool
    applies_at: datetime | None


class Severity(StrEnum):
    """How urgent a finding is. `info` is a state that an operator chose, such as a pause."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Finding(ResponseBody):
    """Something that is wrong. `code` is for programs; `detail` is a sentence, `remedy` what to do.

    Codes: `job-without-workers`, `tasks-without-matching-workers`, `tasks-without-enough-time`,
    `job-without-executor`, `schedule-without-executor`, `job-paused`, `room-paused`, `queue-paused`,
    `waiting-too-long`, `failing-job`, `failure-rate`, `sweeper-silent`, `sweeper-held-back`,
    `silent-workers`, `lost-attempts`, `schedule-failing`, `schedule-run-failed`, `worker-token-ending`,
    `group-on-end-failed`, `webhook-failing`, `webhook-disabled`, `pending-tasks-near-limit`,
    `result-store-near-limit`, `different-versions`. `since` is when it began, as far as is known.
    """

    code: str
    severity: Severity
    detail: str
    remedy: str
    job: str | None = None
    room: str | None = None
    task: UUID | None = None
    count: int | None = None
    since: datetime | None = None


class Overview(ResponseBody):
    """The state of the queue at `at`: findings first, the most urgent first.

    `pauses` are those of rooms and of the whole queue, at most 100. `slots_used` of the `slots` of all
    workers run a task; a task that is claimed ahead uses no slot. `recent` are the intervals of the last
    hour, one for each minute. `statistics_until` is the moment up to which they are complete.
    """

    at: datetime
    findings: list[Finding]
    counts: StatusCounts
    queued: int
    scheduled: int
    oldest_waiting_at: datetime | None = None
    jobs: int
    paused_jobs: int
    pauses: list[PauseEntry] = Field(default_factory=list)
    workers: dict[WorkerState, int]
    slots: int
    slots_used: int | None = None
    servers: list[ServerEntry]
    recent: list[Interval]
    statistics_until: datetime | None = None


class RoomOverview(ResponseBody):
    """The state of one room at `at`, for a reader of the room; without statistics of other rooms.

    `pauses` are its own and that of all rooms.
    """

    at: datetime
    room: str
    findings: list[Finding]
    counts: StatusCounts
    jobs: list[JobEntry]
    pauses: list[PauseEntry] = Field(default_factory=list)
    oldest_waiting_at: datetime | None = None
