"""Disconnecting: at once when idle, after the running tasks when busy, immediately after a second signal."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from waiting import suspend, wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer, is_release
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import serve
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def test_an_idle_worker_disconnects_at_once(worker: Make, room: str, server: LiveServer) -> None:
    """An open long-poll of 20 s delays nothing, and ends on the server too."""
    manager = worker(lambda task: None, concurrency=2)
    manager.register(Add, room=room)
    wait_until(lambda: server.open_polls == 1)
    began = time.monotonic()
    manager.disconnect()
    assert time.monotonic() - began < 10
    wait_until(lambda: server.open_polls == 0)


def test_a_worker_that_disconnects_loses_no_task(worker: Make, room: str) -> None:
    """Workers register and disconnect while tasks are submitted: every task runs."""
    other = worker()
    other.register(Add, room=room)
    stop = threading.Event()
    tasks: list[str] = []

    def submit() -> None:
        while not stop.wait(0.004):
            tasks.append(other.submit(Add(a=len(tasks)), room=room))

    submitting = threading.Thread(target=submit)
    submitting.start()
    for _ in range(12):
        manager = worker(lambda task: task.extension.a, concurrency=2)
        manager.register(Add, room=room)
        manager.disconnect()
    stop.set()
    submitting.join()
    worker(lambda task: task.extension.a).register(Add, room=room)
    assert [other.wait_for(task, 30).result for task in tasks] == list(range(len(tasks)))


class StopBeforeResponse:
    """Stops a worker before it gets the response to its claim."""

    def __init__(self, api: Connection, send_signal: Callable[[], None]) -> None:
        self.stopped, self.gone = threading.Event(), threading.Event()
        self.went_too_soon = False
        self.leaving = threading.Thread(target=send_signal)
        api.http.event_hooks = {"request": [self.request], "response": [self.response]}

    def request(self, request: httpx.Request) -> None:
        """Record when the worker has stopped, and whether it leaves before its task is released."""
        if request.method == "DELETE":
            (self.stopped if "/jobs/" in request.url.path else self.gone).set()
        elif is_release(request):
            self.went_too_soon = self.gone.wait(0.3)

    def response(self, response: httpx.Response) -> None:
        """Hold back the response to a claim until the worker is stopped."""
        if response.request.url.path.endswith("/claim") and not self.leaving.is_alive():
            self.leaving.start()
            assert self.stopped.wait(30)


@pytest.mark.parametrize("mode", ["serving", "by hand"])
def test_a_task_that_comes_after_the_stop_is_released(
    worker: Make, room: str, server: LiveServer, mode: str
) -> None:
    """The long-poll returns a task during the stop: the worker releases it, and no attempt is used up."""
    claimed: list[object] = []
    with server.connect() as api:
        manager, other = worker(claimed.append if mode == "serving" else None, at=api), worker()
        for each in (manager, other):
            each.register(Add, room=room, max_attempts=2, retry_on=[])
        claiming = threading.Thread(target=lambda: claimed.append(manager.claim(20)))
        if mode == "by hand":
            claiming.start()
        wait_until(lambda: server.open_polls == 1)
        stop = StopBeforeResponse(api, manager.disconnect)
        task_id = other.submit(Add(), room=room)
        assert stop.stopped.wait(30)
        stop.leaving.join(30)
        if mode == "by hand":
            claiming.join(30)
    assert claimed == ([None] if mode == "by hand" else [])
    assert not stop.went_too_soon
    assert other.get_task(task_id).status == TaskStatus.PENDING
    reasons = [step.reason for step in other.history(task_id).transitions]
    assert reasons == ["submitted", None, "released"]


def test_a_task_that_could_not_start_does_not_delay_the_stop(
    own_server: Callable[..., LiveServer], worker: Make, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was claimed some time ago runs only after the server has received its start.

    A stop ends the retries of this report; the task does not run.
    """
    # A `JobManager` has no argument for it: no user needs another value.
    monkeypatch.setattr("zndraw_joblib.worker.pipeline.SURE_SECONDS", 0.0)
    live = own_server()
    ran: list[str] = []
    tried = threading.Event()

    def refuse_start(request: httpx.Request) -> None:
        if "/tasks/" in request.url.path and request.method == "PATCH":
            tried.set()
        if tried.is_set():
            raise httpx.ConnectError("gone")

    with live.connect() as api, live.connect() as other:
        api.http.event_hooks["request"].append(refuse_start)
        manager, caller = worker(lambda task: ran.append(task.task_id), at=api), worker(at=other)
        manager.register(Add, room=room)
        task_id = caller.submit(Add(), room=room, job_room=room)
        assert tried.wait(30)
        began = time.monotonic()
        manager.disconnect()
        assert time.monotonic() - began < 20
        assert caller.get_task(task_id).status == TaskStatus.CLAIMED
    assert ran == []


@pytest.mark.signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_registration_leaves_no_worker(
    server: LiveServer, room: str, number: signal.Signals
) -> None:
    """The process has not received the id of the new worker yet, and removes the worker nevertheless."""
    with server.connect() as api:

        def send_signal(response: httpx.Response) -> None:
            if response.request.method == "PUT":
                os.kill(os.getpid(), number)

        api.http.event_hooks["response"].append(send_signal)
        serve(api, [Add], room=room)
        assert [job.workers for job in JobManager(api).jobs(room).items] in ([], [[]])


@pytest.mark.signals
def test_a_signal_ends_the_wait_for_a_server(room: str, caplog: pytest.LogCaptureFixture) -> None:
    """It does not wait for the 30 s of registration retries."""
    caplog.set_level(logging.WARNING)
    threading.Thread(
        target=lambda: (
            wait_until(lambda: "trying again" in caplog.text),
            os.kill(os.getpid(), signal.SIGINT),
        )
    ).start()
    with connect("http://127.0.0.1:9") as api:
        began = time.monotonic()
        serve(api, [Add], room=room)
        assert time.monotonic() - began < 20


def heartbeat_of(caller: JobManager, worker_id: UUID | None) -> datetime:
    """Return the time of the last heartbeat of a worker."""
    return next(known.last_heartbeat for known in caller.workers().items if known.id == worker_id)


def test_a_busy_worker_finishes_and_claims_no_more(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """While the last task runs, beyond the worker timeout, heartbeats continue and no task is claimed."""
    # Without sweeps: a slow machine may miss a timeout of two seconds.
    live = own_server(worker_timeout_seconds=2, sweeper_interval_seconds=3600)
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> int:
        running.set()
        assert may_end.wait(40)
        return 1

    with live.connect() as api:
        manager, other = worker(execute, at=api, concurrency=2), worker(at=api)
        for each in (manager, other):
            each.register(Add, room=room)
        first = manager.submit(Add(), room=room)
        assert running.wait(30)
        wait_until(lambda: live.open_polls == 1)
        leaving = threading.Thread(target=manager.disconnect)
        leaving.start()
        wait_until(lambda: manager.jobs(room).items[0].workers == [other.worker_id])
        second = manager.submit(Add(), room=room, job_room=room)
        worker_id, began = manager.worker_id, datetime.now(UTC)
        wait_until(lambda: heartbeat_of(other, worker_id) - began > timedelta(seconds=2.5))
        assert leaving.is_alive()
        assert manager.get_task(second).status == TaskStatus.PENDING
        may_end.set()
        leaving.join(30)
        assert manager.get_task(first).status == TaskStatus.COMPLETED
        assert manager.get_task(second).status == TaskStatus.PENDING
        assert [known.id for known in manager.workers().items] == [other.worker_id]


def test_a_disconnect_with_a_timeout_abandons_tasks(worker: Make, room: str) -> None:
    """After the timeout the server fails the running tasks; a late report changes nothing."""
    running, may_end = threading.Event(), threading.Event()
    manager = worker(lambda task: (running.set(), may_end.wait(40)))
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    assert running.wait(30)
    began = time.monotonic()
    manager.disconnect(timeout=0.2)
    assert time.monotonic() - began < 20
    may_end.set()
    assert manager.get_task(task_id).error == "Worker disconnected"


def test_a_task_may_disconnect_its_own_manager(worker: Make, room: str) -> None:
    """A disconnect from inside a task does not wait for that task."""
    done = threading.Event()

    def execute(task: ClaimedTask) -> None:
        manager.disconnect()
        done.set()

    manager = worker(execute)
    manager.register(Add, room=room)
    manager.submit(Add(), room=room)
    assert done.wait(30)
    assert manager.worker_id is None


def test_wait_ends_with_a_disconnect_on_another_thread(worker: Make, room: str) -> None:
    """Outside of the main thread no signal is handled, and a disconnect ends the wait."""
    manager = worker(lambda task: None)
    manager.register(Add, room=room)
    waiting = threading.Thread(target=manager.wait)
    waiting.start()
    manager.disconnect()
    waiting.join(30)
    assert not waiting.is_alive()


SCRIPT = """
import signal, sys, time
from pathlib import Path
from typing import Any
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.worker.manager import JobManager
from sdk.jobs import Add

url, token, room, folder = sys.argv[1:]

def execute(task):
    Path(folder, "running").touch()
    while not Path(folder, "may-end").exists():
        time.sleep(0.01)
    return "done"

before = signal.getsignal(signal.SIGINT)
with connect(url, token) as api, JobManager(api, execute=execute, long_poll=1) as manager:
    manager.register(Add, room=room)
    manager.wait(Path(folder, "ready").touch)
    assert signal.getsignal(signal.SIGINT) is before
Path(folder, "left").touch()
"""


class Script:
    """A worker in a process of its own."""

    def __init__(self, server: LiveServer, room: str, folder: Path) -> None:
        self.folder = folder
        arguments = [server.url, TOKEN, room, str(folder)]
        tests = str(Path(__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{SCRIPT}", *arguments]
        )

    def wait_for_file(self, name: str) -> None:
        """Wait for a file that the process creates."""
        wait_until(lambda: (self.folder / name).exists() or self.process.poll() is not None)
        assert (self.folder / name).exists()


Start = Callable[[LiveServer], Script]


@pytest.fixture
def script(room: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts such a process; it is killed at the end."""
    started: list[Script] = []

    def start(server: LiveServer) -> Script:
        started.append(Script(server, room, tmp_path))
        started[-1].wait_for_file("ready")
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_task_finish(
    worker: Make, room: str, script: Start, server: LiveServer, number: signal.Signals
) -> None:
    """It ends the claims, not the running task; then the worker is removed and the former handlers are
    restored.
    """
    caller = worker()
    child = script(server)
    task_id = caller.submit(f"{room}:modifiers:Add", room=room)
    child.wait_for_file("running")
    child.process.send_signal(number)
    wait_until(lambda: caller.get_task(task_id).status == TaskStatus.RUNNING)
    assert child.process.poll() is None
    (child.folder / "may-end").touch()
    assert child.process.wait(30) == 0
    assert (child.folder / "left").exists()
    assert caller.get_task(task_id).result == "done"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_process_at_once(
    worker: Make, room: str, script: Start, server: LiveServer, second: signal.Signals
) -> None:
    """Two signals end a worker whose task does not end; the worker is removed."""
    caller = worker()
    child = script(server)
    task_id = caller.submit(f"{room}:modifiers:Add", room=room)
    child.wait_for_file("running")
    child.process.send_signal(signal.SIGINT)
    # Two signals sent at once may arrive as one, so wait for the effect of the first: the job has no worker.
    wait_until(lambda: not [job for job in caller.jobs(room).items if job.full_name.startswith(room)])
    child.process.send_signal(second)
    assert child.process.wait(30) != 0
    assert caller.get_task(task_id).error == "Worker disconnected"


def test_a_process_that_was_stopped_recovers(
    own_server: Callable[..., LiveServer], room: str, worker: Make, script: Start
) -> None:
    """A process that was stopped for longer than its worker timeout registers again and serves."""
    live = own_server(clock=TestClock())
    child = script(live)
    with live.connect() as api:
        caller = worker(at=api)
        suspend(child.process.pid)
        live.advance(61)
        assert not caller.workers().items
        child.process.send_signal(signal.SIGCONT)
        wait_until(lambda: caller.workers().items)
        wait_until(lambda: caller.jobs(room).items)
        (child.folder / "may-end").touch()
        assert caller.wait_for(caller.submit(f"{room}:modifiers:Add", room=room), 30).result == "done"
    child.process.terminate()
    assert child.process.wait(30) == 0
