"""Run programs, and find the Pythons of this machine."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from release import ReleaseError

# Settings of this shell that would change what a new user sees.
_PRIVATE = ("PYTHON", "ZNDRAW", "VIRTUAL_ENV")


def run(command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a program in a folder and return its output; raise `ReleaseError` with the output if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
    done = subprocess.run(  # noqa: S603 - the commands are those of this package
        command,
        cwd=folder,
        env={**environment, **(variables or {})},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def find_python(version: str) -> Path | None:
    """Return a Python of a version with pip and venv, from PATH or from pyenv, or None."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"), reverse=True)
    for python in [*([Path(on_path)] if on_path else []), *of_pyenv]:
        check = (
            f"import ensurepip, sys, venv; assert sys.version.startswith('{version}.'); print(sys.executable)"
        )
        try:
            return Path(run([python, "-c", check], python.parent).strip())
        except (OSError, ReleaseError):
            continue
    return None


def new_environment(python: Path, folder: Path) -> Path:
    """Create an empty virtual environment, and return its folder of programs."""
    run([python, "-m", "venv", folder], folder.parent)
    return folder / "bin"
