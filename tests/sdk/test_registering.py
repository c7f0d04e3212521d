"""Registering jobs and workers."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel
from servers import free_port
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import LiveServer
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.wire.problems import SchemaConflict, Unauthorized, WorkerNotFound
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


def test_register_as_decorator_and_as_call(worker: Make, room: str) -> None:
    """Each form returns the class, and the registry has the job under its full name."""
    manager = worker()

    @manager.register
    class Bare(Add):
        pass

    @manager.register(room=room)
    class Called(Add):
        pass

    assert manager.register(Add, room=room) is Add
    assert dict(manager.registry) == {
        "@global:modifiers:Bare": Bare,
        f"{room}:modifiers:Called": Called,
        f"{room}:modifiers:Add": Add,
    }
    served = {job.full_name: job.workers for job in manager.jobs(room).items}
    assert all(served[name] == [manager.worker_id] for name in manager.registry)


def test_an_extension_class_needs_only_its_methods(worker: Make, room: str) -> None:
    """A host's own base class works too."""

    class HostExtension(BaseModel):
        category: ClassVar[str] = "analysis"
        number: int

        def run(self) -> int:
            return -self.number

    manager = worker(lambda task: task.extension.run())
    manager.register(HostExtension, room=room)
    assert manager.wait_for(manager.submit(HostExtension(number=4), room=room), 30).result == -4


def test_a_schema_conflict_raises_at_once(worker: Make, room: str) -> None:
    """A refusal of the server is not retried."""
    worker().register(Add, room=room)
    grown = type("Add", (Add,), {"__annotations__": {"c": int}, "c": 0})
    worker().register(grown, room=room)
    other = type("Add", (Add,), {"__annotations__": {"a": str}, "a": ""})
    began = time.monotonic()
    with pytest.raises(ValueError, match="Schema mismatch") as caught:
        worker().register(other, room=room)
    assert isinstance(caught.value, SchemaConflict)
    assert time.monotonic() - began < 15


def test_a_wrong_token_raises_at_once(server: LiveServer, worker: Make, room: str) -> None:
    """The registration does not retry a 401."""
    with connect(server.url, "wrong") as api, pytest.raises(Unauthorized):
        worker(at=api).register(Add, room=room)


def test_a_worker_may_start_before_its_server(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """The registration is retried while the server cannot be reached."""
    live = own_server()
    live.stop()
    with live.connect() as api:
        manager = worker(at=api)
        thread = threading.Thread(target=manager.register, args=(Add,), kwargs={"room": room})
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        live.start()
        thread.join(30)
        assert manager.worker_id is not None


@pytest.mark.parametrize("room", ["a b?c#d%2F&é", "50%"])
def test_names_are_quoted_in_paths(worker: Make, room: str) -> None:
    """A room and a job may have any name that the server allows."""
    manager = worker(lambda task: task.job_name)
    grows = type("Größe", (Add,), {})
    manager.register(grows, room=room)
    task = manager.wait_for(manager.submit(grows(), room=room), 30)
    assert task.result == f"{room}:modifiers:Größe"
    assert [found.id for found in manager.tasks(room).items] == [task.id]
    manager.unregister(grows, room=room)
    assert not manager.registry


def test_a_manager_can_register_after_a_disconnect(worker: Make, room: str) -> None:
    """A new registration creates a new worker, with threads of its own."""
    before = set(threading.enumerate())
    manager = worker(lambda task: task.extension.a)
    manager.register(Add, room=room)
    first = manager.worker_id
    own = [thread for thread in set(threading.enumerate()) - before if "zndraw-joblib" in thread.name]
    assert own
    manager.disconnect()
    assert manager.worker_id is None
    assert not manager.registry
    wait_until(lambda: not [thread for thread in own if thread.is_alive()])
    manager.register(Add, room=room)
    assert manager.worker_id not in (None, first)
    assert manager.wait_for(manager.submit(Add(a=5), room=room), 30).result == 5
    assert first not in [known.id for known in manager.workers(limit=500).items]


def test_an_unregistered_job_is_not_served(worker: Make, room: str) -> None:
    """Its tasks and the worker's other jobs stay."""
    manager = worker()
    other = type("Other", (Add,), {})
    manager.register(Add, room=room)
    manager.register(other, room=room)
    manager.unregister(Add, room=room)
    assert [job.name for job in manager.jobs(room).items if job.full_name.startswith(room)] == ["Other"]
    assert list(manager.registry) == [f"{room}:modifiers:Other"]
    with pytest.raises(KeyError):
        manager.unregister(Add, room=room)


def test_a_worker_without_jobs_sends_heartbeats(own_server: Callable[..., LiveServer], worker: Make) -> None:
    """create_worker starts heartbeats, at the server's interval."""
    # Without sweeps: a slow machine may miss a timeout of two seconds.
    live = own_server(worker_timeout_seconds=2, sweeper_interval_seconds=3600)
    with live.connect() as api:
        manager = worker(at=api)
        worker_id = manager.create_worker()
        first = manager.workers().items[0].last_heartbeat
        wait_until(lambda: (manager.workers().items[0].last_heartbeat - first).total_seconds() > 2.5)
        assert manager.worker_id == manager.workers().items[0].id == worker_id


def test_a_task_may_arrive_before_the_response_to_the_registration(worker: Make, room: str) -> None:
    """A worker with an open poll gets the waiting tasks of a job while it still registers the job."""
    manager, other = worker(lambda task: task.job_name), worker()
    manager.register(Add, room=room)
    for number in range(20):
        cls = type(f"Job{number}", (Add,), {})
        other.register(cls, room=room)
        tasks = [other.submit(cls()) for _ in range(3)]
        manager.register(cls, room=room)
        manager.unregister(cls, room=room)
        for task in tasks:
            found = manager.get_task(task)
            assert found.status == TaskStatus.PENDING or not manager.wait_for(task, 30).error


def test_a_removed_worker_registers_again(worker: Make, room: str, api: Connection) -> None:
    """After a 404 worker-not-found for any request, it is a new worker with the same jobs."""
    manager = worker()
    manager.register(Add, room=room)
    again = partial(manager.register, Add, room=room)
    for call in (manager.heartbeat, manager.claim, again):
        removed = manager.worker_id
        response = api.http.delete(f"{api.base_url}/v1/joblib/workers/{removed}", headers=api.get_headers())
        assert response.status_code == 204
        call()
        assert manager.worker_id not in (None, removed)
        [job] = [job for job in manager.jobs(room).items if job.full_name.startswith(room)]
        assert job.workers == [manager.worker_id]


def test_a_long_heartbeat_interval_logs_a_warning(
    worker: Make, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's interval is the default; a longer one of the program is used, with a warning."""
    manager = worker(heartbeat_interval=100)
    manager.register(Add, room=room)
    wait_until(lambda: "longer than the 15 s" in caplog.text)


class PlainHost:
    """A host's manager that raises plain builtins, or nothing at all, and whose HTTP client has its own
    timeouts.
    """

    def __init__(self, api: Connection, errors: dict[int, type[Exception]]) -> None:
        self.http, self.base_url, self.get_headers = api.http, api.base_url + "/", api.get_headers
        self._errors = errors

    def raise_for_status(self, response: Any) -> None:
        """Raise the error that the host chose for this status, if any."""
        if response.status_code in self._errors:
            raise self._errors[response.status_code](response.text)


@pytest.mark.parametrize("errors", [{}, {404: KeyError, 409: ValueError}], ids=["silent", "builtins"])
def test_hosts_that_raise_their_own_errors(worker: Make, room: str, api: Connection, errors: Any) -> None:
    """Recovery and reports work if a host only logs, or raises builtin exceptions."""
    manager = worker(lambda task: task.extension.a, at=PlainHost(api, errors))
    manager.register(Add, room=room)
    with pytest.raises(KeyError) as caught:
        manager.get_task(manager.worker_id)
    assert errors or not isinstance(caught.value, WorkerNotFound)
    removed = manager.worker_id
    api.http.delete(f"{api.base_url}/v1/joblib/workers/{removed}", headers=api.get_headers())
    wait_until(lambda: manager.worker_id not in (None, removed))
    task = manager.wait_for(manager.submit(Add(a=7), room=room), 30)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, 7)


def test_a_url_needs_a_scheme() -> None:
    """A wrong URL raises before a request is sent."""
    with pytest.raises(ValueError, match="http://"):
        connect("localhost:8000")


def test_the_token_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the repr of a connection nor the log has the token."""
    caplog.set_level("DEBUG")
    with connect(f"http://127.0.0.1:{free_port()}", "secret-token") as api:
        assert "secret-token" not in repr(api)
        with pytest.raises(TimeoutError):
            JobManager(api).wait_for("x", 0.3)
    assert "trying again" in caplog.text
    assert "secret-token" not in caplog.text
