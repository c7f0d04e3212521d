"""The files of a release agree with each other; `make release-check` checks what takes longer."""

import json
import re
import tomllib
from subprocess import run
from typing import Any

import pytest
import yaml
from release import PYTHONS, ROOT, ReleaseError
from release.distributions import sdist_problems, wheel_problems
from release.files import notes_of

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: str = PROJECT["version"]
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
JOBS: dict[str, dict[str, Any]] = {
    f"{name}.{job}": content
    for name, text in WORKFLOWS.items()
    for job, content in yaml.safe_load(text)["jobs"].items()
}


def test_every_file_has_the_same_version() -> None:
    """Of the package, the citation, the chart, the API, and the newest section of the changelog."""
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "zndraw-joblib" / "Chart.yaml").read_text())
    api = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {citation["version"], chart["appVersion"], api["info"]["version"]} == {VERSION}
    assert chart["version"].replace("-", "") == VERSION
    changelog = (ROOT / "CHANGELOG.md").read_text()
    [section, *_] = re.findall(r"^## (?!Unreleased)(.+)$", changelog, re.MULTILINE)
    assert section == f"{VERSION} - {citation['date-released']}"


def test_a_tag_must_be_the_version() -> None:
    """The notes of a release are its section of the changelog."""
    assert notes_of(f"v{VERSION}").startswith("A new implementation")
    with pytest.raises(ReleaseError, match="push the tag v"):
        notes_of("v0.9.0")


def test_a_release_candidate_is_a_prerelease_and_a_release_is_not() -> None:
    """The pattern of the workflow, in bash as there, once for the image and once for the release."""
    patterns = re.findall(r'case "(\S+)" in (\S+)\)', WORKFLOWS["release"])
    assert len(patterns) == 2
    for word, pattern in patterns:
        for tag, expected in (("v1.0.0", "no"), ("v1.0.0rc1", "yes"), ("v2.1.0b3", "yes")):
            script = f'case "{word}" in {pattern}) echo yes ;; *) echo no ;; esac'
            done = run(
                ["bash", "-c", script],
                env={"GITHUB_REF_NAME": tag},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout.strip() == expected


def test_pythons_are_the_same_everywhere() -> None:
    """In the classifiers, the Makefile, the matrix of the tests, and on the page that promises them."""
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert tuple(named) == PYTHONS
    assert f"PYTHONS := {' '.join(PYTHONS)}\n" in (ROOT / "Makefile").read_text()
    assert tuple(JOBS["test.test"]["strategy"]["matrix"]["python"]) == PYTHONS
    stability = (ROOT / "docs" / "reference" / "stability.md").read_text()
    assert f"| Python | {', '.join(PYTHONS)} |" in stability
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_workflows_run_pinned_actions_with_few_rights(subtests: pytest.Subtests) -> None:
    """A tag of an action can be moved; a job that may write or sign is one of those that must."""
    for name, text in WORKFLOWS.items():
        with subtests.test(name):
            assert yaml.safe_load(text)["permissions"] == {}
            used = re.findall(r"uses: (?!\./)(.*)$", text, re.MULTILINE)
            assert used
            assert [
                one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)
            ] == []
            assert set(re.findall(r"secrets\.(\w+)", text)) <= {"GITHUB_TOKEN"}
    for name, job in JOBS.items():
        with subtests.test(name):
            assert "uses" in job or job["timeout-minutes"] <= 60
    writing = {
        name: {right for right, level in job["permissions"].items() if level == "write"}
        for name, job in JOBS.items()
    }
    assert {name: rights for name, rights in writing.items() if rights} == {
        "release.build": {"id-token", "attestations"},
        "release.package": {"id-token"},
        "release.image": {"packages", "id-token", "attestations"},
        "release.github": {"contents"},
        "release.docs": {"contents"},
        "docs.publish": {"contents"},
    }


def test_nothing_is_forgotten_or_added_in_the_distributions() -> None:
    """A migration that is missing, and a scratch file, are found."""
    committed = {
        "README.md",
        ".ci/run",
        "alembic/versions/0001_first.py",
        "src/zndraw_joblib/__init__.py",
        "src/zndraw_joblib/compat_0_1/stubs/models.pyi",
        "tests/conftest.py",
    }
    sdist = committed - {".ci/run"} | {"PKG-INFO"}
    assert sdist_problems(sdist, committed) == []
    assert sdist_problems(sdist - {"README.md"} | {"scratch.txt"}, committed) == [
        "sdist: README.md is missing",
        "sdist: scratch.txt does not belong in it",
    ]
    wheel = {
        "zndraw_joblib/__init__.py",
        "zndraw_joblib/models.pyi",
        "zndraw_joblib/server/alembic/versions/0001_first.py",
        "zndraw_joblib-1.dist-info/METADATA",
    }
    assert wheel_problems(wheel, committed) == []
    assert wheel_problems({*wheel, "tests/conftest.py"} - {"zndraw_joblib/models.pyi"}, committed) == [
        "wheel: zndraw_joblib/models.pyi is missing",
        "wheel: tests/conftest.py does not belong in it",
    ]
