"""A bar that shows how far tasks are: in a notebook, or on the standard error of a terminal."""

import sys
from html import escape
from importlib import import_module
from typing import Any, ClassVar, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.terminal import one_line

_MAX_TEXT = 200


class Bar:
    """A progress bar, a context manager. Without `shown`, and where no user can see it, it does nothing."""

    SECONDS: ClassVar[float] = 1.0

    def __init__(self, *, shown: bool) -> None:
        self._notebook = _NotebookBar() if shown and _is_notebook() else None
        self._progress: Progress | None = None
        if shown and self._notebook is None:
            console = Console(stderr=True)
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            hidden = not console.is_terminal
            self._progress = Progress(*columns, console=console, transient=True, disable=hidden)
            self._progress.add_task("", total=None)

    def show(self, text: str, done: float, total: float | None) -> None:
        """Show that `done` of `total` are done; an unknown total is None."""
        text = one_line(text[:_MAX_TEXT])
        if self._notebook is not None:
            self._notebook.show(text, done, total)
        elif self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=text, completed=done, total=total)

    def show_task(self, task: TaskResponse) -> None:
        """Show the status and the progress of a task."""
        progress = task.progress
        message = f"{task.status}: {progress.message}" if progress and progress.message else str(task.status)
        done, total = (progress.current, progress.total) if progress else (None, None)
        self.show(message, done or 0, total)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


class _NotebookBar:
    """A bar of HTML below the cell, which is replaced; it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, done: float, total: float | None) -> None:
        ipython: Any = import_module("IPython.display")  # only notebooks have it
        limits = f'value="{done:g}" max="{total:g}"' if total else ""
        count = f" {done:g}/{total:g}" if total else ""
        html = ipython.HTML(f"<progress {limits}></progress>{count} {escape(text)}")
        if self._handle is None:
            self._handle = ipython.display(html, display_id=True)
        else:
            self._handle.update(html)


def _is_notebook() -> bool:
    """Return whether this is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None
