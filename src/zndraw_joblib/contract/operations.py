"""What operators see: the caller's permissions, jobs, rooms, workers, servers, settings, the audit trail."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import Field

from zndraw_joblib.contract.bodies import ResponseBody
from zndraw_joblib.contract.messages import SchemaBody, SweeperCycle, SweeperMode, SweeperState
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.searches import FoundTask, StatusCounts
from zndraw_joblib.contract.statistics import Interval
from zndraw_joblib.contract.workers import WorkerInfo


class Permission(StrEnum):
    """What a caller may do. Those of a room are returned only for the room that the request names."""

    READ_ALL = "all:read"
    OPERATE = "all:operate"
    READ_ROOM = "room:read"
    WRITE_ROOM = "room:write"


class Me(ResponseBody):
    """The caller. `permissions` are what it may do; endpoints check them again.

    `all:read`: read every room, the audit trail, servers and settings. `all:operate`: pause jobs, drain
    workers, change the sweeper, and act on all tasks. `room:read` and `room:write` are those of `room`.
    """

    id: str
    is_superuser: bool
    room: str | None = None
    permissions: list[Permission]


class Version(ResponseBody):
    """The release of the server that responds: of the package, of Python, and of the database's schema."""

    version: str
    build: str | None = None
    python: str
    database: str
    schema_version: str


class JobEntry(SchemaBody, JobPolicy, ResponseBody):
    """A job with its counts. `workers` is the number of workers that serve it, `slots` the sum of theirs.

    `oldest_waiting_at` is when the oldest task of its queue was created, null if the queue is empty.
    """

    id: UUID
    full_name: str
    room_id: str
    category: str
    name: str
    paused: bool = False
    deleted: bool = False
    created_at: datetime
    workers: int
    slots: int
    queued: int
    scheduled: int
    counts: StatusCounts
    oldest_waiting_at: datetime | None = None


class JobEntries(ResponseBody):
    """Jobs by full name; `next` is the `cursor` of the request that reads on, null at the end."""

    items: list[JobEntry]
    next: str | None = None


class RoomEntry(ResponseBody):
    """A room with its counts. `share` is its part, from 0 to 1, of all tasks that are claimed or running."""

    id: str
    counts: StatusCounts
    jobs: int
    share: float
    oldest_waiting_at: datetime | None = None


class RoomEntries(ResponseBody):
    """Rooms by id; `next` is the `cursor` of the request that reads on, null at the end."""

    items: list[RoomEntry]
    next: str | None = None


class WorkerState(StrEnum):
    """`active`: it sends heartbeats. `silent`: it has not for two intervals. `draining`: it finishes."""

    ACTIVE = "active"
    SILENT = "silent"
    DRAINING = "draining"


class WorkerSummary(WorkerInfo, ResponseBody):
    """A worker in a list; `job_count` is the number of jobs it serves.

    `name` to `slots` are what the worker said about itself. `jobs` are the jobs that the caller may see, at
    most 100; `held` is how many tasks are claimed by the worker or run in it, and `running` how many of them
    run. `owner_id`, `host` and `pid` are null unless the caller owns the worker or is a superuser. Of a
    worker that serves no job that the caller may see, only `id`, `last_heartbeat`, `job_count` and `state`
    are known. Servers before 1.0 return only the first three.
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


class ProviderEntries(ResponseBody):
    """Providers by full name; `next` is the `cursor` of the request that reads on, null at the end."""

    items: list[ProviderEntry]
    next: str | None = None


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


class AuditTrail(ResponseBody):
    """Actions, newest first; `next` is the `cursor` of the request that reads on, null at the end."""

    items: list[AuditEntry]
    next: str | None = None


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


class Severity(StrEnum):
    """How urgent a finding is."""

    CRITICAL = "critical"
    WARNING = "warning"


class Finding(ResponseBody):
    """Something that is wrong. `code` is for programs; `detail` is a sentence, `remedy` what to do.

    Codes: `job-without-workers`, `job-paused`, `waiting-too-long`, `failing-job`, `sweeper-silent`,
    `sweeper-held-back`, `silent-workers`, `lost-attempts`. `since` is when it began, as far as is known.
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

    `slots_used` of the `slots` of all workers run a task; a task that is claimed ahead uses no slot. `recent`
    are the intervals of the last hour, one for each minute. `statistics_until` is the moment up to which they
    are complete.
    """

    at: datetime
    findings: list[Finding]
    counts: StatusCounts
    queued: int
    scheduled: int
    oldest_waiting_at: datetime | None = None
    jobs: int
    paused_jobs: int
    workers: dict[WorkerState, int]
    slots: int
    slots_used: int | None = None
    servers: list[ServerEntry]
    recent: list[Interval]
    statistics_until: datetime | None = None


class RoomOverview(ResponseBody):
    """The state of one room at `at`, for a reader of the room; without statistics of other rooms."""

    at: datetime
    room: str
    findings: list[Finding]
    counts: StatusCounts
    jobs: list[JobEntry]
    oldest_waiting_at: datetime | None = None
