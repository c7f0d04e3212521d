"""The operations of the REST API that submit and follow tasks, each as a `Call`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlencode
from uuid import UUID

import httpx

from zndraw_joblib.client.calls import Call, Model, parse, quoted, reading, validated, waiting
from zndraw_joblib.client.responses import UnexpectedResponse
from zndraw_joblib.contract import batches, messages, progress, streams
from zndraw_joblib.contract.problems import ProblemException, problem_for
from zndraw_joblib.contract.traces import TRACEPARENT, current_traceparent

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


def task_events(task_id: str, after: int | None, wait: int = 0) -> Call[tuple[streams.TaskEvents, int]]:
    """Return the events of a task after a position, and how many seconds the server agreed to wait."""
    path = _with(f"/tasks/{quoted(task_id)}/events", {"after": after})
    return Call("GET", path, waiting(streams.TaskEvents), wait=wait)


def room_events(room_id: str, after: int | None, wait: int = 0) -> Call[tuple[streams.RoomEvents, int]]:
    """Return the events of a room after a position, and how many seconds the server agreed to wait."""
    path = _with(f"/rooms/{quoted(room_id)}/events", {"after": after})
    return Call("GET", path, waiting(streams.RoomEvents), wait=wait)


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
        items = parse(batches.BatchResponse, response).results
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


def _id_or_problem(result: batches.BatchResult, response: httpx.Response) -> UUID | ProblemException:
    if result.problem is not None:
        return problem_for(result.status, result.problem.model_dump())
    if result.id is None:
        raise UnexpectedResponse(response)
    return result.id
