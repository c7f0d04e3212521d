"""All commands, in the order of the help."""

from importlib.metadata import version
from typing import Annotated

import typer

from zndraw_joblib.cli import calling, demo, listing, mending, operating, working
from zndraw_joblib.cli.options import show_help_if_bare


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"zndraw-joblib {version('zndraw-joblib')}")
        raise typer.Exit


app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def describe(
    context: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A job queue with an HTTP face: serve it, work for it, call its jobs."""
    show_help_if_bare(context)


for command in (
    operating.serve,
    working.worker,
    operating.internal_worker,
    working.share,
    calling.submit,
    listing.tasks,
    listing.jobs,
    listing.workers,
    calling.task,
    calling.explain,
    calling.cancel,
    mending.retry,
    mending.release,
    mending.fail,
    mending.pause,
    mending.resume,
    mending.drain,
    mending.sweeper,
    demo.demo,
):
    app.command()(command)
app.add_typer(operating.token, name="token")
app.add_typer(operating.db, name="db")
