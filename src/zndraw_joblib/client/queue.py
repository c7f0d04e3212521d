"""The client: it submits tasks, follows them, reads results, and registers nothing.

Made from `client.async_queue` by `make generate`; do not edit.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from uuid import UUID

from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection, explained, find_access, raise_explained
from zndraw_joblib.client.flows import (
    WAIT_SECONDS,
    Flow,
    JobList,
    all_jobs,
    explain,
    logs,
    read,
    result_of,
    send_once,
    wait,
)
from zndraw_joblib.client.groups import NewGroupTask, is_refusal, parse_group_id, raise_refused
from zndraw_joblib.client.operators import Operator
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.results import ResultReader
from zndraw_joblib.client.retry import FastRule, RetryRule
from zndraw_joblib.client.schedules import Schedules
from zndraw_joblib.client.submits import Chunk, NewTask, Submits, Submitted, TaskOptions, checked_key
from zndraw_joblib.client.task_id import Bar, TaskId, id_of
from zndraw_joblib.client.watching import Following, TaskEvent, Watch, gather, rooms_of
from zndraw_joblib.client.webhooks import Webhooks
from zndraw_joblib.jobs.outputs import GroupHandle
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.history import NumberedLine, TaskExplanation, TaskHistory
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import DEFAULT_ROOM
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus

T = TypeVar("T")


class TaskHandle(TaskId[TaskRest]):
    """A task. It is its id as text: equal to it, and usable wherever an id is.

    `state` is the task as this handle read it last, None before that. All times are seconds. A copy or a
    pickle is the plain text.
    """

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Any:
        """Wait for the end of the task, and return its result as the value that its job returned.

        Raises `TaskFailed` with the code, the message and the traceback, `TaskCancelled`, TimeoutError after
        `timeout` seconds, and `ResultExpired`. The wait continues while the server restarts. `progress`
        shows a bar, also in a notebook.
        """
        return self._rest.run(result_of(self.wait(timeout, progress=progress), self._rule))

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> TaskResponse:
        """Wait for the end of the task, and return it. Raises TimeoutError after `timeout` seconds."""
        with Bar(shown=progress) as bar:
            step = bar.SECONDS if progress else WAIT_SECONDS
            flow = wait(self, timeout, self._rule, show=bar.show_task, step=step)
            return self._keep(self._rest.run(flow))

    def refresh(self) -> TaskResponse:
        """Return the task as it is now."""
        call = calls.get_task(self)
        task, _ = self._rest.run(read(call, self._what("Reading"), self._rule))
        return self._keep(task)

    def status(self) -> TaskStatus:
        """Return the status of the task now."""
        task = self.refresh()
        return task.status

    def events(self) -> Iterator[TaskEvent]:
        """Yield the events of the task, first a snapshot, until it has ended.

        After a lost connection it continues behind the last event.
        """
        following = Following(self, self._rule)
        while not following.has_ended:
            error: Exception | None = None
            try:
                with self._rest.stream(following.open()) as response:
                    for piece in response.iter_bytes():
                        yield from following.feed(piece)
            except Exception as caught:
                error = caught
            if not following.has_ended:
                try:
                    pause = following.lost(error)
                except Exception as final:
                    raise_explained(final, self._rest.explain)
                time.sleep(pause)

    def cancel(self, *, tree: bool = False) -> TaskResponse:
        """Cancel the task, and return it. Raises `InvalidTaskTransition` if it has ended otherwise.

        With `tree` cancel all tasks below it too, also if it has ended.
        """
        flow = send_once(self._what("Cancelling"), partial(self._cancel_call, tree=tree), None, self._rule)
        return self._keep(self._rest.run(flow))

    def retry(self) -> TaskResponse:
        """Put the failed or cancelled task into its queue again, and return it."""
        flow = send_once(self._what("Retrying"), self._retry_call, None, self._rule)
        return self._keep(self._rest.run(flow))

    def run_now(self) -> TaskResponse:
        """Put the task into its queue before its `run_at` or the end of a pause, and return it."""
        flow = send_once(self._what("Running"), self._run_now_call, None, self._rule)
        return self._keep(self._rest.run(flow))

    def logs(self, attempt: int | None = None) -> list[NumberedLine]:
        """Return the lines of the log of an attempt, by default of the current or last one."""
        return self._rest.run(logs(self, attempt, self._rule))

    def history(self) -> TaskHistory:
        """Return all transitions of the task, and the details of its last attempts."""
        call = calls.call(ops.GET_TASK_HISTORY, task_id=self)
        return self._rest.run(read(call, self._what("Reading the history of"), self._rule))

    def explain(self) -> TaskExplanation:
        """Return why the task has its status, most important reason first."""
        return self._rest.run(read(explain(self), self._what("Explaining"), self._rule))


# Submits, and the queue.


class Submitter:
    """A client that submits tasks."""

    def __init__(self, rest: TaskRest, rule: RetryRule, submits: Submits) -> None:
        self._rest = rest
        self._rule = rule
        self._submits = submits

    def submit(
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> TaskHandle:
        """Submit a task; return its handle, which is its id as text.

        The job and the options are those of `NewTask`. Two submits with the same `idempotency_key`, also from
        different processes, submit one task; by default, each call has a new key. Raises ValueError for
        invalid options, and for a payload that is not JSON, and `JobNotFound` with the nearest names.
        """
        flow = self._submits.submit(NewTask.of(job, payload, options), idempotency_key)
        task = self._rest.run(flow)
        return TaskHandle(task.id, self._rest, self._rule, state=task)

    @overload
    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: Literal[True],
        idempotency_key: str | None = None,
    ) -> list[TaskHandle]: ...

    @overload
    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> list[TaskHandle | ProblemException]: ...

    def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> Any:
        """Submit tasks in order; return for each its handle, or the problem if the server refused it.

        A task is an instance of an extension, or a `NewTask` with the arguments of `submit`; `room` is the
        room of each task without a room of its own. The tasks are sent in requests of up to 1,000 tasks. With
        `atomic`, all tasks (up to 1,000 of 8 MiB in all) are submitted or none, and the problem of the first
        refused one is raised.

        Raises ValueError for invalid options, and for a payload that is not JSON, before anything is sent; it
        names the task, like ``tasks.3``. If the server becomes unreachable in between, the error of the
        connection is raised: the call may be repeated with the same tasks and `idempotency_key`, and submits
        each task once.
        """
        flow = self._submits.submit_many(tasks, room, idempotency_key, atomic=atomic)
        return list(map(self._handle_or_problem, self._rest.run(flow)))

    def submit_chunks(
        self, requests: Iterable[Chunk], key: str | None = None
    ) -> Iterator[list[TaskHandle | ProblemException]]:
        """Send requests one after the other, each repeated with its own key; yield the results of each."""
        checked, submitted = checked_key(key), 0
        for number, chunk in enumerate(requests):
            results = self._rest.run(self._submits.submit_chunk(chunk, checked, number, submitted))
            yield [self._handle_or_problem(Submitted.of(result, None)) for result in results]
            submitted += chunk.tasks

    def _handle_or_problem(self, result: Submitted | ProblemException) -> TaskHandle | ProblemException:
        if isinstance(result, ProblemException):
            return result
        handle = TaskHandle(result.id, self._rest, self._rule, room=result.room)
        handle.duplicate = result.is_duplicate
        return handle


class Group(GroupHandle):
    """A group of tasks of a room. `with queue.group() as group:` makes it, and seals it at its end.

    If the block raises, the group stays open: no task of an incomplete group is followed by its `on_end`.
    But it ends if the server has refused all its tasks, it has no `on_end`, and no task waits for it.
    `tasks` are the handles of the tasks that this object has submitted.
    """

    def __init__(self, queue: "Queue", new: NewGroupTask, group_id: UUID | None = None) -> None:
        self._queue, self._new, self._id = queue, new, group_id
        self.tasks: list[TaskHandle] = []

    @property
    def id(self) -> UUID:
        """The id of the group. Raises RuntimeError before it is made."""
        if self._id is None:
            raise RuntimeError(
                "The group does not exist yet: use it in a `with` block, or call `create` first"
            )
        return self._id

    def create(self) -> Self:
        """Make the group, and return this object. Raises `JobNotFound` for an unknown job of `on_end`."""
        if self._id is None:
            group = self._queue.run(self._new.create(self._queue.submits))
            self._id = group.id
        return self

    def seal(self) -> GroupResponse:
        """Let no more tasks be added, and return the group. It ends when all its tasks have ended."""
        return self._queue.run(self._new.seal(self.id))

    def submit(
        self, job: Any, payload: Mapping[str, Any] | None = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle:
        """Submit a task to the group, as `Queue.submit`. Raises `GroupSealed`."""
        options = {"room": self._new.room, **options, "group": self.id}
        task = self._queue.submit(job, payload, **options)
        self.tasks.append(task)
        return task

    def map(self, job: Any, items: Iterable[Any], **options: Unpack[TaskOptions]) -> list[TaskHandle]:
        """Submit a task of a job for each payload, in requests of up to 1,000; return their handles.

        An item is a dict of the job's parameters. With `job` None, it is an instance of an extension. Raises
        the problem of the first task that was refused, with a note that names it, after the others were
        submitted.
        """
        options = {"room": self._new.room, **options, "group": self.id}
        new = [
            NewTask.of(item, None, options) if job is None else NewTask.of(job, item, options)
            for item in items
        ]
        results = self._queue.submit_many(new)
        tasks = [result for result in results if not isinstance(result, ProblemException)]
        self.tasks += tasks
        raise_refused(results)
        return tasks

    def refresh(self) -> GroupResponse:
        """Return the group as it is now: counts, progress, first failures."""
        return self._queue.run(self._new.read(self.id))

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> GroupResponse:
        """Wait for the end of the group, and return it. Raises TimeoutError after `timeout` seconds."""
        with Bar(shown=progress) as bar:
            show = bar.show_group if progress else None
            return self._queue.run(self._new.wait(self.id, timeout, show=show))

    def gather(
        self, timeout: float | None = None, *, return_exceptions: bool = False, progress: bool = False
    ) -> list[Any]:
        """Wait for the end of the group, and return the results of its tasks in the order of submission.

        The first failure is raised, or with `return_exceptions` each is returned in the place of its result.
        Raises `ResultExpired` if tasks of the group were deleted.
        """
        group = self.wait(timeout, progress=progress)
        return self._queue.run(self._new.results(group, return_exceptions=return_exceptions))

    def as_completed(self, *, timeout: float | None = None) -> Iterator[TaskHandle]:
        """Yield each of `tasks` once it has ended. Raises TimeoutError."""
        yield from self._queue.as_completed(self.tasks, timeout=timeout)

    def __enter__(self) -> Self:
        return self.create()

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if kind is None:
            self.seal()
        elif is_refusal(error) and not self.tasks and not self.has_followers:
            self._queue.run(self._new.seal_if_empty(self.id))

    def __repr__(self) -> str:
        return f"<Group {self._id or 'that does not exist yet'}>"


class Queue(Submitter, ResultReader):
    """A queue. Thread-safe; a context manager that closes its connections.

    Without `url` and `token` it uses ``ZNDRAW_JOBLIB_URL``, by default ``http://127.0.0.1:8000``, and
    ``ZNDRAW_JOBLIB_TOKEN`` or the token that the credentials file has for this URL. `room` is the room of
    tasks and of lookups that name none; without it a task belongs to the room of its job, or to ``default``.

    A response may take `timeout` seconds. Requests are repeated for `retry_seconds` while the server cannot
    be reached or a response is lost, each submit with the same `Idempotency-Key`; but a queue that has never
    reached its server raises `ServerUnreachable` at once. `schedules` and `webhooks` are those
    of rooms, and `operator` what superusers do: register and forget jobs, pause and resume jobs and rooms.
    """

    _watch: type[Watch] = Watch

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        room: str | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 30.0,
    ) -> None:
        access = find_access(url, token)
        self._connection = Connection(access.url, access.token, timeout)
        rest = TaskRest(self._connection, partial(explained, access))
        rule = FastRule(lambda: rest.has_reached, retry_seconds)
        super().__init__(rest, rule, Submits(rule, room, url=lambda: access.url))
        self._room = room or DEFAULT_ROOM
        self.schedules = Schedules(rest, rule, self._submits)
        self.webhooks = Webhooks(rest, rule, self._submits)
        self.operator = Operator(rest, rule, self._submits)

    def gather(
        self,
        *tasks: str,
        timeout: float | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> list[Any]:
        """Wait for the end of all tasks, and return their results in order.

        The queue reads the events of the tasks' rooms and pages of tasks, one request at a time, so it may
        wait for thousands. The first failure that it sees is raised; with `return_exceptions` it is returned
        in the place of the result. `progress` shows a bar. Raises TimeoutError after `timeout` seconds.
        """
        rooms = rooms_of(tasks)
        with Bar(shown=progress) as bar:
            show = partial(bar.show, "tasks")
            options: dict[str, Any] = {"return_exceptions": return_exceptions, "kind": self._watch}
            results = self._rest.run(gather(rooms, timeout, self._rule, show=show, **options))
        return [results[str(id_of(task))] for task in tasks]

    def as_completed(self, tasks: Iterable[str], *, timeout: float | None = None) -> Iterator[TaskHandle]:
        """Yield each task once it has ended; wait as `gather` does. Raises TimeoutError."""
        watch = self._watch(rooms_of(tasks), self._rule)
        deadline = inf if timeout is None else time.monotonic() + timeout
        while len(watch):
            for task_id in self._rest.run(watch.next_ended(deadline)):
                yield TaskHandle(task_id, self._rest, self._rule, state=watch.states.get(task_id))

    def group(
        self,
        name: str | None = None,
        *,
        room: str | None = None,
        on_end: Any = None,
        when: Literal["ended", "completed"] = "ended",
        expires_in_seconds: float | None = None,
    ) -> Group:
        """Return a new group, to use in a `with` block, without a request before that.

        `on_end` is the task that the server submits once all tasks of the group have ended, or with `when`
        ``completed`` if all have completed: a `NewTask`, an instance of an extension, or the name of a job.
        Its payload may have ``{"$group": "results"}`` and ``{"$group": "counts"}``. After
        `expires_in_seconds` waiting tasks fail. `room` is by default that of the queue.
        """
        new = NewGroupTask(self._rule, room or self._room, name, on_end, when, expires_in_seconds)
        return Group(self, new)

    def get_group(self, group_id: str | UUID) -> Group:
        """Return a group that exists, without a request. Raises ValueError for a text that is no UUID."""
        return Group(self, NewGroupTask(self._rule, self._room), parse_group_id(group_id))

    def run(self, flow: Flow[T]) -> T:
        """Return the result of a flow of requests."""
        return self._rest.run(flow)

    @property
    def submits(self) -> Submits:
        """What makes the requests of submits."""
        return self._submits

    def task(self, task_id: str | UUID) -> TaskHandle:
        """Return the handle of a task, without a request. Raises ValueError for a text that is no UUID."""
        return TaskHandle(task_id, self._rest, self._rule)

    def jobs(self, room: str | None = None) -> JobList:
        """Return all jobs that a room sees, by default that of the queue."""
        return self._rest.run(all_jobs(room or self._room, self._rule))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue at {self._connection.base_url}>"
