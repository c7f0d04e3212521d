"""Command line for operators, worker authors and submitters. Importing it loads no server library."""

import os
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from zndraw_joblib.cli import doctor, jobs, operators, submit, tasks, top, worker
from zndraw_joblib.cli.display import TyperException, print_error
from zndraw_joblib.cli.options import show_help_without_command
from zndraw_joblib.cli.server import commands as server_commands

NAME = "zndraw-joblib"


def _print_version(*, is_set: bool) -> None:
    if is_set:
        typer.echo(f"zndraw-joblib {version('zndraw-joblib')}")
        raise typer.Exit


# All commands, in the order of the help.
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
    server_commands.serve,
    worker.worker,
    server_commands.internal_worker,
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
app.add_typer(server_commands.token, name="token")
app.add_typer(server_commands.db, name="db")


def main() -> NoReturn:
    """Run the command in `sys.argv` and exit.

    The exit code is 0 for success, 2 for wrong usage, 130 for Ctrl-C, and 1 for any other failure. A failure
    prints one line to standard error.
    """
    try:
        code = app(prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe; without this, flushing the rest of the buffer at exit raises again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except TyperException as error:
        print_error(_message(error))
        code = error.exit_code
    sys.exit(code)


def _message(error: TyperException) -> str:
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    if getattr(error, "option_name", None) == "--token":
        fault = message.split(" (")[0].rstrip(".")
        return f"{fault}. Set ZNDRAW_JOBLIB_TOKEN, which other users of the machine cannot read"
    context = getattr(error, "ctx", None)  # typer's own errors have the command that was misused
    if context is None:
        return message
    return f"{message}{'' if message.endswith('?') else '.'} See '{context.command_path} --help'"
