"""A mounted queue in the hands of a test without an event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from fastapi import FastAPI

from zndraw_joblib.testing.async_queue import AsyncTestQueue
from zndraw_joblib.wire.events import Emission

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
    tasks = _blocking(AsyncTestQueue.tasks)
    assert_submitted = _blocking(AsyncTestQueue.assert_submitted)
    refute_submitted = _blocking(AsyncTestQueue.refute_submitted)
    work = _blocking(AsyncTestQueue.work)
    drain = _blocking(AsyncTestQueue.drain)
    advance = _blocking(AsyncTestQueue.advance)
    sweep = _blocking(AsyncTestQueue.sweep)
    log = _blocking(AsyncTestQueue.log)

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
