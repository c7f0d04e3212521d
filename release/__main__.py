"""Run the steps of a release, or those that are named; print a line for each, and end with 1 if one fails."""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from release import ROOT, ReleaseError, api_diff, chart, distributions, image, installations, npm, repository
from release.commands import run


def main(names: list[str]) -> int:
    """Run each step on a fresh clone of the current commit."""
    failed, missing = [], []
    if run(["git", "status", "--porcelain"], ROOT):
        missing.append("uncommitted changes are NOT part of what was checked")
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        folder = Path(scratch)
        clone = distributions.clone(folder / "clone")
        for name, step in _steps(clone, folder).items():
            if names and name not in names:
                continue
            begin = time.monotonic()
            try:
                missing += step()
                result = "ok"
            except ReleaseError as error:
                failed.append(name)
                result = f"FAILED\n{error}"
            print(f"{name}: {result} ({time.monotonic() - begin:.0f} s)", flush=True)
    for line in missing:
        print(f"WARNING: {line}")
    print(f"release-check: {'FAILED: ' + ', '.join(failed) if failed else 'ok'}")
    return 1 if failed else 0


def _steps(clone: Path, folder: Path) -> dict[str, Callable[[], list[str]]]:
    dist, environments, stage = folder / "dist", folder / "environments", folder / "image"
    package = folder / "package"
    for one in (environments, stage):
        one.mkdir()

    def files() -> list[str]:
        distributions.check(clone, dist)
        return []

    def wheel() -> list[str]:
        found = [*dist.glob("*.whl")] or [distributions.build(clone, dist).wheel]
        return installations.check(found[0], environments)

    return {
        "repository": lambda: repository.check(clone),
        "api": lambda: api_diff.check(ROOT),
        "chart": lambda: chart.check(clone, folder),
        "distributions": files,
        "npm": lambda: npm.check(clone, package),
        "image": lambda: image.check(clone, stage),
        "wheel": wheel,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
