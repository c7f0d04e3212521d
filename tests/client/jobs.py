"""Jobs that the tests register."""

import threading
from typing import Any, ClassVar

from zndraw_joblib.jobs.extensions import Category, Extension


class Area(Extension):
    """The area of a rectangle."""

    category: ClassVar[Category] = Category.ANALYSIS
    width: float = 1
    height: float = 1

    def run(self, vis: Any, *, task: Any) -> float:
        """Return the area, and report the progress."""
        task.progress(1, 2, message="<b>multiplying</b>")
        task.log("width times height")
        return self.width * self.height


class Fail(Extension):
    """Raises an exception."""

    category: ClassVar[Category] = Category.ANALYSIS

    def run(self, vis: Any, *, task: Any) -> None:
        """Raise KeyError."""
        raise KeyError("<script>")


class Values(Extension):
    """Returns values of many types."""

    category: ClassVar[Category] = Category.ANALYSIS
    large: bool = False

    def run(self, vis: Any, *, task: Any) -> Any:
        """Return an array of 1 MiB, or a value with NaN and bytes."""
        if self.large:
            import numpy

            return numpy.arange(131_072.0)
        return {"nan": float("nan"), "bytes": b"\x00\xff", "none": None}


class Steps(Extension):
    """Logs five lines, waits for `gate`, and logs five more."""

    category: ClassVar[Category] = Category.ANALYSIS
    gate: ClassVar[threading.Event] = threading.Event()

    def run(self, vis: Any, *, task: Any) -> str:
        """Return a word."""
        for number in range(10):
            if number == 5:
                task.progress(5, 10)
                assert self.gate.wait(60)
            task.log(f"line {number}")
        return "done"
