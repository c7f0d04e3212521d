"""A mounted queue in the hands of a test without an event loop."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, Unpack
from uuid import UUID

from fastapi import FastAPI

from zndraw_joblib.server.host.api import SubmitOptions
from zndraw_joblib.testing.async_queue import AsyncTestQueue, Wanted, expect_none, expect_submitted
from zndraw_joblib.wire.events import Emission
from zndraw_joblib.wire.messages import SweeperCycle, TaskResponse
from zndraw_joblib.worker.registrations import PolicyOptions

Result = TypeVar("Result")


class TestQueue:
    """The queue of a host's app, as a test sees it. The fixture `joblib_queue` returns one.

    Its methods are those of `AsyncTestQueue`, which documents them, for tests that are plain functions, with
    Starlette's `TestClient`. The code of jobs runs in the test's thread. Raises ValueError for an app without
    a queue.
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

    def register(self, *jobs: Any, room: str | None = None, **policy: Unpack[PolicyOptions]) -> list[str]:
        """Register job classes in a room, with a worker of the test; return their full names."""
        return self._run(self._queue.register(*jobs, room=room, **policy))

    def submit(
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        room: str = "test",
        user: str = "tester",
        **options: Unpack[SubmitOptions],
    ) -> TaskResponse:
        """Submit a task as the user with the id `user`, and return it."""
        return self._run(self._queue.submit(job, payload, room=room, user=user, **options))

    def tasks(self, job: Any = None, *, room: str | None = None) -> list[TaskResponse]:
        """Return all tasks, of one job or one room if given, oldest first."""
        return self._run(self._queue.tasks(job, room=room))

    def assert_submitted(
        self,
        job: Any,
        *,
        room: str | None = None,
        payload: Mapping[str, Any] | None = None,
        created_by: str | None = None,
        count: int | None = None,
    ) -> list[TaskResponse]:
        """Return the submitted tasks of a job that match. Raises AssertionError if there are none."""
        __tracebackhide__ = True
        return expect_submitted(Wanted(job, room, payload, created_by), self.tasks(), count)

    def refute_submitted(
        self,
        job: Any,
        *,
        room: str | None = None,
        payload: Mapping[str, Any] | None = None,
        created_by: str | None = None,
    ) -> None:
        """Raise AssertionError, with a list of what was submitted, if a task matches."""
        __tracebackhide__ = True
        expect_none(Wanted(job, room, payload, created_by), self.tasks())

    def work(self, job: Any = None, *, vis: Any = None) -> list[TaskResponse]:
        """Run the tasks that may start now, one after another; return those that ended, in this order."""
        return self._run(self._queue.work(job, vis=vis))

    def drain(self, *, vis: Any = None) -> list[TaskResponse]:
        """Work until no task waits, also not for a time or a retry; return the tasks that ended."""
        return self._run(self._queue.drain(vis=vis))

    def advance(self, seconds: float) -> None:
        """Move the queue's clock forward, and queue the tasks that are due by then."""
        self._run(self._queue.advance(seconds))

    def sweep(self) -> SweeperCycle:
        """Run one cycle of the sweeper, and return its summary."""
        return self._run(self._queue.sweep())

    def log(self, task: TaskResponse | UUID | str) -> list[str]:
        """Return the first 1,000 lines of the log of a task's last attempt. Raises `TaskNotFound`."""
        return self._run(self._queue.log(task))

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
