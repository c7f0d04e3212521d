"""A mounted queue in the hands of a test that runs in an event loop."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from uuid import UUID

from fastapi import FastAPI

from zndraw_joblib.contract.events import Emission
from zndraw_joblib.contract.messages import SweeperCycle, TaskResponse
from zndraw_joblib.contract.progress import MAX_LOG_LINES
from zndraw_joblib.contract.searches import TaskFilter
from zndraw_joblib.server.host.requests import SubmitOptions
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.ports import CursorPage, Identity
from zndraw_joblib.server.service import details, searches, sweep, tasks
from zndraw_joblib.server.store.database import Clock
from zndraw_joblib.testing.app_loop import AppLoop
from zndraw_joblib.testing.clock import TestClock
from zndraw_joblib.testing.internal_tasks import InternalTasks
from zndraw_joblib.testing.job_classes import class_of, is_job, parsed
from zndraw_joblib.testing.submissions import Wanted, expect_none, expect_submitted
from zndraw_joblib.testing.sweeping import QueueSweeper
from zndraw_joblib.testing.workers import ServedJob, Workers
from zndraw_joblib.worker.registrations import PolicyOptions

_PAGE = 500
# Jobs that submit each other could go on for ever.
_MOST_RUNS = 1000


class AsyncTestQueue:
    """The queue of a host's app, as a test sees it. The fixture `async_joblib_queue` returns one.

    It reads and changes the app's own queue, in its database, with or without the app's lifespan. The code
    of jobs runs in the thread and the event loop of the test. `events` are those published since it was
    created, oldest first. Use it from one test only, and `close` it at the end.

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

        The room is by default that of `@job`, or ``@global``. `policy` sets fields of their `JobPolicy`, as
        for `JobManager.register`. In the room ``@internal`` they become internal jobs of the app; the class
        has their policy.
        """
        if not jobs:
            raise TypeError("register() got no job: pass the classes, register(Rotate, Scale)")
        served = [await self._workers.register(class_of(job), room, policy) for job in jobs]
        return [str(each.name) for each in served]

    async def submit(
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str = "test",
        user: str = "tester",
        **options: Unpack[SubmitOptions],
    ) -> TaskResponse:
        """Submit a task as the user with the id `user`, and return it.

        `job` is an instance, which is its own payload, a class, or a full name. A class that is not
        registered here is a job of ``@global``. Takes the other options of `JobLib.submit`, and raises what
        it raises, such as `JobNotFound` or `InvalidPayload`.
        """
        job_room = None if isinstance(job, str) else self._workers.name_of(class_of(job)).room_id
        caller = Identity(user, is_superuser=False)
        call = self._joblib.submit(job, payload, room=room, job_room=job_room, identity=caller, **options)
        return await self._call(call)

    async def tasks(self, job: Any = None, *, room: str | None = None) -> list[TaskResponse]:
        """Return all tasks, of one job or one room if given, oldest first."""
        return await self._call(self._tasks(job, room))

    async def _tasks(self, job: Any, room: str | None) -> list[TaskResponse]:
        wanted = TaskFilter(room=[] if room is None else [room])
        read = self._runtime.database.read
        found = await read(searches.find, wanted, CursorPage(_PAGE, None))
        ids = [task.id for task in found.items]
        while found.next is not None:
            found = await read(searches.find, wanted, CursorPage(_PAGE, found.next))
            ids += [task.id for task in found.items]
        every = [await read(tasks.get, task_id) for task_id in reversed(ids)]
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
        return expect_submitted(Wanted(job, room, payload, created_by), await self.tasks(), count)

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
        expect_none(Wanted(job, room, payload, created_by), await self.tasks())

    async def work(self, job: Any = None, *, vis: Any = None) -> list[TaskResponse]:
        """Run the tasks that may start now, one after another; return those that ended, in this order.

        These are the tasks of one job, or of all jobs that are registered here. Each is claimed, started, run
        in this thread and reported, with its progress and its log; then the functions `on_end` of ended tasks
        are called. Tasks that are submitted meanwhile run too. A class that is not registered yet becomes a
        job of ``@global``. `vis` is the first argument of `run`. A task that waits for a retry is not among
        the ended: `advance` the clock, and work again.

        Raises ValueError for the name of a job that is not registered here, AssertionError after 1,000 runs.
        """
        return await self._work(await self._workers.find(job), vis, _MOST_RUNS)

    async def _work(self, served: Sequence[ServedJob], vis: Any, most: int) -> list[TaskResponse]:
        ended: list[TaskResponse] = []
        for _ in range(most):
            task = await self._workers.run_next(served, vis)
            if task is None:
                called = await self._call(self._joblib.end_hooks.call_once())
                # The app's own loop may have called a function that submitted a task.
                task = await self._workers.run_next(served, vis)
                if task is None and not called:
                    return ended
            if task is not None and tasks.has_ended(task):
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
            due = await self._call(self._runtime.write(sweep.next_due))
            if due.seconds is None:
                return ended
            await self.advance(max(0.0, due.seconds))
        raise AssertionError(f"Tasks still wait after {_MOST_RUNS} times at which some were due")

    async def advance(self, seconds: float) -> None:
        """Move the queue's clock forward, and queue the tasks that are due by then.

        What a server does later at its own times, as expiring workers, happens at the next `sweep`.
        """
        self._clock.advance(seconds)
        self._use_clock(self._clock)
        while await self._call(self._runtime.write(sweep.enqueue_due)) == sweep.TASKS_PER_BATCH:
            pass

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
        found = await self._call(self._runtime.database.read(details.log, task_id, None, 0, MAX_LOG_LINES))
        return [line.text for line in found.lines]

    def close(self) -> None:
        """Give the app its own clock and internal jobs back, and record no more events."""
        self._runtime.on_events = None
        self._use_clock(self._clock_of_app)
        self._internal.close()

    def _use_clock(self, clock: Clock | None) -> None:
        self._joblib.clock = clock
        self._runtime.database.use_clock(clock)
