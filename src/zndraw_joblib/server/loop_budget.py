"""A budget for synchronous work on the event loop, so that it does not delay other requests."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopBudget:
    """Runs synchronous functions on one event loop, for about `seconds` in each of its cycles.

    Within the budget a function runs at once. When the budget is spent, functions wait for the next cycles,
    in order.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0
        self._is_started = False
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, in this cycle of the event loop or in a later one."""
        if not self._waiting and self._has_budget():
            return self._run(work)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        return await future

    def _has_budget(self) -> bool:
        return not self._is_started or self._spent < self._seconds

    def _run(self, work: Callable[[], Result]) -> Result:
        if not self._is_started:
            self._is_started, self._spent = True, 0.0
            asyncio.get_running_loop().call_soon(self._next_cycle)
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._spent += time.perf_counter() - start

    def _next_cycle(self) -> None:
        self._is_started = False
        while self._waiting and self._has_budget():
            work, future = self._waiting.popleft()
            if future.done():  # cancelled
                continue
            try:
                future.set_result(self._run(work))
            except BaseException as error:  # a panic of a Rust library is no Exception
                future.set_exception(error)
                if isinstance(error, SystemExit | KeyboardInterrupt):
                    raise
