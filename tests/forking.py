"""A job that starts processes by fork, as its payload says."""

import multiprocessing
import os
import sys
import time
from typing import Any, ClassVar

from zndraw_joblib import Category, Extension

_fork = multiprocessing.get_context("fork")


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def sleep() -> None:
    """Sleep for longer than any test."""
    time.sleep(300)


def exit_code(pid: int) -> int:
    """Wait for a forked process, and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Fork(Extension):
    """A job that forks."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str = "not"

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Start a process; return its result or its exit code."""
        if self.how == "pool":
            with _fork.Pool(2) as pool:
                return pool.map(double, [1, 2, 3])
        if self.how == "terminate":
            process = _fork.Process(target=sleep)
            process.start()
            process.terminate()
            process.join(20)
            return process.exitcode
        if self.how == "not":
            return os.getpid()
        pid = os.fork()
        if pid:
            return exit_code(pid)
        return self._end()

    def _end(self) -> Any:
        """Come back from the forked process, in one of several manners."""
        if self.how == "exit":
            sys.exit(7)
        if self.how == "raise":
            raise ValueError("in the forked process")
        return (number for number in range(3)) if self.how == "lazy" else "from the forked process"


EXPECTED = {"pool": [2, 4, 6], "terminate": -15, "exit": 7, "raise": 1, "return": 1, "lazy": 1}
