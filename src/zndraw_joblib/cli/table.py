"""Tables that fit into a terminal: ids, jobs and errors stay visible at 80 columns."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

# An id of a task begins with its time; so many characters of it have 12 random bits in addition.
_ID_CHARACTERS = 18
_MIN_WIDTH, _GOOD_WIDTH = 10, 16
# The space after a column, and that at the edge of the table.
_GAP = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns give way on a narrow terminal.

    As far as needed: `ids` are cut to a prefix that is unique in the table, `wide` columns to 16 characters,
    and `optional` ones are left out, the first one first. A text in one of `paths` keeps its end, and one in
    `wrapped` takes several lines.
    """

    wide: Sequence[str] = ()
    ids: Sequence[str] = ()
    optional: Sequence[str] = ()
    paths: Sequence[str] = ("job",)
    wrapped: Sequence[str] = ()


def build_table(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    layout: Layout,
    width: int,
    styles: Sequence[str] = (),
) -> Table:
    """Return a table of texts that is at most `width` wide; `styles` has one style for each row."""
    texts = {name: [line[number] for line in cells] for number, name in enumerate(columns)}
    widths = {name: max(map(cell_len, [name, *texts[name]])) for name in columns}
    if _excess(widths, width) > 0:
        for name in layout.ids:
            texts[name] = shorten_ids(texts[name])
            widths[name] = max(map(cell_len, [name, *texts[name]]))
        widths = _fit(widths, layout, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, column_width in widths.items():
        table.add_column(name, overflow="fold", width=column_width)
    for number in range(len(cells)):
        row = (_cut(texts[name][number], name, size, layout) for name, size in widths.items())
        table.add_row(*map(Text, row), style=styles[number] if styles else None)
    return table


def shorten_ids(ids: Sequence[str]) -> list[str]:
    """Return prefixes of ids that name each of them in this list; at least 18 characters."""
    different, size = set(ids), _ID_CHARACTERS
    while len({each[:size] for each in different}) < len(different):
        size += 1
    return [each[:size] for each in ids]


def _fit(needed: dict[str, int], layout: Layout, width: int) -> dict[str, int]:
    """Return widths that fit, or those of the columns that cannot give way."""
    left_out: list[str] = []
    for name in (None, *layout.optional):
        left_out += [name] if name else []
        widths = {name: size for name, size in needed.items() if name not in left_out}
        _shrink(widths, layout.wide, _GOOD_WIDTH, width)
        if _excess(widths, width) <= 0:
            return widths
    _shrink(widths, layout.wide, _MIN_WIDTH, width)
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


def _cut(text: str, column: str, size: int, layout: Layout) -> str:
    if cell_len(text) <= size or column in layout.wrapped:
        return text
    if column not in layout.paths:
        return set_cell_size(text, size - 1).rstrip() + "…"
    while cell_len(text) > size - 1:
        text = text[1:]
    return "…" + text
