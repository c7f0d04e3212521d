"""Registering jobs: the fault K7, K3, K12 of the contract, D18, D22, and every way to write it."""

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import LiveServer
from zndraw_joblib.contract.problems import SchemaConflict, Unauthorized, WorkerNotFound
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.worker.api import Connection, connect
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


def test_a_decorator_with_and_without_arguments_registers(worker: Make, room: str) -> None:
    """Each way of writing it gives the class back, and the registry knows the job by its full name."""
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


def test_a_class_counts_by_what_it_offers(worker: Make, room: str) -> None:
    """A host's own base class serves as well as ours."""

    class Theirs(BaseModel):
        category: ClassVar[str] = "analysis"
        number: int

        def run(self) -> int:
            return -self.number

    manager = worker(lambda task: task.extension.run())
    manager.register(Theirs, room=room)
    assert manager.wait_for(manager.submit(Theirs(number=4), room=room), 5).result == -4


def test_a_schema_conflict_surfaces_at_once(worker: Make, room: str) -> None:
    """K7: what the server refuses is not asked again."""
    worker().register(Add, room=room)
    other = type("Add", (Add,), {"__annotations__": {"c": int}, "c": 0})
    began = time.monotonic()
    with pytest.raises(ValueError, match="Schema mismatch") as caught:
        worker().register(other, room=room)
    assert isinstance(caught.value, SchemaConflict)
    assert time.monotonic() - began < 1


def test_a_wrong_token_surfaces_at_once(server: LiveServer, worker: Make, room: str) -> None:
    """K7: 401 at the start is a mistake to show, not an outage to wait for."""
    with connect(server.url, "wrong") as api, pytest.raises(Unauthorized):
        worker(at=api).register(Add, room=room)


def test_a_worker_may_start_before_its_server(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """Registration asks a server that is not there again."""
    live = own_server()
    live.stop()
    with live.connect() as api:
        manager = worker(at=api)
        thread = threading.Thread(target=manager.register, args=(Add,), kwargs={"room": room})
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        live.start()
        thread.join(10)
        assert manager.worker_id is not None


@pytest.mark.parametrize("room", ["a b?c#d%2F&é", "50%"])
def test_names_are_quoted_in_paths(worker: Make, room: str) -> None:
    """K12: a room and a job may have any name that the server allows."""
    manager = worker(lambda task: task.job_name)
    grows = type("Größe", (Add,), {})
    manager.register(grows, room=room)
    task = manager.wait_for(manager.submit(grows(), room=room), 5)
    assert task.result == f"{room}:modifiers:Größe"
    assert [found.id for found in manager.tasks(room).items] == [task.id]
    manager.unregister(grows, room=room)
    assert not manager.registry


def test_a_manager_serves_again_after_a_disconnect(worker: Make, room: str) -> None:
    """K3: a new registration brings a new worker, with threads of its own."""
    manager = worker(lambda task: task.extension.a)
    manager.register(Add, room=room)
    first = manager.worker_id
    manager.disconnect()
    assert manager.worker_id is None
    assert not manager.registry
    wait_until(lambda: not [thread for thread in threading.enumerate() if "zndraw-joblib" in thread.name])
    manager.register(Add, room=room)
    assert manager.worker_id not in (None, first)
    assert manager.wait_for(manager.submit(Add(a=5), room=room), 5).result == 5
    assert first not in [known.id for known in manager.workers(limit=500).items]


def test_an_unregistered_job_is_served_no_more(worker: Make, room: str) -> None:
    """D22: the job goes, its tasks and the worker's other jobs stay."""
    manager = worker()
    other = type("Other", (Add,), {})
    manager.register(Add, room=room)
    manager.register(other, room=room)
    manager.unregister(Add, room=room)
    assert [job.name for job in manager.jobs(room).items if job.full_name.startswith(room)] == ["Other"]
    assert list(manager.registry) == [f"{room}:modifiers:Other"]
    with pytest.raises(KeyError):
        manager.unregister(Add, room=room)


def test_a_worker_without_jobs_stays_alive(own_server: Callable[..., LiveServer], worker: Make) -> None:
    """D18: create_worker starts heartbeats, as often as the server wants them."""
    live = own_server(worker_timeout_seconds=0.6, sweeper_interval_seconds=0.1)
    with live.connect() as api:
        manager = worker(at=api)
        worker_id = manager.create_worker()
        first = manager.workers().items[0].last_heartbeat
        wait_until(lambda: (manager.workers().items[0].last_heartbeat - first).total_seconds() > 1)
        assert manager.worker_id == worker_id


def test_a_task_may_come_before_its_registration_is_answered(worker: Make, room: str) -> None:
    """A worker with an open poll gets the waiting tasks of a job while it still registers it."""
    manager, keeper = worker(lambda task: task.job_name), worker()
    manager.register(Add, room=room)
    for number in range(20):
        cls = type(f"Job{number}", (Add,), {})
        keeper.register(cls, room=room)
        tasks = [keeper.submit(cls()) for _ in range(3)]
        manager.register(cls, room=room)
        manager.unregister(cls, room=room)
        for task in tasks:
            found = manager.get_task(task)
            assert found.status == TaskStatus.PENDING or not manager.wait_for(task, 5).error


def test_a_removed_worker_registers_anew(worker: Make, room: str, api: Connection) -> None:
    """A 404 worker-not-found, whatever asked, brings a new worker with the same jobs."""
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


def test_an_interval_too_long_is_warned_about(
    worker: Make, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's interval is the default; one's own wins, with a warning if it is longer."""
    manager = worker(heartbeat_interval=100)
    manager.register(Add, room=room)
    wait_until(lambda: "longer than the 15 s" in caplog.text)


class PlainHost:
    """A host's manager that raises plain builtins, or nothing at all, and offers no client for polls."""

    def __init__(self, api: Connection, errors: dict[int, type[Exception]]) -> None:
        self.http, self.base_url, self.get_headers = api.http, api.base_url + "/", api.get_headers
        self._errors = errors

    def raise_for_status(self, response: Any) -> None:
        """Raise what the host chose for this status, if anything."""
        if response.status_code in self._errors:
            raise self._errors[response.status_code](response.text)


@pytest.mark.parametrize("errors", [{}, {404: KeyError, 409: ValueError}], ids=["silent", "builtins"])
def test_any_host_will_do(worker: Make, room: str, api: Connection, errors: Any) -> None:
    """D21: a host that only logs, or raises plain builtins, breaks neither recovery nor reports."""
    manager = worker(lambda task: task.extension.a, at=PlainHost(api, errors))
    manager.register(Add, room=room)
    with pytest.raises(KeyError) as caught:
        manager.get_task(manager.worker_id)
    assert errors or not isinstance(caught.value, WorkerNotFound)
    removed = manager.worker_id
    api.http.delete(f"{api.base_url}/v1/joblib/workers/{removed}", headers=api.get_headers())
    wait_until(lambda: manager.worker_id not in (None, removed))
    task = manager.wait_for(manager.submit(Add(a=7), room=room), 5)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, 7)


def test_a_url_must_name_its_scheme() -> None:
    """A mistake in the URL is said before anything is sent."""
    with pytest.raises(ValueError, match="http://"):
        connect("localhost:8000")


def test_the_token_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither what is printed of a connection nor what is logged has the token in it."""
    caplog.set_level("DEBUG")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with connect(url, "secret-token") as api:
        assert "secret-token" not in repr(api)
        with pytest.raises(TimeoutError):
            JobManager(api).wait_for("x", 0.3)
    assert "trying again" in caplog.text
    assert "secret-token" not in caplog.text
