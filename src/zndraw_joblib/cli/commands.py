"""All commands, in the order of the help."""

from importlib.metadata import version
from typing import Annotated

import typer

from zndraw_joblib.cli import doctor, jobs, operators, submit, tasks, top, worker
from zndraw_joblib.cli.options import show_help_without_command
from zndraw_joblib.cli.server import commands as server


def _print_version(*, is_set: bool) -> None:
    if is_set:
        typer.echo(f"zndraw-joblib {version('zndraw-joblib')}")
        raise typer.Exit


app = typer.Typer(
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def describe(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A job queue with an HTTP API: run a server, run workers, submit tasks."""
    show_help_without_command(context)


for command in (
    server.serve,
    worker.worker,
    server.internal_worker,
    worker.share,
    submit.submit,
    jobs.jobs,
    worker.workers,
    tasks.task,
    tasks.explain,
    tasks.cancel,
    tasks.retry,
    tasks.release,
    tasks.fail,
    jobs.pause,
    jobs.resume,
    worker.drain,
    tasks.sweeper,
    top.top,
    doctor.doctor,
    *operators.COMMANDS,
):
    app.command()(command)
app.add_typer(tasks.app, name="tasks")
app.add_typer(server.token, name="token")
app.add_typer(server.db, name="db")
