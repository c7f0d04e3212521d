"""The server's REST operations, one method each."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote, urlencode
from uuid import UUID, uuid5

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from zndraw_joblib.client.api import API_PREFIX, ApiManager
from zndraw_joblib.client.responses import UnexpectedResponse, read_error
from zndraw_joblib.contract import batches, messages, progress, streams
from zndraw_joblib.contract.idempotency import IDEMPOTENCY_KEY, format_key
from zndraw_joblib.contract.outcomes import describe_errors, encode
from zndraw_joblib.contract.problems import ProblemException, problem_for
from zndraw_joblib.contract.traces import TRACEPARENT, current_traceparent

Model = TypeVar("Model", bound=BaseModel)

_RESPONSE_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0
_CLIENT_ERROR = 400
MINIMAL_JSON = {"Content-Type": "application/json", "Prefer": "return=minimal"}


@dataclass(slots=True)
class Download:
    """A file for a result. `etag` is that of the result whose first bytes the file has."""

    file: IO[bytes]
    etag: str = ""


class TaskRest:
    """The operations of one server. All timeouts are seconds, None for those of the host's client.

    Each method raises what the host's `raise_for_status` raises, with the server's problem as its cause, or
    with an `UnexpectedResponse`, if the response is not from a zndraw-joblib server.

    `key` is an `Idempotency-Key`. If a method takes an `operation`, equal requests of one operation have the
    same key, and a changed request has another key.
    """

    def __init__(self, api: ApiManager) -> None:
        self.api = api

    def read_provider(
        self, room_id: str, full_name: str, query: Sequence[tuple[str, str]], wait: int
    ) -> tuple[bytes, str]:
        """Send a provider request; return the bytes of the result and their content type."""
        path = f"/rooms/{quoted(room_id)}/providers/{quoted(full_name)}"
        if query:
            path = f"{path}?{urlencode(query)}"
        # Without the header the server waits for as long as its own setting allows.
        response = self.request("GET", path, wait=wait, headers={"Prefer": f"wait={wait}"})
        return response.content, response.headers.get("Content-Type", "")

    def report_task(
        self, task_id: str, update: messages.TaskUpdateRequest, key: str | None = None
    ) -> messages.TaskResponse:
        """Report a task's new status."""
        response = self.request("PATCH", f"/tasks/{quoted(task_id)}", update, key=key)
        return parse(messages.TaskResponse, response)

    def read_task_result(self, task_id: str) -> tuple[bytes, str]:
        """Return the bytes of a task's result and their content type."""
        response = self.request("GET", f"/tasks/{quoted(task_id)}/result")
        return response.content, response.headers.get("Content-Type", "")

    def load_task_result(self, task_id: str, download: Download) -> progress.StoredResult:
        """Load the result of a task into a file; go on if it has the first bytes of the same result."""
        file = download.file
        url = f"{self.api.base_url.rstrip('/')}{API_PREFIX}/tasks/{quoted(task_id)}/result"
        timeouts = {"timeout": self._timeouts(0, None)}
        start = file.seek(0, os.SEEK_END)
        headers = {**self.api.get_headers(), "Accept-Encoding": "identity"}
        if start and download.etag:
            headers |= {"Range": f"bytes={start}-", "If-Range": download.etag}
        with self.api.http.stream("GET", url, headers=headers, extensions=timeouts) as response:
            if not response.is_success:
                response.read()
            self._raise_for_status(response)
            if response.status_code != httpx.codes.PARTIAL_CONTENT:
                file.truncate(0)
                file.seek(0)
                download.etag = response.headers.get("ETag", "")
            for piece in response.iter_bytes():
                file.write(piece)
        return stored_of(response, file.tell())

    def act_on_task(
        self,
        task_id: str,
        action: str,
        request: messages.TaskActionRequest | None = None,
        timeout: float | None = None,
        key: str | None = None,
    ) -> messages.TaskResponse:
        """Release, retry or fail a task; `action` is the last part of the path."""
        body, path = request or messages.TaskActionRequest(), f"/tasks/{quoted(task_id)}/{action}"
        response = self.request("POST", path, body, read_timeout=timeout, key=key)
        return parse(messages.TaskResponse, response)

    def submit(
        self, room_id: str, full_name: str, payload: dict[str, Any], key: str | None = None, **options: Any
    ) -> messages.TaskResponse:
        """Submit a task. Raises ValueError for invalid `options`, and for a payload that is not JSON."""
        body = validated(messages.TaskSubmitRequest, {"payload": payload, **options})
        path = f"/rooms/{quoted(room_id)}/tasks/{quoted(full_name)}"
        return parse(messages.TaskResponse, self.request("POST", path, body, headers=_trace(), key=key))

    def submit_many(self, body: bytes, key: str, count: int) -> list[UUID | ProblemException]:
        """Submit the `count` tasks of a `BatchSubmitRequest`; return the id or the problem of each."""
        response = self.request("POST", "/tasks/submit", body, headers={**MINIMAL_JSON, **_trace()}, key=key)
        results = parse(batches.BatchResponse, response).results
        if len(results) != count:
            raise UnexpectedResponse(response)
        return [_id_or_problem(each, response) for each in results]

    def get_task(self, task_id: str, wait: int = 0) -> tuple[messages.TaskResponse, int]:
        """Return a task and how many seconds the server agreed to wait for its end."""
        response = self.request("GET", f"/tasks/{quoted(task_id)}", wait=wait)
        return parse(messages.TaskResponse, response), applied_wait(response)

    def task_events(self, task_id: str, after: int | None, wait: int = 0) -> tuple[streams.TaskEvents, int]:
        """Return the events of a task after a position, and how many seconds the server agreed to wait."""
        query = "" if after is None else f"?after={after}"
        response = self.request("GET", f"/tasks/{quoted(task_id)}/events{query}", wait=wait)
        return parse(streams.TaskEvents, response), applied_wait(response)

    def get(self, path: str, model: type[Model], **query: Any) -> Model:
        """Return the resource at `path`, whose parts must be quoted; a query value None is left out."""
        params = {key: value for key, value in query.items() if value is not None}
        return parse(model, self.request("GET", str(httpx.URL(path, params=params))))

    def send(
        self,
        method: str,
        path: str,
        model: type[Model],
        request: BaseModel | None = None,
        *,
        key: str | None = None,
    ) -> Model:
        """Send a request to `path`, whose parts must be quoted; return the response."""
        return parse(model, self.request(method, path, request, key=key))

    def request(  # noqa: PLR0913 - one argument per part of a request
        self,
        method: str,
        path: str,
        body: BaseModel | bytes | Iterable[bytes] | None = None,
        *,
        wait: int = 0,
        read_timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | UUID | None = None,
    ) -> httpx.Response:
        """Return the response to a request, which is a success."""
        headers = {**self.api.get_headers(), **(headers or {})}
        content: bytes | Iterable[bytes] | None
        if not isinstance(body, BaseModel):
            content = body
        else:
            content = encode(to_jsonable_python(body.model_dump(by_alias=True, exclude_unset=True)))
            headers = {**headers, "Content-Type": "application/json"}
        if wait:
            headers = {**headers, "Prefer": f"wait={wait}"}
        if key is not None:
            headers = {**headers, IDEMPOTENCY_KEY: format_key(_key_of(key, f"{method} {path}", content))}
        response = self.api.http.request(
            method,
            f"{self.api.base_url.rstrip('/')}{API_PREFIX}{path}",
            content=content,
            headers=headers,
            extensions={"timeout": self._timeouts(wait, read_timeout)},
        )
        self._raise_for_status(response)
        if response.request.method != method:  # a redirect turned it into a GET
            raise UnexpectedResponse(response)
        return response

    def _timeouts(self, wait: int, read: float | None) -> dict[str, float | None]:
        """Return the timeouts of the host's client; reading is always limited and includes the wait."""
        timeouts = self.api.http.timeout.as_dict()
        seconds = timeouts.get("read") or _RESPONSE_SECONDS
        if wait:
            seconds = max(seconds, wait + _POLL_MARGIN_SECONDS)
        return {**timeouts, "read": min(seconds, read) if read else seconds}

    def _raise_for_status(self, response: httpx.Response) -> None:
        fault = None if response.is_success else read_error(response)
        try:
            self.api.raise_for_status(response)
        except UnexpectedResponse:
            raise
        except Exception as error:
            if isinstance(error, ProblemException) and isinstance(fault, ProblemException):
                raise
            raise error from fault
        if fault is not None:
            raise fault


def _trace() -> dict[str, str]:
    """Return the header with the trace context of the caller, if it has one."""
    traceparent = current_traceparent()
    return {} if traceparent is None else {TRACEPARENT: traceparent}


def _key_of(key: str | UUID, target: str, content: object) -> str:
    """Return a text as it is; for the id of an operation, return a key that its equal requests share."""
    if isinstance(key, str):
        return key
    return str(uuid5(key, f"{target} {content.decode() if isinstance(content, bytes) else ''}"))


def parse(model: type[Model], response: httpx.Response, *required: str) -> Model:
    """Return a response as a model, with at least one of the fields `required` given."""
    try:
        parsed = model.model_validate_json(response.content)
    except ValidationError as error:
        raise UnexpectedResponse(response) from error
    if required and parsed.model_fields_set.isdisjoint(required):
        raise UnexpectedResponse(response)
    return parsed


def _id_or_problem(result: batches.BatchResult, response: httpx.Response) -> UUID | ProblemException:
    if result.problem is not None:
        return problem_for(result.status, result.problem.model_dump())
    if result.id is None:
        raise UnexpectedResponse(response)
    return result.id


def stored_of(response: httpx.Response, size: int) -> progress.StoredResult:
    """Return what the headers of a result say of it."""
    _, _, name = response.headers.get("Content-Disposition", "").partition("filename*=UTF-8''")
    return progress.StoredResult(
        content_type=response.headers.get("Content-Type", ""),
        size=size,
        etag=response.headers.get("ETag", "").strip('"'),
        filename=unquote(name) or None,
    )


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
