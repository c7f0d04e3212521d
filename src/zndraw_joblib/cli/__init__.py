"""Command line for operators, worker authors and submitters. Importing it loads no server library."""

import os
import sys
from typing import NoReturn

from zndraw_joblib.cli.commands import app
from zndraw_joblib.cli.display import TyperException, print_error

NAME = "zndraw-joblib"


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
