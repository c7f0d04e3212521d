"""The connection of the client commands to a server: URL, token and error messages."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import IO
from uuid import UUID

import httpx

from zndraw_joblib.cli import credentials
from zndraw_joblib.cli.errors import CommandError, UsageError
from zndraw_joblib.cli.operator_client import OperatorClient
from zndraw_joblib.client.api import Connection, connect
from zndraw_joblib.client.batches import chunks
from zndraw_joblib.client.job_client import Attempt, ReadTask
from zndraw_joblib.client.responses import UnexpectedResponse
from zndraw_joblib.client.rest import Download, Model, TaskRest, quoted
from zndraw_joblib.client.retry import BUSY, RequestBackoff, unexpected_response_of
from zndraw_joblib.contract.history import NumberedLine, TaskLog
from zndraw_joblib.contract.messages import (
    MAX_PAGE,
    JobResponse,
    JobSummary,
    SweeperMode,
    SweeperPreview,
    SweeperState,
    SweeperUpdate,
    TaskActionRequest,
    TaskResponse,
    TaskUpdateRequest,
    WorkerResponse,
)
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.problems import ProblemException, Unauthorized
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.contract.streams import TaskEvents

TOKEN_VARIABLE = "ZNDRAW_JOBLIB_TOKEN"  # noqa: S105 - the name of a variable
_MAX_DETAIL = 500
# Long enough for most tasks, short enough to show soon why a task waits.
_FIRST_STATE_SECONDS, _STATE_SECONDS = 1.0, 20.0


@dataclass(frozen=True, slots=True)
class Access:
    """A server's URL and the token for it; `source` is the variable or file that holds the token."""

    url: str
    token: str | None = field(repr=False)
    source: str


class AdminClient(OperatorClient):
    """A client with the requests of the commands.

    It repeats a request for 10 seconds and at least once while the response is lost, but not if it can reach
    no server at all.
    """

    _retry_seconds = 10.0

    def submit_bodies(self, bodies: Iterable[bytes], key: str) -> Iterator[list[str | ProblemException]]:
        """Submit tasks, each encoded by `task_body`; yield the ids or problems of each request."""
        return self._submit_chunks(chunks(bodies), key)

    def states(
        self, task_id: UUID, timeout: float | None, read: ReadTask | None = None
    ) -> Iterator[TaskResponse]:
        """Yield a task now or soon, after each request that `read` sends, and when it has ended; then stop.

        By default the task is requested every 20 s. It continues while the server restarts. Raises
        TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + (inf if timeout is None else timeout)
        backoff, wait = RequestBackoff(), _FIRST_STATE_SECONDS
        while True:
            left = max(0.0, deadline - time.monotonic())
            task, pause = self._poll_task(str(task_id), min(left, wait), backoff, read)
            if task is not None:
                yield task
                if task.status in TERMINAL:
                    return
                wait = _STATE_SECONDS
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            time.sleep(min(pause, left))

    def read_task(self, task_id: UUID, wait: int) -> tuple[TaskResponse, int]:
        """Return a task at its end, after `wait` seconds at most, and how long the server agreed to wait."""
        return self._rest.get_task(str(task_id), wait)

    def task_events(self, task_id: UUID, after: int | None, wait: int) -> tuple[TaskEvents, int]:
        """Return the next events of a task, and how many seconds the server agreed to wait for one."""
        return self._rest.task_events(str(task_id), after, wait)

    def log_parts(self, task_id: UUID, attempt: int | None, after: int) -> Iterator[list[NumberedLine]]:
        """Yield the lines of an attempt's log after a number, by default of the current or last attempt."""
        path, following = f"/tasks/{task_id}/log", after
        while True:
            part = self._rest.get(path, TaskLog, attempt=attempt, after=following)
            if part.lines:
                yield part.lines
            if part.next is None:
                return
            attempt, following = part.attempt, part.next

    def load_result(self, task_id: UUID, file: IO[bytes]) -> None:
        """Write the bytes of a task's result to a file; after an interruption, continue where it stopped."""
        load = partial(self._rest.load_task_result, str(task_id), Download(file))
        self._retry(load, f"Reading the result of task {task_id}")

    def cancel(self, task_id: UUID) -> TaskResponse:
        """Cancel a task."""
        update = TaskUpdateRequest(status=TaskStatus.CANCELLED)
        return self._send_once(
            f"Cancelling task {task_id}", lambda key: self._rest.report_task(str(task_id), update, key)
        )

    def release(self, task_id: UUID) -> TaskResponse:
        """Take a task from its worker and put it back into its queue."""
        return self._act(task_id, "release")

    def fail(self, task_id: UUID, reason: str | None) -> TaskResponse:
        """End a task as failed, without a retry."""
        return self._act(task_id, "fail", TaskActionRequest(error=reason) if reason else None)

    def drain(self, worker_id: UUID) -> WorkerResponse:
        """Ask a worker to finish its tasks and leave."""
        return self._post(f"/workers/{worker_id}/drain", WorkerResponse)

    def pause(self, job: JobName) -> JobResponse:
        """Stop handing out the tasks of a job."""
        return self._post(f"{_job_path(job)}/pause", JobResponse)

    def resume(self, job: JobName) -> JobResponse:
        """Hand out the tasks of a paused job again."""
        return self._post(f"{_job_path(job)}/resume", JobResponse)

    def sweeper(self, mode: SweeperMode | None = None) -> SweeperState:
        """Return the sweeper's state; change its mode first if one is given."""
        path = "/admin/sweeper"
        if mode is None:
            return self._rest.get(path, SweeperState)
        update = SweeperUpdate(mode=mode)
        return self._send_once(
            "Changing the mode", lambda key: self._rest.send("PATCH", path, SweeperState, update, key=key)
        )

    def preview(self) -> SweeperPreview:
        """Return what a cycle of the sweeper would change now."""
        return self._rest.get("/admin/sweeper/preview", SweeperPreview)

    def job(self, name: JobName) -> JobResponse:
        """Return a job with its schema and policy."""
        return self._rest.get(_job_path(name), JobResponse)

    def all_jobs(self, room: str) -> list[JobSummary]:
        """Return all jobs that a room sees."""
        found: list[JobSummary] = []
        while True:
            page = self.jobs(room, limit=MAX_PAGE, offset=len(found))
            found += page.items
            if not page.items or len(found) >= page.total:
                return found

    def _act(self, task_id: UUID, action: str, request: TaskActionRequest | None = None) -> TaskResponse:
        def call(key: str) -> TaskResponse:
            return self._rest.act_on_task(str(task_id), action, request, key=key)

        return self._send_once(f"Request to {action} task {task_id}", call)

    def _post(self, path: str, model: type[Model]) -> Model:
        return self._send_once(f"POST {path}", lambda key: self._rest.send("POST", path, model, key=key))

    def _may_repeat(self, error: BaseException, attempt: Attempt) -> bool:
        may_repeat = super()._may_repeat(error, attempt)
        response = unexpected_response_of(error)
        is_another_program = response is not None and response.status not in BUSY
        return may_repeat and attempt.was_sent and not is_another_program

    def _how_to_repeat(self, key: str) -> str:
        return f"To repeat a submit, pass --idempotency-key {key}"


def find_access(url: str) -> Access:
    """Return the access to a server, with the token of the environment or the one saved for this URL."""
    canonical = credentials.canonical(url)
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        if not (token.isascii() and token.isprintable()):
            raise UsageError(
                f"{TOKEN_VARIABLE} is not a token: it has characters other than printable ASCII. "
                "Copy the token again"
            )
        return Access(url.strip(), token, TOKEN_VARIABLE)
    saved = credentials.load().get(canonical)
    # The canonical URL makes sure that the token goes to the host it was saved for.
    return Access(canonical if saved else url.strip(), saved, str(credentials.path()))


@contextmanager
def open_connection(access: Access, *, realtime: bool = False) -> Iterator[Connection]:
    """Open a connection, see `connect`; errors inside the block become a `CommandError`."""
    try:
        with connect(access.url, access.token, realtime=realtime) as connection:
            yield connection
    except Unauthorized as problem:
        raise CommandError(_explain_unauthorized(access, problem)) from problem
    except ProblemException as problem:
        raise CommandError(str(problem)[:_MAX_DETAIL] + _notes(problem)) from problem
    except httpx.TransportError as error:
        raise CommandError(
            f"The server at {access.url} cannot be reached: {_reason(error)}. "
            "Start it with 'zndraw-joblib serve', or set --url or ZNDRAW_JOBLIB_URL to another server"
            + _notes(error)
        ) from error
    except UnexpectedResponse as error:
        raise CommandError(
            f"{error}. Check that --url names a zndraw-joblib server, and that both have the same version"
            + _notes(error)
        ) from error


@contextmanager
def open_client(url: str) -> Iterator[AdminClient]:
    """Open a client for one command; errors inside the block become a `CommandError`."""
    with open_connection(find_access(url)) as connection:
        yield AdminClient(TaskRest(connection))


def _job_path(job: JobName) -> str:
    return f"/rooms/{quoted(job.room_id)}/jobs/{quoted(str(job))}"


def _explain_unauthorized(access: Access, problem: ProblemException) -> str:
    if access.token is None:
        return (
            f"The server at {access.url} requires a token, and {access.source} has none for this URL. "
            f"Set {TOKEN_VARIABLE}; the operator creates a token with 'zndraw-joblib token create NAME'"
        )
    return (
        f"The server at {access.url} rejected the token from {access.source}: {problem}. "
        f"Set {TOKEN_VARIABLE} to a valid token; 'zndraw-joblib token create NAME' creates one"
    )


def _notes(error: BaseException) -> str:
    return "".join(f". {note}" for note in getattr(error, "__notes__", ()))


def _reason(error: httpx.TransportError) -> str:
    text = str(error) or type(error).__name__
    return text.split("] ", 1)[-1] if text.startswith("[Errno") else text
