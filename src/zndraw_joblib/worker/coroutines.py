"""Run the coroutines of jobs with an `async def run`, all in one thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from zndraw_joblib.worker.execution import Outcome, await_task
from zndraw_joblib.worker.tasks import ClaimedTask


class Coroutines:
    """An event loop in a thread, which starts with the first coroutine. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.running = 0

    @property
    def is_current_thread(self) -> bool:
        """Return whether the caller is in a coroutine."""
        return threading.current_thread() is self._thread

    def run(
        self, work: Coroutine[Any, Any, Any], task: ClaimedTask, on_end: Callable[[Outcome], None]
    ) -> None:
        """Await what `execute` returned for a task, and call `on_end` in the thread of the loop."""

        async def await_and_end() -> None:
            outcome = await await_task(work, task, self._pid)
            with self._lock:
                self.running -= 1
            on_end(outcome)

        with self._lock:
            self.running += 1
            loop = self._loop or self._start()
        asyncio.run_coroutine_threadsafe(await_and_end(), loop)

    def close(self) -> None:
        """End the thread, once no coroutine runs."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run_until_stopped, args=(loop,), name="zndraw-joblib-async", daemon=True
        )
        self._thread.start()
        return loop


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
