"""Submit tasks, follow them, and send provider requests; none of it needs a worker."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from pydantic_core import to_jsonable_python

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.flows import send_once, wait
from zndraw_joblib.client.queue import Submitter
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.results import ResultReader
from zndraw_joblib.client.retry import RequestBackoff, RetryRule, describe, is_unreachable, problem_of
from zndraw_joblib.client.submits import Submits
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.history import TaskExplanation, TaskHistory
from zndraw_joblib.wire.messages import JobSummary, PaginatedResponse, TaskResponse
from zndraw_joblib.wire.names import DEFAULT_ROOM, GLOBAL, parse_provider_name
from zndraw_joblib.wire.operators import WorkerSummary
from zndraw_joblib.wire.problems import ProviderFailed, ProviderNotConnected, ProviderTimeout
from zndraw_joblib.wire.providers import ProviderResponse
from zndraw_joblib.wire.statuses import TaskStatus

log = logging.getLogger(__name__)
T = TypeVar("T")

_LONGEST_PROVIDER_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The result of a provider request: its bytes and their content type."""

    content: bytes = field(repr=False)
    content_type: str

    def json(self) -> Any:
        """Return the bytes as JSON. Raises ValueError if they are not JSON."""
        return json.loads(self.content)


ReadResult = ProviderResult


class JobClient(Submitter, ResultReader):
    """A client that submits tasks and sends provider requests. Thread-safe.

    A request that changes something has an `Idempotency-Key`. The client repeats it with the same key for 30
    seconds and at least once while it cannot reach the server or the response is lost. A refusal of the
    application that hosts the server, such as a 401 for a wrong token, is final after three repeats.
    """

    def __init__(self, rest: TaskRest, rule: RetryRule | None = None) -> None:
        retry_rule = rule or RetryRule()
        submits = Submits(retry_rule, room_of=self._job_room_of, url=lambda: rest.api.base_url)
        super().__init__(rest, retry_rule, submits)

    def get_task(self, task_id: str | UUID) -> TaskResponse:
        """Return a task."""
        return self._rest.send(ops.GET_TASK, task_id=task_id)

    def history(self, task_id: str | UUID) -> TaskHistory:
        """Return all transitions of a task."""
        return self._rest.send(ops.GET_TASK_HISTORY, task_id=task_id)

    def explain(self, task_id: str | UUID) -> TaskExplanation:
        """Return why a task has its status."""
        return self._rest.send(ops.EXPLAIN_TASK, task_id=task_id)

    def retry(self, task_id: str | UUID) -> TaskResponse:
        """Put a failed or cancelled task into its queue again."""
        return self._send_once(
            f"Retrying task {task_id}", lambda key: calls.act_on_task(ops.RETRY_TASK, str(task_id), key=key)
        )

    def wait_for(self, task_id: str | UUID, timeout: float | None = None) -> TaskResponse:
        """Return the task once it is completed, failed or cancelled; keep waiting while the server restarts.

        Raises TimeoutError after `timeout` seconds.
        """
        return self._rest.run(wait(str(task_id), timeout, self._rule))

    def read_provider(
        self,
        full_name: str,
        params: Mapping[str, Any] | None = None,
        *,
        room: str | None = None,
        timeout: float = 30.0,
    ) -> ProviderResult:
        """Send a provider request from `room`, by default the provider's own room; return its result.

        A list in `params` is sent as a repeated parameter; None is left out. The request is repeated while
        the provider has no result yet, or the server cannot be reached. After `timeout` seconds this raises
        `ProviderTimeout`, a TimeoutError, or the last error of the connection. It raises `ProviderFailed`
        when the provider failed, `InvalidRequest` for invalid parameters, and `ProviderNotConnected` when no
        worker is connected for the provider.
        """
        query = _query_of(params or {})
        room = room or parse_provider_name(full_name).room_id
        deadline = time.monotonic() + timeout
        backoff = RequestBackoff(_LONGEST_PROVIDER_PAUSE_SECONDS)
        while True:
            seconds = max(0.0, deadline - time.monotonic())
            call = calls.read_provider(room, full_name, query, round(seconds))
            try:
                return ProviderResult(*self._rest.send_call(call))
            except Exception as error:
                problem = problem_of(error)
                pause = backoff.after(error)
                has_failed = isinstance(problem, ProviderFailed | ProviderNotConnected)
                if has_failed or not is_unreachable(error) or time.monotonic() + pause > deadline:
                    raise (problem if isinstance(problem, ProviderTimeout) else error) from error.__cause__
                log.info("Provider %s: %s; asking again in %.1f s", full_name, describe(error), pause)
            time.sleep(pause)

    def providers(
        self, room: str = GLOBAL, *, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[ProviderResponse]:
        """Return a page of the providers that a room can use."""
        return self._rest.send(ops.LIST_PROVIDERS, query={"limit": limit, "offset": offset}, room_id=room)

    def jobs(
        self, room: str = DEFAULT_ROOM, *, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[JobSummary]:
        """Return a page of the jobs that a room can use."""
        return self._rest.send(ops.LIST_JOBS, query={"limit": limit, "offset": offset}, room_id=room)

    def tasks(  # noqa: PLR0913 - one keyword for each filter
        self,
        room: str,
        *,
        status: TaskStatus | None = None,
        tag: str | None = None,
        parent: str | UUID | None = None,
        root: str | UUID | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> PaginatedResponse[TaskResponse]:
        """Return a page of a room's tasks, newest first; with a tag, a parent or a root those that match."""
        query: dict[str, Any] = {"status": status, "tag": tag, "parent": parent, "root": root}
        query |= {"limit": limit, "offset": offset}
        return self._rest.send(ops.LIST_TASKS, query=query, room_id=room)

    def workers(
        self, room: str | None = None, *, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[WorkerSummary]:
        """Return a page of all workers, or of those that serve `room`."""
        query = {"limit": limit, "offset": offset}
        if room is None:
            return self._rest.send(ops.LIST_WORKERS, query=query)
        return self._rest.send(ops.LIST_ROOM_WORKERS, query=query, room_id=room)

    def _send_once(self, what: str, make: Callable[[str], Call[T]], key: str | None = None) -> T:
        """Return the result of the request that `make` returns for a key; repeat it while it is lost."""
        return self._rest.run(send_once(what, make, key, self._rule))

    def _job_room_of(self, cls: type[Any]) -> str | None:
        """Return the room of the job of a class, None if the job has to be looked up."""
        return None


def _query_of(params: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the parameters of a provider request as a query. Raises ValueError for nested values."""
    query: dict[str, list[str]] = {}
    for name, value in to_jsonable_python(dict(params)).items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict | list) for item in values):
            raise ValueError(
                f"The parameter {name!r} is nested: it must be a string, a number or a list of them"
            )
        query[name] = [
            item if isinstance(item, str) else json.dumps(item) for item in values if item is not None
        ]
    return query
