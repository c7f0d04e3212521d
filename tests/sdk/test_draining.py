"""A worker that an operator drains disconnects as after a signal."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import LiveServer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.serving import serve
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def drain(api: Connection, worker_id: object) -> None:
    """Drain a worker, as an operator does."""
    assert RestApi(api).send(ops.DRAIN_WORKER, worker_id=worker_id).drain


NOTICES = {"by a heartbeat": {"heartbeat_interval": 0.1}, "by a claim": {"long_poll": 1, "concurrency": 2}}


@pytest.mark.parametrize("options", NOTICES.values(), ids=NOTICES)
def test_a_drained_worker_finishes_its_task_and_disconnects(
    worker: Make, room: str, api: Connection, options: dict[str, Any]
) -> None:
    """It claims no other task, and is removed."""
    running, may_end = threading.Event(), threading.Event()

    def execute(task: ClaimedTask) -> str:
        running.set()
        assert may_end.wait(40)
        return "done"

    manager, other = worker(execute, **options), worker()
    for each in (manager, other):
        each.register(Add, room=room)
    worker_id = manager.worker_id
    first = manager.submit(Add(), room=room)
    assert running.wait(30)
    waiting = threading.Thread(target=manager.wait)
    waiting.start()
    drain(api, worker_id)
    wait_until(lambda: not manager.registry)
    second = other.submit(Add(), room=room)
    assert waiting.is_alive()
    may_end.set()
    waiting.join(30)
    assert not waiting.is_alive()
    assert manager.worker_id is None
    assert manager.get_task(first).result == "done"
    assert manager.get_task(second).status == TaskStatus.PENDING
    assert worker_id not in [known.id for known in manager.workers(limit=500).items]


def test_serve_returns_when_the_worker_is_drained(server: LiveServer, api: Connection, room: str) -> None:
    """`serve` returns as after a signal, and the process exits with code 0."""
    caller = JobManager(api)

    def drain_later() -> None:
        [job] = wait_until(lambda: [job for job in caller.jobs(room).items if job.full_name.startswith(room)])
        drain(api, job.workers[0])

    draining = threading.Thread(target=drain_later)
    draining.start()
    with server.connect() as own:
        serve(own, [Add], room=room)
    draining.join(30)
    [job] = [job for job in caller.jobs(room).items if job.full_name.startswith(room)]
    assert job.workers == []


def test_a_drain_during_the_registration_leaves_no_worker(worker: Make, room: str, api: Connection) -> None:
    """What is not registered yet registers no second worker, which no operator has drained."""
    manager, has_returned, has_ended = worker(heartbeat_interval=0.1), threading.Event(), threading.Event()
    refusals: list[str] = []

    def begin() -> None:
        manager.register(Add, room=room)
        drain(api, manager.worker_id)
        assert has_returned.wait(30)
        try:
            manager.register(Add, room=f"{room}-2")
        except RuntimeError as error:
            refusals.append(str(error))
        has_ended.set()

    manager.wait(begin)
    has_returned.set()
    assert has_ended.wait(30)
    assert refusals == ["The worker has left: it was drained or stopped during its registration"]
    assert manager.worker_id is None
    assert not [job for job in manager.jobs(f"{room}-2").items if job.workers]


def test_an_error_of_a_registration_that_a_drain_ended_is_no_fault(
    worker: Make, room: str, api: Connection
) -> None:
    """The worker exits as after any drain: its supervisor starts no other one."""
    manager = worker(heartbeat_interval=0.1)

    def begin() -> None:
        manager.register(Add, room=room)
        manager.submit(Add(), room=room)
        task = manager.claim(5)
        assert task is not None
        registering = threading.current_thread()
        threading.Thread(target=lambda: (registering.join(), manager.release(task))).start()
        drain(api, manager.worker_id)
        wait_until(lambda: not manager.registry)
        raise RuntimeError("The worker has just disconnected; try again")

    manager.wait(begin)
    assert manager.worker_id is None


def test_a_drained_worker_waits_for_tasks_claimed_by_hand(worker: Make, room: str, api: Connection) -> None:
    """`listen` ends; its last task can be reported, and then the worker is removed."""
    manager = worker(heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    worker_id = manager.worker_id
    yielded = []
    for task in manager.listen(polling_interval=1):
        yielded.append(task.task_id)
        manager.start(task)
        drain(api, worker_id)
        wait_until(lambda: not manager.registry)
        assert manager.worker_id == worker_id
        manager.complete(task, 1)
    wait_until(lambda: manager.worker_id is None)
    assert yielded == [task_id]
    assert manager.get_task(task_id).result == 1


def test_a_manager_can_register_after_a_drain(worker: Make, room: str, api: Connection) -> None:
    """As after a disconnect; `wait` of the former session returns."""
    manager = worker(lambda task: task.extension.a, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    first = manager.worker_id
    drain(api, first)
    wait_until(lambda: manager.worker_id is None)
    manager.register(Add, room=room)
    assert manager.worker_id not in (None, first)
    assert manager.wait_for(manager.submit(Add(a=5), room=room), 30).result == 5
    drain(api, manager.worker_id)
    wait_until(lambda: manager.worker_id is None)
    manager.wait()


def test_a_draining_worker_can_be_disconnected(worker: Make, room: str, api: Connection) -> None:
    """The disconnect does not wait for a task that is never reported; that task is marked as lost."""
    manager = worker(heartbeat_interval=0.1)
    manager.register(Add, room=room)
    manager.submit(Add(), room=room)
    task = manager.claim(5)
    assert task is not None
    drain(api, manager.worker_id)
    wait_until(lambda: not manager.registry)
    manager.disconnect()
    assert task.cancelled.is_set()
