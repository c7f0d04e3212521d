"""Log lines and progress bars on a terminal.

Commands import this module in the functions that use it: rich takes longer to load than many commands run.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from zndraw_joblib.cli.display import amount_text, console, format_duration, local_time
from zndraw_joblib.jobs.logs import clean_line, one_line
from zndraw_joblib.wire.history import NumberedLine
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.progress import LogLevel
from zndraw_joblib.wire.statuses import TaskStatus

_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 60
_STYLES = {LogLevel.WARNING: "yellow", LogLevel.ERROR: "red", LogLevel.CRITICAL: "bold red"}


def print_line(line: NumberedLine) -> None:
    """Print a log line on standard output."""
    console().print(_line_text(line))


def _line_text(line: NumberedLine) -> Text:
    """Return a log line for a terminal."""
    at = Text(f"{local_time(line.at):%H:%M:%S} ", "dim")
    return at + Text(clean_line(line.text), _STYLES.get(line.level, ""))


class FollowBar(Progress):
    """The last log lines of a task, and its status and progress below them; on a terminal only."""

    def __init__(self) -> None:
        self._lines: deque[Text] = deque(maxlen=_SHOWN_LINES)
        terminal = console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]}", markup=False),
        )
        super().__init__(
            *columns,
            TimeElapsedColumn(),
            console=terminal,
            transient=True,
            refresh_per_second=4,
            disable=not terminal.is_terminal,
            # Otherwise lines for a file or a pipe would go to the terminal.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._bar = self.add_task("", total=None, amount="")

    def show(self, task: TaskResponse, reason: str) -> None:
        """Show the state of a task, and why it waits."""
        progress, is_running = task.progress, task.status == TaskStatus.RUNNING
        message = (progress.message if progress else None) if is_running else _retry_text(task) or reason
        number = f", attempt {task.attempts}" if is_running and task.attempts > 1 else ""
        status = f"{task.status}{number}"
        if is_running and task.started_at is not None:
            # It shows how long the task runs, not how long it is followed.
            elapsed = (datetime.now(UTC) - task.started_at).total_seconds()
            bar = self.tasks[self._bar]
            bar.start_time = bar.get_time() - max(0.0, elapsed)
        self.update(
            self._bar,
            description=one_line(f"{status}: {message}" if message else status),
            completed=(progress.current if progress else None) or 0,
            total=progress.total if progress else None,
            amount=amount_text(progress) if progress else "",
        )

    def add(self, lines: Sequence[NumberedLine], _: int = 0) -> None:
        """Show log lines below the earlier ones."""
        self._lines.extend(_line_text(line) for line in lines[-_SHOWN_LINES:])

    def get_renderables(self) -> Iterator[RenderableType]:
        """Return what is shown: each log line in one line of the terminal."""
        for line in list(self._lines):
            shown = line.copy()
            shown.truncate(self.console.width, overflow="ellipsis")
            yield shown
        yield self.make_tasks_table(self.tasks)


def _retry_text(task: TaskResponse) -> str:
    """Return why the last attempt of a pending task failed, and when the next one begins."""
    if task.status != TaskStatus.PENDING or not task.attempts or not task.error:
        return ""
    seconds = (task.run_at - datetime.now(UTC)).total_seconds() if task.run_at else 0
    following = f"in {format_duration(timedelta(seconds=ceil(seconds)))}" if seconds > 0 else "soon"
    error = task.error if len(task.error) <= _SHOWN_CHARACTERS else f"{task.error[:_SHOWN_CHARACTERS]}…"
    return f"attempt {task.attempts} failed ({error}), the next one begins {following}"


def file_progress() -> Progress:
    """Return the progress of submitting a file, shown on a terminal only."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    terminal = console(stderr=True)
    # Otherwise ids for a file or a pipe would go to the terminal.
    is_shown = sys.stdout.isatty()
    return Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal, redirect_stdout=is_shown
    )
