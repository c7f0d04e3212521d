"""Call a host's functions after the ends of tasks, at least once for each, also after a crash."""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from zndraw_joblib.jobs.logs import create_shared_task, log_fields
from zndraw_joblib.server.process.ports import task_key
from zndraw_joblib.server.process.threads import call_in_thread
from zndraw_joblib.server.queue import rules_details, rules_tasks
from zndraw_joblib.server.queue.sql_details import Lease
from zndraw_joblib.server.runtime.runtime import Runtime
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.problems import TaskNotFound

logger = logging.getLogger(__name__)
Hook = Callable[[TaskResponse], Awaitable[Any] | Any]
# One end of one task.
EndKey = tuple[UUID, datetime]

# A coroutine is over, or was cancelled, before another server takes its call. A thread extends its lease.
_LEASE_PER_TIMEOUT = 1.5
# Calls of one function in a process, with the threads that exceed the time limit.
_MAX_CALLS_OF_FUNCTION = 10
# Ends that follow each other are looked for together.
_PAUSE_SECONDS = 0.02
_RETRY_SECONDS, _FINISH_SECONDS = 5.0, 5.0


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way. `freed` is set when it holds no slot any longer.

    `is_late`: its thread runs for longer than the time limit. `lease` is replaced if it ran out and this
    process took it again.
    """

    lease: Lease
    is_late: bool = False
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def key(self) -> EndKey:
        """Which end of which task it is for."""
        return self.lease.task_id, self.lease.completed_at


class EndHooks:
    """The functions that this process knows, by name. `run` calls those that are due.

    A notification of an end wakes it; without one it looks after `poll_seconds`. At most `concurrency`
    functions run at once, each for `on_end_timeout_seconds`. A thread cannot be stopped: after that time it
    continues outside the slots, and its call is not repeated before it ends. A function that does not return
    stops no other: a process has at most 10 calls of one.
    """

    def __init__(
        self,
        runtime: Runtime,
        functions: Mapping[str, Hook],
        *,
        poll_seconds: float = 30.0,
        concurrency: int = 10,
    ) -> None:
        self._runtime = runtime
        self._poll_seconds, self._concurrency = poll_seconds, concurrency
        self._functions: dict[str, Hook] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._taking = asyncio.Lock()
        self._calls: dict[EndKey, _Call] = {}
        for name, function in functions.items():
            self.add(name, function)

    def add(self, name: str, function: Hook) -> None:
        """Add a function. Raises ValueError for a name that another one has, TypeError for no function."""
        if not callable(function):
            raise TypeError(
                f"on_end: {name!r} is {function!r:.100}, not a function that takes a TaskResponse"
            )
        if name in self._functions:
            raise ValueError(f"on_end: {name!r} is already the name of {self._functions[name]!r}")
        if not self._functions:
            self._runtime.waiters.subscribe(task_key(""), self._wake)
        self._functions[name] = function
        self._wake()

    def check(self, name: str | None) -> str | None:
        """Return a name. Raises ValueError if no function has it."""
        if name is not None and name not in self._functions:
            names = ", ".join(sorted(self._functions)) or "none"
            raise ValueError(
                f"on_end: no function has the name {name!r}; known are: {names}. Add it with "
                "JobLib(on_end={name: function}) or @joblib.on_end(name), in every process of the host"
            )
        return name

    def _wake(self, _: str = "") -> None:
        loop = self._loop
        if loop is not None and not self._woken.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Call functions until cancelled; then end the calls under way."""
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        try:
            while True:
                seconds = await self._call_due() if self._functions else None
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._woken.wait()
                await asyncio.sleep(_PAUSE_SECONDS)
                self._woken.clear()
        finally:
            await self._end_calls()

    async def call_once(self) -> int:
        """Call the functions that are due, and wait until no call holds a slot. Return how many did."""
        await self._call_due()
        calls = [call for call in self._calls.values() if not call.is_late]
        for call in calls:
            await call.freed.wait()
        return len(calls)

    async def _end_calls(self) -> None:
        """Let the calls under way end. Those that take too long are repeated after their leases."""
        calls = [call for call in self._calls.values() if call.task is not None]
        if on_time := [call.task for call in calls if call.task and not call.is_late]:
            await asyncio.wait(on_time, timeout=_FINISH_SECONDS)
        for call in calls:
            if call.task is not None:
                call.task.cancel()

    async def _call_due(self) -> float:
        """Begin the calls that are due. Return the seconds until it should look again."""
        async with self._taking:
            return await self._take_due()

    @property
    def _lease_seconds(self) -> float:
        return self._runtime.settings.on_end_timeout_seconds * _LEASE_PER_TIMEOUT

    async def _take_due(self) -> float:
        running = Counter(call.lease.name for call in self._calls.values())
        free = self._concurrency - sum(not call.is_late for call in self._calls.values())
        counts = {name: _MAX_CALLS_OF_FUNCTION - running[name] for name in self._functions}
        names = {name: count for name, count in counts.items() if count > 0}
        if free <= 0 or not names:
            return self._poll_seconds  # a call that ends wakes the loop
        try:
            due = await self._runtime.write(rules_details.take, names, free, self._lease_seconds)
        except Exception as error:
            logger.warning("Functions on_end are delayed: database unavailable error=%r", error)
            return _RETRY_SECONDS
        for lease in due.leases:
            self._begin(_Call(lease))
        return self._poll_seconds if due.seconds is None else min(self._poll_seconds, max(0.0, due.seconds))

    def _begin(self, call: _Call) -> None:
        if (running := self._calls.get(call.key)) is not None:
            running.lease = call.lease
            return
        self._calls[call.key] = call
        name = f"zndraw-joblib on_end {call.lease.name}"
        call.task = create_shared_task(self._call(call), name=name)
        call.task.add_done_callback(partial(self._ended, call))

    def _ended(self, call: _Call, task: "asyncio.Task[None]") -> None:
        del self._calls[call.key]
        call.freed.set()
        if not task.cancelled() and (error := task.exception()):
            # At the end of its lease it is called again.
            logger.warning("Did not record a call of a function on_end, it is repeated: error=%r", error)
        self._woken.set()

    async def _call(self, call: _Call) -> None:
        lease = call.lease
        with log_fields(task_id=str(lease.task_id)):
            try:
                task = await self._runtime.database.read(rules_tasks.get, lease.task_id)
            except TaskNotFound:
                return
            if lease.attempt > self._runtime.settings.on_end_max_attempts:
                # The calls before have ended the process, or were cancelled.
                await self._give_up(lease, None)
                return
            try:
                await self._invoke(call, self._functions[lease.name], task)
            except Exception as error:
                await self._failed(call.lease, error)
            else:
                await self._runtime.write(rules_details.finish, call.lease)

    async def _invoke(self, call: _Call, function: Hook, task: TaskResponse) -> None:
        called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
            result = function(task)
        else:
            result = await self._wait_for_thread(call, partial(function, task))
            if inspect.isawaitable(result):
                # The thread may have taken as long as a coroutine has.
                await self._extend(call)
        if inspect.isawaitable(result):
            async with asyncio.timeout(self._runtime.settings.on_end_timeout_seconds):
                await result

    async def _wait_for_thread(self, call: _Call, work: Callable[[], Any]) -> Any:
        """Return what `work` returns in a thread. After the time limit its call holds no slot."""
        seconds = self._runtime.settings.on_end_timeout_seconds
        future = call_in_thread(f"zndraw-joblib on_end {call.lease.name}", partial(_end_of, work), _failure)
        await asyncio.wait({future}, timeout=seconds)
        while not future.done():
            if not call.is_late:
                self._release_slot(call, seconds)
            await self._extend(call)
            await asyncio.wait({future}, timeout=seconds / 2)
        result, fault = future.result()
        if fault is not None:
            raise fault
        return result

    async def _extend(self, call: _Call) -> None:
        try:
            await self._runtime.write(rules_details.extend, call.lease, self._lease_seconds)
        except Exception as error:
            logger.warning("Did not extend a call of on_end=%s: error=%r", call.lease.name, error)

    def _release_slot(self, call: _Call, seconds: float) -> None:
        call.is_late = True
        call.freed.set()
        self._woken.set()
        name = call.lease.name
        late = sum(other.is_late and other.lease.name == name for other in self._calls.values())
        logger.warning(
            "on_end=%s task_id=%s runs for more than %g s (on_end_timeout_seconds). Its thread continues, "
            "and the call is repeated only if it ends with an error. late=%d; with %d late calls of a "
            "function, this process does not call it again",
            *(name, call.lease.task_id, seconds, late, _MAX_CALLS_OF_FUNCTION),
        )

    async def _failed(self, lease: Lease, error: Exception) -> None:
        max_attempts = self._runtime.settings.on_end_max_attempts
        about = (lease.name, lease.task_id, lease.attempt, max_attempts, error)
        if lease.attempt >= max_attempts:
            await self._give_up(lease, error)
            return
        pause = await self._runtime.write(rules_details.retry, lease)
        logger.warning("Repeat on_end=%s task_id=%s attempt=%d/%d error=%r in %.0f s", *about, pause)

    async def _give_up(self, lease: Lease, error: Exception | None) -> None:
        await self._runtime.write(rules_details.finish, lease)
        max_attempts = self._runtime.settings.on_end_max_attempts
        about = (lease.name, lease.task_id, min(lease.attempt, max_attempts), max_attempts, error)
        logger.error("Gave up on_end=%s task_id=%s attempt=%d/%d error=%r", *about, exc_info=error)


def _end_of(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    return work(), None


def _failure(error: BaseException) -> tuple[Any, Exception | None]:
    # SystemExit ends the thread, not the process.
    return None, error if isinstance(error, Exception) else RuntimeError(f"raised {error!r}")
