"""The command line in an empty folder, and a server with a worker that several tests share."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from waiting import wait_until

from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.worker.rest import RestApi

JOBS = '''
from typing import Any

from zndraw_joblib import Category, Extension


class Show(Extension):
    """Return the payload and the context."""

    category = Category.ANALYSIS
    value: Any = None
    other: Any = None

    def run(self, vis: Any, **kwargs: Any) -> Any:
        return {"value": self.value, "other": self.other, "vis": vis}


class Fail(Extension):
    category = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> Any:
        raise RuntimeError("it broke\\nin two lines")


class Picky(Extension):
    category = Category.MODIFIER
    number: int

    def run(self, vis: Any, **kwargs: Any) -> Any: ...


class Twin(Extension):
    category = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> Any: ...


def context(task: Any) -> str:
    return f"vis of {task.room_id}"
'''


class Stack(NamedTuple):
    """A program whose environment names a running server, the server, and a client."""

    program: Program
    server: RunningServer
    client: JobClient


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the command line in an empty folder without settings."""
    return Program(tmp_path)


@contextmanager
def serving(folder: Path, jobs: str, names: Sequence[str], *options: str) -> Iterator[Stack]:
    """Run one server, and one worker that serves a module with jobs of these names in @global."""
    (folder / "my_jobs.py").write_text(jobs)
    program = Program(folder)
    log = folder / "worker.log"
    with RunningServer(program) as server, server.connect() as connection, log.open("w") as output:
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        worker = program.start("worker", "my_jobs.py", *options, output=output)
        client = JobClient(RestApi(connection))
        wait_until(lambda: client.jobs().total == len(names) or worker.poll() is not None, TIMEOUT)
        assert worker.poll() is None, log.read_text()
        yield Stack(program, server, client)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(TIMEOUT) == 0
        assert log.read_text().startswith(f"Serving {', '.join(names)} in @global at {server.url}")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a server and a worker with JOBS and a context."""
    options = "--context", "my_jobs:context"
    with serving(
        tmp_path_factory.mktemp("stack"), JOBS, ["Show", "Fail", "Picky", "Twin"], *options
    ) as stack:
        yield stack
