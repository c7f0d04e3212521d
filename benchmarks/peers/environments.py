"""The environment of each peer: built once from its pinned requirements, with wheels only."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"
PROGRAMS = Path(__file__).parent / "programs"


def python_of(name: str) -> Path:
    """Return the interpreter of a peer's environment, after building it if its requirements changed."""
    folder = ROOT / ".venv-peers" / name
    wanted = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    ready, python = folder / ".ready", folder / "bin" / "python"
    if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
        print(f"  building the environment of {name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:"]
        subprocess.run([*command, "-r", str(REQUIREMENTS / f"{name}.txt")], check=True)
        ready.write_text(wanted, encoding="utf-8")
    return python


def version_of(name: str, package: str) -> str:
    """Return the pinned version of a package."""
    for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        pinned, _, version = line.partition("==")
        if pinned == package:
            return version
    raise LookupError(f"{package} is not pinned in {name}.txt")
