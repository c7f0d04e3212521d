"""Call functions that may never return: each in a daemon thread of its own."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from zndraw_joblib.jobs.forks import default_signals_in_forks, exit_if_forked

Result = TypeVar("Result")


def call_in_thread(
    name: str, work: Callable[[], Result], on_error: Callable[[BaseException], Result]
) -> "asyncio.Future[Result]":
    """Call `work` in a thread, and return a future of its result; `on_error` makes one of an exception.

    It does not use a thread pool: Python waits for the threads of a pool at exit, and a function that does
    not return would keep its thread from others.
    """
    loop, pid = asyncio.get_running_loop(), os.getpid()
    future: asyncio.Future[Result] = loop.create_future()

    def finish(result: Result) -> None:
        if not future.done():
            future.set_result(result)

    def run() -> None:
        try:
            with default_signals_in_forks():
                result = work()
        except BaseException as error:
            result = on_error(error)
        exit_if_forked(pid)
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(finish, result)

    try:
        threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    except RuntimeError as error:  # the system allows no more threads
        finish(on_error(RuntimeError(f"the server cannot start a thread: {error}")))
    return future
