"""Run the code of a task in the test's thread, with the functions that a worker runs it with."""

import os
from collections.abc import Coroutine
from functools import partial
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.task_channel import NO_WORKER, TaskChannel
from zndraw_joblib.contract.task_context import call_run
from zndraw_joblib.worker.execution import Outcome, await_task, make_extension, run_task
from zndraw_joblib.worker.tasks import ClaimedTask


def claimed(task: TaskResponse) -> ClaimedTask:
    """Return a claimed task as a worker has it, without its extension."""
    worker_id: UUID = task.worker_id or NO_WORKER
    return ClaimedTask(
        task_id=str(task.id),
        job_name=task.job_name,
        room_id=task.room_id,
        extension=None,
        attempt=task.attempt,
        payload=task.payload,
        worker_id=worker_id,
        channel=TaskChannel(str(task.id), task.attempt, worker_id),
        traceparent=task.traceparent,
    )


def prepared(cls: type[Any], task: ClaimedTask) -> tuple[ClaimedTask, Outcome | None]:
    """Return a task with its extension, or with the outcome if its payload does not fit the class."""
    extension, fault = make_extension(cls, task)
    if fault is not None:
        return task, Outcome(error=fault, retry=False)
    return task.with_extension(extension, {}), None


def run(task: ClaimedTask, vis: Any) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Call `run` of a task's extension; return the outcome, or a coroutine of it if `run` is one."""
    pid = os.getpid()
    outcome = run_task(partial(_call, vis), task, pid)
    return outcome if isinstance(outcome, Outcome) else await_task(outcome, task, pid)


def _call(vis: Any, task: ClaimedTask) -> Any:
    return call_run(task.extension, vis, task)
