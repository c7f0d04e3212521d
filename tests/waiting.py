"""Waiting for a condition that no event announces."""

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

# Long enough for a machine under load; a condition that holds costs at most one interval more.
TIMEOUT_SECONDS = 60.0


@overload
async def until(
    condition: Callable[[], Awaitable[T]], timeout: float = TIMEOUT_SECONDS, *, interval: float = 0.005
) -> T: ...
@overload
async def until(
    condition: Callable[[], T], timeout: float = TIMEOUT_SECONDS, *, interval: float = 0.005
) -> T: ...
async def until(
    condition: Callable[[], T | Awaitable[T]], timeout: float = TIMEOUT_SECONDS, *, interval: float = 0.005
) -> T:
    """Return the first true result of `condition`, a function or a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, _describe(condition, timeout)
        await asyncio.sleep(interval)


def wait_until(condition: Callable[[], T], timeout: float = TIMEOUT_SECONDS, *, interval: float = 0.01) -> T:
    """Return the first true result of `condition`, for tests without an event loop."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, _describe(condition, timeout)
        time.sleep(interval)
    return found


def suspend(pid: int) -> None:
    """Stop a child process, and return when all its threads have stopped.

    The signal alone stops nothing until one thread is scheduled and handles it; others go on until then.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


def _describe(condition: Callable[[], object], timeout: float) -> str:
    """Return an error text with the source of the condition."""
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    return f"Not true within {timeout:g} s: {source}"
