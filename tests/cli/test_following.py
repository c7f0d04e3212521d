"""Follow tasks: the bar, the log, why a task waits, and what the command says when it stops."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from copy import copy
from pathlib import Path

import pytest
from sdk.proxy import Proxy, raw
from servers import free_port
from waiting import wait_until

from cli.conftest import Stack, serving
from cli.program import TIMEOUT, Program, RunningServer
from cli.terminal import OnTerminal
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.wire.problems import PROBLEM_MEDIA_TYPE as PROBLEM
from zndraw_joblib.worker.rest import RestApi

JOBS = '''
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from zndraw_joblib import Category, Extension, JobPolicy
from zndraw_joblib.wire.policy import Backoff, RetryOn


class Report(Extension):
    """Report progress, print, wait until the file `gate` exists, and end as `then` says."""

    category: ClassVar[Category] = Category.ANALYSIS
    policy: ClassVar[JobPolicy] = JobPolicy(
        max_attempts=2, retry_on=(RetryOn.ERROR,), backoff=Backoff(base_seconds=0)
    )
    gate: str = ""
    then: str = ""
    lines: str = "0"

    def run(self, vis: Any, task: Any) -> Any:
        for number in range(int(self.lines)):
            print(f"line {number} ")
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
    with serving(tmp_path_factory.mktemp("reporting"), JOBS, ["Report"], "--concurrency", "4") as stack:
        yield stack


def submit(stack: Stack, *values: str) -> str:
    """Submit a task and return its id."""
    payload = dict(value.split("=") for value in values)
    return stack.client.submit("@global:analysis:Report", payload, room="lab")


def test_a_terminal_shows_the_bar_and_the_last_lines(reporting: Stack, tmp_path: Path) -> None:
    """They disappear at the end; standard output has only the result."""
    with OnTerminal(reporting.program, "submit", "Report", f"gate={tmp_path / 'gate'}", "--wait") as command:
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


def test_a_terminal_shows_long_lists_shortened(stack: Stack) -> None:
    """Of 60 numbers 50, in the result and in the payload of `task ID`; a list of 50 is complete."""
    numbers, few = list(range(60)), list(range(50))
    values = f"value={json.dumps(numbers)}", f"other={json.dumps(few)}"
    with OnTerminal(stack.program, "submit", "Show", *values, "--wait", is_output=True) as terminal:
        assert terminal.end()[0] == 0
    shown = json.loads(terminal.shown[terminal.shown.index("{") : terminal.shown.rindex("}") + 1])
    assert (shown["value"], shown["other"]) == ([*few, "… and 10 more items"], few)
    found = re.search(r"'zndraw-joblib task (\S+) --result > FILE' writes", terminal.shown)
    assert found is not None
    with OnTerminal(stack.program, "task", found[1], is_output=True) as task:
        assert task.end()[0] == 0
    assert task.shown.count("… and 10 more items") == 2
    assert json.loads(stack.program.ok("task", found[1], "--result"))["value"] == numbers


def test_a_failure_prints_the_traceback_of_the_job(reporting: Stack) -> None:
    """It has the job's own frames and comes before the error line."""
    with reporting.program.start("submit", "Report", "then=fail", "--wait") as process:
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (1, "")
    *lines, last = err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "my_jobs.py" in err
    assert "zndraw_joblib/" not in err
    assert lines[-1] == "ValueError: attempt 2"
    assert last.endswith("failed: ValueError: attempt 2")


def test_a_timeout_ends_only_the_waiting(reporting: Stack, tmp_path: Path) -> None:
    """The exit code is 124, and the message says how to follow the task."""
    gate = tmp_path / "gate"
    command = "submit", "Report", f"gate={gate}", "--idempotency-key", str(gate)
    task_id = reporting.program.ok(*command).strip()
    wait_until(lambda: reporting.client.get_task(task_id).status == "running")
    error = reporting.program.error_of(*command, "--wait", "--timeout", "1", code=124)
    assert f"Task {task_id} is running after 1 s. The task goes on" in error
    assert f"'zndraw-joblib task {task_id} --follow' follows it" in error
    gate.touch()
    assert reporting.client.wait_for(task_id, TIMEOUT).status == "completed"


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
    assert "No worker serves idle:analysis:Idle since " in unserved
    assert "UTC; 2 tasks wait in its queue; 'zndraw-joblib worker FILE' starts one." in unserved
    assert "is pending after 1 s: Job idle:analysis:Idle is paused. The task goes on" in error


@pytest.mark.parametrize("command", ["submit", "task"])
def test_ctrl_c_ends_only_the_following(reporting: Stack, tmp_path: Path, command: str) -> None:
    """The exit code is 130; the message says how to continue."""
    gate = tmp_path / "gate"
    arguments = ["submit", "Report", f"gate={gate}", "--wait"]
    if command == "task":
        arguments = ["task", submit(reporting, f"gate={gate}"), "--follow"]
    with OnTerminal(reporting.program, *arguments) as terminal:
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


def test_a_terminal_shows_the_last_of_the_earlier_lines(reporting: Stack, tmp_path: Path) -> None:
    """And how to read all: old lines do not look like new ones. The bar shows how long the task runs."""
    gate = tmp_path / "gate"
    task_id = submit(reporting, f"gate={gate}", "lines=30")
    lines_of = ["task", task_id, "--logs"]
    wait_until(lambda: "careful" in reporting.program.ok(*lines_of), interval=0.2)
    with OnTerminal(reporting.program, "task", task_id, "--follow", is_output=True) as terminal:
        terminal.read_until("careful")
        gate.touch()
        assert terminal.end()[0] == 0
    assert f"22 earlier lines of the log: 'zndraw-joblib task {task_id} --logs' prints all." in terminal.shown
    assert "line 21 " not in terminal.shown
    for line in ("line 22 ", "line 29 ", "first", "last line"):
        assert line in terminal.shown
    assert len(reporting.program.ok(*lines_of).splitlines()) == 33


class Recorder:
    """A rule of a proxy: remembers the requests, and answers those whose path ends with `refused`."""

    def __init__(self, refused: str = "", answer: bytes = b"", most: int = 10**9) -> None:
        self.paths: list[str] = []
        self._refused, self._answer, self._most = refused, answer, most

    def __call__(self, method: str, path: str) -> bytes | None:
        """Return the answer, at most `most` times."""
        self.paths.append(path.rpartition("/")[2])
        if self._refused and path.endswith(self._refused) and self._most:
            self._most -= 1
            return self._answer
        return None


def follow_through(reporting: Stack, gate: Path, rule: Recorder, events: int) -> list[str]:
    """Follow a task behind a proxy, and open its gate after so many requests for events; return its lines."""
    task_id = submit(reporting, f"gate={gate}")
    access = {"TOKEN": reporting.server.token or "", "LOG_LEVEL": "ERROR"}
    with (
        Proxy(reporting.server.url, rule) as proxy,
        reporting.program.start("task", task_id, "--follow", URL=proxy.url, **access) as process,
    ):
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        wait_until(lambda: rule.paths.count("events") >= events)
        gate.touch()
        lines += process.stdout.readlines()
    assert process.returncode == 0
    return [line.rstrip("\n").rpartition("\t")[2] for line in lines]


LINES = ["first line of attempt 1", "careful ", "last line"]


def test_a_task_is_followed_by_its_events(reporting: Stack, tmp_path: Path) -> None:
    """They bring the lines and the end: the log is requested when the stream begins, and no more."""
    rule = Recorder()
    assert follow_through(reporting, tmp_path / "gate", rule, 2) == LINES
    assert rule.paths.count("log") <= 2


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed"])
def test_a_server_without_events_is_polled(reporting: Stack, tmp_path: Path, status: str) -> None:
    """It is asked for events once."""
    rule = Recorder("/events", raw(status, b'{"detail":"none"}', "application/json"))
    assert follow_through(reporting, tmp_path / "gate", rule, 1) == LINES
    assert rule.paths.count("events") == 1


def test_a_cut_does_not_repeat_or_lose_a_line(reporting: Stack, tmp_path: Path) -> None:
    """The connection ends twice without an answer; the stream continues."""
    rule = Recorder("/events", b"", most=2)
    assert follow_through(reporting, tmp_path / "gate", rule, 4) == LINES


def test_a_lost_connection_is_a_line_above_the_bar(reporting: Stack, tmp_path: Path) -> None:
    """And its return is another, however often the command tried."""
    gate, rule = tmp_path / "gate", Recorder("/events", b"", most=3)
    task_id, program = submit(reporting, f"gate={gate}"), copy(reporting.program)
    program.env = {**program.env, "ZNDRAW_JOBLIB_TOKEN": reporting.server.token or ""}
    with (
        Proxy(reporting.server.url, rule) as proxy,
        OnTerminal(program, "task", task_id, "--follow", "--url", proxy.url) as terminal,
    ):
        terminal.read_until("succeeds again after 3 failures")
        gate.touch()
        assert terminal.end()[0] == 0
    assert terminal.shown.count("trying again in") == 1
    for begin in re.finditer(r"\d\d WARNING zndraw", terminal.shown):
        line = re.split(r"[\r\n]|\x1b\[2K|\x1b\[1A", terminal.shown[: begin.start()])[-1]
        assert re.fullmatch(r"(\x1b\[[\d;]*m)?[-\d]+ [:,\d]+", line), line


def test_the_bar_shows_why_an_attempt_failed(tmp_path: Path) -> None:
    """And when the next one begins; at the end, how long all took."""
    jobs = JOBS.replace("base_seconds=0", "base_seconds=3600")
    with (
        serving(tmp_path, jobs, ["Report"]) as stack,
        OnTerminal(stack.program, "submit", "Report", "then=fail", "--wait") as command,
    ):
        command.read_until("pending: attempt 1 failed (ValueError: attempt 1), the next one begins in")
        [task] = stack.client.tasks("default").items
        stack.program.ok("run-now", str(task.id))
        assert command.end()[0] == 1


def test_too_many_streams_are_no_reason_to_stop(reporting: Stack, tmp_path: Path) -> None:
    """The task is polled meanwhile."""
    body = {"type": "/v1/problems/too-many-requests", "title": "Too Many Requests", "status": 429}
    rule = Recorder("/events", raw("429 Too Many Requests", json.dumps(body).encode(), PROBLEM))
    assert follow_through(reporting, tmp_path / "gate", rule, 1) == LINES


def test_a_task_is_followed_over_a_crash_of_the_server(tmp_path: Path) -> None:
    """Each line is printed once, with those that the worker reports to the next server."""
    (tmp_path / "report_jobs.py").write_text(JOBS)
    program, gate = Program(tmp_path), tmp_path / "gate"
    with RunningServer(program, port=free_port()) as server, server.connect() as connection:
        program.env |= {"ZNDRAW_JOBLIB_URL": server.url, "ZNDRAW_JOBLIB_TOKEN": server.token or ""}
        with program.start("worker", "report_jobs.py") as worker:
            client = JobClient(RestApi(connection))
            wait_until(lambda: client.jobs().total == 1 or worker.poll())
            task_id = client.submit("@global:analysis:Report", {"gate": str(gate)}, room="lab")
            with program.start("task", task_id, "--follow") as process:
                assert process.stdout is not None
                lines = [process.stdout.readline(), process.stdout.readline()]
                server.stop(signal.SIGKILL)
                gate.touch()
                with RunningServer(program, port=server.port):
                    lines += process.stdout.readlines()
            worker.kill()
    assert [line.rstrip("\n").rpartition("\t")[2] for line in lines] == LINES
    assert process.returncode == 0


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


def test_a_terminal_gets_no_binary_content(reporting: Stack) -> None:
    """`submit --wait` says how to write it to a file, and succeeds; for `task --result` it is an error."""
    with OnTerminal(reporting.program, "submit", "Report", "then=bytes", "--wait", is_output=True) as waiting:
        assert waiting.end()[0] == 0
    text = r"256 bytes of application/octet-stream, which a terminal cannot show.*task (\S+) --result > FILE"
    found = re.search(text, " ".join(waiting.shown.split()))
    assert found is not None
    with OnTerminal(reporting.program, "task", found[1], "--result", is_output=True) as asking:
        assert asking.end()[0] == 1
    assert re.search(text, " ".join(asking.shown.split()))


def test_the_command_says_that_no_worker_runs_the_job(reporting: Stack) -> None:
    """One is registered, but it has not claimed the task for a minute."""
    with reporting.server.connect() as api:
        url = f"{api.base_url}/v1/joblib/rooms/asleep/jobs"
        api.http.put(url, json={"category": "analysis", "name": "Idle"}, headers=api.get_headers())
    task_id = reporting.client.submit("asleep:analysis:Idle", room="asleep")
    [path] = reporting.program.folder.glob("*.db")
    with closing(sqlite3.connect(path, timeout=30)) as database, database:
        for table in ("joblib_worker", "joblib_task"):
            database.execute(f"UPDATE {table} SET created_at = datetime(created_at, '-1 minute')")  # noqa: S608
    with OnTerminal(reporting.program, "task", task_id, "--follow") as terminal:
        terminal.read_until("starts")
        terminal.process.send_signal(signal.SIGINT)
        terminal.end()
    assert "Idle workers of asleep:analysis:Idle: 1 of 1, but none" in " ".join(terminal.shown.split())


def test_the_command_says_how_long_a_task_waits_for_busy_workers(reporting: Stack, tmp_path: Path) -> None:
    """All slots are taken; the rate is that of the tasks before in the same room."""
    reporting.client.wait_for(submit(reporting), TIMEOUT)
    gate = tmp_path / "gate"
    holding = [submit(reporting, f"gate={gate}") for _ in range(4)]
    task_id = submit(reporting)
    with OnTerminal(reporting.program, "task", task_id, "--follow") as terminal:
        terminal.read_until("pending: about ")
        gate.touch()
        terminal.end()
    assert "; The only worker of @global:analysis:Report is busy" in terminal.shown
    assert [reporting.client.wait_for(each, TIMEOUT).status for each in holding] == ["completed"] * 4
