"""The server's REST operations, one method each."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import quote, unquote, urlencode
from uuid import UUID, uuid5

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from zndraw_joblib.contract import batches, messages, progress, providers, streams
from zndraw_joblib.contract.idempotency import IDEMPOTENCY_KEY, format_key
from zndraw_joblib.contract.outcomes import describe_errors, encode
from zndraw_joblib.contract.problems import ProblemException, problem_for
from zndraw_joblib.contract.results import Content
from zndraw_joblib.contract.traces import TRACEPARENT, current_traceparent
from zndraw_joblib.contract.workers import WorkerInfo
from zndraw_joblib.worker.api import API_PREFIX, ApiManager
from zndraw_joblib.worker.responses import UnexpectedResponse, read_error

Model = TypeVar("Model", bound=BaseModel)

_RESPONSE_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0
_CLIENT_ERROR = 400
_MINIMAL_JSON = {"Content-Type": "application/json", "Prefer": "return=minimal"}


@dataclass(slots=True)
class Download:
    """A file for a result. `etag` is that of the result whose first bytes the file has."""

    file: IO[bytes]
    etag: str = ""


class RestApi:
    """The operations of one server. All timeouts are seconds, None for those of the host's client.

    Each method raises what the host's `raise_for_status` raises, with the server's problem as its cause, or
    with an `UnexpectedResponse`, if the response is not from a zndraw-joblib server.

    `key` is an `Idempotency-Key`. If a method takes an `operation`, equal requests of one operation have the
    same key, and a changed request has another key.
    """

    def __init__(self, api: ApiManager) -> None:
        self.api = api

    def create_worker(
        self, operation: UUID | None = None, info: WorkerInfo | None = None
    ) -> messages.WorkerResponse:
        """Create a worker without jobs."""
        return _parse(messages.WorkerResponse, self._send("POST", "/workers", info, key=operation))

    def heartbeat(
        self, worker_id: UUID, request: messages.HeartbeatRequest, timeout: float
    ) -> messages.WorkerResponse:
        """Send a heartbeat."""
        response = self._send("PATCH", f"/workers/{worker_id}", request, read_timeout=timeout)
        return _parse(messages.WorkerResponse, response)

    def remove_worker(self, worker_id: UUID, timeout: float) -> None:
        """Remove the worker."""
        _check_empty(self._send("DELETE", f"/workers/{worker_id}", read_timeout=timeout))

    def register(
        self, room_id: str, request: messages.JobRegisterRequest, operation: UUID | None = None
    ) -> messages.JobResponse:
        """Register a job and link the worker to it."""
        response = self._send("PUT", f"/rooms/{quoted(room_id)}/jobs", request, key=operation)
        return _parse(messages.JobResponse, response)

    def unregister(self, worker_id: UUID, full_name: str, timeout: float | None = None) -> None:
        """Unlink the worker from a job."""
        path = f"/workers/{worker_id}/jobs/{quoted(full_name)}"
        _check_empty(self._send("DELETE", path, read_timeout=timeout))

    def claim(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None, most: int | None = None
    ) -> tuple[messages.TaskClaimResponse, int]:
        """Claim a task, or up to `most`; return the response and how many seconds the server agreed to wait.

        A server that cannot claim several returns one.
        """
        body = messages.TaskClaimRequest(worker_id=worker_id, claim_id=claim_id)
        if most is not None:
            body.max = most
        response = self._send("POST", "/tasks/claim", body, wait=wait)
        return _parse(messages.TaskClaimResponse, response, "task", "tasks"), _applied_wait(response)

    def report_tasks(self, worker_id: UUID, reports: Sequence[bytes]) -> list[ProblemException | None]:
        """Send reports, each a `TaskReport` as JSON; return the problem of each, None for a success."""
        body = b'{"worker_id":"%s","reports":[%s]}' % (str(worker_id).encode(), b",".join(reports))
        response = self._send("POST", "/tasks/report", body, headers=_MINIMAL_JSON)
        results = _results_of(response)
        if results is None or len(results) != len(reports):
            raise UnexpectedResponse(response)
        return results

    def register_provider(
        self, room_id: str, request: providers.ProviderRegisterRequest, operation: UUID | None = None
    ) -> providers.ProviderResponse:
        """Register a provider and link the worker to it."""
        response = self._send("PUT", f"/rooms/{quoted(room_id)}/providers", request, key=operation)
        return _parse(providers.ProviderResponse, response)

    def remove_provider(self, provider_id: UUID, worker_id: UUID, timeout: float | None = None) -> None:
        """Unlink the worker from a provider."""
        path = f"/providers/{provider_id}?worker_id={worker_id}"
        _check_empty(self._send("DELETE", path, read_timeout=timeout))

    def claim_provider_request(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None
    ) -> tuple[providers.ProviderClaimResponse, int]:
        """Claim a provider request; return the response and how many seconds the server agreed to wait."""
        body = providers.ProviderClaimRequest(worker_id=worker_id, claim_id=claim_id)
        response = self._send("POST", "/providers/requests/claim", body, wait=wait)
        return _parse(providers.ProviderClaimResponse, response, "request"), _applied_wait(response)

    def upload_result(
        self, provider_id: UUID, content: Iterable[bytes] | BaseModel, headers: Mapping[str, str]
    ) -> None:
        """Upload the result of a provider request: its bytes, or a `ProviderError`."""
        _check_empty(self._send("POST", f"/providers/{provider_id}/results", content, headers=headers))

    def read_provider(
        self, room_id: str, full_name: str, query: Sequence[tuple[str, str]], wait: int
    ) -> tuple[bytes, str]:
        """Send a provider request; return the bytes of the result and their content type."""
        path = f"/rooms/{quoted(room_id)}/providers/{quoted(full_name)}"
        if query:
            path = f"{path}?{urlencode(query)}"
        # Without the header the server waits for as long as its own setting allows.
        response = self._send("GET", path, wait=wait, headers={"Prefer": f"wait={wait}"})
        return response.content, response.headers.get("Content-Type", "")

    def report_task(
        self, task_id: str, update: messages.TaskUpdateRequest, key: str | None = None
    ) -> messages.TaskResponse:
        """Report a task's new status."""
        response = self._send("PATCH", f"/tasks/{quoted(task_id)}", update, key=key)
        return _parse(messages.TaskResponse, response)

    def upload_task_result(
        self, task_id: str, attempt: int, content: Content, pieces: Iterable[bytes]
    ) -> progress.StoredResult:
        """Upload the result of an attempt, as the `pieces` of the content."""
        query = {"attempt": attempt} | ({"filename": content.filename} if content.filename else {})
        headers = {"Content-Type": content.content_type, "Content-Length": str(content.size)}
        path = f"/tasks/{quoted(task_id)}/result?{urlencode(query)}"
        return _parse(progress.StoredResult, self._send("PUT", path, pieces, headers=headers))

    def read_task_result(self, task_id: str) -> tuple[bytes, str]:
        """Return the bytes of a task's result and their content type."""
        response = self._send("GET", f"/tasks/{quoted(task_id)}/result")
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
        response = self._send("POST", path, body, read_timeout=timeout, key=key)
        return _parse(messages.TaskResponse, response)

    def submit(
        self, room_id: str, full_name: str, payload: dict[str, Any], key: str | None = None, **options: Any
    ) -> messages.TaskResponse:
        """Submit a task. Raises ValueError for invalid `options`, and for a payload that is not JSON."""
        body = validated(messages.TaskSubmitRequest, {"payload": payload, **options})
        path = f"/rooms/{quoted(room_id)}/tasks/{quoted(full_name)}"
        return _parse(messages.TaskResponse, self._send("POST", path, body, headers=_trace(), key=key))

    def submit_many(self, body: bytes, key: str, count: int) -> list[UUID | ProblemException]:
        """Submit the `count` tasks of a `BatchSubmitRequest`; return the id or the problem of each."""
        response = self._send("POST", "/tasks/submit", body, headers={**_MINIMAL_JSON, **_trace()}, key=key)
        results = _parse(batches.BatchResponse, response).results
        if len(results) != count:
            raise UnexpectedResponse(response)
        return [_id_or_problem(each, response) for each in results]

    def get_task(self, task_id: str, wait: int = 0) -> tuple[messages.TaskResponse, int]:
        """Return a task and how many seconds the server agreed to wait for its end."""
        response = self._send("GET", f"/tasks/{quoted(task_id)}", wait=wait)
        return _parse(messages.TaskResponse, response), _applied_wait(response)

    def task_events(self, task_id: str, after: int | None, wait: int = 0) -> tuple[streams.TaskEvents, int]:
        """Return the events of a task after a position, and how many seconds the server agreed to wait."""
        query = "" if after is None else f"?after={after}"
        response = self._send("GET", f"/tasks/{quoted(task_id)}/events{query}", wait=wait)
        return _parse(streams.TaskEvents, response), _applied_wait(response)

    def get(self, path: str, model: type[Model], **query: Any) -> Model:
        """Return the resource at `path`, whose parts must be quoted; a query value None is left out."""
        params = {key: value for key, value in query.items() if value is not None}
        return _parse(model, self._send("GET", str(httpx.URL(path, params=params))))

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
        return _parse(model, self._send(method, path, request, key=key))

    def _send(  # noqa: PLR0913 - one argument per part of a request
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


def _parse(model: type[Model], response: httpx.Response, *required: str) -> Model:
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


def _results_of(response: httpx.Response) -> list[ProblemException | None] | None:
    """Return the problem or the success of each item of a `BatchResponse`, None if it is none."""
    try:
        items = json.loads(response.content)["results"]
        return [
            None if item["status"] < _CLIENT_ERROR else problem_for(item["status"], item["problem"])
            for item in items
        ]
    except (LookupError, TypeError, ValueError):
        return None


def stored_of(response: httpx.Response, size: int) -> progress.StoredResult:
    """Return what the headers of a result say of it."""
    _, _, name = response.headers.get("Content-Disposition", "").partition("filename*=UTF-8''")
    return progress.StoredResult(
        content_type=response.headers.get("Content-Type", ""),
        size=size,
        etag=response.headers.get("ETag", "").strip('"'),
        filename=unquote(name) or None,
    )


def _check_empty(response: httpx.Response) -> None:
    if response.status_code != httpx.codes.NO_CONTENT:
        raise UnexpectedResponse(response)


def _applied_wait(response: httpx.Response) -> int:
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
