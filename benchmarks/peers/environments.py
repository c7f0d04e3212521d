"""The environment of each peer: built once from its pinned requirements."""

import glob
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
PROGRAMS = Path(__file__).parent / "programs"
_NEWEST = 14
# The packages without wheels: one is pure Python, the other needs a compiler of C++.
_SOURCES = "crontab,erlpack"


class NotInstalled(Exception):
    """A peer cannot be measured here."""


def python_of(name: str, minor: int) -> Path:
    """Return the interpreter of a peer's environment, after building it if its requirements changed.

    Python 3.`minor` is the oldest that the peer supports.
    """
    folder = ROOT / ".venv-peers" / name
    requirements = REQUIREMENTS / f"{name}.txt"
    pins = requirements.read_text(encoding="utf-8")
    ready, python = folder / ".ready", folder / "bin" / "python"
    if not ready.is_file() or ready.read_text(encoding="utf-8") != pins:
        print(f"  building the environment of {name}", flush=True)
        subprocess.run([interpreter(minor), "-m", "venv", "--clear", str(folder)], check=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--only-binary",
            ":all:",
            "--no-binary",
            _SOURCES,
        ]
        try:
            subprocess.run([*command, "-r", str(requirements)], check=True)
        except subprocess.CalledProcessError as error:
            raise NotInstalled("pip failed") from error
        ready.write_text(pins, encoding="utf-8")
    return python


def interpreter(minor: int) -> str:
    """Return this Python if it is new enough, or the oldest such Python that `make pythons` would use."""
    if sys.version_info >= (3, minor):
        return sys.executable
    for number in range(minor, _NEWEST + 1):
        name = f"python3.{number}"
        pattern = str(Path.home() / f".pyenv/versions/3.{number}.*/bin/python")
        for python in filter(None, [shutil.which(name), *glob.glob(pattern)]):
            check = [python, "-c", f"import ensurepip, sys, venv; sys.exit(sys.version_info < (3, {minor}))"]
            if subprocess.run(check, capture_output=True, check=False).returncode == 0:
                return python
    raise NotInstalled(f"it needs Python 3.{minor} or newer, and none was found")


def version_of(name: str, package: str) -> str:
    """Return the pinned version of a package."""
    for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        pinned, _, version = line.partition("==")
        if pinned == package:
            return version
    raise LookupError(f"{package} is not pinned in {name}.txt")
