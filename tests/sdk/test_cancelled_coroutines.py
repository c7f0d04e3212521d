"""The coroutine of a task that is cancelled or lost gets `asyncio.CancelledError`."""

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_until

from sdk.cancelled_jobs import Wait
from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.jobs.task_context import CancelEvent, await_until_set
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]


def end_elsewhere(manager: JobManager, api: Connection, task_id: str, status: TaskStatus) -> None:
    """End a task as a superuser, and wait until its worker knows that."""
    RestApi(api).send_call(calls.update_task(task_id, TaskUpdateRequest(status=status)))
    wait_until(lambda: task_id not in manager.held_tasks)


@pytest.mark.usefixtures("patient_heartbeats")
@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize(
    ("how", "status"),
    [("raises", TaskStatus.CANCELLED), ("suppresses", TaskStatus.CANCELLED), ("raises", TaskStatus.FAILED)],
    ids=["raises", "suppresses", "lost"],
)
def test_a_coroutine_is_cancelled_with_its_task(
    worker: Make,
    room: str,
    api: Connection,
    tmp_path: Path,
    *,
    executor: str,
    how: str,
    status: TaskStatus,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may await while it cleans up; what it returns or raises changes nothing, and logs no warning."""
    caplog.set_level(logging.INFO)
    # Threads that other tests have abandoned may log too.
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    manager = worker(Runner(), heartbeat_interval=0.1, executor=executor)
    manager.register(Wait, room=room)
    task_id = manager.submit(Wait(folder=str(tmp_path), how=how), room=room)
    wait_until((tmp_path / "running").exists)
    end_elsewhere(manager, api, task_id, status)
    wait_until(lambda: (tmp_path / "cleaned").exists() and (tmp_path / "cleaned").read_text() == "True")
    ended = manager.wait_for(manager.submit(Wait(folder=str(tmp_path), how="ends"), room=room), 30)
    assert (ended.result, ended.error) == ("well", None)
    after = manager.get_task(task_id)
    assert (after.status, after.result, after.error) == (status, None, None)
    own = [record for record in caplog.records if record.thread not in others]
    assert [record.getMessage() for record in own if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_coroutine_that_never_awaits_runs_to_its_end(
    worker: Make, room: str, api: Connection, tmp_path: Path, executor: str
) -> None:
    """The late cancellation reaches no other task."""
    manager = worker(Runner(), heartbeat_interval=0.1, executor=executor)
    manager.register(Wait, room=room)
    task_id = manager.submit(Wait(folder=str(tmp_path), how="blocks"), room=room)
    wait_until((tmp_path / "running").exists)
    end_elsewhere(manager, api, task_id, TaskStatus.CANCELLED)
    (tmp_path / "go").touch()
    ended = manager.wait_for(manager.submit(Wait(folder=str(tmp_path), how="ends"), room=room), 30)
    assert (ended.result, ended.error) == ("well", None)
    assert manager.get_task(task_id).status == TaskStatus.CANCELLED


async def test_a_coroutine_is_cancelled_once() -> None:
    """Also one that sets the event itself; the task that awaits it continues as if nothing had happened."""
    event, seen = CancelEvent(), []

    async def work() -> str:
        for _ in range(3):
            event.set()
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                seen.append("cancelled")
        return "well"

    assert (await await_until_set(work(), event), seen) == ("well", ["cancelled"])
    assert asyncio.current_task().cancelling() == 0
    with pytest.raises(asyncio.CancelledError):
        await await_until_set(asyncio.sleep(60), event)
    assert asyncio.current_task().cancelling() == 0
