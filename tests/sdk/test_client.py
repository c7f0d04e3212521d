"""Submitting tasks, waiting for them, and their results."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from pydantic import BaseModel
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from zndraw_joblib.client.connection import connect
from zndraw_joblib.jobs.extensions import Extension
from zndraw_joblib.wire.problems import InvalidPayload, JobNotFound, TaskNotFound
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


class Color(Enum):
    RED = "red"


class Rich(Extension):
    category = "analysis"
    path: Path
    id: UUID
    time: datetime
    color: Color
    nothing: int | None = 1

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return itself."""
        return self


RICH = Rich(
    path=Path("a/b"), id=UUID(int=7), time=datetime(2026, 1, 2, tzinfo=UTC), color=Color.RED, nothing=None
)


def test_fields_of_all_types_arrive_unchanged(worker: Make, room: str) -> None:
    """Paths, UUIDs, times, enums and None reach the worker and come back as a result."""
    manager = worker(lambda task: {"model": task.extension, "is": task.extension == RICH})
    manager.register(Rich, room=room)
    by_name = manager.submit(f"{room}:analysis:Rich", RICH.model_dump(), room=room)
    for task_id in (manager.submit(RICH, room=room), by_name):
        task = manager.wait_for(task_id, 30)
        assert task.payload == RICH.model_dump(mode="json")
        assert task.result == {"model": RICH.model_dump(mode="json"), "is": True}


class Note(BaseModel):
    text: str


def test_a_result_is_sent_as_json(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """Any value that pydantic can serialize becomes the task's result."""
    for case, result, expected in [
        ("none", None, None),
        ("models", [Note(text="é\x00")], [{"text": "é\x00"}]),
        ("containers", {1: {2.5}}, {"1": [2.5]}),
    ]:
        with subtests.test(case):
            manager = worker(lambda task: result)
            manager.register(Add, room=room)
            task = manager.wait_for(manager.submit(Add(), room=room), 30)
            assert (task.status, task.result, task.error) == (TaskStatus.COMPLETED, expected, None)


def test_a_result_that_cannot_be_sent_fails_the_task(
    worker: Make, room: str, subtests: pytest.Subtests
) -> None:
    """The task's error has the reason, and the worker continues."""
    for case, result, text in [
        ("object", object(), "cannot be sent as JSON: result: an object of object cannot be encoded"),
        ("class", {"frames": [1, {"cell": set}]}, "result.frames[1].cell: the class set cannot be encoded"),
        ("surrogate", ["\ud800"], "result[0]: the text is not JSON"),
    ]:
        with subtests.test(case):
            manager = worker(lambda task: task.extension.a or result)
            manager.register(Add, room=room)
            task = manager.wait_for(manager.submit(Add(), room=room), 30)
            assert task.status == TaskStatus.FAILED
            assert text in (task.error or "")
            assert task.error_code == "result-not-serializable"
            assert manager.wait_for(manager.submit(Add(a=1), room=room), 30).result == 1


def test_a_long_error_is_truncated(worker: Make, room: str) -> None:
    """An error of any length and with any characters is reported, up to 64 KiB."""

    def execute(task: Any) -> None:
        raise RuntimeError("é\ud800" * 100_000)

    manager = worker(execute)
    manager.register(Add, room=room)
    task = manager.wait_for(manager.submit(Add(), room=room), 30)
    assert task.status == TaskStatus.FAILED
    assert 60_000 < len((task.error or "").encode()) <= 64 * 1024
    assert (task.error or "").endswith("(truncated)")


def test_wait_for_returns_at_each_terminal_status(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """wait_for returns a completed, failed or cancelled task."""
    for end in sorted(TERMINAL):
        with subtests.test(end=end):
            manager = worker()
            manager.register(Add, room=room)
            task_id = manager.submit(Add(), room=room)
            task = manager.claim()
            assert task is not None
            if end != TaskStatus.CANCELLED:
                manager.start(task)
            report = {
                TaskStatus.COMPLETED: manager.complete,
                TaskStatus.FAILED: lambda it: manager.fail(it, "no"),
                TaskStatus.CANCELLED: manager.cancel,
            }
            assert report[end](task).status == end
            assert report[end](task).status == end
            assert manager.wait_for(task_id).status == end


def test_wait_for_ends_after_its_timeout(worker: Make, room: str) -> None:
    """A task that does not end raises TimeoutError; a task that does not exist raises KeyError at once."""
    manager = worker()
    manager.register(Add, room=room)
    task_id = manager.submit(Add(), room=room)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="is pending after"):
        manager.wait_for(task_id, 0.3)
    assert 0.3 <= time.monotonic() - began < 20
    with pytest.raises(TaskNotFound):
        manager.wait_for(UUID(int=0))


def test_wait_for_continues_after_a_restart(
    own_server: Callable[..., LiveServer], worker: Make, room: str
) -> None:
    """The client repeats its request while the server restarts."""
    live = own_server()
    with live.connect() as api:
        manager = worker(lambda task: 1, at=api)
        manager.register(Add, room=room)
        manager.disconnect()
        manager.register(Add, room=room)
        live.stop()
        with pytest.raises(TimeoutError, match="out of reach"):
            manager.wait_for(UUID(int=1), 0.3)
        live.start()
        task_id = wait_until(lambda: manager.submit(Add(), room=room))
        assert manager.wait_for(task_id, 30).result == 1
        manager.disconnect()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_local_server_is_reached_without_a_proxy(
    own_server: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """The environment's proxy never gets the token of a server on this machine."""
    live = own_server()
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with connect(live.url.replace("127.0.0.1", host), token=TOKEN) as api:
        response = api.http.get(f"{api.base_url}/v1/joblib/workers", headers=api.get_headers())
        assert response.status_code == 200
    with connect("http://joblib.example", token="secret") as api, pytest.raises(httpx.ConnectError):
        api.http.get(f"{api.base_url}/v1/joblib/workers")


def test_a_refusal_is_raised_as_its_problem_class(worker: Make, room: str) -> None:
    """The SDK raises the problem class, which is also the builtin error."""
    manager = worker()
    manager.register(Add, room=room)
    with pytest.raises(InvalidPayload) as caught:
        manager.submit(f"{room}:modifiers:Add", {"a": "many"}, room=room)
    assert isinstance(caught.value, ValueError)
    for unknown in (f"{room}:modifiers:None", "nonsense"):
        with pytest.raises(JobNotFound):
            manager.submit(unknown, room=room)
    with pytest.raises(ValueError, match=r"payload\.a: an object of object cannot be encoded"):
        manager.submit(f"{room}:modifiers:Add", {"a": object()}, room=room)


def test_an_extension_is_submitted_to_its_own_room(worker: Make, room: str) -> None:
    """Without job_room the job is the one this manager registered; a client without registrations names the
    room.
    """
    manager, other = worker(lambda task: task.job_name), worker()
    manager.register(Add, room=room)
    assert manager.wait_for(manager.submit(Add()), 30).room_id == room
    name = f"{room}:modifiers:Add"
    assert manager.wait_for(other.submit(Add(), room=room, job_room=room), 30).result == name
