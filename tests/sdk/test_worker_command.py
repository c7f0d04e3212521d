"""The command `worker`: what its jobs get, and its options for retries and time limits."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from sdk.live import TOKEN, LiveServer
from sdk.test_allocations import issue_token, write
from sdk.test_live_reports import texts
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.policy import RetryOn, WithoutWorkers
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

Make = Callable[..., JobManager]
Start = Callable[..., subprocess.Popen[bytes]]

JOBS = """
import warnings
from typing import ClassVar
from zndraw_joblib import Extension, JobPolicy, current_task

class Work(Extension):
    category = "analysis"
    policy: ClassVar[JobPolicy] = JobPolicy(max_attempts=3, timeout_seconds=60)
    def run(self, vis, task):
        for _ in task.track(range(3)):
            print(vis)
        warnings.warn("careful")
        current_task().log("done")

def context():
    return "a context"
"""


@pytest.fixture
def start(server: LiveServer, room: str, tmp_path: Path, worker: Make) -> Iterator[Start]:
    """Return a function that starts the command, and returns once it serves the job."""
    (tmp_path / "work.py").write_text(JOBS)
    started: list[subprocess.Popen[bytes]] = []

    def run(*options: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ZNDRAW_JOBLIB_TOKEN": TOKEN, **variables}
        command = [sys.executable, "-m", "zndraw_joblib", "worker", "work.py", "--url", server.url]
        command += ["--room", room, *options]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True))
        wait_until(lambda: worker().jobs(room).items)
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_jobs_get_their_task_and_the_policy(
    start: Start, worker: Make, room: str, api: Connection, processes: str
) -> None:
    """Options go over the policy of the class. Output and warnings are in the log of the task.

    `--name` is the worker's name.
    """
    options = [
        "--name",
        "bench",
        "--concurrency",
        "2",
        "--max-attempts",
        "5",
        "--retry-on",
        "error",
        "--retry-on",
        "timeout",
        "--start-timeout",
        "9",
        *("--non-retryable", "ValueError", "--without-workers", "reject"),
    ]
    start("--context", "work.py:context", "--processes", processes, *options)
    name = f"{room}:analysis:Work"
    job = RestApi(api).send(ops.GET_JOB, room_id=room, name=name)
    assert (job.max_attempts, job.timeout_seconds, job.start_timeout_seconds) == (5, 60, 9)
    assert job.retry_on == (RetryOn.ERROR, RetryOn.TIMEOUT)
    assert (job.non_retryable, job.without_workers) == (("ValueError",), WithoutWorkers.REJECT)
    caller = worker()
    about = {(w.name, w.slots, w.pid == os.getpid()) for w in caller.workers(room).items}
    assert about == {("bench", 2, False)}
    task = caller.wait_for(caller.submit(name), 30)
    assert (task.error, task.progress and task.progress.current) == (None, 3)
    lines = texts(api, str(task.id))
    assert lines[:3] == ["a context"] * 3
    assert any("UserWarning: careful" in line for line in lines)
    assert lines[-1] == "done"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_of_an_allocation_leaves(start: Start, worker: Make, room: str, processes: str) -> None:
    """Each process after its task; Slurm's variable and signal do so too."""
    end = str(int(time.time()) + 3600)
    options = ["--walltime", "auto", "--requeue", "--max-tasks", "1"]
    process = start("--processes", processes, *options, SLURM_JOB_END_TIME=end)
    caller = worker()
    for _ in range(int(processes)):
        caller.wait_for(caller.submit(f"{room}:analysis:Work"), 60)
    assert process.wait(60) == 0
    if processes == "1":
        signalled = start("--idle-exit", "1h")
        wait_until(lambda: caller.workers(room).items, 60)
        signalled.send_signal(signal.SIGUSR1)
        assert signalled.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_whose_token_is_revoked_ends(
    server: LiveServer, room: str, tmp_path: Path, worker: Make, processes: str
) -> None:
    """With exit code 1, and a line that names the token, after a short grace period."""
    issued = issue_token(server, room)
    (tmp_path / "work.py").write_text(JOBS)
    (tmp_path / "sitecustomize.py").write_text(
        "import zndraw_joblib.worker.session as s; s.REFUSED_SECONDS = 1"
    )
    command = [
        sys.executable,
        "-m",
        "zndraw_joblib",
        "worker",
        "work.py",
        "--url",
        server.url,
        "--room",
        room,
    ]
    environment = {**os.environ, "ZNDRAW_JOBLIB_TOKEN": issued.token, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--processes", processes], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: worker().workers(room).total == int(processes), 60)
        write(server, "DELETE FROM joblib_token WHERE name = ?", issued.name)
        _, printed = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "token was refused, with each response of 1 s" in printed.decode().splitlines()[-1]


def test_options_of_an_allocation_are_checked(tmp_path: Path) -> None:
    """The error names the option, or the variable that is missing."""
    wrong = {
        "SLURM_JOB_END_TIME is not set": ["--walltime", "auto"],
        "'soon' is not a duration": ["--walltime", "soon"],
        "--idle-exit must be above 0": ["--idle-exit", "0"],
        "--requeue needs --walltime": ["--requeue"],
    }
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PBS", "LSB"))
    }
    for text, options in wrong.items():
        command = [sys.executable, "-m", "zndraw_joblib", "worker", "work.py", *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, text in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_capturing_can_be_switched_off(start: Start, worker: Make, room: str, api: Connection) -> None:
    """A job may still log by itself."""
    start("--no-capture")
    caller = worker()
    task = caller.wait_for(caller.submit(f"{room}:analysis:Work"), 30)
    assert texts(api, str(task.id)) == ["done"]


CHOOSY = """

class Choosy(Work):
    policy: ClassVar[JobPolicy] = JobPolicy(retry_on=("worker_lost",))
"""


def test_several_attempts_alone_are_attempts_after_errors(
    start: Start, worker: Make, room: str, api: Connection, tmp_path: Path
) -> None:
    """Unless the class says when it is retried."""
    (tmp_path / "work.py").write_text(JOBS + CHOOSY)
    start("--max-attempts", "3")
    wait_until(lambda: worker().jobs(room).total == 2)
    for name, expected in (("Work", set(RetryOn)), ("Choosy", {"worker_lost"})):
        job = RestApi(api).send(ops.GET_JOB, room_id=room, name=f"{room}:analysis:{name}")
        assert set(job.retry_on) == expected
        assert job.without_workers == WithoutWorkers.QUEUE


def test_an_invalid_name_is_refused(tmp_path: Path) -> None:
    """A name has at least one printable character."""
    command = [sys.executable, "-m", "zndraw_joblib", "worker", "work.py", "--name", ""]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "--name '' is not a valid name" in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", [["--timeout", "-1"], ["--start-timeout", "nan"]])
def test_an_invalid_policy_is_refused(option: list[str], tmp_path: Path) -> None:
    """Before anything is loaded or registered."""
    command = [sys.executable, "-m", "zndraw_joblib", "worker", "work.py", *option]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "timeout_seconds: Input should be" in " ".join(done.stderr.split())
