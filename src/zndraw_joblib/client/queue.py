"""A synchronous client of a queue: it submits tasks and follows them, and registers nothing."""

import time
from collections.abc import Iterable, Iterator
from functools import partial
from math import inf
from typing import Any, Self
from uuid import UUID

from zndraw_joblib.client.access import explained, find_access
from zndraw_joblib.client.api import connect
from zndraw_joblib.client.bars import Bar
from zndraw_joblib.client.handles import TaskHandle
from zndraw_joblib.client.lookup import JobList, all_jobs
from zndraw_joblib.client.rest import TaskRest
from zndraw_joblib.client.result_reader import ResultReader
from zndraw_joblib.client.retry import FastRule
from zndraw_joblib.client.submits import Submits
from zndraw_joblib.client.submitter import Submitter
from zndraw_joblib.client.task_id import id_of
from zndraw_joblib.client.watching import Watch, gather, rooms_of
from zndraw_joblib.contract.names import DEFAULT_ROOM


class Queue(Submitter, ResultReader):
    """A queue. Thread-safe; a context manager that closes its connections.

    Without `url` and `token` it uses ``ZNDRAW_JOBLIB_URL``, by default ``http://127.0.0.1:8000``, and
    ``ZNDRAW_JOBLIB_TOKEN`` or the token that the credentials file has for this URL. `room` is the room of
    tasks and of lookups that name none; without it a task belongs to the room of its job, or to ``default``.

    A response may take `timeout` seconds. Requests are repeated for `retry_seconds` while the server cannot
    be reached or a response is lost, each submit with the same `Idempotency-Key`; but a queue that has never
    reached its server raises `ServerUnreachable` at once.
    """

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
        self._connection = connect(access.url, access.token, timeout=timeout)
        rest = TaskRest(self._connection, partial(explained, access))
        rule = FastRule(lambda: rest.has_reached, retry_seconds)
        super().__init__(rest, rule, Submits(rule, room))
        self._room = room or DEFAULT_ROOM

    def gather(
        self,
        *tasks: str,
        timeout: float | None = None,
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> list[Any]:
        """Wait for the end of all tasks, and return their results in order.

        The queue reads the events of the tasks' rooms and pages of tasks, one request at a time, so it may
        wait for thousands. The first failure that it sees is raised; with `return_exceptions` it is returned
        in the place of the result. `progress` shows a bar. Raises TimeoutError after `timeout` seconds.
        """
        rooms = rooms_of(tasks)
        with Bar(shown=progress) as bar:
            show = partial(bar.show, "tasks")
            flow = gather(rooms, timeout, self._rule, return_exceptions=return_exceptions, show=show)
            results = self._rest.run(flow)
        return [results[str(id_of(task))] for task in tasks]

    def as_completed(self, tasks: Iterable[str], *, timeout: float | None = None) -> Iterator[TaskHandle]:
        """Yield each task once it has ended; wait as `gather` does. Raises TimeoutError."""
        watch = Watch(rooms_of(tasks), self._rule)
        deadline = inf if timeout is None else time.monotonic() + timeout
        while len(watch):
            for task_id in self._rest.run(watch.next_ended(deadline)):
                yield TaskHandle(task_id, self._rest, self._rule, state=watch.states.get(task_id))

    def task(self, task_id: str | UUID) -> TaskHandle:
        """Return the handle of a task, without a request. Raises ValueError for a text that is no UUID."""
        return TaskHandle(task_id, self._rest, self._rule)

    def jobs(self, room: str | None = None) -> JobList:
        """Return all jobs that a room sees, by default that of the queue."""
        return self._rest.run(all_jobs(room or self._room, self._rule))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue at {self._connection.base_url}>"
