"""The command `webhooks`, with a real server."""

import json

from cli.conftest import Stack


def test_a_webhook_from_its_creation_to_its_deletion(stack: Stack) -> None:
    """It is written with a new secret that is printed once, listed, shown, tested and deleted."""
    room, url = ["--room", "webhooks"], "https://hooks.invalid/ci"
    put = stack.program.run("webhooks", "put", "ci", url, "--event", "task.failed", "--new-secret", *room)
    assert "whsec_" in put.err
    assert "whsec_" not in put.out
    table, shown, sent = stack.program.run_all(
        [["webhooks", *room], ["webhooks", "show", "ci", *room, "--json"], ["webhooks", "test", "ci", *room]]
    )
    head, line = table.out.splitlines()
    assert head.split("\t")[:5] == ["name", "url", "events", "state", "waiting"]
    assert line.split("\t")[:3] == ["ci", url, "task.failed"]
    assert json.loads(shown.out)["is_signed"] is True
    number = sent.out.strip()
    assert stack.program.ok("webhooks", "repeat", number, *room).strip() != number
    listed = stack.program.ok("webhooks", "deliveries", "--webhook", "ci", *room, "--json")
    assert [item["event"] for item in json.loads(listed)] == ["webhook.test"] * 2
    new = json.loads(stack.program.ok("webhooks", "put", "ci", url, "--new-secret", "--json", *room))
    assert new["secret"].startswith("whsec_")
    stack.program.ok("webhooks", "delete", "ci", *room)
    assert "no webhook 'ci'" in stack.program.error_of("webhooks", "show", "ci", *room)


def test_a_submit_names_a_webhook(stack: Stack) -> None:
    """The end of the task is sent there."""
    room = ["--room", "hooked"]
    submit = ["submit", "Show", *room, "--delay", "1h", "--webhook", "https://hooks.invalid/task"]
    task_id = stack.program.ok(*submit).strip()
    stack.program.ok("cancel", task_id)
    listed = json.loads(stack.program.ok("webhooks", "deliveries", "--task", task_id, *room, "--json"))
    assert [(item["event"], item["webhook"]) for item in listed] == [("task.cancelled", None)]


def test_wrong_webhooks_name_the_option(stack: Stack) -> None:
    """The URL is checked before a request; two secrets are a mistake; an unsigned webhook is noted."""
    wrong = stack.program.error_of("webhooks", "put", "ci", "ftp://hooks.invalid", code=2)
    assert "https://" in wrong
    both = ["--secret", "whsec_x", "--new-secret"]
    assert "--new-secret" in stack.program.error_of(
        "webhooks", "put", "ci", "https://x.invalid", *both, code=2
    )
    room = ["--room", "unsigned"]
    assert "not signed" in stack.program.run("webhooks", "put", "ci", "https://hooks.invalid", *room).err
