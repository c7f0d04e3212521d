"""All errors, as RFC 9457 problems. The server raises a class, and the SDK raises the same class.

ProblemException
├── InvalidRoomId, InvalidCategory,
│   InvalidIdempotencyKey                    400  ValueError
├── Unauthorized                             401  PermissionError
├── Forbidden                                403  PermissionError
├── NotFound                                 404  KeyError
│   └── JobNotFound, WorkerNotFound, TaskNotFound, ProviderNotFound, ResultNotFound
├── MethodNotAllowed                         405
├── Conflict                                 409  ValueError
│   ├── SchemaConflict, StaleResult, RequestInProgress, NoWorkersAvailable, DuplicateTask,
│   │   InvalidTaskTransition
│   │   └── StaleReport
│   └── WorkerLost, StartTimeout, RunTimeout, TaskExpired, InternalTimeout, Released, Retried,
│       FailedByOperator, PredecessorFailed, PredecessorResultInvalid,
│       ResultNotSerializable: never a response; the `error_code` of a task
├── ResultExpired                            410  KeyError
├── ContentTooLarge                          413  ValueError
├── RangeNotSatisfiable                      416  ValueError
├── InvalidRequest                           422  ValueError
│   └── InvalidPayload, InvalidSchema, IdempotencyKeyReused
├── Locked                                   423  PermissionError
├── TooManyRequests                          429
├── InternalServerError                      500
├── NoTokens                                 501
├── ProviderFailed                           502
│   └── ProviderExecutionFailed              400  ValueError
├── ServiceUnavailable                       503  ConnectionError
│   └── InternalJobNotConfigured, ProviderNotConnected
├── ProviderTimeout                          504  TimeoutError
└── ResultStoreFull                          507
"""

import re
from typing import Any, ClassVar, NoReturn, Self

from pydantic import ConfigDict

from zndraw_joblib.wire.models import DeferredModel

PROBLEM_MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "/v1/problems/"


class Problem(DeferredModel):
    """The body of an error response (RFC 9457); a problem may have extra members."""

    # A response of this server always has a type; `about:blank` is for the errors of proxies.
    model_config = ConfigDict(extra="allow", json_schema_extra={"required": ["type", "title", "status"]})

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    instance: str | None = None


class ProblemException(Exception):
    """The server refused a request. `problem` is the body of the response, `headers` are its headers."""

    title: ClassVar[str] = "Error"
    status: ClassVar[int] = 500

    def __init__(
        self,
        detail: str | None = None,
        *,
        instance: str | None = None,
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail or self.title)
        self.problem = self.create(detail, instance, **members)
        self.headers = headers or {}

    def __str__(self) -> str:
        """Return the detail; a KeyError would put it in quotes."""
        return self.problem.detail or self.problem.title

    @classmethod
    def problem_id(cls) -> str:
        """Return the kebab-case name of the class, the last part of its type URI."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def type_uri(cls) -> str:
        """Return ``/v1/problems/<problem-id>``; the server serves a description there."""
        return _TYPE_PREFIX + cls.problem_id()

    @classmethod
    def create(cls, detail: str | None = None, instance: str | None = None, **members: Any) -> Problem:
        """Return the body of this problem."""
        return Problem(
            type=cls.type_uri(),
            title=cls.title,
            status=cls.status,
            detail=detail,
            instance=instance,
            **members,
        )

    @classmethod
    def exception(
        cls, detail: str | None = None, instance: str | None = None, headers: dict[str, str] | None = None
    ) -> Self:
        """Return the exception to raise."""
        return cls(detail, instance=instance, headers=headers)

    @classmethod
    def raise_for_client(cls, problem: Problem) -> NoReturn:
        """Raise this class for the body of a response."""
        error = cls(problem.detail, instance=problem.instance)
        error.problem = problem
        raise error


# Its name in hosts that extend version 0.1.x.
ProblemError = ProblemException


class InvalidRoomId(ProblemException, ValueError):
    """The room id has invalid characters."""

    title, status = "Bad Request", 400


class InvalidCategory(ProblemException, ValueError):
    """The server does not allow the job's category (setting `allowed_categories`)."""

    title, status = "Bad Request", 400


class InvalidIdempotencyKey(ProblemException, ValueError):
    """The header `Idempotency-Key` is not a quoted string or a token of 1 to 255 characters."""

    title, status = "Bad Request", 400


class Unauthorized(ProblemException, PermissionError):
    """The request has no identity: its token is missing, unknown or revoked."""

    title, status = "Unauthorized", 401


class Forbidden(ProblemException, PermissionError):
    """The identity is known, but may not do this."""

    title, status = "Forbidden", 403


class NotFound(ProblemException, KeyError):
    """There is no resource at this URL."""

    title, status = "Not Found", 404


class JobNotFound(NotFound):
    """The room can use no active job of this name."""


class ScheduleNotFound(NotFound):
    """The room has no schedule of this name."""


class GroupNotFound(NotFound):
    """There is no group with this id, or it is of another room than the task."""


class WebhookNotFound(NotFound):
    """The room has no webhook of this name."""


class DeliveryNotFound(NotFound):
    """The room has no delivery of this number: deliveries are kept for 30 days."""


class LimitNotFound(NotFound):
    """There is no limit of this name: an operator defines limits that jobs share."""


class WorkerNotFound(NotFound):
    """The worker is unknown: it disconnected, was removed without heartbeats, or never registered."""


class ProviderNotFound(NotFound):
    """There is no such provider, or another room owns it."""


class TaskNotFound(NotFound):
    """No task has this id."""


class ResultNotFound(NotFound):
    """The task has no result: it has not ended, or ended without success."""


class MethodNotAllowed(ProblemException):
    """The URL does not support this method."""

    title, status = "Method Not Allowed", 405


class UploadStalled(ProblemException, TimeoutError):
    """The body did not arrive in time (settings `request_timeout_seconds`, `upload_timeout_seconds`)."""

    title, status = "Request Timeout", 408


class Conflict(ProblemException, ValueError):
    """The request conflicts with the current state."""

    title, status = "Conflict", 409


class SchemaConflict(Conflict):
    """The job has another schema, and the new one does not accept all that it accepts.

    `differences` lists the first JSON pointers at which they differ, with the `old` and the `new` value.
    """


class GroupSealed(Conflict):
    """The group is sealed: no more tasks can be added. Create another group."""


class RequestInProgress(Conflict):
    """A request with this `Idempotency-Key` is being processed; repeat yours after `Retry-After` seconds."""


class NoWorkersAvailable(Conflict):
    """No worker serves the job, and it accepts no task without one (`without_workers`, policy or setting)."""


class DuplicateTask(Conflict):
    """Another task holds the unique key; `task_id` is its id."""


class InvalidTaskTransition(Conflict):
    """The task cannot change from its status (`current_status`) to the requested one."""


class StaleReport(InvalidTaskTransition):
    """The reporting worker or attempt does not hold the task. `reason` says why."""


class WorkerLost(Conflict):
    """The worker that held the task disconnected, or sent no heartbeat for too long."""


class StartTimeout(Conflict):
    """The task was claimed and not started in time (`start_timeout_seconds`); it is in its queue again."""


class RunTimeout(Conflict):
    """The attempt ran longer than the job allows (`timeout_seconds`)."""


class TaskExpired(Conflict):
    """No worker claimed the task in time (`expires_in_seconds`)."""


class PredecessorFailed(Conflict):
    """A task or group that the task waited for has not completed; its `error` names it."""


class PredecessorResultInvalid(Conflict):
    """A predecessor's result does not fit into the payload: it has no such part, or the schema refuses it."""


class InternalTimeout(Conflict):
    """The internal task exceeded its time limit (setting `internal_task_timeout_seconds`)."""


class DispatchFailed(Conflict):
    """The broker of internal jobs did not accept the task."""


class Released(Conflict):
    """Its worker or an operator put the task back into its queue; this counts as no failure."""


class Retried(Conflict):
    """A client put the failed or cancelled task into its queue again."""


class FailedByOperator(Conflict):
    """An operator failed the task."""


class ResultNotSerializable(Conflict):
    """The job returned a value that cannot be encoded; the error names its place in the value."""


class StaleResult(Conflict):
    """The provider was registered again after this request, so no client waits for the result."""


class ResultExpired(ProblemException, KeyError):
    """The stored result of the task is not kept any longer (setting `task_result_days`)."""

    title, status = "Gone", 410


class ContentTooLarge(ProblemException, ValueError):
    """The body, or a part of it, is larger than the server accepts, or has more tasks than ever fit."""

    title, status = "Content Too Large", 413


class RangeNotSatisfiable(ProblemException, ValueError):
    """The header `Range` names bytes behind the end of the content."""

    title, status = "Range Not Satisfiable", 416


class InvalidRequest(ProblemException, ValueError):
    """The request is invalid. `errors` lists every error with its location."""

    title, status = "Unprocessable Content", 422


class InvalidPayload(InvalidRequest):
    """The payload does not match the job's schema. `errors` lists every error with its JSON pointer."""


class InvalidSchema(InvalidRequest):
    """The job's schema is not a JSON Schema that this server supports."""


class IdempotencyKeyReused(InvalidRequest):
    """The caller has sent the same `Idempotency-Key` with another method, path, query or body."""


class Locked(ProblemException, PermissionError):
    """The room is locked: it accepts no changes at the moment."""

    title, status = "Locked", 423


class TooManyRequests(ProblemException):
    """The caller sends too many requests, or has used its share; try again after `Retry-After` seconds."""

    title, status = "Too Many Requests", 429


class RequestRefused(ProblemException, ValueError):
    """The application that hosts the server refused the request; `status` and `detail` give the reason."""

    title, status = "Request Refused", 400


class InternalServerError(ProblemException):
    """The server failed unexpectedly; its log has the cause."""

    title, status = "Internal Server Error", 500


class NoTokens(ProblemException):
    """The queue has no tokens of its own: the application that hosts it identifies the users."""

    title, status = "Not Implemented", 501


class ServiceUnavailable(ProblemException, ConnectionError):
    """The server cannot do this at the moment; try again after `Retry-After` seconds."""

    title, status = "Service Unavailable", 503


class InternalJobNotConfigured(ServiceUnavailable):
    """The job is internal, and this server has no executor for it."""


class ProviderNotConnected(ServiceUnavailable):
    """No worker of this provider is connected; it may come back."""


class ProviderFailed(ProblemException):
    """The server could not use the result of the provider. `error` is a name, `detail` the text."""

    title, status = "Bad Gateway", 502


class ProviderExecutionFailed(ProviderFailed, ValueError):
    """The provider raised an exception. `error` is its name, `detail` its text."""

    title, status = "Bad Request", 400


class ProviderTimeout(ProblemException, TimeoutError):
    """The provider has no result yet, and continues; repeat the request after `Retry-After` seconds."""

    title, status = "Gateway Timeout", 504


# The name of version 0.1.x.
ProviderTimeoutError = ProviderTimeout


class ResultStoreFull(ProblemException):
    """Stored results have reached the limit for all or for a user (setting `max_stored_result_bytes`)."""

    title, status = "Insufficient Storage", 507


def _family(root: type[ProblemException]) -> list[type[ProblemException]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _family(child))]


PROBLEMS = {cls.problem_id(): cls for cls in _family(ProblemException) if cls is not ProblemException}
# A 410 of a host has nothing to do with results, and a 501 nothing with tokens.
_BY_STATUS = {cls.status: cls for cls in reversed(PROBLEMS.values()) if cls not in {ResultExpired, NoTokens}}
_BY_STATUS |= {400: InvalidRequest}


def is_own_type(uri: object) -> bool:
    """Return whether a problem's type is one of this project, or of a host that extends its classes.

    The prefix of a queue may precede it.
    """
    return isinstance(uri, str) and uri.startswith("/") and _TYPE_PREFIX in uri


def problem_for(status: int, body: object = None) -> ProblemException:
    """Return the exception for an error response with any body.

    A problem that the server defines is returned as its class, any other body as the class of its status.
    """
    problem = _parse(body, status)
    cls = PROBLEMS.get(problem.type.rpartition(_TYPE_PREFIX)[2]) or _BY_STATUS.get(status, ProblemException)
    error = cls(problem.detail)
    error.problem = problem
    return error


def _parse(body: object, status: int) -> Problem:
    fields = dict(body) if isinstance(body, dict) else {"detail": str(body) if body else None}
    fields = {"title": f"HTTP {status}", **fields, "status": status}
    if not isinstance(fields.get("detail"), str | None):
        fields["detail"] = str(fields["detail"])
    try:
        return Problem.model_validate(fields)
    except ValueError:
        return Problem(title=f"HTTP {status}", status=status, detail=str(body)[:1000])


# What to do about each problem, for the pages that explain them.

_AGAIN = "Repeat the request after `Retry-After` seconds, with the same `Idempotency-Key` if it has one."
_ERROR_CODE = "This problem is the `error_code` of a task, never a response."

REMEDIES: dict[type[ProblemException], str] = {
    InvalidRoomId: "Use `@global`, or up to 128 printable characters without `@`, `:` and `/`.",
    InvalidCategory: "Use a category of the setting, or ask the operator to add yours to it.",
    InvalidIdempotencyKey: "Send the header once, with a new UUID for each request that is not a repeat.",
    Unauthorized: "Send `Authorization: Bearer <token>`, with a token of `zndraw-joblib token create`. "
    "In a host's app, sign in.",
    Forbidden: "Use the identity that owns the task, worker or provider, or that of a superuser.",
    NotFound: "Check the path: the API begins with `/v1/joblib`, after a host's prefix (if any).",
    JobNotFound: "Check the full name `room:category:name` and the room, and that a worker serves the job: "
    "`zndraw-joblib jobs`.",
    LimitNotFound: "Define the limit first: `PUT /limits/{name}`, as a superuser; names are case-sensitive.",
    GroupNotFound: "Check the id, and submit the task in the room of the group. A group goes with its tasks.",
    GroupSealed: "Create another group for more tasks.",
    ScheduleNotFound: "List the schedules of the room; names are case-sensitive.",
    WebhookNotFound: "List the webhooks of the room; names are case-sensitive.",
    DeliveryNotFound: "List the deliveries of the room: `GET /rooms/{room_id}/deliveries`.",
    WorkerNotFound: "Register the worker and its jobs again. The SDK does so by itself.",
    ProviderNotFound: "Check the full name and the room, and that the provider's worker runs.",
    TaskNotFound: "Check the id. The server deletes ended tasks after the time that it keeps them.",
    ResultNotFound: "Wait until the task has completed: `GET /tasks/{task_id}` with `Prefer: wait=N`.",
    MethodNotAllowed: "Use a method of the header `Allow`.",
    UploadStalled: "Upload again over a faster connection that does not pause.",
    Conflict: "Read the current state and decide again; `detail` has the reason.",
    SchemaConflict: "At the pointers of `differences`, accept all that the old schema accepts: add optional "
    "properties, allow more values. Otherwise use another name, or stop the other workers of the job and let "
    "its pending tasks end, or cancel them.",
    RequestInProgress: _AGAIN,
    InvalidTaskTransition: "Read the task: its status has changed, or this change does not exist.",
    StaleReport: "Stop working on the task: it was released, cancelled, or claimed by another worker.",
    WorkerLost: f"Read the worker's log. To retry such tasks, set `max_attempts` of the job. {_ERROR_CODE}",
    StartTimeout: f"Give the worker fewer tasks at once, or raise `start_timeout_seconds`. {_ERROR_CODE}",
    RunTimeout: f"Raise `timeout_seconds` of the job, or make its tasks smaller. {_ERROR_CODE}",
    TaskExpired: f"Start more workers, or raise `expires_in_seconds`. {_ERROR_CODE}",
    PredecessorFailed: "Read why the predecessor failed. Retry it, then this task; with `on_failure` of "
    f"`after` other tasks wait or run instead. {_ERROR_CODE}",
    PredecessorResultInvalid: "Compare the pointer in `error` with the result of the predecessor and the "
    f"schema of the job. {_ERROR_CODE}",
    InternalTimeout: f"Raise the setting, or make the tasks smaller. {_ERROR_CODE}",
    DispatchFailed: f"Check that the broker (Redis) runs; then retry the task. {_ERROR_CODE}",
    Released: f"No action is needed: a worker claims the task again. {_ERROR_CODE}",
    Retried: f"No action is needed: a worker claims the task again. {_ERROR_CODE}",
    FailedByOperator: f"The task's `error` has the operator's reason. {_ERROR_CODE}",
    ResultNotSerializable: f"Return JSON values, arrays or tables, or bytes from the job. {_ERROR_CODE}",
    DuplicateTask: "Wait for the task that holds the key, or submit with another `on_conflict`.",
    NoWorkersAvailable: "Start a worker of the job, or submit the task later.",
    StaleResult: "Drop the result: no client waits for it.",
    ResultExpired: "Submit the task again, or raise the setting.",
    ContentTooLarge: "Send less in one request: fewer tasks, if `detail` names a limit of them, which the "
    "operator or the policy of the job may raise. Upload large results with `PUT /tasks/{task_id}/result`.",
    RangeNotSatisfiable: "Request a range inside the size that `Content-Range` has.",
    InvalidRequest: "Correct the fields that `errors` names.",
    InvalidPayload: "Correct the payload at the pointers that `errors` names.",
    InvalidSchema: "Correct the schema: use no references outside it, and no lookaround in patterns.",
    IdempotencyKeyReused: "Use a new key for another request.",
    Locked: "Wait until the room is unlocked.",
    TooManyRequests: "Send fewer requests at once, or close streams that you do not read.",
    RequestRefused: "Read `detail`: it has the reason of the application.",
    InternalServerError: "Give the operator the `X-Request-ID` of the response: the log has the cause.",
    NoTokens: "Let the application issue a credential of a user with the role `worker`, rooms and jobs.",
    ServiceUnavailable: _AGAIN,
    InternalJobNotConfigured: "Start the server with the job's module in `internal_extensions`.",
    ProviderNotConnected: "Start the provider's worker, or repeat the request later.",
    ProviderFailed: "Read `detail`: it names the limit that the result exceeds.",
    ProviderExecutionFailed: "Correct the parameters, or read the log of the provider's worker.",
    ProviderTimeout: "Repeat the request: the provider continues to work on it.",
    ResultStoreFull: "Raise the setting or `max_share_per_user`, or let results expire sooner.",
}
