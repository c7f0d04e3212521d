"""Jobs that run on an executor, and functions that make executors."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from zndraw_joblib import JobPolicy, RetryOn, TaskContext, job
from zndraw_joblib.wire.policy import Backoff

RETRIES = JobPolicy(max_attempts=2, retry_on=(RetryOn.WORKER_LOST,), backoff=Backoff(base_seconds=0))


def pool() -> Executor:
    """Return two processes of the standard library."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@job
def remote_square(number: int, task: TaskContext, error: str = "") -> list[int]:
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
