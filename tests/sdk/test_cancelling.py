"""A running task learns that nobody waits for it any more: at once, or with the next heartbeat."""

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
from zndraw_joblib.contract.events import sockets_of
from zndraw_joblib.contract.messages import TaskUpdateRequest
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import Connection
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.reports import HeldTasks
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


class Patient:
    """Runs tasks that end when they are cancelled; `task` is the one that runs."""

    def __init__(self) -> None:
        self.running, self.stopped = threading.Event(), threading.Event()

    def __call__(self, task: ClaimedTask) -> int:
        """Wait for the cancellation, where the task says so."""
        if not task.extension.a:
            return 0
        self.task = task
        self.running.set()
        assert task.cancelled.wait(20)
        self.stopped.set()
        if task.extension.a == 2:
            raise InterruptedError("stopped half way")
        return 1


@pytest.fixture
def patient() -> Patient:
    """Return what runs the tasks of a test."""
    return Patient()


def end(api: Connection, task_id: str, status: TaskStatus) -> None:
    """Move a task as somebody else would, a superuser."""
    RestApi(api).report_task(task_id, TaskUpdateRequest(status=status))


@pytest.mark.parametrize("way", [1, 2], ids=["returns", "raises"])
def test_a_heartbeat_tells_of_a_cancellation(
    worker: Make, room: str, patient: Patient, way: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Socket.IO; what the task still says is dropped without noise, and the worker goes on."""
    caplog.set_level(logging.INFO)
    manager = worker(patient, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(a=way), room=room)
    assert patient.running.wait(5)
    end(manager._rest.api, task_id, TaskStatus.CANCELLED)  # type: ignore[arg-type]
    assert patient.stopped.wait(5)
    assert manager.wait_for(manager.submit(Add(), room=room), 5).result == 0
    assert manager.get_task(task_id).status == TaskStatus.CANCELLED
    ours = [record for record in caplog.records if record.name.startswith("zndraw_joblib.worker")]
    assert [record.getMessage() for record in ours if record.levelno > logging.INFO] == []
    assert any(task_id in record.getMessage() for record in ours)


def test_socketio_tells_of_a_cancellation_at_once(
    worker: Make, room: str, patient: Patient, server: LiveServer, live_api: Connection
) -> None:
    """Long before the next heartbeat; of other tasks, and of those of others, nothing is taken."""
    manager = worker(patient, at=live_api, heartbeat_interval=60)
    manager.register(Add, room=room)
    wait_until(lambda: server.sockets_in(sockets_of(manager.worker_id)))
    task_id = manager.submit(Add(a=1), room=room)
    assert patient.running.wait(5)
    end(live_api, manager.submit(Add(), room=room), TaskStatus.CANCELLED)
    assert not patient.task.cancelled.wait(0.3)
    end(live_api, task_id, TaskStatus.CANCELLED)
    assert patient.stopped.wait(2)


def test_a_worker_in_a_room_heeds_its_own_cancellations_alone(room: str) -> None:
    """An event counts where both the task and the worker that held it are meant."""
    task = ClaimedTask("1", "room-1:a:Echo", room, None, 1, {}, uuid4())
    held = HeldTasks()
    held.add(task)
    held.cancel("1", str(uuid4()))
    held.cancel("2", str(task.worker_id))
    assert not task.cancelled.is_set()
    held.cancel("1", str(task.worker_id))
    assert task.cancelled.is_set()


def test_a_task_that_is_lost_is_told_too(worker: Make, room: str, patient: Patient, api: Connection) -> None:
    """Somebody failed it over the worker's head: the heartbeat says so."""
    manager = worker(patient, heartbeat_interval=0.1)
    manager.register(Add, room=room)
    task_id = manager.submit(Add(a=1), room=room)
    assert patient.running.wait(5)
    end(api, task_id, TaskStatus.FAILED)
    assert patient.stopped.wait(5)


def test_a_worker_that_was_removed_gives_up_what_it_held(
    worker: Make, room: str, patient: Patient, api: Connection
) -> None:
    """With the news that the server does not know it any more, before anything else is asked."""
    manager = worker(patient, heartbeat_interval=60)
    manager.register(Add, room=room)
    manager.submit(Add(a=1), room=room)
    assert patient.running.wait(5)
    assert isinstance(manager.worker_id, UUID)
    RestApi(api).remove_worker(manager.worker_id, 5)
    manager.heartbeat()
    assert patient.stopped.wait(5)


def test_a_task_that_was_claimed_by_hand_is_told(worker: Make, room: str, api: Connection) -> None:
    """`claim` and `listen` give out tasks that hear of their end, until they are reported."""
    manager = worker()
    manager.register(Add, room=room)
    for _ in range(2):
        manager.submit(Add(), room=room)
    first, second = manager.claim(5), manager.claim(5)
    assert first is not None
    assert second is not None
    manager.start(second)
    manager.complete(second)
    end(api, first.task_id, TaskStatus.CANCELLED)
    end_of_second = manager.get_task(second.task_id).status
    manager.heartbeat()
    assert (first.cancelled.is_set(), second.cancelled.is_set()) == (True, False)
    assert end_of_second == TaskStatus.COMPLETED
    assert manager._held.to_name() == []


def test_a_heartbeat_names_what_is_worked_on_and_nothing_else(worker: Make, room: str) -> None:
    """A task is named from its claim to its report, and not when the report is refused."""
    manager = worker()
    manager.register(Add, room=room)
    task_ids = [manager.submit(Add(), room=room) for _ in range(3)]
    tasks = [manager.claim(5) for _ in task_ids]
    assert [str(task.id) for task in manager._held.to_name()] == task_ids
    end(manager._rest.api, task_ids[0], TaskStatus.CANCELLED)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cancelled"):
        manager.start(tasks[0])
    manager.fail(tasks[1], "no")
    assert [str(task.id) for task in manager._held.to_name()] == task_ids[2:]


def test_a_crowd_of_tasks_is_named_in_turn() -> None:
    """A thousand at most, and others the next time."""
    held = HeldTasks()
    tasks = [ClaimedTask(str(uuid4()), "a:b:C", "a", None, 1, {}, uuid4()) for _ in range(1500)]
    for task in tasks:
        held.add(task)
    first, second = held.to_name(), held.to_name()
    assert (len(first), len(second)) == (1000, 1000)
    assert {str(task.id) for task in [*first, *second]} == {task.task_id for task in tasks}


def test_the_event_is_no_part_of_what_a_task_is() -> None:
    """Equality and text are as without it; a pickle and a deep copy, which another process gets, work."""
    fields = ("1", "room-1:a:Echo", "room-1", Add(a=3), 1, {"a": 3}, uuid4())
    task, same = ClaimedTask(*fields), ClaimedTask(*fields)
    task.cancelled.set()
    assert task == same
    assert repr(task) == repr(same)
    assert "Event" not in repr(task)
    for twin in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):  # noqa: S301 - it is our own
        assert twin == task
        assert not twin.cancelled.is_set()
