"""Follow tasks: the bar, the log, why a task waits, and what the command says when it stops."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from cli.conftest import Stack
from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.rest import RestApi

JOBS = '''
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from zndraw_joblib import Category, Extension, JobPolicy
from zndraw_joblib.contract.policy import Backoff, RetryOn


class Report(Extension):
    """Report progress, print, wait until the file `gate` exists, and end as `then` says."""

    category: ClassVar[Category] = Category.ANALYSIS
    policy: ClassVar[JobPolicy] = JobPolicy(
        max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=Backoff(base_seconds=0)
    )
    gate: str = ""
    then: str = ""

    def run(self, vis: Any, task: Any) -> Any:
        task.progress(3, 8, unit="frames", message="relaxing")
        print(f"first\\tline of attempt {task.attempt}")
        task.log("\\x1b[31mcareful\\x1b[0m\\x07", level="warning")
        while self.gate and not Path(self.gate).exists():
            time.sleep(0.01)
        print("last line")
        if self.then == "fail":
            raise ValueError(f"attempt {task.attempt}")
        return bytes(range(256)) if self.then == "bytes" else {"frames": 8}
'''


@pytest.fixture(scope="module")
def reporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a server and a worker with JOBS."""
    folder = tmp_path_factory.mktemp("reporting")
    (folder / "report_jobs.py").write_text(JOBS)
    program = Program(folder)
    with RunningServer(program) as server, server.connect() as connection:
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        worker = program.start("worker", "report_jobs.py", "--concurrency", "4")
        client = JobClient(RestApi(connection))
        wait_until(lambda: client.jobs().total == 1 or worker.poll())
        yield Stack(program, server, client)
        worker.send_signal(signal.SIGINT)
        worker.communicate()


class OnTerminal:
    """A command whose standard error is a terminal."""

    def __init__(self, stack: Stack, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zndraw_joblib", *arguments],
            env={**stack.program.env, "TERM": "xterm", "COLUMNS": "120"},
            cwd=stack.program.folder,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        self.shown = ""

    def read_until(self, text: str) -> None:
        """Read the terminal until it shows a text."""
        while text not in self.shown:
            self.shown += os.read(self._ours, 65536).decode(errors="replace")

    def end(self) -> tuple[int, str]:
        """Read the terminal until the command has ended. Return its exit code and standard output."""
        try:
            while piece := os.read(self._ours, 65536):
                self.shown += piece.decode(errors="replace")
        except OSError:  # Linux: all ends of the terminal are closed
            pass
        os.close(self._ours)
        out = self.process.communicate(timeout=TIMEOUT)[0]
        return self.process.returncode, out.decode()


def submit(stack: Stack, *values: str) -> str:
    """Submit a task and return its id."""
    payload = dict(value.split("=") for value in values)
    return stack.client.submit("@global:analysis:Report", payload, room="lab")


def test_a_terminal_shows_the_bar_and_the_last_lines(reporting: Stack, tmp_path: Path) -> None:
    """They disappear at the end; standard output has only the result."""
    command = OnTerminal(reporting, "submit", "Report", f"gate={tmp_path / 'gate'}", "--wait")
    command.read_until("3/8 frames")
    command.read_until("careful")
    assert "running: relaxing" in command.shown
    (tmp_path / "gate").touch()
    code, out = command.end()
    assert (code, json.loads(out)) == (0, {"frames": 8})
    assert "\x07" not in command.shown
    assert "completed in" in command.shown


def test_a_pipe_gets_only_the_result(reporting: Stack) -> None:
    """Standard error has one note at the end: no bar and no log."""
    done = reporting.program.run("submit", "Report", "--wait")
    assert (done.code, json.loads(done.out)) == (0, {"frames": 8})
    assert re.fullmatch(r"Task \S+ completed[^\n]*\.\n", done.err)


def test_a_failure_prints_the_traceback_of_the_job(reporting: Stack) -> None:
    """It has the job's own frames and comes before the error line."""
    with reporting.program.start("submit", "Report", "then=fail", "--wait") as process:
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (1, "")
    *lines, last = err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "report_jobs.py" in err
    assert "zndraw_joblib/" not in err
    assert lines[-1] == "ValueError: attempt 2"
    assert last.endswith("failed: ValueError: attempt 2")


def test_a_timeout_ends_only_the_waiting(reporting: Stack, tmp_path: Path) -> None:
    """The exit code is 124, and the message says how to follow the task."""
    gate = tmp_path / "gate"
    error = reporting.program.error_of(
        "submit", "Report", f"gate={gate}", "--wait", "--timeout", "2", code=124
    )
    task_id = re.search(r"'zndraw-joblib task (\S+) --follow' follows it", error)
    assert task_id is not None
    assert f"Task {task_id[1]} is running after 2 s. The task goes on" in error
    gate.touch()
    assert reporting.client.wait_for(task_id[1], TIMEOUT).status == "completed"


def test_the_command_says_why_a_task_waits(reporting: Stack) -> None:
    """A paused job, and a job without a worker; on a pipe too, each once, with the remedy."""
    with reporting.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/idle/jobs"
        body = {"category": "analysis", "name": "Idle"}
        job = api.http.put(url, json=body, headers=api.get_headers()).json()
        reporting.program.ok("submit", "idle:analysis:Idle")  # or the job would end with its worker
        reporting.program.ok("pause", "idle:analysis:Idle")
        path = f"{api.base_url}/v1/joblib/workers/{job['worker_id']}"
        assert api.http.delete(path, headers=api.get_headers()).status_code == 204
    done = reporting.program.run("submit", "idle:analysis:Idle", "--wait", "--timeout", "1")
    assert (done.code, done.out) == (124, "")
    paused, unserved, error = done.err.splitlines()
    assert "is paused; 'zndraw-joblib resume idle:analysis:Idle' resumes it." in paused
    assert "No worker serves idle:analysis:Idle; 'zndraw-joblib worker FILE' starts one." in unserved
    assert "is pending after 1 s: Job idle:analysis:Idle is paused. The task goes on" in error


@pytest.mark.parametrize("command", ["submit", "task"])
def test_ctrl_c_ends_only_the_following(reporting: Stack, tmp_path: Path, command: str) -> None:
    """The exit code is 130; the message says how to continue."""
    gate = tmp_path / "gate"
    arguments = ["submit", "Report", f"gate={gate}", "--wait"]
    if command == "task":
        arguments = ["task", submit(reporting, f"gate={gate}"), "--follow"]
    terminal = OnTerminal(reporting, *arguments)
    terminal.read_until("3/8 frames")
    terminal.process.send_signal(signal.SIGINT)
    code, _ = terminal.end()
    assert code == 130
    found = re.search(r"The task goes on: 'zndraw-joblib task (\S+) --follow' follows it", terminal.shown)
    assert found is not None
    gate.touch()
    assert reporting.client.wait_for(found[1], TIMEOUT).status == "completed"


def test_follow_prints_each_line_once(reporting: Stack, tmp_path: Path) -> None:
    """Of both attempts, while the task runs; the exit code is that of the failed task."""
    gate = tmp_path / "gate"
    task_id = submit(reporting, f"gate={gate}", "then=fail")
    with reporting.program.start("task", task_id, "--follow") as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("\tinfo\tstdout\tfirst line of attempt 1\n")
        gate.touch()
        out = process.stdout.read()
        assert process.stderr is not None
        err = process.stderr.read()
    assert process.returncode == 1
    assert [line.split("\t")[1:] for line in out.splitlines()] == [
        ["warning", "log", "careful "],
        ["info", "stdout", "last line"],
        ["info", "stdout", "first line of attempt 2"],
        ["warning", "log", "careful "],
        ["info", "stdout", "last line"],
    ]
    assert "Attempt 2 begins." in err


def test_the_details_of_each_attempt_are_kept(reporting: Stack) -> None:
    """`--logs --attempt` prints its lines; the history has its error, its progress and the lines' number."""
    task_id = submit(reporting, "then=fail")
    assert reporting.client.wait_for(task_id, TIMEOUT).status == "failed"
    task = ["task", task_id]
    first, last, as_json, history, shown, result = reporting.program.run_all(
        [
            [*task, "--logs", "--attempt", "1"],
            [*task, "--logs"],
            [*task, "--logs", "--json"],
            [*task, "--history"],
            task,
            [*task, "--result"],
        ]
    )
    assert "line of attempt 1" in first.out.splitlines()[0]
    assert "line of attempt 2" in last.out.splitlines()[0]
    assert [line["n"] for line in json.loads(as_json.out)] == [1, 2, 3]
    header, *rows = (line.split("\t") for line in history.out.splitlines())
    found = [dict(zip(header, row, strict=True)) for row in rows]
    ends = [(row["attempt"], row["progress"], row["lines"], row["error"]) for row in found if row["lines"]]
    assert ends == [
        (number, "3/8 frames (38%), relaxing", "3", f"ValueError: attempt {number}") for number in "12"
    ]
    assert re.search(r"^failure +ValueError$", shown.out, re.MULTILINE)
    assert shown.out.endswith("ValueError: attempt 2\n")
    assert result.is_error_line
    assert "failed, so it has no result" in result.err


def test_an_inline_result_is_json(reporting: Stack, tmp_path: Path) -> None:
    """A task that has not ended has none, and the error says how to wait."""
    gate = tmp_path / "gate"
    task_id = submit(reporting, f"gate={gate}")
    assert "--follow' waits for its end" in reporting.program.error_of("task", task_id, "--result")
    gate.touch()
    reporting.client.wait_for(task_id, TIMEOUT)
    assert json.loads(reporting.program.ok("task", task_id, "--result")) == {"frames": 8}


def test_a_stored_result_is_written_as_it_is(reporting: Stack) -> None:
    """Its bytes go to standard output, also with `submit --wait`."""
    task_id = submit(reporting, "then=bytes")
    reporting.client.wait_for(task_id, TIMEOUT)
    for command in (["task", task_id, "--result"], ["submit", "Report", "then=bytes", "--wait"]):
        done = subprocess.run(
            [sys.executable, "-m", "zndraw_joblib", *command],
            env=reporting.program.env,
            capture_output=True,
            check=True,
        )
        assert done.stdout == bytes(range(256))
    assert "256 bytes of application/octet-stream" in reporting.program.ok("task", task_id)
