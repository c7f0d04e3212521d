"""The command line, for operators, worker authors and submitters. Importing it loads no server library."""

import os
import sys
from typing import NoReturn

import typer

from zndraw_joblib.cli.commands import app
from zndraw_joblib.cli.display import complain

NAME = "zndraw-joblib"


def main() -> NoReturn:
    """Run the command that `sys.argv` asks for; exit with 0, 2 for a wrong use, 130 for Ctrl-C, else 1.

    What cannot be done is said in one line on standard error.
    """
    try:
        code = app(prog_name=NAME, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except typer.TyperException as error:
        complain(_sentence(error))
        code = error.exit_code
    sys.exit(code)


def _sentence(error: typer.TyperException) -> str:
    message = error.format_message().replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    return f"{message.rstrip('.')}. See '{context.command_path} --help'." if context else message
