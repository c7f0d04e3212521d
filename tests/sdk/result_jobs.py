"""Jobs whose results are large, binary or unusual, for workers with processes too."""

import tempfile
from typing import Any, ClassVar

from zndraw_joblib.jobs.extensions import Category, Extension

SIZE = 3_000_000


class Make(Extension):
    """Return a result of a kind."""

    category: ClassVar[Category] = Category.MODIFIER
    kind: str

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return the result."""
        if self.kind == "large":
            return {"text": "x" * SIZE, "nan": b"\xff"}
        if self.kind == "open":
            file = tempfile.TemporaryFile()  # noqa: SIM115 - the worker closes it
            file.write(b"y" * SIZE)
            return file
        return b"z" * SIZE


class Anything(Extension):
    """A payload with any value."""

    category: ClassVar[Category] = Category.MODIFIER
    value: Any

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return the value."""
        return self.value

    def check(self) -> str:
        """Return the classes of the parts of the value."""
        return " ".join(type(self.value[name]).__name__ for name in "abn")


def expected(kind: str) -> Any:
    """Return what `JobManager.result` returns for a kind."""
    if kind == "large":
        return {"text": "x" * SIZE, "nan": b"\xff"}
    return {"open": b"y", "bytes": b"z"}[kind] * SIZE


def execute(task: Any) -> Any:
    """Run a task."""
    return task.extension.run(None)


async def execute_async(task: Any) -> Any:
    """Run a task in a coroutine."""
    return task.extension.run(None)
