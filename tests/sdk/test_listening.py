"""claim() and listen(), for workers without `execute`."""

import threading
import time
from collections.abc import Callable

import pytest
from waiting import wait_until

from sdk.jobs import Add, Picky
from sdk.live import LiveServer
from zndraw_joblib.wire.problems import InvalidTaskTransition
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


def test_a_claim_takes_the_oldest_task(worker: Make, room: str) -> None:
    """claim() returns at once: tasks in the order of submission, then None."""
    manager = worker()
    manager.register(Add, room=room)
    submitted = [manager.submit(Add(a=number), room=room) for number in range(3)]
    claimed = [manager.claim() for _ in range(4)]
    assert claimed.pop() is None
    assert [task.task_id for task in claimed if task] == submitted
    for number, task in enumerate(claimed):
        assert task is not None
        assert (task.extension, task.attempt, task.worker_id) == (Add(a=number), 1, manager.worker_id)
        assert (task.job_name, task.room_id) == (f"{room}:modifiers:Add", room)


def test_a_claim_can_wait(worker: Make, room: str, server: LiveServer) -> None:
    """claim(wait) returns as soon as there is a task."""
    manager, caller = worker(), worker()
    manager.register(Add, room=room)
    found = []
    waiting = threading.Thread(target=lambda: found.append(manager.claim(wait=10)))
    waiting.start()
    wait_until(lambda: server.open_polls)
    task_id = caller.submit(Add(a=1), room=room, job_room=room)
    waiting.join(30)
    assert [task.task_id for task in found] == [task_id]
    began = time.monotonic()
    assert manager.claim(wait=1) is None
    assert time.monotonic() - began < 10


def test_a_claim_fails_tasks_that_cannot_run(worker: Make, room: str) -> None:
    """One claim returns the good task behind two bad ones, which fail."""
    manager = worker()
    manager.register(Picky, room=room)
    words = ["bad", "bad", "good"]
    tasks = [manager.submit(f"{room}:analysis:Picky", {"word": word}, room=room) for word in words]
    task = manager.claim()
    assert task is not None
    assert task.task_id == tasks[2]
    assert [manager.get_task(bad).status for bad in tasks[:2]] == [TaskStatus.FAILED] * 2


def test_listen_yields_at_once_and_stops_with_its_event(worker: Make, room: str) -> None:
    """A task is yielded when it is submitted; stop_event ends the loop within the interval."""
    manager = worker()
    manager.register(Add, room=room)
    stop = threading.Event()
    finished: list[float] = []

    def listen() -> None:
        for task in manager.listen(polling_interval=1, stop_event=stop):
            manager.start(task)
            manager.complete(task, task.extension.a)
            finished.append(time.monotonic())

    listening = threading.Thread(target=listen)
    listening.start()
    for number in range(3):
        began = time.monotonic()
        task_id = manager.submit(Add(a=number), room=room)
        assert manager.wait_for(task_id, 30).result == number
        assert time.monotonic() - began < 5
    stop.set()
    listening.join(30)
    assert not listening.is_alive()
    assert len(finished) == 3


def test_listen_ends_with_a_disconnect(worker: Make, room: str, server: LiveServer) -> None:
    """A disconnect on another thread ends listen() at once."""
    manager = worker()
    manager.register(Add, room=room)
    listening = threading.Thread(target=lambda: list(manager.listen(polling_interval=20)))
    listening.start()
    wait_until(lambda: server.open_polls)
    manager.disconnect()
    listening.join(30)
    assert not listening.is_alive()


def test_listen_continues_after_a_restart(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """Transient errors are not raised."""
    live = own_server()
    with live.connect() as api:
        manager = worker(at=api)
        manager.register(Add, room=room)
        found: list[str] = []
        listening = threading.Thread(
            target=lambda: found.extend(task.task_id for task in manager.listen(polling_interval=1))
        )
        listening.start()
        wait_until(lambda: live.open_polls)
        live.stop()
        live.start()
        task_id = manager.submit(Add(), room=room)
        wait_until(lambda: found == [task_id])
        manager.disconnect()
        listening.join(30)


def test_a_stale_report_raises(worker: Make, room: str) -> None:
    """complete() raises an error if the worker no longer holds the task."""
    manager = worker()
    manager.register(Add, room=room)
    manager.submit(Add(), room=room)
    task = manager.claim()
    assert task is not None
    manager.disconnect()
    with pytest.raises(InvalidTaskTransition):
        manager.complete(task)


def test_a_claim_needs_a_worker(worker: Make) -> None:
    """The error names the method to call first."""
    with pytest.raises(RuntimeError, match="register"):
        worker().claim()
