"""`worker --reload`: a change of the code starts the worker anew, and running tasks end first."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cli.program import Program
from waiting import wait_until

from sdk.live import TOKEN, LiveServer
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.reloading import _is_code

Make = Callable[..., JobManager]

CODE = """
import time
from pathlib import Path
from zndraw_joblib import job

@job
def version(gate: str = "") -> str:
    if gate:
        Path(gate, "begun-VERSION").touch()
    while gate and not Path(gate, "open").exists():
        time.sleep(0.01)
    return "VERSION"
"""


class Reloading:
    """A running `worker --reload` of one job, which returns the version of its code."""

    def __init__(self, folder: Path, server: LiveServer, room: str, caller: JobManager) -> None:
        self.file, self._log, self._room, self._caller = folder / "work.py", folder / "log", room, caller
        self._command = [sys.executable, "-m", "zndraw_joblib", "worker", "work.py", "--reload"]
        self._command += ["--url", server.url, "--room", room]
        self.change("one")

    def start(self, *options: str) -> None:
        """Start the command, and wait until it serves the job."""
        environment = {**os.environ, "ZNDRAW_JOBLIB_TOKEN": TOKEN}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._command, *options], cwd=self.file.parent, env=environment, stdout=log, stderr=log
            )
        wait_until(lambda: self._caller.jobs(self._room).items)

    def change(self, version: str) -> None:
        """Write the code of a version."""
        self.file.write_text(CODE.replace("VERSION", version))

    def submit(self, **payload: str) -> str:
        """Submit a task."""
        return str(self._caller.submit(f"{self._room}:jobs:version", payload))

    def end_of(self, task: str) -> TaskResponse:
        """Return a task that has ended."""
        return self._caller.wait_for(task, 60)

    @property
    def log(self) -> str:
        """What the command has written so far."""
        return self._log.read_text()

    @property
    def workers(self) -> int:
        """How many workers serve the job."""
        return self._caller.workers(self._room).total

    def await_log(self, text: str, count: int = 1) -> None:
        """Wait until the command has written a text so many times."""
        wait_until(lambda: self.log.count(text) >= count)


@pytest.fixture
def reloading(tmp_path: Path, server: LiveServer, room: str, worker: Make) -> Iterator[Reloading]:
    """Return a worker to start."""
    reloading = Reloading(tmp_path, server, room, worker())
    yield reloading
    reloading.process.kill()
    reloading.process.wait()


@pytest.mark.parametrize(
    "options",
    [pytest.param(["--processes", "2"], marks=pytest.mark.slow), ["--executor", "process"]],
    ids=["2", "process"],
)
def test_a_change_starts_the_new_code(reloading: Reloading, options: list[str]) -> None:
    """While the code is broken the command shows the error and watches; Ctrl-C ends it with exit code 0."""
    reloading.start(*options)
    processes = 2 if options[0] == "--processes" else 1
    wait_until(lambda: reloading.workers == processes)
    assert reloading.end_of(reloading.submit()).result == "one"
    reloading.file.write_text("def broken(:")
    reloading.await_log("'work.py' is not valid Python: invalid syntax (work.py, line 1)", processes)
    assert reloading.workers == 0
    waiting = reloading.submit()
    reloading.change("two")
    assert reloading.end_of(waiting).result == "two"
    wait_until(lambda: reloading.workers == processes)
    reloading.process.send_signal(signal.SIGINT)
    assert reloading.process.wait(60) == 0
    assert "Traceback" not in reloading.log
    assert "another one starts" not in reloading.log


def test_a_running_task_ends_before_the_new_code_starts(reloading: Reloading) -> None:
    """It ends with the code that it began with, and a second change meanwhile counts."""
    folder = reloading.file.parent
    reloading.start()
    task = reloading.submit(gate=str(folder))
    wait_until((folder / "begun-one").exists)
    for number, version in enumerate(("two", "three"), 1):
        reloading.change(version)
        reloading.await_log("Reloading: work.py changed", number)
    assert reloading.workers <= 1
    (folder / "open").touch()
    assert reloading.end_of(task).result == "one"
    assert reloading.end_of(reloading.submit()).result == "three"
    assert reloading.workers == 1
    # No version between them has started.
    assert reloading.log.count("Serving") == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--executor", "process"]], ids=["thread", "process"])
def test_a_second_interrupt_ends_a_worker_whose_task_runs_on(
    reloading: Reloading, options: list[str]
) -> None:
    """The first one waits for the task; after the second no process of the worker is left."""
    folder = reloading.file.parent
    reloading.start(*options)
    reloading.submit(gate=str(folder))
    wait_until((folder / "begun-one").exists)
    processes = psutil.Process(reloading.process.pid).children(recursive=True)
    assert processes
    reloading.process.send_signal(signal.SIGINT)
    wait_until(lambda: reloading.workers == 0 or "Stopping" in reloading.log)
    assert reloading.process.poll() is None
    reloading.process.send_signal(signal.SIGINT)
    reloading.process.wait(60)
    assert psutil.wait_procs(processes, 60)[1] == []


@pytest.mark.slow
def test_a_task_that_takes_too_long_runs_again_with_the_new_code(reloading: Reloading) -> None:
    """It returns to its queue without a failed attempt; another change ends the drain no earlier."""
    folder = reloading.file.parent
    reloading.start()
    task = reloading.submit(gate=str(folder))
    wait_until((folder / "begun-one").exists)
    reloading.change("two")
    wait_until((folder / "begun-two").exists)
    (folder / "open").touch()
    ended = reloading.end_of(task)
    assert (ended.status, ended.result, ended.error) == ("completed", "two", None)
    assert reloading.workers == 1


def test_only_code_of_the_folders_counts(tmp_path: Path) -> None:
    """Not what is installed, hidden or no Python; a folder may itself be in one of these names."""
    project = tmp_path / "site-packages" / "project"
    files = {"a.py": True, "pkg/b.py": True, "a.txt": False, "venv/lib/c.py": False, ".git/d.py": False}
    assert {name: _is_code(project / name, [project]) for name in files} == files
    assert not _is_code(tmp_path / "a.py", [project])


def test_what_cannot_be_reloaded_is_refused(tmp_path: Path) -> None:
    """The error names the remedy: the extra, the option or the file."""
    (tmp_path / "work.py").write_text(CODE)
    runs = {
        ("work.py", "--reload"): (1, "pip install 'zndraw-joblib[reload]'"),
        ("work.py", "--reload-dir", "."): (2, "--reload-dir needs --reload"),
        ("other.py", "--reload"): (1, "There is no file 'other.py'"),
    }
    ends = Program(tmp_path).run_all([["worker", *arguments] for arguments in runs], hidden=["watchfiles"])
    for end, (code, text) in zip(ends, runs.values(), strict=True):
        assert (end.code, text in end.err) == (code, True), end
