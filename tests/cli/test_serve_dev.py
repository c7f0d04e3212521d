"""`serve --dev` and `serve()` of a script: server, page and reloaded worker in one program."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from servers import free_port
from waiting import wait_until

from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib import Queue, job, serve

CODE = """
import os
from zndraw_joblib import job

@job
def area(width: float) -> float:
    print("computing in", os.getppid())
    return FACTOR * width
"""
SCRIPT = """
from zndraw_joblib import serve

@job
def other() -> None:
    pass

serve(area, port=PORT)
"""


class DevServer(RunningServer):
    """A running `serve --dev` of a file, or with `script` the script itself."""

    def __init__(self, program: Program, file: Path, *arguments: str) -> None:
        super().__init__(program, "--dev", file.name, *arguments)

    def area(self, width: float) -> object:
        """Return the result of a task."""
        with Queue(self.url, self.token) as queue:
            wait_until(queue.jobs)  # from the first registration on, tasks wait for a worker
            return queue.submit("area", {"width": width}).result(timeout=TIMEOUT)

    @property
    def processes(self) -> list[psutil.Process]:
        """All processes below the command."""
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def file(program: Program) -> Path:
    """Return the path of a file with a job."""
    path = program.folder / "jobs.py"
    path.write_text(CODE.replace("FACTOR", "1"))
    return path


@pytest.fixture
def server(program: Program, file: Path) -> Iterator[DevServer]:
    """Run `serve --dev` of the file."""
    with DevServer(program, file) as server:
        yield server


def test_one_command_runs_server_page_and_worker(server: DevServer, file: Path) -> None:
    """It prints a token for the page; both outputs have a prefix; the worker is reloaded; Ctrl-C ends all."""
    assert f"token     {server.token}" in server.stderr
    assert httpx.get(server.url, timeout=TIMEOUT).status_code == 200
    assert server.area(3) == 3
    wait_until(lambda: "\nworker | computing in" in server.stderr)
    file.write_text("import nothing_of_this_name")
    wait_until(lambda: "'jobs.py' cannot be imported: No module named 'nothing_of" in server.stderr)
    file.write_text(CODE.replace("FACTOR", "2"))
    assert server.area(3) == 6
    processes = server.processes
    done = server.stop()
    assert (done.code, done.out) == (0, "")
    assert "ERROR" not in done.err.replace("ERROR   zndraw_joblib.worker.supervisor: 'jobs.py' cannot", "")
    assert psutil.wait_procs(processes, TIMEOUT)[1] == []


@pytest.mark.slow
def test_its_processes_end_with_it(server: DevServer) -> None:
    """Also if it is killed. A worker or server that is killed is replaced."""
    for _ in range(2):
        assert server.area(3) == 3
        for process in server.processes:
            process.kill()
    assert server.area(3) == 3
    processes = server.processes
    server.process.kill()
    server._wait()
    assert psutil.wait_procs(processes, TIMEOUT)[1] == []


@pytest.mark.slow
def test_a_script_serves_its_functions(program: Program, file: Path) -> None:
    """Only those that it names. It needs no check of `__name__`, although the worker imports it."""
    script = file.with_name("script.py")
    port = free_port()
    script.write_text(CODE.replace("FACTOR", "5") + SCRIPT.replace("PORT", str(port)))
    process = subprocess.Popen(
        [sys.executable, script], cwd=file.parent, env=program.env, stderr=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        for line in process.stderr:
            if line.startswith("  worker "):
                break
        with Queue(url, program.saved_tokens()[url]) as queue:
            wait_until(queue.jobs)
            assert queue.submit("area", {"width": 3}).result(timeout=TIMEOUT) == 15
            assert [one.full_name for one in queue.jobs()] == ["@global:jobs:area"]
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.communicate(timeout=TIMEOUT)[1]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_served_is_refused(program: Program, file: Path) -> None:
    """The error names the option and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        runs = {
            ("--dev", file.name, "--port", port): (1, f"Port {port} of 127.0.0.1 is taken"),
            ("--dev", file.name, "--host", "::"): (2, "add --allow-remote"),
            ("--dev", "other.py"): (1, "There is no file 'other.py'"),
            ("--dev", "--processes", "2"): (2, "--processes is not for --dev"),
            (file.name,): (2, "needs --dev. Without it, run 'zndraw-joblib worker'"),
        }
        ends = program.run_all([["serve", *arguments] for arguments in runs])
    for end, (code, text) in zip(ends, runs.values(), strict=True):
        assert (end.code, end.is_error_line, text in end.err) == (code, True, True), end
    assert not program.credentials.exists()


def test_a_script_learns_what_it_cannot_serve() -> None:
    """No job, a function without `@job`, and a job that no other process can import."""

    @job
    def inner() -> None:
        pass

    with pytest.raises(TypeError, match="needs a job"):
        serve()
    with pytest.raises(TypeError, match="decorate it with @job"):
        serve(lambda: None)
    with pytest.raises(ValueError, match="define it at the top level"):
        serve(inner)
