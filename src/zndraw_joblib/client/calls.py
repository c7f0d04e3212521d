"""Requests as data: what to send, and how to read the response. Nothing here does I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote, unquote, urlencode
from uuid import UUID, uuid5

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from zndraw_joblib.client.api import API_PREFIX
from zndraw_joblib.client.retry import UnexpectedResponse, read_error
from zndraw_joblib.jobs.failures import describe_errors, encode
from zndraw_joblib.jobs.traces import TRACEPARENT, current_traceparent
from zndraw_joblib.wire import history, messages, progress
from zndraw_joblib.wire.names import IDEMPOTENCY_KEY, format_key
from zndraw_joblib.wire.problems import ProblemException, problem_for

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Body = BaseModel | bytes | Iterable[bytes] | None

_RESPONSE_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0


class Server(Protocol):
    """A server, the identity of its client, and the client's own errors; see `ApiManager`."""

    @property
    def http(self) -> httpx.Client | httpx.AsyncClient:
        """The client, whose timeouts hold for every request."""

    @property
    def base_url(self) -> str:
        """The server's address without ``/v1/joblib``."""

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity."""

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise if `response` is an error."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request to `path`, whose parts are quoted, and the function that reads its response.

    The server may wait for `wait` seconds, or be silent for `silence` seconds, longer than the timeout of the
    client. `read_timeout` shortens that. `key` is an `Idempotency-Key`, or the id of an operation, whose
    equal requests share a key.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: Body = None
    wait: int = 0
    silence: float = 0
    read_timeout: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | UUID | None = None

    def request(self, server: Server) -> dict[str, Any]:
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
            "url": f"{server.base_url.rstrip('/')}{API_PREFIX}{self.path}",
            "content": content,
            "headers": headers,
            "extensions": {"timeout": self._timeouts(server.http.timeout)},
        }

    def check(self, response: httpx.Response, server: Server) -> None:
        """Raise the client's error for an error response, `UnexpectedResponse` for another program's."""
        _raise_for_status(response, server)
        if response.request.method != self.method:  # a redirect turned it into a GET
            raise UnexpectedResponse(response)

    def result(self, response: httpx.Response, server: Server) -> T:
        """Return what a response says. Raises as `check`."""
        self.check(response, server)
        return self.read(response)

    def _timeouts(self, timeout: httpx.Timeout) -> dict[str, float | None]:
        """Return the client's timeouts; reading is always limited and includes the wait."""
        timeouts = timeout.as_dict()
        seconds = timeouts.get("read") or _RESPONSE_SECONDS
        if longest := max(self.wait, self.silence):
            seconds = max(seconds, longest + _POLL_MARGIN_SECONDS)
        shortened = min(seconds, self.read_timeout) if self.read_timeout else seconds
        return {**timeouts, "read": shortened}


def _raise_for_status(response: httpx.Response, server: Server) -> None:
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


def reading(model: type[Model]) -> Callable[[httpx.Response], Model]:
    """Return a function that reads a response as a model."""
    return lambda response: parse(model, response)


def waiting(model: type[Model]) -> Callable[[httpx.Response], tuple[Model, int]]:
    """Return a function that reads a model, and how many seconds the server agreed to wait."""
    return lambda response: (parse(model, response), applied_wait(response))


def parse(model: type[Model], response: httpx.Response, *required: str) -> Model:
    """Return a response as a model, with at least one of the fields `required` given."""
    try:
        parsed = model.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedResponse(response) from error
    if required and parsed.model_fields_set.isdisjoint(required):
        raise UnexpectedResponse(response)
    return parsed


def check_empty(response: httpx.Response) -> None:
    """Raise `UnexpectedResponse` for a response with content."""
    if response.status_code != httpx.codes.NO_CONTENT:
        raise UnexpectedResponse(response)


def applied_wait(response: httpx.Response) -> int:
    """Return how many seconds the server agreed to wait."""
    name, _, value = response.headers.get("Preference-Applied", "").partition("=")
    return int(value) if name.strip() == "wait" and value.strip().isdigit() else 0


def quoted(text: str) -> str:
    """Return `text` as one part of a path, also when it is ``.`` or ``..``."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


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
Results = list[UUID | ProblemException]


def get(path: str, model: type[Model], **query: Any) -> Call[Model]:
    """Return the resource at `path`, whose parts must be quoted; a query value None is left out."""
    return Call("GET", _with(path, query), reading(model))


def get_task(task_id: str, wait: int = 0) -> Call[tuple[messages.TaskResponse, int]]:
    """Return a task and how many seconds the server agreed to wait for its end."""
    return Call("GET", f"/tasks/{quoted(task_id)}", waiting(messages.TaskResponse), wait=wait)


def task_events(task_id: str, after: int | None, wait: int = 0) -> Call[tuple[history.TaskEvents, int]]:
    """Return the events of a task after a position, and how many seconds the server agreed to wait."""
    path = _with(f"/tasks/{quoted(task_id)}/events", {"after": after})
    return Call("GET", path, waiting(history.TaskEvents), wait=wait)


def room_events(room_id: str, after: int | None, wait: int = 0) -> Call[tuple[history.RoomEvents, int]]:
    """Return the events of a room after a position, and how many seconds the server agreed to wait."""
    path = _with(f"/rooms/{quoted(room_id)}/events", {"after": after})
    return Call("GET", path, waiting(history.RoomEvents), wait=wait)


def event_stream(task_id: str, last_id: int | None) -> Call[None]:
    """Open the event stream of a task, after the event `last_id`."""
    last = {} if last_id is None else {"Last-Event-ID": str(last_id)}
    path = f"/tasks/{quoted(task_id)}/events"
    return Call("GET", path, lambda _: None, headers=_EVENT_STREAM | last, silence=_SILENT_SECONDS)


def submit(
    room_id: str, full_name: str, payload: Mapping[str, Any], key: str | None = None, **options: Any
) -> Call[messages.TaskResponse]:
    """Submit a task. Raises ValueError for invalid `options`, and for a payload that is not JSON."""
    body = validated(messages.TaskSubmitRequest, {"payload": payload, **options})
    path = f"/rooms/{quoted(room_id)}/tasks/{quoted(full_name)}"
    return Call("POST", path, reading(messages.TaskResponse), body, headers=_trace(), key=key)


def submit_many(body: bytes, key: str, count: int, check: Callable[[Results], object] = len) -> Call[Results]:
    """Submit the `count` tasks of a `BatchSubmitRequest`; return the id or the problem of each.

    `check` gets them first, and may raise.
    """

    def read(response: httpx.Response) -> Results:
        items = parse(messages.BatchResponse, response).results
        if len(items) != count:
            raise UnexpectedResponse(response)
        results = [_id_or_problem(each, response) for each in items]
        check(results)
        return results

    return Call("POST", "/tasks/submit", read, body, headers={**MINIMAL_JSON, **_trace()}, key=key)


def update_task(
    task_id: str, update: messages.TaskUpdateRequest, key: str | None = None
) -> Call[messages.TaskResponse]:
    """Report a task's new status."""
    return Call("PATCH", f"/tasks/{quoted(task_id)}", reading(messages.TaskResponse), update, key=key)


def act_on_task(
    task_id: str,
    action: str,
    request: messages.TaskActionRequest | None = None,
    timeout: float | None = None,
    key: str | None = None,
) -> Call[messages.TaskResponse]:
    """Release, retry or fail a task; `action` is the last part of the path."""
    body, path = request or messages.TaskActionRequest(), f"/tasks/{quoted(task_id)}/{action}"
    return Call("POST", path, reading(messages.TaskResponse), body, read_timeout=timeout, key=key)


def read_task_result(task_id: str) -> Call[tuple[bytes, str]]:
    """Return the bytes of a task's result and their content type."""
    return Call("GET", f"/tasks/{quoted(task_id)}/result", _content)


def read_provider(
    room_id: str, full_name: str, query: Sequence[tuple[str, str]], wait: int
) -> Call[tuple[bytes, str]]:
    """Send a provider request; return the bytes of the result and their content type."""
    path = f"/rooms/{quoted(room_id)}/providers/{quoted(full_name)}"
    if query:
        path = f"{path}?{urlencode(query)}"
    # Without the header the server waits for as long as its own setting allows.
    return Call("GET", path, _content, wait=wait, headers={"Prefer": f"wait={wait}"})


def stored_of(response: httpx.Response, size: int) -> progress.StoredResult:
    """Return what the headers of a result say of it."""
    _, _, name = response.headers.get("Content-Disposition", "").partition("filename*=UTF-8''")
    return progress.StoredResult(
        content_type=response.headers.get("Content-Type", ""),
        size=size,
        etag=response.headers.get("ETag", "").strip('"'),
        filename=unquote(name) or None,
    )


def _content(response: httpx.Response) -> tuple[bytes, str]:
    return response.content, response.headers.get("Content-Type", "")


def _with(path: str, query: Mapping[str, Any]) -> str:
    params = {key: value for key, value in query.items() if value is not None}
    return str(httpx.URL(path, params=params)) if params else path


def _trace() -> dict[str, str]:
    """Return the header with the trace context of the caller, if it has one."""
    traceparent = current_traceparent()
    return {} if traceparent is None else {TRACEPARENT: traceparent}


def _id_or_problem(result: messages.BatchResult, response: httpx.Response) -> UUID | ProblemException:
    if result.problem is not None:
        return problem_for(result.status, result.problem.model_dump())
    if result.id is None:
        raise UnexpectedResponse(response)
    return result.id
