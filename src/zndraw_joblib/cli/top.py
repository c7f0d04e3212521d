"""The command top: a live view of the queue in the size of a terminal.

It has findings, totals, failures in groups, tasks that run, jobs and workers.
"""

import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import (
    ItemTable,
    MissingOperation,
    counted,
    format_duration,
    local_time,
    print_json,
)
from zndraw_joblib.cli.jobs import JOBS
from zndraw_joblib.cli.options import AsJson, Url
from zndraw_joblib.cli.task_output import progress_text
from zndraw_joblib.cli.tasks import FAILURES
from zndraw_joblib.cli.worker import WORKERS
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.client.retry import describe, is_unreachable
from zndraw_joblib.jobs.logs import one_line
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.names import short_name
from zndraw_joblib.wire.operators import (
    MINUTE,
    FailureGroups,
    FoundTask,
    Interval,
    JobEntry,
    Overview,
    Severity,
    TaskFilter,
    WorkerSummary,
)
from zndraw_joblib.wire.statuses import TaskStatus

_BARS = "▁▂▃▄▅▆▇█"
_MINUTES = 60
_MAX_FINDINGS = 5
# With a height, findings take at most this part of it; the first one is always whole.
_PART_OF_FINDINGS = 3
# Of a table: the line above, the header, the line below it, and the line that counts the other rows.
_TABLE_LINES = 4
# A table with one row.
_SECTION_LINES = _TABLE_LINES + 1
_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


_NO_FAILURES = FailureGroups(groups=[], count=0)


class View(NamedTuple):
    """What is shown, and when it was read; `problem` says why nothing newer could be read."""

    url: str
    read_at: datetime
    overview: Overview
    jobs: Sequence[JobEntry]
    workers: Sequence[WorkerSummary]
    problem: str = ""
    running: Sequence[FoundTask] = ()
    failures: FailureGroups = _NO_FAILURES


_RUNNING = ItemTable(
    {
        "running": "id",
        "job": lambda task: short_name(task.job_name),
        "room": "room_id",
        "progress": lambda task: progress_text(task.progress),
        "for": lambda task: task.started_at and max(datetime.now(UTC) - task.started_at, timedelta()),
        "worker": lambda task: task.worker_name or str(task.worker_id or "")[:8],
    },
    wide=["progress", "job", "worker"],
    ids=["running"],
    optional=["room"],
)
_FAILURES = replace(FAILURES.without("first").without("example"), wrapped=())


def render(view: View, width: int, height: int | None) -> RenderableType:
    """Return the view for a terminal; with a `height`, tables have as many rows as fit."""
    room = None if height is None else height // _PART_OF_FINDINGS
    lines = [_title(view), *_findings(view.overview, width, room), *_totals(view.overview)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    jobs = sorted(view.jobs, key=_load, reverse=True)
    workers = sorted(view.workers, key=lambda worker: worker.held or 0, reverse=True)
    sections = [
        _Section(JOBS, jobs, max(view.overview.jobs, len(jobs)), "job", _job_style),
        _Section(WORKERS, workers, max(sum(view.overview.workers.values()), len(workers)), "worker"),
    ]
    running = _Section(_RUNNING, view.running, max(view.overview.counts.running, len(view.running)), "task")
    groups = view.failures.groups
    failures = _Section(_FAILURES, groups, len(groups), "group", note=_part_of_failures(view))
    # Those that a small terminal has no room for come first in a larger one.
    for section in (failures, running):
        if section.items and (height is None or height - len(lines) >= _SECTION_LINES * (len(sections) + 1)):
            sections.insert(len(sections) - 2, section)
    rows = [len(section.items) for section in sections]
    if height is not None:
        rows = _fitting(rows, height - len(lines) - _TABLE_LINES * len(sections))
    parts = zip(sections, rows, strict=True)
    return Group(*lines, *(part for section, size in parts for part in section.render(size, width)))


def _part_of_failures(view: View) -> str:
    """Return which failed tasks the groups count, if older ones are not among them."""
    if view.failures.is_complete:
        return ""
    total = max(view.overview.counts.failed, view.failures.count)
    return f"counts of the newest {view.failures.count:,} of {total:,} failed tasks"


def _fitting(sizes: Sequence[int], room: int) -> list[int]:
    """Return how many rows each table has in a number of lines: one each in turn, and at least one."""
    rows = [min(1, size) for size in sizes]
    while sum(rows) < room and rows != list(sizes):
        for number, size in enumerate(sizes):
            rows[number] += rows[number] < size and sum(rows) < room
    return rows


class _Section(NamedTuple):
    """A table of the first ones of `items`, and how many of all it does not show."""

    table: ItemTable
    items: Sequence[Any]
    total: int
    noun: str
    style: Callable[[Any], str] = lambda _: ""
    note: str = ""

    def render(self, rows: int, width: int) -> list[RenderableType]:
        """Return an empty line, the table, and a line for the other items."""
        items = self.items[:rows]
        table = self.table.build(items, width, [self.style(item) for item in items])
        table.show_edge = False
        more = self.total - len(items)
        parts = [f"and {counted(more, f'more {self.noun}')}" if more else "", self.note]
        last = Text("  " + "; ".join(filter(None, parts)) if any(parts) else "", "dim")
        last.truncate(width, overflow="ellipsis")
        return [Text(), table, last]


def sparkline(intervals: Sequence[Interval], at: datetime) -> str:
    """Return one letter for each of the last 60 minutes: how many tasks ended in it."""
    ended = [0] * _MINUTES
    for interval in intervals:
        ago = int((at - interval.start).total_seconds() // MINUTE)
        if 0 <= ago < _MINUTES:
            ended[_MINUTES - 1 - ago] = interval.completed + interval.failed + interval.cancelled
    highest = max(ended)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // highest)] if highest else _BARS[0] for count in ended)


def _job_style(job: JobEntry) -> str:
    return "yellow" if job.paused or (job.queued and not job.workers) else ""


def _load(job: JobEntry) -> tuple[int, int]:
    return job.queued + job.counts.claimed + job.counts.running, job.counts.failed


def _title(view: View) -> Text:
    problem = f"  no newer state: {one_line(view.problem)}" if view.problem else ""
    return Text.assemble((f"{view.url}  {local_time(view.read_at):%H:%M:%S}", "bold"), (problem, "bold red"))


def _totals(overview: Overview) -> list[Text]:
    counts, oldest = overview.counts, overview.oldest_waiting_at
    waits = f", the oldest for {format_duration(overview.at - oldest)}" if oldest else ""
    workers = ", ".join(f"{count:,} {state}" for state, count in overview.workers.items()) or "none"
    slots_in_use = min(counts.running, overview.slots) if overview.slots_used is None else overview.slots_used
    ahead = f", claimed ahead {counts.claimed:,}" if counts.claimed else ""
    servers, paused = counted(len(overview.servers), "server"), counted(overview.paused_jobs, "job")
    return [
        Text(f"Waiting {overview.queued:,}{waits}; scheduled {overview.scheduled:,}"),
        Text(f"Running {counts.running:,}{ahead}; {slots_in_use:,} of {overview.slots:,} slots in use"),
        Text(f"Tasks   {counts.completed:,} completed, {counts.failed:,} failed; {_ends(overview)}"),
        Text(f"Workers {workers}; {servers}; {paused} paused"),
        Text(f"Hour    {sparkline(overview.recent, overview.at)}"),
    ]


def _ends(overview: Overview) -> str:
    """Return how many ends of tasks there were in the last minutes; one that is retried ends again."""
    since = overview.at - timedelta(minutes=15)
    recent = [minute for minute in overview.recent if minute.start >= since]
    completed, failed = sum(minute.completed for minute in recent), sum(minute.failed for minute in recent)
    return f"ends in 15 min {completed:,} and {failed:,}"


def _findings(overview: Overview, width: int, room: int | None) -> list[Text]:
    """Return the most important findings, wrapped; with a `room`, as many as fit into `room` lines."""
    lines: list[Text] = []
    shown = 0
    for finding in overview.findings[:_MAX_FINDINGS]:
        text = f"! {one_line(finding.detail)} → {one_line(finding.remedy)}"
        wrapped = textwrap.wrap(text, width, subsequent_indent="  ")
        # The last line of the room counts the findings that are not shown.
        if shown and room is not None and len(lines) + len(wrapped) >= room:
            break
        lines += (Text(line, _STYLES[finding.severity]) for line in wrapped)
        shown += 1
    more = len(overview.findings) - shown
    return [*lines, Text(f"  and {counted(more, 'more finding')}", "dim")] if more else lines


Seconds = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0.5, max=3600, help="The time between updates.")
]
_MAX_JOBS, _MAX_WORKERS, _MAX_RUNNING = 1000, 200, 50


def top(*, interval: Seconds = 2.0, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show queue, failures, tasks, jobs, workers until Ctrl-C.

    Without a terminal, print it once. With --json, print the overview of the queue once.
    """
    with open_client(url) as client:
        if as_json:
            print_json(client.read(ops.GET_OVERVIEW, "the overview"))
        elif not sys.stdout.isatty():
            terminal = Console(markup=False, highlight=False)
            terminal.print(render(_read(client, url), terminal.width, None))
        else:
            _live(client, url, interval)


def _live(client: AdminClient, url: str, interval: float) -> None:
    """Show the view until Ctrl-C, which ends the command with exit code 0."""
    terminal = Console(markup=False, highlight=False)
    view = _read(client, url)
    try:
        with Live(console=terminal, screen=True, auto_refresh=False) as live:
            while True:
                live.update(render(view, terminal.width, terminal.height), refresh=True)
                time.sleep(interval)
                view = _read_again(client, url, view)
    except KeyboardInterrupt:
        return


def _read(client: AdminClient, url: str) -> View:
    overview = client.read(ops.GET_OVERVIEW, "the overview")
    workers, jobs = client.workers(limit=_MAX_WORKERS).items, client.all_job_entries(_MAX_JOBS)
    running: Sequence[FoundTask] = ()
    groups = _NO_FAILURES
    if overview.counts.running:
        running, _ = client.search(TaskFilter(status=[TaskStatus.RUNNING]), _MAX_RUNNING)
    if overview.counts.failed:
        with suppress(MissingOperation):
            groups = client.failures(TaskFilter())
    return View(url, datetime.now(UTC), overview, jobs, workers, running=running, failures=groups)


def _read_again(client: AdminClient, url: str, before: View) -> View:
    """Return the new state, or the one before with the reason while the server does not answer."""
    try:
        return _read(client, url)
    except Exception as error:
        if not is_unreachable(error):
            raise
        return before._replace(problem=describe(error))
