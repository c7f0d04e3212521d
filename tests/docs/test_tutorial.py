"""The tutorial, followed literally in a new folder and a new environment."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers import free_port
from sitegen import ROOT

from docs.terminals import Terminal, as_pattern, blocks, steps

PAGE = ROOT / "docs" / "tutorial.md"
FIRST_RESULT = "12.0"
PROGRAMS = {"zndraw-joblib": "zndraw_joblib", "uvicorn": "uvicorn"}


def follow(
    folder: Path, *, reuse_packages: bool = False, wheel: str | None = None, python: Path | None = None
) -> float:
    """Follow the tutorial below a folder; return the seconds until its first result.

    The only difference is a free port, because other programs of the machine may use 8000. With
    `reuse_packages`, the environment gets the installed packages instead of new copies; with `wheel`, it gets
    this file instead of the clone, and its libraries from the package index. `python` makes the environment.
    """
    port = str(free_port())
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ZNDRAW", "PYTHON", "XDG"))
        },
        "HOME": str(folder),
        "ZNDRAW_JOBLIB_URL": f"http://127.0.0.1:{port}",
    }
    programs = python.parent if python else Path(sys.base_prefix) / "bin"
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    begin, first_result = time.monotonic(), 0.0
    with ExitStack() as stack:
        terminals: dict[str, Terminal] = {}
        for block in blocks(PAGE):
            text = block.text.replace("8000", port)
            if block.language == "python":
                (folder / "tutorial" / block.title).write_text(text)
                continue
            if block.title not in terminals:
                terminals[block.title] = stack.enter_context(Terminal(folder, environment))
            for command, shown in steps(text):
                if reuse_packages and command.startswith("pip install"):
                    share_packages(folder / "tutorial" / ".venv")
                elif wheel and command.startswith("pip install"):
                    terminals[block.title].run(f"pip install -q '{wheel}[server]'", shown)
                else:
                    terminals[block.title].run(with_port(command, port), shown)
                if shown == [FIRST_RESULT]:
                    first_result = time.monotonic() - begin
    return first_result


def with_port(command: str, port: str) -> str:
    """Return a command that serves on a port of its own."""
    return f"{command} --port {port}" if command == "zndraw-joblib serve" else command


def share_packages(environment: Path) -> None:
    """Give an environment the packages of this one, and the programs that the tutorial calls."""
    [site] = environment.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    for name, module in PROGRAMS.items():
        program = environment / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {environment}/bin/python -m {module} "$@"\n')
        program.chmod(0o755)


def test_other_output_is_found() -> None:
    """Only `…` stands for anything, and the order of lines counts."""
    [(command, shown)] = steps("$ submit\n…12\nend of …\n")
    assert command == "submit"
    assert as_pattern(shown).search("it is 12\nmore\nend of it")
    assert not as_pattern(shown).search("end of it\nit is 12")
    assert not as_pattern(["12.0"]).search("13.0")


@pytest.mark.timeout(400)
def test_the_tutorial_works(tmp_path: Path) -> None:
    """Each command of the tutorial has the output that the page shows, in the terminals that it names."""
    seconds = follow(tmp_path, reuse_packages=True)
    assert seconds > 0, "the tutorial has lost its first result"
    print(f"first result after {seconds:.0f} s, without the installation")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_user_has_a_result_within_five_minutes(tmp_path: Path) -> None:
    """All libraries are installed anew from the package index, into an empty environment."""
    files = subprocess.run(
        ["git", "ls-files", "src", "alembic", "docs/reference", "pyproject.toml", "README.md", "LICENSE"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(None, files):
        copy = tmp_path / "zndraw-joblib" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    seconds = follow(tmp_path, reuse_packages=False)
    print(f"first result after {seconds:.0f} s, with the installation")
    assert 0 < seconds < 300


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif("TUTORIAL_WHEEL" not in os.environ, reason="make release-check sets it to a wheel")
def test_the_tutorial_works_with_a_wheel(tmp_path: Path) -> None:
    """Without a clone, on the Python in `TUTORIAL_PYTHON`."""
    assert (
        follow(tmp_path, wheel=os.environ["TUTORIAL_WHEEL"], python=Path(os.environ["TUTORIAL_PYTHON"])) > 0
    )
