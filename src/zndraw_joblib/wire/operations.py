"""The table of the REST API: one row for each operation.

The server makes its routes, checks and OpenAPI document from the rows, the clients their requests. A path is
below `PREFIX`. Of two rows whose paths can match the same request, the one with more literal parts comes
first. All else stands in the order of the OpenAPI document.
"""

from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import cached_property
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from zndraw_joblib.wire import groups as g
from zndraw_joblib.wire import history as h
from zndraw_joblib.wire import messages as m
from zndraw_joblib.wire import operators as o
from zndraw_joblib.wire import problems as p
from zndraw_joblib.wire import providers as pr
from zndraw_joblib.wire import schedules as sc
from zndraw_joblib.wire import webhooks as w
from zndraw_joblib.wire.policy import LimitValues
from zndraw_joblib.wire.progress import StoredResult
from zndraw_joblib.wire.scopes import ANY_SCOPE, Scope
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest, WorkerTokenResponse

PREFIX = "/v1/joblib"
# Operations without an answer return 204.
NO_CONTENT = type(None)
Answer_co = TypeVar("Answer_co", covariant=True)
Problems = tuple[type[p.ProblemException], ...]


class TaskPage(m.PaginatedResponse[m.TaskResponse]):
    """One page of a list of tasks, newest first; `total` counts the whole list."""


class JobPage(m.PaginatedResponse[m.JobSummary]):
    """One page of a list of jobs, newest first; `total` counts the whole list."""


class WorkerPage(m.PaginatedResponse[o.WorkerSummary]):
    """One page of a list of workers, newest first; `total` counts the whole list."""


class ProviderPage(m.PaginatedResponse[pr.ProviderResponse]):
    """One page of a list of providers, newest first; `total` counts the whole list."""


class SchedulePage(m.PaginatedResponse[sc.ScheduleResponse]):
    """One page of the schedules of a room, by name; `total` counts the whole list."""


class LimitPage(m.PaginatedResponse[o.LimitEntry]):
    """One page of the limits that jobs share, by name; `total` counts the whole list."""


class ScheduleEntries(m.CursorResponse[sc.ScheduleResponse]):
    """Schedules by room and name; `next` is the `cursor` of the request that reads on, null at the end."""


class WebhookPage(m.PaginatedResponse[w.WebhookResponse]):
    """One page of the webhooks of a room, by name; `total` counts the whole list."""


class Deliveries(m.CursorResponse[w.Delivery]):
    """Deliveries, newest first; `next` is the `cursor` of the request that reads on, null at the end."""


class FoundTasks(m.CursorResponse[o.FoundTask]):
    """A part of the result of a search, newest first.

    `next` is the `cursor` of the request that reads on, null at the end. A search that reads many tasks to
    find few ends early: then the part has fewer tasks than wanted, even none, and `next` reads on.
    """


class JobEntries(m.CursorResponse[o.JobEntry]):
    """Jobs by full name; `next` is the `cursor` of the request that reads on, null at the end."""


class PauseEntries(m.CursorResponse[o.PauseEntry]):
    """Pauses by room, that of all rooms first.

    `next` is the `cursor` of the request that reads on, null at the end.
    """


class RoomEntries(m.CursorResponse[o.RoomEntry]):
    """Rooms by id; `next` is the `cursor` of the request that reads on, null at the end."""


class ProviderEntries(m.CursorResponse[o.ProviderEntry]):
    """Providers by full name; `next` is the `cursor` of the request that reads on, null at the end."""


class GroupEntries(m.CursorResponse[g.GroupResponse]):
    """Groups, newest first; `next` is the `cursor` of the request that reads on, null at the end."""


class AuditTrail(m.CursorResponse[o.AuditEntry]):
    """Actions, newest first; `next` is the `cursor` of the request that reads on, null at the end."""


class Access(Flag):
    """Who may use an operation. Each caller has an identity, and all flags of a row apply.

    The server checks the first group of flags for every request, before it reads the body. The work checks
    the second group, because it has to read something first.
    """

    CALLER = 0
    # A superuser, or with `ROOM_WRITE` or `NAMED_ROOMS` also an operator of the rooms.
    SUPERUSER = auto()
    # The guard of the room in the path passes.
    ROOM_READ = auto()
    ROOM_WRITE = auto()
    # The owner of a stream token in the query needs no identity.
    STREAM_TOKEN = auto()
    # A caller with the scope `metrics`, a superuser, or the owner of the setting `metrics_token`.
    METRICS_TOKEN = auto()

    # May read the room of the task, or has the worker that holds the task.
    TASK_READ = auto()
    # May read the room of the group, or write to it to change the group.
    GROUP = auto()
    # Owns the task, the worker or the provider; which role may do what is in the rules.
    OWNER = auto()
    # Is a superuser, or passes the guards of the rooms that the query or the body names.
    NAMED_ROOMS = auto()


class Effect(Enum):
    """What an operation does to the state of the queue, and how it may be repeated."""

    READ = auto()
    WRITE = auto()
    # Takes an `Idempotency-Key`: a repeated request changes nothing and gets the first answer.
    WRITE_ONCE = auto()
    # Takes an `Idempotency-Key`, and makes from it the id of a claim, or the key of each item of a batch.
    WRITE_PARTS_ONCE = auto()


class ForTask(Enum):
    """What the token of a task, which a claim returns, permits of a row; nothing of a row without one."""

    # What is about the caller.
    CALLER = auto()
    # For the task itself.
    OWN = auto()
    # For the task itself, and to cancel those below it: it is their parent, or the first of their tree.
    BELOW = auto()
    # For the task, its predecessors, and the tasks that it has submitted.
    RELATED = auto()
    # In the room of the task.
    ROOM = auto()
    # Tasks in the room of the task, whose parent it is, and groups of these.
    CHILDREN = auto()
    # For the groups that the task has made, also in an earlier attempt.
    GROUP = auto()


# Each operation identifies its caller, with a dependency of the host that may read parameters and refuse.
ALWAYS: Problems = (
    p.Unauthorized,
    p.Forbidden,
    p.InvalidRequest,
    p.InternalServerError,
    p.ServiceUnavailable,
)
_BODY: Problems = (p.ContentTooLarge, p.UploadStalled)
_OF_ACCESS: dict[Access, Problems] = {
    Access.ROOM_READ: (p.InvalidRoomId,),
    Access.ROOM_WRITE: (p.InvalidRoomId, p.Locked),
}
_OF_EFFECT: dict[Effect, Problems] = {
    Effect.WRITE_ONCE: (p.InvalidIdempotencyKey, p.RequestInProgress, p.IdempotencyKeyReused),
    Effect.WRITE_PARTS_ONCE: (p.InvalidIdempotencyKey,),
}


@dataclass(frozen=True, eq=False)
class Operation(Generic[Answer_co]):
    """A row: an operation of the REST API.

    A caller needs one of its `scopes`, one of `also`, and the token of a task what it is
    `for_task`. `answer` is a model, `bytes` for a stream or stored bytes, `str` for a text, or `NO_CONTENT`.
    `problems` are those of the work alone. If `has_optional_body`, a request may have no body.
    """

    name: str
    method: str
    template: str
    tag: str
    access: Access
    scopes: Scope
    effect: Effect
    answer: type[Answer_co]
    body: type[BaseModel] | None = None
    has_optional_body: bool = False
    status: int = 200
    problems: Problems = ()
    for_task: ForTask | None = None
    also: Scope = ANY_SCOPE

    def missing(self, scopes: Scope) -> Scope:
        """Return the scopes of which a caller with `scopes` needs one and has none; no scope if it may."""
        return next((needed for needed in (self.scopes, self.also) if not needed & scopes), Scope(0))

    def path(self, **parts: object) -> str:
        """Return the path below `PREFIX`, with each part quoted."""
        return self.template.format_map({name: _quoted(str(part)) for name, part in parts.items()})

    @cached_property
    def is_of_all_rooms(self) -> bool:
        """Whether it shows or changes what is not of one room."""
        return bool(self.access & (Access.SUPERUSER | Access.METRICS_TOKEN))

    @property
    def all_problems(self) -> Problems:
        """The problems that the operation can return, by status."""
        kinds = {*ALWAYS, *self.problems, *_OF_EFFECT.get(self.effect, ()), *(_BODY if self.body else ())}
        for access in self.access:
            kinds.update(_OF_ACCESS.get(access, ()))
        return tuple(sorted(kinds, key=lambda kind: (kind.status, kind.problem_id())))


def _quoted(text: str) -> str:
    """Return `text` as one part of a path, also when it is ``.`` or ``..``."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


_ROOMS: Problems = (p.InvalidRoomId,)
_WRITABLE_ROOMS: Problems = (p.InvalidRoomId, p.Locked)
_JOB: Problems = (p.JobNotFound,)
_SCHEDULE: Problems = (p.ScheduleNotFound,)
_WEBHOOK: Problems = (p.WebhookNotFound,)
_TASK: Problems = (p.TaskNotFound,)
_GROUP: Problems = (p.GroupNotFound,)
_WORKER: Problems = (p.WorkerNotFound,)
_PROVIDER: Problems = (p.ProviderNotFound,)
_CLAIM: Problems = (*_WORKER, p.TooManyRequests)
_REPORT: Problems = (*_TASK, p.InvalidTaskTransition, p.StaleReport)
_REGISTER: Problems = (*_WORKER, p.InvalidCategory)
_UPLOAD: Problems = (*_BODY, p.TooManyRequests)
_RESULT: Problems = (*_TASK, p.ResultNotFound, p.ResultExpired, p.RangeNotSatisfiable)
_SUBMIT: Problems = (
    *(*_JOB, *_TASK, p.InvalidPayload, p.TooManyRequests, p.Conflict),
    *(p.InternalJobNotConfigured, p.NoWorkersAvailable, p.DuplicateTask, p.GroupNotFound, p.GroupSealed),
)
_PROVIDER_REQUEST: Problems = (
    *(*_PROVIDER, p.ContentTooLarge, p.TooManyRequests, p.ProviderNotConnected),
    *(p.ProviderFailed, p.ProviderExecutionFailed, p.ProviderTimeout),
)

# fmt: off
# Name, method, path; tag, access, scopes, effect, answer; the rest by keyword.

# Tasks.

SEARCH_TASKS = Operation("search_tasks", "GET", "/tasks",
    "tasks", Access.NAMED_ROOMS, Scope.READ, Effect.READ, FoundTasks, problems=(*_ROOMS, *_BODY))
COUNT_TASKS = Operation("count_tasks", "GET", "/tasks/counts",
    "tasks", Access.NAMED_ROOMS, Scope.READ, Effect.READ, o.TaskCounts, problems=_ROOMS)
LIST_TAGS = Operation("list_tags", "GET", "/tasks/tags",
    "tasks", Access.NAMED_ROOMS, Scope.READ, Effect.READ, o.TagList, problems=_ROOMS)
GROUP_FAILURES = Operation("group_failures", "GET", "/tasks/failures",
    "tasks", Access.NAMED_ROOMS, Scope.READ, Effect.READ, o.FailureGroups, problems=(*_ROOMS, *_BODY))
SUBMIT_TASK = Operation("submit_task", "POST", "/rooms/{room_id}/tasks/{name}",
    "tasks", Access.ROOM_WRITE, Scope.SUBMIT, Effect.WRITE_ONCE, m.TaskResponse, body=m.TaskSubmitRequest,
    status=202, problems=_SUBMIT,
    for_task=ForTask.CHILDREN)
CLAIM_TASK = Operation("claim_task", "POST", "/tasks/claim",
    "tasks", Access.OWNER, Scope.WORK, Effect.WRITE_PARTS_ONCE, m.TaskClaimResponse, body=m.TaskClaimRequest,
    problems=_CLAIM)
GET_TASK = Operation("get_task", "GET", "/tasks/{task_id}",
    "tasks", Access.TASK_READ, Scope.READ, Effect.READ, m.TaskResponse, problems=(*_TASK, p.TooManyRequests),
    for_task=ForTask.RELATED)
GET_TASK_HISTORY = Operation("get_task_history", "GET", "/tasks/{task_id}/history",
    "tasks", Access.TASK_READ, Scope.READ, Effect.READ, h.TaskHistory, problems=_TASK,
    for_task=ForTask.RELATED)
GET_TASK_LOG = Operation("get_task_log", "GET", "/tasks/{task_id}/log",
    "tasks", Access.TASK_READ, Scope.READ, Effect.READ, h.TaskLog, problems=_TASK,
    for_task=ForTask.RELATED)
EXPLAIN_TASK = Operation("explain_task", "GET", "/tasks/{task_id}/explain",
    "tasks", Access.TASK_READ, Scope.READ, Effect.READ, h.TaskExplanation, problems=_TASK,
    for_task=ForTask.RELATED)
RELEASE_TASK = Operation("release_task", "POST", "/tasks/{task_id}/release",
    "tasks", Access.OWNER, Scope.WORK | Scope.OPERATE, Effect.WRITE_ONCE, m.TaskResponse,
    body=m.TaskActionRequest, has_optional_body=True, problems=_REPORT)
RETRY_TASK = Operation("retry_task", "POST", "/tasks/{task_id}/retry",
    "tasks", Access.OWNER, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, m.TaskResponse,
    body=m.TaskActionRequest, has_optional_body=True, problems=(*_REPORT, p.TooManyRequests, p.DuplicateTask))
RUN_TASK_NOW = Operation("run_task_now", "POST", "/tasks/{task_id}/run-now",
    "tasks", Access.OWNER, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, m.TaskResponse,
    body=m.TaskActionRequest, has_optional_body=True, problems=_REPORT)
FAIL_TASK = Operation("fail_task", "POST", "/tasks/{task_id}/fail",
    "tasks", Access.OWNER, Scope.OPERATE, Effect.WRITE_ONCE, m.TaskResponse,
    body=m.TaskActionRequest, has_optional_body=True, problems=_REPORT)
UPDATE_TASK = Operation("update_task", "PATCH", "/tasks/{task_id}",
    "tasks", Access.OWNER, Scope.SUBMIT | Scope.WORK | Scope.OPERATE, Effect.WRITE_ONCE, m.TaskResponse,
    body=m.TaskUpdateRequest, problems=_REPORT,
    for_task=ForTask.BELOW)
LIST_TASKS = Operation("list_tasks", "GET", "/rooms/{room_id}/tasks",
    "tasks", Access.ROOM_READ, Scope.READ, Effect.READ, TaskPage, problems=(p.ContentTooLarge,))
SUBMIT_TASKS = Operation("submit_tasks", "POST", "/tasks/submit",
    "tasks", Access.NAMED_ROOMS, Scope.SUBMIT, Effect.WRITE_ONCE, m.BatchResponse, body=m.BatchSubmitRequest,
    problems=(*_WRITABLE_ROOMS, *_SUBMIT),
    for_task=ForTask.CHILDREN)
REPORT_TASKS = Operation("report_tasks", "POST", "/tasks/report",
    "tasks", Access.OWNER, Scope.SUBMIT | Scope.WORK | Scope.OPERATE, Effect.WRITE_PARTS_ONCE,
    m.BatchResponse, body=m.BatchReportRequest,
    for_task=ForTask.BELOW)

# Workers.

CREATE_WORKER = Operation("create_worker", "POST", "/workers",
    "workers", Access.CALLER, Scope.WORK, Effect.WRITE_ONCE, m.WorkerResponse,
    body=m.WorkerInfo, has_optional_body=True, status=201, problems=(p.TooManyRequests,))
LIST_WORKERS = Operation("list_workers", "GET", "/workers",
    "workers", Access.CALLER, Scope.READ, Effect.READ, WorkerPage)
GET_WORKER = Operation("get_worker", "GET", "/workers/{worker_id}",
    "workers", Access.OWNER, Scope.READ, Effect.READ, o.WorkerDetail, problems=_WORKER)
SEND_HEARTBEAT = Operation("send_heartbeat", "PATCH", "/workers/{worker_id}",
    "workers", Access.OWNER, Scope.WORK, Effect.WRITE, m.WorkerResponse, body=m.HeartbeatRequest,
    has_optional_body=True, problems=_WORKER)
DRAIN_WORKER = Operation("drain_worker", "POST", "/workers/{worker_id}/drain",
    "workers", Access.OWNER, Scope.WORK | Scope.OPERATE, Effect.WRITE_ONCE, m.WorkerResponse,
    problems=(*_WORKER, p.Conflict))
REMOVE_WORKER = Operation("remove_worker", "DELETE", "/workers/{worker_id}",
    "workers", Access.OWNER, Scope.WORK | Scope.OPERATE, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=_WORKER)
REMOVE_JOB_FROM_WORKER = Operation("remove_job_from_worker", "DELETE", "/workers/{worker_id}/jobs/{name}",
    "workers", Access.OWNER, Scope.WORK | Scope.OPERATE, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=(*_WORKER, *_JOB))
LIST_ROOM_WORKERS = Operation("list_room_workers", "GET", "/rooms/{room_id}/workers",
    "workers", Access.ROOM_READ, Scope.READ, Effect.READ, WorkerPage)
CREATE_WORKER_TOKEN = Operation("create_worker_token", "POST", "/worker-tokens",
    "workers", Access.SUPERUSER | Access.NAMED_ROOMS, Scope.OPERATE, Effect.WRITE, WorkerTokenResponse,
    body=WorkerTokenRequest, status=201, problems=(*_WRITABLE_ROOMS, p.TooManyRequests, p.NoTokens))

# Jobs.

REGISTER_JOB = Operation("register_job", "PUT", "/rooms/{room_id}/jobs",
    "jobs", Access.ROOM_WRITE, Scope.WORK, Effect.WRITE_ONCE, m.JobResponse, body=m.JobRegisterRequest,
    status=201,
    problems=(*_REGISTER, p.LimitNotFound, p.Conflict, p.SchemaConflict, p.InvalidSchema, p.InvalidPayload,
        p.TooManyRequests))
LIST_JOBS = Operation("list_jobs", "GET", "/rooms/{room_id}/jobs",
    "jobs", Access.ROOM_READ, Scope.READ, Effect.READ, JobPage,
    for_task=ForTask.ROOM)
LIST_JOB_TASKS = Operation("list_job_tasks", "GET", "/rooms/{room_id}/jobs/{name}/tasks",
    "jobs", Access.ROOM_READ, Scope.READ, Effect.READ, TaskPage, problems=(*_JOB, p.ContentTooLarge))
PAUSE_JOB = Operation("pause_job", "POST", "/rooms/{room_id}/jobs/{name}/pause",
    "jobs", Access.SUPERUSER | Access.ROOM_WRITE, Scope.OPERATE, Effect.WRITE_ONCE, m.JobResponse,
    body=o.PauseRequest, has_optional_body=True, problems=_JOB)
RESUME_JOB = Operation("resume_job", "POST", "/rooms/{room_id}/jobs/{name}/resume",
    "jobs", Access.SUPERUSER | Access.ROOM_WRITE, Scope.OPERATE, Effect.WRITE_ONCE, m.JobResponse,
    problems=_JOB)
PUT_JOB = Operation("put_job", "PUT", "/rooms/{room_id}/jobs/{name}",
    "jobs", Access.SUPERUSER | Access.ROOM_WRITE, Scope.OPERATE, Effect.WRITE_ONCE, m.JobResponse,
    body=m.JobPutRequest,
    problems=(*_JOB, p.LimitNotFound, p.InvalidCategory, p.Conflict, p.SchemaConflict, p.InvalidSchema,
        p.TooManyRequests))
DELETE_JOB = Operation("delete_job", "DELETE", "/rooms/{room_id}/jobs/{name}",
    "jobs", Access.SUPERUSER | Access.ROOM_WRITE, Scope.OPERATE, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=(*_JOB, p.Conflict))
GET_JOB = Operation("get_job", "GET", "/rooms/{room_id}/jobs/{name}",
    "jobs", Access.ROOM_READ, Scope.READ, Effect.READ, m.JobResponse, problems=_JOB,
    for_task=ForTask.ROOM)

# Groups.

CREATE_GROUP = Operation("create_group", "POST", "/groups",
    "groups", Access.NAMED_ROOMS, Scope.SUBMIT, Effect.WRITE_ONCE, g.GroupResponse, body=g.GroupRequest,
    status=201,
    problems=(*_WRITABLE_ROOMS, *_JOB, p.InvalidPayload, p.InternalJobNotConfigured, p.TooManyRequests),
    for_task=ForTask.CHILDREN)
LIST_GROUPS = Operation("list_groups", "GET", "/groups",
    "groups", Access.NAMED_ROOMS, Scope.READ, Effect.READ, GroupEntries, problems=_ROOMS)
GET_GROUP = Operation("get_group", "GET", "/groups/{group_id}",
    "groups", Access.GROUP, Scope.READ, Effect.READ, g.GroupResponse, problems=(*_GROUP, p.TooManyRequests),
    for_task=ForTask.GROUP)
UPDATE_GROUP = Operation("update_group", "PATCH", "/groups/{group_id}",
    "groups", Access.GROUP, Scope.SUBMIT, Effect.WRITE_ONCE, g.GroupResponse, body=g.GroupUpdate,
    problems=(*_GROUP, *_WRITABLE_ROOMS),
    for_task=ForTask.GROUP)
READ_GROUP_RESULTS = Operation("read_group_results", "GET", "/groups/{group_id}/results",
    "groups", Access.GROUP, Scope.READ, Effect.READ, bytes, problems=(*_GROUP, p.TooManyRequests),
    for_task=ForTask.GROUP)

# Schedules.

PUT_SCHEDULE = Operation("put_schedule", "PUT", "/rooms/{room_id}/schedules/{schedule}",
    "schedules", Access.ROOM_WRITE, Scope.SUBMIT, Effect.WRITE_ONCE, sc.ScheduleResponse,
    body=sc.ScheduleRequest, status=201, problems=(*_JOB, p.Conflict, p.InvalidPayload, p.TooManyRequests))
LIST_SCHEDULES = Operation("list_schedules", "GET", "/rooms/{room_id}/schedules",
    "schedules", Access.ROOM_READ, Scope.READ, Effect.READ, SchedulePage, problems=(p.ContentTooLarge,))
GET_SCHEDULE = Operation("get_schedule", "GET", "/rooms/{room_id}/schedules/{schedule}",
    "schedules", Access.ROOM_READ, Scope.READ, Effect.READ, sc.ScheduleResponse, problems=_SCHEDULE)
UPDATE_SCHEDULE = Operation("update_schedule", "PATCH", "/rooms/{room_id}/schedules/{schedule}",
    "schedules", Access.ROOM_WRITE, Scope.SUBMIT, Effect.WRITE_ONCE, sc.ScheduleResponse,
    body=sc.ScheduleUpdate, problems=_SCHEDULE)
RUN_SCHEDULE = Operation("run_schedule", "POST", "/rooms/{room_id}/schedules/{schedule}/run",
    "schedules", Access.ROOM_WRITE, Scope.SUBMIT, Effect.WRITE_ONCE, m.TaskResponse, status=202,
    problems=(*_SCHEDULE, *_SUBMIT))
DELETE_SCHEDULE = Operation("delete_schedule", "DELETE", "/rooms/{room_id}/schedules/{schedule}",
    "schedules", Access.ROOM_WRITE, Scope.SUBMIT, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=_SCHEDULE)

LIST_ALL_SCHEDULES = Operation("list_all_schedules", "GET", "/schedules",
    "schedules", Access.NAMED_ROOMS, Scope.READ, Effect.READ, ScheduleEntries, problems=_ROOMS)

# Webhooks. They show what happens to all tasks of the room, with their results.

PUT_WEBHOOK = Operation("put_webhook", "PUT", "/rooms/{room_id}/webhooks/{webhook}",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, w.WebhookResponse,
    body=w.WebhookRequest, status=201, problems=(p.Conflict, p.TooManyRequests),
    also=Scope.READ)
LIST_WEBHOOKS = Operation("list_webhooks", "GET", "/rooms/{room_id}/webhooks",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.READ, WebhookPage,
    also=Scope.READ)
GET_WEBHOOK = Operation("get_webhook", "GET", "/rooms/{room_id}/webhooks/{webhook}",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.READ, w.WebhookResponse,
    problems=_WEBHOOK,
    also=Scope.READ)
TEST_WEBHOOK = Operation("test_webhook", "POST", "/rooms/{room_id}/webhooks/{webhook}/test",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, w.Delivery, status=202,
    problems=(*_WEBHOOK, p.Conflict),
    also=Scope.READ)
DELETE_WEBHOOK = Operation("delete_webhook", "DELETE", "/rooms/{room_id}/webhooks/{webhook}",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=_WEBHOOK)
LIST_DELIVERIES = Operation("list_deliveries", "GET", "/rooms/{room_id}/deliveries",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.READ, Deliveries,
    also=Scope.READ)
REPEAT_DELIVERY = Operation("repeat_delivery", "POST", "/rooms/{room_id}/deliveries/{delivery}/repeat",
    "webhooks", Access.ROOM_WRITE, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, w.Delivery, status=202,
    problems=(p.DeliveryNotFound, p.Conflict),
    also=Scope.READ)

# Limits.

PUT_LIMIT = Operation("put_limit", "PUT", "/limits/{limit}",
    "jobs", Access.SUPERUSER, Scope.OPERATE, Effect.WRITE_ONCE, o.LimitEntry, body=LimitValues, status=201,
    problems=(p.Conflict,))
LIST_LIMITS = Operation("list_limits", "GET", "/limits",
    "jobs", Access.SUPERUSER, Scope.OPERATE, Effect.READ, LimitPage)
GET_LIMIT = Operation("get_limit", "GET", "/limits/{limit}",
    "jobs", Access.SUPERUSER, Scope.OPERATE, Effect.READ, o.LimitEntry, problems=(p.LimitNotFound,))
DELETE_LIMIT = Operation("delete_limit", "DELETE", "/limits/{limit}",
    "jobs", Access.SUPERUSER, Scope.OPERATE, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=(p.LimitNotFound, p.Conflict))

# Events.

FOLLOW_TASK = Operation("follow_task", "GET", "/tasks/{task_id}/events",
    "events", Access.STREAM_TOKEN, Scope.READ, Effect.READ, h.TaskEvents, problems=(*_TASK,
    p.TooManyRequests),
    for_task=ForTask.RELATED)
FOLLOW_ROOM = Operation("follow_room", "GET", "/rooms/{room_id}/events",
    "events", Access.STREAM_TOKEN, Scope.READ, Effect.READ, h.RoomEvents, problems=(*_ROOMS,
    p.TooManyRequests))
FOLLOW_GROUP = Operation("follow_group", "GET", "/groups/{group_id}/events",
    "events", Access.STREAM_TOKEN, Scope.READ, Effect.READ, g.GroupEvents, problems=(*_GROUP,
    p.TooManyRequests),
    for_task=ForTask.GROUP)
CREATE_TASK_STREAM_TOKEN = Operation("create_task_stream_token", "POST", "/tasks/{task_id}/events/token",
    "events", Access.TASK_READ, Scope.READ, Effect.WRITE, h.StreamToken, status=201, problems=_TASK)
CREATE_ROOM_STREAM_TOKEN = Operation("create_room_stream_token", "POST", "/rooms/{room_id}/events/token",
    "events", Access.ROOM_READ, Scope.READ, Effect.WRITE, h.StreamToken, status=201)
CREATE_GROUP_STREAM_TOKEN = Operation("create_group_stream_token", "POST", "/groups/{group_id}/events/token",
    "events", Access.GROUP, Scope.READ, Effect.WRITE, h.StreamToken, status=201, problems=_GROUP)

# Providers.

REGISTER_PROVIDER = Operation("register_provider", "PUT", "/rooms/{room_id}/providers",
    "providers", Access.ROOM_WRITE, Scope.WORK, Effect.WRITE_ONCE, pr.ProviderResponse,
    body=pr.ProviderRegisterRequest, status=201, problems=(*_REGISTER, p.ContentTooLarge, p.TooManyRequests))
LIST_PROVIDERS = Operation("list_providers", "GET", "/rooms/{room_id}/providers",
    "providers", Access.ROOM_READ, Scope.READ, Effect.READ, ProviderPage, problems=(p.ContentTooLarge,),
    for_task=ForTask.ROOM)
GET_PROVIDER = Operation("get_provider", "GET", "/rooms/{room_id}/providers/{name}/info",
    "providers", Access.ROOM_READ, Scope.READ, Effect.READ, pr.ProviderResponse, problems=_PROVIDER,
    for_task=ForTask.ROOM)
READ_PROVIDER = Operation("read_provider", "GET", "/rooms/{room_id}/providers/{name}",
    "providers", Access.ROOM_READ, Scope.READ, Effect.READ, bytes, problems=_PROVIDER_REQUEST,
    for_task=ForTask.ROOM)
REMOVE_PROVIDER = Operation("remove_provider", "DELETE", "/providers/{provider_id}",
    "providers", Access.OWNER, Scope.WORK | Scope.OPERATE, Effect.WRITE_ONCE, NO_CONTENT, status=204,
    problems=_PROVIDER)
CLAIM_PROVIDER_REQUEST = Operation("claim_provider_request", "POST", "/providers/requests/claim",
    "providers", Access.OWNER, Scope.WORK, Effect.WRITE_PARTS_ONCE, pr.ProviderClaimResponse,
    body=pr.ProviderClaimRequest, problems=_CLAIM)
UPLOAD_PROVIDER_RESULT = Operation("upload_provider_result", "POST", "/providers/{provider_id}/results",
    "providers", Access.OWNER, Scope.WORK, Effect.WRITE, NO_CONTENT, status=204,
    problems=(*_PROVIDER, *_UPLOAD, p.StaleResult))

# Results.

UPLOAD_TASK_RESULT = Operation("upload_task_result", "PUT", "/tasks/{task_id}/result",
    "results", Access.OWNER, Scope.WORK, Effect.WRITE, StoredResult,
    problems=(*_REPORT, *_UPLOAD, p.Conflict, p.ResultStoreFull),
    for_task=ForTask.OWN)
READ_TASK_RESULT = Operation("read_task_result", "GET", "/tasks/{task_id}/result",
    "results", Access.TASK_READ, Scope.READ, Effect.READ, bytes, problems=(*_RESULT, p.TooManyRequests),
    for_task=ForTask.RELATED)
HEAD_TASK_RESULT = Operation("head_task_result", "HEAD", "/tasks/{task_id}/result",
    "results", Access.TASK_READ, Scope.READ, Effect.READ, bytes, problems=_RESULT,
    for_task=ForTask.RELATED)

# Admin.

GET_SWEEPER = Operation("get_sweeper", "GET", "/admin/sweeper",
    "admin", Access.SUPERUSER, Scope.OPERATE, Effect.READ, o.SweeperDetail)
UPDATE_SWEEPER = Operation("update_sweeper", "PATCH", "/admin/sweeper",
    "admin", Access.SUPERUSER, Scope.ADMIN, Effect.WRITE_ONCE, o.SweeperDetail, body=m.SweeperUpdate)
GET_SETTINGS = Operation("get_settings", "GET", "/admin/settings",
    "admin", Access.SUPERUSER, Scope.ADMIN, Effect.READ, o.Settings)
GET_RETENTION = Operation("get_retention", "GET", "/admin/retention",
    "admin", Access.SUPERUSER, Scope.OPERATE, Effect.READ, o.KeptTasks, problems=(p.JobNotFound,))
PREVIEW_SWEEPER = Operation("preview_sweeper", "GET", "/admin/sweeper/preview",
    "admin", Access.SUPERUSER, Scope.OPERATE, Effect.READ, m.SweeperPreview)

# Server.

GET_CALLER = Operation("get_caller", "GET", "/me",
    "server", Access.CALLER, ANY_SCOPE, Effect.READ, o.Me, problems=_ROOMS,
    for_task=ForTask.CALLER)
GET_VERSION = Operation("get_version", "GET", "/version",
    "server", Access.CALLER, ANY_SCOPE, Effect.READ, o.Version,
    for_task=ForTask.CALLER)

# Jobs.

LIST_ALL_JOBS = Operation("list_all_jobs", "GET", "/jobs",
    "jobs", Access.SUPERUSER, Scope.OPERATE, Effect.READ, JobEntries, problems=_ROOMS)

# Rooms.

LIST_ROOMS = Operation("list_rooms", "GET", "/rooms",
    "rooms", Access.SUPERUSER, Scope.OPERATE, Effect.READ, RoomEntries)
PAUSE_ROOM = Operation("pause_room", "POST", "/rooms/{room_id}/pause",
    "rooms", Access.SUPERUSER | Access.ROOM_WRITE, Scope.OPERATE, Effect.WRITE_ONCE, o.PauseState,
    body=o.PauseRequest, has_optional_body=True, problems=(p.Conflict,))
RESUME_ROOM = Operation("resume_room", "POST", "/rooms/{room_id}/resume",
    "rooms", Access.SUPERUSER | Access.ROOM_WRITE, Scope.OPERATE, Effect.WRITE_ONCE, o.PauseState)
PAUSE_ALL_ROOMS = Operation("pause_all_rooms", "POST", "/pause",
    "rooms", Access.SUPERUSER, Scope.OPERATE, Effect.WRITE_ONCE, o.PauseState, body=o.PauseRequest,
    has_optional_body=True)
RESUME_ALL_ROOMS = Operation("resume_all_rooms", "POST", "/resume",
    "rooms", Access.SUPERUSER, Scope.OPERATE, Effect.WRITE_ONCE, o.PauseState)
LIST_PAUSES = Operation("list_pauses", "GET", "/pauses",
    "rooms", Access.SUPERUSER, Scope.OPERATE, Effect.READ, PauseEntries)

# Providers.

LIST_ALL_PROVIDERS = Operation("list_all_providers", "GET", "/providers",
    "providers", Access.SUPERUSER, Scope.OPERATE, Effect.READ, ProviderEntries)

# Overview.

GET_METRICS = Operation("get_metrics", "GET", "/metrics",
    "overview", Access.METRICS_TOKEN, Scope.METRICS | Scope.OPERATE, Effect.READ, str)
GET_OVERVIEW = Operation("get_overview", "GET", "/overview",
    "overview", Access.SUPERUSER, Scope.OPERATE, Effect.READ, o.Overview)
FOLLOW_OVERVIEW = Operation("follow_overview", "GET", "/overview/events",
    "overview", Access.SUPERUSER, Scope.OPERATE, Effect.READ, bytes)
GET_DEMAND = Operation("get_demand", "GET", "/demand",
    "overview", Access.NAMED_ROOMS, Scope.READ | Scope.METRICS, Effect.READ, o.Demand,
    problems=(*_ROOMS, *_JOB))
GET_JOB_DEMAND = Operation("get_job_demand", "GET", "/jobs/{name}/demand",
    "overview", Access.NAMED_ROOMS, Scope.READ | Scope.METRICS, Effect.READ, o.Demand,
    problems=(*_ROOMS, *_JOB))
GET_ROOM_OVERVIEW = Operation("get_room_overview", "GET", "/rooms/{room_id}/overview",
    "overview", Access.ROOM_READ, Scope.READ, Effect.READ, o.RoomOverview)
GET_STATISTICS = Operation("get_statistics", "GET", "/statistics",
    "overview", Access.NAMED_ROOMS, Scope.READ, Effect.READ, o.Statistics, problems=(*_ROOMS, *_JOB))

# Admin.

LIST_AUDIT_ENTRIES = Operation("list_audit_entries", "GET", "/audit",
    "admin", Access.NAMED_ROOMS, Scope.READ, Effect.READ, AuditTrail, problems=_ROOMS)

# Tasks.

PREVIEW_BULK_ACTION = Operation("preview_bulk_action", "POST", "/tasks/bulk/preview",
    "tasks", Access.NAMED_ROOMS, Scope.SUBMIT | Scope.OPERATE, Effect.READ, o.BulkPreview,
    body=o.BulkPreviewRequest, problems=_WRITABLE_ROOMS)
APPLY_BULK_ACTION = Operation("apply_bulk_action", "POST", "/tasks/bulk",
    "tasks", Access.NAMED_ROOMS, Scope.SUBMIT | Scope.OPERATE, Effect.WRITE_ONCE, o.BulkResult,
    body=o.BulkRequest, problems=_WRITABLE_ROOMS)

# Overview.

FIND_IDS = Operation("find_ids", "GET", "/ids",
    "overview", Access.NAMED_ROOMS, Scope.READ, Effect.READ, o.PrefixMatches, problems=_ROOMS)
# fmt: on

# In the order of the table.
OPERATIONS: tuple[Operation[Any], ...] = tuple(
    row for row in tuple(globals().values()) if isinstance(row, Operation)
)
