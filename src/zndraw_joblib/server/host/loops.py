"""Start and stop the background loops of a queue, and learn early that the server stops."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any


def start(name: str, loop: Any) -> asyncio.Task[None]:
    """Return the task that runs a loop."""
    return asyncio.create_task(loop, name=f"zndraw-joblib {name}")


async def stop(loops: Sequence[asyncio.Task[None]]) -> None:
    """Cancel loops one after the other, and wait for the end of each."""
    for loop in loops:
        loop.cancel()
        await asyncio.wait([loop])


@contextmanager
def on_stop_signals(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` on SIGINT and SIGTERM, before the handlers that are installed already.

    A server waits for open requests before it ends the lifespan, so waiting requests must end earlier.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        earlier = before[signal.Signals(number)]
        if callable(earlier):
            earlier(number, frame)
        elif earlier == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, earlier in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, earlier)
