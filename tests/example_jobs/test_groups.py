"""The group of the example, with a worker for its jobs and for the task of its end."""

import ast
import os
import subprocess
import sys
from typing import Any

from cli.conftest import Stack

from example_jobs.conftest import ROOT


def test_the_group_ends_with_the_lowest_energy(examples: Stack) -> None:
    """The task of its end gets the results of all others; the first one has failed."""
    command = [sys.executable, "-m", "examples.groups", "150"]
    environment = {**os.environ, **examples.program.env}
    options: dict[str, Any] = {
        "cwd": ROOT,
        "env": environment,
        "capture_output": True,
        "text": True,
        "timeout": 120,
    }
    run = subprocess.run(command, check=False, **options)
    assert run.returncode == 0, run.stderr
    first, last = run.stdout.splitlines()
    assert first == "150 tasks, 1 failed"
    found = ast.literal_eval(last)
    assert (found["from"], found["failed"]) == (149, 1)
    assert abs(found["lowest"] + 1) < 0.01
