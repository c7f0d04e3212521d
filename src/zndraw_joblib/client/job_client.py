"""Submit tasks, follow them, and send provider requests; none of it needs a worker."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar, overload
from uuid import UUID, uuid4, uuid5

from pydantic_core import to_jsonable_python

from zndraw_joblib.client.batches import Chunk, NewTask, chunks, one_chunk, task_body
from zndraw_joblib.client.rest import quoted
from zndraw_joblib.client.result_reader import ResultReader
from zndraw_joblib.client.retry import (
    RequestBackoff,
    describe,
    is_refusal_of_host,
    is_refused,
    is_repeatable,
    is_unreachable,
    problem_of,
    retry,
)
from zndraw_joblib.contract import codecs
from zndraw_joblib.contract.extensions import check_task, job_name_of, job_room_of
from zndraw_joblib.contract.history import TaskExplanation, TaskHistory
from zndraw_joblib.contract.idempotency import format_key
from zndraw_joblib.contract.messages import JobSummary, PaginatedResponse, TaskResponse
from zndraw_joblib.contract.names import GLOBAL, JobName, parse_job_name, parse_provider_name
from zndraw_joblib.contract.operations import WorkerSummary
from zndraw_joblib.contract.problems import (
    ProblemException,
    ProviderFailed,
    ProviderNotConnected,
    ProviderTimeout,
)
from zndraw_joblib.contract.providers import ProviderResponse
from zndraw_joblib.contract.status import TERMINAL, TaskStatus

log = logging.getLogger(__name__)
T = TypeVar("T")

_WAIT_SECONDS, _POLL_PAUSE_SECONDS = 20.0, 0.25
# Takes the seconds to wait for a change of a task; returns it, and how many the server agreed to wait.
ReadTask = Callable[[int], tuple[TaskResponse, int]]
_LONGEST_PROVIDER_PAUSE_SECONDS = 2.0
_MAX_REFUSALS = 4
# Each request of one call has a key of its own, made from the key of the call.
_CHUNKS = UUID("6f3d1c1e-6c1c-4f0e-9d7d-3a2b8f1e5c47")


@dataclass(frozen=True, slots=True)
class ProviderResult:
    """The result of a provider request: its bytes and their content type."""

    content: bytes = field(repr=False)
    content_type: str

    def json(self) -> Any:
        """Return the bytes as JSON. Raises ValueError if they are not JSON."""
        return json.loads(self.content)


ReadResult = ProviderResult


@dataclass(slots=True)
class Attempt:
    """The attempts to send a request; `was_sent` is false while no attempt has reached a server."""

    was_sent: bool = False
    refusals: int = 0

    def may_repeat(self, error: BaseException) -> bool:
        """Count a failed attempt; return whether another one with the same key should follow."""
        self.was_sent |= not (is_refused(error) or is_refusal_of_host(error))
        self.refusals += is_refusal_of_host(error)
        return is_repeatable(error) and self.refusals < _MAX_REFUSALS


class JobClient(ResultReader):
    """A client that submits tasks and sends provider requests. Thread-safe.

    A request that changes something has an `Idempotency-Key`. The client repeats it with the same key for 30
    seconds and at least once while it cannot reach the server or the response is lost. A refusal of the
    application that hosts the server, such as a 401 for a wrong token, is final after three repeats.
    """

    _retry_seconds = 30.0

    def submit(  # noqa: PLR0913 - the keywords are the contract's
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str | None = None,
        job_room: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay_seconds: float | None = None,
        expires_in_seconds: float | None = None,
        max_attempts: int | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Submit a task from `room`, by default the job's own room; return its id.

        `job` is the full name of a job, or an instance of an extension, which is its own payload. The job of
        an extension is looked up in `job_room`; without it, in the room where this manager registered the
        class, else in ``@global``. The other options are those of `TaskSubmitRequest`. Two submits with the
        same `idempotency_key`, also from different processes, submit one task; by default, each call has a
        new key. Raises ValueError for invalid options, and for a payload that is not JSON.
        """
        task = NewTask(
            job,
            payload,
            job_room=job_room,
            priority=priority,
            run_at=run_at,
            delay_seconds=delay_seconds,
            expires_in_seconds=expires_in_seconds,
            max_attempts=max_attempts,
        )
        name, body = self._name_and_payload(task)
        call = partial(self._rest.submit, room or name.room_id, str(name), body, **task.options())
        return str(self._send_once(f"Submitting {name}", call, idempotency_key).id)

    @overload
    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: Literal[True],
        idempotency_key: str | None = None,
    ) -> list[str]: ...

    @overload
    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> list[str | ProblemException]: ...

    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> Any:
        """Submit tasks in order; return for each its id, or the problem if it was refused.

        A task is an instance of an extension, or a `NewTask` with the arguments of `submit`; `room` is the
        room of each task without a room of its own. The tasks are sent in requests of up to 1,000 tasks. With
        `atomic`, all tasks (up to 1,000 of 8 MiB in all) are submitted or none, and the problem of the first
        refused one is raised.

        Raises ValueError for invalid options, and for a payload that is not JSON, before anything is sent; it
        names the task, like ``tasks.3``. If the server becomes unreachable in between, the error of the
        connection is raised: the call may be repeated with the same tasks and `idempotency_key`, and submits
        each task once.
        """
        bodies = [self._body_of(task, room, index) for index, task in enumerate(tasks)]
        if not bodies:
            return []
        requests = [one_chunk(bodies)] if atomic else chunks(bodies)
        return [result for results in self._submit_chunks(requests, idempotency_key) for result in results]

    def _body_of(self, task: Any, room: str | None, index: int) -> bytes:
        new = task if isinstance(task, NewTask) else NewTask(task)
        try:
            name, payload = self._name_and_payload(new)
            return task_body(new.room or room or name.room_id, str(name), payload, new.options())
        except TypeError as error:
            raise TypeError(f"tasks.{index}: {error}") from error
        except (ValueError, ProblemException) as error:
            raise ValueError(f"tasks.{index}: {error}") from error

    def _submit_chunks(
        self, requests: Iterable[Chunk], key: str | None = None
    ) -> Iterator[list[str | ProblemException]]:
        """Send requests one after the other, each repeated with its own key; yield the results of each."""
        used = str(uuid4()) if key is None else key
        format_key(used)
        done = 0
        for number, chunk in enumerate(requests):
            try:
                yield self._submit_chunk(chunk, used, number)
            except Exception as error:
                if done:
                    error.add_note(f"{done:,} tasks were sent before. {self._how_to_repeat(used)}")
                raise
            done += chunk.tasks

    def _submit_chunk(self, chunk: Chunk, key: str, number: int) -> list[str | ProblemException]:
        """Submit the tasks of a chunk; repeat it while the server is too busy for some of them."""
        results: list[UUID | ProblemException] = []

        def call(used: str) -> None:
            chunk_key = str(uuid5(_CHUNKS, f"{used} {number}"))
            results[:] = self._rest.submit_many(chunk.body, chunk_key, chunk.tasks)
            for result in results:
                if isinstance(result, ProblemException) and is_repeatable(result):
                    raise result

        try:
            self._send_once(f"Submitting {chunk.tasks:,} tasks", call, key)
        except ProblemException as problem:
            if not any(problem is result for result in results):
                raise
        return [str(result) if isinstance(result, UUID) else result for result in results]

    def _name_and_payload(self, task: NewTask) -> tuple[JobName, Any]:
        job, payload = task.job, task.payload
        if isinstance(job, str):
            return parse_job_name(job), codecs.plain(dict(payload or {}))
        if payload is not None:
            raise TypeError(
                f"submit() got a payload and an instance of {type(job).__name__}, which is its own payload: "
                "remove one of them"
            )
        check_task(job)
        name = job_name_of(type(job), task.job_room or self._job_room_of(type(job)))
        return name, codecs.payload_of(job)

    def get_task(self, task_id: str | UUID) -> TaskResponse:
        """Return a task."""
        return self._rest.get_task(str(task_id))[0]

    def history(self, task_id: str | UUID) -> TaskHistory:
        """Return all transitions of a task."""
        return self._rest.get(f"/tasks/{quoted(str(task_id))}/history", TaskHistory)

    def explain(self, task_id: str | UUID) -> TaskExplanation:
        """Return why a task has its status."""
        return self._rest.get(f"/tasks/{quoted(str(task_id))}/explain", TaskExplanation)

    def retry(self, task_id: str | UUID) -> TaskResponse:
        """Put a failed or cancelled task into its queue again."""
        return self._send_once(
            f"Retrying task {task_id}", lambda key: self._rest.act_on_task(str(task_id), "retry", key=key)
        )

    def wait_for(self, task_id: str | UUID, timeout: float | None = None) -> TaskResponse:
        """Return the task once it is completed, failed or cancelled; keep waiting while the server restarts.

        Raises TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        backoff = RequestBackoff()
        while True:
            left = max(0.0, deadline - time.monotonic())
            task, pause = self._poll_task(str(task_id), min(left, _WAIT_SECONDS), backoff)
            if task is not None and task.status in TERMINAL:
                return task
            left = deadline - time.monotonic()
            if left <= 0:
                status = task.status if task else "out of reach"
                raise TimeoutError(f"Task {task_id} is {status} after {timeout:g} s")
            time.sleep(min(pause, left))

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
        query = list(_query_of(params or {}))
        room = room or parse_provider_name(full_name).room_id
        deadline = time.monotonic() + timeout
        backoff = RequestBackoff(_LONGEST_PROVIDER_PAUSE_SECONDS)
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return ProviderResult(*self._rest.read_provider(room, full_name, query, round(left)))
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
        path = f"/rooms/{quoted(room)}/providers"
        return self._rest.get(path, PaginatedResponse[ProviderResponse], limit=limit, offset=offset)

    def jobs(self, room: str = GLOBAL, *, limit: int = 50, offset: int = 0) -> PaginatedResponse[JobSummary]:
        """Return a page of the jobs that a room can use."""
        path = f"/rooms/{quoted(room)}/jobs"
        return self._rest.get(path, PaginatedResponse[JobSummary], limit=limit, offset=offset)

    def tasks(
        self, room: str, *, status: TaskStatus | None = None, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[TaskResponse]:
        """Return a page of a room's tasks, newest first."""
        query = {"status": status, "limit": limit, "offset": offset}
        return self._rest.get(f"/rooms/{quoted(room)}/tasks", PaginatedResponse[TaskResponse], **query)

    def workers(
        self, room: str | None = None, *, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[WorkerSummary]:
        """Return a page of all workers, or of those that serve `room`."""
        path = "/workers" if room is None else f"/rooms/{quoted(room)}/workers"
        return self._rest.get(path, PaginatedResponse[WorkerSummary], limit=limit, offset=offset)

    def _send_once(self, what: str, call: Callable[[str], T], key: str | None = None) -> T:
        """Return what `call` returns for a key; repeat it with this key while it gets no response."""
        used = str(uuid4()) if key is None else key
        attempt = Attempt()
        try:
            return retry(
                partial(call, used),
                what,
                seconds=self._retry_seconds,
                stop=threading.Event(),
                is_retryable=lambda error: self._may_repeat(error, attempt),
            )
        except Exception as error:
            if attempt.was_sent and is_repeatable(error):
                error.add_note(f"The request may or may not have been applied. {self._how_to_repeat(used)}")
            raise

    def _may_repeat(self, error: BaseException, attempt: "Attempt") -> bool:
        return attempt.may_repeat(error)

    def _how_to_repeat(self, key: str) -> str:
        return f"Repeat the call with idempotency_key={key!r}"

    def _job_room_of(self, cls: type[Any]) -> str:
        """Return the room whose job a class is."""
        return job_room_of(cls)

    def _poll_task(
        self, task_id: str, wait: float, backoff: RequestBackoff, read: ReadTask | None = None
    ) -> tuple[TaskResponse | None, float]:
        """Return the task and the pause before the next request; 0 when the server itself waited."""
        began = time.monotonic()
        try:
            task, applied = (read or partial(self._rest.get_task, task_id))(round(wait))
        except Exception as error:
            if not is_unreachable(error):
                raise
            pause = backoff.after(error)
            log.warning(
                "Waiting for task %s: %s; trying again in %.1f s",
                task_id,
                describe(error),
                pause,
                extra={"task_id": str(task_id)},
            )
            return None, pause
        backoff.reset()
        server_waited = applied > 0 and time.monotonic() - began > applied / 2
        return task, 0.0 if server_waited else _POLL_PAUSE_SECONDS


def _query_of(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the parameters of a provider request as a query. Raises ValueError for nested values."""
    for name, value in to_jsonable_python(dict(params)).items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict | list):
                raise ValueError(
                    f"The parameter {name!r} is nested: it must be a string, a number or a list of them"
                )
            if one is not None:
                yield name, one if isinstance(one, str) else json.dumps(one)
