"""Build the sdist and the wheel from a clone, and compare what is in them with the repository."""

import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from release import ROOT, TOOLS, ReleaseError
from release.commands import run

# Files of the repository that a user of the sdist has no use for.
_NOT_IN_SDIST = (".ci/", ".github/")
_STUBS = "src/zndraw_joblib/compat_0_1/stubs/"
# What the wheel has from outside the package, and where; see `force-include` in pyproject.toml.
_MOVED = {
    _STUBS: "zndraw_joblib/",
    "src/": "",
    "alembic/": "zndraw_joblib/server/alembic/",
    "docs/reference/settings.md": "zndraw_joblib/server/process/settings.md",
}


class Distributions(NamedTuple):
    """The files of a release."""

    sdist: Path
    wheel: Path


def clone(folder: Path) -> Path:
    """Clone the current commit into a new folder, and return it."""
    run(["git", "clone", "--quiet", "--no-local", ROOT, folder], ROOT)
    return folder


def tracked(repository: Path) -> set[str]:
    """Return the files that are committed."""
    return set(run(["git", "ls-files"], repository).splitlines())


def build(repository: Path, target: Path) -> Distributions:
    """Build the sdist, and the wheel from it, with the pinned build tools."""
    run([TOOLS / "python", "-m", "build", "--no-isolation", "--outdir", target, repository], repository)
    [sdist], [wheel] = target.glob("*.tar.gz"), target.glob("*.whl")
    return Distributions(sdist, wheel)


def check(repository: Path, target: Path) -> Distributions:
    """Build both, and check their metadata and contents; raise `ReleaseError` for what is wrong."""
    files = build(repository, target)
    run([TOOLS / "twine", "check", "--strict", *files], target)
    run([TOOLS / "check-wheel-contents", "--config", repository / "pyproject.toml", files.wheel], target)
    committed = tracked(repository)
    with tarfile.open(files.sdist) as archive:
        names = (one.name.partition("/")[2] for one in archive.getmembers() if one.isfile())
        problems = sdist_problems(names, committed)
    with zipfile.ZipFile(files.wheel) as archive:
        problems += wheel_problems(archive.namelist(), committed)
    if problems:
        raise ReleaseError("\n".join(problems))
    return files


def sdist_problems(names: Iterable[str], committed: set[str]) -> list[str]:
    """Return how the files of an sdist differ from the committed ones."""
    expected = {name for name in committed if not name.startswith(_NOT_IN_SDIST)}
    return _differences("sdist", set(names) - {"PKG-INFO"}, expected)


def wheel_problems(names: Iterable[str], committed: set[str]) -> list[str]:
    """Return how the files of a wheel differ from the package, the migrations and the other moved files."""
    found = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    expected = set()
    for name in committed:
        for source, target in _MOVED.items():
            if name.startswith(source):
                expected.add(target + name.removeprefix(source))
                break
    return _differences("wheel", found, expected)


def _differences(kind: str, found: set[str], expected: set[str]) -> list[str]:
    return [
        *(f"{kind}: {name} is missing" for name in sorted(expected - found)),
        *(f"{kind}: {name} does not belong in it" for name in sorted(found - expected)),
    ]
