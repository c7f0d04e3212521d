"""Jobs from functions, run by real workers."""

import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from sdk.function_jobs import later, refuse, scale, where
from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.client.queue import Queue
from zndraw_joblib.client.submits import NewTask
from zndraw_joblib.jobs.loading import load_extensions
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.policy import WithoutWorkers
from zndraw_joblib.wire.problems import InvalidPayload
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.serving import JobWorker, Runner

Make = Callable[..., JobManager]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_functions_run_in_threads_in_processes_and_on_an_event_loop(
    worker: Make, room: str, executor: str
) -> None:
    """A worker serves them beside classes; each gets its arguments and what it asks of the worker."""
    manager = worker(Runner(dict), executor=executor, concurrency=2)
    for job in (scale, where, later, Add):
        assert manager.register(job, room=room) is job
    assert {name.partition(":")[2] for name in manager.registry} == {
        *("jobs:scale", "analysis:Where", "jobs:later", "modifiers:Add")
    }
    tasks = [scale.task(3), where.task(words=["a"]), later.task("hi"), Add(a=1)]
    ids = [manager.submit(task, room=room) for task in tasks]
    found = [manager.wait_for(task_id, 60) for task_id in ids]
    assert [task.error for task in found] == [None] * 4
    assert (found[0].result, found[3].result) == (6.0, 1)
    place = found[1].result
    assert (place["task"], place["room"], place["vis"], place["words"]) == (ids[1], room, {}, ["a"])
    assert (place["pid"] == os.getpid()) == (executor == "thread")
    assert found[1].progress is not None
    assert found[1].progress.message == "here"
    thread = "zndraw-joblib-async" if executor == "thread" else "MainThread"
    assert found[2].result == ["hi", thread, ids[2]]


def test_a_worker_needs_no_function_that_calls_its_jobs(
    server: LiveServer, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls a `run` with or without `task`, and functions. Its own connection is closed at the end."""
    monkeypatch.setenv("ZNDRAW_JOBLIB_URL", server.url)
    monkeypatch.setenv("ZNDRAW_JOBLIB_TOKEN", TOKEN)
    with JobWorker(context=lambda: 4, long_poll=1) as worker, Queue(room=room) as queue:
        for job in (where, Add):
            worker.register(job, room=room)
        place, total = [queue.submit(task, room=room).result(timeout=60) for task in (where.task(), Add(a=1))]
        others = queue.submit(NewTask(Add(a=2))), queue.submit(Add, {"a": 3})
        assert [task.result(timeout=60) for task in others] == [2, 3]
        with pytest.raises(TypeError, match="got a NewTask, which has its payload"):
            queue.submit(NewTask(Add(a=2)), priority=1)
    assert (place["vis"], total) == (4, 1)
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit(Add(a=1), room=room)


def test_a_job_sets_its_room_and_its_policy(worker: Make, api: Connection, room: str) -> None:
    """They hold where the registration, or the submit, gives no others."""
    manager = worker(Runner())
    manager.register(refuse)
    manager.register(where, room=room, priority=5)
    assert list(manager.registry) == ["quiet:jobs:refuse", f"{room}:analysis:Where"]
    failed = manager.wait_for(manager.submit(refuse.task("no")), 30)
    assert (failed.room_id, failed.job_name, failed.error) == (
        "quiet",
        "quiet:jobs:refuse",
        "NonRetryable: no",
    )
    assert failed.failure is not None
    files = re.findall(r'File ".*/(\w+/\w+\.py)"', failed.failure.traceback or "")
    assert files == ["sdk/function_jobs.py"]
    assert manager.wait_for(manager.submit(where.task(), room=room), 30).status == TaskStatus.COMPLETED
    rest = RestApi(api)
    full_name = f"{room}:analysis:Where"
    found = rest.send(ops.GET_JOB, room_id=room, name=full_name)
    assert (found.without_workers, found.priority) == (WithoutWorkers.QUEUE, 5)
    worker().register(where, room=room, max_attempts=4, without_workers="reject")
    found = rest.send(ops.GET_JOB, room_id=room, name=full_name)
    assert (found.without_workers, found.max_attempts) == (WithoutWorkers.REJECT, 4)
    other = worker()  # it has registered nothing
    ids = other.submit_many([refuse.task("a"), NewTask(refuse.task("b"), priority=1)], atomic=True)
    assert {other.wait_for(task_id, 30).room_id for task_id in ids} == {"quiet"}
    manager.unregister(refuse)
    assert list(manager.registry) == [f"{room}:analysis:Where"]


def test_the_server_refuses_arguments_that_the_function_does_not_take(worker: Make, room: str) -> None:
    """Its schema has the required parameters, their bounds, and no others."""
    manager = worker()
    manager.register(scale, room=room)
    name = f"{room}:jobs:scale"
    for payload, text in (
        ({}, "value"),
        ({"value": 1, "factor": 0}, "factor"),
        ({"value": 1, "facter": 2}, "facter"),
    ):
        with pytest.raises(InvalidPayload, match=text):
            manager.submit(name, payload)
    assert manager.get_task(manager.submit(name, {"value": 1})).status == TaskStatus.PENDING


def test_register_says_what_is_wrong_with_its_argument(worker: Make, subtests: pytest.Subtests) -> None:
    """Before anything is sent to the server."""
    for case, wrong, text in [
        ("instance", scale.task(1), "pass scale itself"),
        ("function", scale.__wrapped__, "The function scale.* decorate it with @job"),
        ("lambda", lambda: None, "A lambda is no job"),
        ("class", type("NoRun", (BaseModel,), {}), "The class NoRun has no method run"),
        ("name", "jobs:scale", "'jobs:scale' is no job"),
    ]:
        with subtests.test(case):
            manager = worker()
            with pytest.raises(TypeError, match=text):
                manager.register(wrong)
            assert manager.worker_id is None


def test_a_function_that_no_process_can_import_is_refused(worker: Make) -> None:
    """A nested one, or one whose name in its module is another object."""
    from zndraw_joblib import job

    @job
    def nested() -> None:
        """Do nothing."""

    manager = worker(Runner(), executor="process")
    for wrong in (nested, job(where.__wrapped__, name="other")):
        with pytest.raises(TypeError, match=r"cannot run in another process.*executor='thread'"):
            manager.register(wrong)


def test_submit_says_what_is_wrong_with_its_argument(worker: Make, subtests: pytest.Subtests) -> None:
    """A job is not a task of it."""
    for case, wrong in [("job", scale), ("class", Add), ("function", scale.__wrapped__), ("int", 3)]:
        with subtests.test(case):
            with pytest.raises(TypeError, match=r"pass|decorate"):
                worker().submit(wrong)
            with pytest.raises(TypeError, match=r"tasks\.1"):
                worker().submit_many([NewTask("@global:jobs:scale"), wrong])


def test_the_example_runs(worker: Make, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command `worker` loads its functions, in their order."""
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    found = load_extensions("examples.functions")
    assert [job.__name__ for job in found] == ["area", "estimate_pi", "ask"]
    example = importlib.import_module("examples.functions")
    manager = worker(Runner())
    for job in found:
        manager.register(job, room=room)
    tasks = [
        example.area.task(3, height=4),
        example.estimate_pi.task(samples=10),
        example.ask_service.task(0),
    ]
    ids = [manager.submit(task, room=room) for task in tasks]
    area, pi, answer = (manager.wait_for(task_id, 30).result for task_id in ids)
    assert (area, 0 <= pi <= 4, answer) == (12.0, True, "answered after 0 s")
