"""The command `limits`, and how a job's limits are shown."""

import json

from cli.conftest import Stack


def test_a_limit_from_its_definition_to_its_deletion(stack: Stack) -> None:
    """It is defined, listed, replaced with a note on what is removed, and deleted."""
    put = ["limits", "put", "cli-api"]
    defined = json.loads(stack.program.ok(*put, "--rate", "100", "--per", "1m", "--burst", "5", "--json"))
    assert defined["rate"] == {"count": 100, "per_seconds": 60.0, "burst": 5}
    listed = stack.program.run("limits")
    assert "cli-api\t\t100 in 60 s, burst 5" in listed.out
    replaced = stack.program.run(*put, "--max-in-flight", "2")
    assert "The limit had a rate of 100 in 60 s, burst 5 besides" in replaced.err
    assert "max_in_flight" not in stack.program.run(*put, "--max-in-flight", "3").err
    removed = stack.program.run(*put, "--rate", "1", "--per", "90s")
    assert "The limit had --max-in-flight 3 besides" in removed.err
    assert "is deleted" in stack.program.run("limits", "delete", "cli-api").err
    assert "there is no limit 'cli-api'" in stack.program.error_of("limits", "delete", "cli-api")


def test_wrong_limits(stack: Stack) -> None:
    """Each error names the option or what a name may have."""
    assert "--max-in-flight, or --rate" in stack.program.error_of("limits", "put", "x", code=2)
    wrong = ["limits", "put", "a b", "--max-in-flight", "1"]
    assert "'a b' is no name of a limit: write 1 to 64 letters" in stack.program.error_of(*wrong)
    wrong = ["limits", "put", "x", "--rate", "1", "--per", "soon"]
    assert "'soon' is not a duration" in stack.program.error_of(*wrong, code=2)


def test_the_limits_of_a_job_are_shown(stack: Stack) -> None:
    """In words, not as values of Python; other objects as their fields."""
    stack.program.ok("limits", "put", "shown-api", "--max-in-flight", "1")
    limits = [
        {"key": "room", "max_in_flight": 2, "rate": {"count": 10, "per_seconds": 60}},
        {"key": "/site", "name": "shown-api"},
        {"max_in_flight": 8},
    ]
    policy = {"limits": limits, "retry_on": ["error", "timeout"], "backoff": {"base_seconds": 2}}
    shown = stack.program.ok("register", "lab:jobs:limited", "--policy", json.dumps(policy))
    text = "max_in_flight 2 and rate 10 in 60 s per room; shown-api per /site; max_in_flight 8"
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if line[:1].isalpha())
    assert lines["limits"] == text
    assert lines["retry_on"] == "error, timeout"
    assert lines["backoff"] == "base_seconds=2"
    stack.program.ok("forget", "lab:jobs:limited")
    stack.program.ok("limits", "delete", "shown-api")
