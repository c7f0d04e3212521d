"""Output of the commands: tables on a terminal, tab-separated lines and JSON for programs."""

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import humanize
from pydantic import BaseModel
from pydantic_core import to_json
from rich.console import Console
from rich.text import Text

from zndraw_joblib.cli.table import Layout, build_table
from zndraw_joblib.contract.logs import LogFormat, applied_config
from zndraw_joblib.contract.terminal import clean_text, escape_json, one_line

log = logging.getLogger(__name__)
Row = Mapping[str, Any]

_PLAIN = Layout()


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text without interpreting markup."""
    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=True, emoji=False)


def print_error(message: str) -> None:
    """Print why a command failed, in one line on standard error."""
    if logs_json():
        log.error("%s", one_line(message))
    elif message.strip():
        console(stderr=True).print(Text("Error: ", "bold red") + Text(one_line(message)))


def print_note(message: str) -> None:
    """Print a message to standard error, which keeps standard output for the result."""
    if logs_json():
        log.info("%s", message)
    else:
        console(stderr=True).print(clean_text(message))


def logs_json() -> bool:
    """Return whether each line on standard error is a record of the log as JSON."""
    applied = applied_config()
    return applied is not None and applied.format == LogFormat.JSON


def print_json(value: BaseModel | Sequence[BaseModel] | Any) -> None:
    """Print indented JSON."""
    sys.stdout.write(escape_json(to_json(value, indent=2).decode()) + "\n")


def print_rows(
    rows: Sequence[Row], columns: Sequence[str], layout: Layout = _PLAIN, *, caption: str = ""
) -> None:
    """Print a table on a terminal, else a header and tab-separated lines with all columns."""
    is_plain = not sys.stdout.isatty()
    if is_plain:
        lines = [columns, *cells_of(rows, columns, plain=True)]
        sys.stdout.writelines("\t".join(line) + "\n" for line in lines)
        return
    terminal = Console(markup=False, highlight=False)
    terminal.print(build_table(columns, cells_of(rows, columns), layout, terminal.width))
    if caption:
        terminal.print(caption, style="dim")


def cells_of(rows: Sequence[Row], columns: Sequence[str], *, plain: bool = False) -> list[list[str]]:
    """Return the texts of a table; with `plain`, times and durations are for programs."""
    return [[_cell(row[name], plain=plain) for name in columns] for row in rows]


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
        return value.isoformat() if plain else _natural_time(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}" if plain else format_duration(value)
    if isinstance(value, float) and not plain:
        return f"{value:.1f}"
    return one_line(str(value))


def local_time(moment: datetime) -> datetime:
    """Return a time in the zone of this machine; one at an end of the calendar stays as it is."""
    try:
        return moment.astimezone()
    except (ValueError, OverflowError):
        return moment


def _natural_time(moment: datetime) -> str:
    try:
        return humanize.naturaltime(moment, when=datetime.now(UTC))
    except (ValueError, OverflowError):
        return moment.isoformat()


def format_duration(duration: timedelta) -> str:
    """Return a duration like "350 ms", "2.45 s" or "3 minutes"."""
    seconds = duration.total_seconds()
    return humanize.metric(seconds, "s") if seconds < 60 else humanize.naturaldelta(duration)
