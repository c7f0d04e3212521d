"""A process goes on no longer than its task: it is killed after a cancellation or a time limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from sdk.executors import Process
from sdk.live import LiveServer
from sdk.stuck_jobs import Stuck, stuck_together
from sdk.test_cancelled_coroutines import end_elsewhere
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.server.process.own_clock import TestClock
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.process_groups import kill_group
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]


def pids_in(folder: Path, count: int = 2) -> list[int]:
    """Return the ids of the process of a task and of its program, once they run."""
    wait_until((folder / "pids").exists, 60)
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert len(pids) == count
    return pids


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; its parent may not have noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("how", ["native", "ignores"])
def test_a_cancelled_process_is_killed_with_its_programs(
    worker: Make, room: str, api: Connection, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code never sees the event nor SIGTERM; a program of Python cleans up. Other tasks go on."""
    if how == "ignores":

        def kill_later(process: Any) -> None:
            # A slow machine may need longer than the grace to run the handler of SIGTERM.
            wait_until((tmp_path / "cleaned").exists)
            kill_group(process)

        monkeypatch.setattr("zndraw_joblib.worker.task_process.kill_group", kill_later)
    manager = worker(Runner(), heartbeat_interval=0.1, executor="process", concurrency=2, cancel_grace=0.3)
    for cls in (Stuck, Process):
        manager.register(cls, room=room)
    task_id = manager.submit(Stuck(folder=str(tmp_path), how=how), room=room)
    pids = pids_in(tmp_path)
    (tmp_path / "other").mkdir()
    other = manager.submit(Process(how=str(tmp_path / "other")), room=room)
    wait_until((tmp_path / "other" / "running").exists, 60)
    end_elsewhere(manager, api, task_id, TaskStatus.CANCELLED)
    wait_until(lambda: all(map(has_ended, pids)), 30)
    assert (tmp_path / "cleaned").exists() is (how == "ignores")
    (tmp_path / "other" / "go").touch()
    assert manager.wait_for(other, 60).result == "waited"
    ids = [manager.submit(Stuck(folder=str(tmp_path), how="well"), room=room) for _ in range(4)]
    assert pids[0] not in {manager.wait_for(task_id, 60).result for task_id in ids}
    assert manager.get_task(task_id).status == TaskStatus.CANCELLED


def test_a_process_is_killed_at_its_time_limit(
    worker: Make, own_server: Callable[..., LiveServer], room: str, tmp_path: Path
) -> None:
    """The attempt costs what the policy says: the next one runs, in another process."""
    live = own_server(clock=TestClock())
    policy = {
        "timeout_seconds": 100,
        "max_attempts": 2,
        "retry_on": ["timeout"],
        "backoff": {"base_seconds": 0},
    }
    with (
        live.connect() as api,
        JobManager(
            api, execute=Runner(), heartbeat_interval=0.1, executor="process", cancel_grace=0
        ) as manager,
    ):
        manager.register(Stuck, room=room, **policy)
        task_id = manager.submit(Stuck(folder=str(tmp_path), once=True), room=room)
        pids = pids_in(tmp_path)
        wait_until(lambda: manager.get_task(task_id).status == TaskStatus.RUNNING)
        live.advance(100, keep_workers=True)
        ended = manager.wait_for(task_id, 60)
        assert (ended.status, ended.result, ended.attempts) == (TaskStatus.COMPLETED, "well", 2)
        reasons = [change.reason for change in manager.history(ended.id).transitions]
        assert reasons.count("run-timeout") == 1
        assert all(map(has_ended, pids))


def test_a_job_in_a_process_notices_its_cancellation(
    worker: Make, room: str, api: Connection, tmp_path: Path
) -> None:
    """A plain function reads `task.cancelled`, and its process runs the next task."""
    manager = worker(Runner(), heartbeat_interval=0.1, executor="process", cancel_grace=60)
    manager.register(Stuck, room=room)
    task_id = manager.submit(Stuck(folder=str(tmp_path), how="checks"), room=room)
    process, program = pids_in(tmp_path)
    end_elsewhere(manager, api, task_id, TaskStatus.CANCELLED)
    wait_until((tmp_path / "cleaned").exists)
    wait_until(lambda: has_ended(program))
    assert (tmp_path / "cleaned").read_text() == "True"
    next_id = manager.submit(Stuck(folder=str(tmp_path), how="well"), room=room)
    assert manager.wait_for(next_id, 60).result == process


def test_a_process_of_a_batch_is_killed_with_its_last_task(
    worker: Make, room: str, api: Connection, tmp_path: Path
) -> None:
    """Each of its tasks has an event of its own."""
    caller = worker()
    caller.register(stuck_together, room=room)
    names = ["first", "second"]
    ids = [caller.submit(stuck_together.task(folders=str(tmp_path / name)), room=room) for name in names]
    manager = worker(Runner(), heartbeat_interval=0.1, executor="process", cancel_grace=0.3)
    manager.register(stuck_together, room=room)
    [pid] = pids_in(tmp_path, 1)
    end_elsewhere(manager, api, ids[0], TaskStatus.CANCELLED)
    wait_until((tmp_path / "noticed").exists)
    assert sorted((tmp_path / "noticed").read_text()) == sorted("[True, False]")
    assert not has_ended(pid)
    end_elsewhere(manager, api, ids[1], TaskStatus.CANCELLED)
    wait_until(lambda: has_ended(pid), 30)


@pytest.mark.parametrize("grace", [-1, 3601, float("nan")])
def test_a_wrong_grace_is_refused(worker: Make, grace: float) -> None:
    """The error names the option and its range."""
    with pytest.raises(ValueError, match="cancel_grace must be between 0 and 3600 s"):
        worker(Runner(), cancel_grace=grace)
