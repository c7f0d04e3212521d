"""The connection of the client commands to a server: requests of operators, URL, token, errors."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import IO, Any, Literal, TypeVar
from urllib.parse import urljoin
from uuid import UUID

import typer
from pydantic import BaseModel

from zndraw_joblib.cli.display import CommandError, MissingOperation, UsageError
from zndraw_joblib.client import calls, connection, flows
from zndraw_joblib.client.calls import Call, Model, reading
from zndraw_joblib.client.connection import (
    ApiManager,
    Connection,
    ServerAccess,
    UnreadableCredentials,
    connect,
    explain_unauthorized,
    explain_unreachable,
)
from zndraw_joblib.client.flows import AmbiguousJob, Polling, wait_for_group
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.older_servers import OptionIgnored
from zndraw_joblib.client.queue import TaskHandle
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import (
    BUSY,
    RetryRule,
    SendAttempts,
    UnexpectedResponse,
    is_missing,
    is_unreachable,
    unexpected_response_of,
)
from zndraw_joblib.client.schedules import Schedules
from zndraw_joblib.client.submits import chunks
from zndraw_joblib.client.task_id import Bar
from zndraw_joblib.client.webhooks import Webhooks
from zndraw_joblib.jobs.logs import ID_CHARACTERS
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.history import NumberedLine, TaskEvents
from zndraw_joblib.wire.messages import (
    MAX_PAGE,
    CursorResponse,
    JobResponse,
    JobSummary,
    SweeperMode,
    SweeperPreview,
    SweeperState,
    SweeperUpdate,
    TaskActionRequest,
    TaskResponse,
)
from zndraw_joblib.wire.names import (
    DEFAULT_ROOM,
    GLOBAL,
    JobName,
    missing_text,
    near_text,
    parse_job_name,
    parse_reference,
)
from zndraw_joblib.wire.operations import Operation
from zndraw_joblib.wire.operators import (
    BulkAction,
    BulkPreview,
    BulkPreviewRequest,
    BulkRequest,
    BulkResult,
    FailureGroups,
    FoundTask,
    JobEntry,
    TaskFilter,
)
from zndraw_joblib.wire.problems import (
    Forbidden,
    JobNotFound,
    MethodNotAllowed,
    NotFound,
    ProblemException,
    ScheduleNotFound,
    Unauthorized,
    WebhookNotFound,
)
from zndraw_joblib.wire.statuses import TERMINAL

Item = TypeVar("Item")

MIN_PREFIX = 4
_PREFIX = re.compile(r"[0-9a-f]{1,8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?")
_HEX = re.compile(r"[0-9a-f]{1,32}")


def parse_id(text: str) -> str:
    """Return an id or its beginning in the usual form, with hyphens. Raises `typer.BadParameter`."""
    prefix = text.strip().lower()
    digits = prefix.replace("-", "")
    is_prefix = _HEX.fullmatch(prefix) is not None or _PREFIX.fullmatch(prefix) is not None
    if not is_prefix or not MIN_PREFIX <= len(digits) <= 32:
        raise typer.BadParameter(
            f"{text[:100]!r} is not an id. Pass the whole id, or its first {MIN_PREFIX} or more characters"
        )
    cuts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(part for part in cuts if part)


def whole_id(text: str) -> UUID | None:
    """Return the id, None for a prefix."""
    return UUID(text) if len(text) == 36 else None


MAX_PART = 200
# As many ids of workers with the same name are named.
_MAX_NAMED = 10
_SEARCH_SECONDS = 60.0


@contextmanager
def _new(what: str, remedy: str = "Upgrade the server") -> Iterator[None]:
    """Explain that an older server lacks something that this release has."""
    try:
        yield
    except (UnexpectedResponse, NotFound, MethodNotAllowed) as error:
        if type(error) in {UnexpectedResponse, NotFound, MethodNotAllowed} and is_missing(error):
            raise MissingOperation(f"The server is an older release, without {what}. {remedy}") from error
        raise


# How the commands send and repeat requests, find a server, and explain errors.

# Takes the seconds to wait for a change of a task; returns it, and how many the server agreed to wait.
ReadTask = Callable[[int], tuple[TaskResponse, int]]
_MAX_DETAIL = 500
# Long enough for most tasks, short enough to show soon why a task waits.
_FIRST_STATE_SECONDS, _STATE_SECONDS = 1.0, 20.0


class CommandRule(RetryRule):
    """Repeats requests for 10 seconds, but not if no server or another program can be reached."""

    def __init__(self, seconds: float = 10.0) -> None:
        super().__init__(seconds)

    def may_repeat(self, error: BaseException, attempt: SendAttempts) -> bool:
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


class AdminClient(JobClient):
    """A client with the requests of the commands. An older server, which lacks one, raises `CommandError`.

    It repeats a request for 10 seconds and at least once while the response is lost, but not if it can reach
    no server at all.
    """

    def __init__(self, rest: TaskRest, rule: RetryRule | None = None) -> None:
        super().__init__(rest, rule or CommandRule())

    @property
    def schedules(self) -> Schedules:
        """The schedules of rooms."""
        return Schedules(self._rest, self._rule, self._submits)

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks of rooms."""
        return Webhooks(self._rest, self._rule, self._submits)

    @property
    def connection(self) -> ApiManager:
        """The connection to the server."""
        return self._rest.api

    def read(self, operation: Operation[Model], what: str, *args: BaseModel, **options: Any) -> Model:
        """Return the answer to a request; `what` names it to a user whose server lacks it."""
        with _new(what):
            return self._rest.send(operation, *args, **options)

    def items(
        self,
        operation: Operation[CursorResponse[Item]],
        what: str,
        limit: int | None,
        query: Mapping[str, Any],
        seconds: float = inf,
    ) -> tuple[list[Item], bool]:
        """Return the first items of a list, up to `limit`, and whether there may be more.

        It ends early after `seconds`. For `what` see `read`.
        """
        deadline = time.monotonic() + seconds
        items: list[Item] = []
        cursor: str | None = None
        while True:
            size = MAX_PART if limit is None else min(MAX_PART, limit - len(items))
            part = self.read(operation, what, query={**query, "limit": size, "cursor": cursor})
            items += part.items
            cursor = part.next
            is_full = limit is not None and len(items) >= limit
            if cursor is None or is_full or time.monotonic() > deadline:
                return items, cursor is not None

    def search(
        self, filters: TaskFilter, limit: int, *, oldest_first: bool = False
    ) -> tuple[list[FoundTask], bool]:
        """Return the newest or oldest tasks that match, up to `limit`, and whether there may be more.

        A search that finds few of many tasks ends after a minute.
        """
        query = filters.model_dump(mode="json", exclude_defaults=True)
        query |= {"oldest_first": True} if oldest_first else {}
        return self.items(ops.SEARCH_TASKS, "searches for tasks", limit, query, _SEARCH_SECONDS)

    def get_group(self, group_id: UUID) -> GroupResponse:
        """Return a group of tasks."""
        return self.read(ops.GET_GROUP, "groups", group_id=group_id)

    def wait_for_group(self, group_id: UUID, timeout: float | None, bar: Bar) -> GroupResponse:
        """Return a group once it has ended. Raises TimeoutError after `timeout` seconds."""
        flow = wait_for_group(group_id, timeout, self._rule, show=bar.show_group)
        with _new("groups"):
            return self._rest.run(flow)

    def failures(self, filters: TaskFilter) -> FailureGroups:
        """Return the newest failed tasks that match, in groups."""
        query = filters.model_dump(mode="json", exclude_defaults=True)
        return self.read(ops.GROUP_FAILURES, "groups of failures", query=query)

    def unended_below(self, task: TaskResponse) -> tuple[int, bool]:
        """Return how many tasks below one a cancel of its tree cancels, and whether that is all."""
        query: dict[str, Any] = {"room": task.room_id, "root": str(task.id)}
        if task.root is None:
            counts = self.read(ops.COUNT_TASKS, "counts of tasks", query=query)
            return counts.pending + counts.claimed + counts.running, counts.is_complete
        # Those below a child that has ended are not found, nor children of others by a user.
        children = TaskFilter(room=[task.room_id], parent=task.id)
        preview = self.preview_bulk(BulkAction.CANCEL, children, tree=True)
        return preview.count + preview.below, False

    def preview_bulk(self, action: BulkAction, filters: TaskFilter, *, tree: bool = False) -> BulkPreview:
        """Return how many tasks an action would change, and the token that confirms it."""
        request = BulkPreviewRequest(action=action, filter=filters, tree=tree)
        return self.read(ops.PREVIEW_BULK_ACTION, "actions on several tasks", request)

    def apply_bulk(self, preview: BulkPreview, filters: TaskFilter, *, tree: bool = False) -> BulkResult:
        """Apply an action to the tasks that its preview has counted."""
        request = BulkRequest(action=preview.action, filter=filters, token=preview.token, tree=tree)

        def call(key: str) -> Call[BulkResult]:
            return calls.call(ops.APPLY_BULK_ACTION, request, key=key)

        return self._send_once(f"Bulk action {preview.action}", call)

    def task_link(self, task_id: UUID) -> str | None:
        """Return the URL of a task on the operators' page; None if the server has no page, or is older."""
        try:
            page = self.read(ops.GET_VERSION, "its version").page
        except Exception as error:
            if isinstance(error, CommandError | ProblemException) or is_unreachable(error):
                return None
            raise
        base_url = self.connection.base_url
        return None if page is None else urljoin(f"{base_url}/", f"{page}t/{str(task_id)[:ID_CHARACTERS]}")

    def find_task(self, text: str) -> UUID:
        """Return the id of the task that begins with `text`. Raises `CommandError`."""
        task_id = whole_id(text)
        if task_id is not None:
            return task_id
        ids, where = self._ids("task", text)
        if task_id := _only(ids, text):
            return task_id
        raise CommandError(f"There is no task{where} whose id begins with {text!r}. Pass the whole id")

    def find_group(self, text: str) -> UUID:
        """Return the id of the group that begins with `text`. Raises `CommandError`."""
        prefix = parse_id(text)
        group_id = whole_id(prefix)
        if group_id is not None:
            return group_id
        ids, where = self._ids("group", prefix)
        if group_id := _only(ids, prefix):
            return group_id
        raise CommandError(
            f"There is no group{where} whose id begins with {prefix!r}. 'zndraw-joblib groups' lists them"
        )

    def find_worker(self, text: str) -> UUID:
        """Return the id of the worker that begins with `text`, or of the only worker of this name.

        Raises `CommandError`.
        """
        try:
            prefix = parse_id(text)
        except typer.BadParameter:
            return self._named_worker(text, "")
        worker_id = whole_id(prefix)
        if worker_id is not None:
            return worker_id
        ids, where = self._ids("worker", prefix)
        return _only(ids, prefix) or self._named_worker(text, where)

    def _named_worker(self, name: str, where: str) -> UUID:
        names: dict[UUID, str] = {}
        while True:
            page = self.workers(limit=MAX_PAGE, offset=len(names))
            names |= {worker.id: worker.name or "" for worker in page.items}
            if not page.items or len(names) >= page.total:
                break
        ids = [worker_id for worker_id, other in names.items() if other == name]
        if len(ids) == 1:
            return ids[0]
        if ids:
            shown = ", ".join(map(str, ids[:_MAX_NAMED])) + (", …" if len(ids) > _MAX_NAMED else "")
            raise CommandError(f"{len(ids):,} workers have the name {name!r}: {shown}. Pass the id of one")
        near = near_text(name, set(filter(None, names.values())))
        raise CommandError(
            f"There is no worker{where} whose id begins with {name!r} or whose name it is{near}. "
            "'zndraw-joblib workers' lists them"
        )

    def all_job_entries(self, limit: int | None = None) -> list[JobEntry]:
        """Return the jobs of all rooms with their counts, by full name, up to `limit`."""
        return self.items(ops.LIST_ALL_JOBS, "the list of all jobs", limit, {})[0]

    def _ids(self, what: Literal["task", "worker", "group"], prefix: str) -> tuple[Sequence[UUID], str]:
        """Return the ids that begin with `prefix`, and in which room they were looked for."""
        with _new("ids by prefix", "Pass the whole id"):
            try:
                matches, where = self._rest.send(ops.FIND_IDS, query={"prefix": prefix}), ""
            except Forbidden:
                # Only a superuser may search all rooms.
                query = {"prefix": prefix, "room": DEFAULT_ROOM}
                matches = self._rest.send(ops.FIND_IDS, query=query)
                where = f" in room {DEFAULT_ROOM!r}"
        ids: dict[str, Sequence[UUID]] = {"task": matches.tasks, "worker": matches.workers}
        return ids.get(what, matches.groups), where

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
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            time.sleep(min(pause, seconds))

    def read_task(self, task_id: UUID, wait: int) -> tuple[TaskResponse, int]:
        """Return a task at its end, after `wait` seconds at most, and how long the server agreed to wait."""
        return self._rest.send_call(calls.get_task(str(task_id), wait))

    def task_events(self, task_id: UUID, after: int | None, wait: int) -> tuple[TaskEvents, int]:
        """Return the next events of a task, and how many seconds the server agreed to wait for one."""
        return self._rest.send_call(calls.task_events(str(task_id), after, wait))

    def claim_of_attempt(self, task_id: UUID, number: int) -> int:
        """Return the number of the claim by which a task had its attempt `number`.

        Raises `CommandError` if it had none.
        """
        claims = {change.attempt_number: change.attempt for change in self.history(task_id).transitions}
        if number not in claims:
            last = max(filter(None, claims), default=0)
            raise CommandError(f"Task {task_id} has no attempt {number}; it has had {last}")
        return claims[number]

    def log_parts(self, task_id: UUID, attempt: int | None, after: int) -> Iterator[list[NumberedLine]]:
        """Yield the lines of an attempt's log after a number, by default of the current or last attempt."""
        following = after
        while True:
            query = {"attempt": attempt, "after": following}
            part = self._rest.send(ops.GET_TASK_LOG, query=query, task_id=task_id)
            if part.lines:
                yield part.lines
            if part.next is None:
                return
            attempt, following = part.attempt, part.next

    def load_result(self, task_id: UUID, file: IO[bytes]) -> None:
        """Write the bytes of a task's result to a file; after an interruption, continue where it stopped."""
        self._download(str(task_id), file, f"Reading the result of task {task_id}")

    def cancel(self, task_id: UUID, *, tree: bool = False) -> TaskResponse:
        """Cancel a task, and with `tree` all tasks below it."""
        return self._send_once(
            f"Cancelling task {task_id}", lambda key: calls.cancel_task(str(task_id), key, tree=tree)
        )

    def sweeper(self, mode: SweeperMode | None = None) -> SweeperState:
        """Return the sweeper's state; change its mode first if one is given."""
        # An older server returns only the state of its own sweeper.
        read = reading(SweeperState)
        if mode is None:
            return self._rest.send_call(calls.call_reading(ops.GET_SWEEPER, read))
        update = SweeperUpdate(mode=mode)
        return self._send_once(
            "Changing the mode", lambda key: calls.call_reading(ops.UPDATE_SWEEPER, read, update, key=key)
        )

    def preview(self) -> SweeperPreview:
        """Return what a cycle of the sweeper would change now."""
        return self._rest.send(ops.PREVIEW_SWEEPER)

    def job(self, name: JobName, room: str) -> JobResponse:
        """Return a job with its schema and policy. One of ``@global`` is read from the room that sees it."""
        with self.near_jobs(name):
            # Few users may read ``@global`` itself.
            room_id = room if name.room_id == GLOBAL else name.room_id
            return self._rest.send(ops.GET_JOB, room_id=room_id, name=name)

    def forget(self, name: JobName) -> None:
        """Forget a job; repeat the request while its response is lost."""
        with self.near_jobs(name):
            self.delete(ops.DELETE_JOB, f"Forgetting {name}", room_id=name.room_id, name=name)

    @contextmanager
    def near_jobs(self, name: JobName) -> Iterator[None]:
        """Name the nearest jobs of its room if there is no job of this name."""
        try:
            yield
        except JobNotFound as problem:
            seen = [parse_job_name(job.full_name) for job in self.all_jobs(name.room_id)]
            raise CommandError(missing_text(str(problem), str(name), name.room_id, seen)) from problem

    @contextmanager
    def near_schedules(self, name: str, room: str) -> Iterator[None]:
        """Name the nearest schedule of a room if it has none of this name."""
        try:
            yield
        except ScheduleNotFound as problem:
            names = [schedule.name for schedule in self.schedules.all(room)]
            text = near_text(name, names) or (f". It has {', '.join(names[:10])}" if names else "")
            raise CommandError(f"{problem}{text}") from problem

    @contextmanager
    def near_webhooks(self, name: str, room: str) -> Iterator[None]:
        """Name the nearest webhook of a room if it has none of this name."""
        try:
            yield
        except WebhookNotFound as problem:
            names = [webhook.name for webhook in self.webhooks.all(room)]
            text = near_text(name, names) or (f". It has {', '.join(names[:10])}" if names else "")
            raise CommandError(f"{problem}{text}") from problem

    def delete(self, operation: Operation[None], what: str, **parts: Any) -> None:
        """Send a request that has no answer; repeat it while its response is lost."""

        def call(key: str) -> Call[None]:
            return calls.call_reading(operation, calls.check_empty, key=key, **parts)

        self._send_once(what, call)

    def all_jobs(self, room: str) -> list[JobSummary]:
        """Return all jobs that a room sees."""
        return self._rest.run(flows.all_jobs(room, self._rule))

    def find_job(self, name: str, room: str | None) -> JobName:
        """Return a job by its full name, or the one that the room means by ``category:name`` or ``name``.

        Raises `CommandError`, with the names of similar jobs.
        """
        reference = parse_reference(name)
        if isinstance(reference, JobName):
            return reference
        category, short = reference
        try:
            return self._rest.run(self._submits.find(short, category, room or DEFAULT_ROOM))
        except (JobNotFound, AmbiguousJob) as error:
            raise CommandError(str(error)) from error

    def act(
        self, action: Operation[TaskResponse], task_id: UUID, request: TaskActionRequest | None = None
    ) -> TaskResponse:
        """Return a task after an action like release; repeat the request while its response is lost."""

        def call(key: str) -> Call[TaskResponse]:
            return calls.act_on_task(action, str(task_id), request, key=key)

        return self._send_once(
            f"Request to {action.name.replace('_task', '').replace('_', ' ')} task {task_id}", call
        )

    def post(self, operation: Operation[Model], body: BaseModel | None = None, **parts: object) -> Model:
        """Return the answer to a request that changes something; repeat it while its response is lost."""
        what = f"{operation.method} {operation.path(**parts)}"
        return self._send_once(what, lambda key: calls.call(operation, body, key=key, **parts))


def _only(ids: Sequence[UUID], prefix: str) -> UUID | None:
    """Return the only id, None without one. Raises `CommandError` for several."""
    if len(ids) > 1:
        raise CommandError(
            f"{prefix!r} is ambiguous: {', '.join(map(str, ids))} begin with it. Pass more of the id"
        )
    return ids[0] if ids else None


def find_access(url: str) -> ServerAccess:
    """Return the access to a server, with the token of the environment or the one saved for this URL."""
    try:
        return connection.find_access(url)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except UnreadableCredentials as error:
        raise CommandError(str(error)) from error


@contextmanager
def open_connection(server: ServerAccess, *, realtime: bool = False) -> Iterator[Connection]:
    """Open a connection, see `connect`; errors inside the block become a `CommandError`."""
    import httpx  # noqa: PLC0415 - see `client.connection`

    try:
        with connect(server.url, server.token, realtime=realtime) as connection:
            yield connection
    except Unauthorized as problem:
        raise CommandError(explain_unauthorized(server, problem)) from problem
    except ProblemException as problem:
        raise CommandError(str(problem)[:_MAX_DETAIL] + _notes(problem)) from problem
    except OptionIgnored as error:
        text = str(error).replace(f"{error.option}:", f"--{error.option.removesuffix('s')}:", 1)
        raise CommandError(text + _notes(error)) from error
    except httpx.TransportError as error:
        raise CommandError(
            explain_unreachable(server, error, "--url or ZNDRAW_JOBLIB_URL") + _notes(error)
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


def _notes(error: BaseException) -> str:
    return "".join(f". {note}" for note in getattr(error, "__notes__", ()))
