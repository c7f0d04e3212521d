"""The command `schedules`, with a real server and a real worker."""

import json

from cli.conftest import Stack


def test_a_schedule_from_its_creation_to_its_deletion(stack: Stack) -> None:
    """It is written, listed, shown, paused, resumed, run and deleted; each command says what it is about."""
    room = ["--room", "schedules"]
    put = ["schedules", "put", "nightly", "Show", "value=7", "--cron", "0 3 * * *"]
    more = ["--time-zone", "Europe/Berlin", "--overlap", "skip", "--jitter", "5m"]
    written = stack.program.ok(*put, *room, *more)
    fields = dict(line.split(maxsplit=1) for line in written.splitlines())
    assert (fields["name"], fields["rule"]) == ("nightly", "0 3 * * * Europe/Berlin")
    assert (fields["overlap"], fields["jitter_seconds"]) == ("skip", "300.0")
    table, shown, times, paused, resumed, task = stack.program.run_all(
        [
            ["schedules", *room],
            ["schedules", "show", "nightly", *room, "--json"],
            ["schedules", "next", "nightly", *room, "--count", "3"],
            ["schedules", "pause", "nightly", *room, "--json"],
            ["schedules", "resume", "nightly", *room, "--json"],
            ["schedules", "run", "nightly", *room],
        ]
    )
    head, line = table.out.splitlines()
    assert head.split("\t") == ["name", "job", "rule", "state", "next", "last", "error"]
    in_all_rooms = stack.program.ok("schedules", "--all-rooms").splitlines()
    assert "nightly\tschedules\t@global:analysis:Show" in "\n".join(in_all_rooms)
    assert line.split("\t")[:2] == ["nightly", "@global:analysis:Show"]
    assert json.loads(shown.out)["payload"] == {"value": 7}
    assert len(times.out.splitlines()) == 4
    assert {json.loads(paused.out)["paused"], json.loads(resumed.out)["paused"]} <= {True, False}
    assert json.loads(stack.program.ok("task", task.out.strip(), "--json"))["schedule"] == "nightly"
    stack.program.ok("schedules", "delete", "nightly", *room)
    assert "no schedule 'nightly'" in stack.program.error_of("schedules", "show", "nightly", *room)


def test_a_schedule_of_unique_tasks(stack: Stack) -> None:
    """`--unique` and `--debounce` are those of `submit`; the rule is shown as it is written."""
    room = ["--room", "unique-schedules"]
    put = ["schedules", "put", "sync", "Show", "--every", "1h", "--unique", "state", "--debounce", "5m"]
    needs = ["--require", "gpu=a100", "--cost", "2", "--prefer", "host=n7"]
    shown = json.loads(stack.program.ok(*put, *needs, *room, "--json"))
    assert (shown["requires"], shown["cost"], shown["prefer"]) == ({"gpu": "a100"}, 2, {"host": "n7"})
    preferring = ["submit", "Show", "value=7", "--cost", "3", "--prefer", "host=n7", *room, "--json"]
    assert json.loads(stack.program.ok(*preferring))["cost"] == 3
    assert (shown["unique"]["key"], shown["debounce"]) == ("state", {"seconds": 300.0})
    text = stack.program.ok("schedules", "show", "sync", *room)
    assert "unique       key=state\n" in text
    assert "seconds=300" in text
    wrong = stack.program.error_of(*put, *room, "--jitter", "5m", code=2)
    assert "debounce: it sets the time of the task; remove jitter_seconds" in wrong


def test_wrong_options(stack: Stack) -> None:
    """Exit code 2, and a line that says what to write."""
    put = ["schedules", "put", "wrong", "Show"]
    assert "Give one of --cron, --every and --at" in stack.program.error_of(*put, code=2)
    assert "no cron expression" in stack.program.error_of(*put, "--cron", "daily", code=2)
    twice = [*put, "--every", "1h", "--every", "2h"]
    assert "--every has 2 values" in stack.program.error_of(*twice, code=2)
    assert "every_seconds" in stack.program.error_of(*put, "--every", "0.1", code=2)
    assert "time_zone" in stack.program.error_of(*put, "--cron", "0 3 * * *", "--time-zone", "Mars", code=2)


def test_options_before_a_command_are_refused(stack: Stack) -> None:
    """They would have no effect on it: a deletion in the wrong room, or an action on all tasks."""
    before = ["schedules", "--room", "lab", "delete", "nightly"]
    assert "--room before 'delete' would have no effect" in stack.program.error_of(*before, code=2)
    before = ["tasks", "--status", "failed", "bulk", "retry", "--yes"]
    assert "--status before 'bulk'" in stack.program.error_of(*before, code=2)
