"""The command top: a live view of the queue, its jobs and its workers."""

import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from zndraw_joblib.cli.client import AdminClient, open_client
from zndraw_joblib.cli.display import print_json
from zndraw_joblib.cli.options import AsJson, Url
from zndraw_joblib.cli.top_view import View, render
from zndraw_joblib.client.api import DEFAULT_URL
from zndraw_joblib.client.retry import describe, is_unreachable

Interval = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0.5, max=3600, help="The time between updates.")
]
_MAX_JOBS, _MAX_WORKERS = 1000, 200


def top(*, interval: Interval = 2.0, as_json: AsJson = False, url: Url = DEFAULT_URL) -> None:
    """Show the queue, its jobs and workers until Ctrl-C.

    Without a terminal, print it once. With --json, print the overview of the queue once.
    """
    with open_client(url) as client:
        if as_json:
            print_json(client.overview())
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
    overview = client.overview()
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
