"""The asynchronous client: it submits tasks, follows them and reads results over an `AsyncConnection`."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from uuid import UUID

import httpx

from zndraw_joblib.client import calls
from zndraw_joblib.client.access import Explain, explained, find_access, raise_explained
from zndraw_joblib.client.api import AsyncConnection
from zndraw_joblib.client.calls import Call
from zndraw_joblib.client.flows import (
    WAIT_SECONDS,
    Flow,
    JobList,
    all_jobs,
    drive_async,
    explain,
    logs,
    read,
    result_of,
    send_once,
    wait,
)
from zndraw_joblib.client.retry import FastRule
from zndraw_joblib.client.submits import NewTask, SubmitOptions, Submits
from zndraw_joblib.client.task_id import Bar, TaskId, id_of
from zndraw_joblib.client.watching import Following, TaskEvent, Watch, gather, rooms_of
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.history import NumberedLine, TaskExplanation, TaskHistory
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.names import DEFAULT_ROOM
from zndraw_joblib.wire.problems import ProblemException
from zndraw_joblib.wire.statuses import TaskStatus

T = TypeVar("T")


class AsyncRest:
    """Sends requests to one server. Use it in one event loop at a time."""

    def __init__(self, api: AsyncConnection, explain: Explain) -> None:
        self.api = api
        self.explain = explain
        self.has_reached = False

    async def run(self, flow: Flow[T]) -> T:
        """Return the result of a flow. An error is raised as `explain` returns it."""
        try:
            return await drive_async(flow, self.send_call)
        except Exception as error:
            raise_explained(error, self.explain)

    async def send_call(self, call: Call[T]) -> T:
        """Send a request and return its result."""
        response = await self.api.http.request(**call.request(self.api))
        self.has_reached = True
        return call.result(response, self.api)

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> AsyncIterator[httpx.Response]:
        """Send a request and yield its response, whose content is read piece by piece."""
        async with self.api.http.stream(**call.request(self.api)) as response:
            self.has_reached = True
            if not response.is_success:
                await response.aread()
            call.check(response, self.api)
            yield response


# A task of an asynchronous client: its id, and what can be done with it.


class AsyncTaskHandle(TaskId[AsyncRest]):
    """A task, with the methods of `TaskHandle` as coroutines."""

    async def result(self, timeout: float | None = None, *, progress: bool = False) -> Any:
        """Wait for the end of the task, and return its result as the value that its job returned.

        Raises `TaskFailed` with the code, the message and the traceback, `TaskCancelled`, TimeoutError after
        `timeout` seconds, and `ResultExpired`. The wait continues while the server restarts. `progress`
        shows a bar, also in a notebook.
        """
        return await self._rest.run(result_of(await self.wait(timeout, progress=progress), self._rule))

    async def wait(self, timeout: float | None = None, *, progress: bool = False) -> TaskResponse:
        """Wait for the end of the task, and return it. Raises TimeoutError after `timeout` seconds."""
        with Bar(shown=progress) as bar:
            step = bar.SECONDS if progress else WAIT_SECONDS
            flow = wait(self, timeout, self._rule, show=bar.show_task, step=step)
            return self._keep(await self._rest.run(flow))

    async def refresh(self) -> TaskResponse:
        """Return the task as it is now."""
        call = calls.get_task(self)
        task, _ = await self._rest.run(read(call, self._what("Reading"), self._rule))
        return self._keep(task)

    async def status(self) -> TaskStatus:
        """Return the status of the task now."""
        return (await self.refresh()).status

    async def events(self) -> AsyncIterator[TaskEvent]:
        """Yield the events of the task, first a snapshot, until it has ended. Close it with `aclose`.

        After a lost connection it continues behind the last event.
        """
        following = Following(self, self._rule)
        while not following.has_ended:
            error: Exception | None = None
            try:
                async with self._rest.stream(following.open()) as response:
                    async for piece in response.aiter_bytes():
                        for event in following.feed(piece):
                            yield event
            except Exception as caught:
                error = caught
            if not following.has_ended:
                try:
                    pause = following.lost(error)
                except Exception as final:
                    raise_explained(final, self._rest.explain)
                await asyncio.sleep(pause)

    async def cancel(self) -> TaskResponse:
        """Cancel the task, and return it. Raises `InvalidTaskTransition` if it has ended otherwise."""
        flow = send_once(self._what("Cancelling"), self._cancel_call, None, self._rule)
        return self._keep(await self._rest.run(flow))

    async def retry(self) -> TaskResponse:
        """Put the failed or cancelled task into its queue again, and return it."""
        flow = send_once(self._what("Retrying"), self._retry_call, None, self._rule)
        return self._keep(await self._rest.run(flow))

    async def logs(self, attempt: int | None = None) -> list[NumberedLine]:
        """Return the lines of the log of an attempt, by default of the current or last one."""
        return await self._rest.run(logs(self, attempt, self._rule))

    async def history(self) -> TaskHistory:
        """Return all transitions of the task, and the details of its last attempts."""
        call = calls.call(ops.GET_TASK_HISTORY, task_id=self)
        return await self._rest.run(read(call, self._what("Reading the history of"), self._rule))

    async def explain(self) -> TaskExplanation:
        """Return why the task has its status, most important reason first."""
        return await self._rest.run(read(explain(self), self._what("Explaining"), self._rule))


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
            result
            if isinstance(result, ProblemException)
            else AsyncTaskHandle(result.id, self._rest, self._rule, room=result.room)
            for result in results
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
