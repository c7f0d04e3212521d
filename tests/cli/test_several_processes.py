"""`serve --workers N`: several processes behave as one server does, and no death of one is felt for long."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from waiting import wait_until

from cli.program import PATIENCE, Program, Serving
from zndraw_joblib.cli.logs import Speech
from zndraw_joblib.cli.operator import serving
from zndraw_joblib.cli.operator.process import Plan
from zndraw_joblib.cli.options import LogLevel
from zndraw_joblib.server.settings import ServerSettings
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.rest import RestApi

# What the supervisor does where the parent's own look at the database found nothing wrong.
_SUPERVISE = """
import socket, sys
from zndraw_joblib.cli.logs import Speech
from zndraw_joblib.cli.operator import processes
from zndraw_joblib.cli.options import LogLevel
from zndraw_joblib.cli.refusal import Refusal
from zndraw_joblib.server.settings import ServerSettings

with socket.create_server(("127.0.0.1", 0)) as listener:
    try:
        speech = Speech(LogLevel.INFO, access_log=False)
        processes.serve(ServerSettings(workers=2), listener, speech, lambda: print("ready"))
    except Refusal as refusal:
        print(refusal)
"""


pytestmark = pytest.mark.timeout(120)  # it takes as many starts of the interpreter as there are processes


class Row(Serving):
    """A running `serve` with two processes."""

    def __init__(self, program: Program, database_url: str, *arguments: str, **settings: str) -> None:
        settings["DATABASE_URL"] = database_url
        super().__init__(program, "--workers", "2", *arguments, **settings)

    @property
    def children(self) -> list[psutil.Process]:
        """The processes that serve."""
        return psutil.Process(self.process.pid).children()

    def answers(self) -> bool:
        """Tell whether a request on a new connection is answered well."""
        return httpx.get(f"{self.url}/health/ready", timeout=PATIENCE).status_code == 200

    def orphaned(self) -> list[psutil.Process]:
        """Kill the parent; return the children that do not end by themselves."""
        children = self.children
        self.process.kill()
        left: list[psutil.Process] = psutil.wait_procs(children, PATIENCE)[1]
        for child in left:
            child.kill()
        self._end()
        return left


@pytest.fixture
def row(program: Program, postgres_url: str) -> Iterator[Row]:
    """Return a server of two processes."""
    with Row(program, postgres_url, WORKER_TIMEOUT_SECONDS="0.4") as row:
        yield row


def test_each_process_serves_and_is_replaced(row: Row) -> None:
    """With one stopped the other answers. Whoever is killed gets a successor, later if they die fast."""
    first, second = before = row.children
    for one, other in ((first, second), (second, first)):
        one.suspend()
        assert row.answers()
        one.resume()
        assert other.is_running()
    first.kill()
    wait_until(lambda: len(row.children) == 2 and first not in row.children)
    second.suspend()  # so that it is the new one that answers
    assert row.answers()
    second.resume()
    [third] = [child for child in row.children if child not in before]
    third.kill()
    wait_until(lambda: "another one starts in 1 s" in row.said)
    assert row.answers()
    assert f"process {first.pid} ended (-9); another one starts in 0 s" in row.said


def test_it_starts_and_stops_as_one_process_does(row: Row, program: Program) -> None:
    """The token of a first start is shown once and found; Ctrl-C reaches the parent, who stops the rest."""
    assert row.kept
    assert "  processes 2\n" in row.said
    program.ok("jobs", "--url", row.url)
    polling = httpx.get(f"{row.url}/socket.io/?EIO=4&transport=polling")
    assert (polling.status_code, polling.json()) == (400, "Invalid transport")
    # A terminal sends Ctrl-C to its whole session.
    assert os.getsid(row.process.pid) not in {os.getsid(child.pid) for child in row.children}
    done = row.stop()
    assert (done.code, done.out) == (0, "")
    assert done.err.count(row.kept) == done.err.count(" serves ") == 1


def test_sigterm_stops_all_with_long_polls_open(row: Row) -> None:
    """Promptly, with one exit code; whoever sleeps there gets an answer: no task."""
    children, answers = row.children, []

    def sleep(remote: RestApi, worker_id: object) -> None:
        answers.append(remote.claim(worker_id, wait=30))

    with row.connect() as connection:
        remote = RestApi(connection)
        workers = [remote.create_worker() for _ in range(4)]
        threads = [threading.Thread(target=sleep, args=(remote, worker.id)) for worker in workers]
        for thread in threads:
            thread.start()
        born = {worker.id: worker.last_heartbeat for worker in workers}
        # A worker that sleeps on the server counts as alive, every quarter of the timeout.
        every = JobClient(remote).workers
        wait_until(lambda: all(one.last_heartbeat > born[one.id] for one in every().items))
        began = time.monotonic()
        done = row.stop(signal.SIGTERM)
        assert time.monotonic() - began < 5
        for thread in threads:
            thread.join(PATIENCE)
    assert (done.code, done.out) == (0, "")
    assert "ERROR" not in done.err
    assert [(answer.task, applied) for answer, applied in answers] == [(None, 30)] * 4
    assert not any(child.is_running() for child in children)


def test_nobody_stays_when_the_parent_is_killed(row: Row) -> None:
    """The children end by themselves, and the port is free."""
    assert row.orphaned() == []
    with pytest.raises(httpx.ConnectError):
        row.answers()


def test_what_cannot_begin_is_said_once(program: Program, empty_postgres_url: str) -> None:
    """Where the children find what the parent did not, all of them stop, and one line is said."""
    program.env["ZNDRAW_JOBLIB_DATABASE_URL"] = empty_postgres_url
    done = subprocess.run(
        [sys.executable, "-c", _SUPERVISE],
        env=program.env,
        cwd=program.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "run 'zndraw-joblib db upgrade'" in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_modules_beside_the_server_are_not_loaded(program: Program, postgres_url: str) -> None:
    """A file in the working directory may have the name of a library."""
    (program.folder / "uvicorn.py").write_text("raise SystemExit('the wrong one')\n")
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
    """Each as the parent has it, wherever it was set; the token too."""
    settings = ServerSettings(
        admin_token="a-secret-of-the-operator",
        allowed_categories=["analysis"],
        cors_origins=["http://a", "http://b"],
        database_url="postgresql://ann:secret@host/name",
        redis_url="redis://:secret@host/1",
        socketio_transports=["websocket"],
        workers=7,
        max_waiting_requests=5,
        validate_payload=False,
        worker_timeout_seconds=1.5,
    )
    with socket.socket() as listener:
        line = Plan.of(settings, listener, Speech(LogLevel.DEBUG, access_log=True)).model_dump_json()
        plan = Plan.model_validate_json(line)
        assert plan.listener == listener.fileno()
    assert plan.speech == Speech(LogLevel.DEBUG, access_log=True)
    assert plan.settings.keys() == ServerSettings.model_fields.keys()
    assert ServerSettings(**plan.settings) == settings


def test_several_processes_speak_websocket_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long-polling would spread a client over processes that do not know it; what was set is left."""
    several = {"database_url": "postgresql://host/name", "workers": 2}
    settings = ServerSettings(**several)
    serving.allow_several(settings)
    assert settings.socketio_transports == ["websocket"]
    monkeypatch.setenv("ZNDRAW_JOBLIB_SOCKETIO_TRANSPORTS", "polling,websocket")
    settings = ServerSettings(**several)
    serving.allow_several(settings)
    assert settings.socketio_transports == ["polling", "websocket"]
