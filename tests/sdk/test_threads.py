"""A defect in one of the threads of a worker: it is logged, and the thread goes on."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.test_draining import drain
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker import allocations, session, threads
from zndraw_joblib.worker.allocations import Allocation, AllocationWatch
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.pipeline import Pipeline
from zndraw_joblib.worker.provider_requests import ProviderPoller
from zndraw_joblib.worker.reporter import Reporter
from zndraw_joblib.worker.reports import LiveReports
from zndraw_joblib.worker.session import HeartbeatLoop
from zndraw_joblib.worker.task_poller import TaskPoller
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]
# What each thread calls outside of the code that handles errors, and its name in the log.
BROKEN = {
    (HeartbeatLoop, "_rest"): "heartbeat",
    (TaskPoller, "repeat"): "claim",
    (Reporter, "_next_batch"): "report",
    (LiveReports, "_take"): "live-reports",
    (AllocationWatch, "leave_jobs"): "allocation",
    (ProviderPoller, "run"): "read-1",
}


def break_once(
    patch: pytest.MonkeyPatch, owner: type, name: str, calls: Counter[str], *, at: int = 1
) -> None:
    """Let one call of a method raise what no code expects; count its calls."""
    method: Any = getattr(owner, name)

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[f"{owner.__name__}.{name}"] += 1
        if calls[f"{owner.__name__}.{name}"] == at:
            raise RuntimeError(f"broken {name}")
        return method(self, *args, **kwargs)

    patch.setattr(owner, name, broken)


def test_each_thread_starts_again_after_a_defect(
    worker: Make, room: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a worker would look alive and send no reports, heartbeats or logs; a task would never end."""
    monkeypatch.setattr(threads, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(allocations, "_CHECK_SECONDS", 0.05)
    calls: Counter[str] = Counter()
    for owner, name in BROKEN:
        if owner is not AllocationWatch:
            break_once(monkeypatch, owner, name, calls)
    # The first call of `leave_jobs` is in the thread that registers; that of `_begin` fails one task.
    break_once(monkeypatch, AllocationWatch, "leave_jobs", calls, at=2)
    break_once(monkeypatch, Pipeline, "_begin", calls)

    def execute(task: ClaimedTask) -> float:
        task.channel.set_progress({"current": 1, "total": 2})
        wait_until(lambda: calls["LiveReports._take"] > 1)
        return 7.0

    manager = worker(
        execute, allocation=Allocation(ends_at=time.time() + 3600), heartbeat_interval=0.1, concurrency=2
    )
    manager.register(Add, room=room)
    manager._session.start_providers()
    ids = [manager.submit(Add(), room=room) for _ in range(2)]
    ended = {task.status: task for task in (manager.wait_for(task_id, 60) for task_id in ids)}
    assert ended.keys() == {TaskStatus.FAILED, TaskStatus.COMPLETED}
    assert "broken _begin" in (ended[TaskStatus.FAILED].error or "")
    wait_until(lambda: all(calls[f"{owner.__name__}.{name}"] > 1 for owner, name in BROKEN))
    assert manager.wait_for(manager.submit(Add(), room=room), 60).result == 7
    for thread in BROKEN.values():
        assert any(line.startswith(f"The thread {thread} of this worker failed") for line in caplog.messages)
    manager.disconnect(10)


def test_a_drain_waits_for_a_thread(
    worker: Make, room: str, api: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system has none, the next heartbeat tries again."""
    tries, start = Counter[str](), threads.start_thread

    def lack(name: str, run: Callable[[], None]) -> Any:
        tries[name] += 1
        if tries[name] == 1:
            raise RuntimeError("can't start new thread")
        return start(name, run)

    monkeypatch.setattr(session, "start_thread", lack)
    manager = worker(heartbeat_interval=0.1)
    manager.register(Add, room=room)
    drain(api, manager.worker_id)
    wait_until(lambda: manager.worker_id is None, 30)
    assert tries["drain"] == 2
