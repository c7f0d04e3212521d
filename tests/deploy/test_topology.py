"""The services of docker-compose.yml as plain processes: no task is lost when a server is killed."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psutil
import pytest
import socketio
from cli.program import TIMEOUT, Program, RunningServer
from servers import free_port
from waiting import wait_until

from deploy.conftest import TOKEN
from deploy.forwarder import Forwarder
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.client.job_client import JobClient
from zndraw_joblib.client.retry import is_unreachable
from zndraw_joblib.wire.messages import MAX_PAGE
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.rest import RestApi

pytestmark = pytest.mark.slow

JOBS = '''
from pathlib import Path
from typing import Any

from zndraw_joblib import Category, Extension


class Square(Extension):
    category = Category.ANALYSIS
    number: int

    def run(self, vis: Any, **kwargs: Any) -> int:
        return self.number**2


class Hold(Extension):
    """Run until the test has opened and closed the other end of the pipe."""

    category = Category.ANALYSIS
    pipe: str

    def run(self, vis: Any, **kwargs: Any) -> str:
        return Path(self.pipe).read_text()
'''
ROOM = "lab"
SQUARE, HOLD = "@global:analysis:Square", "@global:analysis:Hold"
MANY = 20
Kill = Callable[[], object]


class FrontEnd:
    """A front-end's socket; `completed` has the ids of the tasks whose completion it received."""

    def __init__(self, url: str) -> None:
        self.completed: set[str] = set()
        self._socket = socketio.Client(reconnection=False, request_timeout=30)
        self._socket.on("task_status_event", self._receive)
        self._socket.connect(url, auth={"token": TOKEN}, transports=["websocket"], wait_timeout=30)
        assert self._socket.call("join_room", {"room_id": ROOM}) == {}

    def _receive(self, task: dict[str, str]) -> None:
        if task["status"] == TaskStatus.COMPLETED:
            self.completed.add(task["id"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.disconnect()


class Deployment:
    """A running worker, and a client that submits."""

    def __init__(self, connection: Connection, worker: subprocess.Popen[str], folder: Path) -> None:
        self.client = JobClient(RestApi(connection))
        self._worker = worker
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)

    def watch(self, url: str) -> None:
        """Check that sockets of any server receive the end of a task."""
        with ExitStack() as stack:
            fronts = [stack.enter_context(FrontEnd(url)) for _ in range(4)]
            task_id = self._submit(7)
            for front in fronts:
                wait_until(lambda front=front: task_id in front.completed)

    def compute(self) -> None:
        """Submit many tasks at once, and wait until all have completed."""
        with ThreadPoolExecutor(4) as pool:
            numbers = dict(zip(pool.map(self._submit, range(MANY)), range(MANY), strict=True))
        for task_id, number in numbers.items():
            task = self.client.wait_for(task_id, TIMEOUT)
            assert (task.status, task.result) == (TaskStatus.COMPLETED, number**2), task

    def compute_through(self, kill: Kill) -> None:
        """Kill a server while a task runs; check that the task and new tasks complete."""
        task_id = self.client.submit(HOLD, {"pipe": str(self._pipe)}, room=ROOM)
        with self._pipe.open("w") as end:  # returns when the task has opened the other end
            kill()
            end.write("held")
            end.flush()
            submitted = [self._submit(number) for number in range(MANY)]
        assert self.client.wait_for(task_id, TIMEOUT).result == "held"
        for task_id in submitted:
            assert self.client.wait_for(task_id, TIMEOUT).status == TaskStatus.COMPLETED
        self.compute()

    def end(self) -> None:
        """Check that all tasks that the database has are completed, and stop the worker."""
        tasks = self.client.tasks(ROOM, limit=MAX_PAGE)
        assert tasks.total == len(tasks.items) > 4 * MANY
        assert {task.status for task in tasks.items} == {TaskStatus.COMPLETED}
        self._worker.send_signal(signal.SIGINT)
        assert self._worker.wait(TIMEOUT) == 0

    def _submit(self, number: int) -> str:
        # A submit without a response may be committed, so the SDK does not repeat it.
        def submit() -> str | None:
            try:
                return self.client.submit(SQUARE, {"number": number}, room=ROOM)
            except Exception as error:
                if is_unreachable(error):
                    return None
                raise

        return str(wait_until(submit))


@contextmanager
def working(program: Program, url: str) -> Iterator[Deployment]:
    """Run a worker for the server at a URL."""
    (program.folder / "jobs.py").write_text(JOBS)
    with program.start("worker", "jobs.py", "--url", url) as worker, connect(url, TOKEN) as connection:
        try:
            deployment = Deployment(connection, worker, program.folder)
            wait_until(lambda: deployment.client.jobs().total == 2 or worker.poll() is not None)
            yield deployment
        finally:
            worker.kill()
            worker.communicate()


def test_two_replicas_behind_a_proxy(program: Program) -> None:
    """Each replica in turn is killed and restarted, while a worker and submitters use the proxy."""
    with (
        RunningServer(program, port=free_port()) as first,
        RunningServer(program) as second,
        Forwarder([first.port, second.port]) as proxy,
        working(program, proxy.url) as deployment,
    ):
        deployment.watch(proxy.url)
        deployment.compute()
        deployment.compute_through(lambda: first.stop(signal.SIGKILL))
        with RunningServer(program, port=first.port):
            deployment.compute_through(lambda: second.stop(signal.SIGKILL))
            deployment.end()


def test_two_processes_on_one_port(program: Program) -> None:
    """Each process in turn is killed and replaced, while a worker and submitters use the port."""
    with RunningServer(program, "--workers", "2") as server, working(program, server.url) as deployment:
        children = psutil.Process(server.process.pid).children
        first, second = children()
        deployment.watch(server.url)
        deployment.compute()
        deployment.compute_through(first.kill)
        wait_until(lambda: first not in children() and len(children()) == 2)
        deployment.compute_through(second.kill)
        deployment.end()
        assert server.stop().code == 0
