"""Command line for operators, worker authors and submitters. A command loads its module when it is used."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

NAME = "zndraw-joblib"
# All commands in the order of the help: the function, or the group of commands, and the text of the help.
COMMANDS = {
    "serve": ("server.commands:serve", "Run a server until Ctrl-C."),
    "worker": ("worker:worker", "Run a worker for the extensions of a module or .py file."),
    "internal-worker": (
        "server.commands:internal_worker",
        "Run the internal tasks of servers that use Redis.",
    ),
    "scale": ("scale:app", "Start workers while tasks wait, and let them leave."),
    "share": ("worker:share", "Let a room list and read a folder until Ctrl-C."),
    "submit": ("submit:submit", "Submit a task, and print its id."),
    "jobs": ("jobs:jobs", "List jobs, or show a job's parameters and policy."),
    "demand": ("scale:demand", "Show how many slots of workers the tasks need."),
    "workers": ("worker:workers", "List workers, newest first, or show one with its tasks."),
    "task": ("tasks:task", "Show or follow a task, or print its history, log or result."),
    "group": ("groups:group", "Show or follow a group of tasks."),
    "groups": ("groups:groups", "List groups of tasks, newest first."),
    "explain": ("tasks:explain", "Explain a task's status, most important reason first."),
    "cancel": ("tasks:cancel", "Cancel tasks that have not ended."),
    "retry": ("tasks:retry", "Queue failed or cancelled tasks again."),
    "run-now": ("tasks:run_now", "Queue tasks before their time, or the next attempt's."),
    "release": ("tasks:release", "Take tasks from their workers and queue them again."),
    "fail": ("tasks:fail", "End a task as failed, without a retry."),
    "register": ("jobs:register", "Register a job without a worker, or change one."),
    "forget": ("jobs:forget", "Forget a job without workers and pending tasks."),
    "pause": ("jobs:pause", "Stop handing out the tasks of a job, a room or all rooms."),
    "resume": ("jobs:resume", "Hand out the tasks of a paused job, room or queue again."),
    "pauses": ("jobs:pauses", "List what is paused: the whole queue, rooms and jobs."),
    "drain": ("worker:drain", "Let a worker finish its tasks, claim no more, and leave."),
    "sweeper": ("tasks:sweeper", "Show the sweeper's state, or change it with --mode."),
    "top": ("top:top", "Show queue, failures, tasks, jobs, workers until Ctrl-C."),
    "doctor": ("doctor:doctor", "Check a server, its database and this machine."),
    "audit": ("operators:audit", "List what operators did, newest first."),
    "config": ("operators:config", "List the settings in force, or explain one."),
    "retention": ("operators:retention", "Show how long ended tasks are kept, or try other times."),
    "limits": ("limits:app", "List the limits that jobs share, or change one."),
    "schedules": ("schedules:app", "List the schedules of a room, or change one."),
    "webhooks": ("webhooks:app", "List the webhooks of a room, or change one."),
    "tasks": ("task_files:app", "List tasks, newest first, or change several."),
    "mcp": ("mcp:mcp", "Offer the queue to agents, on standard input and output."),
    "token": ("server.commands:token", "Create, list, change and revoke the tokens of a server."),
    "db": ("server.commands:db", "Upgrade, copy or check the database."),
}


class Commands(TyperGroup):
    """All commands. The help needs no more than their texts; a command that is named is loaded."""

    def __init__(self, **options: Any) -> None:
        commands = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        super().__init__(**{**options, "commands": commands})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command that the arguments begin with, the loaded command, and the rest."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(str(command.name)), rest


def all_commands() -> Any:
    """Return the group of all commands with every command loaded: `commands` then have their parameters."""
    group: Any = get_command(app)
    group.commands = {name: load(name) for name in COMMANDS}
    return group


def show_help_without_command(context: typer.Context) -> None:
    """Print the help of a command group if no command follows its name."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def load(name: str) -> Any:
    """Import the module of a command, and return the command."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"{__name__}.{module}"), attribute)
    group = typer.Typer(callback=show_help_without_command, rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        group.add_typer(command, name=name)
    else:
        group.command(name)(command)
    loaded: Any = get_command(group)
    return loaded.commands[name]


def _print_version(*, is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version  # noqa: PLC0415 - it takes longer than the help

        typer.echo(f"zndraw-joblib {version('zndraw-joblib')}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
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
    except Exception as error:
        from zndraw_joblib.cli import display  # noqa: PLC0415 - only for an error

        if not isinstance(error, display.TyperException):
            raise
        display.print_error(_message(error))
        code = error.exit_code
    sys.exit(code)


def _message(error: Any) -> str:
    message: str = error.format_message().replace("Value error, ", "").rstrip(".")
    if getattr(error, "option_name", None) == "--token":
        fault = message.split(" (", maxsplit=1)[0].rstrip(".")
        return f"{fault}. Set ZNDRAW_JOBLIB_TOKEN, which other users of the machine cannot read"
    context = getattr(error, "ctx", None)  # typer's own errors have the command that was misused
    if context is None:
        return message
    return f"{message}{'' if message.endswith('?') else '.'} See '{context.command_path} --help'"
