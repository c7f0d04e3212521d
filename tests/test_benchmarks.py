"""The benchmarks can be imported, and their lists agree with each other."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import benchmarks
import pytest
from benchmarks.__main__ import DATABASES, ON_REQUEST, SECTIONS, SHARING
from benchmarks.figures import Report
from benchmarks.guard import RATIOS
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.environments import PROGRAMS, REQUIREMENTS, NotInstalled, interpreter
from benchmarks.peers.together import FORMS
from benchmarks.targets import TARGETS

ROOT = Path(benchmarks.__file__).parent


# What no measurement does without: a process, a connection, or a database.
IMPORT_ALL = """
import importlib, sys

REFUSED = {"subprocess.Popen", "os.fork", "socket.bind", "socket.connect", "sqlite3.connect"}

def refuse(event, arguments):
    assert event not in REFUSED, event

sys.addaudithook(refuse)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_an_import_measures_nothing() -> None:
    """Also `__main__` only defines functions: an import starts no process and opens no connection."""
    modules = [f"benchmarks.{path.stem}" for path in sorted(ROOT.glob("*.py"))]
    command = [sys.executable, "-W", "ignore", "-c", IMPORT_ALL, *modules]
    process = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_targets_and_ratios_are_of_known_sections_and_databases() -> None:
    """A target of a section that was renamed would never be compared."""
    assert {section for section, _ in TARGETS} <= set(SECTIONS)
    assert {kind for kinds in TARGETS.values() for kind in kinds} == set(DATABASES)
    assert set(json.loads(RATIOS.read_text(encoding="utf-8"))) == set(DATABASES)


def test_sections_that_share_a_server_follow_each_other() -> None:
    """Their server is stopped before the next group, and not started again."""
    names = list(SECTIONS)
    for group in SHARING:
        first = names.index(group[0])
        assert tuple(names[first : first + len(group)]) == group
    assert set(SECTIONS) > ON_REQUEST


def test_the_json_has_the_machine_the_versions_and_the_seconds(tmp_path: Path) -> None:
    """A file of figures says where and with what it was measured, and how long each section took."""
    report = Report(database="sqlite", section="rates")
    report.add("submit, 16 connections", 1000.0, "/s", 1.5)
    report.seconds["rates, sqlite"] = 1.0
    report.write(tmp_path / "figures.json")
    content = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert content["cores"] == os.cpu_count()
    assert {"python", "sqlite", "postgresql", "zndraw-joblib", "fastapi"} <= set(content["versions"])
    assert content["seconds"] == {"rates, sqlite": 1.0}
    [figure] = content["figures"]
    assert (figure["ratio"], figure["is_met"]) == (1.5, True)


def test_peers_have_programs_and_pinned_requirements() -> None:
    """Each line is a package with its version: no URL, no host name."""
    peers = [*PEERS, *(form.peer for form in FORMS)]
    assert [peer.name for peer in peers if not (PROGRAMS / peer.program).is_file()] == []
    for path in REQUIREMENTS.glob("*.txt"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9A-Za-z.]+", line)] == []
    assert all(peer.package in peer.title or peer.name.split(",")[0] in peer.title for peer in PEERS)


def test_a_peer_of_a_newer_python_gets_another_or_an_explanation() -> None:
    """A run without that Python measures the other peers, and prints the explanation for the page."""
    assert interpreter(11) == sys.executable
    with pytest.raises(NotInstalled, match=re.escape("it needs Python 3.99 or newer, and none was found")):
        interpreter(99)
