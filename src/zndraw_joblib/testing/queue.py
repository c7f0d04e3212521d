"""A mounted queue in a test: its database, clock, sweeper and checks of submits, with or without a loop."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack
from uuid import UUID

from fastapi import FastAPI

from zndraw_joblib.jobs.extensions import PolicyOptions
from zndraw_joblib.server.admin import rules_searches
from zndraw_joblib.server.background.sweeper import Sweeper
from zndraw_joblib.server.db import schema
from zndraw_joblib.server.db.database import Clock
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.host.mount import JobLib
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.process.ports import CursorPage, Identity
from zndraw_joblib.server.queue import rules_details, rules_sweep, rules_tasks, sql_webhooks
from zndraw_joblib.testing.job_runs import class_of, is_job, parsed, shown
from zndraw_joblib.testing.workers import AppLoop, InternalTasks, TestedJob, Workers
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.groups import GroupResponse
from zndraw_joblib.wire.messages import SubmitOptions, SweeperCycle, TaskResponse
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.operators import TaskFilter
from zndraw_joblib.wire.progress import MAX_LOG_LINES


def make_database(path: Path) -> None:
    """Create a SQLite file with the queue's tables."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(_migrate(f"sqlite:///{path}"))


async def _migrate(url: str) -> None:
    database = open_database(url)
    try:
        await schema.upgrade(database)
    finally:
        await database.close()


async def current_user() -> Identity:
    """Return the only user of the smallest app, a superuser."""
    return Identity("tester", is_superuser=True)


@contextmanager
def smallest_app(path: Path) -> Iterator[FastAPI]:
    """Return an app with nothing but a queue on a SQLite file. Each caller is the superuser ``tester``."""
    database = open_database(f"sqlite:///{path}")
    app = FastAPI()
    JobLib(session_maker=database, identity=current_user).mount(app)
    try:
        yield app
    finally:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(database.close())


# Find submitted tasks, and list all of them where a test expects others.

_MAX_LISTED = 50
_MAX_PAYLOAD_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Expectation:
    """Which tasks a test expects; None matches any value, `payload` any payload with these fields."""

    job: Any
    room: str | None = None
    payload: Mapping[str, Any] | None = None
    created_by: str | None = None

    def matches(self, task: TaskResponse) -> bool:
        """Return whether a task is one of these."""
        return (
            is_job(parse_job_name(task.job_name), self.job)
            and self.room in {None, task.room_id}
            and self.created_by in {None, task.created_by}
            and (self.payload is None or _contains(task.payload, self.payload))
        )

    def __str__(self) -> str:
        """Return the expectation as part of a sentence."""
        parts = [f"of {shown(self.job)}"]
        parts += [] if self.room is None else [f"in room {self.room!r}"]
        parts += [] if self.created_by is None else [f"by {self.created_by!r}"]
        parts += [] if self.payload is None else [f"with {dict(self.payload)} in the payload"]
        return " ".join(parts)


def expect_submitted(
    expected: Expectation, tasks: Sequence[TaskResponse], count: int | None
) -> list[TaskResponse]:
    """Return the tasks that match. Raises AssertionError if there are none, or not `count`."""
    __tracebackhide__ = True
    matches = [task for task in tasks if expected.matches(task)]
    if count is not None and len(matches) != count:
        raise AssertionError(
            f"Tasks {expected} that were submitted: {len(matches)}, expected {count}. {_listed(tasks)}"
        )
    if count is None and not matches:
        raise AssertionError(f"No task {expected} was submitted. {_listed(tasks)}")
    return matches


def expect_none(expected: Expectation, tasks: Sequence[TaskResponse]) -> None:
    """Raise AssertionError if a task matches."""
    __tracebackhide__ = True
    matches = [task for task in tasks if expected.matches(task)]
    if matches:
        raise AssertionError(
            f"Tasks {expected} that were submitted: {len(matches)}, expected none. {_listed(tasks)}"
        )


def _listed(tasks: Sequence[TaskResponse]) -> str:
    if not tasks:
        return "No task was submitted at all. A task of a transaction exists after its commit."
    lines = [f"- {_line(task)}" for task in tasks[-_MAX_LISTED:]]
    hidden = len(tasks) - len(lines)
    more = [f"- … and {hidden} before"] if hidden else []
    return "\n".join(["Submitted tasks:", *more, *lines])


def _line(task: TaskResponse) -> str:
    payload = json.dumps(task.payload, ensure_ascii=False)
    if len(payload) > _MAX_PAYLOAD_CHARACTERS:
        payload = payload[:_MAX_PAYLOAD_CHARACTERS] + " …"
    return f"{task.job_name} in room {task.room_id!r} by {task.created_by!r}, {task.status}: {payload}"


def _contains(value: Any, part: Any) -> bool:
    if isinstance(part, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and _contains(value[key], item) for key, item in part.items()
        )
    return bool(value == part)


# Run cycles of an app's sweeper at the moment that a test chooses.


class QueueSweeper:
    """A sweeper without what protects workers from a server that was away: grace and mass-expiry guard."""

    def __init__(self, joblib: JobLib) -> None:
        runtime = joblib.runtime
        self._timeout = joblib.settings.worker_timeout_seconds
        self._ahead = 0.0
        self._sweeper = Sweeper(
            runtime.write,
            joblib.settings,
            joblib.dispatcher.wake,
            write_short=runtime.write_short,
            monotonic=lambda: time.monotonic() + self._ahead,
            prune_content=joblib.task_results.prune,
        )

    async def sweep(self) -> SweeperCycle:
        """Run one cycle, and the one after it if the guard held the first one back."""
        self._ahead += self._timeout + 1
        self._sweeper.absence.forget()
        cycle = await self._sweeper.cycle()
        if cycle.is_held_back or cycle.held_users:
            self._sweeper.absence.forget()
            cycle = await self._sweeper.cycle()
        return cycle.summary


# A mounted queue in the hands of a test that runs in an event loop.

_PAGE = 500
_MAX_EVENTS = 10_000
# Jobs that submit each other could go on for ever.
_MOST_RUNS = 1000


class AsyncTestQueue:
    """The queue of a host's app, as a test sees it. The fixture `async_joblib_queue` returns one.

    It reads and changes the app's own queue, in its database, with or without the app's lifespan. The code
    of jobs runs in the thread and the event loop of the test, that of `JobLib(jobs=…)` in those of the app.
    `events` are those published since it was created, oldest first. Use it from one test only, and `close`
    it at the end.

    Raises ValueError for an app without a queue.
    """

    __test__ = False

    def __init__(self, app: FastAPI) -> None:
        joblib = getattr(app.state, "joblib", None)
        if not isinstance(joblib, JobLib):
            raise ValueError(
                "The app has no queue: call JobLib(...).mount(app) in the function that creates it, and "
                "return that app from the fixture joblib_app"
            )
        self._joblib, self._runtime = joblib, joblib.runtime
        self._clock, self._clock_of_app = TestClock(), joblib.clock
        self._call = AppLoop(self._runtime)
        self._internal = InternalTasks(app, joblib)
        self._workers = Workers(joblib, self._internal, self._call)
        self._sweeper = QueueSweeper(joblib)
        self.events: list[Emission] = []
        self._runtime.on_events = self.events.extend

    async def register(
        self, *jobs: Any, room: str | None = None, **policy: Unpack[PolicyOptions]
    ) -> list[str]:
        """Register job classes in a room, with a worker of the test; return their full names.

        The room is by default that of `@job`, or ``@global``; that of the jobs of `JobLib(jobs=…)` is
        ``@internal``, where the app's lifespan registers them too. `policy` sets fields of their `JobPolicy`,
        as for `JobManager.register`. In the room ``@internal`` they become internal jobs of the app; the
        class has their policy.
        """
        if not jobs:
            raise TypeError("register() got no job: pass the classes, register(Rotate, Scale)")
        served = [await self._workers.register(class_of(job), room, policy) for job in jobs]
        return [str(job.name) for job in served]

    async def submit(
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str = "test",
        user: str = "tester",
        on_end: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> TaskResponse:
        """Submit a task as the user with the id `user`, and return it.

        `job` is an instance, which is its own payload, a class, or a full name. A class that is not
        registered here is a job of ``@global``. Takes the other options of `JobLib.submit`, and raises what
        it raises, such as `JobNotFound` or `InvalidPayload`.
        """
        job_room = None if isinstance(job, str) else self._room_of(job)
        caller = Identity(user, is_superuser=False)
        call = self._joblib.submit(
            job, payload, room=room, job_room=job_room, identity=caller, on_end=on_end, **options
        )
        return await self._call(call)

    async def create_group(  # noqa: PLR0913 - one keyword for each field
        self,
        name: str | None = None,
        *,
        room: str = "test",
        user: str = "tester",
        on_end: Any = None,
        payload: Mapping[str, Any] | None = None,
        when: Literal["ended", "completed"] = "ended",
        expires_in_seconds: float | None = None,
    ) -> GroupResponse:
        """Create a group as the user with the id `user`, and return it, as `JobLib.create_group`.

        Submit tasks with ``submit(…, group=group.id)``, and seal it with `seal_group`. `work` runs the task
        of `on_end` too, with the results in its payload.
        """
        job_room = None if on_end is None or isinstance(on_end, str) else self._room_of(on_end)
        caller = Identity(user, is_superuser=False)
        call = self._joblib.create_group(
            room,
            name,
            on_end=on_end,
            payload=payload,
            when=when,
            expires_in_seconds=expires_in_seconds,
            job_room=job_room,
            identity=caller,
        )
        return await self._call(call)

    async def seal_group(self, group_id: UUID | str) -> GroupResponse:
        """Seal a group, and return it. It ends when all its tasks have ended."""
        return await self._call(self._joblib.seal_group(group_id))

    async def get_group(self, group_id: UUID | str) -> GroupResponse:
        """Return a group as it is now."""
        return await self._call(self._joblib.get_group(group_id))

    def _room_of(self, job: Any) -> str:
        return self._workers.name_of(class_of(job)).room_id

    async def tasks(self, job: Any = None, *, room: str | None = None) -> list[TaskResponse]:
        """Return all tasks, of one job or one room if given, oldest first."""
        return await self._call(self._tasks(job, room))

    async def _tasks(self, job: Any, room: str | None) -> list[TaskResponse]:
        filters = TaskFilter(room=[] if room is None else [room])
        read = self._runtime.database.read
        page = await read(rules_searches.find, filters, CursorPage(_PAGE, None))
        ids = [task.id for task in page.items]
        while page.next is not None:
            page = await read(rules_searches.find, filters, CursorPage(_PAGE, page.next))
            ids += [task.id for task in page.items]
        every = [await read(rules_tasks.get, task_id) for task_id in reversed(ids)]
        return every if job is None else [task for task in every if is_job(parsed(task.job_name), job)]

    async def assert_submitted(
        self,
        job: Any,
        *,
        room: str | None = None,
        payload: Mapping[str, Any] | None = None,
        created_by: str | None = None,
        count: int | None = None,
    ) -> list[TaskResponse]:
        """Return the submitted tasks of a job, whatever their status, oldest first.

        A class means the job of this name in any room. `payload` is a part that the payload must have, also
        inside nested objects. Raises AssertionError, with a list of what was submitted, if no task matches,
        or not exactly `count` tasks.
        """
        __tracebackhide__ = True
        return expect_submitted(Expectation(job, room, payload, created_by), await self.tasks(), count)

    async def refute_submitted(
        self,
        job: Any,
        *,
        room: str | None = None,
        payload: Mapping[str, Any] | None = None,
        created_by: str | None = None,
    ) -> None:
        """Raise AssertionError, with a list of what was submitted, if a task matches."""
        __tracebackhide__ = True
        expect_none(Expectation(job, room, payload, created_by), await self.tasks())

    async def work(self, job: Any = None, *, vis: Any = None) -> list[TaskResponse]:
        """Run the tasks that may start now, one after another; return those that ended, in this order.

        These are the tasks of one job, or of all jobs that are registered here. Each is claimed, started, run
        in this thread and reported, with its progress and its log; then the functions `on_end` of ended tasks
        are called. Tasks that are submitted meanwhile run too, and those that have waited for these. A class
        that is not registered yet becomes a job of ``@global``. `vis` is the first argument of `run`. A task
        that waits for a retry is not among the ended: `advance` the clock, and work again.

        Raises ValueError for the name of a job that is not registered here, AssertionError after 1,000 runs.
        """
        return await self._work(await self._workers.find(job), vis, _MOST_RUNS)

    async def _work(self, served: Sequence[TestedJob], vis: Any, limit: int) -> list[TaskResponse]:
        ended: list[TaskResponse] = []
        for _ in range(limit):
            task = await self._workers.run_next(served, vis)
            if task is None:
                await self._call(self._joblib.successors.handle_all())
                called = await self._call(self._joblib.end_hooks.call_once())
                # The app's own loop may have called a function that submitted a task.
                task = await self._workers.run_next(served, vis)
                if task is None and not called:
                    return ended
            if task is not None and rules_tasks.has_ended(task):
                ended.append(task)
        raise AssertionError(
            f"{_MOST_RUNS} tasks have run and others wait: does a job submit itself, or fail without an end?"
        )

    async def drain(self, *, vis: Any = None) -> list[TaskResponse]:
        """Work until no task of a job that is registered here waits, also not for a time or a retry.

        The clock advances to each such time. Returns the tasks that ended, and raises as `work` does.
        """
        ended: list[TaskResponse] = []
        for _ in range(_MOST_RUNS):
            ended += await self.work(vis=vis)
            due = await self._call(self._runtime.write(rules_sweep.next_due))
            if due.seconds is None:
                return ended
            await self.advance(max(0.0, due.seconds))
        raise AssertionError(f"Tasks still wait after {_MOST_RUNS} times at which some were due")

    async def advance(self, seconds: float) -> None:
        """Move the queue's clock forward, and queue the tasks that are due by then.

        Schedules submit theirs. What a server does later at its own times, as expiring workers, happens at
        the next `sweep`.
        """
        self._clock.advance(seconds)
        self._use_clock(self._clock)
        while await self._call(self._runtime.write(rules_sweep.enqueue_due)) == rules_sweep.TASKS_PER_BATCH:
            pass
        await self._call(self._joblib.schedules.submit_due())

    async def sweep(self) -> SweeperCycle:
        """Run one cycle of the sweeper, and return its summary.

        It expires silent workers, fails or retries their tasks, and applies all timeouts by the queue's
        clock, without the startup grace and the mass-expiry guard. The workers of this object stay alive.
        """
        await self._workers.keep_alive()
        cycle = await self._call(self._sweeper.sweep())
        await self._call(self._joblib.end_hooks.call_once())
        return cycle

    async def log(self, task: TaskResponse | UUID | str) -> list[str]:
        """Return the first 1,000 lines of the log of a task's last attempt. Raises `TaskNotFound`."""
        task_id = task.id if isinstance(task, TaskResponse) else UUID(str(task))
        page = await self._call(
            self._runtime.database.read(rules_details.log, task_id, None, 0, MAX_LOG_LINES)
        )
        return [line.text for line in page.lines]

    async def webhook_events(self, room: str = "test", webhook: str | None = None) -> list[dict[str, Any]]:
        """Return what the receivers of a room's webhooks and of those of its tasks get, oldest first.

        With `webhook`, only that of the webhook with this name. Each event was written by the transaction
        that ended its task, whether its receiver can be reached or not.
        """
        filters = {} if webhook is None else {"webhook": webhook}
        newest, _ = await self._call(
            self._runtime.database.read(sql_webhooks.deliveries, room, 2**63 - 1, _MAX_EVENTS, filters, None)
        )
        return [json.loads(delivery.body) for delivery in reversed(newest)]

    def close(self) -> None:
        """Give the app its own clock and internal jobs back, and record no more events."""
        self._runtime.on_events = None
        self._use_clock(self._clock_of_app)
        self._internal.close()

    def _use_clock(self, clock: Clock | None) -> None:
        self._joblib.clock = clock
        self._runtime.database.use_clock(clock)


# The same queue in the hands of a test without an event loop.

P = ParamSpec("P")
Result = TypeVar("Result")


def _blocking(
    method: Callable[Concatenate[AsyncTestQueue, P], Coroutine[Any, Any, Result]],
) -> "Callable[Concatenate[TestQueue, P], Result]":
    """Return a method of `TestQueue` that runs a method of `AsyncTestQueue`."""

    @wraps(method)
    def run(queue: "TestQueue", /, *args: P.args, **options: P.kwargs) -> Result:
        __tracebackhide__ = True
        return queue._run(method(queue._queue, *args, **options))

    return run


class TestQueue:
    """The queue of a host's app, as a test sees it. The fixture `joblib_queue` returns one.

    Its methods are those of `AsyncTestQueue`, for tests that are plain functions, with Starlette's
    `TestClient`. The code of jobs runs in the test's thread. Raises ValueError for an app without a queue.
    """

    __test__ = False

    def __init__(self, app: FastAPI) -> None:
        self._queue = AsyncTestQueue(app)
        self._runtime = app.state.joblib.runtime
        # With a factory, the runner leaves the event loop of this thread as it is.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    @property
    def events(self) -> list[Emission]:
        """The events published since this object was created, oldest first."""
        return self._queue.events

    register = _blocking(AsyncTestQueue.register)
    submit = _blocking(AsyncTestQueue.submit)
    create_group = _blocking(AsyncTestQueue.create_group)
    seal_group = _blocking(AsyncTestQueue.seal_group)
    get_group = _blocking(AsyncTestQueue.get_group)
    tasks = _blocking(AsyncTestQueue.tasks)
    assert_submitted = _blocking(AsyncTestQueue.assert_submitted)
    refute_submitted = _blocking(AsyncTestQueue.refute_submitted)
    work = _blocking(AsyncTestQueue.work)
    drain = _blocking(AsyncTestQueue.drain)
    advance = _blocking(AsyncTestQueue.advance)
    sweep = _blocking(AsyncTestQueue.sweep)
    log = _blocking(AsyncTestQueue.log)
    webhook_events = _blocking(AsyncTestQueue.webhook_events)

    def close(self) -> None:
        """Give the app its own clock and internal jobs back, and close the event loop of this object."""
        self._queue.close()
        self._runner.run(self._runtime.finish())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        __tracebackhide__ = True
        if _is_in_loop():
            work.close()
            raise RuntimeError(
                "This test runs in an event loop: use the fixture async_joblib_queue, and await its methods"
            )
        return self._runner.run(work)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
