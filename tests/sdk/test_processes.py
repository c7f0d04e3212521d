"""Workers in several processes, as the command line runs them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from sdk.live import TOKEN, LiveServer
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]

EXTENSION = """
import os, time
from pathlib import Path
from zndraw_joblib import Extension

class Work(Extension):
    category = "analysis"
    wait_for: str = ""
    def run(self, vis, **kwargs):
        Path(f"pid-{os.getpid()}").touch()
        while self.wait_for and not Path(self.wait_for).exists():
            time.sleep(0.01)
        return os.getpid()
"""
MAIN = """
import logging, sys
from zndraw_joblib.worker.serving import ProcessConfig, serve_processes
if __name__ == "__main__":
    url, token, room, target, number = sys.argv[1:]
    sys.exit(serve_processes(ProcessConfig(target, url, token, room), int(number)))
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(server: LiveServer, room: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that serves the extension from several processes."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "work.py").write_text(EXTENSION)
    started: list[subprocess.Popen[bytes]] = []

    def run(number: int = 2, target: str = "work") -> subprocess.Popen[bytes]:
        arguments = [server.url, TOKEN, room, target, str(number)]
        started.append(
            subprocess.Popen([sys.executable, "main.py", *arguments], cwd=tmp_path, start_new_session=True)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def workers_of(manager: JobManager, room: str) -> list[str]:
    """Return the ids of the workers that serve the room's job."""
    jobs = [job for job in manager.jobs(room).items if job.full_name.startswith(room)]
    return [str(worker) for job in jobs for worker in job.workers]


def test_processes_are_replaced_and_stopped(worker: Make, room: str, start: Start, tmp_path: Path) -> None:
    """Each is a worker; a crashed one is replaced; after Ctrl-C, which the terminal sends to the whole
    group, tasks finish and all processes end.
    """
    caller = worker()
    parent = start(2)
    job = f"{room}:analysis:Work"
    wait_until(lambda: len(workers_of(caller, room)) == 2)
    tasks = [caller.submit(job, {"wait_for": "both"}) for _ in range(2)]
    pids = wait_until(lambda: len(found := list(tmp_path.glob("pid-*"))) == 2 and found)
    (tmp_path / "both").touch()
    results = {caller.wait_for(task, 30).result for task in tasks}
    assert results == {int(path.name.removeprefix("pid-")) for path in pids}

    killed = results.pop()
    before = set(workers_of(caller, room))
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: set(workers_of(caller, room)) - before)

    last = caller.submit(job, {"wait_for": "last"})
    wait_until(lambda: caller.get_task(last).status == "running")
    os.killpg(parent.pid, signal.SIGINT)
    wait_until(lambda: len(workers_of(caller, room)) == 1)  # the sweeper removes the killed one later
    assert caller.get_task(last).status == "running"
    (tmp_path / "last").touch()
    assert parent.wait(30) == 0
    assert caller.get_task(last).status == "completed"


def test_a_second_signal_ends_all_processes(worker: Make, room: str, start: Start) -> None:
    """A second SIGTERM ends processes whose tasks do not end."""
    caller = worker()
    parent = start(2)
    wait_until(lambda: len(workers_of(caller, room)) == 2)
    task = caller.submit(f"{room}:analysis:Work", {"wait_for": "never"})
    wait_until(lambda: caller.get_task(task).status == "running")
    parent.send_signal(signal.SIGTERM)
    # The busy process has received the signal too, because it has unregistered its job.
    wait_until(lambda: not workers_of(caller, room))
    parent.send_signal(signal.SIGTERM)
    parent.wait(30)
    wait_until(lambda: caller.get_task(task).error == "Worker disconnected")


def test_a_refusal_ends_all_processes(start: Start) -> None:
    """A process that cannot load its extensions is not restarted; the exit code is 2."""
    assert start(1, "absent").wait(20) == 2


def test_processes_end_with_their_parent(worker: Make, room: str, start: Start) -> None:
    """The workers of a killed parent disconnect."""
    caller = worker()
    parent = start(1)
    wait_until(lambda: workers_of(caller, room))
    parent.kill()
    wait_until(lambda: not workers_of(caller, room))
