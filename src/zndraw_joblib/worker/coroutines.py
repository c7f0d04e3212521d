"""Run the coroutines of jobs with an `async def run`, all in one thread."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from typing import Any

from zndraw_joblib.client.retry import describe
from zndraw_joblib.contract.forks import exit_if_forked
from zndraw_joblib.worker.execution import Outcome, await_task, failed
from zndraw_joblib.worker.tasks import ClaimedTask

log = logging.getLogger(__name__)


class Coroutines:
    """An event loop in a thread, which starts with the first coroutine. Thread-safe.

    `upload` stores the content of an outcome; it is called in other threads.
    """

    def __init__(self, pid: int, upload: Callable[[ClaimedTask, Outcome], Outcome]) -> None:
        self._pid = pid
        self._upload = upload
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
        """Await what `execute` returned for a task, and call `on_end` in the thread of the loop.

        If that thread cannot start, the task has failed, and `on_end` is called in this one.
        """

        async def await_and_end() -> None:
            outcome = await await_task(work, task, self._pid)
            if outcome.content is not None:
                outcome = await asyncio.to_thread(self._upload, task, outcome)
            with self._lock:
                self.running -= 1
            on_end(outcome)

        try:
            with self._lock:
                loop = self._loop or self._start()
                self.running += 1
        except Exception as error:
            work.close()
            on_end(failed(task, error))
        else:
            asyncio.run_coroutine_threadsafe(await_and_end(), loop)

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
