"""Text of users never controls the terminal of the commands or of the SDK; output for programs is exact."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.program import TIMEOUT, Program, RunningServer
from cli.terminal import OnTerminal

# An escape sequence, one that begins with a C1 code, a bell, the end of a line, and a change of direction.
EVIL = "a\x1b[31mred\x1b]0;title\x07\x9b31mb\x85c\u202ed\x7f[/b]"
CONTROLS = set("\x07\x9b\x85\x7f\u202e")
V1 = "/v1/joblib"


class Queue:
    """A server with one job and one task of which every text is hostile."""

    def __init__(self, program: Program, server: RunningServer) -> None:
        self.program = program
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        headers = {"Authorization": f"Bearer {server.token}"}
        self.client = httpx.Client(base_url=server.url, headers=headers, timeout=TIMEOUT)
        fields = {"value": {"type": "string", "examples": [EVIL], "description": EVIL, "default": EVIL}}
        schema = {"type": "object", "description": EVIL, "properties": fields}
        self.worker = self.send("POST", "workers", json={"worker": {"name": "w"}})["id"]
        job = {"category": "analysis", "name": "Evil", "schema": schema, "worker_id": self.worker}
        self.job = self.send("PUT", "rooms/lab/jobs", json=job)["full_name"]

    def send(self, method: str, path: str, **options: Any) -> Any:
        """Send a request that must succeed."""
        response = self.client.request(method, f"{V1}/{path}", **options)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def start(self) -> str:
        """Submit, claim and start a task; return its id."""
        self.send("POST", f"rooms/lab/tasks/{self.job}", json={"payload": {"value": EVIL}})
        task = self.send("POST", "tasks/claim", json={"worker_id": self.worker, "start": True})["task"]
        return str(task["id"])

    def report(self, task_id: str, **fields: Any) -> None:
        """Report on a task."""
        self.send("PATCH", f"tasks/{task_id}", json={"worker_id": self.worker, "attempt": 1, **fields})

    def upload(self, task_id: str, content: bytes, content_type: str) -> None:
        """Upload the result of a task."""
        headers = {"Content-Type": content_type, "X-Worker-ID": self.worker}
        path = f"tasks/{task_id}/result"
        self.send("PUT", path, content=content, headers=headers, params={"attempt": 1})


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    """Return a queue of hostile texts."""
    program = Program(tmp_path_factory.mktemp("evil"))
    # Its worker sends no heartbeats.
    with RunningServer(program, WORKER_TIMEOUT_SECONDS="3600") as server:
        queue = Queue(program, server)
        yield queue
        queue.client.close()


def shown(queue: Queue, *arguments: str) -> str:
    """Return what a command shows on a terminal, without the styles of its own."""
    with OnTerminal(queue.program, *arguments, is_output=True) as terminal:
        terminal.end()
    assert not CONTROLS & set(terminal.shown), ascii(terminal.shown)
    assert "\x1b]" not in terminal.shown
    assert "\x1b[31mred" not in terminal.shown
    assert "red" in terminal.shown, terminal.shown
    return terminal.shown


def test_a_job_is_shown_safely(queue: Queue) -> None:
    """Its description, its parameters and the example call; in a pipe too."""
    assert "Example: zndraw-joblib submit lab:analysis:Evil" in shown(queue, "jobs", queue.job)
    out = queue.program.ok("jobs", queue.job)
    assert not (CONTROLS | {"\x1b"}) & set(out)


def test_a_task_is_shown_safely(queue: Queue) -> None:
    """Payload, error, traceback, progress, log and history."""
    task_id = queue.start()
    lines = [{"at": "2026-01-01T00:00:00Z", "text": EVIL}]
    queue.report(
        task_id, progress={"message": EVIL, "unit": EVIL, "current": 1}, log={"first": 1, "lines": lines}
    )
    shown(queue, "task", task_id)
    failure = {"type": EVIL, "traceback": EVIL}
    queue.report(task_id, status="failed", error=EVIL, failure=failure)
    for option in ("--logs", "--history", "--follow"):
        shown(queue, "task", task_id, option)
    shown(queue, "task", task_id)
    shown(queue, "tasks", "--room", "lab")


def test_json_is_exact_and_has_no_control_characters(queue: Queue) -> None:
    """They are written as escapes, on a terminal and in a pipe."""
    task_id = queue.start()
    out = queue.program.ok("task", task_id, "--json")
    assert json.loads(out)["payload"] == {"value": EVIL}
    assert not (CONTROLS | {"\x1b"}) & set(out)
    queue.report(task_id, status="completed", result={"value": EVIL, EVIL: [EVIL]})
    result = shown(queue, "task", task_id, "--result")
    assert json.loads(result) == {"value": EVIL, EVIL: [EVIL]}


def test_a_text_result_is_shown_safely(queue: Queue, tmp_path: Path) -> None:
    """In a pipe it is what was uploaded, byte for byte."""
    task_id = queue.start()
    content = f"{EVIL}\r\n\tsecond line\r\n".encode() + b"\x9b\xff"
    queue.upload(task_id, content, "text/plain")
    queue.report(task_id, status="completed")
    assert "second line" in shown(queue, "task", task_id, "--result")
    with (tmp_path / "out").open("w+b") as file:
        with queue.program.start("task", task_id, "--result", output=file) as process:  # type: ignore[arg-type]
            assert process.wait(TIMEOUT) == 0
        file.seek(0)
        assert file.read() == content


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_a_line_at_an_end_of_the_calendar_is_shown(queue: Queue, at: str, zone: str) -> None:
    """In every time zone, although its time there may have no date."""
    task_id = queue.start()
    queue.report(task_id, log={"first": 1, "lines": [{"at": at, "text": "red"}]})
    queue.program.env["TZ"] = zone
    for option in ("--logs", "--history"):
        with OnTerminal(queue.program, "task", task_id, option, is_output=True) as terminal:
            code, _ = terminal.end()
        assert (code, "Traceback" in terminal.shown) == (0, False), terminal.shown
    queue.program.env.pop("TZ")


def test_the_bar_of_the_sdk_is_safe(queue: Queue, tmp_path: Path) -> None:
    """A progress message is text, with its brackets, and no command."""
    program = Program(tmp_path)
    (tmp_path / "bar.py").write_text(
        "from zndraw_joblib.client.task_id import Bar\n"
        f"with Bar(shown=True) as bar:\n    bar.show({EVIL!r}, 1, 2)\n    bar.progress.refresh()\n"
    )
    with OnTerminal(program, module="bar") as terminal:
        terminal.end()
    assert "red" in terminal.shown
    assert "[/b]" in terminal.shown
    assert not CONTROLS & set(terminal.shown), ascii(terminal.shown)
    assert "\x1b]" not in terminal.shown
    assert "\x1b[31mred" not in terminal.shown
