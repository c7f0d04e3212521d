"""The command line in a folder of its own, and a server with a worker for those that change nothing."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from waiting import wait_until

from cli.program import Program, Serving
from zndraw_joblib.worker.client import JobClient
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


class Place(NamedTuple):
    """A program that finds its server by the environment, and the server."""

    program: Program
    server: Serving
    caller: JobClient


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the command line in an empty folder, with nothing configured."""
    return Program(tmp_path)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One server and one worker that serves JOBS in @global, with a context."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "my_jobs.py").write_text(JOBS)
    program = Program(folder)
    with Serving(program) as server, server.connect() as connection:
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        worker = program.start("worker", "my_jobs.py", "--context", "my_jobs:context")
        caller = JobClient(RestApi(connection))
        wait_until(lambda: caller.jobs().total == 4 or worker.poll())
        yield Place(program, server, caller)
        worker.send_signal(signal.SIGINT)
        said = worker.communicate()[1]
        assert worker.returncode == 0
        assert said.startswith(f"Serving Show, Fail, Picky, Twin in @global at {server.url}")
