"""What the demo shows."""

import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from zndraw_joblib.cli.demo.modules import folder
from zndraw_joblib.cli.demo.outcome import Kill, Outcome
from zndraw_joblib.cli.demo.stage import INTERVAL_SECONDS, TIMEOUT_SECONDS, WORKERS
from zndraw_joblib.cli.display import console, span
from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.status import TaskStatus

_COUNTS = ("lines", "functions", "classes", "branches", "docstrings")
_LARGEST = 10


class Report:
    """Prints to standard output."""

    def __init__(self) -> None:
        self._console = console()
        self._progress = Progress(
            TextColumn("counting"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )

    def announce(self, modules: int) -> None:
        """Say what is going to happen."""
        self._console.print(
            f"A server on a fresh SQLite file, {WORKERS} worker processes, "
            f"and a task for each of {modules:,} modules of Python {sys.version.split()[0]}, in {folder()}.\n"
        )

    @contextmanager
    def progress(self, total: int) -> Iterator[None]:
        """Show a bar meanwhile."""
        self._bar = self._progress.add_task("", total=total)
        with self._progress:
            yield

    def show_progress(self, ended: int) -> None:
        """Move the bar."""
        self._progress.update(self._bar, completed=ended)

    def tell_kill(self, kill: Kill) -> None:
        """Say who was killed."""
        self._console.print(
            f"SIGKILL to the worker with pid {kill.pid}, while it counts {kill.task.payload['path']}. "
            f"{TIMEOUT_SECONDS:g} s of silence count as death; the server looks every {INTERVAL_SECONDS:g} s."
        )

    def tell_death(self, task: TaskResponse, kill: Kill) -> None:
        """Say what became of the task."""
        after = span(task.completed_at - kill.at) if task.completed_at else "?"
        self._console.print(f"{after} later its task {task.status}: {task.error!r}. The others went on.")

    def show(self, outcome: Outcome) -> None:
        """Show what came of it all."""
        completed, waits = len(outcome.completed), outcome.pick_ups
        lines = {
            "submitted": f"{len(outcome.submitted):,} tasks",
            "completed": f"{completed:,} in {outcome.seconds:.1f} s, "
            f"{completed / outcome.seconds:,.0f} tasks per second",
            "failed": f"{outcome.count(TaskStatus.FAILED):,}: {len(outcome.lost)} with the killed worker, "
            f"{len(outcome.unreadable)} modules that are not valid Python",
            "cancelled": f"{outcome.count(TaskStatus.CANCELLED):,}",
            "pick-up": f"p50 {_quantile(waits, 50)}, p95 {_quantile(waits, 95)}, "
            f"of {len(waits)} single tasks by idle workers",
        }
        self._console.print(_largest(outcome))
        for name, text in lines.items():
            self._console.print(f"{name:<10} {text}")

    def confirm(self) -> None:
        """Say that nothing is missing."""
        self._console.print("Every task is accounted for.")


def _largest(outcome: Outcome) -> Table:
    table = Table(title="The ten largest modules", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("module")
    for name in _COUNTS:
        table.add_column(name, justify="right")
    by_lines = sorted(outcome.completed, key=lambda task: task.result["lines"], reverse=True)
    for task in by_lines[:_LARGEST]:
        table.add_row(task.payload["path"], *(f"{task.result[name]:,}" for name in _COUNTS))
    return table


def _quantile(waits: list[timedelta], percent: int) -> str:
    seconds = statistics.quantiles([wait.total_seconds() for wait in waits], n=100, method="inclusive")
    return f"{seconds[percent - 1] * 1000:.1f} ms"
