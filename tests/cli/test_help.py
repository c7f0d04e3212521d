"""The help texts fit into a terminal of 80 columns."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from zndraw_joblib.cli import app


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Return a command and its subcommands with their full names."""
    yield name, command
    for child in getattr(command, "commands", {}).values():
        yield from commands(child, f"{name} {child.name}")


COMMANDS = dict(commands(typer.main.get_command(app), "zndraw-joblib"))


def test_help_fits_into_80_columns(subtests: pytest.Subtests) -> None:
    """No line is longer, and no summary of a command is cut off with "..."."""
    assert len(COMMANDS) > 30
    for name, command in COMMANDS.items():
        text = command.get_help(typer.Context(command, info_name=name, terminal_width=80))
        _, _, summaries = text.partition("\nCommands:\n")
        with subtests.test(name):
            assert max(map(len, text.splitlines())) <= 80
            assert "..." not in summaries
