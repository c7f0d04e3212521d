"""What the commands print: tables for people, tab-separated lines and JSON for programs."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

_LEAST_WIDTH = 10
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def console(*, stderr: bool = False) -> Console:
    """Return a console that takes text as it is."""
    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True, emoji=False)


def complain(message: str) -> None:
    """Say in one line on standard error why a command ends."""
    if message.strip():
        console(stderr=True).print(Text("Error: ", "bold red") + Text(one_line(message)))


def note(message: str) -> None:
    """Say something beside the result, on standard error."""
    console(stderr=True).print(message)


def one_line(text: str) -> str:
    """Return `text` without line breaks and without what could steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))


def show_json(value: BaseModel | Sequence[BaseModel] | Any) -> None:
    """Print JSON, indented."""
    sys.stdout.write(to_json(value, indent=2).decode() + "\n")


def show_rows(rows: Sequence[Row], columns: Sequence[str], *, wide: Sequence[str], caption: str = "") -> None:
    """Print a table on a terminal, else tab-separated lines below a header.

    The columns `wide` are cut where a terminal is too narrow, the last of them first.
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
    """Return the columns' widths, so that all fit into the terminal; what would get too narrow goes."""
    for name in reversed(wide):
        excess = sum(widths.values()) + 2 * len(widths) - terminal
        widths[name] -= max(0, excess)
        if widths[name] < _LEAST_WIDTH and excess > 0:
            del widths[name]
    return widths


def show_fields(fields: Row) -> None:
    """Print one thing, a field a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        if value is not None:
            sys.stdout.write(f"{name:<{width}}  {_cell(value, plain=False)}\n")


def _cell(value: Any, *, plain: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat() if plain else ago(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}" if plain else span(value)
    return one_line(str(value))


def ago(moment: datetime) -> str:
    """Return how long ago a moment was, or in what time it will be."""
    since = datetime.now(UTC) - moment
    return f"in {span(-since)}" if since < timedelta() else f"{span(since)} ago"


def span(duration: timedelta) -> str:
    """Return a duration in the unit that suits it."""
    seconds = duration.total_seconds()
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
