"""Tasks that a worker has claimed start while a slot is free, whatever its threads do."""

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import LiveServer, is_release
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]
RUN = "zndraw-joblib-run-"


def test_a_thread_that_starts_late_keeps_its_task(
    worker: Make, room: str, server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that keeps the interpreter's lock delays the other threads; their tasks are not released."""
    run, may_run = threading.Thread.run, threading.Event()
    has_released = threading.Event()

    def run_late(thread: threading.Thread) -> None:
        if thread.name.startswith(RUN):
            assert may_run.wait(40)
        run(thread)

    def watch(request: httpx.Request) -> None:
        if is_release(request):
            has_released.set()

    monkeypatch.setattr(threading.Thread, "run", run_late)
    caller = worker()
    caller.register(Add, room=room)
    ids = [caller.submit(Add(), room=room) for _ in range(4)]
    with server.connect() as api:
        api.http.event_hooks["request"].append(watch)
        manager = worker(lambda task: None, at=api, concurrency=4, prefetch=0)
        manager.register(Add, room=room)
        wait_until(lambda: {caller.get_task(task_id).status for task_id in ids} == {TaskStatus.CLAIMED})
        # Five times as long as tasks wait behind one that takes long.
        assert not has_released.wait(1)
        may_run.set()
        assert {caller.wait_for(task_id, 60).status for task_id in ids} == {TaskStatus.COMPLETED}
        manager.disconnect()


def test_coroutines_need_few_threads(worker: Make, room: str) -> None:
    """A thread hands a coroutine to the event loop, and takes the next task."""
    begun: list[str] = []
    may_end = threading.Event()

    async def execute(task: ClaimedTask) -> None:
        begun.append(task.task_id)
        await asyncio.to_thread(may_end.wait, 40)

    caller = worker()
    caller.register(Add, room=room)
    ids = [caller.submit(Add(), room=room) for _ in range(40)]
    before = set(threading.enumerate())
    manager = worker(execute, concurrency=40)
    manager.register(Add, room=room)
    wait_until(lambda: len(begun) == 40)
    runs = [t for t in set(threading.enumerate()) - before if t.name.startswith(RUN)]
    may_end.set()
    assert len(runs) < 20
    assert {caller.wait_for(task_id, 60).status for task_id in ids} == {TaskStatus.COMPLETED}


@pytest.mark.usefixtures("followed")
def test_a_worker_runs_with_the_threads_it_gets(
    worker: Make, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives one thread only: it runs all tasks, one after the other."""
    start = threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if thread.name.startswith(RUN) and thread.name != f"{RUN}1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    caller = worker()
    caller.register(Add, room=room)
    manager = worker(lambda task: task.extension.a, concurrency=4, prefetch=0)
    manager.register(Add, room=room)
    ids = [caller.submit(Add(a=number), room=room) for number in range(20)]
    assert [caller.wait_for(task_id, 60).result for task_id in ids] == list(range(20))


def test_running_tasks_take_no_more_slots_than_there_are(worker: Make, room: str) -> None:
    """Tasks of one and of three slots run beside each other on four, and each one runs."""
    lock, taken, most, beside = threading.Lock(), [0], [0], threading.Event()

    def execute(task: ClaimedTask) -> None:
        with lock:
            taken[0] += task.cost
            most[0] = max(most[0], taken[0])
            if most[0] >= 4:
                beside.set()
        beside.wait(30)
        with lock:
            taken[0] -= task.cost

    caller = worker()
    caller.register(Add, room=room, without_workers="queue")
    caller.disconnect()
    manager = worker(execute, concurrency=4)
    ids = [caller.submit(Add(), room=room, cost=3 if index % 4 == 0 else None) for index in range(24)]
    manager.register(Add, room=room)
    assert {manager.wait_for(task_id, 60).status for task_id in ids} == {TaskStatus.COMPLETED}
    assert most == [4]
    assert taken == [0]
