"""SIGINT and SIGTERM: the first asks, the second insists."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDINGS = (signal.SIGINT, signal.SIGTERM)
_EXIT_CODE_BASE = 128


@contextmanager
def caught(stop: Callable[[], None]) -> Iterator[None]:
    """In this block the first signal calls `stop`, and each later one raises in the main thread.

    `stop` runs inside the signal handler, so it must take no lock. A later SIGINT raises
    KeyboardInterrupt, a later SIGTERM SystemExit. On any other thread than the main one nothing is
    caught, and a signal that the process ignores stays ignored. The handlers that were there come back
    at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:
            asked = True
            stop()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(_EXIT_CODE_BASE + number)

    with handled(handle):
        yield


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """In this block `handle` gets SIGINT and SIGTERM, save what the process ignores. Main thread only."""
    heard = [ending for ending in ENDINGS if signal.getsignal(ending) is not signal.SIG_IGN]
    former = {ending: signal.signal(ending, handle) for ending in heard}
    try:
        yield
    finally:
        for ending, handler in former.items():
            signal.signal(ending, handler if handler is not None else signal.SIG_DFL)
