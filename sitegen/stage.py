"""Copy docs/ to build/docs, with the files that its pages link to and the generated pages."""

import os
import re
import shutil
from pathlib import Path

from sitegen import ROOT, STAGE, commands, llms, operations, python_api
from sitegen.files import listing, page_of

# Pages of the repository that are not in docs/. The home page of the site takes the place of the README.
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
GENERATED = {
    "reference/commands.md": commands.page,
    "reference/operations.md": operations.page,
    "files/index.md": listing,
}
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[)#])")
_FENCE = re.compile(r"^(\s*)(```|~~~)")


def stage(target: Path = STAGE) -> None:
    """Write all sources of the site below `target`."""
    shutil.rmtree(target, ignore_errors=True)
    for source in sorted((ROOT / "docs").rglob("*")):
        if source.is_file() and source.suffix != ".md":
            _write(target, str(source.relative_to(ROOT / "docs")), source.read_bytes())
    for source in [
        *sorted((ROOT / "docs").rglob("*.md")),
        *(ROOT / name for name in MOVED if name != "README.md"),
    ]:
        name = place_of(source)
        _write(target, name, with_links(source, name).encode())
    for name, generate in GENERATED.items():
        _write(target, name, generate().encode())
    for name, text in python_api.pages().items():
        _write(target, name, text.encode())
    for source, name in linked_files().items():
        _write(target, name, page_of(source).encode())
    _write(target, "llms.txt", llms.text(target).encode())


def _write(target: Path, name: str, content: bytes) -> None:
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def linked_files() -> dict[Path, str]:
    """Return the pages of files: those of examples/ and deploy/, and others that a page links to."""
    sources = [*(ROOT / "examples").rglob("*"), *(ROOT / "deploy").rglob("*")]
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in MOVED)]:
        sources += [(page.parent / link).resolve() for link in _LINK.findall(page.read_text())]
    shown = {one for one in sources if one.is_file() and "__pycache__" not in one.parts}
    return {one: place_of(one) for one in sorted(shown) if place_of(one).startswith("files/")}


def place_of(source: Path) -> str:
    """Return where a file of the repository is in the site's sources."""
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        return "files/index.md"
    if name in MOVED:
        return MOVED[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}.md"


def with_links(source: Path, name: str) -> str:
    """Return the text of a page, whose links lead to the pages of the site."""

    def moved(found: re.Match[str]) -> str:
        link = (source.parent / found[1]).resolve()
        if link.is_relative_to(ROOT / "docs") and not link.is_dir():
            place = str(link.relative_to(ROOT / "docs"))
        else:
            place = place_of(link)
        return os.path.relpath(place, Path(name).parent)

    lines = []
    is_code = False
    for line in source.read_text().splitlines(keepends=True):
        is_code ^= bool(_FENCE.match(line))
        lines.append(line if is_code else _LINK.sub(moved, line))
    return "".join(lines)
