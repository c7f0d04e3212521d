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
from cli.program import TIMEOUT, Program, RunningServer

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
    [ended] = [r for r in json_lines(err) if r["logger"].endswith("task_log")]
    assert (ended["level"], ended["task_id"], ended["job"]) == ("ERROR", task, job)
    assert "exception" not in ended
    assert ended["message"].startswith(f"Task {task[:18]} of {job} failed after ")
    assert ended["message"].endswith(f"s: KeyError: 'missing' ({file}:16)")


def test_a_server_logs_json(program: Program) -> None:
    """Each line is a record: the start, without the new token, requests, and the reason of a failed start."""
    with RunningServer(program, "--access-log", LOG_FORMAT="json") as server:
        response = httpx.get(f"{server.url}/health/live", timeout=TIMEOUT)
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
    assert failure["message"].startswith("--processes 2 cannot use SQLite")
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
            re.search(f" INFO .*Task {task[:18]} of logs:analysis:Wait completed in [0-9.]+ m?s$", each)
            for each in lines
        )
        assert worker.wait(60) == 0


def test_quiet_logs_only_failures(stack: Stack) -> None:
    """With --quiet, no completion is logged; with debug, a failure has its traceback."""
    with serving(stack, "--quiet", "--log-level", "debug") as worker:
        (stack.program.folder / "go").touch()
        task = stack.client.submit("logs:analysis:Wait", room="logs")
        assert stack.client.wait_for(task).status == "completed"
        failed = stack.client.submit("logs:analysis:Wait", {"fail": True}, room="logs")
        assert stack.client.wait_for(failed).status == "failed"
        worker.send_signal(signal.SIGINT)
        _, err = worker.communicate(timeout=60)
    assert f"Task {failed[:18]} of logs:analysis:Wait failed after" in err
    assert "Traceback" in err
    assert " started\n" not in err
    assert "completed in" not in err


SHORT_TASKS = """
import logging, time
from types import SimpleNamespace
from zndraw_joblib.jobs import logs
from zndraw_joblib.jobs.logs import LogConfig, LogFormat, LogThreshold
from zndraw_joblib.jobs.run import Outcome
from zndraw_joblib.worker.tasks import log_end, log_start
logs._COUNT_SECONDS = 600  # until this program ends
LogConfig(LogThreshold.INFO, LogFormat.{format}).apply()
def end(name, seconds, error=None):
    cancelled = SimpleNamespace(is_set=lambda: False)
    task_id = name.ljust(36, "0")
    task = SimpleNamespace(task_id=task_id, worker_id="w", job_name=name, cancelled=cancelled)
    log_start(task)
    log_end(task, Outcome(error=error), seconds)
for number in range(100):
    end("@global:jobs:add", 0.004)
end("lab:jobs:add", 0.25)
end("@global:analysis:Area", 2.5)
end("@global:jobs:add", 0.004, "ValueError: bad")
"""


def test_short_tasks_of_a_second_are_one_line_for_each_job() -> None:
    """The first one has a line, the others are counted; long and failed tasks have a line each."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_TASKS.format(format="TEXT")], capture_output=True, text=True, check=True
    )
    [first, long, failed, *counts] = [line.split(maxsplit=2)[2] for line in done.stderr.splitlines()]
    assert first == "INFO    Task @global:jobs:add00 of add completed in 4 ms"
    assert long == "INFO    Task @global:analysis:A of analysis:Area completed in 2.5 s"
    assert failed == "ERROR   Task @global:jobs:add00 of add failed after 4 ms: ValueError: bad"
    assert [" ".join(line.split()) for line in counts] == [
        "INFO 99 tasks of add completed, on average in 4 ms",
        "INFO Task lab:jobs:add000000 of lab:jobs:add completed in 250 ms",
    ]


def test_each_task_is_a_record_of_json() -> None:
    """A program that reads the log gets each task, with its whole id, its job and its duration."""
    done = subprocess.run(
        [sys.executable, "-c", SHORT_TASKS.format(format="JSON")], capture_output=True, text=True, check=True
    )
    records = json_lines(done.stderr)
    assert len(records) == 103
    assert {record["job"] for record in records} == {
        "@global:jobs:add",
        "lab:jobs:add",
        "@global:analysis:Area",
    }
    assert [record["seconds"] for record in records[99:102]] == [0.004, 0.25, 2.5]
