"""The server's operations, one method each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode
from uuid import UUID

import httpx
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from zndraw_joblib.contract import messages, providers
from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.worker.api import API_PREFIX, ApiManager, read_problem
from zndraw_joblib.worker.tasks import encode
from zndraw_joblib.worker.wishes import checked

Model = TypeVar("Model", bound=BaseModel)

_ANSWER_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0


class Remote:
    """Asks the server. Raises what the host's `raise_for_status` raises, the problem as its cause."""

    def __init__(self, api: ApiManager) -> None:
        self.api = api

    def create_worker(self) -> messages.WorkerResponse:
        """Make a worker without jobs."""
        return _read(messages.WorkerResponse, self._send("POST", "/workers"))

    def beat(
        self, worker_id: UUID, request: messages.HeartbeatRequest, timeout: float
    ) -> messages.WorkerResponse:
        """Tell that the worker lives; wait at most `timeout` seconds for the answer."""
        response = self._send("PATCH", f"/workers/{worker_id}", request, read_timeout=timeout)
        return _read(messages.WorkerResponse, response)

    def remove_worker(self, worker_id: UUID, timeout: float) -> None:
        """Remove the worker; wait at most `timeout` seconds for the answer."""
        self._send("DELETE", f"/workers/{worker_id}", read_timeout=timeout)

    def register(self, room_id: str, request: messages.JobRegisterRequest) -> messages.JobResponse:
        """Register a job, and link the worker to it."""
        return _read(messages.JobResponse, self._send("PUT", f"/rooms/{quoted(room_id)}/jobs", request))

    def unregister(self, worker_id: UUID, full_name: str, timeout: float | None = None) -> None:
        """Unlink the worker from a job; wait at most `timeout` seconds for the answer."""
        path = f"/workers/{worker_id}/jobs/{quoted(full_name)}"
        self._send("DELETE", path, read_timeout=timeout)

    def claim(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None
    ) -> tuple[messages.TaskClaimResponse, int]:
        """Claim a task; return the answer and the seconds of waiting that the server agreed to."""
        body = messages.TaskClaimRequest(worker_id=worker_id, claim_id=claim_id)
        response = self._send("POST", "/tasks/claim", body, wait=wait)
        return _read(messages.TaskClaimResponse, response), _applied(response)

    def register_provider(
        self, room_id: str, request: providers.ProviderRegisterRequest
    ) -> providers.ProviderResponse:
        """Register a provider, and link the worker to it."""
        response = self._send("PUT", f"/rooms/{quoted(room_id)}/providers", request)
        return _read(providers.ProviderResponse, response)

    def remove_provider(self, provider_id: UUID, worker_id: UUID, timeout: float | None = None) -> None:
        """Unlink the worker from a provider; wait at most `timeout` seconds for the answer."""
        path = f"/providers/{provider_id}?worker_id={worker_id}"
        self._send("DELETE", path, read_timeout=timeout)

    def claim_read(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None
    ) -> tuple[providers.ProviderClaimResponse, int]:
        """Claim a read; return the answer and the seconds of waiting that the server agreed to."""
        body = providers.ProviderClaimRequest(worker_id=worker_id, claim_id=claim_id)
        response = self._send("POST", "/providers/requests/claim", body, wait=wait)
        return _read(providers.ProviderClaimResponse, response), _applied(response)

    def answer(
        self, provider_id: UUID, content: Iterable[bytes] | BaseModel, headers: Mapping[str, str]
    ) -> None:
        """Send what a read came to: its bytes, or the `ProviderError`."""
        self._send("POST", f"/providers/{provider_id}/results", content, headers=headers)

    def data(
        self, room_id: str, full_name: str, query: Sequence[tuple[str, str]], wait: int
    ) -> tuple[bytes, str]:
        """Read from a provider; return the bytes and their content type."""
        path = f"/rooms/{quoted(room_id)}/providers/{quoted(full_name)}"
        if query:
            path = f"{path}?{urlencode(query)}"
        response = self._send("GET", path, wait=wait, headers={"Prefer": f"wait={wait}"})
        return response.content, response.headers.get("Content-Type", "")

    def report(self, task_id: str, update: messages.TaskUpdateRequest) -> messages.TaskResponse:
        """Move a task."""
        return _read(messages.TaskResponse, self._send("PATCH", f"/tasks/{quoted(task_id)}", update))

    def act(
        self,
        task_id: str,
        action: str,
        request: messages.TaskActionRequest | None = None,
        timeout: float | None = None,
    ) -> messages.TaskResponse:
        """Release, retry or fail a task by hand; wait at most `timeout` seconds for the answer."""
        body = request or messages.TaskActionRequest()
        response = self._send("POST", f"/tasks/{quoted(task_id)}/{action}", body, read_timeout=timeout)
        return _read(messages.TaskResponse, response)

    def order(self, method: str, path: str, model: type[Model], request: BaseModel | None = None) -> Model:
        """Change what is at `path`, whose parts must be quoted; return the answer."""
        return _read(model, self._send(method, path, request))

    def submit(
        self, room_id: str, full_name: str, payload: dict[str, Any], **wishes: Any
    ) -> messages.TaskResponse:
        """Call a job. Raises ValueError for `wishes` that do not fit."""
        body = checked(messages.TaskSubmitRequest, {"payload": payload, **wishes})
        path = f"/rooms/{quoted(room_id)}/tasks/{quoted(full_name)}"
        return _read(messages.TaskResponse, self._send("POST", path, body))

    def task(self, task_id: str, wait: int = 0) -> tuple[messages.TaskResponse, int]:
        """Return a task, and the seconds the server agreed to wait for its end."""
        response = self._send("GET", f"/tasks/{quoted(task_id)}", wait=wait)
        return _read(messages.TaskResponse, response), _applied(response)

    def read(self, path: str, model: type[Model], **query: Any) -> Model:
        """Return what is at `path`, whose parts must be quoted."""
        params = {key: value for key, value in query.items() if value is not None}
        return _read(model, self._send("GET", str(httpx.URL(path, params=params))))

    def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | Iterable[bytes] | None = None,
        *,
        wait: int = 0,
        read_timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
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
        response = self.api.http.request(
            method,
            f"{self.api.base_url.rstrip('/')}{API_PREFIX}{path}",
            content=content,
            headers=headers,
            extensions={"timeout": self._timeouts(wait, read_timeout)},
        )
        self._check(response)
        return response

    def _timeouts(self, wait: int, read: float | None) -> dict[str, float | None]:
        """Return the host's own time limits; no answer may take for ever, and a long-poll takes its wait."""
        limits = self.api.http.timeout.as_dict()
        answer = limits.get("read") or _ANSWER_SECONDS
        if wait:
            answer = max(answer, wait + _POLL_MARGIN_SECONDS)
        return {**limits, "read": min(answer, read) if read else answer}

    def _check(self, response: httpx.Response) -> None:
        problem = None if response.is_success else read_problem(response)
        try:
            self.api.raise_for_status(response)
        except ProblemException:
            raise
        except Exception as error:
            raise error from problem
        if problem is not None:
            raise problem


def _read(model: type[Model], response: httpx.Response) -> Model:
    return model.model_validate_json(response.content)


def _applied(response: httpx.Response) -> int:
    name, _, value = response.headers.get("Preference-Applied", "").partition("=")
    return int(value) if name.strip() == "wait" and value.strip().isdigit() else 0


def quoted(text: str) -> str:
    """Return `text` as one part of a path, also where it is ``.`` or ``..``."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
