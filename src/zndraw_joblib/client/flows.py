"""Sequences of requests without I/O: a generator yields a `Call` or a `Pause`, and gets the result.

A driver performs what a flow yields (`AsyncRest.run`, `TaskRest.run`): it sends the request of a call and
sends its result back, or throws its error into the flow; it sleeps for a pause.
"""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import Any, NamedTuple, Self, TypeVar
from uuid import UUID, uuid4

from zndraw_joblib.client import calls
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.retry import (
    FailureLog,
    RequestBackoff,
    RetryPlan,
    RetryRule,
    SendAttempts,
    describe,
    is_missing,
    is_repeatable,
)
from zndraw_joblib.client.task_id import table
from zndraw_joblib.jobs import codecs
from zndraw_joblib.jobs.failures import one_line
from zndraw_joblib.jobs.results import decode_content
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.history import NumberedLine, TaskExplanation
from zndraw_joblib.wire.messages import MAX_PAGE, JobSummary, TaskResponse
from zndraw_joblib.wire.names import GLOBAL, INTERNAL, JobName, missing_text, parse_job_name
from zndraw_joblib.wire.problems import GroupNotFound, JobNotFound, ResultExpired
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus

T = TypeVar("T")


class Pause(NamedTuple):
    """Sleep for some seconds."""

    seconds: float


Flow = Generator[Call[Any] | Pause, Any, T]


def ask(call: Call[T]) -> Flow[T]:
    """Send a request once, and return its result."""
    result: T = yield call
    return result


def repeated(call: Call[T], plan: RetryPlan) -> Flow[T]:
    """Send a request, and repeat it as `plan` says."""
    while True:
        try:
            result = yield from ask(call)
        except Exception as error:
            pause = plan.pause_after(error)
            if pause is None:
                raise
        else:
            plan.succeeded()
            return result
        yield Pause(pause)


def read(call: Call[T], what: str, rule: RetryRule) -> Flow[T]:
    """Send a request that changes nothing; repeat it as `rule` says."""
    return (yield from repeated(call, RetryPlan(what, rule.seconds, rule.may_read_again)))


def send_once(what: str, make: Callable[[str], Call[T]], key: str | None, rule: RetryRule) -> Flow[T]:
    """Send the request that `make` returns for a key; repeat it with this key while it gets no response."""
    request_key = str(uuid4()) if key is None else key
    attempt = SendAttempts()
    plan = RetryPlan(what, rule.seconds, lambda error: rule.may_repeat(error, attempt))
    try:
        return (yield from repeated(make(request_key), plan))
    except Exception as error:
        if attempt.may_be_applied and is_repeatable(error):
            error.add_note(f"The request may or may not have been applied. {rule.how_to_repeat(request_key)}")
        raise


# Wait for the end of a task, and read its result. Flows without I/O.

log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
_POLL_PAUSE_SECONDS = 0.25


class Polling:
    """Decides the pauses between requests for tasks while the server may be unreachable."""

    def __init__(self, what: str, rule: RetryRule) -> None:
        self._rule = rule
        self._backoff = RequestBackoff()
        self._failures = FailureLog(log, f"Waiting for {what}", is_brief=True)

    def answered(self, applied: int, elapsed: float) -> float:
        """Return the pause after a response; 0 if the server itself waited."""
        self._backoff.reset()
        self._failures.succeeded()
        return 0.0 if applied > 0 and elapsed > applied / 2 else _POLL_PAUSE_SECONDS

    def failed(self, error: Exception) -> float:
        """Return the pause after an error. Raises it if it is final."""
        if not self._rule.may_wait_on(error):
            raise error
        pause = self._backoff.after(error)
        self._failures.failed(error, pause)
        return pause


def wait(
    task_id: str,
    timeout: float | None,
    rule: RetryRule,
    *,
    show: Callable[[TaskResponse], object] | None = None,
    step: float = WAIT_SECONDS,
) -> Flow[TaskResponse]:
    """Return a task once it has ended; go on while the server restarts.

    `show` gets each state that is read, at least every `step` seconds. Raises TimeoutError after `timeout`
    seconds, with the reason why the task waits.
    """
    deadline = time.monotonic() + (inf if timeout is None else timeout)
    polling = Polling(f"task {task_id}", rule)
    while True:
        began = time.monotonic()
        task = None
        try:
            seconds = round(max(0.0, min(deadline - began, step)))
            task, applied = yield from ask(calls.get_task(task_id, seconds))
        except Exception as error:
            pause = polling.failed(error)
        else:
            pause = polling.answered(applied, time.monotonic() - began)
            if show is not None:
                show(task)
            if task.status in TERMINAL:
                return task
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            status = task.status if task else "out of reach"
            raise TimeoutError(f"Task {task_id} is {status} after {timeout:g} s{(yield from _why(task))}")
        yield Pause(min(pause, remaining))


def wait_for_group(
    group_id: UUID,
    timeout: float | None,
    rule: RetryRule,
    *,
    show: Callable[[GroupResponse], object] | None = None,
) -> Flow[GroupResponse]:
    """Return a group once it has ended, as `wait` returns a task.

    With `show`, which gets each change, follow its events; ask a server of an earlier release each second.
    """
    deadline = time.monotonic() + (inf if timeout is None else timeout)
    polling = Polling(f"group {group_id}", rule)
    reads = _GroupReads(group_id, follows=show is not None)
    while True:
        began = time.monotonic()
        try:
            group, applied = yield from reads.next(deadline - began)
        except Exception as error:
            pause = polling.failed(error)
        else:
            pause = polling.answered(applied, time.monotonic() - began)
            if show is not None and group is not None:
                show(group)
            if group is not None and group.ended_at is not None:
                return group
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"Group {group_id} has not ended after {timeout:g} s{_how_far(reads.last)}")
        yield Pause(min(pause, remaining))


def _how_far(group: GroupResponse | None) -> str:
    """Return why a group goes on, as the end of a sentence."""
    if group is None:
        return ""
    ended = group.counts.completed + group.counts.failed + group.counts.cancelled
    counts = f": {ended} of {group.total} tasks have ended"
    return counts if group.sealed else f"{counts}, and it is not sealed, so it takes further tasks"


class _GroupReads:
    """Reads a group until its end, or with `follows` each change of it."""

    def __init__(self, group_id: UUID, *, follows: bool) -> None:
        self._group_id = group_id
        self._follows = follows
        self._step = WAIT_SECONDS
        self._state: int | None = None
        self.last: GroupResponse | None = None

    def next(self, seconds: float) -> Flow[tuple[GroupResponse | None, int]]:
        """Return the group, None if it has not changed, and how many seconds the server agreed to wait."""
        group, applied = yield from self._read(round(max(0.0, min(seconds, self._step))))
        self.last = group or self.last
        return group, applied

    def _read(self, wait: int) -> Flow[tuple[GroupResponse | None, int]]:
        if not self._follows:
            return (yield from ask(calls.get_group(self._group_id, wait)))
        try:
            part, applied = yield from ask(calls.group_events(self._group_id, self._state, wait))
        except Exception as error:
            if isinstance(error, GroupNotFound) or not is_missing(error):
                raise
            self._follows, self._step = False, 1.0
            return None, 0
        self._state = part.next
        return part.group, applied


def group_results(group: GroupResponse, rule: RetryRule, *, return_exceptions: bool) -> Flow[list[Any]]:
    """Return the results of the tasks of a group that has ended, in the order of submission.

    The first task without a result is raised as `TaskFailed`, or with `return_exceptions` in its place.
    Raises `ResultExpired` if tasks were deleted: the results of the others would be in wrong places.
    """
    what = f"Reading the results of group {group.id}"
    results: list[Any] = []
    lines = yield from read(calls.read_group_results(group.id), what, rule)
    if len(lines) < group.total:
        raise ResultExpired(
            f"{group.total - len(lines)} of the {group.total} tasks of group {group.id} were deleted, by "
            "retention or a purge, so the results of the others have no place in a list. "
            f"GET /groups/{group.id}/results has them with their ids; keep_completed_days keeps tasks longer"
        )
    for line in lines:
        if line.status == TaskStatus.COMPLETED and not line.stored:
            results.append(codecs.decode(line.result))
            continue
        try:
            task, _ = yield from read(calls.get_task(str(line.id)), what, rule)
            results.append((yield from result_of(task, rule)))
        except Exception as error:
            if not return_exceptions:
                raise
            results.append(error)
    return results


def _why(task: TaskResponse | None) -> Flow[str]:
    """Return the first reason why a task waits, as the end of a sentence."""
    if task is None or task.status != TaskStatus.PENDING:
        return ""
    try:
        explanation = yield from ask(explain(str(task.id)))
    except Exception as error:
        log.debug("Explaining task %s: %s", task.id, describe(error))
        return ""
    return f": {explanation.reasons[0].detail}" if explanation.reasons else ""


def explain(task_id: str) -> Call[TaskExplanation]:
    """Return why a task has its status."""
    return calls.call(ops.EXPLAIN_TASK, task_id=task_id)


def result_of(task: TaskResponse, rule: RetryRule) -> Flow[Any]:
    """Return the result of a task that has ended, as the value that its job returned.

    Raises `TaskFailed`, or `ResultExpired`.
    """
    if task.status != TaskStatus.COMPLETED:
        raise TaskFailed.of(task)
    if task.stored_result is None and task.result is not None:
        return codecs.decode(task.result)
    return (yield from read_result(str(task.id), rule))


def read_result(task_id: str, rule: RetryRule) -> Flow[Any]:
    """Return the result of a task. Raises `ResultNotFound` if it has none (yet), and `ResultExpired`."""
    what = f"Reading the result of task {task_id}"
    return decode_content(*(yield from read(calls.read_task_result(task_id), what, rule)))


def logs(task_id: str, attempt: int | None, rule: RetryRule) -> Flow[list[NumberedLine]]:
    """Return the lines of an attempt's log, by default of the current or last one."""
    lines: list[NumberedLine] = []
    after = 0
    while True:
        query = {"attempt": attempt, "after": after}
        call = calls.call(ops.GET_TASK_LOG, query=query, task_id=task_id)
        part = yield from read(call, f"Reading the log of task {task_id}", rule)
        lines += part.lines
        if part.next is None:
            return lines
        attempt, after = part.attempt, part.next


# Find a job by the last part of its full name, as a room sees it.


class JobList(list[JobSummary]):
    """Jobs; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = [{"job": job.full_name, "workers": f"{len(job.workers):,}"} for job in self]
        return table(rows) if rows else "<p>no jobs</p>"


def all_jobs(room: str, rule: RetryRule) -> Flow[JobList]:
    """Return all jobs that a room sees."""
    jobs = JobList()
    while True:
        query = {"limit": MAX_PAGE, "offset": len(jobs)}
        call = calls.call(ops.LIST_JOBS, query=query, room_id=room)
        page = yield from read(call, f"Listing the jobs of room {room}", rule)
        jobs += page.items
        if not page.items or len(jobs) >= page.total:
            return jobs


def find_job(name: str, category: str | None, room: str, rule: RetryRule) -> Flow[JobName]:
    """Return the job that a name means in a room: its own one, or one of ``@global`` or ``@internal``.

    Raises `JobNotFound` with the nearest names, and `AmbiguousJob` for several categories.
    """
    seen = [parse_job_name(job.full_name) for job in (yield from all_jobs(room, rule))]
    return choose_job(seen, name, category, room)


def choose_job(seen: Sequence[JobName], name: str, category: str | None, room: str) -> JobName:
    """Return the job that a name means among those that a room sees; raise the errors of `find_job`."""
    searched = name if category is None else f"{category}:{name}"
    for owner in (room, GLOBAL, INTERNAL):
        jobs = [
            job
            for job in seen
            if job.room_id == owner and job.name == name and category in {None, job.category}
        ]
        if len(jobs) == 1:
            return jobs[0]
        if jobs:
            raise AmbiguousJob(
                f"The name {searched!r} is ambiguous: room {room!r} sees {', '.join(map(str, jobs))}. "
                "Pass the full name"
            )
    raise JobNotFound(missing_text(f"Room {room!r} sees no job {searched!r}", name, room, seen))


# The failure of a task as an exception of its submitter.


class TaskFailed(Exception):
    """A task has ended without a result: it failed, or it was cancelled (`TaskCancelled`).

    - `task_id`, `task`: its id and its last state.
    - `code`: ``error`` for an exception of the job, or the name of a problem, like ``worker-lost``.
    - `message`: the text of the failure.
    - `type`, `traceback`: the class of the job's exception and the frames of the job's code; None if the
      job raised none.
    """

    def __init__(self, task: TaskResponse) -> None:
        self.task_id: UUID = task.id
        self.task = task
        self.code = task.error_code or str(task.status)
        self.message = task.error or f"The task is {task.status}"
        self.type = task.failure.type if task.failure else None
        self.traceback = task.failure.traceback if task.failure else None
        super().__init__(
            f"Task {task.id} {task.status} ({self.code}): {one_line(self.message, task.failure)}"
        )
        if self.traceback:
            self.add_note(f"In the worker:\n{self.traceback.rstrip()}")

    @classmethod
    def of(cls, task: TaskResponse) -> Self | "TaskCancelled":
        """Return the exception for a task that failed or was cancelled."""
        return TaskCancelled(task) if task.status == TaskStatus.CANCELLED else cls(task)

    def __reduce__(self) -> tuple[type[Self], tuple[TaskResponse]]:
        return type(self), (self.task,)


class TaskCancelled(TaskFailed):
    """A task was cancelled, so it has no result."""


class AmbiguousJob(LookupError):
    """A room sees several jobs of this name; pass the full name of one."""
