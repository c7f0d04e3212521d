"""Install the wheel into empty environments, and follow the tutorial with it."""

import sys
from pathlib import Path

from release import PYTHONS, ROOT
from release.commands import find_python, new_environment, run

_IMPORT = "import zndraw_joblib as z; [getattr(z, name) for name in ('job', 'Queue', 'JobManager')]"


def check(wheel: Path, folder: Path) -> list[str]:
    """Check the wheel on each Python; return a line for each one that is not on this machine."""
    missing = []
    for version in PYTHONS:
        python = find_python(version)
        if python is None:
            missing.append(f"Python {version} was not found: the wheel was NOT installed on it")
            continue
        _install(wheel, python, folder / version)
        _tutorial(wheel, python)
        print(f"  Python {version}: installed, imported, tutorial followed", flush=True)
    return missing


def _install(wheel: Path, python: Path, folder: Path) -> None:
    """Install the wheel as a worker needs it, without extras, and start its program."""
    folder.mkdir()
    programs = new_environment(python, folder / "environment")
    run([programs / "python", "-m", "pip", "install", "-q", wheel], folder)
    run([programs / "python", "-W", "error", "-c", _IMPORT], folder)
    run([programs / "zndraw-joblib", "--help"], folder)
    version = run([programs / "zndraw-joblib", "--version"], folder)
    assert wheel.name.split("-")[1] in version, version  # noqa: S101 - a release with two versions is unfit
    run([programs / "python", "-m", "pip", "check"], folder)


def _tutorial(wheel: Path, python: Path) -> None:
    """Follow the tutorial in real terminals, in an environment that it makes itself from the wheel."""
    test = "tests/docs/test_tutorial.py::test_the_tutorial_works_with_a_wheel"
    variables = {"TUTORIAL_WHEEL": str(wheel), "TUTORIAL_PYTHON": str(python)}
    run([sys.executable, "-m", "pytest", "-q", "-m", "slow", "-p", "no:cacheprovider", test], ROOT, variables)
