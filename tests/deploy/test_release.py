"""The files of a release agree with each other; `make release-check` checks what takes longer."""

import json
import os
import re
import tomllib
from functools import partial
from pathlib import Path
from subprocess import PIPE, run
from typing import Any

import pytest
import yaml
from generate import project
from release import PYTHONS, ROOT, ReleaseError, workflows
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
    """Of both packages, the citation, the chart, the API, and the newest section of the changelog."""
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "zndraw-joblib" / "Chart.yaml").read_text())
    api = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    npm = json.loads(project.PACKAGE.read_text())
    assert {citation["version"], chart["appVersion"], api["info"]["version"]} == {VERSION}
    assert chart["version"].replace("-", "") == VERSION
    assert npm["version"] == project.npm_version(VERSION)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    [section, *_] = re.findall(r"^## (?!Unreleased)(.+)$", changelog, re.MULTILINE)
    assert section == f"{VERSION} - {citation['date-released']}"


def test_versions_of_npm_are_semantic() -> None:
    """A candidate sorts before its release, also the tenth one."""
    versions = ("1.0.0", "1.0.0rc1", "2.1.0b10", "2.1.0a3")
    assert [*map(project.npm_version, versions)] == ["1.0.0", "1.0.0-rc.1", "2.1.0-beta.10", "2.1.0-alpha.3"]


def test_the_addresses_of_the_project_are_set_in_one_place() -> None:
    """`[project.urls]`: each file has them, or none has one."""
    urls = {"Repository": "https://code.example/owner/name", "Documentation": "https://docs.example/queue"}
    texts = {path.name: project.text(path, urls) for path in project.PATHS}
    package = json.loads(texts["package.json"])
    assert package["repository"]["url"] == f"git+{urls['Repository']}.git"
    chart, citation = yaml.safe_load(texts["Chart.yaml"]), yaml.safe_load(texts["CITATION.cff"])
    assert package["homepage"] == chart["home"] == citation["url"] == urls["Documentation"]
    assert [*chart["sources"], citation["repository-code"]] == [urls["Repository"]] * 2
    assert f"repo_url: {urls['Repository']}\n" in texts["mkdocs.yml"]
    assert "--repo owner/name`" in texts["SECURITY.md"]
    minor = ".".join(VERSION.split(".")[:2])
    [group] = yaml.safe_load(texts["prometheus-alerts.yml"])["groups"]
    for rule in group["rules"]:
        begin = f"{urls['Documentation']}/{minor}/how-to/runbook.html#"
        assert rule["annotations"]["runbook_url"].startswith(begin)
    for path in project.PATHS:
        without = project.text(path, {})
        assert "code.example" not in without
        assert (path.read_text() == without) == (not project.URLS)


def test_a_tag_must_be_the_version() -> None:
    """The notes of a release are its section of the changelog."""
    assert notes_of(f"v{VERSION}").startswith("A new implementation")
    with pytest.raises(ReleaseError, match="push the tag v"):
        notes_of("v0.9.0")


def test_a_release_candidate_is_a_prerelease_and_a_release_is_not() -> None:
    """The pattern of the workflow, in bash as there, of the image, npm and the release."""
    patterns = re.findall(r'case "(\S+)" in (\S+)\)', WORKFLOWS["release"])
    assert len(patterns) == 3
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
        "release.attest": {"id-token", "attestations"},
        "release.package": {"id-token"},
        "release.npm": {"id-token"},
        "release.image": {"packages", "id-token", "attestations"},
        "release.github": {"contents"},
        "release.docs": {"contents"},
        "docs.publish": {"contents"},
    }


def test_jobs_that_may_publish_run_no_code_of_others(subtests: pytest.Subtests) -> None:
    """Neither an installation nor a build: they publish the artifact of a job that may only read."""
    for name, text in WORKFLOWS.items():
        assert workflows.problems(name, text) == []
    publishing = {"permissions": {"id-token": "write"}}
    for step, part in (
        ({"run": "make release-check"}, "it runs make"),
        ({"run": ".venv/bin/python -m release.files v1 dist"}, "it runs python"),
        ({"run": "cd a && pip install build"}, "it runs pip"),
        ({"run": "npm publish ./dist/a.tgz"}, "it runs npm"),
        ({"run": "npm publish --ignore-scripts ./dist/a.tgz && npm ci"}, "it runs npm"),
        ({"run": "import os", "shell": "python"}, "a step in python"),
        ({"uses": "actions/checkout@0"}, "it uses actions/checkout"),
        ({"uses": "docker/build-push-action@0"}, "it uses docker/build-push-action"),
    ):
        with subtests.test(str(step)):
            for job in (publishing, {"permissions": {"contents": "write"}}, {"permissions": "write-all"}):
                text = json.dumps({"permissions": {}, "jobs": {"it": {**job, "steps": [step]}}})
                [problem] = workflows.problems("w", text)
                assert part in problem
    called = {"permissions": {}, "jobs": {"it": {**publishing, "uses": "owner/repository/w.yml@0"}}}
    assert len(workflows.problems("w", json.dumps(called))) == 1
    assert "not {}" in workflows.problems("w", json.dumps({"jobs": {"it": {"steps": []}}}))[0]


def test_the_site_is_replaced_by_what_was_built(tmp_path: Path) -> None:
    """The scripts of the workflow, with a repository on disk: a first site, then one that lacks a page."""
    scripts = {
        step["name"]: step["run"]
        for job in ("build", "publish")
        for step in JOBS[f"docs.{job}"]["steps"]
        if "name" in step
    }
    origin = tmp_path / "owner" / "name"
    run(["git", "init", "-q", "--bare", origin], check=True)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gh").write_text("#!/bin/sh\n")  # It only sets up the access to GitHub.
    (programs / "gh").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GITHUB_SERVER_URL": str(tmp_path),
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_REF_NAME": "v1.0.0",
    }
    published: list[set[str]] = []
    for number, (added, removed) in enumerate(
        ((".nojekyll a/index.html a/old.html", ""), ("b.html", "a/old.html"))
    ):
        folder = tmp_path / str(number)
        site = folder / "site"
        folder.mkdir()
        bash = partial(run, cwd=folder, env={**environment, "RUNNER_TEMP": str(folder)}, check=True)
        bash(["bash", "-e", "-c", scripts["Fetch the site, or begin one"]])
        bash(["bash", "-e", "-c", f"cd site; mkdir -p a .git; touch {added}; rm -f {removed} x"])
        bash(["bash", "-e", "-c", "tar -cf site.tar -C site . && rm -r site"])
        bash(["bash", "-e", "-c", scripts["Replace the site"]])
        listed = run(
            ["git", "-C", origin, "ls-tree", "-r", "--name-only", "gh-pages"],
            stdout=PIPE,
            text=True,
            check=True,
        )
        published.append(set(listed.stdout.split()))
        assert site.exists()
    first = {".nojekyll", "a/index.html", "a/old.html"}
    assert published == [first, first - {"a/old.html"} | {"b.html"}]


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
