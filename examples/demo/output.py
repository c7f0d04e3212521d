"""The output of the demo."""

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import humanize
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.jobs import stdlib_folder
from examples.demo.processes import SWEEPER_INTERVAL_SECONDS, WORKER_TIMEOUT_SECONDS, WORKERS
from examples.demo.summary import Kill, Summary
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TaskStatus

_COUNTS = ("lines", "functions", "classes", "branches", "docstrings")
_LARGEST = 10


class Output:
    """Prints each step of the demo to standard output."""

    def __init__(self) -> None:
        self._console = Console(markup=False, highlight=False, soft_wrap=True, emoji=False)
        self._progress = Progress(
            TextColumn("counting"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )

    def print_plan(self, modules: int) -> None:
        """Print what the demo is going to do."""
        self._console.print(
            f"Starting a server on a new SQLite file and {WORKERS} worker processes, and submitting one task "
            f"for each of {modules:,} modules of Python {sys.version.split()[0]} in {stdlib_folder()}.\n"
        )

    @contextmanager
    def progress(self, total: int) -> Iterator[None]:
        """Show a progress bar during the block."""
        self._bar = self._progress.add_task("", total=total)
        with self._progress:
            yield

    def show_progress(self, ended: int) -> None:
        """Update the progress bar."""
        self._progress.update(self._bar, completed=ended)

    def print_kill(self, kill: Kill) -> None:
        """Print which worker was killed."""
        self._console.print(
            f"Sent SIGKILL to the worker with pid {kill.pid}, which held the task for "
            f"{kill.task.payload['path']}. "
            f"The server removes a worker after {WORKER_TIMEOUT_SECONDS:g} s without a heartbeat, "
            f"and checks every {SWEEPER_INTERVAL_SECONDS:g} s."
        )

    def print_expiry(self, task: TaskResponse, kill: Kill) -> None:
        """Print how the task of the killed worker ended."""
        after = f"{(task.completed_at - kill.at).total_seconds():.1f} s" if task.completed_at else "some time"
        self._console.print(
            f"After {after} its task {task.status}: {task.error!r}. The other workers continue."
        )

    def print_summary(self, summary: Summary) -> None:
        """Print the results."""
        completed, latencies = len(summary.completed), summary.latencies
        lines = {
            "submitted": f"{len(summary.submitted):,} tasks",
            "completed": f"{completed:,} in {summary.seconds:.1f} s, "
            f"{completed / summary.seconds:,.0f} tasks per second",
            "CPU time": f"{summary.cpu_seconds:.1f} s for counting, "
            f"{summary.cpu_seconds / summary.seconds / (os.cpu_count() or 1):.0%} of {os.cpu_count()} cores",
            "slots": f"jobs' own time {summary.job_seconds / summary.slot_seconds:.0%} of the slots "
            f"({summary.job_seconds:.1f} of {summary.slot_seconds:.1f} s); the rest: queue and kill",
            "failed": f"{summary.count(TaskStatus.FAILED):,}: "
            f"{len(summary.disconnected)} with the killed worker, "
            f"{len(summary.invalid)} modules that are not valid Python",
            "cancelled": f"{summary.count(TaskStatus.CANCELLED):,}",
            "latency": f"p50 {_percentile(latencies, 50)}, p95 {_percentile(latencies, 95)} from submit to "
            f"start, for {len(latencies)} tasks one at a time",
        }
        self._console.print(_largest(summary))
        for name, text in lines.items():
            self._console.print(f"{name:<10} {text}")

    def print_success(self) -> None:
        """Print that no task is missing."""
        self._console.print("Every task is accounted for.")


def _largest(summary: Summary) -> Table:
    table = Table(title=f"The {_LARGEST} largest modules", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("module")
    for name in _COUNTS:
        table.add_column(name, justify="right")
    by_lines = sorted(summary.completed, key=lambda task: task.result["lines"], reverse=True)
    for task in by_lines[:_LARGEST]:
        table.add_row(task.payload["path"], *(f"{task.result[name]:,}" for name in _COUNTS))
    return table


def _percentile(latencies: list[timedelta], percent: int) -> str:
    seconds = statistics.quantiles([one.total_seconds() for one in latencies], n=100, method="inclusive")
    return humanize.metric(seconds[percent - 1], "s")
