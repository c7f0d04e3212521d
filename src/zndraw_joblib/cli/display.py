"""Output of the commands: tables on a terminal, tab-separated lines and JSON for programs."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import humanize
from pydantic import BaseModel
from pydantic_core import to_json
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

_MIN_WIDTH = 10


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text without interpreting markup."""
    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True, emoji=False)


def print_error(message: str) -> None:
    """Print why a command failed, in one line on standard error."""
    if message.strip():
        console(stderr=True).print(Text("Error: ", "bold red") + Text(one_line(message)))


def print_note(message: str) -> None:
    """Print a message to standard error, which keeps standard output for the result."""
    console(stderr=True).print(message)


def one_line(text: str) -> str:
    """Return `text` without line breaks and terminal control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))


def print_json(value: BaseModel | Sequence[BaseModel] | Any) -> None:
    """Print indented JSON."""
    sys.stdout.write(to_json(value, indent=2).decode() + "\n")


def print_rows(
    rows: Sequence[Row], columns: Sequence[str], *, wide: Sequence[str], caption: str = ""
) -> None:
    """Print a table on a terminal, else a header and tab-separated lines.

    On a narrow terminal the `wide` columns are truncated, the last one first.
    """
    is_plain = not sys.stdout.isatty()
    cells = [columns, *([_cell(row[name], plain=is_plain) for name in columns] for row in rows)]
    if is_plain:
        sys.stdout.writelines("\t".join(line) + "\n" for line in cells)
        return
    terminal = Console(markup=False, highlight=False)
    needed = dict(zip(columns, map(_width, zip(*cells, strict=True)), strict=True))
    widths = _fit(needed, wide, terminal.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in widths:
        table.add_column(name, no_wrap=True, overflow="ellipsis", width=widths[name])
    for line in cells[1:]:
        table.add_row(*(Text(cell) for name, cell in zip(columns, line, strict=True) if name in widths))
    terminal.print(table)
    if caption:
        terminal.print(caption, style="dim")


def _width(cells: Sequence[str]) -> int:
    return max(map(cell_len, cells))


def _fit(widths: dict[str, int], wide: Sequence[str], terminal: int) -> dict[str, int]:
    """Return column widths that fit the terminal; a column that would get too narrow is removed."""
    for name in reversed(wide):
        excess = sum(widths.values()) + 2 * len(widths) - terminal
        widths[name] -= max(0, excess)
        if widths[name] < _MIN_WIDTH and excess > 0:
            del widths[name]
    return widths


def print_fields(fields: Row) -> None:
    """Print the fields of one object, one per line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        if value is not None:
            sys.stdout.write(f"{name:<{width}}  {_cell(value, plain=False)}\n")


def _cell(value: Any, *, plain: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat() if plain else humanize.naturaltime(value, when=datetime.now(UTC))
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}" if plain else format_duration(value)
    if isinstance(value, float) and not plain:
        return f"{value:.1f}"
    return one_line(str(value))


def format_duration(duration: timedelta) -> str:
    """Return a duration like "350 ms", "2.45 s" or "3 minutes"."""
    seconds = duration.total_seconds()
    return humanize.metric(seconds, "s") if seconds < 60 else humanize.naturaldelta(duration)
