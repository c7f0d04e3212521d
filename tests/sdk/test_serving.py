"""A worker with `execute`: it claims tasks, runs them and reports."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add, Picky
from sdk.live import LiveServer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.messages import JobRegisterRequest
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def add(task: ClaimedTask) -> int:
    """Run a task as `serve` does."""
    return int(task.extension.run(None))


def test_a_task_starts_at_once(worker: Make, room: str) -> None:
    """Without Socket.IO too: the claim waits on the server."""
    manager = worker(add, polling_interval=60)
    manager.register(Add, room=room)
    for number in range(5):
        task_id = manager.submit(Add(a=number, b=1), room=room)
        task = manager.wait_for(task_id, 50)
        assert (task.status, task.result) == (TaskStatus.COMPLETED, number + 1)


def test_several_tasks_run_at_once(worker: Make, room: str) -> None:
    """With concurrency=3 three tasks run at a time, with one open poll."""
    together = threading.Barrier(3)
    manager = worker(lambda task: together.wait(60) >= 0, concurrency=3)
    manager.register(Add, room=room)
    tasks = [manager.submit(Add(), room=room) for _ in range(6)]
    assert [manager.wait_for(task, 30).result for task in tasks] == [True] * 6


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (ValueError("odd\x00"), "ValueError: odd\\x00"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=["error", "interrupt", "exit"],
)
def test_any_exception_ends_only_the_task(worker: Make, room: str, raised: BaseException, text: str) -> None:
    """sys.exit() in an extension fails its task, and the worker continues."""

    def execute(task: ClaimedTask) -> int:
        if task.extension.a:
            raise raised
        return sys.maxsize

    manager = worker(execute)
    manager.register(Add, room=room)
    failed = manager.wait_for(manager.submit(Add(a=1), room=room), 30)
    assert (failed.status, failed.error) == (TaskStatus.FAILED, text)
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == sys.maxsize


def test_an_invalid_payload_fails_its_task(worker: Make, room: str) -> None:
    """The task's error has the reason, and the worker continues."""
    manager = worker(lambda task: task.extension.word)
    manager.register(Picky, room=room)
    job = f"{room}:analysis:Picky"
    bad, good = (manager.submit(job, {"word": word}, room=room) for word in ("bad", "good"))
    failed = manager.wait_for(bad, 30)
    assert failed.status == TaskStatus.FAILED
    assert "that word is bad" in (failed.error or "")
    assert manager.wait_for(good, 30).result == "good"


def test_a_task_of_an_unknown_job_fails(worker: Make, room: str, api: Connection) -> None:
    """The worker continues."""
    manager = worker(add)
    manager.register(Add, room=room)
    RestApi(api).register(
        room, JobRegisterRequest(category="analysis", name="Strange", worker_id=manager.worker_id)
    )
    failed = manager.wait_for(manager.submit(f"{room}:analysis:Strange", room=room), 30)
    assert failed.status == TaskStatus.FAILED
    assert "does not know the job" in (failed.error or "")
    assert manager.wait_for(manager.submit(Add(a=1), room=room), 30).result == 1


def test_a_report_is_repeated_until_the_server_is_back(
    own_server: Callable[..., LiveServer], worker: Make, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A success is not lost in a restart, and heartbeats continue."""
    caplog.set_level(logging.DEBUG)  # another request may log the outage
    live = own_server()
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> str:
        running.set()
        assert may_end.wait(40)
        return "kept"

    with live.connect() as api:
        manager = worker(execute, at=api, heartbeat_interval=0.1)
        manager.register(Add, room=room)
        task_id = manager.submit(Add(), room=room)
        assert running.wait(30)
        worker_id = manager.worker_id
        live.stop()
        may_end.set()
        wait_until(lambda: "Reporting: " in caplog.text)
        live.start()
        task = manager.wait_for(task_id, 30)
        assert (task.status, task.result, task.worker_id) == (TaskStatus.COMPLETED, "kept", worker_id)
        [before] = manager.workers().items
        wait_until(lambda: manager.workers().items[0].last_heartbeat > before.last_heartbeat)
        manager.disconnect(5)


class RotatingTokenHost:
    """A host whose token expires, and becomes valid after each kind of request was refused once."""

    def __init__(self, api: Connection) -> None:
        self.http, self.base_url = api.http, api.base_url
        self._api = api
        self.refused: set[str] | None = None
        self.served: set[str] = set()

    def get_headers(self) -> dict[str, str]:
        """Return a valid or an expired token."""
        good = self.refused is None or len(self.refused) == 3
        return self._api.get_headers() if good else {"Authorization": "Bearer expired"}

    def raise_for_status(self, response: httpx.Response) -> None:
        """Record the refused requests and their later successes."""
        if self.refused is not None:
            path = response.request.url.path
            kind = "claim" if path.endswith("/claim") else path.split("/")[3]
            (self.refused if response.status_code == 401 else self.served).add(kind)
        self._api.raise_for_status(response)


def test_requests_with_an_expired_token_are_retried(worker: Make, room: str, api: Connection) -> None:
    """A 401 ends neither heartbeats, claims nor reports: each retry calls the host's `get_headers` again."""
    host = RotatingTokenHost(api)

    both = threading.Barrier(2)

    def execute(task: ClaimedTask) -> int:
        if task.extension.a:
            host.refused = set()
        else:
            both.wait(60)
        return 2

    manager = worker(execute, at=host, long_poll=1, heartbeat_interval=0.1, concurrency=2)
    manager.register(Add, room=room)
    before = manager.worker_id
    caller = worker()
    task_id = caller.submit(Add(a=1), room=room, job_room=room)
    wait_until(lambda: host.refused == {"claim", "tasks", "workers"})
    assert caller.wait_for(task_id, 30).result == 2
    tasks = [caller.submit(Add(), room=room, job_room=room) for _ in range(2)]
    assert [caller.wait_for(task, 30).result for task in tasks] == [2, 2]
    wait_until(lambda: host.served == host.refused)
    assert manager.worker_id == before


def test_a_lost_task_is_dropped(worker: Make, room: str, api: Connection) -> None:
    """A worker that was removed while it works registers again; its late report changes nothing."""
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> int:
        if task.extension.a:
            running.set()
            assert may_end.wait(40)
        return 1

    manager = worker(execute, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(a=1), room=room)
    assert running.wait(30)
    removed = manager.worker_id
    RestApi(api).remove_worker(removed, 60)
    wait_until(lambda: manager.worker_id not in (None, removed))
    may_end.set()
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 1
    lost = manager.get_task(task_id)
    assert (lost.status, lost.error) == (TaskStatus.FAILED, "Worker disconnected")


def test_a_server_with_too_many_waiting_requests_is_polled(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """If the server has no room for a waiting claim, the worker polls every polling_interval seconds."""
    live = own_server(max_waiting_requests=0)
    with live.connect() as api:
        manager = worker(add, at=api, polling_interval=0.05)
        manager.register(Add, room=room)
        for number in range(3):
            task_id = manager.submit(Add(a=number), room=room)
            assert wait_until(lambda id=task_id: manager.get_task(id).completed_at)
        manager.disconnect()


def test_a_server_that_does_not_wait_is_polled(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """If the server ignores Prefer, the worker polls every polling_interval seconds."""
    live = own_server(long_poll_max_wait_seconds=0)
    claims: list[Any] = []
    with live.connect() as api:
        api.http.event_hooks = {"request": [lambda request: claims.append(request.url.path)]}
        manager = worker(add, at=api, polling_interval=0.1, long_poll=0)
        manager.register(Add, room=room)
        assert manager.wait_for(manager.submit(Add(a=1), room=room), 30).result == 1
        began = time.monotonic()
        claims.clear()
        wait_until(lambda: sum(path.endswith("/claim") for path in claims) >= 6)
        assert time.monotonic() - began > 0.4
        manager.disconnect()
