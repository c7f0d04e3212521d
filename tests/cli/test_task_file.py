"""`submit --from`: the tasks of a JSON Lines file."""

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from sdk.proxy import Proxy, raw

from cli.conftest import Stack
from cli.program import Program, RunningServer
from cli.terminal import OnTerminal
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.worker.rest import RestApi

SHOW = "@global:analysis:Show"


def lines(*tasks: object) -> str:
    """Return tasks as JSON Lines, with a blank line at the end."""
    return "\n".join([*(json.dumps(task) for task in tasks), "", ""])


def write(stack: Stack, text: str) -> str:
    """Write a file into the program's folder; return its name."""
    name = f"{uuid4().hex}.jsonl"
    (stack.program.folder / name).write_text(text)
    return name


def test_each_line_is_a_task(stack: Stack) -> None:
    """The ids are printed in order. JOB and the options are defaults for lines without them."""
    file = write(
        stack,
        lines(
            {"payload": {"value": 1}},
            {},
            {"job": "Picky", "payload": {"number": 3}, "room": "lab-2", "priority": 9, "delay_seconds": 500},
        ),
    )
    done = stack.program.run("submit", "Show", "--from", file, "--room", "lab-1", "--run-at", "2040-01-01")
    assert (done.code, done.err) == (0, f"Submitted 3 of 3 tasks of {file}.\n")
    first, second, third = [stack.client.get_task(task_id) for task_id in done.out.split()]
    assert [(task.room_id, task.job_name) for task in (first, second)] == [("lab-1", SHOW)] * 2
    assert (first.payload, second.payload, third.payload) == ({"value": 1}, {}, {"number": 3})
    assert first.run_at is not None
    assert first.run_at.year == 2040
    assert (third.room_id, third.job_name, third.priority) == ("lab-2", "@global:modifiers:Picky", 9)
    assert third.run_at is not None
    assert third.run_at < first.run_at


def test_invalid_lines_are_named_and_nothing_is_submitted(stack: Stack) -> None:
    """One error line has the number of each line, its field and what is wrong with it; the exit code is 2."""
    room = f"room-{uuid4().hex[:8]}"
    bad = [
        '{"payload": {}}',
        '{"payload": {"x": 1}',
        '{"value": 1}',
        '{"priority": 5000}',
        "[1]",
        '{"job": "Nope"}',
        '{"job": "a:b"}',
        '{"payload": {"x": NaN}}',
        '{"run_at": "2040-01-01T00:00:00Z", "delay_seconds": 1}',
    ]
    error = stack.program.error_of(
        "submit", "Show", "--from", write(stack, "\n".join(bad)), "--room", room, code=2
    )
    assert "8 of the 9 lines" in error
    expected = {
        2: "JSON",
        3: "value: unknown field; a line has the fields payload, priority",
        4: "priority: ",
        5: "object",
        6: "Check the name, start a worker that serves the job",
        7: "sees no job 'a:b'",
        8: "JSON",
        9: "give run_at or delay_seconds, not both",
    }
    for number, text in expected.items():
        assert text in error.split(f"line {number}: ")[1].split("; line ")[0], number
    assert stack.client.tasks(room).total == 0


def test_wrong_usage_is_explained(stack: Stack) -> None:
    """An empty file, a missing file or job, and options that have no meaning."""
    empty, jobless = write(stack, "\n\n"), write(stack, lines({}))
    unread, none, missing, combined, alone = stack.program.run_all(
        [
            ["submit", "Show", "--from", "no-such-file"],
            ["submit", "Show", "--from", empty],
            ["submit", "--from", jobless],
            ["submit", "Show", "value=1", "--from", jobless],
            ["submit"],
        ]
    )
    texts = (
        "cannot be read",
        "has no tasks",
        "line 1: job is missing",
        "KEY=VALUE cannot be",
        "JOB is missing",
    )
    for done, text in zip((unread, none, missing, combined, alone), texts, strict=True):
        assert (done.code, done.is_error_line, text in done.err) == (2, True, True), done


def test_a_refused_task_is_named_by_its_line(stack: Stack) -> None:
    """The others are submitted; standard output has an empty line for it, and the exit code is 1."""
    file = write(
        stack,
        "\n" + lines({"payload": {"number": 1}}, {"payload": {"number": "x"}}, {"payload": {"number": 2}}),
    )
    done = stack.program.run("submit", "Picky", "--from", file)
    first, refused, last, end = done.out.split("\n")
    assert (done.code, bool(first), refused, bool(last), end) == (1, True, "", True, "")
    notes = done.err.splitlines()
    assert notes[0].startswith("line 3: ")
    assert "payload/number" in notes[0]
    assert notes[1] == f"Submitted 2 of 3 tasks of {file}."
    assert notes[2].startswith("Error: 1 task refused")


def test_a_repeat_with_the_same_key_submits_nothing_again(stack: Stack) -> None:
    """Also from standard input. A changed file with the same key is refused."""
    room, key = f"room-{uuid4().hex[:8]}", str(uuid4())
    command = [sys.executable, "-m", "zndraw_joblib", "submit", "Twin", "--from", "-", "--room", room]
    command += ["--idempotency-key", key]

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            input=text,
            env=stack.program.env,
            cwd=stack.program.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    tasks = [{"payload": {"n": number}} for number in range(1_200)]
    first, again = run(lines(*tasks)), run(lines(*tasks))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr
    assert first.stdout == again.stdout
    assert len(set(first.stdout.split())) == 1_200
    assert stack.client.tasks(room).total == 1_200
    changed = run(lines({"payload": {"n": -1}}, *tasks[1:]))
    assert changed.returncode == 1
    assert changed.stderr.count("Idempotency-Key") == 1_000
    assert stack.client.tasks(room).total == 1_200


def test_a_terminal_shows_a_progress_bar(stack: Stack) -> None:
    """It is on standard error; the ids go to standard output, also if that is a pipe."""
    file = write(stack, lines({}, {}))
    with OnTerminal(stack.program, "submit", "Twin", "--from", file) as terminal:
        code, out = terminal.end()
    assert (code, len(out.split())) == (0, 2)
    assert "Submitting" in terminal.shown
    assert "2/2" in terminal.shown


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_an_error_in_between_names_the_key(tmp_path: Path, database_url: str) -> None:
    """With the key, the same command submits the missing tasks. On either database."""
    program = Program(tmp_path)
    page = raw("502 Bad Gateway", b"bad gateway")
    submits = 0

    def rule(_: str, path: str) -> bytes | None:
        nonlocal submits
        submits += path.endswith("/tasks/submit")
        return page if submits > 1 else None

    with RunningServer(program, DATABASE_URL=database_url) as server, server.connect() as api:
        api.http.put(
            f"{server.url}/v1/joblib/rooms/@global/jobs",
            json={"category": "modifiers", "name": "Twin"},
            headers=api.get_headers(),
        ).raise_for_status()
        (tmp_path / "tasks.jsonl").write_text("{}\n" * 1_500)
        command = ("submit", "@global:modifiers:Twin", "--from", "tasks.jsonl", "--room", "lab")
        with Proxy(server.url, rule) as proxy:
            failed = program.run(*command, URL=proxy.url, TOKEN=str(server.token))
        assert failed.code == 1
        assert len(failed.out.split()) == 1_000
        assert "1,000 tasks were sent before. To repeat a submit, pass --idempotency-key " in failed.err
        key = failed.err.rsplit("--idempotency-key ", 1)[1].split()[0].rstrip(".")
        done = program.ok(*command, "--idempotency-key", key, URL=server.url)
        assert len(set(done.split())) == JobClient(RestApi(api)).tasks("lab").total == 1_500
