"""The command `group`, and `submit --from --group`, with a real server and a real worker."""

import json
from pathlib import Path

from cli.conftest import Stack


def test_a_file_makes_a_group_that_is_followed(stack: Stack, tmp_path: Path) -> None:
    """The group is sealed after the last line; a repeat with the same key has the same group."""
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(json.dumps({"payload": {"value": number}}) for number in range(3)))
    submit = ["submit", "Show", "--from", str(file), "--group", "three", "--room", "grouped"]
    result = stack.program.run(*submit, "--idempotency-key", "three-1")
    assert result.code == 0, result.err
    assert len(result.out.split()) == 3
    group_id = result.err.split("zndraw-joblib group ")[1].split()[0]
    followed = stack.program.run("group", group_id, "--follow")
    assert followed.code == 0, followed.err
    fields = dict(line.split(maxsplit=1) for line in followed.out.splitlines() if " " in line)
    assert (fields["name"], fields["state"], fields["completed"]) == ("three", "ended", "3")
    again = stack.program.run(*submit, "--idempotency-key", "three-1")
    assert (again.out, group_id in again.err) == (result.out, True)
    begin = group_id[:24]
    shown = json.loads(stack.program.ok("group", begin, "--json"))
    assert (shown["total"], shown["sealed"]) == (3, True)
    # The room is that of the group.
    listed, failed, preview, groups, ended = stack.program.run_all(
        [
            ["tasks", "--group", begin, "--json"],
            ["tasks", "failures", "--group", group_id],
            ["tasks", "bulk", "retry", "--group", group_id, "--preview"],
            ["groups", "--room", "grouped", "--json"],
            ["submit", "Show", "value=1", "--room", "grouped", "--after", f"group:{begin}"],
        ]
    )
    assert [group["id"] for group in json.loads(groups.out)] == [group_id]
    assert (ended.code, ended.err) == (0, "")
    assert [task["id"] for task in json.loads(listed.out)[::-1]] == result.out.split()
    assert (failed.code, len(failed.out.splitlines())) == (0, 1)
    assert "retry: 0 tasks in room grouped" in preview.err


def test_a_file_with_an_invalid_line_makes_no_group(stack: Stack, tmp_path: Path) -> None:
    """All lines are checked first; a line that names another group is invalid."""
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"payload": {"value": 1}}\n{"payload": []}\n')
    submit = ["submit", "Show", "--from", str(file), "--group", "none", "--room", "without"]
    assert "so nothing was submitted: line 2" in stack.program.error_of(*submit, code=2)
    file.write_text('{"group": "00000000-0000-4000-8000-000000000000"}')
    assert "--group makes the group of all lines" in stack.program.error_of(*submit, code=2)
    with stack.server.connect() as server:
        url = f"{server.base_url}/v1/joblib/groups"
        response = server.http.get(url, params={"room": "without"}, headers=server.get_headers())
    assert response.json()["items"] == []


def test_a_group_ends_only_if_the_server_accepted_a_task(stack: Stack, tmp_path: Path) -> None:
    """If it refused all, the group stays open, also after a repeat; if it refused some, it has the others."""
    file = tmp_path / "tasks.jsonl"
    lines = ['{"payload": {"value": 0}, "room": "elsewhere"}', '{"payload": {"value": 1}}']
    for name, count in {"all-refused": 1, "some-refused": 2}.items():
        file.write_text("\n".join(lines[:count]))
        submit = ["submit", "Show", "--from", str(file), "--group", name, "--room", name]
        for _ in range(2):
            result = stack.program.run(*submit, "--idempotency-key", name)
            assert (result.code, "line 1: " in result.err) == (1, True), result.err
            assert ("stays open" in result.err) == (count == 1), result.err
        with stack.server.connect() as server:
            url = f"{server.base_url}/v1/joblib/groups"
            response = server.http.get(url, params={"room": name}, headers=server.get_headers())
        [group] = response.json()["items"]
        assert (group["total"], group["sealed"]) == (count - 1, count > 1)


def test_wrong_options(stack: Stack) -> None:
    """The message says what to do."""
    assert "Add --from" in stack.program.error_of("submit", "Show", "--group", "x", code=2)
    assert "not found" in stack.program.error_of("group", "00000000-0000-4000-8000-000000000000")
