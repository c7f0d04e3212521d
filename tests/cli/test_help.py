"""The help texts fit into a terminal of 80 columns."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from zndraw_joblib.cli import COMMANDS as TABLE
from zndraw_joblib.cli import all_commands


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Return a command and its subcommands with their full names."""
    yield name, command
    for child in getattr(command, "commands", {}).values():
        yield from commands(child, f"{name} {child.name}")


COMMANDS = dict(commands(all_commands(), "zndraw-joblib"))


def test_help_fits_into_80_columns(subtests: pytest.Subtests) -> None:
    """No line is longer, and no summary of a command is cut off with "..."."""
    assert len(COMMANDS) > 30
    for name, command in COMMANDS.items():
        text = command.get_help(typer.Context(command, info_name=name, terminal_width=80))
        _, _, summaries = text.partition("\nCommands:\n")
        with subtests.test(name):
            assert max(map(len, text.splitlines())) <= 80
            assert "..." not in summaries


def test_the_table_of_commands_has_their_summaries() -> None:
    """The help of the program, which loads no command, has the first line of each command's help."""
    summaries = {name: COMMANDS[f"zndraw-joblib {name}"].help.splitlines()[0] for name in TABLE}
    assert summaries == {name: text for name, (_, text) in TABLE.items()}
