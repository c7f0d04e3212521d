"""A worker that serves by itself: the faults K2, K8, K9, K11, L3, L4 of the contract."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add, Picky
from sdk.live import LiveServer
from zndraw_joblib.contract.messages import JobRegisterRequest
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import Connection
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def add(task: ClaimedTask) -> int:
    """Run a task the usual way."""
    return int(task.extension.run(None))


def test_a_task_starts_at_once(worker: Make, room: str) -> None:
    """A worker without Socket.IO need not wait for its next poll: its claim waits on the server."""
    manager = worker(add, polling_interval=60)
    manager.register(Add, room=room)
    for number in range(5):
        task_id = manager.submit(Add(a=number, b=1), room=room)
        task = manager.wait_for(task_id, 1)
        assert (task.status, task.result) == (TaskStatus.COMPLETED, number + 1)
        assert (task.completed_at - task.created_at).total_seconds() < 0.5


def test_several_tasks_run_at_once(worker: Make, room: str) -> None:
    """K11: with concurrency=3 three tasks run at a time, over one open poll."""
    together = threading.Barrier(3)
    manager = worker(lambda task: together.wait(10) >= 0, concurrency=3)
    manager.register(Add, room=room)
    tasks = [manager.submit(Add(), room=room) for _ in range(6)]
    assert [manager.wait_for(task, 10).result for task in tasks] == [True] * 6


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (ValueError("odd\x00"), "ValueError: odd\\x00"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=["error", "interrupt", "exit"],
)
def test_whatever_a_task_raises_ends_the_task_alone(
    worker: Make, room: str, raised: BaseException, text: str
) -> None:
    """K2: sys.exit() in an extension fails its task, and the worker goes on."""

    def execute(task: ClaimedTask) -> int:
        if task.extension.a:
            raise raised
        return sys.maxsize

    manager = worker(execute)
    manager.register(Add, room=room)
    failed = manager.wait_for(manager.submit(Add(a=1), room=room), 5)
    assert (failed.status, failed.error) == (TaskStatus.FAILED, text)
    assert manager.wait_for(manager.submit(Add(), room=room), 5).result == sys.maxsize


def test_a_payload_that_does_not_fit_fails_its_task(worker: Make, room: str) -> None:
    """L3: what the class refuses is told to the task's owner, and the worker goes on."""
    manager = worker(lambda task: task.extension.word)
    manager.register(Picky, room=room)
    job = f"{room}:analysis:Picky"
    bad, good = (manager.submit(job, {"word": word}, room=room) for word in ("bad", "good"))
    failed = manager.wait_for(bad, 5)
    assert failed.status == TaskStatus.FAILED
    assert "that word is bad" in (failed.error or "")
    assert manager.wait_for(good, 5).result == "good"


def test_a_task_of_an_unknown_job_fails(worker: Make, room: str, api: Connection) -> None:
    """L4: a job that this process does not know is no reason to stop."""
    manager = worker(add)
    manager.register(Add, room=room)
    RestApi(api).register(
        room, JobRegisterRequest(category="analysis", name="Strange", worker_id=manager.worker_id)
    )
    failed = manager.wait_for(manager.submit(f"{room}:analysis:Strange", room=room), 5)
    assert failed.status == TaskStatus.FAILED
    assert "does not know the job" in (failed.error or "")
    assert manager.wait_for(manager.submit(Add(a=1), room=room), 5).result == 1


def test_a_report_is_repeated_until_the_server_is_back(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """K9: a success is not lost to a restart, and heartbeats go on meanwhile."""
    live = own_server()
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> str:
        running.set()
        assert may_end.wait(10)
        return "kept"

    with live.connect() as api:
        manager = worker(execute, at=api, heartbeat_interval=0.1)
        manager.register(Add, room=room)
        task_id = manager.submit(Add(), room=room)
        assert running.wait(5)
        worker_id = manager.worker_id
        live.stop()
        may_end.set()
        threading.Event().wait(0.5)
        live.start()
        task = manager.wait_for(task_id, 10)
        assert (task.status, task.result, task.worker_id) == (TaskStatus.COMPLETED, "kept", worker_id)
        [before] = manager.workers().items
        wait_until(lambda: manager.workers().items[0].last_heartbeat > before.last_heartbeat)
        manager.disconnect(5)


class Rotating:
    """A host whose token expires, and is fresh again once every kind of request was refused."""

    def __init__(self, api: Connection) -> None:
        self.http, self.base_url = api.http, api.base_url
        self._api = api
        self.refused: set[str] | None = None
        self.served: set[str] = set()

    def get_headers(self) -> dict[str, str]:
        """Return a token that is good, or not."""
        good = self.refused is None or len(self.refused) == 3
        return self._api.get_headers() if good else {"Authorization": "Bearer expired"}

    def raise_for_status(self, response: httpx.Response) -> None:
        """Note what was refused, and what was served again."""
        if self.refused is not None:
            path = response.request.url.path
            kind = "claim" if path.endswith("/claim") else path.split("/")[3]
            (self.refused if response.status_code == 401 else self.served).add(kind)
        self._api.raise_for_status(response)


def test_an_expired_token_is_waited_out(worker: Make, room: str, api: Connection) -> None:
    """K8: 401 ends neither heartbeats, nor claims, nor reports; the host is asked for its headers again."""
    host = Rotating(api)

    both = threading.Barrier(2)

    def execute(task: ClaimedTask) -> int:
        if task.extension.a:
            host.refused = set()
        else:
            both.wait(10)
        return 2

    manager = worker(execute, at=host, long_poll=1, heartbeat_interval=0.1, concurrency=2)
    manager.register(Add, room=room)
    before = manager.worker_id
    caller = worker()
    task_id = caller.submit(Add(a=1), room=room, job_room=room)
    wait_until(lambda: host.refused == {"claim", "tasks", "workers"})
    assert caller.wait_for(task_id, 10).result == 2
    tasks = [caller.submit(Add(), room=room, job_room=room) for _ in range(2)]
    assert [caller.wait_for(task, 10).result for task in tasks] == [2, 2]
    wait_until(lambda: host.served == host.refused)
    assert manager.worker_id == before


def test_a_task_that_was_taken_away_is_dropped(worker: Make, room: str, api: Connection) -> None:
    """A worker removed while it works goes on as a new one; its late report changes nothing."""
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> int:
        if task.extension.a:
            running.set()
            assert may_end.wait(10)
        return 1

    manager = worker(execute, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(a=1), room=room)
    assert running.wait(5)
    removed = manager.worker_id
    RestApi(api).remove_worker(removed, 5)
    wait_until(lambda: manager.worker_id not in (None, removed))
    may_end.set()
    assert manager.wait_for(manager.submit(Add(), room=room), 5).result == 1
    lost = manager.get_task(task_id)
    assert (lost.status, lost.error) == (TaskStatus.FAILED, "Worker disconnected")


def test_a_server_with_too_many_sleepers_is_polled(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """Where the server cannot let a claim wait, the worker asks every polling_interval seconds."""
    live = own_server(max_waiting_requests=0)
    with live.connect() as api:
        manager = worker(add, at=api, polling_interval=0.05)
        manager.register(Add, room=room)
        for number in range(3):
            task_id = manager.submit(Add(a=number), room=room)
            assert wait_until(lambda id=task_id: manager.get_task(id).completed_at, 2)
        manager.disconnect()


def test_a_server_that_does_not_wait_is_polled(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """Without Prefer on the server's side there is a claim every polling_interval seconds, no more."""
    live = own_server(long_poll_max_wait_seconds=0)
    claims: list[Any] = []
    with live.connect() as api:
        api.http.event_hooks = {"request": [lambda request: claims.append(request.url.path)]}
        manager = worker(add, at=api, polling_interval=0.1, long_poll=0)
        manager.register(Add, room=room)
        assert manager.wait_for(manager.submit(Add(a=1), room=room), 2).result == 1
        claims.clear()
        threading.Event().wait(1)
        assert 5 <= sum(path.endswith("/claim") for path in claims) <= 12
        manager.disconnect()
