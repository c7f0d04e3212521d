"""The documentation matches the code: links, snippets, settings, operations, commands."""

import ast
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from chaos.scenarios import SCENARIOS
from docs.code import code

from zndraw_joblib import cli
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import JobLibSettings, ServerSettings

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PACKAGE = ROOT / "src" / "zndraw_joblib"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GUARANTEES = (REFERENCE / "guarantees.md").read_text()
SECURITY = (ROOT / "docs" / "explanation" / "security.md").read_text()
LIMITS = (REFERENCE / "limits.md").read_text()
# Limits of the implementation: no client reaches them, or they only bound one step of the work.
INTERNAL_LIMITS = {
    *("MAX_OFFSET", "MAX_PART", "MAX_FORMS", "MAX_JOBS", "MAX_CURSOR", "MAX_LINE_NUMBER", "MAX_ERROR"),
    *("MAX_QUICK_EFFORT", "MAX_EFFORT", "MAX_QUICK_LISTING", "MAX_LISTING", "MAX_ITEMS", "MAX_REPETITIONS"),
    *("MAX_WAITING_LINES", "MAX_WAITING_BYTES", "server.process.batcher.MAX_BATCH"),
    *("server.queue.rules_transitions.MAX_ENDED_AGO",),
}
FAULTS = {*SCENARIOS, "mixed"}
ROOMS = sorted(path.parent.name for path in (PACKAGE / "server").glob("*/__init__.py"))
ALIASES = {"sweep_threshold_seconds", "sweep_interval_seconds", "result_backend", "workers"}


def rows(page: Path) -> list[list[str]]:
    """Return the cells of all table rows of a page."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_links_resolve() -> None:
    """Every relative link of a page names a file of the repository."""
    links = [
        (page.relative_to(ROOT), link)
        for page in PAGES
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    ]
    assert len(links) > 200
    assert [(page, link) for page, link in links if not (ROOT / page.parent / link).exists()] == []


def test_python_snippets_import_what_exists(subtests: pytest.Subtests) -> None:
    """Every Python snippet parses, and imports public names only."""
    public = set(__import__("zndraw_joblib").__all__)
    for block in code("python"):
        with subtests.test(block.name):
            for node in ast.walk(ast.parse(block.text.replace("…", "..."), mode="exec")):
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
    assert [name for name in cli.COMMANDS if f"`{name}" not in page] == []


def test_names_of_the_server_exist(subtests: pytest.Subtests) -> None:
    """A name like `db.engine.SqliteFile` in the text is one of the server's modules or their contents."""
    pattern = rf"`((?:{'|'.join(ROOMS)})(?:\.(?!(?:py|ts|js)\b)\w+)+)`"
    names = [(page, name) for page in PAGES for name in re.findall(pattern, page.read_text())]
    assert names
    for page, name in names:
        with subtests.test(name, page=page.name):
            assert pkgutil.resolve_name(f"zndraw_joblib.server.{name}") is not None


def test_every_guarantee_names_what_shows_it() -> None:
    """Each row of a table with the column "shown by" names a test or a fault."""
    tables = re.findall(r"^\| situation .*shown by \|\n\|[-|]+\n((?:\|.*\n)+)", GUARANTEES, re.MULTILINE)
    cells = [line.strip("|").split("|")[-1] for table in tables for line in table.splitlines()]
    assert len(cells) > 30
    assert [cell for cell in cells if "`tests/" not in cell and "chaos `" not in cell] == []


def test_every_test_named_by_a_page_exists() -> None:
    """A name like `tests/a.py::test_b`, or `::test_c` after it, is a test; `tests/a.py` is a file."""
    path, missing = "", []
    for file, test in re.findall(r"`((?:tests/[\w/]+\.py)?)(?:::(\w+))?`", GUARANTEES + SECURITY):
        path = file or path
        if path and (file or test):
            tests = re.findall(r"^\s*(?:async )?def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE)
            missing += [f"{path}::{test}"] if (test or tests[0]) not in tests else []
    assert missing == []


def test_the_runbook_has_each_alert_and_each_code() -> None:
    """An alert links to the section that names it; each code of a finding and of `explain` has a section."""
    page = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    heads = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)[1:]
    sections = {
        head.lower().replace(",", "").replace(" ", "-"): text
        for head, text in zip(heads[::2], heads[1::2], strict=True)
    }
    [group] = yaml.safe_load((ROOT / "deploy" / "prometheus-alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path.endswith("/how-to/runbook.html")
        assert f"`{rule['alert']}`" in sections[anchor]
    rest = (REFERENCE / "rest.md").read_text()
    cells = [
        row[0]
        for head in ("| `code` | found when |", "| code | meaning |")
        for row in table_after(rest, head)
    ]
    codes = {code for cell in cells for code in re.findall(r"`([\w-]+)`", cell)}
    assert len(codes) > 25
    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_the_gallery_has_each_example() -> None:
    """Each program and each folder of `examples/` is on the page of examples."""
    page = (ROOT / "docs" / "examples.md").read_text()
    names = {path.name for path in (ROOT / "examples").glob("[!_]*") if path.suffix != ".pyc"}
    assert {name for name in names if f"](../examples/{name}" not in page} == set(), (
        "add them to docs/examples.md"
    )


def test_the_readme_is_a_landing_page() -> None:
    """Code comes first, and there is one picture."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert next(line for line in lines if line.startswith(("```", "![", "|"))) == "```python"
    assert len([line for line in lines if line.startswith("![")]) == 1


def table_after(text: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose head begins with `head`."""
    lines = text[text.index(head) :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_limit_of_the_settings_is_listed() -> None:
    """`limits.md` names each setting of a limit, and no setting that does not exist."""
    limits = {name for name in ServerSettings.model_fields if re.search(r"(^|_)max_", name)}
    named = set(re.findall(r"`([a-z]+_[a-z_]+)`", LIMITS))
    assert limits - named == set()
    assert {name for name in named if re.search(r"(^|_)max_|_(seconds|days|hours)$", name)} <= set(
        ServerSettings.model_fields
    )


def test_every_limit_of_the_code_is_listed() -> None:
    """`limits.md` has the value of each constant `MAX_…` of the messages, the jobs and the server."""
    missing = []
    for package in ("wire", "jobs", "server"):
        paths = sorted((PACKAGE / package).rglob("*.py"))
        assert paths, package
        for path in paths:
            names = re.findall(r"^(MAX_[A-Z_]+)\b[^=\n]*=", path.read_text(), re.MULTILINE)
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
            missing += [
                f"{module}.{name}"
                for name in names
                if not {name, f"{module}.{name}"} & INTERNAL_LIMITS
                and not any(text in LIMITS for text in forms(f"zndraw_joblib.{module}:{name}"))
            ]
    assert missing == []


def forms(name: str) -> list[str]:
    """Return how a page may write the value of a constant."""
    value: int = pkgutil.resolve_name(name)
    units = {"KiB": 1024, "MiB": 1024**2, "kB": 1000}
    return [f"{value:,}", *(f"{value // size} {unit}" for unit, size in units.items() if value % size == 0)]


def test_every_shared_limit_is_shown_by_a_test() -> None:
    """The page about security has a row for each shared limit with a share, with its settings and tests."""
    shared = {row[0]: row for row in table_after(LIMITS, "| resource | limit for all | share of one user |")}
    shown = {row[0]: row for row in table_after(SECURITY, "| resource | limit | share | shown by |")}
    assert shown.keys() == shared.keys()
    for name, (_, limit, share, tests) in shown.items():
        settings = set(re.findall(r"`(\w+)`", limit + share))
        assert settings == set(re.findall(r"`(\w+)`", shared[name][3])), name
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", tests), name


def test_every_fault_named_by_a_guarantee_exists() -> None:
    """A name after "chaos" is a fault of `make chaos`, and the table of faults lists each one."""
    named = re.findall(r"chaos ((?:`[\w-]+`(?:, )?)+)", GUARANTEES.partition("## Faults")[0])
    assert set(re.findall(r"`([\w-]+)`", " ".join(named))) <= FAULTS
    listed = {name.strip("`") for name, *rest in rows(REFERENCE / "guarantees.md") if len(rest) == 1}
    assert listed == FAULTS


def test_every_package_and_room_is_described() -> None:
    """The page about the architecture names each package, and each room of the server."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {one["id"]: one["layers"] for one in config if one["type"] == "layers"}
    assert f"`{' > '.join(layers['packages'])}`" in page
    modules = [name.strip() for layer in layers["server-rooms"] for name in layer.split("|")]
    assert [name for name in modules if f"`{name}`" not in page and f"`{name}/`" not in page] == []


def test_every_decision_begins_with_its_number() -> None:
    """A record has the number of its file as the first word of its title, and is in the list of records."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    for path in folder.glob("0*.md"):
        assert path.read_text().startswith(f"# {path.name[:4]} "), path.name
        assert f"]({path.name})" in index


def test_groups_and_steps_link_to_each_other() -> None:
    """A reader of one page finds the other: they are two forms of the same wish."""
    for page, other in (("groups", "steps"), ("steps", "groups")):
        assert f"]({other}.md" in (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
