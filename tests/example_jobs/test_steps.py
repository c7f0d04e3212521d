"""The example of tasks that wait for others: from a job, and from a program."""

import json
import os
import subprocess
import sys

from cli.conftest import Stack

from example_jobs.conftest import ROOT


def test_the_steps_of_the_example(examples: Stack) -> None:
    """The job ends before its steps, whose last one has the results of the others; so does the program."""
    program = examples.program
    last = json.loads(program.ok("submit", "survey", "sites=4", "--wait"))
    assert examples.client.wait_for(last, 60).result == 13.0
    environment = os.environ | program.env
    command = [sys.executable, "-m", "examples.steps"]
    output = subprocess.check_output(command, cwd=ROOT, env=environment, text=True, timeout=60)
    assert float(output) == 14.5
