"""The command top: a live view of the queue, its findings, jobs and workers, in the size of a terminal."""

import sys
import textwrap
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import format_duration, local_time, print_json
from zndraw_joblib.cli.jobs import JOBS
from zndraw_joblib.cli.options import AsJson, Url
from zndraw_joblib.cli.worker import WORKERS
from zndraw_joblib.client.connection import DEFAULT_URL
from zndraw_joblib.client.retry import describe, is_unreachable
from zndraw_joblib.jobs.logs import one_line
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.operators import MINUTE, Interval, JobEntry, Overview, Severity, WorkerSummary

_BARS = "▁▂▃▄▅▆▇█"
_MINUTES = 60
_MAX_FINDINGS = 5
# With a height, findings take at most this part of it; the first one is always whole.
_PART_OF_FINDINGS = 3
# Of a table: the line above, the header, the line below it, and the line that counts the other rows.
_TABLE_LINES = 4
_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}


class View(NamedTuple):
    """What is shown, and when it was read; `problem` says why nothing newer could be read."""

    url: str
    read_at: datetime
    overview: Overview
    jobs: Sequence[JobEntry]
    workers: Sequence[WorkerSummary]
    problem: str = ""


def render(view: View, width: int, height: int | None) -> RenderableType:
    """Return the view for a terminal; with a `height`, tables have as many rows as fit."""
    room = None if height is None else height // _PART_OF_FINDINGS
    lines = [_title(view), *_findings(view.overview, width, room), *_totals(view.overview)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    job_rows, worker_rows = len(view.jobs), len(view.workers)
    if height is not None:
        rows = max(2, height - len(lines) - 2 * _TABLE_LINES)
        job_rows = min(job_rows, rows - min(worker_rows, rows // 2))
        worker_rows = min(worker_rows, rows - job_rows)
    jobs = sorted(view.jobs, key=_load, reverse=True)[:job_rows]
    workers = sorted(view.workers, key=lambda worker: worker.held or 0, reverse=True)[:worker_rows]
    all_jobs = max(view.overview.jobs, len(view.jobs))
    all_workers = max(sum(view.overview.workers.values()), len(view.workers))
    styles = ["yellow" if job.paused or (job.queued and not job.workers) else "" for job in jobs]
    return Group(
        *lines,
        *_section(JOBS.build(jobs, width, styles), all_jobs, "job"),
        *_section(WORKERS.build(workers, width), all_workers, "worker"),
    )


def _section(table: Table, count: int, noun: str) -> list[RenderableType]:
    """Return an empty line, a table, and how many of `count` rows it does not show."""
    table.show_edge = False
    more = count - table.row_count
    return [Text(), table, Text(f"  and {_plural(more, f'more {noun}')}" if more else "", "dim")]


def sparkline(intervals: Sequence[Interval], at: datetime) -> str:
    """Return one letter for each of the last 60 minutes: how many tasks ended in it."""
    ended = [0] * _MINUTES
    for interval in intervals:
        ago = int((at - interval.start).total_seconds() // MINUTE)
        if 0 <= ago < _MINUTES:
            ended[_MINUTES - 1 - ago] = interval.completed + interval.failed + interval.cancelled
    highest = max(ended)
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // highest)] if highest else _BARS[0] for count in ended)


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
    servers, paused = _plural(len(overview.servers), "server"), _plural(overview.paused_jobs, "job")
    return [
        Text(f"Waiting {overview.queued:,}{waits}; scheduled {overview.scheduled:,}"),
        Text(f"Running {counts.running:,}{ahead}; {slots_in_use:,} of {overview.slots:,} slots in use"),
        Text(f"Ended   {counts.completed:,} completed, {counts.failed:,} failed; {_rate(overview)}"),
        Text(f"Workers {workers}; {servers}; {paused} paused"),
        Text(f"Hour    {sparkline(overview.recent, overview.at)}"),
    ]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _rate(overview: Overview) -> str:
    """Return how many tasks ended in the last minutes."""
    since = overview.at - timedelta(minutes=15)
    recent = [minute for minute in overview.recent if minute.start >= since]
    completed, failed = sum(minute.completed for minute in recent), sum(minute.failed for minute in recent)
    return f"in 15 minutes {completed:,} and {failed:,}"


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
    return [*lines, Text(f"  and {_plural(more, 'more finding')}", "dim")] if more else lines


Seconds = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0.5, max=3600, help="The time between updates.")
]
_MAX_JOBS, _MAX_WORKERS = 1000, 200


def top(*, interval: Seconds = 2.0, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the queue, its jobs and workers until Ctrl-C.

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
    workers = client.workers(limit=_MAX_WORKERS)
    return View(url, datetime.now(UTC), overview, client.all_job_entries(_MAX_JOBS), workers.items)


def _read_again(client: AdminClient, url: str, before: View) -> View:
    """Return the new state, or the one before with the reason while the server does not answer."""
    try:
        return _read(client, url)
    except Exception as error:
        if not is_unreachable(error):
            raise
        return before._replace(problem=describe(error))
