"""The REST operations of workers, one method each."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

from zndraw_joblib.client.calls import (
    MINIMAL_JSON,
    Body,
    Call,
    applied_wait,
    call_reading,
    check_empty,
    content_of,
    parse,
)
from zndraw_joblib.client.connection import ApiManager
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import UnexpectedResponse, describe, is_transient, problem_of, status_of
from zndraw_joblib.jobs.outputs import UnusableResult, with_parts
from zndraw_joblib.jobs.results import Content, plain_content
from zndraw_joblib.wire import messages, progress, providers
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GROUP_VALUE, with_results
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.operations import Operation
from zndraw_joblib.wire.problems import ProblemException, ResultExpired, problem_for
from zndraw_joblib.wire.successors import RESULT_VALUE, SUCCESSOR

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
T = TypeVar("T")

_CLIENT_ERROR, _TOO_MANY_REQUESTS = 400, 429
_MAX_TRIES = 8
_REFERENCES = tuple(f'"{name}"'.encode() for name in (GROUP_VALUE, RESULT_VALUE))


class RestApi(TaskRest):
    """The operations of tasks and those of workers.

    If a method takes an `operation`, equal requests of one operation have the same key, and a changed request
    has another key. The tokens of claimed tasks are valid for `token_seconds`.
    """

    def __init__(self, api: ApiManager, token_seconds: int | None = None) -> None:
        super().__init__(api)
        self.token_seconds = token_seconds
        # Called after each request with why it failed, or None.
        self.on_response: Callable[[Exception | None], None] = lambda error: None
        # How often the server could not read a result for a task.
        self._tries: dict[UUID, int] = {}

    def send_call(self, call: Call[T]) -> T:
        """Send a request and return its result."""
        try:
            result = super().send_call(call)
        except Exception as error:
            self.on_response(error)
            raise
        self.on_response(None)
        return result

    def _request(self, operation: Operation[Any], body: Body = None, **options: Any) -> "httpx.Response":
        return self.send_call(call_reading(operation, lambda response: response, body, **options))

    def _check(self, operation: Operation[Any], body: Body = None, **options: Any) -> None:
        self.send_call(call_reading(operation, check_empty, body, **options))

    def create_worker(
        self, operation: UUID | None = None, info: WorkerInfo | None = None
    ) -> messages.WorkerResponse:
        """Create a worker without jobs."""
        return self.send(ops.CREATE_WORKER, info, key=operation)

    def group_results(self, group_id: UUID, task_id: str) -> list[Any]:
        """Return the results of a group for the task that it has submitted at its end.

        In the order of submission; None for a task that has not completed, or whose result is stored bytes.
        """
        query = {"on_end_task": task_id}
        response = self._request(ops.READ_GROUP_RESULTS, query=query, group_id=group_id)
        return [json.loads(line)["result"] for line in response.content.splitlines()]

    def predecessor_result(self, predecessor: UUID, task_id: UUID) -> Any:
        """Return the result of a task as JSON, for one that has waited for it. Raises `UnusableResult`.

        Raises `_NotVouched` if the server does not say that it has: an older one would return any result that
        the worker may read. A result that the server cannot read is one after some tries, so that other tasks
        go on.
        """
        query = {"successor": task_id}

        def read(response: "httpx.Response") -> tuple[bytes, str] | None:
            return content_of(response) if response.headers.get(SUCCESSOR) == str(task_id) else None

        call = call_reading(ops.READ_TASK_RESULT, read, query=query, task_id=predecessor)
        try:
            result = self.send_call(call)
        except Exception as error:
            # A 429 says that the user has enough downloads under way, not that the result is unreadable.
            is_refused = is_transient(error) and status_of(error) not in {None, _TOO_MANY_REQUESTS}
            tries = self._tries.pop(task_id, 0) + is_refused
            if isinstance(problem_of(error), ResultExpired) or tries >= _MAX_TRIES:
                raise UnusableResult(f"The result of task {predecessor}: {describe(error)}") from error
            if is_refused:
                self._tries[task_id] = tries
            raise
        self._tries.pop(task_id, None)
        if result is None:
            raise _NotVouched(f"task {predecessor}: the server is an older release, without after; update it")
        return plain_content(*result)

    def heartbeat(
        self, worker_id: UUID, request: messages.HeartbeatRequest, timeout: float
    ) -> messages.WorkerResponse:
        """Send a heartbeat."""
        return self.send(ops.SEND_HEARTBEAT, request, read_timeout=timeout, worker_id=worker_id)

    def remove_worker(self, worker_id: UUID, timeout: float) -> None:
        """Remove the worker."""
        self._check(ops.REMOVE_WORKER, read_timeout=timeout, worker_id=worker_id)

    def register(
        self, room_id: str, request: messages.JobRegisterRequest, operation: UUID | None = None
    ) -> messages.JobResponse:
        """Register a job and link the worker to it."""
        return self.send(ops.REGISTER_JOB, request, key=operation, room_id=room_id)

    def unregister(self, worker_id: UUID, full_name: str, timeout: float | None = None) -> None:
        """Unlink the worker from a job."""
        options: dict[str, Any] = {"read_timeout": timeout, "worker_id": worker_id, "name": full_name}
        self._check(ops.REMOVE_JOB_FROM_WORKER, **options)

    def claim(
        self,
        worker_id: UUID,
        wait: int = 0,
        claim_id: UUID | None = None,
        limit: int | None = None,
        batches: Sequence[messages.ClaimBatch] = (),
        remaining: float | None = None,
    ) -> tuple[messages.TaskClaimResponse, int]:
        """Claim a task, up to `limit`, or a batch; return how many seconds the server agreed to wait, too.

        A server that cannot claim several returns one. With `remaining` it returns only tasks that are
        expected to end in that time.
        """
        body = messages.TaskClaimRequest(
            worker_id=worker_id, claim_id=claim_id, remaining_seconds=remaining, tokens=True
        )
        body.token_seconds = self.token_seconds
        if limit is not None:
            body.max = limit
        if batches:
            body.batches = list(batches)
        response = self._request(ops.CLAIM_TASK, body, wait=wait)
        claimed = parse(messages.TaskClaimResponse, response, "task", "tasks")
        if any(name in response.content for name in _REFERENCES):
            for task in filter(None, (claimed.task, *claimed.tasks)):
                self._fill(task)
        return claimed, applied_wait(response)

    def _fill(self, task: messages.TaskResponse) -> None:
        """Read the results that a payload refers to. A reference that is refused stays."""
        try:
            payload = with_results(task.payload, lambda group: self.group_results(group, str(task.id)))
            read = cache(lambda predecessor: self.predecessor_result(predecessor, task.id))
            task.payload = with_parts(payload, read)
        except Exception as error:
            is_refused = status_of(error) is not None and not is_transient(error)
            if not (is_refused or isinstance(error, _NotVouched)):
                raise  # the claim is repeated, and gets the same tasks
            log.warning("The results are not for task %s: %s", task.id, describe(error))

    def report_tasks(
        self, worker_id: UUID, reports: Sequence[bytes], timeout: float | None = None
    ) -> list[ProblemException | None]:
        """Send reports, each a `TaskReport` as JSON; return the problem of each, None for a success."""
        body = b'{"worker_id":"%s","reports":[%s]}' % (str(worker_id).encode(), b",".join(reports))
        response = self._request(ops.REPORT_TASKS, body, headers=MINIMAL_JSON, read_timeout=timeout)
        results = _results_of(response)
        if results is None or len(results) != len(reports):
            raise UnexpectedResponse(response)
        return results

    def register_provider(
        self, room_id: str, request: providers.ProviderRegisterRequest, operation: UUID | None = None
    ) -> providers.ProviderResponse:
        """Register a provider and link the worker to it."""
        return self.send(ops.REGISTER_PROVIDER, request, key=operation, room_id=room_id)

    def remove_provider(self, provider_id: UUID, worker_id: UUID, timeout: float | None = None) -> None:
        """Unlink the worker from a provider."""
        query = {"worker_id": worker_id}
        options: dict[str, Any] = {"query": query, "read_timeout": timeout, "provider_id": provider_id}
        self._check(ops.REMOVE_PROVIDER, **options)

    def claim_provider_request(
        self, worker_id: UUID, wait: int = 0, claim_id: UUID | None = None
    ) -> tuple[providers.ProviderClaimResponse, int]:
        """Claim a provider request; return the response and how many seconds the server agreed to wait."""
        body = providers.ProviderClaimRequest(worker_id=worker_id, claim_id=claim_id)
        response = self._request(ops.CLAIM_PROVIDER_REQUEST, body, wait=wait)
        return parse(providers.ProviderClaimResponse, response, "request"), applied_wait(response)

    def upload_result(
        self, provider_id: UUID, content: Iterable[bytes] | BaseModel, headers: Mapping[str, str]
    ) -> None:
        """Upload the result of a provider request: its bytes, or a `ProviderError`."""
        options = {"headers": headers, "provider_id": provider_id}
        self._check(ops.UPLOAD_PROVIDER_RESULT, content, **options)

    def upload_task_result(
        self, task_id: str, attempt: int, content: Content, pieces: Iterable[bytes]
    ) -> progress.StoredResult:
        """Upload the result of an attempt, as the `pieces` of the content."""
        query = {"attempt": attempt} | ({"filename": content.filename} if content.filename else {})
        headers = {"Content-Type": content.content_type, "Content-Length": str(content.size)}
        return self.send(ops.UPLOAD_TASK_RESULT, pieces, query=query, headers=headers, task_id=task_id)


class _NotVouched(Exception):
    """A server does not say that a task has waited for another one."""


def _results_of(response: "httpx.Response") -> list[ProblemException | None] | None:
    """Return the problem or the success of each item of a `BatchResponse`, None if it is none."""
    try:
        items = json.loads(response.content)["results"]
        return [
            None if item["status"] < _CLIENT_ERROR else problem_for(item["status"], item["problem"])
            for item in items
        ]
    except (LookupError, TypeError, ValueError):
        return None
