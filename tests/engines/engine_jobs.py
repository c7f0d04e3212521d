"""Jobs for the clusters of engines: each run leaves a line in a file."""

import os
import signal
import time
from pathlib import Path

from zndraw_joblib import JobPolicy, RetryOn, job
from zndraw_joblib.wire.policy import Backoff

RETRIES = JobPolicy(max_attempts=5, retry_on=(RetryOn.WORKER_LOST,), backoff=Backoff(base_seconds=0))


def note(folder: str, name: str, line: object) -> None:
    """Append a line to a file; lines of several processes are whole."""
    file = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@job(policy=RETRIES)
def engine_square(number: int, folder: str) -> list[int]:
    """Square a number."""
    note(folder, "squares", number)
    return [number**2, os.getpid()]


@job(policy=RETRIES)
def engine_killer(folder: str, *, always: bool = False) -> str:
    """Kill the process that runs it, the first time or always."""
    marker = Path(folder) / "killed"
    if always or not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "well"


@job(policy=RETRIES)
def engine_wait(folder: str, name: str) -> str:
    """Wait until there is a file."""
    note(folder, "began", name)
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return name
