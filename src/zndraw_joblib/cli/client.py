"""The connection of the client commands to a server: URL, token and error messages."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import IO
from uuid import UUID

import httpx

from zndraw_joblib.cli.errors import CommandError, UsageError
from zndraw_joblib.cli.operator_client import OperatorClient
from zndraw_joblib.client import access, lookup, operations
from zndraw_joblib.client.access import Access, explain_unauthorized, explain_unreachable
from zndraw_joblib.client.api import Connection, connect
from zndraw_joblib.client.batches import chunks
from zndraw_joblib.client.calls import Call, Model, quoted, reading
from zndraw_joblib.client.credentials import UnreadableCredentials
from zndraw_joblib.client.failures import AmbiguousJob
from zndraw_joblib.client.handles import TaskHandle
from zndraw_joblib.client.responses import UnexpectedResponse
from zndraw_joblib.client.rest import Download, TaskRest
from zndraw_joblib.client.retry import BUSY, Attempt, RetryRule, is_unreachable, unexpected_response_of
from zndraw_joblib.client.waiting import Polling
from zndraw_joblib.contract.history import NumberedLine, TaskLog
from zndraw_joblib.contract.messages import (
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
from zndraw_joblib.contract.names import DEFAULT_ROOM, JobName, parse_job_name
from zndraw_joblib.contract.problems import JobNotFound, ProblemException, Unauthorized
from zndraw_joblib.contract.status import TERMINAL, TaskStatus
from zndraw_joblib.contract.streams import TaskEvents

# Takes the seconds to wait for a change of a task; returns it, and how many the server agreed to wait.
ReadTask = Callable[[int], tuple[TaskResponse, int]]
_MAX_DETAIL = 500
# Long enough for most tasks, short enough to show soon why a task waits.
_FIRST_STATE_SECONDS, _STATE_SECONDS = 1.0, 20.0


class CommandRule(RetryRule):
    """Repeats requests for 10 seconds, but not if no server or another program can be reached."""

    def __init__(self, seconds: float = 10.0) -> None:
        super().__init__(seconds)

    def may_repeat(self, error: BaseException, attempt: Attempt) -> bool:
        """Return whether a request with an `Idempotency-Key` is repeated with the same key."""
        may_repeat = super().may_repeat(error, attempt)
        response = unexpected_response_of(error)
        is_another_program = response is not None and response.status not in BUSY
        return may_repeat and attempt.was_sent and not is_another_program

    def may_read_again(self, error: BaseException) -> bool:
        """Return false: the user repeats the command."""
        return False

    def may_wait_on(self, error: BaseException) -> bool:
        """Return whether a command that follows a task goes on."""
        return is_unreachable(error)

    def how_to_repeat(self, key: str) -> str:
        """Return the option that repeats a request that may have been applied."""
        return f"To repeat a submit, pass --idempotency-key {key}"


class AdminClient(OperatorClient):
    """A client with the requests of the commands.

    It repeats a request for 10 seconds and at least once while the response is lost, but not if it can reach
    no server at all.
    """

    def __init__(self, rest: TaskRest, rule: RetryRule | None = None) -> None:
        super().__init__(rest, rule or CommandRule())

    def submit_bodies(
        self, bodies: Iterable[bytes], key: str
    ) -> Iterator[list[TaskHandle | ProblemException]]:
        """Submit tasks, each encoded by `task_body`; yield the ids or problems of each request."""
        return self.submit_chunks(chunks(bodies), key)

    def states(
        self, task_id: UUID, timeout: float | None, read: ReadTask | None = None
    ) -> Iterator[TaskResponse]:
        """Yield a task now or soon, after each request that `read` sends, and when it has ended; then stop.

        By default the task is requested every 20 s. It continues while the server restarts. Raises
        TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + (inf if timeout is None else timeout)
        polling, wait = Polling(f"task {task_id}", self._rule), _FIRST_STATE_SECONDS
        read = read or partial(self.read_task, task_id)
        while True:
            began = time.monotonic()
            try:
                task, applied = read(round(min(max(0.0, deadline - began), wait)))
            except Exception as error:
                pause = polling.failed(error)
            else:
                pause = polling.answered(applied, time.monotonic() - began)
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

    def claim_of_attempt(self, task_id: UUID, number: int) -> int:
        """Return the number of the claim by which a task had its attempt `number`.

        Raises `CommandError` if it had none.
        """
        found = {change.attempt_number: change.attempt for change in self.history(task_id).transitions}
        if number not in found:
            last = max(filter(None, found), default=0)
            raise CommandError(f"Task {task_id} has no attempt {number}; it has had {last}")
        return found[number]

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
            f"Cancelling task {task_id}", lambda key: operations.update_task(str(task_id), update, key)
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
            "Changing the mode", lambda key: Call("PATCH", path, reading(SweeperState), update, key=key)
        )

    def preview(self) -> SweeperPreview:
        """Return what a cycle of the sweeper would change now."""
        return self._rest.get("/admin/sweeper/preview", SweeperPreview)

    def job(self, name: JobName) -> JobResponse:
        """Return a job with its schema and policy."""
        return self._rest.get(_job_path(name), JobResponse)

    def all_jobs(self, room: str) -> list[JobSummary]:
        """Return all jobs that a room sees."""
        return self._rest.run(lookup.all_jobs(room, self._rule))

    def find_job(self, name: str, room: str | None) -> JobName:
        """Return a job by its full name, or the one that the room means by its last part.

        Raises `CommandError`, with the names of similar jobs.
        """
        if ":" in name:
            return parse_job_name(name)
        try:
            return self._rest.run(self._submits.find(name, None, room or DEFAULT_ROOM))
        except (JobNotFound, AmbiguousJob) as error:
            raise CommandError(str(error)) from error

    def _act(self, task_id: UUID, action: str, request: TaskActionRequest | None = None) -> TaskResponse:
        def call(key: str) -> Call[TaskResponse]:
            return operations.act_on_task(str(task_id), action, request, key=key)

        return self._send_once(f"Request to {action} task {task_id}", call)

    def _post(self, path: str, model: type[Model]) -> Model:
        return self._send_once(f"POST {path}", lambda key: Call("POST", path, reading(model), key=key))


def find_access(url: str) -> Access:
    """Return the access to a server, with the token of the environment or the one saved for this URL."""
    try:
        return access.find_access(url)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except UnreadableCredentials as error:
        raise CommandError(str(error)) from error


@contextmanager
def open_connection(found: Access, *, realtime: bool = False) -> Iterator[Connection]:
    """Open a connection, see `connect`; errors inside the block become a `CommandError`."""
    try:
        with connect(found.url, found.token, realtime=realtime) as connection:
            yield connection
    except Unauthorized as problem:
        raise CommandError(explain_unauthorized(found, problem)) from problem
    except ProblemException as problem:
        raise CommandError(str(problem)[:_MAX_DETAIL] + _notes(problem)) from problem
    except httpx.TransportError as error:
        raise CommandError(
            explain_unreachable(found, error, "--url or ZNDRAW_JOBLIB_URL") + _notes(error)
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


def _notes(error: BaseException) -> str:
    return "".join(f". {note}" for note in getattr(error, "__notes__", ()))
