"""Threads of a worker. A loop that fails unexpectedly is logged, and starts again."""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from zndraw_joblib.jobs.forks import exit_if_forked
from zndraw_joblib.jobs.logs import ExponentialBackoff

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0
_SETTLED_SECONDS = 60.0
_LAST_TRIES = 3


def make_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Return a thread that does not keep the program running."""
    return threading.Thread(target=run, name=f"zndraw-joblib-{name}", daemon=True)


def start_thread(name: str, run: Callable[[], None]) -> threading.Thread:
    """Start a thread and return it."""
    thread = make_thread(name, run)
    thread.start()
    return thread


def make_loop(name: str, run: Callable[[], None], stop: threading.Event) -> threading.Thread:
    """Return a thread that calls `run` until it returns. After an exception it calls `run` again.

    A pause of 1 s is between them, doubling to 15 s. Once `stop` is set there is no pause, and `run` may fail
    three times more.
    """
    return make_thread(name, lambda: _keep_running(name, run, stop))


def start_loop(name: str, run: Callable[[], None], stop: threading.Event) -> threading.Thread:
    """Start a thread of `make_loop` and return it."""
    thread = make_loop(name, run, stop)
    thread.start()
    return thread


def _keep_running(name: str, run: Callable[[], None], stop: threading.Event) -> None:
    pid, backoff, tries = os.getpid(), ExponentialBackoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS), 0
    while tries < _LAST_TRIES:
        began = time.monotonic()
        try:
            run()
        # BaseException: the code of a host may call sys.exit().
        except BaseException as error:
            exit_if_forked(pid, error)
            tries += stop.is_set()
            if time.monotonic() - began > _SETTLED_SECONDS:
                backoff.reset()
            pause = backoff.next()
            log_defect("The thread %s of this worker failed; it starts again in %.1f s", name, pause)
            stop.wait(pause)
        else:
            return


def log_defect(what: str, *parts: object) -> None:
    """Log the exception that is being handled. The log may be what failed, so this raises nothing."""
    with suppress(Exception):
        log.exception(f"{what}. This is a defect: please report it with these lines", *parts)
