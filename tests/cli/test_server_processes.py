"""`serve` stops cleanly, and `serve --processes N` acts like one server: a process that exits is replaced."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from waiting import wait_until

from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.cli.server import serve
from zndraw_joblib.cli.server.processes import ChildConfig
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.jobs.logs import LogConfig, LogThreshold
from zndraw_joblib.server.process.settings import ServerSettings
from zndraw_joblib.worker.rest import RestApi

# Starts the children without the parent's check of the database.
_SERVE_SEVERAL = """
import socket
from zndraw_joblib.cli.display import CommandError
from zndraw_joblib.jobs.logs import LogConfig
from zndraw_joblib.cli.server.processes import serve_several
from zndraw_joblib.server.process.settings import ServerSettings

with socket.create_server(("127.0.0.1", 0)) as listener:
    try:
        serve_several(ServerSettings(processes=2), listener, LogConfig(), lambda: print("ready"))
    except CommandError as error:
        print(error)
"""


class TwoProcesses(RunningServer):
    """A running `serve` with two processes."""

    def __init__(self, program: Program, database_url: str, *arguments: str, **settings: str) -> None:
        settings["DATABASE_URL"] = database_url
        super().__init__(program, "--processes", "2", *arguments, **settings)

    @property
    def children(self) -> list[psutil.Process]:
        """The child processes."""
        return psutil.Process(self.process.pid).children()

    def is_ready(self) -> bool:
        """Return whether a request on a new connection succeeds."""
        return httpx.get(f"{self.url}/health/ready", timeout=TIMEOUT).status_code == 200

    def kill_parent(self) -> list[psutil.Process]:
        """Kill the parent, and return the children that do not exit by themselves."""
        children = self.children
        self.process.kill()
        left: list[psutil.Process] = psutil.wait_procs(children, TIMEOUT)[1]
        for child in left:
            child.kill()
        self._wait()
        return left


@pytest.fixture
def server(program: Program, postgres_url: str) -> Iterator[TwoProcesses]:
    """Return a server of two processes."""
    with TwoProcesses(program, postgres_url, WORKER_TIMEOUT_SECONDS="0.4") as server:
        yield server


@contextmanager
def polling(server: RunningServer, count: int) -> Iterator[list[tuple[object, int]]]:
    """Hold long-polls of new workers open on a server; at the end of the block they must have answers."""
    answers: list[tuple[object, int]] = []

    with server.connect() as connection:
        rest = RestApi(connection)

        def claim(worker_id: object) -> None:
            claimed, applied = rest.claim(worker_id, wait=30)
            answers.append((claimed.task, applied))

        workers = [rest.create_worker() for _ in range(count)]
        threads = [threading.Thread(target=claim, args=(worker.id,)) for worker in workers]
        for thread in threads:
            thread.start()
        created = {worker.id: worker.last_heartbeat for worker in workers}
        # The server renews the heartbeat of a worker that waits, every quarter of the timeout.
        wait_until(
            lambda: all(one.last_heartbeat > created[one.id] for one in JobClient(rest).workers().items)
        )
        yield answers
        for thread in threads:
            thread.join(TIMEOUT)


def test_one_process_stops_with_long_polls_open(program: Program) -> None:
    """Ctrl-C ends the long-poll without a task, and prints no traceback."""
    with RunningServer(program, WORKER_TIMEOUT_SECONDS="0.4") as server, polling(server, 1) as answers:
        done = server.stop()
    assert (done.code, done.out) == (0, "")
    assert "ERROR" not in done.err  # uvicorn's, if requests do not end in time
    assert answers == [(None, 30)]


def test_several_processes_stop_with_long_polls_open(server: TwoProcesses) -> None:
    """SIGTERM ends all long-polls without a task; the exit code is 0."""
    children = server.children
    with polling(server, 4) as answers:
        done = server.stop(signal.SIGTERM)
    assert (done.code, done.out) == (0, "")
    assert "ERROR" not in done.err  # as above
    assert answers == [(None, 30)] * 4
    assert not any(child.is_running() for child in children)


def test_each_process_serves_and_is_replaced(server: TwoProcesses) -> None:
    """While one process is suspended the other answers. A killed one is replaced, later if crashes repeat."""
    first, second = server.children
    for one, other in ((first, second), (second, first)):
        one.suspend()
        assert server.is_ready()
        one.resume()
        assert other.is_running()
    first.kill()
    [third] = wait_until(lambda: set(server.children) - {first, second})
    third.kill()
    wait_until(lambda: "another one starts in 1 s" in server.stderr)
    wait_until(lambda: len(server.children) == 2 and third not in server.children)
    second.suspend()  # so that the new process serves the next request
    assert server.is_ready()
    second.resume()
    assert f"Process {first.pid} ended (-9); another one starts in 0 s" in server.stderr


def test_a_failed_start_of_a_process_ends_no_other(server: TwoProcesses) -> None:
    """Without a free file descriptor the parent tries again, and the other process serves."""
    first, second = server.children
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    first.kill()
    wait_until(lambda: "Too many open files" in server.stderr)
    assert server.is_ready()
    assert server.children == [second]
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: len(server.children) == 2)
    assert server.stop(signal.SIGTERM).code == 0


def test_several_processes_start_and_stop_like_one(server: TwoProcesses, program: Program) -> None:
    """The first start prints and saves a token once; Ctrl-C reaches the parent, which stops the children."""
    assert server.token
    assert "  processes 2\n" in server.stderr
    program.ok("jobs", "--url", server.url)
    polling = httpx.get(f"{server.url}/socket.io/?EIO=4&transport=polling", timeout=TIMEOUT)
    assert (polling.status_code, polling.json()) == (400, "Invalid transport")
    # A terminal sends Ctrl-C to its whole session.
    assert os.getsid(server.process.pid) not in {os.getsid(child.pid) for child in server.children}
    done = server.stop()
    assert (done.code, done.out) == (0, "")
    assert done.err.count(server.token) == done.err.count(" serves ") == 1


def test_children_exit_when_the_parent_is_killed(server: TwoProcesses) -> None:
    """The children exit by themselves, and the port is free."""
    assert server.kill_parent() == []
    with pytest.raises(httpx.ConnectError):
        server.is_ready()


def test_a_failed_start_is_reported_once(program: Program, empty_postgres_url: str) -> None:
    """If children find an error that the parent did not, all of them stop, with one error line."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = empty_postgres_url
    done = subprocess.run(
        [sys.executable, "-c", _SERVE_SEVERAL],
        env=program.env,
        cwd=program.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert "Run 'zndraw-joblib db upgrade'" in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_modules_in_the_working_directory_are_not_imported(program: Program, postgres_url: str) -> None:
    """A file in the working directory may have the name of a library."""
    (program.folder / "uvicorn.py").write_text("raise SystemExit('the wrong module')\n")
    (program.folder / "pyproject.toml").write_text("[tool.zndraw.joblib]\nworkers = 2\n")
    script = Path(sys.executable).with_name("zndraw-joblib")
    with subprocess.Popen(
        [script, "serve", "--port", "0"],
        env={**program.env, "ZNDRAW_JOBLIB_DATABASE_URL": postgres_url},
        cwd=program.folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert " serves " in process.stderr.readline()
        assert len(psutil.Process(process.pid).children()) == 2
        process.terminate()


def test_children_get_all_settings() -> None:
    """A child has the same settings as the parent, including the secrets."""
    settings = ServerSettings(
        admin_token="a-secret-of-the-operator",
        allowed_categories=["analysis"],
        cors_origins=["http://a", "http://b"],
        database_url="postgresql://ann:secret@host/name",
        redis_url="redis://:secret@host/1",
        socketio_transports=["websocket"],
        processes=7,
        max_waiting_requests=5,
        validate_payload=False,
        worker_timeout_seconds=1.5,
    )
    log = LogConfig(LogThreshold.DEBUG, access_log=True)
    with socket.socket() as listener:
        config = ChildConfig.model_validate_json(ChildConfig.of(settings, listener, log).model_dump_json())
        assert config.listener == listener.fileno()
    assert config.log == log
    assert config.settings.keys() == ServerSettings.model_fields.keys()
    assert ServerSettings(**config.settings) == settings


def test_several_processes_allow_only_websocket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long-polling needs one process that knows the client; an explicit setting is kept."""
    several = {"database_url": "postgresql://host/name", "workers": 2}
    settings = ServerSettings(**several)
    serve.check_several_processes(settings)
    assert settings.socketio_transports == ["websocket"]
    monkeypatch.setenv("ZNDRAW_JOBLIB_SOCKETIO_TRANSPORTS", "polling,websocket")
    settings = ServerSettings(**several)
    serve.check_several_processes(settings)
    assert settings.socketio_transports == ["polling", "websocket"]
