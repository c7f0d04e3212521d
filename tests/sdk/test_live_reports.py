"""What a job reports while it runs arrives at a real server: bounded, in few requests, once."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy, raw
from sdk.talking import Talk, TalkLater, execute
from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.history import TaskHistory, TaskLog
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.progress import LogLevel, LogSource
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.reports import LiveReports
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.serving import Runner
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def log_of(api: Connection, task_id: str, **query: Any) -> TaskLog:
    """Return up to 1,000 lines of a task's log."""
    return RestApi(api).send(ops.GET_TASK_LOG, task_id=task_id, query={"limit": 1000, **query})


def texts(api: Connection, task_id: str, **query: Any) -> list[str]:
    """Return the texts of a task's log."""
    return [line.text for line in log_of(api, task_id, **query).lines]


def history_of(api: Connection, task_id: str) -> TaskHistory:
    """Return the history of a task."""
    return RestApi(api).send(ops.GET_TASK_HISTORY, task_id=task_id)


@contextmanager
def recorded(api: Connection, path: str) -> Iterator[list[dict[str, Any]]]:
    """Record the bodies of the requests to a path."""
    bodies: list[dict[str, Any]] = []

    def record(request: httpx.Request) -> None:
        if request.url.path.endswith(path):
            bodies.append(json.loads(request.content))

    api.http.event_hooks["request"].append(record)
    yield bodies
    api.http.event_hooks["request"].remove(record)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_tasks_at_once_have_their_own_logs(worker: Make, api: Connection, room: str, executor: str) -> None:
    """What each prints in its thread or process, with its progress."""
    manager = worker(execute, concurrency=3, executor=executor)
    manager.register(Talk, room=room)
    names = ["a", "b", "c"]
    ids = [manager.submit(Talk(name=name, lines=5), room=room) for name in names]
    for name, task_id in zip(names, ids, strict=True):
        task = manager.wait_for(task_id, 30)
        assert (task.status, task.result) == (TaskStatus.COMPLETED, name)
        assert texts(api, task_id) == [*(f"{name} {number}" for number in range(5)), f"{name} error"]
        log = log_of(api, task_id)
        assert (log.last, log.dropped, log.lines[-1].source) == (6, 0, LogSource.STDERR)
        assert task.progress is not None
        assert task.progress.model_dump(exclude_none=True) == {
            "current": 5,
            "total": 5,
            "unit": "lines",
            "message": name,
        }


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_coroutines_have_their_own_logs(worker: Make, api: Connection, room: str, executor: str) -> None:
    """They share a thread."""
    manager = worker(execute, concurrency=2, executor=executor)
    manager.register(TalkLater, room=room)
    ids = {name: manager.submit(TalkLater(name=name), room=room) for name in "ab"}
    for name, task_id in ids.items():
        assert manager.wait_for(task_id, 30).result == name
        assert texts(api, task_id) == [f"{name} logs", *(f"{name} {number}" for number in range(3))]
        assert log_of(api, task_id).lines[0].level == LogLevel.WARNING


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_running_task_is_seen(
    worker: Make, api: Connection, room: str, executor: str, tmp_path: Path
) -> None:
    """Its progress and its lines arrive before it ends."""
    manager = worker(execute, executor=executor)
    manager.register(Talk, room=room)
    task_id = manager.submit(Talk(lines=2, gate=str(tmp_path / "gate")), room=room)
    wait_until(lambda: texts(api, task_id) == ["a 0", "a 1", "a error"])
    task = manager.get_task(task_id)
    assert task.status == TaskStatus.RUNNING
    assert task.progress is not None
    assert task.progress.current == 2
    (tmp_path / "gate").touch()
    assert manager.wait_for(task_id, 30).status == TaskStatus.COMPLETED
    assert log_of(api, task_id).last == 3


def test_a_process_that_is_killed_leaves_its_lines(
    worker: Make, api: Connection, room: str, tmp_path: Path
) -> None:
    """Those that it had passed to the worker."""
    manager = worker(execute, executor="process")
    manager.register(Talk, room=room, max_attempts=1)
    gate = tmp_path / "gate"
    task_id = manager.submit(Talk(lines=2, gate=str(gate), then="kill"), room=room)
    wait_until(lambda: len(texts(api, task_id)) == 3)
    gate.touch()
    task = manager.wait_for(task_id, 30)
    assert (task.error or "").startswith("The process that ran the task ended with exit code -9 (SIGKILL, ")
    assert texts(api, task_id) == ["a 0", "a 1", "a error"]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_each_attempt_has_its_own_log_and_failure(
    worker: Make, api: Connection, room: str, executor: str
) -> None:
    """The policy of the class retries the task; the history has both attempts."""
    manager = worker(execute, executor=executor)
    manager.register(Talk, room=room)
    task_id = manager.submit(Talk(then="fail"), room=room)
    task = manager.wait_for(task_id, 30)
    assert (task.status, task.attempt, task.error) == (TaskStatus.FAILED, 2, "ValueError: attempt 2")
    for attempt in (1, 2):
        assert texts(api, task_id, attempt=attempt) == ["a 0", "a error"]
    failures = [each.failure for each in history_of(api, task_id).attempts]
    assert [failure and failure.type for failure in failures] == ["ValueError", "ValueError"]
    first = failures[0]
    assert first is not None
    assert first.traceback.endswith("ValueError: attempt 1\n")
    assert "talking.py" in first.traceback
    assert "execution.py" not in first.traceback


def test_all_lines_of_a_short_task_arrive(worker: Make, api: Connection, room: str) -> None:
    """More than one report may hold, in the request that reports its end."""
    manager = worker(execute)
    manager.register(Talk, room=room)
    with recorded(api, "/tasks/report") as bodies:
        task_id = manager.submit(Talk(lines=2500), room=room)
        task = manager.wait_for(task_id, 30)
    assert task.status == TaskStatus.COMPLETED
    assert task.started_at is not None
    assert task.completed_at is not None
    seconds = (task.completed_at - task.started_at).total_seconds()
    log = log_of(api, task_id, after=2000)
    assert (log.last, log.dropped) == (2501, 0)
    assert [line.text for line in log.lines] == [*(f"a {number}" for number in range(2000, 2500)), "a error"]
    # A live report is sent twice a second at most.
    assert len(bodies) <= 4 + 2 * seconds


def test_a_task_that_reports_nothing_sends_what_it_always_sent(
    worker: Make, api: Connection, room: str
) -> None:
    """Start and end, with their ages, without another field; no thread is started."""
    # Those of other tests end a little later than their workers.
    before = set(threading.enumerate())
    manager = worker(Runner())
    manager.register(Add, room=room)
    with recorded(api, "/tasks/report") as bodies:
        task_id = manager.submit(Add(a=1, b=2), room=room)
        assert manager.wait_for(task_id, 30).result == 3
    fields = {key for body in bodies for report in body["reports"] for key in report}
    assert fields == {"id", "attempt", "status", "result", "started_ago", "ended_ago"}
    assert "zndraw-joblib-live-reports" not in {thread.name for thread in set(threading.enumerate()) - before}


class Clock:
    """A stop event whose waits take no time and are counted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.work: Callable[[], None] = lambda: None

    def is_set(self) -> bool:
        """Return whether four seconds are over."""
        return self.now >= 4

    def wait(self, seconds: float) -> bool:
        """Let the job work for `seconds`."""
        self.now += seconds
        for _ in range(max(1, round(seconds * 1000))):
            self.work()
        return self.is_set()


def claimed(manager: JobManager, room: str) -> ClaimedTask:
    """Return a task that has started, without a thread that reports it."""
    manager.register(Add, room=room)
    manager.submit(Add(), room=room)
    task = manager.claim()
    assert task is not None
    manager.start(task)
    return task


def with_channel(task: ClaimedTask, live: LiveReports) -> ClaimedTask:
    """Return a task whose content is not sent by the thread of `live`."""
    channel = live.channel(task.task_id, task.attempt, task.worker_id)
    return ClaimedTask(
        task.task_id, "job", "room", None, task.attempt, {}, task.worker_id, task.cancelled, channel
    )


def test_a_thousand_calls_a_second_are_two_requests(worker: Make, api: Connection, room: str) -> None:
    """A job reports progress and logs a line each millisecond, for four seconds of a clock of its own."""
    clock = Clock()
    live = LiveReports(RestApi(api), clock, has_thread=False)  # type: ignore[arg-type]
    task = with_channel(claimed(worker(), room), live)
    calls = 0

    def work() -> None:
        nonlocal calls
        calls += 1
        task.progress(calls, 4000)
        task.log(f"line {calls}")

    clock.work = work
    work()
    with recorded(api, "/tasks/report") as bodies:
        live.run()
    assert calls >= 4000
    assert 0 < len(bodies) <= 2 * 4
    log = log_of(api, task.task_id, after=3000)
    assert log.dropped == 0
    assert log.lines[-1].text == f"line {log.last}"
    assert log.last >= 3500


def test_an_older_server_loses_no_outcome(
    worker: Make, room: str, server: LiveServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It refuses reports without a status: the worker warns once, and completes its tasks."""
    refusal = {
        "type": "/v1/problems/invalid-request",
        "title": "Unprocessable Content",
        "status": 422,
        "detail": "body.reports.0.status: Field required",
    }
    answer = raw("422 Unprocessable Content", json.dumps(refusal).encode(), "application/problem+json")

    class OldReports(Proxy):
        def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
            """Refuse what an older server refuses."""
            reports = json.loads(body)["reports"] if path.endswith("/tasks/report") else []
            if any("status" not in report for report in reports):
                return answer
            return super().respond(method, path, headers, body)

    with OldReports(server.url) as proxy, connect(proxy.url, TOKEN) as behind:
        manager = worker(execute, at=behind, concurrency=2)
        manager.register(Talk, room=room)
        gate = tmp_path / "gate"
        ids = [manager.submit(Talk(name=name, gate=str(gate)), room=room) for name in "ab"]
        wait_until(lambda: "too old" in caplog.text)
        gate.touch()
        for task_id in ids:
            assert manager.wait_for(task_id, 30).status == TaskStatus.COMPLETED
            assert len(texts(behind, task_id)) == 2
    assert caplog.text.count("too old") == 1


def test_a_task_that_was_claimed_by_hand_reports_too(worker: Make, api: Connection, room: str) -> None:
    """Its progress and its log arrive while it runs, and with its end."""
    manager = worker()
    task = claimed(manager, room)
    task.progress(1, 2)
    task.log("begun")
    wait_until(lambda: texts(api, task.task_id) == ["begun"])
    task.progress(2)
    task.log("ended")
    manager.complete(task, 3)
    assert texts(api, task.task_id) == ["begun", "ended"]
    found = manager.get_task(task.task_id)
    assert found.progress is not None
    assert (found.progress.current, found.progress.total) == (2, 2)


def sent_by_hand(manager: JobManager, room: str) -> tuple[ClaimedTask, LiveReports]:
    """Return a task whose content only heartbeats and `send_once` send."""
    task = claimed(manager, room)
    live = manager._active().registrations._live
    # The thread that would send it is over.
    live._thread = threading.Thread(target=lambda: None)
    live._thread.start()
    live._thread.join()
    return with_channel(task, live), live


@pytest.fixture
def by_heartbeat(worker: Make, room: str) -> tuple[JobManager, ClaimedTask, LiveReports]:
    """Return a worker's task whose content heartbeats carry: a first report has arrived."""
    manager = worker()
    task, live = sent_by_hand(manager, room)
    task.log("first")
    live.send_once()
    return manager, task, live


def test_a_heartbeat_carries_what_waits(
    by_heartbeat: tuple[JobManager, ClaimedTask, LiveReports], api: Connection
) -> None:
    """It costs no further request, and nothing is sent twice."""
    manager, task, live = by_heartbeat
    task.progress(1, 2)
    task.log("second")
    with recorded(api, "/tasks/report") as reports, recorded(api, f"/workers/{task.worker_id}") as heartbeats:
        manager.heartbeat()
        live.send_once()
        manager.heartbeat()
    assert reports == []
    named = [each["tasks"][0] for each in heartbeats]
    assert [line["text"] for line in named[0]["log"]["lines"]] == ["second"]
    assert [set(each) for each in named] == [{"id", "attempt", "progress", "log"}, {"id", "attempt"}]
    assert texts(api, task.task_id) == ["first", "second"]
    found = manager.get_task(task.task_id)
    assert found.progress is not None
    assert (found.progress.current, found.progress.total) == (1, 2)


def test_what_a_lost_heartbeat_carried_is_sent_again(
    by_heartbeat: tuple[JobManager, ClaimedTask, LiveReports], api: Connection
) -> None:
    """Although it had arrived: its response was lost."""
    manager, task, live = by_heartbeat
    task.log("second")

    def lose(response: httpx.Response) -> None:
        api.http.event_hooks["response"].remove(lose)
        raise httpx.ReadError("lost")

    api.http.event_hooks["response"].append(lose)
    with pytest.raises(httpx.ReadError):
        manager.heartbeat()
    task.log("third")
    with recorded(api, "/tasks/report") as reports:
        live.send_once()
    assert [line["text"] for line in reports[0]["reports"][0]["log"]["lines"]] == ["second", "third"]
    assert [(line.n, line.text) for line in log_of(api, task.task_id).lines] == [
        (1, "first"),
        (2, "second"),
        (3, "third"),
    ]


def test_a_heartbeat_without_its_content_if_that_is_refused(
    worker: Make, room: str, server: LiveServer, api: Connection
) -> None:
    """By a proxy that limits bodies; the content waits for a report."""
    with Proxy(server.url) as proxy, connect(proxy.url, TOKEN) as behind:
        manager = worker(at=behind)
        task, live = sent_by_hand(manager, room)
        task.log("first")
        live.send_once()
        proxy.limit_body(1000, raw("413 Content Too Large", b"no", "text/plain"))
        task.log("x" * 2000)
        with recorded(behind, f"/workers/{task.worker_id}") as heartbeats:
            manager.heartbeat()
        assert [len(each["tasks"][0]) for each in heartbeats] == [3, 2]
        assert texts(api, task.task_id) == ["first"]
        proxy.limit_body(10_000, b"")
        live.send_once()
        assert texts(api, task.task_id) == ["first", "x" * 2000]


def test_a_heartbeat_carries_nothing_before_a_report_arrived(
    worker: Make, api: Connection, room: str
) -> None:
    """A server that is too old would accept the heartbeat, and forget its content."""
    manager = worker()
    task, live = sent_by_hand(manager, room)
    task.log("first")
    manager.heartbeat()
    assert texts(api, task.task_id) == []
    live.send_once()
    assert texts(api, task.task_id) == ["first"]


def test_a_heartbeat_leaves_invalid_content_to_a_report(
    by_heartbeat: tuple[JobManager, ClaimedTask, LiveReports], caplog: pytest.LogCaptureFixture
) -> None:
    """The worker stays, and says what was refused."""
    manager, task, live = by_heartbeat
    task.channel.set_progress({"unit": "u" * 100})
    manager.heartbeat()
    assert task.channel.take() is not None
    live.send_once()
    assert task.channel.take() is None
    assert "unit" in caplog.text


def test_the_log_of_a_lost_task_ends_with_a_heartbeat(
    by_heartbeat: tuple[JobManager, ClaimedTask, LiveReports], api: Connection
) -> None:
    """Its verdict closes the channel: nothing is reported any more."""
    manager, task, live = by_heartbeat
    RestApi(api).send_call(calls.update_task(task.task_id, TaskUpdateRequest(status=TaskStatus.CANCELLED)))
    task.log("late")
    manager.heartbeat()
    task.log("later")
    with recorded(api, "/tasks/report") as reports:
        live.send_once()
    assert reports == []
    assert texts(api, task.task_id) == ["first"]


def test_a_lost_task_reports_nothing_more(worker: Make, api: Connection, room: str) -> None:
    """Its lines are refused once, and then not sent any more."""
    manager = worker()
    task = claimed(manager, room)
    manager.cancel(task)
    live = LiveReports(RestApi(api), threading.Event(), has_thread=False)
    lost = with_channel(task, live)
    lost.log("late")
    with recorded(api, "/tasks/report") as bodies:
        live.send_once()
        lost.log("later")
        live.send_once()
    assert len(bodies) == 1
    assert lost.channel.take() is None


def test_lines_that_did_not_arrive_are_sent_again(
    worker: Make, room: str, server: LiveServer, api: Connection
) -> None:
    """Also those that did, but whose response was lost; each is there once."""
    manager = worker()
    task = claimed(manager, room)
    with server.connect() as own:
        live = LiveReports(RestApi(own), threading.Event(), has_thread=False)
        writing = with_channel(task, live)

        def lose(response: httpx.Response) -> None:
            own.http.event_hooks["response"].clear()
            raise httpx.ReadError("lost")

        own.http.event_hooks["response"].append(lose)
        writing.log("one")
        assert live.send_once() > 0
        writing.log("two")
        assert live.send_once() == 0
    log = log_of(api, task.task_id)
    assert [(line.n, line.text) for line in log.lines] == [(1, "one"), (2, "two")]


def test_what_the_server_refuses_does_not_disturb_others(
    worker: Make, api: Connection, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines of two tasks in one request; those of one are invalid."""
    caplog.set_level(logging.WARNING)
    manager = worker()
    live = LiveReports(RestApi(api), threading.Event(), has_thread=False)
    good, bad = (with_channel(claimed(manager, room), live) for _ in range(2))
    bad.channel.set_progress({"unit": "u" * 100})
    good.log("good")
    live.send_once()
    assert texts(api, good.task_id) == ["good"]
    assert bad.channel.take() is None
    assert UUID(bad.task_id)
    assert "unit" in caplog.text


def test_the_requests_of_the_worker_are_in_no_log(worker: Make, api: Connection, room: str) -> None:
    """A job may log the records of httpx: those of its own reports would cause further reports."""
    logger = logging.getLogger("httpx")

    def work(task: ClaimedTask) -> None:
        logger.addHandler(task.log_handler())
        task.log("begun")
        wait_until(lambda: task.channel.take() is None)

    former = logger.level
    logger.setLevel(logging.INFO)
    try:
        manager = worker(work)
        manager.register(Add, room=room)
        task_id = manager.submit(Add(), room=room)
        assert manager.wait_for(task_id, 30).status == TaskStatus.COMPLETED
    finally:
        logger.setLevel(former)
        logger.handlers.clear()
    assert texts(api, task_id) == ["begun"]
