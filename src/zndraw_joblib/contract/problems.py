"""Everything that can go wrong, as RFC 9457 problems. The server raises a class, the SDK raises it again.

ProblemException
├── InvalidRoomId, InvalidCategory           400  ValueError
├── Unauthorized                             401  PermissionError
├── Forbidden                                403  PermissionError
├── NotFound                                 404  KeyError
│   └── JobNotFound, WorkerNotFound, TaskNotFound, ProviderNotFound
├── MethodNotAllowed                         405
├── Conflict                                 409  ValueError
│   ├── SchemaConflict, StaleResult, InvalidTaskTransition
│   │   └── StaleReport
│   └── WorkerLost, StartTimeout, RunTimeout, TaskExpired, InternalTimeout, Released, Retried,
│       FailedByOperator: never an answer; what `error_code` says of a task
├── ContentTooLarge                          413  ValueError
├── InvalidRequest                           422  ValueError
│   └── InvalidPayload, InvalidSchema
├── Locked                                   423  PermissionError
├── TooManyRequests                          429
├── InternalServerError                      500
├── ProviderFailed                           502
├── ServiceUnavailable                       503  ConnectionError
│   └── InternalJobNotConfigured, ProviderNotConnected
└── ProviderTimeout                          504  TimeoutError
"""

import re
from typing import Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict

PROBLEM_MEDIA_TYPE = "application/problem+json"
_TYPE_PREFIX = "/v1/problems/"


class Problem(BaseModel):
    """The body of an error, as RFC 9457 shapes it; a problem may carry members of its own."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    instance: str | None = None


class ProblemException(Exception):
    """Something was refused. `problem` is the body of the answer, `headers` go with it."""

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
        """Return the detail alone; a KeyError would put it in quotes."""
        return self.problem.detail or self.problem.title

    @classmethod
    def problem_id(cls) -> str:
        """Return the kebab-case name of the class, the last part of its type URI."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def type_uri(cls) -> str:
        """Return ``/v1/problems/<problem-id>``; the server has a page there."""
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
        cls,
        detail: str | None = None,
        instance: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Self:
        """Return the exception to raise."""
        return cls(detail, instance=instance, headers=headers)

    @classmethod
    def raise_for_client(cls, problem: Problem) -> NoReturn:
        """Raise this class for a body that came over the wire."""
        error = cls(problem.detail, instance=problem.instance)
        error.problem = problem
        raise error


class InvalidRoomId(ProblemException, ValueError):
    """The room's id has characters that no room may have."""

    title, status = "Bad Request", 400


class InvalidCategory(ProblemException, ValueError):
    """The job's category is not one of those this server allows (setting `allowed_categories`)."""

    title, status = "Bad Request", 400


class Unauthorized(ProblemException, PermissionError):
    """The request has no identity: its token is missing, unknown or revoked."""

    title, status = "Unauthorized", 401


class Forbidden(ProblemException, PermissionError):
    """The identity is known, but this is not its to do."""

    title, status = "Forbidden", 403


class NotFound(ProblemException, KeyError):
    """There is nothing at this address."""

    title, status = "Not Found", 404


class JobNotFound(NotFound):
    """No active job of this name can be seen from here."""


class WorkerNotFound(NotFound):
    """The worker is unknown: it left, was removed after falling silent, or never registered."""


class ProviderNotFound(NotFound):
    """There is no such provider, or it belongs to another room."""


class TaskNotFound(NotFound):
    """No task has this id."""


class MethodNotAllowed(ProblemException):
    """The address exists, but not for this method."""

    title, status = "Method Not Allowed", 405


class Conflict(ProblemException, ValueError):
    """The request does not fit the present state."""

    title, status = "Conflict", 409


class SchemaConflict(Conflict):
    """An active job of this name has a different schema."""


class InvalidTaskTransition(Conflict):
    """The task cannot go from where it is to the wanted state. `current_status` says where it is."""


class StaleReport(InvalidTaskTransition):
    """The report comes from a worker or an attempt that no longer holds the task. `reason` says why."""


class WorkerLost(Conflict):
    """The worker that held the task is gone: it left, or gave no sign of life for too long."""


class StartTimeout(Conflict):
    """The task was claimed and not started in time (`start_timeout_seconds`); it is back in its queue."""


class RunTimeout(Conflict):
    """The attempt ran for longer than the job allows (`timeout_seconds`)."""


class TaskExpired(Conflict):
    """Nobody claimed the task in time (`expires_in_seconds`)."""


class InternalTimeout(Conflict):
    """The internal task was held for too long (setting `internal_task_timeout_seconds`)."""


class DispatchFailed(Conflict):
    """The broker of internal jobs did not take the task."""


class Released(Conflict):
    """The task was handed back to its queue, by its worker or by an operator; that counts as no failure."""


class Retried(Conflict):
    """The task had ended without success, and was put into its queue once more by hand."""


class FailedByOperator(Conflict):
    """An operator has ended the task."""


class StaleResult(Conflict):
    """The provider was registered anew since it was asked for this: nobody waits for the result."""


class ContentTooLarge(ProblemException, ValueError):
    """The body, or one part of it, is larger than the server takes."""

    title, status = "Content Too Large", 413


class InvalidRequest(ProblemException, ValueError):
    """The request does not have the shape of this operation. `errors` lists every fault with its place."""

    title, status = "Unprocessable Content", 422


class InvalidPayload(InvalidRequest):
    """The payload does not fit the job's schema. `errors` lists every fault with its JSON pointer."""


class InvalidSchema(InvalidRequest):
    """The job's schema is not a JSON Schema this server can use."""


class Locked(ProblemException, PermissionError):
    """The room takes no changes at present."""

    title, status = "Locked", 423


class TooManyRequests(ProblemException):
    """The caller asks more than its share; try again after `Retry-After` seconds."""

    title, status = "Too Many Requests", 429


class InternalServerError(ProblemException):
    """The server failed in a way nobody foresaw; its log says how."""

    title, status = "Internal Server Error", 500


class ServiceUnavailable(ProblemException, ConnectionError):
    """The server cannot do this at present; nothing was lost, try again after `Retry-After` seconds."""

    title, status = "Service Unavailable", 503


class InternalJobNotConfigured(ServiceUnavailable):
    """The job runs inside the server, and this server has no executor for it."""


class ProviderNotConnected(ServiceUnavailable):
    """Nobody is connected who could answer reads of this provider; its worker may come back."""


class ProviderFailed(ProblemException):
    """The provider could not read what was asked for. `error` is the kind of fault, `detail` what it said."""

    title, status = "Bad Gateway", 502


class ProviderTimeout(ProblemException, TimeoutError):
    """The provider has not answered yet. It goes on: ask again after `Retry-After` seconds."""

    title, status = "Gateway Timeout", 504


def _family(root: type[ProblemException]) -> list[type[ProblemException]]:
    return [root, *(found for child in root.__subclasses__() for found in _family(child))]


PROBLEMS = {cls.problem_id(): cls for cls in _family(ProblemException) if cls is not ProblemException}
_BY_STATUS = {cls.status: cls for cls in reversed(PROBLEMS.values())} | {400: InvalidRequest}


def problem_for(status: int, body: object = None) -> ProblemException:
    """Return the exception for an answer with an error status, whatever its body is.

    A problem of ours comes back as its own class; anything else as the class of its status.
    """
    problem = _parse(body, status)
    cls = PROBLEMS.get(problem.type.removeprefix(_TYPE_PREFIX)) or _BY_STATUS.get(status, ProblemException)
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
