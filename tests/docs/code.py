"""The blocks of code of the documentation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sitegen import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Code(NamedTuple):
    """A block of code, and where it is."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Return page and line, as an editor opens them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def code(*languages: str) -> list[Code]:
    """Return all blocks in any of these languages; without languages, all blocks."""
    return [one for page in PAGES for one in _blocks(page) if not languages or one.language in languages]


def _blocks(page: Path) -> Iterator[Code]:
    text = page.read_text()
    for indent, info, body in ((m[1], m[2], m) for m in _BLOCK.finditer(text)):
        lines = [line.removeprefix(indent) for line in body[3].splitlines()]
        yield Code(
            page, text.count("\n", 0, body.start()) + 2, info.partition(" ")[0], "\n".join(lines) + "\n"
        )
