"""The command demo."""

import signal
from typing import Annotated

import typer

from zndraw_joblib.cli.client import Access, open_connection
from zndraw_joblib.cli.errors import CommandError
from zndraw_joblib.cli.logs import LogConfig
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.rest import RestApi

Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=100, hidden=True, help="The number of modules.")
]


def demo(*, limit: Limit = None) -> None:
    """Run a server and four workers on real tasks.

    Each task counts one module of the Python standard library. The demo kills one worker in the middle.
    """
    from zndraw_joblib.demo.jobs import stdlib_modules  # noqa: PLC0415 - only this command needs the demo
    from zndraw_joblib.demo.output import Output  # noqa: PLC0415
    from zndraw_joblib.demo.processes import DemoFailed, DemoProcesses  # noqa: PLC0415
    from zndraw_joblib.demo.scenario import Scenario  # noqa: PLC0415

    LogConfig().apply()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    modules, output = stdlib_modules(limit), Output()
    output.print_plan(len(modules))
    try:
        with DemoProcesses() as processes:
            access = Access(processes.url, processes.token, "the demo")
            with open_connection(access) as api:
                summary = Scenario(processes, JobClient(RestApi(api)), modules, output).run()
    except DemoFailed as error:
        raise CommandError(str(error)) from error
    output.print_summary(summary)
    if problems := summary.problems():
        raise CommandError("The demo found a problem: " + "; ".join(problems))
    output.print_success()
