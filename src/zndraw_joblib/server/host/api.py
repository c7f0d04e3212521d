"""The methods of `JobLib` for the code of a host: submit, read, cancel and follow tasks."""

import asyncio
import hashlib
import inspect
import logging
import math
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future as ThreadFuture
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack, cast
from uuid import UUID

from pydantic import ValidationError
from pydantic_core import to_json

from zndraw_joblib.jobs import codecs
from zndraw_joblib.jobs.logs import log_failed_work
from zndraw_joblib.jobs.outputs import EarlierTasks, after_of
from zndraw_joblib.server.background.end_hooks import EndHooks, Hook
from zndraw_joblib.server.background.loops import Health, reasons
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.host.groups import GroupApi
from zndraw_joblib.server.host.operators import identity_of, job_name
from zndraw_joblib.server.process.batcher import raised
from zndraw_joblib.server.process.ports import Identity, Page, RequestKey, Wake, identity_key
from zndraw_joblib.server.queue import (
    rules_idempotency,
    rules_jobs,
    rules_successors,
    rules_task_actions,
    rules_tasks,
    rules_transitions,
    rules_trees,
    rules_workers,
)
from zndraw_joblib.server.queue.rules_idempotency import Repeat
from zndraw_joblib.server.queue.rules_room_events import Part
from zndraw_joblib.server.queue.rules_tasks import Report, Submission
from zndraw_joblib.server.realtime.streams import Streams
from zndraw_joblib.server.runtime.problem_responses import invalid_part
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.history import Resync, RoomSnapshot, StreamEvent
from zndraw_joblib.wire.messages import (
    MAX_BATCH,
    MAX_PAGE,
    JobSummary,
    PaginatedResponse,
    SubmitOptions,
    TaskActionRequest,
    TaskResponse,
    TaskToSubmit,
    TaskUpdateRequest,
)
from zndraw_joblib.wire.names import (
    DEFAULT_ROOM,
    GLOBAL,
    JobName,
    format_key,
    missing_text,
    parse_job_name,
    parse_reference,
    task_room,
    validate_room_id,
)
from zndraw_joblib.wire.problems import (
    InvalidRequest,
    InvalidTaskTransition,
    JobNotFound,
    ProblemException,
    ServiceUnavailable,
)
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import check_batch

# The category, if it is given, and the name of a job.
ShortName = tuple[str | None, str]
Find = Callable[[ShortName, str], Awaitable[str]]


def new_task(
    job: Any,
    payload: Mapping[str, Any] | None,
    room: str | None,
    job_room: str | None,
    options: Mapping[str, Any],
) -> tuple[JobName, TaskToSubmit]:
    """Return a task to submit, with the name of its job. Raises the problems of a REST request."""
    if isinstance(job, TaskToSubmit):
        validate_room_id(job.room_id)
        rules_transitions.check_size("payload", job.payload)
        return parse_job_name(job.job_name), job
    try:
        name, content = _name_and_payload(job, payload, job_room)
    except ValueError as error:  # it is not JSON
        raise InvalidRequest(str(error)) from error
    unknown = options.keys() - SubmitOptions.__annotations__
    if unknown:
        names = ", ".join(SubmitOptions.__annotations__)
        raise TypeError(f"unknown options of a submit: {', '.join(sorted(unknown))}. Known are: {names}")
    values = {field: value for field, value in options.items() if value is not None}
    if isinstance(url := values.get("webhook"), str):
        values["webhook"] = {"url": url}
    try:
        values["after"] = after_of(values.get("after"), content, EarlierTasks())
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    try:
        fields = {"room_id": validate_room_id(task_room(room, name)), "job_name": str(name), **values}
        task = TaskToSubmit.model_validate({**fields, "payload": content})
    except ValidationError as error:
        raise invalid_part(error) from error
    rules_transitions.check_size("payload", task.payload)
    return name, task


def _name_and_payload(
    job: Any, payload: Mapping[str, Any] | None, job_room: str | None
) -> tuple[JobName, Any]:
    name = job_name(job, job_room)
    if isinstance(job, str) or inspect.isclass(job):
        return name, codecs.plain_payload(payload)
    if payload is not None:
        raise TypeError(
            f"payload: the instance of {type(job).__name__} is its own payload; leave payload out"
        )
    return name, codecs.payload_of(job)


def request_key(
    kind: str, caller: Identity, key: str | None, content: Any, keep_hours: float
) -> RequestKey | None:
    """Return the key of a host's call. Keys of REST requests are others. Raises `InvalidIdempotencyKey`."""
    if key is None:
        return None
    format_key(key)
    fingerprint = kind.encode() + b"\n" + to_json(content)
    return RequestKey(
        _digest(f"{caller.id}\nhost\n{key}".encode()),
        _digest(fingerprint),
        timedelta(hours=keep_hours),
        caller.id,
    )


def _digest(content: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(content).digest()[:16])


# Follow the events of a room or of a task in the host's own process.

HostEvent = TaskResponse | RoomSnapshot | Resync | StreamEvent
# An event ends the wait at once; this bounds the time after which a lost one is found.
_WAIT_SECONDS = 15.0


async def follow(
    streams: Streams,
    runtime: Runtime,
    caller: Identity,
    *,
    room_id: str | None = None,
    task_id: UUID | None = None,
    after: int | None = None,
) -> AsyncGenerator[HostEvent]:
    """Yield what happens to the tasks of a room, or to one task until it ends."""
    if task_id is not None:
        room_id = (await runtime.get_task(task_id, with_position=False)).room_id
    if room_id is None:
        raise TypeError("events: pass task_id or room")
    async with streams.reader(caller, room_id, task_id) as reader:
        while True:
            part = await streams.read(reader, room_id, after)
            for event in _items(part):
                yield event
            if part.ended or reader.is_closed:
                return
            after = part.next
            if part.is_last:
                await reader.wait(_WAIT_SECONDS)


def _items(part: Part) -> Iterator[HostEvent]:
    if part.resync is not None:
        yield part.resync
    if part.snapshot is not None:
        yield part.snapshot
    for item in part.events:
        yield StreamEvent.model_validate_json(item.json)


P = ParamSpec("P")
Result = TypeVar("Result")
HookT = TypeVar("HookT", bound=Hook)
logger = logging.getLogger(__name__)


class Removal:
    """The removal of a user's workers. It goes on if its caller does not wait for it."""

    def __init__(self, started: "asyncio.Task[None] | ThreadFuture[None]") -> None:
        self._started = started

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for its end, and raise its error."""
        started = self._started
        future = asyncio.wrap_future(started) if isinstance(started, ThreadFuture) else started
        return asyncio.shield(future).__await__()

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._started.done()

    def result(self, timeout: float | None = None) -> None:
        """Raise its error. In a thread without an event loop, wait for its end first, as `timeout` allows.

        Raises TimeoutError after `timeout` seconds, and `asyncio.InvalidStateError` in an event loop before
        the end: `await` it there.
        """
        if isinstance(self._started, ThreadFuture):
            self._started.result(timeout)
        else:
            self._started.result()


class HostApi(GroupApi):
    """What a host's code calls. Room guards do not apply: the host decides who may do what.

    `identity` is the user that the host acts for, an object with `id` and `is_superuser`; without it the
    host acts as ``@host``, a superuser. With `session`, an `AsyncSession` on the queue's database, a call is
    a part of the session's transaction: it takes effect if and when the host commits, and workers and
    clients are notified after that. The methods return the contract's models and raise its problems.
    """

    end_hooks: EndHooks
    health: Health
    # The event loop of the lifespan.
    loop: asyncio.AbstractEventLoop | None = None

    def create_tables(self, connection: Any) -> Any:
        """Create the queue's tables, or upgrade them, in the transaction of a host's connection.

            await joblib.create_tables(connection)  # in `async with engine.begin() as connection`
            await connection.run_sync(joblib.create_tables)  # the same

        The queue's own Alembic version table is set, so that later upgrades work. Raises `OutdatedSchema` for
        the tables of a newer release.
        """
        return schema.create_tables(connection)

    async def failed_checks(self) -> dict[str, str]:
        """Return why the queue is not ready, by the name of each check; nothing while it is ready.

        It takes at most 3 s, and is cached for one second. The reasons are for the host's log: they may name
        the database. ``mount(app, health="/health")`` adds probes without them.
        """
        return reasons(await self.health.check())

    def on_end(self, name: str) -> Callable[[HookT], HookT]:
        """Return a decorator that gives a function a name, for ``submit(…, on_end=name)``.

        The function takes the ended `TaskResponse`. A plain function runs in a thread.
        """

        def add(function: HookT) -> HookT:
            self.end_hooks.add(name, function)
            return function

        return add

    async def submit(  # noqa: PLR0913 - one keyword for each option
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str | None = None,
        job_room: str | None = None,
        identity: Any = None,
        session: Any = None,
        idempotency_key: str | None = None,
        on_end: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> TaskResponse:
        """Submit a task from `room`, by default the room of the job; ``default`` for a common one.

        `job` is as for `Queue.submit`: the name of a job, full or as the room sees it, an `Extension` class,
        or an instance of one, which is its own payload, or a `NewTask`. The job of a class is in `job_room`,
        by default its own. The task's `created_by` is the id of `identity`. Calls with the same
        `idempotency_key` and arguments submit one task. After its end, however it ended, a process of the
        host calls the function of the name `on_end` at least once, again after a failure or a crash.

        `after` is what it waits for: tasks and groups by their responses or ids, one, a list, or an `After`.
        ``Output(task, "/pointer")`` in the payload stands for a part of the result of a task, which it waits
        for too.

        Raises the problems of ``POST /rooms/{room}/tasks/{job}``, such as `JobNotFound`, `InvalidPayload` and
        `ServiceUnavailable`. On PostgreSQL, other submits of the job wait until the `session` ends.
        """
        caller = identity_of(identity)
        find = self._finder(session)
        name, task = await self._new_task((job, payload), room, job_room, options, find)
        rules_successors.check_ids(task.after)
        hours = self.runtime.settings.idempotency_key_hours
        key = request_key("submit", caller, idempotency_key, [task, on_end], hours)
        item = self.runtime.submission(caller, task.room_id, name, task, key)
        item.on_end = self.end_hooks.check(on_end)

        async def put(item: Submission) -> TaskResponse:
            rules_tasks.set_payload_keys([item])
            return await self._write(session, _submit, item)

        async with self._near_names([item], session):
            if session is None:
                return await self.dispatcher.submit(item)
            return await self.runtime.payload_validator.submit_one(self._deferred(item), put)

    async def submit_many(  # noqa: PLR0913 - one keyword for each option
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        job_room: str | None = None,
        identity: Any = None,
        session: Any = None,
        idempotency_key: str | None = None,
        on_end: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[TaskResponse]:
        """Submit up to 1,000 tasks in one transaction: all of them, or none.

        A task is an instance of an `Extension`, or a `NewTask` or `TaskToSubmit` with its own room, job and
        options. The other arguments are as for `submit`. Raises the problem of the first task that cannot be
        submitted; it names the task, like ``tasks.3``.
        """
        caller = identity_of(identity)
        given, find = list(tasks), self._finder(session)
        if len(given) > MAX_BATCH:
            raise InvalidRequest(f"tasks: {len(given)} tasks, but one call submits at most {MAX_BATCH}")
        named_tasks = []
        for index, task in enumerate(given):
            with _at_task(index):
                named_tasks.append(await self._new_task((task, None), room, job_room, options, find))
        if not named_tasks:
            return []
        try:
            check_batch([task.after for _, task in named_tasks], is_atomic=True)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        hours = self.runtime.settings.idempotency_key_hours
        content = [[task for _, task in named_tasks], on_end]
        key = request_key("submit_many", caller, idempotency_key, content, hours)
        items = [self.runtime.submission(caller, task.room_id, name, task) for name, task in named_tasks]
        for item in items:
            item.on_end = self.end_hooks.check(on_end)
        async with self._near_names(items, session):
            if session is None:
                return await self.dispatcher.submit_all(items, key)
            write = partial(self._write, session)
            response = await self.runtime.submit_all(list(map(self._deferred, items)), key, write)
        return cast("list[TaskResponse]", response.result if isinstance(response, Repeat) else response)

    async def get(self, task_id: UUID | str, *, session: Any = None) -> TaskResponse:
        """Return a task. Raises `TaskNotFound`."""
        return await self._read(session, rules_tasks.get, _id(task_id))

    async def cancel(
        self, task_id: UUID | str, *, identity: Any = None, session: Any = None, tree: bool = False
    ) -> TaskResponse:
        """Cancel a task that has not ended; a worker that runs it is notified. Return it.

        With `tree`, cancel all tasks below it too, 500 in one transaction, or all in that of the `session`;
        then the task itself may have ended. Raises `TaskNotFound`, `InvalidTaskTransition` for a task that
        has ended otherwise, and `Forbidden` unless `identity` is its submitter or a superuser.
        """
        caller = identity_of(identity)
        update = TaskUpdateRequest(status=TaskStatus.CANCELLED, tree=tree)
        report = Report(caller, _id(task_id), update)
        if session is None:
            return await (self.runtime.cancel_tree if tree else self.runtime.report)(report)
        try:
            task: TaskResponse = await self._write(session, _report, report)
        except InvalidTaskTransition as problem:
            task = await self._read(session, rules_tasks.get, report.task_id)
            if not (tree and rules_trees.may_cancel_below(caller, task, problem)):
                raise
        if tree:
            write = partial(self._write, session)
            await rules_trees.cancel_tree(write, write, caller, report.task_id)
        return task

    async def run_now(
        self, task_id: UUID | str, *, identity: Any = None, session: Any = None
    ) -> TaskResponse:
        """Put a task into its queue before its `run_at` or the end of a pause between attempts. Return it.

        Raises `TaskNotFound`, `InvalidTaskTransition` for a task that is not pending, `Forbidden` unless
        `identity` is its submitter or a superuser, and `Conflict` for one that waits for a result.
        """
        validate, caller = self.runtime.settings.validate_payload, identity_of(identity)
        work = partial(rules_task_actions.run_now, validate=validate)
        if session is None:
            return await self.runtime.write(work, caller, _id(task_id), TaskActionRequest())
        return await self._write(session, work, caller, _id(task_id), TaskActionRequest())

    async def jobs(
        self, room: str = GLOBAL, *, limit: int = 50, offset: int = 0, session: Any = None
    ) -> PaginatedResponse[JobSummary]:
        """Return a page of the jobs that a room can use: its own and those of the reserved rooms."""
        return await self._read(session, rules_jobs.page, validate_room_id(room), Page(limit, offset))

    async def wait(self, task_id: UUID | str, timeout: float | None = None) -> TaskResponse:
        """Wait for the end of a task, and return it. It holds no database session while it waits.

        Raises TimeoutError if it has not ended after `timeout` seconds, by default never, `TaskNotFound`, and
        `ServiceUnavailable` if the server stops. It does not count as a waiting request.
        """
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        task = await self.runtime.get_task(_id(task_id), deadline - time.monotonic())
        if task.status in TERMINAL:
            return task
        if time.monotonic() < deadline:
            raise ServiceUnavailable("The server is stopping: it no longer waits for the task")
        raise TimeoutError(f"Task {task_id} has not ended after {timeout:g} s; it is {task.status}")

    def events(
        self,
        task_id: UUID | str | None = None,
        *,
        room: str | None = None,
        after: int | None = None,
        identity: Any = None,
    ) -> AsyncGenerator[HostEvent]:
        """Yield a snapshot of a task or of a room, and then each event, as the event stream does.

        Without `after`, the first item is a `TaskResponse` or a `RoomSnapshot`; with it, the events after
        that number follow. A `Resync` says that events are missing; a new snapshot follows. The others are
        `StreamEvent`. It ends with the task, and when the server stops; leave the loop of a room with `break`
        and close it with ``contextlib.aclosing``. Raises `TaskNotFound`, `ServiceUnavailable` and
        `TooManyRequests`; `max_streams_per_user` counts the streams of `identity`.
        """
        caller = identity_of(identity)
        if (task_id is None) == (room is None):
            raise TypeError("events: pass task_id or room")
        room_id = None if room is None else validate_room_id(room)
        wanted_id = None if task_id is None else _id(task_id)
        return follow(self.streams, self.runtime, caller, room_id=room_id, task_id=wanted_id, after=after)

    def disconnect_user(self, user_id: str) -> Removal:
        """End what a user has open on all servers. Call it after you have revoked the user's access.

        The user's sockets and event streams are closed, waiting requests are checked again, and the workers
        are removed: their tasks follow their retry policy. Other servers are notified over PostgreSQL or
        Redis; a server without that connection is not. The result is done once the workers are removed:
        `await` it, or call its `result()` in a thread without an event loop, as that of a route that is a
        plain function. Raises RuntimeError in such a thread if the app has not started.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self.loop is None:
                raise RuntimeError("disconnect_user: the app has not started") from None
            return Removal(asyncio.run_coroutine_threadsafe(self._disconnect(user_id), self.loop))
        return Removal(self._start_disconnect(user_id))

    async def _disconnect(self, user_id: str) -> None:
        await self._start_disconnect(user_id)

    def _start_disconnect(self, user_id: str) -> "asyncio.Task[None]":
        self.runtime.waiters.notify([Wake(identity_key(user_id))])
        return self.runtime.start(self._remove_workers(str(user_id)))

    async def _remove_workers(self, user_id: str) -> None:
        try:
            while await self.runtime.write(rules_workers.remove_some_of, user_id):
                pass
        except Exception as error:
            # Their requests are refused, so the sweeper removes them later.
            log_failed_work(logger, error, f"Did not remove the workers of user={user_id!r}")
            raise

    @asynccontextmanager
    async def _near_names(self, items: Sequence[Submission], session: Any) -> AsyncGenerator[None]:
        """Add the names of similar jobs to the problem of a submit of an unknown one."""
        try:
            yield
        except JobNotFound as problem:
            errors = (problem.problem.model_extra or {}).get("errors")
            item = items[int(errors[0]["loc"][-1]) if errors else 0]
            if (text := self._not_registered(item.job)) is None:
                page = await self.jobs(item.room_id, limit=MAX_PAGE, session=session)
                seen = [parse_job_name(job.full_name) for job in page.items]
                text = missing_text(str(problem), str(item.job), item.room_id, seen)
            problem.problem = problem.problem.model_copy(update={"detail": text})
            raise

    async def _new_task(
        self,
        given: tuple[Any, Mapping[str, Any] | None],
        room: str | None,
        job_room: str | None,
        options: Mapping[str, Any],
        find: Find,
    ) -> tuple[JobName, TaskToSubmit]:
        """Return a task to submit, with the name of its job; `given` are a job and a payload."""
        job, payload = given
        if not isinstance(job, str | TaskToSubmit) and not hasattr(job, "category"):
            # A host that passes one has loaded it.
            from zndraw_joblib.client.submits import NewTask  # noqa: PLC0415

            if isinstance(job, NewTask):
                if payload is not None:
                    raise TypeError("submit() got a NewTask, which has its payload: remove the other")
                options = {**options, **job.options(), **({} if job.after is None else {"after": job.after})}
                room, job_room, payload = job.room or room, job.job_room or job_room, job.payload
                job = job.job
        if isinstance(job, str) and not isinstance(reference := parse_reference(job), JobName):
            job, job_room = await find(reference, job_room or room or DEFAULT_ROOM), None
        return new_task(job, payload, room, self._room_of(job, job_room), options)

    def _finder(self, session: Any) -> Find:
        """Return a function that finds the full name of a job by what a room calls it, once for each name."""
        found: dict[tuple[ShortName, str], str] = {}

        async def find(short: ShortName, room: str) -> str:
            if (short, room) not in found:
                # Few hosts use short names.
                from zndraw_joblib.client.flows import choose_job  # noqa: PLC0415

                seen: list[JobName] = []
                page = await self.jobs(room, limit=MAX_PAGE, session=session)
                while page.items:
                    seen += [parse_job_name(job.full_name) for job in page.items]
                    page = await self.jobs(room, limit=MAX_PAGE, offset=len(seen), session=session)
                category, name = short
                found[short, room] = str(choose_job(seen, name, category, room))
            return found[short, room]

        return find

    def _deferred(self, item: Submission) -> Submission:
        """Let the dispatcher send a task of an internal job, after the host's commit."""
        self.dispatcher.configure(item)
        return replace(item, is_deferred=item.is_configured)


@contextmanager
def _at_task(index: int) -> Iterator[None]:
    """Add the index of a task to its problem."""
    try:
        yield
    except ProblemException as problem:
        raise rules_transitions.at_item(problem, "tasks", index) from problem.__cause__


async def _submit(tx: Transaction, item: Submission) -> TaskResponse:
    [result] = await rules_idempotency.submit(tx, [item])
    response = raised(result)
    task = cast("TaskResponse", response.result if isinstance(response, Repeat) else response)
    if not rules_tasks.has_body(task):
        await rules_tasks.load_body(tx, task)
    return task


async def _report(tx: Transaction, item: Report) -> TaskResponse:
    [result] = await rules_tasks.report(tx, [item])
    return raised(result)


def _id(task_id: UUID | str) -> UUID:
    try:
        return task_id if isinstance(task_id, UUID) else UUID(task_id)
    except ValueError as error:
        raise InvalidRequest(f"task_id: {task_id!r:.100} is not a UUID") from error
