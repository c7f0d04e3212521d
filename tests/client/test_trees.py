"""Tags and parents of tasks in Python: in a running job, and with its own clients."""

from collections.abc import Callable

import pytest
from databases import on_both
from sdk.live import TOKEN, LiveServer

from client.both import Both
from client.jobs import Area, Fan
from zndraw_joblib.jobs.task_context import TaskContext
from zndraw_joblib.testing import run_job
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_running_task_is_the_parent(worker: Make, server: LiveServer, room: str, executor: str) -> None:
    """Of what it submits, and of what its own clients submit to its room, unless they say otherwise."""
    manager, other = worker(Runner(), executor=executor), f"{room}-b"
    for cls in (Fan, Area):
        manager.register(cls, room=room)
    manager.register(Area, room=other)
    fan = manager.submit(Fan(url=server.url, token=TOKEN, room=other), room=room, tags=["top", "top"])
    ended = manager.wait_for(fan, 60)
    assert ended.status is TaskStatus.COMPLETED, ended.error
    assert ended.result == dict.fromkeys(("task", "name", "queue", "many"), str(fan)) | {
        "none": None,
        "other": None,
    }
    assert manager.get_task(fan).tags == ["top"]
    below = manager.tasks(room, root=fan).items
    assert len(below) == manager.tasks(room, parent=fan).total == 4
    assert [task.tags for task in manager.tasks(room, tag="fan").items] == [["fan"]]


@on_both
async def test_a_handle_cancels_a_tree(queue: Both, worker: Make, room: str) -> None:
    """Also that of a task that has ended."""
    manager = worker(None)
    manager.register(Area, room=room)
    top = await queue.submit(Area(), tags=["a"])
    child = await queue.submit(Area(), parent=top.inner)
    assert (child.state.parent, child.state.root) == (top.state.id, top.state.id)
    assert (await top.cancel()).status is TaskStatus.CANCELLED
    assert await child.status() is TaskStatus.PENDING
    assert (await top.cancel(tree=True)).status is TaskStatus.CANCELLED
    assert await child.status() is TaskStatus.CANCELLED


def test_a_task_without_a_server_submits_none() -> None:
    """The error says what to do instead."""

    class Child(Area):
        def run(self, vis: object, *, task: TaskContext) -> float:
            task.submit(Area())
            return 1.0

    assert "JobLib.submit(…, parent=task.task_id)" in str(run_job(Child()).error)
