"""The tasks that a worker holds: their class, their coroutines, their log lines and spans."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack
from uuid import UUID

from zndraw_joblib.client.connection import ApiManager, Connection
from zndraw_joblib.client.operators import Operator
from zndraw_joblib.client.queue import Queue, Submitter, TaskHandle
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.retry import RetryRule, describe, status_of
from zndraw_joblib.client.schedules import Schedules
from zndraw_joblib.client.submits import Submits, TaskOptions
from zndraw_joblib.client.watching import TaskWatch
from zndraw_joblib.client.webhooks import Webhooks
from zndraw_joblib.jobs.failures import one_line
from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.jobs.logs import ID_CHARACTERS, TASK_LOG, duration_text, task_fields
from zndraw_joblib.jobs.run import Outcome, end_span, prepare_extension
from zndraw_joblib.jobs.task_channel import NO_WORKER, TaskChannel
from zndraw_joblib.jobs.task_context import CancelEvent, TaskContext, no_server
from zndraw_joblib.jobs.traces import RunSpans, TaskSpan, start_run, start_span
from zndraw_joblib.wire.messages import MAX_NAMED_TASKS, NamedTask, TaskResponse, TaskVerdict, Verdict
from zndraw_joblib.wire.names import short_name
from zndraw_joblib.wire.problems import DuplicateTask
from zndraw_joblib.worker.threads import log_defect

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
Settled = TypeVar("Settled")
# The start and the end of each task, one line each.
_task_log = logging.getLogger(TASK_LOG)
_TIMEOUT_SECONDS = 30.0
# Tokens of tasks are valid for an hour.
_RENEWAL_SECONDS = 900.0
# The rights of a token do not suffice, or it has expired in a process that gets no new one.
_REFUSALS = frozenset({401, 403})


class TaskServer:
    """The server of tasks, to submit others from their code; a copy in another process connects again.

    Without an identity only the tokens of tasks give rights.
    """

    def __init__(self, api: ApiManager, *, has_identity: bool = True) -> None:
        self.api = api
        self.has_identity = has_identity
        self._submitter: Submitter | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.api.base_url

    @property
    def submitter(self) -> Submitter:
        """What submits tasks; it knows the jobs that were looked up."""
        if self._submitter is None:
            rest, rule = TaskRest(self.api), RetryRule()
            self._submitter = Submitter(rest, rule, Submits(rule, url=lambda: self.url))
        return self._submitter

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the address and the headers of identity to the process that runs a task."""
        return _connected, (self.url, self.api.get_headers() if self.has_identity else None)

    def without_identity(self) -> "TaskServer":
        """Return the same server for a process that must not get the identity of the worker."""
        return TaskServer(self.api, has_identity=False)


class _ForwardedConnection:
    """The connection of a process that runs tasks, with the identity that its worker had at the claim.

    Most tasks need none, so the process connects with the first request, once for all tasks.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.base_url = url
        self._headers = headers

    @property
    def http(self) -> "httpx.Client":
        """The HTTP client of the process."""
        return _connection(self.base_url).http

    def get_headers(self) -> dict[str, str]:
        """Return the headers of the worker."""
        return self._headers

    def raise_for_status(self, response: "httpx.Response") -> None:
        """Raise the problem of an error response."""
        _connection(self.base_url).raise_for_status(response)


@lru_cache(maxsize=8)
def _connection(url: str) -> Connection:
    return Connection(url, None, _TIMEOUT_SECONDS)


def _connected(url: str, headers: dict[str, str] | None) -> TaskServer:
    return TaskServer(_ForwardedConnection(url, headers or {}), has_identity=headers is not None)


class TaskCredential:
    """The token of a held task, with the rights of this attempt alone; heartbeats renew it."""

    def __init__(self, token: str) -> None:
        self.token = token
        self._renewed_at = time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether the token is to be renewed."""
        return time.monotonic() > self._renewed_at + _RENEWAL_SECONDS

    def renew(self, token: str) -> None:
        """Use another token from now on."""
        self.token, self._renewed_at = token, time.monotonic()


class _TaskConnection:
    """The worker's connection to the server, with the token of a task in place of the worker's identity."""

    def __init__(self, api: ApiManager, credential: TaskCredential) -> None:
        self._api, self._credential = api, credential
        self.raise_for_status = api.raise_for_status

    @property
    def http(self) -> "httpx.Client":
        """The worker's HTTP client."""
        return self._api.http

    @property
    def base_url(self) -> str:
        """The address of the server."""
        return self._api.base_url

    def get_headers(self) -> dict[str, str]:
        """Return the header with the token."""
        return {"Authorization": f"Bearer {self._credential.token}"}

    def close(self) -> None:
        """Leave the worker's connection open."""


class TaskQueue(Queue):
    """A `Queue` with the rights of a running task: what it submits are tasks below this one, in its room.

    It cancels these. It reads this task, what it waits for, and what it has submitted, its groups, and the
    jobs and providers of its room.
    """

    _watch = TaskWatch

    def __init__(self, api: ApiManager, credential: TaskCredential, room: str) -> None:
        self._connection: Any = _TaskConnection(api, credential)
        rest, rule = TaskRest(self._connection), RetryRule()
        Submitter.__init__(self, rest, rule, Submits(rule, room, url=lambda: api.base_url))
        self._room = room
        self.schedules = Schedules(rest, rule, self._submits)
        self.webhooks = Webhooks(rest, rule, self._submits)
        self.operator = Operator(rest, rule, self._submits)


@dataclass(frozen=True, slots=True)
class ClaimedTask(TaskContext):
    """A task that this worker holds: `extension` is the job's class, made from `payload`.

    `worker_id` and `attempt` are the token of the claim; every report carries them. `cancelled` is set once
    the task was cancelled, or is lost to this worker: a job that checks it can stop early. A copy in another
    process has an event of its own, which is set for coroutines only. `channel` holds what the job reports
    of its progress and its log. `traceparent` is the trace context of its submit (W3C Trace Context), None
    without one. `run_kwargs` are the keywords that the job was registered with, for `run`, and `server` is
    where `submit` sends further tasks, with the `credential` of the task if the server has given one.

    A task may also be built by hand, with `task_id`, `job_name`, `room_id` and `extension`, to report on it:
    without a token the server accepts what the owner of its worker reports.
    """

    task_id: str
    job_name: str
    room_id: str
    extension: Any
    attempt: int = 0
    payload: dict[str, Any] = field(default_factory=dict)
    worker_id: UUID = NO_WORKER
    cancelled: CancelEvent = field(default_factory=CancelEvent, compare=False, repr=False)
    channel: TaskChannel = field(default_factory=TaskChannel, compare=False, repr=False)
    traceparent: str | None = field(default=None, compare=False, repr=False)
    run_kwargs: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    server: TaskServer | None = field(default=None, compare=False, repr=False)
    credential: TaskCredential | None = field(default=None, compare=False, repr=False)
    cost: int = field(default=1, compare=False, repr=False)

    @property
    def server_url(self) -> str | None:
        """The address of the server that has the task."""
        return None if self.server is None else self.server.url

    @property
    def client(self) -> TaskQueue:
        """A `Queue` with the rights of this task alone. Raises RuntimeError without a token of the task."""
        if self.server is None:
            raise no_server(self)
        if self.credential is None:
            raise RuntimeError(
                f"task {self.task_id} has no token: its server is an older release. Update the server"
            )
        return TaskQueue(self.server.api, self.credential, self.room_id)

    def submit(  # type: ignore[override]
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """Submit a task below this one, from its room by default; return its handle."""
        if self.server is None:
            raise no_server(self)
        options.setdefault("room", self.room_id)
        options.setdefault("parent", self.task_id)
        if self.credential is not None:
            try:
                return self.client.submit(job, payload, idempotency_key=idempotency_key, **options)
            # The worker may do more than its task, such as submit to a group of another client, or read the
            # task of another client that holds the unique key.
            except Exception as error:
                is_of_token = isinstance(error, DuplicateTask) or status_of(error) in _REFUSALS
                if not (is_of_token and self.server.has_identity):
                    raise
        return self.server.submitter.submit(job, payload, idempotency_key=idempotency_key, **options)

    async def submit_async(
        self, job: Any, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> TaskHandle:
        """Submit a task below this one as `submit` does, in a thread, for coroutines."""
        return await asyncio.to_thread(self.submit, job, payload, **options)

    @property
    def token(self) -> dict[str, Any]:
        """Return the fields of a report that are the token of the claim; none for a task built by hand."""
        return {"worker_id": self.worker_id, "attempt": self.attempt} if self.attempt else {}

    def with_extension(self, extension: Any, run_kwargs: Mapping[str, Any]) -> "ClaimedTask":
        """Return the same task, with the same event and the same channel, as its job is registered here."""
        return replace(self, extension=extension, run_kwargs=run_kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the event out of pickles and deep copies: it belongs to this process."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "cancelled"}
        return _copy, (values,)


def _copy(values: dict[str, Any]) -> ClaimedTask:
    return ClaimedTask(**values)


# The tasks that this worker holds.

_CANCELLED, _LOST = "was cancelled", "is no longer held by this worker"


class _Token(NamedTuple):
    task_id: str
    attempt: int
    worker_id: str


class HeldTasks:
    """The tasks that this worker holds. Thread-safe.

    A task that turns out to be cancelled or lost is removed, and its event `cancelled` is set; not while its
    outcome waits or is being reported, because the server may have applied a report whose response was lost.
    Either the outcome of a task is reported, or the task returns to its queue: what begins first.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._events: dict[_Token, CancelEvent] = {}
        self._credentials: dict[tuple[str, int], TaskCredential] = {}
        self._reported: set[_Token] = set()
        # Their code has ended, and their results are uploaded.
        self._ended: set[_Token] = set()
        # They return to their queues: their outcomes are not reported.
        self._returned: set[_Token] = set()

    def add(self, *tasks: ClaimedTask) -> None:
        """Add tasks."""
        with self._lock:
            for task in tasks:
                self._events[_token_of(task)] = task.cancelled
                if task.credential is not None:
                    self._credentials[task.task_id, task.attempt] = task.credential

    def remove(self, *tasks: ClaimedTask) -> None:
        """Remove tasks, if they are there."""
        with self._lock:
            for token in map(_token_of, tasks):
                self._events.pop(token, None)
                self._credentials.pop(token[:2], None)
                for tokens in (self._reported, self._ended, self._returned):
                    tokens.discard(token)
            self._lock.notify_all()

    def end_run(self, task: ClaimedTask) -> None:
        """Note that the code of a task has ended, and its result is uploaded: it need not run again."""
        with self._lock:
            if (token := _token_of(task)) in self._events:
                self._ended.add(token)

    def begin_outcome(self, task: ClaimedTask) -> bool:
        """Do as `begin_report`; return whether the outcome may be reported.

        It may not if the task returns to its queue, or is not held, because it was cancelled or lost.
        """
        with self._lock:
            token = _token_of(task)
            self._ended.discard(token)
            if token not in self._events or token in self._returned:
                self._lock.notify_all()
                return False
            self._reported.add(token)
            return True

    def begin_report(self, *tasks: ClaimedTask) -> None:
        """Let only the answer to the report of its outcome end each of these tasks, until `remove`."""
        with self._lock:
            self._reported.update(token for task in tasks if (token := _token_of(task)) in self._events)

    def abandon_report(self, task: ClaimedTask) -> None:
        """Hold a task like any other again: its outcome was not reported."""
        with self._lock:
            self._reported.discard(_token_of(task))
            self._ended.discard(_token_of(task))
            self._lock.notify_all()

    def ids(self) -> list[str]:
        """Return the ids of the tasks that this worker holds."""
        with self._lock:
            return [token.task_id for token in self._events]

    def begin_return(self, *, with_ended: bool = False) -> list[ClaimedTask]:
        """Return the tasks that run, with their tokens and events only; their outcomes are not reported.

        `with_ended`: also those whose code has ended, and whose results are uploaded.
        """
        with self._lock:
            kept = self._reported if with_ended else self._reported | self._ended
            entries = [entry for entry in self._events.items() if entry[0] not in kept]
            self._reported.update(token for token, _ in entries)
            self._returned.update(token for token, _ in entries)
        return [
            ClaimedTask(
                token.task_id, "", "", None, token.attempt, worker_id=UUID(token.worker_id), cancelled=event
            )
            for token, event in entries
        ]

    def wait_for_reports(self, seconds: float) -> None:
        """Wait until no result is uploaded and no outcome is being reported, at most `seconds`."""
        with self._lock:
            self._lock.wait_for(lambda: not (self._reported or self._ended), seconds)

    def wait_for_none(self) -> None:
        """Wait until this worker holds no task."""
        with self._lock:
            self._lock.wait_for(lambda: not self._events)

    def to_name(self) -> list[NamedTask]:
        """Return the tasks for the next heartbeat; if there are too many, others each time."""
        with self._lock:
            tokens = list(self._events)[:MAX_NAMED_TASKS]
            if len(tokens) < len(self._events):
                for token in tokens:
                    self._events[token] = self._events.pop(token)
        return [NamedTask(id=UUID(token.task_id), attempt=token.attempt) for token in tokens]

    @property
    def has_old_tokens(self) -> bool:
        """Whether the next heartbeat is to ask for new tokens of the tasks."""
        with self._lock:
            return any(credential.is_old for credential in self._credentials.values())

    def apply_verdicts(self, named: Sequence[NamedTask], verdicts: Sequence[TaskVerdict]) -> None:
        """Apply the server's verdicts on the tasks of a heartbeat, which are in the same order."""
        for task, verdict in zip(named, verdicts, strict=False):
            if task.id == verdict.id and verdict.verdict != Verdict.CONTINUE:
                reason = _CANCELLED if verdict.verdict == Verdict.CANCEL else _LOST
                self._end(_same_attempt(str(task.id), task.attempt), reason)
            elif verdict.token is not None and task.id == verdict.id:
                with self._lock:
                    credential = self._credentials.get((str(task.id), task.attempt))
                if credential is not None:
                    credential.renew(verdict.token)

    def cancel(self, task_id: str, worker_id: str) -> None:
        """Mark a task as cancelled if this worker held it."""
        self._end(lambda token: (token.task_id, token.worker_id) == (task_id, worker_id), _CANCELLED)

    def lose_all(self, worker_id: UUID) -> None:
        """Mark the tasks of a worker as lost: the server does not know the worker."""
        self._end(lambda token: token.worker_id == str(worker_id), _LOST)

    def _end(self, matches: Callable[[_Token], bool], reason: str) -> None:
        with self._lock:
            tokens = [token for token in self._events if matches(token) and token not in self._reported]
            ended = {token: self._events.pop(token) for token in tokens}
            for token in tokens:
                self._credentials.pop(token[:2], None)
                self._ended.discard(token)
            self._lock.notify_all()
        for token, event in ended.items():
            log.info(
                "Task %s %s",
                token.task_id,
                reason,
                extra={"task_id": token.task_id, "worker_id": token.worker_id},
            )
            event.set()


def _same_attempt(task_id: str, attempt: int) -> Callable[[_Token], bool]:
    return lambda token: (token.task_id, token.attempt) == (task_id, attempt)


def _token_of(task: ClaimedTask) -> _Token:
    return _Token(task.task_id, task.attempt, str(task.worker_id))


# Prepare tasks to run.

Execute = Callable[[ClaimedTask], Any]


def prepared(
    task: ClaimedTask, cls: type[Any] | None, run_kwargs: Mapping[str, Any]
) -> tuple[ClaimedTask, Outcome | None]:
    """Return a task with its extension, or with the outcome to report if it cannot run here."""
    if cls is None:  # it may be known to another worker, so this failure is not final
        return task, Outcome(error=f"This worker does not know the job {task.job_name!r}")
    extension, outcome = prepare_extension(cls, task.payload)
    if outcome is not None:
        return task, outcome
    return task.with_extension(extension, run_kwargs), None


# Run the coroutines of jobs with an `async def run`, all in one thread.


class Coroutines:
    """An event loop in a thread, which starts with the first coroutine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.running = 0

    @property
    def is_current_thread(self) -> bool:
        """Return whether the caller is in a coroutine."""
        return threading.current_thread() is self._thread

    def run(
        self,
        work: Coroutine[Any, Any, Any],
        settle: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Settled]],
        on_end: Callable[[Settled], None],
        fail: Callable[[BaseException], Settled],
    ) -> None:
        """Await the code of a job by `settle`, and call `on_end` in the thread of the loop.

        If `settle` raises, `on_end` gets what `fail` returns; also if that thread cannot start, in this one.
        """

        async def settle_and_end() -> None:
            try:
                settled = await settle(work)
            # BaseException: a job may cancel all tasks of the loop. Without an end the task stays held.
            except BaseException as error:
                exit_if_forked(self._pid, error)
                settled = fail(error)
            with self._lock:
                self.running -= 1
            try:
                on_end(settled)
            except Exception:
                log_defect("The outcome of a coroutine could not be reported")

        try:
            with self._lock:
                loop = self._loop or self._start()
                self.running += 1
        except Exception as error:
            work.close()
            on_end(fail(error))
        else:
            asyncio.run_coroutine_threadsafe(settle_and_end(), loop)

    def close(self) -> None:
        """End the thread, once no coroutine runs."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            # The thread may have ended, if a coroutine left the event loop meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run_until_closed, args=(loop,), name="zndraw-joblib-async", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            self._loop = None
            loop.close()
            raise
        return loop

    def _run_until_closed(self, loop: asyncio.AbstractEventLoop) -> None:
        with closing(loop):
            while self._loop is loop:
                self._run_once(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())

    def _run_once(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            exit_if_forked(self._pid)
        # asyncio raises a SystemExit of a task that a job started, and leaves the loop; its other tasks wait.
        except BaseException as error:
            exit_if_forked(self._pid, error)
            log.warning("A coroutine ended the event loop, which continues: %s", describe(error))


# Log the end of each task of a worker, one line each, and at the level DEBUG its start.


def log_start(task: ClaimedTask) -> None:
    """Log that a task starts."""
    if _task_log.isEnabledFor(logging.DEBUG):
        _log_task(logging.DEBUG, task, "started")


def log_end(task: ClaimedTask, outcome: Outcome, seconds: float, of: int = 1) -> None:
    """Log how a task ended here; a failure with the last line of the job's own code that it passed.

    `of` is how many tasks were in its batch.
    """
    is_failure = outcome.error is not None and not (outcome.is_release or task.cancelled.is_set())
    level = logging.ERROR if is_failure else logging.INFO
    if not _task_log.isEnabledFor(level):
        return
    took = duration_text(seconds) + (f" with {of - 1} others" if of > 1 else "")
    if task.cancelled.is_set():
        _log_task(level, task, f"ended after {took}: it was cancelled, requeued or lost")
    elif outcome.error is None:
        _log_task(level, task, f"completed in {took}", seconds=seconds)
    elif outcome.is_release:
        _log_task(level, task, f"goes back into its queue after {took}: {outcome.error}")
    else:
        _log_task(level, task, f"failed after {took}: {one_line(outcome.error, outcome.failure)}")


def _log_task(level: int, task: ClaimedTask, how: str, **fields: float) -> None:
    """Write a record with the short names of a task and its job, and with whole ones in its fields."""
    text = f"Task {task.task_id[:ID_CHARACTERS]} of {short_name(task.job_name)}"
    _task_log.log(level, "%s %s", text, how, extra={**task_fields(task), **fields})


# Spans of a worker, if the program has set up OpenTelemetry: of claims that got tasks, and of runs.


def record_claim(worker_id: UUID, tasks: Sequence[TaskResponse], sent_at: float) -> None:
    """Record the span of a claim that got tasks, linked to their submits. `sent_at` is a wall-clock time.

    A failure is logged: the tasks run without it.
    """
    try:
        _record_claim(worker_id, tasks, sent_at)
    except Exception:
        log.exception("A claim has no span: the tracer provider of the program failed")


def _record_claim(worker_id: UUID, tasks: Sequence[TaskResponse], sent_at: float) -> None:
    about = {
        "messaging.operation.type": "receive",
        "messaging.operation.name": "claim",
        "messaging.client.id": str(worker_id),
        "messaging.batch.message_count": len(tasks),
    }
    submits = [task.traceparent for task in tasks]
    span = start_span("claim", "CONSUMER", about, traceparents=submits, started_ns=int(sent_at * 1e9))
    if span is not None:
        span.end()


def end_task_span(span: TaskSpan | None, task: ClaimedTask, outcome: Outcome) -> None:
    """End the span of a task's run. A failure is logged: the task is reported all the same."""
    try:
        end_span(span, task, outcome)
    except Exception:
        log.exception("The span of task %s did not end: the tracer provider failed", task.task_id)


def start_task_span(task: ClaimedTask, how: RunSpans) -> TaskSpan | None:
    """Start the span of a task's run. A failure is logged: the task runs without a span."""
    worker, context = str(task.worker_id), task.traceparent
    try:
        return start_run(task.job_name, task.task_id, worker, task.attempt, traceparent=context, how=how)
    except Exception:
        log.exception("Task %s runs without a span: the tracer provider of the program failed", task.task_id)
        return None
