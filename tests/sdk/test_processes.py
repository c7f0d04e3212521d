"""Workers in several processes, as the command line runs them."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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

    def run(number: int = 2, target: str = "work", log: Path | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "main.py", server.url, TOKEN, room, target, str(number)]
        with ExitStack() as stack:
            output = stack.enter_context(log.open("wb")) if log else None
            started.append(subprocess.Popen(command, cwd=tmp_path, stderr=output, start_new_session=True))
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
    assert start(1, "absent").wait(60) == 2


def test_processes_end_with_their_parent(worker: Make, room: str, start: Start) -> None:
    """The workers of a killed parent disconnect."""
    caller = worker()
    parent = start(1)
    wait_until(lambda: workers_of(caller, room))
    parent.kill()
    wait_until(lambda: not workers_of(caller, room))


def test_a_process_that_cannot_be_started_is_started_later(
    worker: Make, room: str, start: Start, tmp_path: Path
) -> None:
    """Without a free file descriptor the parent and the other process continue."""
    caller = worker()
    parent = start(2, log=tmp_path / "log")
    wait_until(lambda: len(workers_of(caller, room)) == 2)
    job = f"{room}:analysis:Work"
    pid = caller.wait_for(caller.submit(job), 30).result
    limits = resource.prlimit(parent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(parent.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "Too many open files" in (tmp_path / "log").read_text())
    assert caller.wait_for(caller.submit(job), 30).result != pid
    resource.prlimit(parent.pid, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: len(workers_of(caller, room)) == 3)  # the sweeper removes the killed one later
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 0


# A child of a supervisor: reports what the test wants, and does what the test wants afterwards.
CHILD = """
import signal, sys, time
from zndraw_joblib.worker.supervisor import Parent
parent = Parent()
exec(parent.config.replace(";;", "\\n"))
"""
SUPERVISOR = """
import asyncio, json, logging, signal, sys
from zndraw_joblib.worker.supervisor import Next, Supervisor
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.ERROR)
code, after, settled, is_ignored = json.loads(sys.argv[1])
if is_ignored:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
supervisor = Supervisor(
    (sys.argv[3], "-c", sys.argv[2]), code, 1, lambda ended: print(ended, flush=True) or Next[after],
    settled_seconds=settled, on_ready=lambda: print("all ready", flush=True),
)
print("end", asyncio.run(supervisor.run()))
"""
Supervise = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    """Return a function that supervises one child, which runs some code."""
    with ExitStack() as stack:

        def run(
            code: str,
            after: str,
            settled: float = 60,
            *,
            is_ignored: bool = False,
            program: Path | str = sys.executable,
        ) -> subprocess.Popen[str]:
            arguments = [json.dumps([code, after, settled, is_ignored]), CHILD, str(program)]
            parent = subprocess.Popen(
                [sys.executable, "-c", SUPERVISOR, *arguments], stdout=subprocess.PIPE, text=True
            )
            stack.callback(parent.stdout.close)  # type: ignore[union-attr]
            stack.callback(parent.wait)
            stack.callback(parent.kill)
            return parent

        yield run


def next_line(parent: subprocess.Popen[str]) -> str:
    """Return the next line that a parent writes."""
    assert parent.stdout is not None
    return parent.stdout.readline().strip()


def test_an_ignored_interrupt_stays_ignored(supervise: Supervise) -> None:
    """After `nohup … &` Ctrl-C for another program does not stop the processes; SIGTERM does."""
    parent = supervise("parent.report('ready');;signal.pause()", "RESTART", is_ignored=True)
    assert next_line(parent) == "all ready"
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        parent.send_signal(number)
    assert next_line(parent) == "end None"
    assert parent.wait(60) == 0


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("parent.report('no ' + 'x' * 100_000)", "no " + "x" * 9_997),
        ("parent._channel.sendall(b'x' * 1_000_000)", "reported a line that is too long"),
    ],
    ids=["report", "endless"],
)
def test_the_answer_of_a_child_is_bounded(supervise: Supervise, code: str, answer: str) -> None:
    """A report is cut; a child that sends anything longer is killed."""
    parent = supervise(f"{code};;sys.exit(3)", "ABORT")
    assert next_line(parent).endswith(answer)
    assert next_line(parent).startswith("end ")
    assert parent.wait(60) == 0


@pytest.mark.parametrize(("settled", "pauses"), [(60, ["0", "1", "2"]), (0, ["0", "0", "0"])])
def test_a_child_that_settled_is_replaced_at_once(
    supervise: Supervise, settled: float, pauses: list[str]
) -> None:
    """Pauses grow only while children end within `settled_seconds` of their start."""
    parent = supervise("sys.exit(3)", "RESTART", settled)
    lines = [next_line(parent) for _ in range(6)]
    found = [line.rsplit(" ", 2)[1] for line in lines if "another one starts" in line]
    assert found == pauses
    parent.terminate()
    assert parent.wait(60) == 0


def test_a_program_that_cannot_be_started_ends_the_parent(supervise: Supervise, tmp_path: Path) -> None:
    """An interpreter that was removed stays away: the parent says so and stops the other processes."""
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    parent = supervise("sys.exit(3)", "RESTART", program=program)
    next_line(parent)
    program.unlink()
    lines = iter(lambda: next_line(parent), "")
    last = [line for line in lines if line.startswith("end ")]
    assert "cannot be started" in last[0]
    assert str(program) in last[0]
    assert parent.wait(60) == 0
