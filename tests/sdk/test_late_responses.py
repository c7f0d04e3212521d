"""Responses that arrive late: the task of an old claim, and the release of tasks that wait."""

import logging
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer, is_release
from sdk.proxy import Proxy
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker import session
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.reports import Reports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask, HeldTasks

Make = Callable[..., JobManager]
UPLOADED, RUNS, LATE = range(3)


class Late:
    """Holds back the response with the first task until another worker has run it, for 2.5 s at least."""

    def __init__(self, api: Connection, ran: list[str]) -> None:
        self.is_answered, self.has_asked = threading.Event(), threading.Event()
        self._ran = ran
        api.http.event_hooks["response"].append(self._response)

    def _response(self, response: httpx.Response) -> None:
        asked = response.request
        if asked.method == "PATCH" and "/tasks/" in asked.url.path:
            self.has_asked.set()
        if asked.url.path.endswith("/claim") and not self.is_answered.is_set():
            response.read()
            if response.json()["tasks"]:
                self.is_answered.set()
                began = time.monotonic()
                wait_until(lambda: self._ran and time.monotonic() - began > 2.5)


def test_a_task_of_an_old_claim_runs_only_after_the_server_agreed(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """A machine is suspended while its claim is answered: another worker has run the task meanwhile."""
    live = own_server(clock=TestClock())
    by: list[str] = []
    with live.connect() as suspended, live.connect() as api:
        late = Late(suspended, by)
        caller = worker(at=api)
        caller.register(Add, room=room, max_attempts=2, retry_on=["worker_lost"])
        first = worker(lambda task: by.append("first"), at=suspended, heartbeat_interval=60, long_poll=1)
        first.register(Add, room=room)
        task_id = caller.submit(Add(), room=room, job_room=room)
        assert late.is_answered.wait(30)
        live.advance(61)
        second = worker(lambda task: by.append("second"), at=api)
        second.register(Add, room=room)
        live.advance(10, keep_workers=True)  # the pause before the second attempt
        assert caller.wait_for(task_id, 60).status == TaskStatus.COMPLETED
        assert late.has_asked.wait(30)
        for each in (first, second, caller):
            each.disconnect()
    assert by == ["second"]


class SlowProxy(Proxy):
    """Delays each request by half a second; the response to the first report of tasks is lost."""

    reports = 0

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Pass a request on."""
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 0.5)
        response = super().respond(method, path, headers, body)
        self.reports += path.endswith("/report")
        return b"" if self.reports == 1 else response


def test_many_tasks_are_released_over_a_slow_connection(worker: Make, room: str, server: LiveServer) -> None:
    """In one request, which is repeated: a request for each would take longer than there is time."""
    manager, held = worker(), HeldTasks()
    manager.register(Add, room=room)
    ids = [manager.submit(Add(), room=room) for _ in range(30)]
    tasks = [task for _ in ids if (task := manager.claim())]
    held.add(*tasks)
    with SlowProxy(server.url) as proxy, connect(proxy.url, TOKEN) as api:
        Reports(RestApi(api), held, threading.Event(), release_seconds=10).try_release(*tasks)
    assert {manager.get_task(task_id).status for task_id in ids} == {TaskStatus.PENDING}
    assert [step.reason for step in manager.history(ids[-1]).transitions] == ["submitted", None, "released"]
    assert (proxy.reports, held.to_name()) == (2, [])


def test_more_tasks_than_a_request_may_have_are_released(worker: Make, room: str, api: Connection) -> None:
    """As when the allocation of a worker with large batches ends: else all would be lost with the worker."""
    manager, held = worker(), HeldTasks()
    manager.register(Add, room=room)
    manager.submit_many([Add() for _ in range(1001)], room=room)
    worker_id = manager.worker_id
    assert worker_id is not None
    tasks = [
        ClaimedTask(str(task.id), "", room, None, task.attempt, worker_id=worker_id)
        for _ in range(2)
        for task in RestApi(api).claim(worker_id, 0, uuid4(), 1000)[0].tasks or ()
    ]
    held.add(*tasks)
    assert manager.tasks(room, status=TaskStatus.CLAIMED, limit=1).total == 1001
    Reports(RestApi(api), held, threading.Event(), release_seconds=60).try_release(*tasks)
    assert manager.tasks(room, status=TaskStatus.PENDING, limit=1).total == 1001
    assert held.to_name() == []


def test_what_has_ended_is_not_run_again_after_a_requeue(
    worker: Make, room: str, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome waits because the server was away; only what still runs returns to its queue."""
    events, is_away = [threading.Event() for _ in range(3)], threading.Event()
    monkeypatch.setattr(session, "_LAST_REPORT_SECONDS", 30.0)

    def execute(task: ClaimedTask) -> int:
        number: int = task.extension.a
        events[number].wait(60)
        return number

    def away(_: str, path: str) -> bytes | None:
        return b"" if is_away.is_set() and path.endswith("/report") else None

    caller = worker()
    with Proxy(server.url, away) as proxy, connect(proxy.url, TOKEN) as api:
        manager = worker(execute, at=api, concurrency=3)
        manager.register(Add, room=room)
        ids = [manager.submit(Add(a=number), room=room) for number in range(3)]
        wait_until(lambda: caller.tasks(room, status=TaskStatus.RUNNING, limit=1).total == 3)
        is_away.set()
        events[0].set()
        wait_until(lambda: proxy.answered.total() >= 3)
        events[1].set()
        held = manager._session._held
        wait_until(lambda: len(held._reported) == 2)
        is_away.clear()
        manager.disconnect(0, requeue=True)
        statuses = [caller.get_task(task_id).status for task_id in ids]
        events[2].set()
    assert statuses == [TaskStatus.COMPLETED, TaskStatus.COMPLETED, TaskStatus.PENDING]


class HeldUploads(Proxy):
    """Counts uploads and reports; the uploads of the tasks of `until` wait until a function returns true."""

    def __init__(self, target: str) -> None:
        super().__init__(target, self._hold)
        self.until: dict[str, Callable[[], bool]] = {}
        self.uploading: set[str] = set()
        self.reports = 0

    def _hold(self, method: str, path: str) -> None:
        self.reports += path.endswith("/report")
        if path.endswith("/result"):
            self.uploading.add(path)
            wait_until(lambda: self.until)  # the worker may be faster than the response to the submit
            wait_until(next(is_over for task_id, is_over in self.until.items() if task_id in path))


def test_what_has_ended_is_uploaded_and_reported_or_requeued(
    worker: Make,
    room: str,
    server: LiveServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upload has time to end, and its task does not run again; one that takes too long is requeued.

    What was requeued is not reported when it ends.
    """
    caplog.set_level(logging.INFO)
    may_end, caller = threading.Event(), worker()

    def execute(task: ClaimedTask) -> object:
        return may_end.wait(60) if task.extension.a == RUNS else bytes(100)

    def statuses() -> list[str]:
        return [caller.get_task(task_id).status for task_id in ids]

    wait_for_reports = HeldTasks.wait_for_reports

    def wait_for_upload(held: HeldTasks, seconds: float) -> None:
        # The time of the other upload is over when the first one is reported, also on a slow machine.
        while statuses()[UPLOADED] != TaskStatus.COMPLETED:
            wait_for_reports(held, 0.05)

    monkeypatch.setattr(HeldTasks, "wait_for_reports", wait_for_upload)
    with HeldUploads(server.url) as proxy, connect(proxy.url, TOKEN) as api:
        manager = worker(execute, at=api, concurrency=3)
        manager.register(Add, room=room)
        ids = [manager.submit(Add(a=number), room=room) for number in (UPLOADED, RUNS, LATE)]
        proxy.until = {
            ids[UPLOADED]: lambda: statuses()[RUNS] == TaskStatus.PENDING,
            ids[LATE]: may_end.is_set,
        }
        wait_until(lambda: len(proxy.uploading) == 2 and statuses()[RUNS] == TaskStatus.RUNNING)
        pipeline = manager._session._pipeline
        manager.disconnect(0, requeue=True)
        assert statuses() == [TaskStatus.COMPLETED, TaskStatus.PENDING, TaskStatus.PENDING]
        sent = proxy.reports
        may_end.set()
        pipeline.join(30)
        assert proxy.reports == sent
    assert [line for line in caplog.messages if "Gave up" in line or "not released" in line] == []


def test_a_host_that_exits_in_a_release_does_not_hang_the_stop(
    worker: Make, room: str, server: LiveServer, api: Connection
) -> None:
    """The tasks that wait count as no longer held."""
    running, may_end = threading.Event(), threading.Event()
    has_exited = threading.Event()

    def exit_in_release(request: httpx.Request) -> None:
        if is_release(request):
            has_exited.set()
            raise SystemExit(1)

    def execute(task: object) -> None:
        if task.extension.a == 50:  # type: ignore[attr-defined]
            running.set()
            assert may_end.wait(40)

    caller = worker()
    caller.register(Add, room=room)
    for number in range(100):
        caller.submit(Add(a=number), room=room)
    with server.connect() as own:
        own.http.event_hooks["request"].append(exit_in_release)
        manager = worker(execute, at=own)
        manager.register(Add, room=room)
        assert running.wait(30)
        assert has_exited.wait(30)
        may_end.set()
        leaving = threading.Thread(target=manager.disconnect)
        leaving.start()
        leaving.join(30)
        assert not leaving.is_alive()
