"""What commands log: one line for each record, as text or as JSON with the ids that are known."""

import json
import signal
import subprocess
import sys
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
ASYNC_RUN = "async " + RUN
RECORDS = """
import logging, warnings
from zndraw_joblib.contract.logs import LogConfig, log_fields
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


def test_text_escapes_control_characters() -> None:
    """A message cannot add lines or color; only the traceback of an unexpected error follows its line."""
    first, warning, failed, *traceback = run_records("text")
    assert first.endswith(r" INFO    zndraw_joblib.part: a b\n\x1b[31m\u2028\ud800")
    assert "a warning" in warning
    assert failed.endswith(" ERROR   zndraw_joblib.part: failed")
    assert (traceback[0], traceback[-1]) == ("Traceback (most recent call last):", "KeyError: 'missing'")


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
    (stack.program.folder / f"{name}.py").write_text(JOBS.format(name=name, run=run))
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
    [own] = [each for each in json_lines(err[err.index("\n") + 1 :]) if each["logger"] == "library"]
    assert own["message"] == "in two\nlines"
    assert (own["task_id"], own["job"]) == (task, job)
    assert own["worker_id"]


def test_the_access_log_is_json(program: Program) -> None:
    """With --access-log --log-format json, a request is a record of one line."""
    with RunningServer(program, "--access-log", LOG_FORMAT="json") as server:
        response = httpx.get(f"{server.url}/health/live")
        wait_until(lambda: "/health/live" in server.stderr)
        server.stop()
        record = next(json.loads(line) for line in server.stderr.splitlines() if "/health/live" in line)
    assert (record["logger"], record["level"]) == ("uvicorn.access", "INFO")
    assert record["request_id"] == response.headers["X-Request-ID"]
