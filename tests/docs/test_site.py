"""The documentation site builds without warnings, needs no network, and all its links lead somewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
import yaml
from sitegen import ROOT, SITE, STAGE
from sitegen.links import broken, external, loaded_from_network
from sitegen.stage import stage, with_links

import zndraw_joblib
import zndraw_joblib.testing

CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
# Reached by links of other pages, not by the navigation.
NOT_LISTED = ("decisions/0", "files/")


def entries(nav: object) -> Iterator[str]:
    """Yield the paths of a navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for one in nav.values():
            yield from entries(one)
    elif isinstance(nav, list):
        for one in nav:
            yield from entries(one)


def test_the_navigation_has_every_page(tmp_path: Path) -> None:
    """A page that is missing in `nav` of `mkdocs.yml` could be found by its address only."""
    stage(tmp_path)
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")}
    listed = list(entries(CONFIG["nav"]))
    assert set(listed) <= pages
    missing = {page for page in pages - set(listed) if not page.startswith(NOT_LISTED)}
    assert not missing, "add these pages to `nav` in mkdocs.yml"
    assert len(listed) == len(set(listed))
    for_models = (tmp_path / "llms.txt").read_text()
    addresses = {page: re.sub(r"README\.md$", "index.md", page).removesuffix(".md") for page in listed}
    assert [page for page, address in addresses.items() if f"({address}.html)" not in for_models] == []


def test_links_to_files_of_the_repository_lead_to_their_pages(tmp_path: Path) -> None:
    """A page is readable in the repository, and its links also work on the site."""
    page = ROOT / "docs" / "how-to" / "mount.md"
    text = with_links(page, "how-to/mount.md")
    assert "](../files/examples/host_app.py.md)" in text
    assert "](../reference/settings.md)" in text
    assert "](../../" not in text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a copy of the repository's sources."""
    return build(tmp_path_factory.mktemp("site"))


def build(folder: Path) -> Path:
    """Build the site below a folder, with the repository's configuration."""
    stage(folder / "docs")
    text = (ROOT / "mkdocs.yml").read_text()
    text = text.replace(f"docs_dir: {STAGE.relative_to(ROOT)}", "docs_dir: docs")
    text = text.replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    (folder / "mkdocs.yml").write_text(text)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr
    return folder / SITE.name


def test_every_link_leads_somewhere(site: Path) -> None:
    """Each link, image and script names a file of the site, and each anchor an element of its page."""
    assert broken(site) == []
    assert (site / "llms.txt").is_file()
    assert len(list(site.rglob("*.html"))) > 60


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    """The pages look and work the same without a network."""
    assert loaded_from_network(site) == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*", styles) == []


def test_other_sites_are_named_by_https(site: Path) -> None:
    """A link that leaves the site is encrypted, but for the addresses of a server on this machine."""
    allowed = ("https://", "mailto:", "http://127.0.0.1:8000/")
    assert [link for link in external(site) if not link.startswith(allowed)] == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    """The check finds links to missing files and anchors, and scripts of other hosts."""
    (tmp_path / "a.html").write_text(
        '<h1 id="one"></h1><a href="#one"></a><a href="#two"></a><a href="b.html"></a>'
        '<a href="a.html#one"></a>'
        '<script src="https://example.org/x.js"></script>'
    )
    assert broken(tmp_path) == ["a.html: #two", "a.html: b.html"]
    assert loaded_from_network(tmp_path) == ["a.html: https://example.org/x.js"]


def test_the_python_reference_is_filled_in(site: Path) -> None:
    """Each public name has its own section with a signature, and so has each of its public methods."""
    text = "".join(path.read_text() for path in (site / "reference" / "python").glob("*.html"))
    sections = set(re.findall(r'id="zndraw_joblib\.([\w.]+)"', text))
    named = {section.rpartition(".")[2] for section in sections}
    assert set(zndraw_joblib.__all__ + zndraw_joblib.testing.__all__) - named == set()
    missing = [
        f"{name}.{method}"
        for name, module in zndraw_joblib._MODULE_OF.items()
        if isinstance(one := getattr(zndraw_joblib, name), type)
        for method in methods(one)
        if not any(
            f"{place}.{method}" in sections for place in [f"{module}.{name}", *map(path_of, one.__mro__)]
        )
    ]
    assert missing == []
    assert {"client.queue.Queue.submit", "server.host.mount.JobLib.submit"} <= sections


def path_of(one: type) -> str:
    """Return the path of a class below the package."""
    return f"{one.__module__.removeprefix('zndraw_joblib.')}.{one.__qualname__}"


def methods(one: type) -> set[str]:
    """Return the public methods and properties of a class, also those of its bases in this package."""
    return {
        name
        for owner in one.__mro__
        if owner.__module__.startswith("zndraw_joblib.")
        for name, member in vars(owner).items()
        if not name.startswith("_")
        and isinstance(member, FunctionType | property | classmethod | staticmethod)
        and member.__doc__
        and getattr(member, "__name__", name) == name  # not one that was assigned to the class
    }
