"""The examples as a new user runs them: a server, and workers started from the repository."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cli.conftest import Stack
from cli.program import TIMEOUT, Program, RunningServer
from waiting import wait_until

from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.worker.rest import RestApi

ROOT = Path(__file__).parents[2]
Serve = Callable[..., None]


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[tuple[Stack, Serve]]:
    """Run a server; yield it, and a function that starts a worker and waits until there are `jobs` jobs."""
    program = Program(folder)
    with RunningServer(program, **settings) as server, server.connect() as connection, ExitStack() as workers:
        program.env["ZNDRAW_JOBLIB_URL"] = server.url
        client = JobClient(RestApi(connection))

        def serve(*arguments: str, jobs: int) -> None:
            log = folder / f"{arguments[0]}.log"
            with log.open("w") as output:
                worker = program.start("worker", *arguments, folder=ROOT, output=output)
            workers.callback(worker.wait)
            workers.callback(worker.send_signal, signal.SIGINT)
            wait_until(lambda: client.jobs().total >= jobs or worker.poll() is not None, TIMEOUT)
            assert worker.poll() is None, log.read_text()

        yield Stack(program, server, client), serve


@pytest.fixture(scope="package")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Return a server with a worker for each example."""
    with running(tmp_path_factory.mktemp("examples")) as (stack, serve):
        serve("examples.relaxation", jobs=2)
        serve("examples.image", jobs=4)
        serve("examples.regular", jobs=7)
        serve("examples.embeddings", jobs=9)
        serve("examples.trees", jobs=11)
        serve("examples.groups", jobs=13)
        serve("examples.steps", jobs=16)
        yield stack
