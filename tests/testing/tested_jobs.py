"""Jobs that the tests of the helpers submit."""

import threading
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib import Backoff, Extension, JobPolicy, NonRetryable, RetryOn, TaskContext


class Area(Extension):
    """Compute the area of a rectangle."""

    category: ClassVar[str] = "analysis"
    width: float = Field(gt=0)
    height: float = 1.0

    def run(self, vis: Any, *, task: TaskContext) -> float:
        """Return width times height."""
        task.log(f"in thread {threading.current_thread().name}")
        task.progress(1, 2, unit="sides", message="half")
        task.progress(2)
        return self.width * self.height


class Summed(Extension):
    """Sums the results of a group."""

    category: ClassVar[str] = "analysis"
    values: list[float]
    counts: dict[str, int]

    def run(self, vis: Any, **kwargs: Any) -> list[float]:
        """Return the sum of the results, and how many tasks have completed."""
        return [sum(self.values), self.counts["completed"]]


class Later(Extension):
    """Return what `vis` is, as a coroutine."""

    category: ClassVar[str] = "analysis"

    async def run(self, vis: Any) -> str:
        """Return the text of `vis`."""
        return str(vis)


class Flaky(Extension):
    """Fail at the first attempts."""

    category: ClassVar[str] = "modifiers"
    policy: ClassVar[JobPolicy] = JobPolicy(
        max_attempts=3, retry_on=(RetryOn.ERROR,), backoff=Backoff(base_seconds=600, factor=1)
    )
    failures: int = 1
    is_final: bool = False

    def run(self, vis: Any, *, task: TaskContext) -> int:
        """Return the number of the attempt."""
        if self.is_final:
            raise NonRetryable("no use")
        if task.attempt <= self.failures:
            raise ValueError(f"attempt {task.attempt} fails")
        return task.attempt


class Report(Extension):
    """Return a file."""

    category: ClassVar[str] = "analysis"
    text: str

    def run(self, vis: Any) -> Path:
        """Write the text to a file in the folder `vis`."""
        path: Path = vis / "report.txt"
        path.write_text(self.text)
        return path


class Length(Extension):
    """Return how long a value is."""

    category: ClassVar[str] = "analysis"
    value: Any

    def run(self, vis: Any) -> list[Any]:
        """Return the class of the value and its length."""
        return [type(self.value).__name__, len(self.value)]
