"""A running task is marked as cancelled or lost: at once by Socket.IO, or with the next heartbeat."""

import copy
import logging
import pickle
import threading
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import LiveServer
from zndraw_joblib.client import calls
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.events import sockets_of
from zndraw_joblib.wire.messages import TaskUpdateRequest
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask, HeldTasks

Make = Callable[..., JobManager]


class CancellableExecute:
    """Runs tasks that end when they are cancelled; `task` is the running one."""

    def __init__(self) -> None:
        self.running, self.stopped = threading.Event(), threading.Event()

    def __call__(self, task: ClaimedTask) -> int:
        """Wait for the cancellation if the payload requests it."""
        if not task.extension.a:
            return 0
        self.task = task
        self.running.set()
        assert task.cancelled.wait(60)
        self.stopped.set()
        if task.extension.a == 2:
            raise InterruptedError("stopped half way")
        return 1


@pytest.fixture
def cancellable() -> CancellableExecute:
    """Return the `execute` of a test."""
    return CancellableExecute()


def set_status(api: Connection, task_id: str, status: TaskStatus) -> None:
    """Change a task's status as a superuser."""
    RestApi(api).send_call(calls.update_task(task_id, TaskUpdateRequest(status=status)))


@pytest.mark.usefixtures("patient_heartbeats")
@pytest.mark.parametrize("ending", [1, 2], ids=["returns", "raises"])
def test_a_heartbeat_reports_a_cancellation(
    worker: Make,
    api: Connection,
    room: str,
    cancellable: CancellableExecute,
    ending: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without Socket.IO; the late report is dropped without a warning, and the worker continues."""
    caplog.set_level(logging.INFO)
    # Threads that other tests have abandoned may log too.
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    manager = worker(cancellable, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(a=ending), room=room)
    assert cancellable.running.wait(30)
    set_status(api, task_id, TaskStatus.CANCELLED)
    assert cancellable.stopped.wait(30)
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result == 0
    assert manager.get_task(task_id).status == TaskStatus.CANCELLED
    messages = [record for record in caplog.records if record.name.startswith("zndraw_joblib.worker")]
    own = [record for record in messages if record.thread not in others]
    assert [record.getMessage() for record in own if record.levelno > logging.INFO] == []
    assert any(task_id in record.getMessage() for record in messages)


def test_socketio_reports_a_cancellation_at_once(
    worker: Make, room: str, cancellable: CancellableExecute, server: LiveServer, live_api: Connection
) -> None:
    """Long before the next heartbeat; events about other tasks and other workers change nothing."""
    manager = worker(cancellable, at=live_api, heartbeat_interval=60)
    manager.register(Add, room=room)
    wait_until(lambda: server.sockets_in(sockets_of(manager.worker_id)))
    task_id = manager.submit(Add(a=1), room=room)
    assert cancellable.running.wait(30)
    set_status(live_api, manager.submit(Add(), room=room), TaskStatus.CANCELLED)
    assert not cancellable.task.cancelled.wait(0.3)
    set_status(live_api, task_id, TaskStatus.CANCELLED)
    assert cancellable.stopped.wait(30)


def test_a_cancellation_event_must_match_task_and_worker(room: str) -> None:
    """An event cancels a task only if both its task and its worker match."""
    task = ClaimedTask("1", "room-1:a:Echo", room, None, 1, {}, uuid4())
    held = HeldTasks()
    held.add(task)
    held.cancel("1", str(uuid4()))
    held.cancel("2", str(task.worker_id))
    assert not task.cancelled.is_set()
    held.cancel("1", str(task.worker_id))
    assert task.cancelled.is_set()


def test_a_heartbeat_reports_a_lost_task(
    worker: Make, room: str, cancellable: CancellableExecute, api: Connection
) -> None:
    """A superuser failed the task: the heartbeat reports it as lost."""
    manager = worker(cancellable, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(a=1), room=room)
    assert cancellable.running.wait(30)
    set_status(api, task_id, TaskStatus.FAILED)
    assert cancellable.stopped.wait(30)


def test_a_removed_worker_loses_its_tasks(
    worker: Make, room: str, cancellable: CancellableExecute, api: Connection
) -> None:
    """The tasks are marked as lost when the server does not know the worker, before it registers again."""
    manager = worker(cancellable, heartbeat_interval=60)
    manager.register(Add, room=room)
    manager.submit(Add(a=1), room=room)
    assert cancellable.running.wait(30)
    assert isinstance(manager.worker_id, UUID)
    RestApi(api).remove_worker(manager.worker_id, 60)
    manager.heartbeat()
    assert cancellable.stopped.wait(30)


def test_a_task_claimed_by_hand_is_cancelled(worker: Make, room: str, api: Connection) -> None:
    """Tasks from `claim` and `listen` can be cancelled until they are reported."""
    manager = worker()
    manager.register(Add, room=room)
    for _ in range(2):
        manager.submit(Add(), room=room)
    first, second = manager.claim(5), manager.claim(5)
    assert first is not None
    assert second is not None
    manager.start(second)
    manager.complete(second)
    set_status(api, first.task_id, TaskStatus.CANCELLED)
    end_of_second = manager.get_task(second.task_id).status
    manager.heartbeat()
    assert (first.cancelled.is_set(), second.cancelled.is_set()) == (True, False)
    assert end_of_second == TaskStatus.COMPLETED
    assert manager.held_tasks == []


def test_a_heartbeat_names_the_held_tasks(worker: Make, api: Connection, room: str) -> None:
    """A heartbeat names a task from its claim to its report, also when the report is refused."""
    manager = worker()
    manager.register(Add, room=room)
    task_ids = [manager.submit(Add(), room=room) for _ in range(3)]
    tasks = [manager.claim(5) for _ in task_ids]
    assert manager.held_tasks == task_ids
    set_status(api, task_ids[0], TaskStatus.CANCELLED)
    with pytest.raises(ValueError, match="cancelled"):
        manager.start(tasks[0])
    manager.fail(tasks[1], "no")
    assert manager.held_tasks == task_ids[2:]


def test_a_heartbeat_names_at_most_a_thousand_tasks() -> None:
    """The next heartbeat names the others."""
    held = HeldTasks()
    tasks = [ClaimedTask(str(uuid4()), "a:b:C", "a", None, 1, {}, uuid4()) for _ in range(1500)]
    for task in tasks:
        held.add(task)
    first, second = held.to_name(), held.to_name()
    assert (len(first), len(second)) == (1000, 1000)
    assert {str(task.id) for task in [*first, *second]} == {task.task_id for task in tasks}


def test_the_event_is_not_part_of_a_tasks_value() -> None:
    """Equality and repr ignore the event; pickles and deep copies work."""
    fields = ("1", "room-1:a:Echo", "room-1", Add(a=3), 1, {"a": 3}, uuid4())
    task, same = ClaimedTask(*fields), ClaimedTask(*fields)
    task.cancelled.set()
    assert task == same
    assert repr(task) == repr(same)
    assert "Event" not in repr(task)
    for twin in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):  # noqa: S301 - it is our own
        assert twin == task
        assert not twin.cancelled.is_set()
