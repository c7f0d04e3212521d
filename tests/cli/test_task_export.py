"""`tasks export` and `tasks import`: tasks as JSON Lines, submitted anew."""

import json
from typing import Any
from uuid import uuid4

from cli.conftest import Stack


def exported(stack: Stack, room: str, *options: str) -> list[dict[str, Any]]:
    """Return the lines of an export."""
    return [
        json.loads(line)
        for line in stack.program.ok("tasks", "export", "--room", room, *options).splitlines()
    ]


def write(stack: Stack, lines: list[dict[str, Any]]) -> str:
    """Write lines into a file of the program's folder; return its name."""
    name = f"{uuid4().hex}.jsonl"
    (stack.program.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


def test_an_import_submits_the_tasks_of_an_export_once(stack: Stack) -> None:
    """Priority, tags, parents, predecessors and references to results are kept; ids and results are new."""
    old, new = (f"room-{uuid4().hex[:8]}" for _ in range(2))
    job = "@global:analysis:Show"
    first = stack.client.submit(job, {"value": "ü" * 3}, room=old, tags=["a"], priority=7)
    second = stack.client.submit(job, {"value": 2}, room=old, parent=str(first), unique={"key": "mine"})
    reference = {"$result": {"task": str(first), "pointer": "/value"}}
    stack.client.submit(job, {"value": reference}, room=old, after={"tasks": [str(first)]}).wait(60)
    second.wait(60)
    assert [set(line) & {"result", "worker_id"} for line in exported(stack, old, "--tag", "a")] == [set()]
    lines = exported(stack, old, "--results")
    assert [line["result"]["value"] for line in lines] == ["ü" * 3, 2, "ü" * 3]
    file = write(stack, [{**line, "room_id": new} for line in lines])
    done = stack.program.run("tasks", "import", file)
    assert done.code == 0
    assert done.err == (
        f"Imported 3 of 3 tasks of {file}.\nNot kept: the result of 3 tasks, the unique key of 1 task.\n"
    )
    ids = done.out.split()
    again = stack.program.run("tasks", "import", file)
    assert again.out.split() == ids
    tasks = [stack.client.wait_for(task_id, 60) for task_id in ids]
    assert stack.client.tasks(new).total == 3
    assert not {str(first), str(second)} & set(ids)
    assert (tasks[0].priority, tasks[0].tags, str(tasks[1].parent)) == (7, ["a"], ids[0])
    assert tasks[2].result["value"] == "ü" * 3
    assert tasks[2].after is not None
    assert [str(it) for it in tasks[2].after.tasks] == ids[:1]


def test_lines_that_cannot_be_imported_are_named(stack: Stack) -> None:
    """The others are imported; a file with a broken line imports nothing."""
    room = f"room-{uuid4().hex[:8]}"
    task: dict[str, Any] = {
        "id": str(uuid4()),
        "job_name": "@global:analysis:Show",
        "room_id": room,
        "status": "pending",
    }
    task |= {"created_at": "2026-01-01T00:00:00Z", "payload": {"value": 1}}
    secret = {**task, "id": str(uuid4()), "payload": {"value": {"password": "**********"}}}
    step = {**task, "id": str(uuid4()), "after": {"tasks": [str(uuid4())]}}
    unknown = {**task, "id": str(uuid4()), "job_name": "@global:analysis:Gone"}
    done = stack.program.run("tasks", "import", write(stack, [task, secret, step, unknown]))
    assert (done.code, len(done.out.split())) == (1, 1)
    # Without these lines other tasks are in a batch with the first one, which is not submitted again.
    later = {**task, "id": str(uuid4())}
    assert done.out.strip() in stack.program.ok("tasks", "import", write(stack, [later, task])).split()
    for part in (
        "line 2: its payload has secret",
        "line 3: it waits for",
        "line 4: ",
        "3 tasks were not imported",
    ):
        assert part in done.err
    broken = write(stack, [task, {"id": 3}])
    assert "line 2: id: " in stack.program.error_of("tasks", "import", broken, code=2)
    assert stack.client.tasks(room).total == 2
