"""A job that reports progress and prints thousands of lines sends few requests, as the server counts them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rest import V1
from starlette.types import ASGIApp, Receive, Scope, Send

from sdk.live import LiveServer
from sdk.talking import execute
from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.jobs.task_context import TaskContext
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

CALLS = 3000
PER_SECOND = 1000
MOST_REQUESTS_PER_SECOND = 4


class Busy(Extension):
    """Reports progress and prints a line each millisecond."""

    category: ClassVar[Category] = Category.ANALYSIS

    def run(self, vis: Any, *, task: TaskContext) -> list[float]:
        """Return the times of its start and end, by a clock that processes share."""
        began = time.monotonic()
        for number in range(1, CALLS + 1):
            task.progress(number, CALLS)
            print(f"line {number}")
            time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
        return [began, time.monotonic()]


class _Counted:
    """The app of a server, which records the time, method and path of each request."""

    def __init__(self, app: ASGIApp, requests: list[tuple[float, str]]) -> None:
        self.other_asgi_app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._requests.append((time.monotonic(), f"{scope['method']} {scope['path']}"))
        await self.other_asgi_app(scope, receive, send)


class CountingServer(LiveServer):
    """A server that records its requests."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.requests: list[tuple[float, str]] = []
        super().__init__(folder, **settings)

    def build(self) -> Any:
        """Return the app with a record of its requests."""
        return _Counted(super().build(), self.requests)


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[CountingServer]:
    """Run a server that records its requests."""
    server = CountingServer(tmp_path, sweeper_interval_seconds=1)
    yield server
    server.stop()


@pytest.mark.parametrize("executor", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_thousand_calls_and_lines_a_second(counting: CountingServer, executor: str) -> None:
    """The worker sends at most 4 requests per second, heartbeats and claims included; no line is lost."""
    with (
        counting.connect() as observer,
        counting.connect() as api,
        JobManager(api, execute=execute, executor=executor, heartbeat_interval=0.75) as manager,
    ):
        manager.register(Busy, room="lab")
        task_id = manager.submit(Busy(), room="lab")
        task = JobManager(observer).wait_for(task_id, 60)
        assert task.status == TaskStatus.COMPLETED, task.error
        assert isinstance(task.result, list)
        began, ended = task.result
        observed = f"GET {V1}/tasks/{task_id}"
        sent = [what for at, what in counting.requests if began <= at <= ended and what != observed]
        assert sum(what.endswith("/tasks/report") for what in sent) >= 2
        assert len(sent) <= MOST_REQUESTS_PER_SECOND * (ended - began), sent
        log = RestApi(observer).send(ops.GET_TASK_LOG, task_id=task_id, query={"after": CALLS - 1})
        assert (log.last, log.dropped, log.lines[-1].text) == (CALLS, 0, f"line {CALLS}")
        assert task.progress is not None
        assert task.progress.current == CALLS
