"""The commands that the examples and the guides show work as they are written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import Stack
from cli.program import TIMEOUT

from example_jobs.conftest import ROOT

PAGES = ("examples/relaxation.py", "examples/image.py", "docs/how-to/workers.md", "docs/how-to/results.md")
SUBMITS = r"^ *(?:\$ )?(zndraw-joblib submit (?:Relax|Mandelbrot|Plot) .+)$"


@pytest.mark.parametrize("page", PAGES)
def test_submits_work_as_they_are_shown(examples: Stack, tmp_path: Path, page: str) -> None:
    """In a shell: each completes, and writes its result to the file that it names, or to the terminal."""
    commands = re.findall(SUBMITS, (ROOT / page).read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        arguments = shlex.join([sys.executable, "-m", "zndraw_joblib"])
        done = subprocess.run(
            ["sh", "-c", command.replace("zndraw-joblib", arguments, 1)],
            cwd=tmp_path,
            env=examples.program.env,
            capture_output=True,
            check=False,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, done
        assert b"completed in" in done.stderr, done
        _, _, name = command.partition(" > ")
        result = (tmp_path / name).read_bytes() if name else done.stdout
        assert result.startswith(b"\x89PNG" if name else b"{"), result[:100]


def test_one_task_for_a_slider_versions_and_a_pause(examples: Stack) -> None:
    """The example runs as its docstring says, twice, and leaves neither a job nor a pause."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, ROOT / "examples" / "operating.py"],
            env=examples.program.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0, done.stderr
        first, *versions, moved, paused = done.stdout.splitlines()
        assert first == "1 task for 40 submits, 39 of them duplicates: {'width': 39}"
        assert len(versions) == 2
        assert moved == "1 task moved to the current version"
        assert paused.startswith("Room operating is paused until ")
    pauses, jobs = examples.program.run_all([["pauses"], ["jobs", "--room", "operating"]])
    assert len(pauses.out.splitlines()) == 1
    assert "scale" not in jobs.out
