"""Make the files of a release: `python -m release.files TAG FOLDER`."""

import re
import sys
import tempfile
from pathlib import Path

from release import ROOT, TOOLS, ReleaseError, npm
from release.commands import new_environment, run
from release.distributions import build, clone

_PACKAGE = "import sys, helm_python; helm_python.package(sys.argv[1], destination=sys.argv[2])"


def main(tag: str, target: Path) -> None:
    """Write distributions, npm package, chart, contents and notes; a wrong tag raises `ReleaseError`."""
    notes = notes_of(tag)
    target = target.resolve()
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        repository = clone(folder / "clone")
        build(repository, target)
        chart = repository / "deploy" / "helm" / "zndraw-joblib"
        run([TOOLS / "python", "-c", _PACKAGE, chart, target], repository)
        npm.pack(repository, target)
        _bill_of_materials(target, folder)
    (target / "NOTES.md").write_text(notes)
    print("\n".join(sorted(one.name for one in target.iterdir())))


def version() -> str:
    """Return the version in pyproject.toml."""
    [found] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def notes_of(tag: str) -> str:
    """Return the changelog's section for a tag, which must be the version in pyproject.toml, with a date."""
    if tag != f"v{version()}":
        raise ReleaseError(f"the tag {tag} is not the version in pyproject.toml: push the tag v{version()}")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    heading = rf"^## {re.escape(version())} - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    sections = re.findall(heading, changelog, re.MULTILINE | re.DOTALL)
    if not sections:
        raise ReleaseError(f"CHANGELOG.md has no section `## {version()} - YYYY-MM-DD`")
    return str(sections[0]).strip() + "\n"


def _bill_of_materials(target: Path, folder: Path) -> None:
    """List the packages of a server, with versions and licences, as CycloneDX."""
    programs = new_environment(Path(sys.executable), folder / "server")
    requirements = ROOT / "requirements" / "server.txt"
    pip: list[str | Path] = [
        programs / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        requirements,
        "--find-links",
        target,
    ]
    run([*pip, f"zndraw-joblib[server]=={version()}"], folder)
    command: list[str | Path] = [TOOLS / "cyclonedx-py", "environment", programs / "python"]
    run([*command, "--output-reproducible", "-o", target / "sbom.cdx.json"], folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
