"""Errors that end a command."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    TyperException = typer.TyperException
else:
    # The base of typer's errors, which older versions take from another library and do not name.
    TyperException = next(
        kind for kind in reversed(typer.BadParameter.__mro__) if kind.__module__ != "builtins"
    )


class CommandError(TyperException):
    """A command failed. The message is one line for the user."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MissingOperation(CommandError):
    """The server is an older release, which does not have an operation."""


class UsageError(CommandError):
    """The arguments or settings are wrong; the same command fails every time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)
