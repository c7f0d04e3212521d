"""The example of a job that submits others: its tree, and its tags."""

import json

from cli.conftest import Stack


def test_the_campaign_has_a_tree(examples: Stack) -> None:
    """Each part is a task below the campaign, with a result of its own."""
    program = examples.program
    parts = json.loads(program.ok("submit", "campaign", "parts=4", "--tag", "tuesday", "--wait"))
    [top] = json.loads(program.ok("tasks", "--tag", "tuesday", "--json"))
    below = json.loads(program.ok("tasks", "--root", top["id"], "--json"))
    assert [task["id"] for task in below] == parts[::-1]
    assert {task["parent"] for task in below} == {top["id"]}
    results = [examples.client.wait_for(part, 60).result for part in parts]
    assert results == [0, 1, 4, 9]
    assert program.run("cancel", top["id"], "--tree").code == 0
