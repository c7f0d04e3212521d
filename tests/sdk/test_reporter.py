"""The reports of several tasks in one request: what fails for one task does not disturb the others."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy, raw
from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.jobs.run import Outcome
from zndraw_joblib.wire.messages import HeartbeatRequest, TaskUpdateRequest, Verdict
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.reporter import Reporter
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.task_poller import NOW
from zndraw_joblib.worker.tasks import ClaimedTask, HeldTasks

Make = Callable[..., JobManager]


def claimed(manager: JobManager, room: str, count: int) -> list[ClaimedTask]:
    """Return tasks that a worker without an `execute` has claimed."""
    manager.register(Add, room=room)
    for number in range(count):
        manager.submit(Add(a=number), room=room)
    tasks = [manager.claim(NOW.poll) for _ in range(count)]
    return [task for task in tasks if task is not None]


class Running:
    """A reporter, with the thread that sends its reports, while its block is open."""

    def __init__(self, api: Connection, tasks: list[ClaimedTask], **options: Any) -> None:
        self.held, self.stop = HeldTasks(), threading.Event()
        self.held.add(*tasks)
        self.done: list[int] = []
        self.reporter = Reporter(RestApi(api), self.held, self.stop, self.done.append, **options)
        self.thread = threading.Thread(target=self.reporter.run, daemon=True)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Send the reports that wait, as one batch, and those that follow."""
        self.thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self.reporter.wake()


def test_a_start_that_arrived_is_not_repeated(worker: Make, room: str, server: LiveServer) -> None:
    """A batch is split, its first half succeeds and the second is repeated: neither task is given up."""
    tasks = claimed(worker(), room, 2)
    answers = [raw("413 Content Too Large", b"large"), None, raw("503 Service Unavailable", b"busy")]
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as behind:
        proxy.rule = lambda method, path: answers.pop(0) if answers else None
        running = Running(behind, tasks)
        entries = [running.reporter.begin(task) for task in tasks]
        running.reporter.end(entries[1], Outcome(b"1"))
        with running.open():
            wait_until(lambda: running.done)
            assert [str(named.id) for named in running.held.to_name()] == [tasks[0].task_id]
            running.reporter.end(entries[0], Outcome(b"0"))
            wait_until(lambda: sum(running.done) == 2)
    caller = worker()
    assert [caller.get_task(task.task_id).result for task in tasks] == [0, 1]


def test_an_error_of_the_host_concerns_one_request(worker: Make, room: str, server: LiveServer) -> None:
    """The code of a host may raise anything: each task is reported on its own then."""
    tasks = claimed(worker(), room, 3)
    exits = [SystemExit(1)]

    def exit_once(request: httpx.Request) -> None:
        if exits:
            raise exits.pop()

    with server.connect() as own:
        own.http.event_hooks["request"].append(exit_once)
        running = Running(own, tasks)
        for task in tasks:
            running.reporter.refuse(task, Outcome(error="refused"))
        with running.open():
            wait_until(lambda: sum(running.done) == 3)
    assert {worker().get_task(task.task_id).error for task in tasks} == {"refused"}


def test_the_end_of_a_lost_task_ends_a_reporter_that_stops(worker: Make, room: str, api: Connection) -> None:
    """The last task that runs was cancelled: nothing is reported of its end."""
    tasks = claimed(worker(), room, 1)
    RestApi(api).send_call(
        calls.update_task(tasks[0].task_id, TaskUpdateRequest(status=TaskStatus.CANCELLED))
    )
    running = Running(api, tasks)
    entry = running.reporter.begin(tasks[0])
    running.thread.start()
    wait_until(lambda: entry.gone)
    running.stop.set()
    running.reporter.end(entry, Outcome(b"0"))
    running.thread.join(30)
    assert not running.thread.is_alive()
    assert running.done == [1]


def test_a_success_whose_response_was_lost_is_no_lost_task(
    worker: Make, room: str, server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The repeated start is refused then, the repeated outcome is not."""
    caplog.set_level(logging.INFO)
    tasks = claimed(worker(), room, 1)
    is_lost = threading.Event()

    def lose(response: httpx.Response) -> None:
        if not is_lost.is_set():
            is_lost.set()
            raise httpx.ReadError("connection reset")

    with server.connect() as own:
        own.http.event_hooks["response"].append(lose)
        running = Running(own, tasks)
        running.reporter.end(running.reporter.begin(tasks[0]), Outcome(b"7"))
        with running.open():
            wait_until(lambda: running.done)
    assert is_lost.is_set()
    assert not tasks[0].cancelled.is_set()
    assert "no longer held" not in caplog.text
    assert worker().get_task(tasks[0].task_id).result == 7


@pytest.mark.parametrize("cause", ["idle", "woken", "many"])
def test_outcomes_of_a_busy_worker_are_reported_together(
    worker: Make, room: str, server: LiveServer, cause: str
) -> None:
    """They wait for others, but not once the worker is idle, and not if there are many."""
    tasks = claimed(worker(), room, 5)
    count = 5 if cause == "many" else 1000
    requests: list[httpx.Request] = []
    with server.connect() as own:
        own.http.event_hooks["request"].append(requests.append)
        running = Running(own, tasks, gather_seconds=1000.0, gather_count=count)
        with running.open():
            for number, task in enumerate(tasks):
                entry = running.reporter.begin(task, started=True)
                is_idle = cause == "idle" and number == 4
                running.reporter.end(entry, Outcome(error="no"), is_busy=not is_idle)
            if cause == "woken":
                running.reporter.wake()
            wait_until(lambda: sum(running.done) == 5)
    assert len(requests) == 1


class HeartbeatFirst:
    """Loses the first response to a task's outcome, after a heartbeat that names the task."""

    def __init__(self, task: ClaimedTask, beat: Callable[[], None]) -> None:
        self._task, self._beat = task, beat
        self.verdicts: list[str] = []
        self._has_beaten = False

    def __call__(self, response: httpx.Response) -> None:
        """Handle a response."""
        if "/workers/" in response.request.url.path:
            response.read()
            self.verdicts += [task["verdict"] for task in response.json()["tasks"]]
            return
        if self._has_beaten or response.request.url.path.rpartition("/")[2] not in {
            "report",
            self._task.task_id,
        }:
            return
        self._has_beaten = True
        self._beat()
        raise httpx.ReadError("connection reset")


@pytest.mark.parametrize("mode", ["pipeline", "by hand"])
def test_a_success_that_is_being_reported_is_no_lost_task(
    worker: Make, room: str, server: LiveServer, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """The server has applied it, its response is lost, and a heartbeat comes before the repeat."""
    caplog.set_level(logging.INFO)
    with server.connect() as own:
        manager = worker(at=own)
        [task] = claimed(manager, room, 1)
        running = Running(own, [task])

        def beat() -> None:
            named = running.held.to_name()
            request = HeartbeatRequest(tasks=named)
            response = RestApi(own).heartbeat(task.worker_id, request, 30)
            running.held.apply_verdicts(named, response.tasks)

        manager.start(task)
        hook = HeartbeatFirst(task, beat if mode == "pipeline" else manager.heartbeat)
        own.http.event_hooks["response"].append(hook)
        if mode == "pipeline":
            running.reporter.refuse(task, Outcome(b"7"))
            with running.open():
                wait_until(lambda: running.done)
        else:
            manager.complete(task, 7)
    assert hook.verdicts == [Verdict.LOST]
    assert not task.cancelled.is_set()
    assert "no longer held" not in caplog.text
    assert (running.held.ids() if mode == "pipeline" else manager.held_tasks) == []
    assert worker().get_task(task.task_id).result == 7
