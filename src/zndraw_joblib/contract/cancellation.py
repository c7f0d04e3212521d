"""Cancel the coroutine of a task when the task is cancelled or lost."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class CancelEvent(threading.Event):
    """A `threading.Event` that can call a function when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._call: Callable[[], object] | None = None

    def set(self) -> None:
        """Set the event, and call the function."""
        super().set()
        if (call := self._call) is not None:
            call()

    def call_when_set(self, call: Callable[[], object] | None) -> None:
        """Call a function once the event is set, perhaps twice and in any thread; None: no function."""
        self._call = call
        if call is not None and self.is_set():
            call()


async def await_until_set(work: Coroutine[Any, Any, Result], event: CancelEvent) -> Result:
    """Return what a coroutine returns; once the event is set, it gets one `CancelledError`."""
    loop = asyncio.get_running_loop()
    this: Any = asyncio.current_task()
    is_over = is_cancelled = False

    def cancel() -> None:
        nonlocal is_cancelled
        if not (is_over or is_cancelled):
            is_cancelled = this.cancel()

    def cancel_soon() -> None:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(cancel)

    event.call_when_set(cancel_soon)
    try:
        return await work
    finally:
        is_over = True
        event.call_when_set(None)
        if is_cancelled:
            this.uncancel()
