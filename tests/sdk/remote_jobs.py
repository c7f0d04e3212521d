"""Jobs that run on an executor, and functions that make executors."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from zndraw_joblib import Forbidden, JobPolicy, RetryOn, TaskContext, job
from zndraw_joblib.wire.policy import Backoff
from zndraw_joblib.worker.tasks import ClaimedTask

RETRIES = JobPolicy(max_attempts=2, retry_on=(RetryOn.WORKER_LOST,), backoff=Backoff(base_seconds=0))


def pool() -> Executor:
    """Return two processes of the standard library."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@job
def remote_square(task: TaskContext, number: int, error: str = "") -> list[int]:
    """Square a number.

    Args:
        number: The number.
        error: What to raise.
    """
    if error:
        raise ValueError(error)
    if number == 0:
        task.progress(1, 2, message="half")
        task.log("a line")
        print("printed")
    return [number**2, os.getpid()]


@job
async def remote_later(number: int) -> int:
    """Square a number in a coroutine."""
    return number**2


@job
def remote_parent(task: ClaimedTask, child: str) -> list[str]:
    """Submit children with the token of the task; return the refusal of what it does not permit."""
    submitted = task.client.submit(child, {"number": 2})
    task.submit(child, {"number": 3})
    try:
        task.submit(child, {"number": 4}, room="another-room")
    except Forbidden as problem:
        refusal = str(problem)
    assert task.server is not None
    return [str(submitted.id), refusal, str(task.server.api.get_headers())]


@job(policy=RETRIES)
def remote_killer(folder: str, *, always: bool = False) -> str:
    """Kill the process that runs it, the first time or always."""
    marker = Path(folder) / "killed"
    if always or not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "well"


@job(policy=RETRIES)
def remote_wait(folder: str, name: str) -> str:
    """Wait until there is a file."""
    (Path(folder) / f"{name}-began").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return name
