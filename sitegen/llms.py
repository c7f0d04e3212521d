"""Generate llms.txt: a list of all pages with their first sentences, for language models."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sitegen import ROOT

_INTRODUCTION = """\
# zndraw-joblib

> A job queue with an HTTP API, for FastAPI. Workers claim tasks over HTTP; clients submit them over REST or
> from Python, and follow them live.

The OpenAPI document of all operations is [openapi.json](reference/openapi.json).
"""


def text(sources: Path) -> str:
    """Return the list of the pages in the navigation of mkdocs.yml, read from the sources of the site."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    lines = [_INTRODUCTION]
    section = ""
    for name, path in _pages(navigation, "Start"):
        if name != section:
            lines.append(f"\n## {name}\n")
            section = name
        title, sentence = _summary((sources / path).read_text())
        lines.append(f"- [{title}]({_address(path)})" + (f": {sentence}" if sentence else ""))
    return "\n".join(lines) + "\n"


def _address(path: str) -> str:
    """Return where the page of a source is: `README.md` of a folder is its index."""
    return re.sub(r"README$", "index", path.removesuffix(".md")) + ".html"


def _pages(navigation: Any, section: str) -> Iterator[tuple[str, str]]:
    """Yield the section and the path of each page."""
    for entry in navigation:
        if isinstance(entry, str):
            yield section, entry
            continue
        for name, value in entry.items():
            if isinstance(value, str):
                yield section, value
            else:
                yield from _pages(value, name)


def _summary(page: str) -> tuple[str, str]:
    """Return the title and the first sentence of a page."""
    title = next((line[2:] for line in page.splitlines() if line.startswith("# ")), "Home")
    body = re.sub(r"```.*?```", "", page.partition(f"# {title}\n")[2], flags=re.DOTALL)
    paragraphs = (one.strip() for one in body.split("\n\n"))
    first = next((one for one in paragraphs if re.match(r"[\w`*\[]", one)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return title, re.split(r"(?<=[.:!?]) ", plain)[0].rstrip(":")
