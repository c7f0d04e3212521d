"""Call jobs and look at what became of them; read from providers."""

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic_core import to_jsonable_python

from zndraw_joblib.contract.messages import (
    JobSummary,
    PaginatedResponse,
    TaskExplanation,
    TaskHistory,
    TaskResponse,
    WorkerSummary,
)
from zndraw_joblib.contract.names import GLOBAL, JobName, parse_job_name, parse_provider_name
from zndraw_joblib.contract.problems import (
    ProblemException,
    ProviderFailed,
    ProviderNotConnected,
    ProviderTimeout,
)
from zndraw_joblib.contract.providers import ProviderResponse
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.worker.remote import Remote, quoted
from zndraw_joblib.worker.retry import Backoff, describe, problem_of, unreachable

log = logging.getLogger(__name__)

_WAIT_SECONDS = 20.0
_UNHEARD_PAUSE_SECONDS = 0.25
_MOST_READ_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a provider gave: its bytes, and what kind of bytes they are."""

    content: bytes = field(repr=False)
    content_type: str

    def json(self) -> Any:
        """Return the bytes as JSON. Raises ValueError where they are none."""
        return json.loads(self.content)


class Caller:
    """What a caller of jobs, and a reader, can do; it needs no worker. Thread-safe."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

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
    ) -> str:
        """Call a job from `room`; return the task's id.

        `job` is a full name, which `payload` goes with, or an instance of an extension, which is its own
        payload. An extension's job is looked for in `job_room`, else where this manager registered its
        class, else in ``@global``. Without `room` the task belongs to the job's own room. `priority` and
        `max_attempts` take the place of the job's own; the task waits until `run_at` or for
        `delay_seconds`, and fails unless it is claimed within `expires_in_seconds`. Raises ValueError for
        what does not fit, and for a payload that JSON cannot say.
        """
        if isinstance(job, str):
            name = parse_job_name(job)
            body = to_jsonable_python(dict(payload or {}))
        else:
            if payload is not None:
                raise TypeError("An extension is its own payload")
            name = name_of(type(job), job_room or self._home_of(type(job)))
            body = job.model_dump(mode="json")
        said = {
            "priority": priority,
            "run_at": run_at,
            "delay_seconds": delay_seconds,
            "expires_in_seconds": expires_in_seconds,
            "max_attempts": max_attempts,
        }
        wishes = {key: value for key, value in said.items() if value is not None}
        return str(self._remote.submit(room or name.room_id, str(name), body, **wishes).id)

    def get_task(self, task_id: str | UUID) -> TaskResponse:
        """Return a task as it stands."""
        return self._remote.task(str(task_id))[0]

    def history(self, task_id: str | UUID) -> TaskHistory:
        """Return all that has happened to a task."""
        return self._remote.read(f"/tasks/{quoted(str(task_id))}/history", TaskHistory)

    def explain(self, task_id: str | UUID) -> TaskExplanation:
        """Return why a task is where it is."""
        return self._remote.read(f"/tasks/{quoted(str(task_id))}/explain", TaskExplanation)

    def retry(self, task_id: str | UUID) -> TaskResponse:
        """Put a task that ended without success into its queue once more."""
        return self._remote.act(str(task_id), "retry")

    def wait_for(self, task_id: str | UUID, timeout: float | None = None) -> TaskResponse:
        """Return the task once it is completed, failed or cancelled; a server that restarts is waited for.

        Raises TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        backoff = Backoff()
        while True:
            left = max(0.0, deadline - time.monotonic())
            task, pause = self._look_at(str(task_id), min(left, _WAIT_SECONDS), backoff)
            if task is not None and task.status in TERMINAL:
                return task
            left = deadline - time.monotonic()
            if left <= 0:
                state = task.status if task else "out of reach"
                raise TimeoutError(f"Task {task_id} is {state} after {timeout:g} s")
            time.sleep(min(pause, left))

    def read_provider(
        self,
        full_name: str,
        params: Mapping[str, Any] | None = None,
        *,
        room: str | None = None,
        timeout: float = 30.0,
    ) -> ReadResult:
        """Read from a provider, from `room`, or else from the provider's own.

        Of `params`, a list is sent as a parameter that is repeated, and None not at all. While the provider
        has no answer, or the server cannot be reached, it is asked again; after `timeout` seconds
        `ProviderTimeout`, a TimeoutError, is raised, or what kept the server from answering. A read that
        failed is `ProviderFailed`, parameters that do not fit `InvalidRequest`, a provider without anybody
        connected `ProviderNotConnected`.
        """
        query = list(_query(params or {}))
        room = room or parse_provider_name(full_name).room_id
        deadline = time.monotonic() + timeout
        backoff = Backoff(_MOST_READ_PAUSE_SECONDS)
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return ReadResult(*self._remote.data(room, full_name, query, round(left)))
            except Exception as error:
                problem = problem_of(error)
                pause = backoff.after(error)
                if _settles(problem, error) or time.monotonic() + pause > deadline:
                    raise _timeout(problem) or error from error.__cause__
                log.info("Reading from %s: %s; asking again in %.1f s", full_name, describe(error), pause)
            time.sleep(pause)

    def providers(
        self, room: str = GLOBAL, *, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[ProviderResponse]:
        """Return a page of the providers that can be read from a room."""
        path = f"/rooms/{quoted(room)}/providers"
        return self._remote.read(path, PaginatedResponse[ProviderResponse], limit=limit, offset=offset)

    def jobs(self, room: str = GLOBAL, *, limit: int = 50, offset: int = 0) -> PaginatedResponse[JobSummary]:
        """Return a page of the jobs that can be called from a room."""
        path = f"/rooms/{quoted(room)}/jobs"
        return self._remote.read(path, PaginatedResponse[JobSummary], limit=limit, offset=offset)

    def tasks(
        self, room: str, *, status: TaskStatus | None = None, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[TaskResponse]:
        """Return a page of a room's tasks, newest first."""
        query = {"status": status, "limit": limit, "offset": offset}
        return self._remote.read(f"/rooms/{quoted(room)}/tasks", PaginatedResponse[TaskResponse], **query)

    def workers(
        self, room: str | None = None, *, limit: int = 50, offset: int = 0
    ) -> PaginatedResponse[WorkerSummary]:
        """Return a page of the workers, of those that serve a room if one is given."""
        path = "/workers" if room is None else f"/rooms/{quoted(room)}/workers"
        return self._remote.read(path, PaginatedResponse[WorkerSummary], limit=limit, offset=offset)

    def _home_of(self, cls: type[Any]) -> str:
        """Return the room whose job a class is."""
        return GLOBAL

    def _look_at(self, task_id: str, wait: float, backoff: Backoff) -> tuple[TaskResponse | None, float]:
        """Return the task and the pause before the next look, none where the server did the waiting."""
        began = time.monotonic()
        try:
            task, applied = self._remote.task(task_id, round(wait))
        except Exception as error:
            if not unreachable(error):
                raise
            pause = backoff.after(error)
            log.warning("Waiting for task %s: %s; trying again in %.1f s", task_id, describe(error), pause)
            return None, pause
        backoff.reset()
        heard = applied > 0 and time.monotonic() - began > applied / 2
        return task, 0.0 if heard else _UNHEARD_PAUSE_SECONDS


def _query(params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the parameters of a read as they stand in an address. Raises ValueError for what cannot."""
    for name, value in to_jsonable_python(dict(params)).items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict | list):
                raise ValueError(f"The parameter {name!r} must be a text, a number or a list of them")
            if one is not None:
                yield name, one if isinstance(one, str) else json.dumps(one)


def _settles(problem: ProblemException | None, error: Exception) -> bool:
    """Tell whether an error is the answer to a read."""
    return isinstance(problem, ProviderFailed | ProviderNotConnected) or not unreachable(error)


def _timeout(problem: ProblemException | None) -> ProviderTimeout | None:
    return problem if isinstance(problem, ProviderTimeout) else None


def name_of(cls: type[Any], room: str) -> JobName:
    """Return the name of the job that a class is in a room."""
    return JobName(room, category_of(cls), cls.__name__)


def category_of(cls: type[Any]) -> str:
    """Return the category of a class, be it a string or an enum's member."""
    return str(getattr(cls.category, "value", cls.category))
