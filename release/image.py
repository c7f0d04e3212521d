"""Build the image, or, without a Docker daemon, run the steps of its Dockerfile in a folder."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from release import TOOLS, ReleaseError
from release.commands import find_python, new_environment, run

_STAGE = re.compile(r"^FROM .*?(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)


def check(repository: Path, folder: Path) -> list[str]:
    """Lint the Dockerfile and build it; return a line that says what could not be done here."""
    run([TOOLS / "hadolint", "--failure-threshold", "warning", repository / "Dockerfile"], repository)
    if _has_daemon():
        run(["docker", "build", "-t", "zndraw-joblib:release-check", "."], repository)
        run(["docker", "run", "--rm", "zndraw-joblib:release-check", "--version"], repository)
        return []
    _without_daemon(repository, folder)
    return [
        "no Docker daemon: the image was NOT built; its Dockerfile was linted and its build stage ran here"
    ]


def _has_daemon() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "info"], check=False, capture_output=True).returncode == 0  # noqa: S603


def _without_daemon(repository: Path, folder: Path) -> None:
    """Run the COPY and RUN steps of the first stage, with the files that .dockerignore lets through."""
    stage = _STAGE.findall((repository / "Dockerfile").read_text())[0]
    [version] = re.findall(r"^FROM python:(\d+\.\d+)-slim", stage, re.MULTILINE)
    sources = folder / "src"
    sources.mkdir()
    programs = new_environment(find_python(version) or Path(sys.executable), folder / "venv")
    lets_through = set(re.findall(r"^!(\S+)$", (repository / ".dockerignore").read_text(), re.MULTILINE))
    for step, words in re.findall(r"^(COPY|RUN) (.*)$", stage, re.MULTILINE):
        if step == "COPY":
            _copy(shlex.split(words), repository, sources, lets_through)
        elif words.startswith("pip "):
            run([programs / "python", "-m", *shlex.split(words)], sources)
    run([programs / "zndraw-joblib", "serve", "--help"], folder)


def _copy(words: list[str], repository: Path, sources: Path, lets_through: set[str]) -> None:
    *names, target = words
    for name in names:
        if not {name, name.partition("/")[0]} & lets_through:
            raise ReleaseError(f"Dockerfile copies {name}, which .dockerignore leaves out")
        into = sources / target / name if target.endswith("/") else sources / target
        into.parent.mkdir(parents=True, exist_ok=True)
        source = repository / name
        shutil.copytree(source, into) if source.is_dir() else shutil.copy(source, into)
