"""Submitting tasks with a client that registers nothing, and reading their results."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy
import pytest
from databases import on_both
from sdk.live import TOKEN, LiveServer

from client.both import Both
from client.jobs import Area, Fail, Values
from zndraw_joblib.client.flows import AmbiguousJob, TaskCancelled, TaskFailed
from zndraw_joblib.client.queue import Queue, TaskHandle
from zndraw_joblib.client.submits import NewTask
from zndraw_joblib.wire.names import DEFAULT_ROOM
from zndraw_joblib.wire.problems import InvalidPayload, InvalidTaskTransition, JobNotFound
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


async def test_a_task_is_submitted_by_class_name_and_full_name(queue: Both, worker: Make, room: str) -> None:
    """Each of them is the same job; the result is what the job returned."""
    worker().register(Area, room=room)
    by_class = await queue.submit(Area(width=3, height=4))
    by_name = await queue.submit("Area", {"width": 2})
    by_full_name = await queue.submit(f"{room}:analysis:Area", {"height": 5}, priority=7)
    assert [await task.result(timeout=30) for task in (by_class, by_name, by_full_name)] == [12, 2, 5]
    assert by_full_name.state.priority == 7
    assert await by_class.status() == TaskStatus.COMPLETED


async def test_a_failed_task_raises_what_happened(queue: Both, worker: Make, room: str) -> None:
    """The exception has the code, the message, the class and the traceback of the job's exception."""
    worker().register(Fail, room=room)
    task = await queue.submit(Fail())
    with pytest.raises(TaskFailed, match="KeyError") as caught:
        await task.result(30)
    error = caught.value
    assert (error.code, error.type, error.message) == ("error", "KeyError", "KeyError: '<script>'")
    assert 'raise KeyError("<script>")' in (error.traceback or "")
    assert "In the worker:" in error.__notes__[0]
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made here
    assert (copied.code, copied.task_id) == ("error", UUID(task.inner))
    assert "&lt;script&gt;" in task.inner._repr_html_()
    assert "<script>" not in task.inner._repr_html_()


@on_both
async def test_values_of_all_types_come_back(queue: Both, worker: Make, room: str) -> None:
    """NaN and bytes in JSON, an array that was uploaded, and None are what the job returned."""
    worker().register(Values, room=room)
    found = await (await queue.submit(Values())).result(30)
    assert math.isnan(found["nan"])
    assert (found["bytes"], found["none"]) == (b"\x00\xff", None)
    array = await (await queue.submit(Values(large=True))).result(30)
    assert numpy.array_equal(array, numpy.arange(131_072.0))


async def test_a_task_that_waits_says_why(queue: Both, worker: Make, room: str) -> None:
    """The TimeoutError has the reason; after `cancel`, the result raises `TaskCancelled`."""
    manager = worker()
    manager.register(Area, room=room)
    manager.disconnect()
    worker(None).register(Area, room=room)
    task = await queue.submit(Area(), delay_seconds=3600)
    with pytest.raises(TimeoutError, match=r"is pending after 0\.1 s: .*"):
        await task.result(timeout=0.1)
    reasons = (await task.explain()).reasons
    assert reasons
    assert (await task.cancel()).status == TaskStatus.CANCELLED
    with pytest.raises(TaskCancelled) as caught:
        await task.result()
    assert caught.value.code == "cancelled"
    assert (await task.retry()).status == TaskStatus.PENDING
    later = await queue.submit(Area(), delay_seconds=3600)
    assert (await later.run_now()).run_at is None
    assert [each.status for each in (await task.history()).transitions][-1] == TaskStatus.PENDING


async def test_a_handle_reads_log_history_and_state(queue: Both, worker: Make, room: str) -> None:
    """A handle that was made from an id alone does all that the one of the submit does."""
    worker().register(Area, room=room)
    task = await queue.task((await queue.submit(Area())).inner)
    assert task.state is None
    assert (await task.wait(30)).status == TaskStatus.COMPLETED
    assert [line.text for line in await task.logs()] == ["width times height"]
    assert (await task.history()).transitions[0].status == TaskStatus.PENDING
    assert (await task.refresh()).result == task.state.result == 1  # type: ignore[attr-defined]
    assert "&lt;b&gt;multiplying" in task.inner._repr_html_()
    with pytest.raises(InvalidTaskTransition):
        await task.cancel()


async def test_a_handle_is_its_id_as_text(queue: Both, worker: Make, room: str) -> None:
    """It is equal to the id, a key of a dictionary, JSON, and its copies are plain text."""
    worker(None).register(Area, room=room)
    task = (await queue.submit(Area())).inner
    assert task == str(task.id)
    assert {str(task): 1}[task] == 1
    assert json.loads(json.dumps([task])) == [str(task)]
    for copied in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):  # noqa: S301 - it was made here
        assert (type(copied), copied) == (str, task)
    assert f"{task} pending" in repr(task)
    with pytest.raises(ValueError, match="is not a UUID"):
        await queue.task("nonsense")


@on_both
async def test_many_tasks_are_submitted_at_once(queue: Both, worker: Make, room: str) -> None:
    """A refused task is its problem; with `atomic` the first problem is raised."""
    worker().register(Area, room=room)
    wrong = NewTask("Area", {"width": "wide"})
    first, second, refused = await queue.submit_many([Area(), NewTask("Area", {"width": 3}), wrong])
    assert [await first.result(30), await second.result(30)] == [1, 3]
    assert isinstance(refused, InvalidPayload)
    with pytest.raises(InvalidPayload):
        await queue.submit_many([Area(), wrong], atomic=True)
    with pytest.raises(ValueError, match=r"tasks\.1: priority"):
        await queue.submit_many([Area(), NewTask(Area(), priority=10**9)])


async def test_a_room_means_its_own_job_first(
    open_queue: Callable[..., Both], worker: Make, room: str
) -> None:
    """A name is looked up in the room, and then in ``@global``; the task's room is the given one."""
    name = f"Area{uuid4().hex[:8]}"
    shared = type(name, (Area,), {"__module__": Area.__module__})
    manager = worker(None)
    manager.register(shared)
    queue = open_queue()
    common = await queue.submit(name)
    assert (common.state.job_name, common.state.room_id) == (f"@global:analysis:{name}", DEFAULT_ROOM)
    assert (await queue.submit(name, room=room)).state.room_id == room
    manager.register(shared, room=room)
    fresh = open_queue()
    for job in (name, shared()):
        own = await fresh.submit(job, room=room)
        assert (own.state.job_name, own.state.room_id) == (f"{room}:analysis:{name}", room)
    assert f"{room}:analysis:{name}" in [job.full_name for job in await fresh.jobs(room)]
    by_full_name = await fresh.submit(f"{room}:analysis:{name}")
    assert by_full_name.state.room_id == room


async def test_an_unknown_job_names_the_nearest_ones(
    open_queue: Callable[..., Both], worker: Make, room: str
) -> None:
    """So does a full name that no job has; several categories of a name are an error."""
    manager, queue = worker(None), open_queue(room=room)
    manager.register(Area, room=room)
    for name in ("Aera", f"{room}:analysis:Aera"):
        with pytest.raises(JobNotFound, match=rf"Did you mean {room}:analysis:Area\?"):
            await queue.submit(name)
    manager.register(type("Area", (Area,), {"category": "modifiers"}), room=room)
    with pytest.raises(AmbiguousJob, match=f"{room}:modifiers:Area"):
        await open_queue(room=room).submit("Area")


async def test_wrong_arguments_are_named(queue: Both) -> None:
    """The job, the payload, the options, and the tasks to wait for."""
    with pytest.raises(TypeError, match="which is its own payload"):
        await queue.submit(Area(), {"width": 1})
    with pytest.raises(TypeError, match="42 is no task"):
        await queue.submit(42)
    with pytest.raises(TypeError, match=r"Area is a job, not a task of it: pass Area\(…\)"):
        await queue.submit(Area)
    with pytest.raises(TypeError, match="payload: 3 is not a mapping"):
        await queue.submit("lab:analysis:Area", 3)
    with pytest.raises(TypeError, match=r"unknown options of a submit: width.*as one dict"):
        await queue.submit("lab:analysis:Area", width=1)
    with pytest.raises(TypeError, match=r"of a submit: delay \(did you mean 'delay_seconds'\?\)"):
        await queue.submit("lab:analysis:Area", delay=1)
    with pytest.raises(TypeError, match=r"of a submit: eta \(did you mean 'run_at'\?\)"):
        await queue.submit("lab:analysis:Area", {}, eta=1)
    with pytest.raises(TypeError, match=r"gather\(\*tasks\)"):
        await queue.gather(["x"])
    with pytest.raises(ValueError, match="task_id: 'x' is not a UUID"):
        queue.inner.task("x")
    with pytest.raises(ValueError, match="delay_seconds"):
        await queue.submit("lab:analysis:Area", {}, delay_seconds=-1)


def test_a_large_result_is_written_to_a_file(
    worker: Make, server: LiveServer, room: str, tmp_path: Path
) -> None:
    """`Queue.download_result` does not read it into memory."""
    worker().register(Values, room=room)
    with Queue(server.url, TOKEN, room=room) as queue:
        task = queue.submit(Values(large=True))
        task.wait(30)
        stored = queue.download_result(task, tmp_path / "array.npy")
        assert stored.size == (tmp_path / "array.npy").stat().st_size > 2**20
        assert numpy.load(tmp_path / "array.npy").sum() == queue.result(task).sum()


def test_a_manager_returns_the_same_handle(worker: Make, server: LiveServer, room: str) -> None:
    """`JobManager.submit` returns the id as text, which reads its own result."""
    manager = worker()
    manager.register(Area, room=room)
    task: Any = manager.submit(Area(width=2), room=room)
    assert isinstance(task, TaskHandle)
    assert task.result(30) == 2
    assert manager.wait_for(task).id == task.id
    assert task.status() == TaskStatus.COMPLETED
    named = manager.submit("Area", {"width": 4}, room=room)
    assert named.result(30) == 4
