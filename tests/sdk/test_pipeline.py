"""The pipeline claims ahead, reports together, and hands back what it cannot run soon."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add, Picky
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy, raw
from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.server.queue import rules_transitions
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import BatchSubmitRequest, TaskToSubmit, TaskUpdateRequest
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def submit(
    api: Connection, room: str, payloads: list[dict[str, Any]], job: str = "modifiers:Add"
) -> list[str]:
    """Submit tasks with one request; return their ids."""
    tasks = [TaskToSubmit(room_id=room, job_name=f"{room}:{job}", payload=payload) for payload in payloads]
    response = RestApi(api).send(ops.SUBMIT_TASKS, BatchSubmitRequest(tasks=tasks))
    return [str(result.id) for result in response.results]


class Requests:
    """Counts the requests of a connection, and remembers how many tasks each claim wanted and got."""

    def __init__(self, api: Connection) -> None:
        self.count: Counter[str] = Counter()
        self.claims: list[tuple[int, int]] = []
        self.reports: list[list[str]] = []
        api.http.event_hooks = {"response": [self._response]}

    def _response(self, response: httpx.Response) -> None:
        path = response.request.url.path.rpartition("/")[2]
        self.count[path] += 1
        response.read()
        if path == "claim" and response.is_success:
            wanted = json.loads(response.request.content)["max"]
            self.claims.append((wanted, len(response.json()["tasks"])))
        if path == "report":
            reports = json.loads(response.request.content)["reports"]
            self.reports.append([each["status"] for each in reports])


@pytest.fixture
def watched(server: LiveServer) -> Iterator[tuple[Connection, Requests]]:
    """Return a connection and its requests."""
    with server.connect() as api:
        yield api, Requests(api)


@pytest.mark.parametrize("seconds", [0, 0.02])
def test_times_are_those_of_each_run(
    worker: Make, room: str, api: Connection, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one slot, although ends are reported together."""
    # A slow machine may report an end later than the time for which the statistics wait.
    monkeypatch.setattr(rules_transitions, "MAX_ENDED_AGO", 60.0)
    pause, began = threading.Event(), time.monotonic()
    manager = worker(lambda _: pause.wait(seconds), prefetch=20)
    manager.register(Add, room=room)
    ids = submit(api, room, [{"a": number} for number in range(30)])
    assert manager.wait_for(ids[-1], 30).status == TaskStatus.COMPLETED
    wait_until(lambda: manager.tasks(room, status=TaskStatus.COMPLETED, limit=1).total == 30)
    tasks = sorted(manager.tasks(room, limit=30).items, key=lambda task: ids.index(str(task.id)))
    times = [(task.started_at, task.completed_at) for task in tasks if task.started_at and task.completed_at]
    assert len(set(times)) == 30
    assert all((end - start).total_seconds() >= max(seconds, 1e-6) for start, end in times)
    # A report takes longer on its way than another one, which makes no run longer.
    assert sum((end - start).total_seconds() for start, end in times) <= time.monotonic() - began


def test_many_short_tasks_need_few_requests(
    worker: Make, room: str, api: Connection, watched: tuple[Connection, Requests]
) -> None:
    """Each task is run once, in order, with its start and its end reported; claims grow step by step."""
    ran: list[int] = []
    caller = worker()
    caller.register(Add, room=room)
    ids = submit(api, room, [{"a": number} for number in range(400)])
    manager = worker(lambda task: ran.append(task.extension.a), at=watched[0], prefetch=60)
    manager.register(Add, room=room)
    assert caller.wait_for(ids[-1], 30).status == TaskStatus.COMPLETED
    wait_until(lambda: caller.tasks(room, status=TaskStatus.COMPLETED, limit=1).total == 400)
    manager.disconnect()
    requests = watched[1]
    assert sorted(ran) == list(range(400))
    # One request for each step would be 1,200; on a busy machine tasks seem long, so claims are small.
    assert requests.count["claim"] + requests.count["report"] < 600
    wanted = [most for most, got in requests.claims if got]
    assert 2 < max(wanted) <= 61
    assert all(most <= 1 + 2**index for index, most in enumerate(wanted))
    # A process that the system halts for a while releases tasks, and claims them again later.
    if not requests.count["release"]:
        assert ran == sorted(ran)
        history = caller.history(ids[7]).transitions
        assert [step.status for step in history] == ["pending", "claimed", "running", "completed"]


def test_a_worker_without_prefetch_holds_only_what_it_runs(
    worker: Make, room: str, api: Connection, watched: tuple[Connection, Requests]
) -> None:
    """With `prefetch=0` each claim asks for as many tasks as there are free slots."""
    manager = worker(lambda task: task.extension.a, at=watched[0], prefetch=0, concurrency=2)
    manager.register(Add, room=room)
    for task_id in submit(api, room, [{"a": number} for number in range(30)]):
        assert worker().wait_for(task_id, 30).status == TaskStatus.COMPLETED
    manager.disconnect()
    assert {wanted for wanted, _ in watched[1].claims} <= {1, 2}


def test_a_long_task_does_not_hold_others(worker: Make, room: str, api: Connection) -> None:
    """Tasks that were claimed ahead are released when the one before them takes long."""
    may_end, running = threading.Event(), threading.Event()
    by: dict[str, str] = {}

    def execute(task: ClaimedTask) -> None:
        if task.extension.a == 50:
            running.set()
            assert may_end.wait(40)

    caller = worker()
    caller.register(Add, room=room)
    ids = submit(api, room, [{"a": number} for number in range(100)])
    first = worker(execute)
    first.register(Add, room=room)
    assert running.wait(30)
    second = worker(lambda task: by.setdefault(task.task_id, "second"))
    second.register(Add, room=room)
    wait_until(lambda: caller.tasks(room, status=TaskStatus.COMPLETED, limit=1).total == 99)
    assert caller.get_task(ids[50]).status == TaskStatus.RUNNING
    assert by
    may_end.set()
    assert caller.wait_for(ids[50], 30).status == TaskStatus.COMPLETED
    assert {caller.get_task(task_id).status for task_id in ids} == {TaskStatus.COMPLETED}


def test_a_stop_releases_the_tasks_that_wait(worker: Make, room: str, api: Connection) -> None:
    """They are in their queue again at once, and no attempt is used up."""
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> None:
        if task.extension.a == 50:
            running.set()
            assert may_end.wait(40)

    caller = worker()
    caller.register(Add, room=room, max_attempts=2, retry_on=[])
    ids = submit(api, room, [{"a": number} for number in range(100)])
    manager = worker(execute)
    manager.register(Add, room=room)
    assert running.wait(30)
    leaving = threading.Thread(target=manager.disconnect)
    leaving.start()
    wait_until(lambda: {caller.get_task(task_id).status for task_id in ids[51:]} == {TaskStatus.PENDING})
    may_end.set()
    leaving.join(30)
    assert caller.get_task(ids[50]).status == TaskStatus.COMPLETED
    assert {caller.get_task(task_id).error for task_id in ids[51:]} == {None}


def test_a_task_cancelled_while_it_waits_is_not_run(worker: Make, room: str, api: Connection) -> None:
    """A heartbeat notices the cancellation of a task that was claimed ahead."""
    ran: list[int] = []
    manager: JobManager

    def execute(task: ClaimedTask) -> None:
        ran.append(task.extension.a)
        if task.extension.a == 50:
            held = manager.held_tasks
            cancelled.extend(task_id for task_id in ids[51:] if task_id in held)
            for task_id in cancelled:
                RestApi(api).send_call(
                    calls.update_task(task_id, TaskUpdateRequest(status=TaskStatus.CANCELLED))
                )
            manager.heartbeat()

    cancelled: list[str] = []
    caller = worker()
    caller.register(Add, room=room)
    ids = submit(api, room, [{"a": number} for number in range(100)])
    manager = worker(execute, heartbeat_interval=60)
    manager.register(Add, room=room)
    wait_until(lambda: all(caller.get_task(task_id).status in {"completed", "cancelled"} for task_id in ids))
    assert {caller.get_task(task_id).status for task_id in cancelled} <= {TaskStatus.CANCELLED}
    assert not {ids[number] for number in ran if number != 50} & set(cancelled)


def test_a_long_task_is_reported_as_running_at_once(worker: Make, room: str, api: Connection) -> None:
    """Its start is its own report, while it runs; `started_at` is before its end."""
    may_end = threading.Event()
    manager = worker(lambda task: may_end.wait(40))
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    wait_until(lambda: manager.get_task(task_id).status == TaskStatus.RUNNING)
    may_end.set()
    ended = manager.wait_for(task_id, 30)
    assert ended.result is True
    assert ended.started_at
    assert ended.completed_at
    assert ended.started_at < ended.completed_at


def test_one_bad_task_does_not_disturb_the_others(worker: Make, room: str, api: Connection) -> None:
    """Invalid payloads and refused results fail their own tasks only."""
    manager = worker(lambda task: "x" * 900_000 if task.extension.word == "large" else task.extension.word)
    caller = worker()
    caller.register(Picky, room=room)
    words = ["a", "bad", "large", "b", "large", "large", "large", "large", "large", "large", "large", "c"]
    ids = submit(api, room, [{"word": word} for word in words], "analysis:Picky")
    manager.register(Picky, room=room)
    tasks = [caller.wait_for(task_id, 60) for task_id in ids]
    assert [task.status == TaskStatus.COMPLETED for task in tasks] == [word != "bad" for word in words]


OLD_ANSWERS = {
    "404": raw("404 Not Found", b'{"detail":"Not Found"}', "application/json"),
    "405": raw("405 Method Not Allowed", b'{"detail":"Method Not Allowed"}', "application/json"),
}


@pytest.mark.parametrize("answer", OLD_ANSWERS.values(), ids=OLD_ANSWERS)
def test_a_server_without_batches_is_served(
    worker: Make, room: str, server: LiveServer, api: Connection, answer: bytes
) -> None:
    """Reports are single requests then; results, failures and starts arrive."""
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as old:
        proxy.rule = lambda method, path: answer if path.endswith("/tasks/report") else None
        manager = worker(lambda task: 1 // task.extension.a, at=old)
        manager.register(Add, room=room)
        ids = submit(api, room, [{"a": number} for number in (1, 0, 1)])
        tasks = [worker().wait_for(task_id, 30) for task_id in ids]
        manager.disconnect()
    assert [task.status for task in tasks] == ["completed", "failed", "completed"]
    assert all(task.started_at for task in tasks)
    assert len(proxy.answered) == 1
    assert sum(proxy.answered.values()) == 1


class OldClaims(Proxy):
    """A proxy in front of a server that ignores `max` and `start`, as versions before batches do."""

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        """Remove the fields that an older server does not know."""
        if path.endswith("/tasks/claim"):
            fields = {name: value for name, value in json.loads(body).items() if name != "max"}
            body = json.dumps(fields).encode()
        return super().respond(method, path, headers, body)


def test_a_server_that_claims_one_by_one_is_served(
    worker: Make, room: str, server: LiveServer, api: Connection
) -> None:
    """Its answer has a `task` and no `tasks`."""
    with OldClaims(server.url) as proxy, connect(proxy.url, TOKEN) as old:
        manager = worker(lambda task: task.extension.a, at=old)
        manager.register(Add, room=room)
        ids = submit(api, room, [{"a": number} for number in range(5)])
        assert [worker().wait_for(task_id, 30).result for task_id in ids] == list(range(5))
        manager.disconnect()


def test_results_wait_for_a_server_that_is_away(
    worker: Make, room: str, own_server: Callable[..., LiveServer]
) -> None:
    """No result is lost, and no task runs twice, when the server restarts under load."""
    live = own_server()
    runs: Counter[int] = Counter()
    begun, lock = threading.Event(), threading.Lock()

    def execute(task: ClaimedTask) -> int:
        with lock:
            runs[task.extension.a] += 1
        if task.extension.a == 100:
            begun.set()
        return int(task.extension.a)

    with live.connect() as api, live.connect() as own:
        caller = worker(at=own)
        caller.register(Add, room=room)
        ids = submit(own, room, [{"a": number} for number in range(300)])
        manager = worker(execute, at=api, concurrency=2)
        manager.register(Add, room=room)
        assert begun.wait(30)
        live.stop()
        live.start()
        assert [caller.wait_for(task_id, 60).result for task_id in ids] == list(range(300))
        manager.disconnect()
        caller.disconnect()
    assert set(runs.values()) == {1}


def test_prefetch_and_executor_are_checked(api: Connection) -> None:
    """The error names the argument and what it may be."""
    with pytest.raises(ValueError, match="prefetch must be between 0 and 1000, not -1"):
        JobManager(api, prefetch=-1)
    with pytest.raises(ValueError, match="executor must be one of thread, process, not 'fork'"):
        JobManager(api, executor="fork")  # type: ignore[arg-type]


def test_a_lost_task_is_marked_while_it_runs(
    worker: Make, room: str, server: LiveServer, api: Connection
) -> None:
    """The report of its start is refused, so the job can stop early; the worker continues."""
    cancelled = threading.Event()
    ids: list[str] = []

    def execute(task: ClaimedTask) -> str:
        if task.extension.a:
            assert task.cancelled.wait(30)
        return "well"

    def cancel(request: httpx.Request) -> None:
        if request.url.path.endswith("/tasks/report") and not cancelled.is_set():
            cancelled.set()
            wait_until(lambda: ids)  # the worker may be faster than the response to the submit
            RestApi(api).send_call(calls.update_task(ids[0], TaskUpdateRequest(status=TaskStatus.CANCELLED)))

    with server.connect() as own:
        own.http.event_hooks["request"].append(cancel)
        manager = worker(execute, at=own, heartbeat_interval=60)
        manager.register(Add, room=room)
        ids += submit(api, room, [{"a": 1}, {"a": 0}])
        assert worker().wait_for(ids[1], 30).result == "well"
        manager.disconnect()
    assert worker().get_task(ids[0]).status == TaskStatus.CANCELLED


@pytest.mark.parametrize("limit", ["MAX_WAITING", "MAX_WAITING_BYTES"])
def test_a_worker_that_cannot_report_stops_claiming(
    worker: Make, room: str, server: LiveServer, api: Connection, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Outcomes wait, bounded by number and bytes; none is lost, and no task runs twice."""
    # A `JobManager` has no argument for it: no user needs another value.
    monkeypatch.setattr(f"zndraw_joblib.worker.reporter.{limit}", 20)
    runs: Counter[int] = Counter()
    busy = raw("503 Service Unavailable", b"busy", "text/plain")
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as away:
        proxy.rule = lambda method, path: busy if path.endswith("/tasks/report") else None
        manager = worker(lambda task: runs.update([task.extension.a]), at=away, prefetch=10)
        caller = worker()
        caller.register(Add, room=room)
        ids = submit(api, room, [{"a": number} for number in range(100)])
        manager.register(Add, room=room)
        wait_until(lambda: sum(proxy.answered.values()) >= 4 and len(runs) >= 20 // len("null"))
        assert len(runs) <= 20 + 1 + 2 * 11
        proxy.rule = lambda method, path: None
        assert {caller.wait_for(task_id, 60).status for task_id in ids} == {TaskStatus.COMPLETED}
        manager.disconnect()
    assert set(runs.values()) == {1}


KILLED = """
import sys, time
from pathlib import Path
from sdk.jobs import Add
from zndraw_joblib.client.connection import connect
from zndraw_joblib.worker.manager import JobManager

url, token, room, running = sys.argv[1:]

def execute(task):
    if task.extension.a == 50:
        Path(running).touch()
        time.sleep(60)

with connect(url, token) as api, JobManager(api, execute=execute) as manager:
    manager.register(Add, room=room)
    manager.wait()
"""


def test_tasks_of_a_killed_worker_are_recovered(
    worker: Make, room: str, own_server: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """Also those that were claimed ahead: the job's retry policy decides, as for the one that ran."""
    live = own_server(clock=TestClock())
    running = tmp_path / "running"
    with live.connect() as api:
        caller = worker(at=api)
        caller.register(Add, room=room, max_attempts=2, retry_on=["worker_lost"], max_crashes=2)
        ids = submit(api, room, [{"a": number} for number in range(100)])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
        }
        killed = subprocess.Popen(
            [sys.executable, "-c", KILLED, live.url, TOKEN, room, str(running)], env=environment
        )
        wait_until(running.exists, 60)
        killed.kill()
        killed.wait()
        live.advance(61)
        second = worker(lambda task: task.extension.a, at=api)
        second.register(Add, room=room)
        live.advance(10, keep_workers=True)  # the pause before the second attempt
        ended = [caller.wait_for(task_id, 60) for task_id in ids]
        assert {task.status for task in ended} == {TaskStatus.COMPLETED}
        assert ended[50].attempt == 2
        second.disconnect()
        caller.disconnect()
