"""Jobs for `zndraw-joblib worker examples/jobs.py`.

`run` gets `task`, the running task, if it has an argument of this name, and `vis`, what the function of
`worker --context` returns; without the option it is None.
"""

import time
from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib import Category, Extension, TaskContext


class Area(Extension):
    """Compute the area of a rectangle."""

    category: ClassVar[Category] = Category.ANALYSIS
    width: float
    height: float

    def run(self, vis: Any, **kwargs: Any) -> float:
        """Return width times height."""
        return self.width * self.height


class Pause(Extension):
    """Take a while, and report how much of it is over."""

    category: ClassVar[Category] = Category.MODIFIER
    seconds: float = Field(default=1.0, ge=0, le=60)

    def run(self, vis: Any, *, task: TaskContext) -> None:
        """Sleep for `seconds`."""
        for _ in task.track(range(10), unit="naps"):
            time.sleep(self.seconds / 10)
        print(f"Slept for {self.seconds} s")
