"""Read the links of the built site."""

import os
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The theme's link to the content has an anchor that its script makes.
_SKIP = "__skip"
# Elements whose address the browser opens while it shows the page.
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = {_SKIP}
        self.links: set[str] = set()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the ids and addresses of an element."""
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif address := given.get(_LOADED.get(tag, "")):
            self.loaded.add(address)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for path in sorted(site.rglob("*.html")):
        # The page for unknown addresses is written for the root of a web server.
        if path.name != "404.html":
            yield path, _read(path)


def _is_external(address: str) -> bool:
    return bool(urlsplit(address).scheme or address.startswith("//"))


def broken(site: Path) -> list[str]:
    """Return "page: address" for each link, image or script of the site that leads to nothing in it."""
    found = []
    for path, page in _pages(site):
        for address in sorted(page.links | page.loaded):
            if not _is_external(address) and not _exists(
                path, urlsplit(address).path, urlsplit(address).fragment
            ):
                found.append(f"{path.relative_to(site)}: {address}")
    return found


def _exists(page: Path, name: str, fragment: str) -> bool:
    target = _file(page.parent, name) if name else page
    if target is None:
        return False
    return not fragment or target.suffix != ".html" or unquote(fragment) in _read(target).ids


@cache
def _file(folder: Path, name: str) -> Path | None:
    """Return the file that a relative address names; pages of a folder have most addresses in common."""
    target = Path(os.path.normpath(folder / unquote(name)))
    if target.is_dir():
        target /= "index.html"
    return target if target.is_file() else None


def external(site: Path) -> list[str]:
    """Return the addresses of links that leave the site, sorted."""
    return sorted({link for _, page in _pages(site) for link in page.links if _is_external(link)})


def loaded_from_network(site: Path) -> list[str]:
    """Return "page: address" for each script, style or image that a browser would load from another host."""
    return [
        f"{path.relative_to(site)}: {address}"
        for path, page in _pages(site)
        for address in sorted(page.loaded)
        if _is_external(address) and not address.startswith("data:")
    ]
