"""The example of jobs that run regularly and not too fast: its schedules, its tasks, its limits."""

import json

from cli.conftest import Stack


def test_the_schedules_and_limits_of_the_example(examples: Stack) -> None:
    """The worker wrote the schedules, runs their tasks, and a task of each user."""
    program = examples.program
    listed = program.ok("schedules", "--room", "@global")
    assert "0 3 * * * Europe/Berlin" in listed
    assert "every 60 s" in listed
    assert len(program.ok("schedules", "next", "clean", "--room", "@global").splitlines()) == 6
    task = program.ok("schedules", "run", "clean", "--room", "@global").strip()
    program.ok("task", task, "--follow")
    assert json.loads(program.ok("task", task, "--json"))["status"] == "completed"
    said = program.ok("submit", "call_api", "user=ada", "text=hello", "--wait")
    assert json.loads(said) == "ada said hello"
    shown = program.ok("jobs", "call_api")
    assert "rate 60 in 60 s, burst 5; max_in_flight 1 per /user" in shown
