"""The command demo: the real server and four worker processes, on real input, one of them killed."""

import signal
from typing import Annotated

import typer

from zndraw_joblib.cli import client, logs
from zndraw_joblib.cli.client import Client
from zndraw_joblib.cli.demo.modules import stdlib
from zndraw_joblib.cli.demo.play import Play
from zndraw_joblib.cli.demo.report import Report
from zndraw_joblib.cli.demo.stage import Stage
from zndraw_joblib.cli.refusal import Refusal
from zndraw_joblib.worker.rest import RestApi


def demo(
    *,
    limit: Annotated[
        int | None, typer.Option("--limit", min=100, hidden=True, help="So many modules.")
    ] = None,
) -> None:
    """Show a server and four workers at real work.

    They count the Python standard library, a task for every module; one is killed in the middle.
    """
    logs.set_up()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    modules, report = stdlib(limit), Report()
    report.announce(len(modules))
    with Stage() as stage, client.opened(stage.access) as api:
        outcome = Play(stage, Client(RestApi(api)), modules, report).run()
    report.show(outcome)
    faults = outcome.faults()
    if faults:
        raise Refusal("; ".join(faults))
    report.confirm()
