"""A job that writes when it began and ended, for `zndraw-joblib worker`."""

import os
import time

from zndraw_joblib import job

_file = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@job(name="Step", category="modifiers")
def step(number: int = 0) -> None:
    """Write a line with the number and the time of this machine's monotonic clock, twice."""
    began = time.monotonic()
    os.write(_file, f"{number} {began!r} {time.monotonic()!r}\n".encode())
