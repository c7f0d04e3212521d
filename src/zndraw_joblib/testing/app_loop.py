"""Run a test's calls in the event loop in which the app runs."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from zndraw_joblib.server.runtime import Runtime

Result = TypeVar("Result")


class AppLoop:
    """Awaits coroutines in the loop of the app's lifespan while it runs, otherwise in the current loop.

    Starlette's `TestClient` runs a lifespan in a loop of another thread.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._waiters = runtime.waiters

    async def __call__(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a coroutine."""
        loop = self._waiters.loop
        if loop is None or not loop.is_running() or loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
