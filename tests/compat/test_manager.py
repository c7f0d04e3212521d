"""`JobManager` as version 0.1.x had it, against a real server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import httpx
import pytest
import socketio
import zndraw_joblib.events as old_events
from sdk.live import TOKEN, LiveServer
from waiting import wait_until

import zndraw_joblib
import zndraw_joblib.client as old_client
from zndraw_joblib import ClaimedTask, Event, Extension, JobManager, JoinJobRoom, Provider, TaskNotFound
from zndraw_joblib.client.connection import Connection

OldManager = Callable[..., Any]


class Rotate(Extension):
    """A job."""

    category: ClassVar[str] = "modifiers"
    angle: float = 0.0

    def run(self, vis: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what it got."""
        return {"vis": vis, **kwargs}


class Words(Provider):
    """A provider."""

    category: ClassVar[str] = "filesystem"

    def read(self, handler: Any) -> Any:
        """Return the handler."""
        return handler


@pytest.fixture
def old_manager(api: Connection) -> Iterator[OldManager]:
    """Return a function that creates a manager of version 0.1.x; all are disconnected at the end."""
    with pytest.warns(DeprecationWarning, match="client.JobManager"):
        from zndraw_joblib.client import JobManager
    with ExitStack() as stack:

        def make(execute: Any = None, *, at: Any = None, **options: Any) -> Any:
            manager = JobManager(at or api, None, execute=execute, **options)
            stack.callback(manager.disconnect, timeout=1)
            return manager

        yield make


def test_the_manager_is_a_mapping_of_its_jobs(worker: Callable[..., JobManager], room: str) -> None:
    """From the full names of registered jobs to their classes; a manager without jobs is true."""
    manager, name = worker(), f"{room}:modifiers:Rotate"
    assert (len(manager), list(manager), name in manager, bool(manager)) == (0, [], False, True)
    manager.register(Rotate, room=room)
    assert (len(manager), list(manager), name in manager) == (1, [name], True)
    assert manager[name] is Rotate
    with pytest.raises(KeyError, match="other"):
        _ = manager["other"]


def test_keywords_of_a_job_reach_its_tasks(worker: Callable[..., JobManager], room: str) -> None:
    """Those of `register` are on the task, for `execute` to pass to `run`; by default there are none."""
    done: list[dict[str, Any]] = []
    ran = threading.Event()

    def execute(task: ClaimedTask) -> None:
        done.append(task.extension.run(None, **task.run_kwargs))
        ran.set()

    manager, name = worker(execute), f"{room}:modifiers:Rotate"
    manager.register(Rotate, room=room, run_kwargs={"speed": 2})
    assert manager.get_run_kwargs(name) == {"speed": 2}
    assert manager.get_run_kwargs("unknown") == {}
    manager.submit(name)
    assert ran.wait(30)
    assert done == [{"vis": None, "speed": 2}]
    by_hand = worker()
    by_hand.register(Rotate, room=f"{room}-2")
    by_hand.submit(f"{room}-2:modifiers:Rotate")
    task = by_hand.claim(wait=10)
    assert task is not None
    assert task.run_kwargs == {}


def test_without_a_worker_there_is_nothing_to_claim(worker: Callable[..., JobManager]) -> None:
    """`claim` and `heartbeat` raise a ValueError that says what to call first."""
    manager = worker()
    for call in (manager.claim, manager.heartbeat):
        with pytest.raises(
            ValueError, match=r"Worker ID not set.*Call register\(\) or create_worker\(\) first"
        ):
            call()


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_a_task_built_by_hand_is_reported(worker: Callable[..., JobManager], room: str, status: str) -> None:
    """It has no token of a claim; the server accepts the reports of the worker's owner."""
    manager, name = worker(), f"{room}:modifiers:Rotate"
    manager.register(Rotate, room=room)
    task_id = manager.submit(name)
    claimed = manager.claim(wait=10)
    assert claimed is not None
    by_hand = ClaimedTask(task_id, name, room, Rotate())
    assert manager.start(by_hand).status == "running"
    report = {
        "completed": lambda: manager.complete(by_hand, {"angle": 3}),
        "failed": lambda: manager.fail(by_hand, "no"),
        "cancelled": lambda: manager.cancel(by_hand),
    }[status]
    assert report().status == status
    task = manager.get_task(task_id)
    assert (task.status, task.error) == (status, "no" if status == "failed" else None)


def test_a_released_task_built_by_hand_is_pending(worker: Callable[..., JobManager], room: str) -> None:
    """It can be claimed again."""
    manager, name = worker(), f"{room}:modifiers:Rotate"
    manager.register(Rotate, room=room)
    task_id = manager.submit(name)
    assert manager.claim(wait=10) is not None
    assert manager.release(ClaimedTask(task_id, name, room, None)).status == "pending"


def test_a_task_is_failed_by_its_id(old_manager: OldManager, room: str) -> None:
    """With the error's text; an unknown one is a KeyError."""
    manager, name = old_manager(), f"{room}:modifiers:Rotate"
    manager.register(Rotate, room=room)
    task_id = manager.submit(name)
    assert manager.claim(wait=10) is not None
    manager.fail_by_id(task_id, "not today")
    task = manager.get_task(task_id)
    assert (task.status, task.error) == ("failed", "not today")
    with pytest.raises(TaskNotFound):
        manager.fail_by_id("00000000-0000-4000-8000-000000000000", "no")


def test_ids_are_texts(old_manager: OldManager, room: str) -> None:
    """Those of workers and providers; there is none before the first registration."""
    manager = old_manager()
    assert manager.worker_id is None
    worker_id = manager.create_worker()
    assert isinstance(worker_id, str)
    assert manager.worker_id == worker_id
    provider_id = manager.register_provider(Words, name="one", handler="it", room=room)
    assert isinstance(provider_id, str)
    assert manager.handlers == {f"{room}:filesystem:one": "it"}


def test_an_unknown_provider_is_unregistered_in_silence(old_manager: OldManager, room: str) -> None:
    """So is one that was unregistered before."""
    manager = old_manager()
    manager.unregister_provider("lab:words:one")
    manager.register_provider(Words, name="one", handler="it", room=room)
    for _ in range(2):
        manager.unregister_provider(f"{room}:filesystem:one")
    assert manager.handlers == {}


def test_an_unreachable_server_fails_a_registration(
    old_manager: OldManager, own_server: Callable[..., LiveServer]
) -> None:
    """After `max_startup_retries` repeats."""
    server = own_server()
    with server.connect() as api:
        server.stop()
        manager = old_manager(at=api, max_startup_retries=0)
        with pytest.raises(httpx.ConnectError):
            manager.register(Rotate)


def test_a_worker_leaves_an_unreachable_server(own_server: Callable[..., LiveServer], room: str) -> None:
    """`max_unreachable_seconds` after the last response, `wait` returns."""
    server = own_server()
    with (
        server.connect() as api,
        JobManager(api, max_unreachable_seconds=0.5, heartbeat_interval=0.1) as manager,
    ):
        manager.register(Rotate, room=room)
        server.stop()
        manager.wait()
        assert manager.worker_id is None


@pytest.mark.parametrize("options", [{"max_unreachable_seconds": 0}, {"max_startup_retries": -1}])
def test_wrong_options_are_refused(old_manager: OldManager, options: dict[str, Any]) -> None:
    """The error names the option."""
    with pytest.raises(ValueError, match=next(iter(options))):
        old_manager(**options)


def test_the_repeats_of_a_registration_are_an_option_of_each_manager(api: Connection) -> None:
    """A negative number is refused, and the error names the option."""
    JobManager(api, max_startup_retries=5, max_unreachable_seconds=120)
    with pytest.raises(ValueError, match="max_startup_retries must not be negative, not -1"):
        JobManager(api, max_startup_retries=-1)


class ModelSocket:
    """A wrapper of a Socket.IO client whose `on` takes the model of an event, and gives it to the handler."""

    def __init__(self, client: socketio.Client) -> None:
        self.client = client
        self.models: list[type[Event]] = []
        self.sent: list[Event] = []

    def on(self, event: Any, handler: Callable[..., Any]) -> None:
        """Register a handler, for a model, or for the name of an event of Socket.IO itself."""
        if isinstance(event, str):
            assert event in {"connect", "disconnect"}
            self.client.on(event, handler)
        else:
            self.models.append(event)
            self.client.on(event.event_name, lambda data: handler(event.model_validate(data)))

    def emit(self, model: Event) -> None:
        """Send an event."""
        self.sent.append(model)
        self.client.emit(model.event_name, model.model_dump(mode="json"))


@pytest.mark.filterwarnings("ignore:zndraw_joblib.(client|events):DeprecationWarning")
@pytest.mark.parametrize("is_old", [False, True], ids=["current", "old"])
def test_a_wrapper_registers_handlers_by_class(
    server: LiveServer, api: Connection, room: str, is_old: bool
) -> None:
    """Its handlers wake the worker, which polls too rarely; it sends ids as texts, and stays `tsio`."""
    client_module, events = (old_client, old_events) if is_old else (zndraw_joblib, zndraw_joblib)
    client = socketio.Client(request_timeout=30)
    client.connect(server.url, auth={"token": TOKEN}, transports=["websocket"], wait_timeout=30)
    try:
        wrapper, ran = ModelSocket(client), threading.Event()
        manager = client_module.JobManager(
            api, wrapper, execute=lambda task: ran.set(), polling_interval=600, long_poll=0
        )
        with manager:
            manager.register(Rotate, room=room)
            assert manager.tsio is wrapper
            classes = {events.ProviderRequest, events.TaskAvailable, events.TaskStatusEvent}
            assert set(wrapper.models) == classes
            joined = JoinJobRoom(job_name=f"{room}:modifiers:Rotate", worker_id=str(manager.worker_id))
            assert wrapper.sent == [joined]
            assert isinstance(wrapper.sent[0].worker_id, str)
            wait_until(lambda: server.sockets_in(f"jobs:{room}:modifiers:Rotate") == 1)
            manager.submit(f"{room}:modifiers:Rotate")
            assert ran.wait(30)
    finally:
        client.disconnect()
