"""The REST operations of workers, one method each."""

import json
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlencode
from uuid import UUID

import httpx
from pydantic import BaseModel

from zndraw_joblib.client.calls import MINIMAL_JSON, applied_wait, check_empty, parse, quoted
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import UnexpectedResponse
from zndraw_joblib.jobs.results import Content
from zndraw_joblib.wire import messages, progress, providers
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.problems import ProblemException, problem_for

_CLIENT_ERROR = 400


class RestApi(TaskRest):
    """The operations of tasks and those of workers.

    If a method takes an `operation`, equal requests of one operation have the same key, and a changed request
    has another key.
    """

    def create_worker(
        self, operation: UUID | None = None, info: WorkerInfo | None = None
    ) -> messages.WorkerResponse:
        """Create a worker without jobs."""
        return parse(messages.WorkerResponse, self.request("POST", "/workers", info, key=operation))

    def heartbeat(
        self, worker_id: UUID, request: messages.HeartbeatRequest, timeout: float
    ) -> messages.WorkerResponse:
        """Send a heartbeat."""
        response = self.request("PATCH", f"/workers/{worker_id}", request, read_timeout=timeout)
        return parse(messages.WorkerResponse, response)

    def remove_worker(self, worker_id: UUID, timeout: float) -> None:
        """Remove the worker."""
        check_empty(self.request("DELETE", f"/workers/{worker_id}", read_timeout=timeout))

    def register(
        self, room_id: str, request: messages.JobRegisterRequest, operation: UUID | None = None
    ) -> messages.JobResponse:
        """Register a job and link the worker to it."""
        response = self.request("PUT", f"/rooms/{quoted(room_id)}/jobs", request, key=operation)
        return parse(messages.JobResponse, response)

    def unregister(self, worker_id: UUID, full_name: str, timeout: float | None = None) -> None:
        """Unlink the worker from a job."""
        path = f"/workers/{worker_id}/jobs/{quoted(full_name)}"
        check_empty(self.request("DELETE", path, read_timeout=timeout))

    def claim(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None, most: int | None = None
    ) -> tuple[messages.TaskClaimResponse, int]:
        """Claim a task, or up to `most`; return the response and how many seconds the server agreed to wait.

        A server that cannot claim several returns one.
        """
        body = messages.TaskClaimRequest(worker_id=worker_id, claim_id=claim_id)
        if most is not None:
            body.max = most
        response = self.request("POST", "/tasks/claim", body, wait=wait)
        return parse(messages.TaskClaimResponse, response, "task", "tasks"), applied_wait(response)

    def report_tasks(self, worker_id: UUID, reports: Sequence[bytes]) -> list[ProblemException | None]:
        """Send reports, each a `TaskReport` as JSON; return the problem of each, None for a success."""
        body = b'{"worker_id":"%s","reports":[%s]}' % (str(worker_id).encode(), b",".join(reports))
        response = self.request("POST", "/tasks/report", body, headers=MINIMAL_JSON)
        results = _results_of(response)
        if results is None or len(results) != len(reports):
            raise UnexpectedResponse(response)
        return results

    def register_provider(
        self, room_id: str, request: providers.ProviderRegisterRequest, operation: UUID | None = None
    ) -> providers.ProviderResponse:
        """Register a provider and link the worker to it."""
        response = self.request("PUT", f"/rooms/{quoted(room_id)}/providers", request, key=operation)
        return parse(providers.ProviderResponse, response)

    def remove_provider(self, provider_id: UUID, worker_id: UUID, timeout: float | None = None) -> None:
        """Unlink the worker from a provider."""
        path = f"/providers/{provider_id}?worker_id={worker_id}"
        check_empty(self.request("DELETE", path, read_timeout=timeout))

    def claim_provider_request(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None
    ) -> tuple[providers.ProviderClaimResponse, int]:
        """Claim a provider request; return the response and how many seconds the server agreed to wait."""
        body = providers.ProviderClaimRequest(worker_id=worker_id, claim_id=claim_id)
        response = self.request("POST", "/providers/requests/claim", body, wait=wait)
        return parse(providers.ProviderClaimResponse, response, "request"), applied_wait(response)

    def upload_result(
        self, provider_id: UUID, content: Iterable[bytes] | BaseModel, headers: Mapping[str, str]
    ) -> None:
        """Upload the result of a provider request: its bytes, or a `ProviderError`."""
        check_empty(self.request("POST", f"/providers/{provider_id}/results", content, headers=headers))

    def upload_task_result(
        self, task_id: str, attempt: int, content: Content, pieces: Iterable[bytes]
    ) -> progress.StoredResult:
        """Upload the result of an attempt, as the `pieces` of the content."""
        query = {"attempt": attempt} | ({"filename": content.filename} if content.filename else {})
        headers = {"Content-Type": content.content_type, "Content-Length": str(content.size)}
        path = f"/tasks/{quoted(task_id)}/result?{urlencode(query)}"
        return parse(progress.StoredResult, self.request("PUT", path, pieces, headers=headers))


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
