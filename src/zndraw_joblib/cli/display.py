"""Output of the commands: errors, tables that fit into a terminal, checks, lines for programs, JSON."""

import logging
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import humanize
import typer
from pydantic import BaseModel
from pydantic_core import to_json

from zndraw_joblib.jobs.logs import (
    ID_CHARACTERS,
    LogFormat,
    applied_config,
    clean_line,
    clean_text,
    describe,
    duration_text,
    escape_json,
    one_line,
    unknown_variables,
)
from zndraw_joblib.wire.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise a ValueError of the SDK or of a model as a `UsageError`."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


# Tables that fit into a terminal: ids, jobs and errors stay visible at 80 columns.

_MIN_WIDTH, _GOOD_WIDTH = 10, 16
# The space after a column, and that at the edge of the table.
_GAP = 2


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ItemTable:
    """How items of one kind are shown: their cells by column, and which columns give way on a terminal.

    A cell is the name of a field, or a function of the item. As far as needed, `ids` are cut to a prefix that
    is unique in the table, `wide` columns to 16 characters, and `optional` ones are left out, the first one
    first. A text in one of `paths` keeps its end, and one in `wrapped` takes several lines. A `sparse` column
    is left out while it is empty.
    """

    cells: Mapping[str, str | Callable[[Any], Any]]
    wide: Sequence[str] = ()
    ids: Sequence[str] = ()
    optional: Sequence[str] = ()
    paths: Sequence[str] = ("job",)
    wrapped: Sequence[str] = ()
    sparse: Sequence[str] = ()

    def without(self, column: str) -> "ItemTable":
        """Return the same table without a column."""
        return replace(self, cells={name: cell for name, cell in self.cells.items() if name != column})

    def row(self, item: Any) -> Row:
        """Return the values of an item by column."""
        return {name: _value(item, cell) for name, cell in self.cells.items()}

    def texts(self, items: Sequence[Any], *, plain: bool = False) -> list[list[str]]:
        """Return the texts of all cells; with `plain`, times and durations are for programs."""
        return [
            [
                f"{value:,}" if type(value) is int and not plain else _text(value, plain=plain)
                for value in self.row(item).values()
            ]
            for item in items
        ]

    def build(self, items: Sequence[Any], width: int, styles: Sequence[str] = ()) -> "Table":
        """Return a table that is at most `width` wide; `styles` has one style for each item."""
        # rich is imported where something is shown on a terminal: most commands end sooner than it loads.
        from rich import box  # noqa: PLC0415
        from rich.cells import cell_len  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        lines = self.texts(items)
        texts = {name: [line[number] for line in lines] for number, name in enumerate(self.cells)}
        texts = {name: cells for name, cells in texts.items() if name not in self.sparse or any(cells)}
        widths = {name: max(map(cell_len, [name, *texts[name]])) for name in texts}
        if _excess(widths, width) > 0:
            for name in texts.keys() & set(self.ids):
                texts[name] = shorten_ids(texts[name])
                widths[name] = max(map(cell_len, [name, *texts[name]]))
            widths = _fit(widths, self, width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name, column_width in widths.items():
            table.add_column(name, overflow="fold", width=column_width)
        for number in range(len(lines)):
            row = (_cut(texts[name][number], name, size, self) for name, size in widths.items())
            table.add_row(*map(Text, row), style=styles[number] if styles else None)
        return table

    def print(self, items: Sequence[Any], *, caption: str = "", as_json: bool = False) -> None:
        """Print items: a table on a terminal, else a header and tab-separated lines with all columns."""
        if as_json:
            print_json(items)
        elif not sys.stdout.isatty():
            lines = [list(self.cells), *self.texts(items, plain=True)]
            sys.stdout.writelines("\t".join(line) + "\n" for line in lines)
        else:
            terminal = console(soft_wrap=False)
            terminal.print(self.build(items, terminal.width))
            if caption:
                terminal.print(caption, style="dim")

    def print_one(self, item: Any, *, as_json: bool = False) -> None:
        """Print one item, a field a line."""
        print_json(item) if as_json else print_fields(self.row(item))


def _value(item: Any, cell: str | Callable[[Any], Any]) -> Any:
    if callable(cell):
        return cell(item)
    return item.get(cell) if isinstance(item, Mapping) else getattr(item, cell)


def _text(value: Any, *, plain: bool) -> str:
    """Return the text of a cell, without the control characters that a terminal would obey."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat() if plain else _natural_time(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}" if plain else format_duration(value)
    if isinstance(value, float) and not plain:
        return f"{value:.1f}"
    return one_line(str(value) if isinstance(value, float) else _written(value))


def _written(value: Any) -> str:
    """Return a value as text: an object as its fields, a list as its items."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_written(item)}" for name, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value))
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """Return prefixes of ids that name each of them in this list; at least 18 characters."""
    different, size = set(ids), ID_CHARACTERS
    while len({task_id[:size] for task_id in different}) < len(different):
        size += 1
    return [task_id[:size] for task_id in ids]


def _fit(needed: dict[str, int], table: ItemTable, width: int) -> dict[str, int]:
    """Return widths that fit, or those of the columns that cannot give way."""
    left_out: list[str] = []
    for name in (None, *table.optional):
        left_out += [name] if name else []
        widths = {name: size for name, size in needed.items() if name not in left_out}
        _shrink(widths, table.wide, _GOOD_WIDTH, width)
        if _excess(widths, width) <= 0:
            return widths
    _shrink(widths, table.wide, _MIN_WIDTH, width)
    return widths


def _shrink(widths: dict[str, int], wide: Sequence[str], smallest: int, width: int) -> None:
    """Take the excess from the widest of these columns, one character at a time."""
    while (excess := _excess(widths, width)) > 0:
        widest = max((name for name in wide if name in widths), key=lambda name: widths[name], default=None)
        if widest is None or widths[widest] <= smallest:
            return
        others = [widths[name] for name in wide if name in widths and widths[name] < widths[widest]]
        step = widths[widest] - max([smallest, *others])
        widths[widest] -= max(1, min(excess, step))


def _excess(widths: dict[str, int], width: int) -> int:
    return sum(widths.values()) + _GAP * len(widths) - width


def _cut(text: str, column: str, size: int, table: ItemTable) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - see `ItemTable.build`

    if cell_len(text) <= size or column in table.wrapped:
        return text
    if column not in table.paths:
        return set_cell_size(text, size - 1).rstrip() + "…"
    while cell_len(text) > size - 1:
        text = text[1:]
    return "…" + text


# Results of checks, for the command doctor.


class State(StrEnum):
    """What a check has found; a `skipped` one could not run here."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckResult(BaseModel):
    """One check: what was found, and what to do about it."""

    name: str
    state: State
    detail: str
    remedy: str | None = None


_STYLES = {State.OK: "green", State.WARNING: "yellow", State.FAILED: "bold red", State.SKIPPED: "dim"}


def passed(name: str, detail: str) -> CheckResult:
    """Return a check that found nothing wrong."""
    return CheckResult(name=name, state=State.OK, detail=detail)


def warned(name: str, detail: str, remedy: str) -> CheckResult:
    """Return a check that found something to look at."""
    return CheckResult(name=name, state=State.WARNING, detail=detail, remedy=remedy)


def failed(name: str, detail: str, remedy: str) -> CheckResult:
    """Return a check that found a failure."""
    return CheckResult(name=name, state=State.FAILED, detail=detail, remedy=remedy)


def skipped(name: str, detail: str) -> CheckResult:
    """Return a check that could not run here."""
    return CheckResult(name=name, state=State.SKIPPED, detail=detail)


def print_checks(checks: Sequence[CheckResult]) -> None:
    """Print a line for each check, and its remedy below it; in a pipe, tab-separated."""
    if not sys.stdout.isatty():
        for check in checks:
            fields = (check.state, check.name, one_line(check.detail), one_line(check.remedy or ""))
            sys.stdout.write("\t".join(fields) + "\n")
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = (f"{check.state:<8} ", _STYLES[check.state])
        print_wrapped([state, (f"{check.name:<{width}}  ", "bold")], check.detail, check.remedy or "")


def print_wrapped(head: Sequence[tuple[str, str]], detail: str, remedy: str) -> None:
    """Print the parts of a head with their styles, then a detail and its remedy, wrapped beside the head."""
    from rich.text import Text  # noqa: PLC0415 - see `ItemTable.build`

    terminal, indent = console(), sum(len(text) for text, _ in head)
    size = max(_GOOD_WIDTH, terminal.width - indent)
    first, *more = _wrapped(detail, size) or [""]
    terminal.print(Text.assemble(*head, first))
    lines = [(line, "") for line in more]
    lines += [(line, "dim") for line in _wrapped(f"→ {remedy}", size, "  ") if remedy]
    for line, style in lines:
        terminal.print(Text(f"{'':<{indent}}{line}", style))


def _wrapped(text: str, size: int, indent: str = "") -> list[str]:
    return textwrap.wrap(one_line(text), size, subsequent_indent=indent, break_on_hyphens=False)


# Output of the commands: tables on a terminal, tab-separated lines and JSON for programs.

log = logging.getLogger(__name__)


def console(*, stderr: bool = False, soft_wrap: bool = True) -> "Console":
    """Return a console that prints text without interpreting markup."""
    from rich.console import Console  # noqa: PLC0415 - see `ItemTable.build`

    return Console(stderr=stderr, markup=False, highlight=False, soft_wrap=soft_wrap, emoji=False)


def print_error(message: str) -> None:
    """Print why a command failed, in one line on standard error."""
    if logs_json():
        log.error("%s", one_line(message))
    elif message.strip() and sys.stderr.isatty():
        console(stderr=True).print("Error: ", style="bold red", end="")
        print_note(one_line(message))
    elif message.strip():
        print_note(f"Error: {one_line(message)}")


def print_note(message: str) -> None:
    """Print a message to standard error, which keeps standard output for the result."""
    if logs_json():
        log.info("%s", message)
    else:
        sys.stderr.write(clean_text(message) + "\n")
        sys.stderr.flush()


def warn_of_unknown(settings: Collection[str] | None = None) -> None:
    """Log a warning for each variable that is no setting.

    Without `settings` those of a server are not known: then only variables that resemble a client's variable.
    """
    for name, nearest in unknown_variables(settings or ()).items():
        if settings is not None or nearest is not None:
            log.warning("%s", describe(name, nearest))


def logs_json() -> bool:
    """Return whether each line on standard error is a record of the log as JSON."""
    applied = applied_config()
    return applied is not None and applied.format == LogFormat.JSON


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, like "1 task" and "1,200 tasks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(value: BaseModel | Sequence[BaseModel] | Any) -> None:
    """Print indented JSON."""
    sys.stdout.write(escape_json(to_json(value, indent=2).decode()) + "\n")


def print_fields(fields: Row) -> None:
    """Print the fields of one object, one per line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        if value is not None:
            sys.stdout.write(f"{name:<{width}}  {_text(value, plain=False)}\n")


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
    return duration_text(seconds) if seconds < 60 else humanize.naturaldelta(duration)


def kept_text(seconds: float | str | None) -> str:
    """Return how long tasks are kept: "30 days", "1.5 hours" or "for ever"."""
    if seconds is None or isinstance(seconds, str):
        return "for ever"
    units = (86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")
    size, name = next((unit for unit in units if seconds >= unit[0]), units[-1])
    return f"{seconds / size:g} {name}"


def amount_text(progress: Progress) -> str:
    """Return an amount like "40/100 frames", "" if it is unknown."""
    if progress.current is None:
        return ""
    total = "" if progress.total is None else f"/{progress.total:,}"
    return f"{progress.current:,}{total} {clean_line(progress.unit or '')}".rstrip()
