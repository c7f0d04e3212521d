"""How the programs of chains and fans write when a task began and ended; only the standard library."""

import os
import time

_file = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark_times(number: int) -> None:
    """Write a line with the number and the time of this machine's monotonic clock, twice."""
    began = time.monotonic()
    os.write(_file, f"{number} {began!r} {time.monotonic()!r}\n".encode())
