"""Jobs that the tests register."""

import threading
from typing import Any, ClassVar

from zndraw_joblib.client.queue import Queue
from zndraw_joblib.jobs.extensions import Category, Extension
from zndraw_joblib.jobs.task_context import current_task


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


class Fan(Extension):
    """Submits four tasks below itself, and one beside itself."""

    category: ClassVar[Category] = Category.ANALYSIS
    url: str
    token: str
    room: str

    def run(self, vis: Any, *, task: Any) -> dict[str, str | None]:
        """Return the parents of the tasks."""
        assert current_task() is task
        with Queue(self.url, self.token, room=task.room_id) as queue:
            tasks = {
                "task": task.submit(Area(width=2), tags=["fan"]),
                "name": task.submit("Area", {"width": 3}),
                "queue": queue.submit(Area()),
                "many": queue.submit_many([Area()])[0],
                "none": queue.submit(Area(), parent=None),
                "other": queue.submit(f"{self.room}:analysis:Area", room=self.room),
            }
            parents = {name: queue.task(child).refresh().parent for name, child in tasks.items()}
        return {name: None if parent is None else str(parent) for name, parent in parents.items()}
