"""A task of an asynchronous client: its id, and what can be done with it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from zndraw_joblib.client import operations
from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.bars import Bar
from zndraw_joblib.client.calls import quoted
from zndraw_joblib.client.events import Following, TaskEvent
from zndraw_joblib.client.explaining import raise_explained
from zndraw_joblib.client.flows import read, send_once
from zndraw_joblib.client.task_id import TaskId
from zndraw_joblib.client.waiting import WAIT_SECONDS, explain, logs, result_of, wait
from zndraw_joblib.contract.history import NumberedLine, TaskExplanation, TaskHistory
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus


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
        call = operations.get_task(self)
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
        call = operations.get(f"/tasks/{quoted(self)}/history", TaskHistory)
        return await self._rest.run(read(call, self._what("Reading the history of"), self._rule))

    async def explain(self) -> TaskExplanation:
        """Return why the task has its status, most important reason first."""
        return await self._rest.run(read(explain(self), self._what("Explaining"), self._rule))
