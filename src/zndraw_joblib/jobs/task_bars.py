"""Bars of tqdm that report the progress of a task. Needs tqdm."""

import sys
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]


class TaskBar(tqdm):  # type: ignore[misc]
    """A bar of tqdm, shown in the worker's terminal and not in the task's log, that reports progress."""

    def __init__(self, task: Any, iterable: Any = None, **options: Any) -> None:
        self._task = task
        if options.get("file") is None:
            options["file"] = getattr(sys.stderr, "uncaptured", sys.stderr)
        super().__init__(iterable, **options)
        self._report()

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Report the progress too whenever the bar is drawn."""
        self._report()
        return super().display(msg, pos)

    def close(self) -> None:
        """Report the final value too."""
        self._report()
        super().close()

    def _report(self) -> None:
        # A disabled bar counts nothing.
        if not self.disable:
            label = (self.desc or "").removesuffix(": ") or None
            self._task.progress(self.n, self.total, unit=self.unit.strip(), message=label)
