"""An asynchronous client of a queue: it submits tasks and follows them, and registers nothing."""

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any, Literal, Self, Unpack, overload
from uuid import UUID

from zndraw_joblib.client.access import explained, find_access
from zndraw_joblib.client.api import AsyncConnection
from zndraw_joblib.client.async_handles import AsyncTaskHandle
from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.bars import Bar
from zndraw_joblib.client.batches import NewTask, SubmitOptions
from zndraw_joblib.client.lookup import JobList, all_jobs
from zndraw_joblib.client.retry import FastRule
from zndraw_joblib.client.submits import Submits
from zndraw_joblib.client.task_id import id_of
from zndraw_joblib.client.watching import Watch, gather, rooms_of
from zndraw_joblib.contract.names import DEFAULT_ROOM
from zndraw_joblib.contract.problems import ProblemException


class AsyncQueue:
    """As `Queue`, with coroutines. Use it in one event loop; an asynchronous context manager."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        room: str | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 30.0,
    ) -> None:
        access = find_access(url, token)
        self._connection = AsyncConnection(access.url, access.token, timeout)
        self._rest = rest = AsyncRest(self._connection, partial(explained, access))
        self._rule = FastRule(lambda: rest.has_reached, retry_seconds)
        self._submits = Submits(self._rule, room)
        self._room = room or DEFAULT_ROOM

    async def submit(
        self,
        job: Any,
        payload: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> AsyncTaskHandle:
        """Submit a task; return its handle. See `Queue.submit`."""
        flow = self._submits.submit(NewTask.of(job, payload, options), idempotency_key)
        task = await self._rest.run(flow)
        return AsyncTaskHandle(task.id, self._rest, self._rule, state=task)

    @overload
    async def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: Literal[True],
        idempotency_key: str | None = None,
    ) -> list[AsyncTaskHandle]: ...

    @overload
    async def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> list[AsyncTaskHandle | ProblemException]: ...

    async def submit_many(
        self,
        tasks: Iterable[Any],
        *,
        room: str | None = None,
        atomic: bool = False,
        idempotency_key: str | None = None,
    ) -> Any:
        """Submit tasks in order; return for each its handle, or the problem. See `Queue.submit_many`."""
        flow = self._submits.submit_many(tasks, room, idempotency_key, atomic=atomic)
        results = await self._rest.run(flow)
        return [
            each
            if isinstance(each, ProblemException)
            else AsyncTaskHandle(each.id, self._rest, self._rule, room=each.room)
            for each in results
        ]

    async def gather(
        self,
        *tasks: str,
        timeout: float | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> list[Any]:
        """Wait for the end of all tasks, and return their results in order. See `Queue.gather`."""
        rooms = rooms_of(tasks)
        with Bar(shown=progress) as bar:
            show = partial(bar.show, "tasks")
            flow = gather(rooms, timeout, self._rule, return_exceptions=return_exceptions, show=show)
            results = await self._rest.run(flow)
        return [results[str(id_of(task))] for task in tasks]

    async def as_completed(
        self, tasks: Iterable[str], *, timeout: float | None = None
    ) -> AsyncIterator[AsyncTaskHandle]:
        """Yield each task once it has ended. See `Queue.as_completed`."""
        watch = Watch(rooms_of(tasks), self._rule)
        deadline = inf if timeout is None else time.monotonic() + timeout
        while len(watch):
            for task_id in await self._rest.run(watch.next_ended(deadline)):
                yield AsyncTaskHandle(task_id, self._rest, self._rule, state=watch.states.get(task_id))

    def task(self, task_id: str | UUID) -> AsyncTaskHandle:
        """Return the handle of a task, without a request. Raises ValueError for a text that is no UUID."""
        return AsyncTaskHandle(task_id, self._rest, self._rule)

    async def jobs(self, room: str | None = None) -> JobList:
        """Return all jobs that a room sees, by default that of the queue."""
        return await self._rest.run(all_jobs(room or self._room, self._rule))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<AsyncQueue at {self._connection.base_url}>"
