"""What commands log: one line for each record, as text or as JSON with the ids that are known."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from waiting import wait_until

from cli.conftest import Stack
from cli.program import Program, RunningServer

JOBS = """
import asyncio
import logging
from typing import Any

from zndraw_joblib import Category, Extension

log = logging.getLogger("library")


class {name}(Extension):
    category = Category.ANALYSIS

    {run}
"""
RUN = """def run(self, vis: Any, **kwargs: Any) -> Any:
        log.warning("in two\\nlines")
        return {}["missing"]
"""
WAITING = """
import pathlib
import time
from typing import Any

from zndraw_joblib import Category, Extension


class Wait(Extension):
    category = Category.ANALYSIS
    fail: bool = False

    def run(self, vis: Any, **kwargs: Any) -> Any:
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
        if self.fail:
            raise RuntimeError("it broke")
"""
ASYNC_RUN = "async " + RUN
RECORDS = """
import logging, warnings
from zndraw_joblib.jobs.logs import LogConfig, log_fields
LogConfig("info", "{format}").apply()
log = logging.getLogger("zndraw_joblib.part")
with log_fields(request_id="r-1"), log_fields(task_id="t-1"):
    log.info("a %s\\n\\x1b[31m\\u2028\\ud800", "b", extra={{"task_id": "t-2", "color_message": "x"}})
log.debug("not logged")
warnings.warn("a warning")
try:
    {{}}["missing"]
except KeyError:
    log.exception("failed")
"""


def run_records(form: str) -> list[str]:
    """Return the lines that a process logs."""
    done = subprocess.run(
        [sys.executable, "-c", RECORDS.format(format=form)], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def json_lines(text: str) -> list[dict[str, Any]]:
    """Return the records of a log that is all JSON."""
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_an_object_on_one_line() -> None:
    """Each record has time, level, logger, message and process; ids and an exception are fields."""
    first, warning, last = (json.loads(line) for line in run_records("json"))
    for record in (first, warning, last):
        age = datetime.now(UTC) - datetime.fromisoformat(record.pop("time"))
        assert timedelta() <= age < timedelta(minutes=2)
        assert isinstance(record.pop("pid"), int)
    assert first == {
        "level": "INFO",
        "logger": "zndraw_joblib.part",
        "message": "a b\n\x1b[31m\u2028\ud800",
        "request_id": "r-1",
        "task_id": "t-2",
    }
    assert "a warning" in warning["message"]
    exception = last.pop("exception")
    assert exception.startswith("Traceback")
    assert exception.endswith("KeyError: 'missing'")
    assert last == {"level": "ERROR", "logger": "zndraw_joblib.part", "message": "failed"}


def test_text_is_one_line() -> None:
    """A message cannot add lines or color; ids that it does not name and a traceback are fields."""
    first, warning, failed = run_records("text")
    ids = "request_id=r-1 task_id=t-2"
    assert first.endswith(rf" INFO    zndraw_joblib.part: a b\n\x1b[31m\u2028\ud800 {ids}")
    assert "a warning" in warning
    assert " ERROR   zndraw_joblib.part: failed exception=Traceback (most recent call last):\\n " in failed
    assert failed.endswith(r"\nKeyError: 'missing'")


def test_a_terminal_shows_tracebacks_on_lines_of_their_own() -> None:
    """They are for a reader there, not for a program."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, errors="replace") as terminal:
        with os.fdopen(theirs, "w") as stderr:
            program = RECORDS.format(format="text")
            subprocess.run([sys.executable, "-c", program], stderr=stderr, check=True)
        lines = [terminal.readline().strip() for _ in range(4)]
    assert lines[2].endswith(" ERROR   zndraw_joblib.part: failed")
    assert lines[3] == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("name", "run", "options"),
    [
        ("LogInThread", RUN, []),
        ("LogInCoroutine", ASYNC_RUN, []),
        ("LogInTaskProcess", RUN, ["--executor", "process"]),
        ("LogInProcesses", RUN, ["--processes", "2"]),
    ],
)
def test_a_worker_logs_json(stack: Stack, name: str, run: str, options: list[str]) -> None:
    """All processes of a worker log JSON; what a task logs has the ids of task, worker and job."""
    file = stack.program.folder / f"{name}.py"
    file.write_text(JOBS.format(name=name, run=run))
    worker = stack.program.start("worker", f"{name}.py", "--room", "logs", *options, LOG_FORMAT="json")
    job = f"logs:analysis:{name}"
    wait_until(
        lambda: any(each.full_name == job for each in stack.client.jobs("logs").items) or worker.poll()
    )
    task = stack.client.submit(job, room="logs")
    stack.client.wait_for(task)
    worker.send_signal(signal.SIGINT)
    _, err = worker.communicate()
    assert worker.returncode == 0, err
    [own] = [each for each in json_lines(err) if each["logger"] == "library"]
    assert own["message"] == "in two\nlines"
    assert (own["task_id"], own["job"]) == (task, job)
    assert own["worker_id"]
    [started, ended] = [r for r in json_lines(err) if r["logger"].endswith("task_log")]
    assert started["message"] == f"Task {task} of {job} started"
    assert (started["level"], ended["level"]) == ("INFO", "ERROR")
    assert "exception" not in ended
    assert ended["message"].startswith(f"Task {task} of {job} failed after ")
    assert ended["message"].endswith(f" s: KeyError: 'missing' ({file}:16)")


def test_a_server_logs_json(program: Program) -> None:
    """Each line is a record: the start, without the new token, requests, and the reason of a failed start."""
    with RunningServer(program, "--access-log", LOG_FORMAT="json") as server:
        response = httpx.get(f"{server.url}/health/live")
        wait_until(lambda: "/health/live" in server.stderr)
        server.stop()
        assert server.token
        assert server.token not in server.stderr
        started, created, *_ = records = json_lines(server.stderr)
        [record] = [each for each in records if "/health/live" in each["message"]]
        refused = program.run("serve", "--port", "0", "--workers", "2", LOG_FORMAT="json")
    assert f" serves {server.url} (database=" in started["message"]
    assert f"superuser's token, which is saved in {program.credentials}" in created["message"]
    [failure] = json_lines(refused.err)
    assert (refused.code, failure["level"]) == (2, "ERROR")
    assert failure["message"].startswith("--workers 2 cannot use SQLite")
    assert (record["logger"], record["level"]) == ("uvicorn.access", "INFO")
    assert record["request_id"] == response.headers["X-Request-ID"]


@contextmanager
def serving(stack: Stack, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker of WAITING in the room "logs" until a signal or the end of the block."""
    (stack.program.folder / "waiting_jobs.py").write_text(WAITING)
    worker = stack.program.start("worker", "waiting_jobs.py", "--room", "logs", *options)
    try:
        wait_until(lambda: any(each.name == "Wait" for each in stack.client.jobs("logs").items))
        yield worker
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_stopped_worker_says_what_it_waits_for(stack: Stack, options: list[str]) -> None:
    """After Ctrl-C, a worker names the tasks that run; a completed one is logged with its duration."""
    with serving(stack, *options) as worker:
        (stack.program.folder / "go").unlink(missing_ok=True)
        task = stack.client.submit("logs:analysis:Wait", room="logs")
        wait_until(lambda: stack.client.get_task(task).status == "running")
        worker.send_signal(signal.SIGINT)
        assert worker.stderr is not None
        lines = iter(worker.stderr.readline, "")
        expected = (
            f"Stopping: waiting for 1 running task(s) ({task}). A second Ctrl-C or SIGTERM stops at once"
        )
        assert any(expected in line for line in lines)
        (stack.program.folder / "go").touch()
        assert any(
            re.search(f"Task {task} of logs:analysis:Wait completed in [0-9.]+ s worker_id=[-0-9a-f]+$", each)
            for each in lines
        )
        assert worker.wait(60) == 0


def test_quiet_logs_only_failures(stack: Stack) -> None:
    """With --quiet, starts and completions are not logged; with debug, a failure has its traceback."""
    with serving(stack, "--quiet", "--log-level", "debug") as worker:
        (stack.program.folder / "go").touch()
        task = stack.client.submit("logs:analysis:Wait", room="logs")
        assert stack.client.wait_for(task).status == "completed"
        failed = stack.client.submit("logs:analysis:Wait", {"fail": True}, room="logs")
        assert stack.client.wait_for(failed).status == "failed"
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=60)
    assert f"Task {failed} of logs:analysis:Wait failed after" in err
    assert "Traceback" in err
    assert " started\n" not in err
    assert "completed in" not in err
