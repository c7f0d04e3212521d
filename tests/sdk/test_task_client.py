"""`task.client`: a queue with the rights of the task that runs."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import pytest

from sdk.jobs import Add
from zndraw_joblib import Forbidden, job
from zndraw_joblib.jobs.task_context import TaskContext, call_run
from zndraw_joblib.wire.problems import Unauthorized
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.tasks import ClaimedTask, HeldTasks, TaskCredential, TaskQueue

Make = Callable[..., JobManager]


@job
def parent(task: TaskContext, other: str, child: str) -> list[Any]:
    """Submit a child and read it; try to read a task of another client."""
    client = task.client
    handle = client.submit(child, {"a": 1, "b": 2})
    with client.group() as group:
        others = [group.submit(child, {"a": 1, "b": n}) for n in range(7)]
        others.append(task.submit(child, {"a": 1, "b": 7}, group=group.id))
    ended = {*client.as_completed([handle, *others[:3]], timeout=50)}
    try:
        task.client.task(other).refresh()
    except Forbidden as problem:
        refusal = str(problem)
    return [
        handle.result(50),
        handle.refresh().parent == task.client.task(task.task_id).refresh().id,
        refusal,
        [group.gather(50), client.gather(*others, timeout=50), len(ended), others[-1].refresh().parent],
    ]


@job
def patient(task: ClaimedTask) -> bool:
    """Wait until the token of the claim has expired; return whether the one that replaced it is valid."""
    assert task.credential is not None
    assert task.server is not None
    claimed = TaskCredential(task.credential.token)
    first = TaskQueue(task.server.api, claimed, task.room_id)
    # A process that starts slowly gets a renewed token at once, which is valid for long.
    deadline = monotonic() + 15
    while monotonic() < deadline:
        try:
            first.task(task.task_id).refresh()
        except Unauthorized:
            break
        sleep(0.05)
    return task.client.task(task.task_id).status() == "running" and task.credential.token != claimed.token


def run(task: ClaimedTask) -> Any:
    """Run a task as `serve` does."""
    return call_run(task.extension, None, task)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_job_uses_the_queue_with_the_rights_of_its_task(worker: Make, room: str, executor: Any) -> None:
    """In a thread and in a process. Once the task has ended, the token is useless."""
    manager = worker(run, concurrency=2, executor=executor)
    child = manager.register(Add, room=room)
    manager.register(parent, room=room)
    other = manager.submit(Add(a=1, b=1), room=room)
    task_id = manager.submit(parent.task(other=other, child=f"{room}:modifiers:Add"), room=room)
    result = manager.wait_for(task_id, 50)
    assert result.status == "completed", (result.error, child)
    total, is_child, refusal, (of_group, of_tasks, ended, last_parent) = result.result
    assert (total, is_child, ended, last_parent) == (3, True, 4, task_id)
    assert of_group == of_tasks == [1, 2, 3, 4, 5, 6, 7, 8]
    assert other in refusal
    assert task_id in refusal


def test_a_claim_has_a_token_that_ends_with_it(worker: Make, room: str) -> None:
    """Also that of `claim`; `submit` uses it, and what it does not permit the identity of the worker."""
    manager = worker()
    manager.register(Add, room=room)
    manager.submit(Add(), room=room)
    task = manager.claim()
    assert task is not None
    manager.start(task)
    assert task.submit(Add(a=1)).refresh().parent == task.client.task(task.task_id).refresh().id
    assert task.submit(Add(a=3)).cancel(tree=True).status == "cancelled"
    assert task.submit(Add(a=2), debounce={"seconds": 60}, unique={"key": room}).status() == "pending"
    manager.complete(task, 1)
    with pytest.raises(Unauthorized, match="does not hold the task"):
        task.client.task(task.task_id).refresh()


def test_a_process_gets_the_renewed_tokens_of_its_task(
    worker: Make, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code has rights after the token of the claim has expired."""
    monkeypatch.setattr("zndraw_joblib.worker.tasks._RENEWAL_SECONDS", 0.3)
    manager = worker(run, executor="process", heartbeat_interval=0.3)
    manager._rest.token_seconds = 2
    manager.register(patient, room=room)
    result = manager.wait_for(manager.submit(patient.task(), room=room), 50)
    assert (result.status, result.result) == ("completed", True), result.error


def test_heartbeats_ask_for_new_tokens_of_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that runs for hours has a valid token."""
    held = HeldTasks()
    assert not held.has_old_tokens
    credential = TaskCredential("jlt_1")
    held.add(
        ClaimedTask("0198c5a5-1c00-7d11-9f42-6a7b8c9d0e1f", "job", "room", None, 1, credential=credential)
    )
    assert not held.has_old_tokens
    monkeypatch.setattr("zndraw_joblib.worker.tasks._RENEWAL_SECONDS", 0.0)
    assert held.has_old_tokens
