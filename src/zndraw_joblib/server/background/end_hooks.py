"""Call a host's functions after the ends of tasks, at least once for each, also after a crash."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from zndraw_joblib.contract.logs import create_shared_task, log_fields
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.problems import TaskNotFound
from zndraw_joblib.server.ports import task_key
from zndraw_joblib.server.runtime import Runtime
from zndraw_joblib.server.service import end_hooks, tasks
from zndraw_joblib.server.store.tasks.end_hooks import Lease

logger = logging.getLogger(__name__)
Hook = Callable[[TaskResponse], Awaitable[Any] | Any]

# A call is over, or was cancelled, before another server takes it.
_LEASE_PER_TIMEOUT = 1.5
# Ends that follow each other are looked for together.
_PAUSE_SECONDS = 0.02
_RETRY_SECONDS, _FINISH_SECONDS = 5.0, 5.0


class EndHooks:
    """The functions that this process knows, by name. `run` calls those that are due.

    A notification of an end wakes it; without one it looks after `poll_seconds`. At most `concurrency`
    functions run at once, each for `on_end_timeout_seconds`.
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
        self._calls: set[asyncio.Task[None]] = set()
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
            known = ", ".join(sorted(self._functions)) or "none"
            raise ValueError(
                f"on_end: no function has the name {name!r}; known are: {known}. Add it with "
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
        """Call the functions that are due, and wait for all calls under way. Return how many those were."""
        await self._call_due()
        calls = set(self._calls)
        if calls:
            await asyncio.wait(calls)
        return len(calls)

    async def _end_calls(self) -> None:
        """Let the calls under way end. Those that take too long are repeated after their leases."""
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=_FINISH_SECONDS)
            for call in late:
                call.cancel()

    async def _call_due(self) -> float:
        """Begin the calls that are due. Return the seconds until it should look again."""
        async with self._taking:
            return await self._take_due()

    async def _take_due(self) -> float:
        free = self._concurrency - len(self._calls)
        if free <= 0:
            return self._poll_seconds  # a call that ends wakes the loop
        lease_seconds = self._runtime.settings.on_end_timeout_seconds * _LEASE_PER_TIMEOUT
        try:
            due = await self._runtime.write(end_hooks.take, list(self._functions), free, lease_seconds)
        except Exception as error:
            logger.warning("Functions on_end are delayed: database unavailable error=%r", error)
            return _RETRY_SECONDS
        for lease in due.leases:
            call = create_shared_task(self._call(lease), name=f"zndraw-joblib on_end {lease.name}")
            self._calls.add(call)
            call.add_done_callback(self._ended)
        return self._poll_seconds if due.seconds is None else min(self._poll_seconds, max(0.0, due.seconds))

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled() and (error := call.exception()):
            # At the end of its lease it is called again.
            logger.warning("Did not record a call of a function on_end, it is repeated: error=%r", error)
        self._woken.set()

    async def _call(self, lease: Lease) -> None:
        with log_fields(task_id=str(lease.task_id)):
            try:
                task = await self._runtime.database.read(tasks.get, lease.task_id)
            except TaskNotFound:
                return
            if lease.attempt > self._runtime.settings.on_end_max_attempts:
                # The calls before have ended the process, or were cancelled.
                await self._give_up(lease, None)
                return
            try:
                async with asyncio.timeout(self._runtime.settings.on_end_timeout_seconds):
                    await _invoke(self._functions[lease.name], task)
            except Exception as error:
                await self._failed(lease, error)
            else:
                await self._runtime.write(end_hooks.finish, lease)

    async def _failed(self, lease: Lease, error: Exception) -> None:
        most = self._runtime.settings.on_end_max_attempts
        about = (lease.name, lease.task_id, lease.attempt, most, error)
        if lease.attempt >= most:
            await self._give_up(lease, error)
            return
        pause = await self._runtime.write(end_hooks.retry, lease)
        logger.warning("Repeat on_end=%s task_id=%s attempt=%d/%d error=%r in %.0f s", *about, pause)

    async def _give_up(self, lease: Lease, error: Exception | None) -> None:
        await self._runtime.write(end_hooks.finish, lease)
        most = self._runtime.settings.on_end_max_attempts
        about = (lease.name, lease.task_id, min(lease.attempt, most), most, error)
        logger.error("Gave up on_end=%s task_id=%s attempt=%d/%d error=%r", *about, exc_info=error)


async def _invoke(function: Hook, task: TaskResponse) -> None:
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        await function(task)
        return
    result = await asyncio.to_thread(function, task)
    if inspect.isawaitable(result):
        await result
