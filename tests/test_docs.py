"""The documentation matches the code: links, snippets, settings, operations, commands."""

import ast
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from chaos.scenarios import SCENARIOS
from typer.main import get_command

from zndraw_joblib.cli import commands
from zndraw_joblib.server.app import create_app
from zndraw_joblib.server.settings import JobLibSettings, ServerSettings

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUARANTEES = (REFERENCE / "guarantees.md").read_text()
FAULTS = {*SCENARIOS, "mixed"}
PACKAGES = ("background", "http", "internal", "pubsub", "realtime", "service", "store")
ALIASES = {"sweep_threshold_seconds", "sweep_interval_seconds"}


def rows(page: Path) -> list[list[str]]:
    """Return the cells of all table rows of a page."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Every relative link of a page names a file of the repository."""
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_snippets_import_what_exists(page: Path) -> None:
    """Every Python snippet parses, and imports public names only."""
    public = set(__import__("zndraw_joblib").__all__)
    for snippet in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(snippet.replace("…", "..."), mode="exec")):
            if isinstance(node, ast.ImportFrom) and node.module == "zndraw_joblib":
                assert {alias.name for alias in node.names} <= public


def test_every_setting_is_listed_with_its_default() -> None:
    """`settings.md` has each field of the settings, and the default of each number, flag and word."""
    listed = {name.strip("`"): default.strip("`") for name, default, *_ in rows(REFERENCE / "settings.md")}
    assert set(listed) == set(ServerSettings.model_fields) - ALIASES
    assert set(JobLibSettings.model_fields) <= set(listed) | ALIASES
    for name, default in listed.items():
        value: Any = ServerSettings.model_fields[name].default
        if isinstance(value, bool | int | float):
            assert default == str(value).lower(), name


def test_every_operation_is_listed() -> None:
    """`rest.md` names the path of each operation."""
    page = re.sub(r"\{\w+\}", "{}", (REFERENCE / "rest.md").read_text())
    paths = create_app(ServerSettings(database_url="sqlite://")).openapi()["paths"]
    plain = {re.sub(r"\{\w+\}", "{}", path.removeprefix("/v1/joblib")) for path in paths}
    assert [path for path in plain if path not in page and not path.endswith("/resume")] == []


def test_every_command_is_listed() -> None:
    """`cli.md` names each command."""
    page = (REFERENCE / "cli.md").read_text()
    names: Any = getattr(get_command(commands.app), "commands")  # noqa: B009 - of a click group
    assert [name for name in names if f"`{name}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_the_server_exist(page: Path) -> None:
    """A name like `store.engine.SqliteFile` in the text is one of the server's modules or their contents."""
    names = re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.(?!py\b)\w+)+)`", page.read_text())
    for name in names:
        assert pkgutil.resolve_name(f"zndraw_joblib.server.{name}") is not None


def test_every_guarantee_names_what_shows_it() -> None:
    """Each row of a table with the column "shown by" names a test or a fault."""
    tables = re.findall(r"^\| situation .*shown by \|\n\|[-|]+\n((?:\|.*\n)+)", GUARANTEES, re.MULTILINE)
    cells = [line.strip("|").split("|")[-1] for table in tables for line in table.splitlines()]
    assert len(cells) > 30
    assert [cell for cell in cells if "`tests/" not in cell and "chaos `" not in cell] == []


def test_every_test_named_by_a_guarantee_exists() -> None:
    """A name like `tests/a.py::test_b`, or `::test_c` after it, is a test; `tests/a.py` is a file."""
    path = ""
    for named, test in re.findall(r"`((?:tests/[\w/]+\.py)?)(?:::(\w+))?`", GUARANTEES):
        path = named or path
        if path and (named or test):
            found = re.findall(r"^\s*(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
            assert (test or found[0]) in found, f"{path}::{test}"


def test_every_fault_named_by_a_guarantee_exists() -> None:
    """A name after "chaos" is a fault of `make chaos`, and the table of faults lists each one."""
    named = re.findall(r"chaos ((?:`[\w-]+`(?:, )?)+)", GUARANTEES.partition("## Faults")[0])
    assert set(re.findall(r"`([\w-]+)`", " ".join(named))) <= FAULTS
    listed = {name.strip("`") for name, *rest in rows(REFERENCE / "guarantees.md") if len(rest) == 1}
    assert listed == FAULTS


def test_every_package_and_layer_is_described() -> None:
    """The page about the architecture names each package, and each layer of the server."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {one["id"]: one["layers"] for one in config if one["type"] == "layers"}
    assert f"`{' > '.join(layers['packages'])}`" in page
    modules = [name.strip() for layer in layers["server-layers"] for name in layer.split("|")]
    assert [name for name in modules if f"`{name}`" not in page and f"`{name}/`" not in page] == []


def test_every_decision_begins_with_its_number() -> None:
    """A record has the number of its file as the first word of its title, and is in the list of records."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    for path in folder.glob("0*.md"):
        assert path.read_text().startswith(f"# {path.name[:4]} "), path.name
        assert f"]({path.name})" in index
