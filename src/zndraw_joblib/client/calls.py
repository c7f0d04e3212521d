"""Requests as data: what to send, and how to read the response. Nothing here does I/O."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote
from uuid import UUID, uuid5

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from zndraw_joblib.client.retry import UnexpectedResponse, read_error
from zndraw_joblib.jobs.failures import describe_errors, encode
from zndraw_joblib.jobs.traces import TRACEPARENT, current_traceparent
from zndraw_joblib.wire import history, messages, progress
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupEvents, GroupResponse, GroupResult
from zndraw_joblib.wire.names import IDEMPOTENCY_KEY, format_key
from zndraw_joblib.wire.operations import PREFIX, Operation
from zndraw_joblib.wire.problems import ProblemException, problem_for
from zndraw_joblib.wire.statuses import TaskStatus

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Body = BaseModel | bytes | Iterable[bytes] | None

_RESPONSE_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0


class AnyApiManager(Protocol):
    """A server, its client's identity and own errors: an `ApiManager`, or its asynchronous form."""

    @property
    def http(self) -> "httpx.Client | httpx.AsyncClient":
        """The client, whose timeouts hold for every request."""

    @property
    def base_url(self) -> str:
        """The server's address without ``/v1/joblib``."""

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity."""

    def raise_for_status(self, response: "httpx.Response") -> None:
        """Raise if `response` is an error."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request to `path` below `PREFIX`, and the function that reads its response.

    The server may wait for `wait` seconds, or be silent for `silence` seconds, longer than the timeout of the
    client. `read_timeout` shortens that. `key` is an `Idempotency-Key`, or the id of an operation, whose
    equal requests share a key.
    """

    method: str
    path: str
    read: "Callable[[httpx.Response], T]"
    body: Body = None
    wait: int = 0
    silence: float = 0
    read_timeout: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | UUID | None = None

    def request(self, server: AnyApiManager) -> dict[str, Any]:
        """Return the arguments of a method of httpx that sends the request."""
        headers = {**server.get_headers(), **self.headers}
        content = self.body
        if isinstance(content, BaseModel):
            content = encode(to_jsonable_python(content.model_dump(by_alias=True, exclude_unset=True)))
            headers["Content-Type"] = "application/json"
        if self.wait:
            headers["Prefer"] = f"wait={self.wait}"
        if self.key is not None:
            headers[IDEMPOTENCY_KEY] = format_key(_key_of(self.key, f"{self.method} {self.path}", content))
        return {
            "method": self.method,
            "url": f"{server.base_url.rstrip('/')}{PREFIX}{self.path}",
            "content": content,
            "headers": headers,
            "extensions": {"timeout": self._timeouts(server.http.timeout)},
        }

    def check(self, response: "httpx.Response", server: AnyApiManager) -> None:
        """Raise the client's error for an error response, `UnexpectedResponse` for another program's."""
        _raise_for_status(response, server)
        if response.request.method != self.method:  # a redirect turned it into a GET
            raise UnexpectedResponse(response)

    def result(self, response: "httpx.Response", server: AnyApiManager) -> T:
        """Return what a response says. Raises as `check`."""
        self.check(response, server)
        return self.read(response)

    def _timeouts(self, timeout: "httpx.Timeout") -> dict[str, float | None]:
        """Return the client's timeouts; reading is always limited and includes the wait."""
        timeouts = timeout.as_dict()
        seconds = timeouts.get("read") or _RESPONSE_SECONDS
        if longest := max(self.wait, self.silence):
            seconds = max(seconds, longest + _POLL_MARGIN_SECONDS)
        shortened = min(seconds, self.read_timeout) if self.read_timeout else seconds
        return {**timeouts, "read": shortened}


def _raise_for_status(response: "httpx.Response", server: AnyApiManager) -> None:
    fault = None if response.is_success else read_error(response)
    try:
        server.raise_for_status(response)
    except UnexpectedResponse:
        raise
    except Exception as error:
        if isinstance(error, ProblemException) and isinstance(fault, ProblemException):
            raise
        raise error from fault
    if fault is not None:
        raise fault


def _key_of(key: str | UUID, target: str, content: object) -> str:
    """Return a text as it is; for the id of an operation, return a key that its equal requests share."""
    if isinstance(key, str):
        return key
    return str(uuid5(key, f"{target} {content.decode() if isinstance(content, bytes) else ''}"))


def reading(model: type[Model]) -> "Callable[[httpx.Response], Model]":
    """Return a function that reads a response as a model."""
    return lambda response: parse(model, response)


def waiting(model: type[Model]) -> "Callable[[httpx.Response], tuple[Model, int]]":
    """Return a function that reads a model, and how many seconds the server agreed to wait."""
    return lambda response: (parse(model, response), applied_wait(response))


def parse(model: type[Model], response: "httpx.Response", *required: str) -> Model:
    """Return a response as a model, with at least one of the fields `required` given."""
    try:
        parsed = model.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedResponse(response) from error
    if required and parsed.model_fields_set.isdisjoint(required):
        raise UnexpectedResponse(response)
    return parsed


def check_empty(response: "httpx.Response") -> None:
    """Raise `UnexpectedResponse` for a response with content."""
    if response.status_code != HTTPStatus.NO_CONTENT:
        raise UnexpectedResponse(response)


def applied_wait(response: "httpx.Response") -> int:
    """Return how many seconds the server agreed to wait."""
    name, _, value = response.headers.get("Preference-Applied", "").partition("=")
    return int(value) if name.strip() == "wait" and value.strip().isdigit() else 0


def validated(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Return `fields` as a model. Raises ValueError that names each invalid field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(describe_errors(error)) from None


# The operations of the REST API that submit and follow tasks, each as a `Call`.

MINIMAL_JSON = {"Content-Type": "application/json", "Prefer": "return=minimal"}
_EVENT_STREAM = {"Accept": "text/event-stream"}
# The server sends a comment every 15 s.
_SILENT_SECONDS = 30.0


class SubmittedTask(NamedTuple):
    """The task of a submit in a batch; a duplicate made none, because this one holds its unique key.

    `waits`: it waits for others.
    """

    id: UUID
    is_duplicate: bool
    waits: bool = False


Results = list[SubmittedTask | ProblemException]


def call(operation: Operation[Model], body: Body = None, **options: Any) -> Call[Model]:
    """Return a call of an operation that returns its answer; for the options see `call_reading`."""
    return call_reading(operation, reading(operation.answer), body, **options)


def call_reading(  # noqa: PLR0913 - one argument for each part of a request
    operation: Operation[Any],
    read: "Callable[[httpx.Response], T]",
    body: Body = None,
    *,
    query: Mapping[str, Any] | None = None,
    wait: int = 0,
    silence: float = 0,
    read_timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
    key: str | UUID | None = None,
    **parts: object,
) -> Call[T]:
    """Return a call of an operation that returns what `read` does; `parts` are those of its path.

    A value None of the query is left out, a list repeats its name. For all else see `Call`.
    """
    path = _with(operation.path(**parts), query or {})
    return Call(operation.method, path, read, body, wait, silence, read_timeout, headers or {}, key)


def get_task(task_id: str, wait: int = 0) -> Call[tuple[messages.TaskResponse, int]]:
    """Return a task and how many seconds the server agreed to wait for its end."""
    return call_reading(ops.GET_TASK, waiting(messages.TaskResponse), wait=wait, task_id=task_id)


def get_group(group_id: object, wait: int = 0) -> Call[tuple[GroupResponse, int]]:
    """Return a group and how many seconds the server agreed to wait for its end."""
    return call_reading(ops.GET_GROUP, waiting(GroupResponse), wait=wait, group_id=group_id)


def group_events(group_id: object, after: int | None, wait: int = 0) -> Call[tuple[GroupEvents, int]]:
    """Return a group if its state is not `after`, and how many seconds the server agreed to wait for that."""
    query = {"after": after}
    return call_reading(ops.FOLLOW_GROUP, waiting(GroupEvents), query=query, wait=wait, group_id=group_id)


def read_group_results(group_id: object) -> Call[list[GroupResult]]:
    """Return the tasks of a group with their results, in the order of submission."""

    def lines(response: "httpx.Response") -> list[GroupResult]:
        return [GroupResult.model_validate_json(line) for line in response.content.splitlines()]

    return call_reading(ops.READ_GROUP_RESULTS, lines, group_id=group_id)


def task_events(task_id: str, after: int | None, wait: int = 0) -> Call[tuple[history.TaskEvents, int]]:
    """Return the events of a task after a position, and how many seconds the server agreed to wait."""
    query = {"after": after}
    return call_reading(ops.FOLLOW_TASK, waiting(history.TaskEvents), query=query, wait=wait, task_id=task_id)


def room_events(room_id: str, after: int | None, wait: int = 0) -> Call[tuple[history.RoomEvents, int]]:
    """Return the events of a room after a position, and how many seconds the server agreed to wait."""
    query = {"after": after}
    return call_reading(ops.FOLLOW_ROOM, waiting(history.RoomEvents), query=query, wait=wait, room_id=room_id)


def event_stream(task_id: str, last_id: int | None) -> Call[None]:
    """Open the event stream of a task, after the event `last_id`."""
    headers = _EVENT_STREAM | ({} if last_id is None else {"Last-Event-ID": str(last_id)})
    silence = _SILENT_SECONDS
    return call_reading(ops.FOLLOW_TASK, lambda _: None, headers=headers, silence=silence, task_id=task_id)


def submit(
    room_id: str, full_name: str, payload: Mapping[str, Any], key: str | None = None, **options: Any
) -> Call[messages.TaskResponse]:
    """Submit a task. Raises ValueError for invalid `options`, and for a payload that is not JSON."""
    body = validated(messages.TaskSubmitRequest, {"payload": payload, **options})
    return call(ops.SUBMIT_TASK, body, headers=_trace(), key=key, room_id=room_id, name=full_name)


def submit_many(body: bytes, key: str, count: int, check: Callable[[Results], object] = len) -> Call[Results]:
    """Submit the `count` tasks of a `BatchSubmitRequest`; return the task or the problem of each.

    `check` gets them first, and may raise.
    """

    def read(response: "httpx.Response") -> Results:
        items = parse(messages.BatchResponse, response).results
        if len(items) != count:
            raise UnexpectedResponse(response)
        results = [_task_or_problem(item, response) for item in items]
        check(results)
        return results

    return call_reading(ops.SUBMIT_TASKS, read, body, headers={**MINIMAL_JSON, **_trace()}, key=key)


def update_task(
    task_id: str, update: messages.TaskUpdateRequest, key: str | None = None
) -> Call[messages.TaskResponse]:
    """Report a task's new status."""
    return call(ops.UPDATE_TASK, update, key=key, task_id=task_id)


def cancel_task(task_id: str, key: str | None = None, *, tree: bool = False) -> Call[messages.TaskResponse]:
    """Cancel a task, and with `tree` all tasks below it."""
    update = messages.TaskUpdateRequest(status=TaskStatus.CANCELLED)
    if tree:  # a server of an earlier release gets the request that it knows
        update.tree = True
    return update_task(task_id, update, key)


def act_on_task(
    action: Operation[messages.TaskResponse],
    task_id: str,
    request: messages.TaskActionRequest | None = None,
    timeout: float | None = None,
    key: str | None = None,
) -> Call[messages.TaskResponse]:
    """Release, retry or fail a task."""
    body = request or messages.TaskActionRequest()
    return call(action, body, read_timeout=timeout, key=key, task_id=task_id)


def read_task_result(task_id: str) -> Call[tuple[bytes, str]]:
    """Return the bytes of a task's result and their content type."""
    return call_reading(ops.READ_TASK_RESULT, content_of, task_id=task_id)


def read_provider(
    room_id: str, full_name: str, query: Mapping[str, list[str]], wait: int
) -> Call[tuple[bytes, str]]:
    """Send a provider request; return the bytes of the result and their content type."""
    # Without the header the server waits for as long as its own setting allows.
    headers = {"Prefer": f"wait={wait}"}
    options: dict[str, Any] = {"query": query, "wait": wait, "headers": headers}
    return call_reading(ops.READ_PROVIDER, content_of, room_id=room_id, name=full_name, **options)


def stored_of(response: "httpx.Response", size: int) -> progress.StoredResult:
    """Return what the headers of a result say of it."""
    _, _, name = response.headers.get("Content-Disposition", "").partition("filename*=UTF-8''")
    return progress.StoredResult(
        content_type=response.headers.get("Content-Type", ""),
        size=size,
        etag=response.headers.get("ETag", "").strip('"'),
        filename=unquote(name) or None,
    )


def content_of(response: "httpx.Response") -> tuple[bytes, str]:
    """Return the bytes of a response and their content type."""
    return response.content, response.headers.get("Content-Type", "")


def _with(path: str, query: Mapping[str, Any]) -> str:
    params = {name: value for name, value in query.items() if value is not None}
    if not params:
        return path
    import httpx  # noqa: PLC0415 - see `client.connection`

    return str(httpx.URL(path, params=params))


def _trace() -> dict[str, str]:
    """Return the header with the trace context of the caller, if it has one."""
    traceparent = current_traceparent()
    return {} if traceparent is None else {TRACEPARENT: traceparent}


def _task_or_problem(
    result: messages.BatchResult, response: "httpx.Response"
) -> SubmittedTask | ProblemException:
    if result.problem is not None:
        return problem_for(result.status, result.problem.model_dump())
    if result.id is None:
        raise UnexpectedResponse(response)
    return SubmittedTask(result.id, result.status == HTTPStatus.OK, result.waits is True)
