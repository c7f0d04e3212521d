"""Processes that a job forks: signals reach only them, and none of them continues as the worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import forking
import pytest
from waiting import wait_until

from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]

MAIN = """
import sys
from zndraw_joblib.client.connection import connect
from zndraw_joblib.jobs.loading import load_extensions
from zndraw_joblib.worker.serving import serve
url, token, room, target = sys.argv[1:]
with connect(url, token, realtime=True) as api:
    serve(api, load_extensions(target), room=room)
"""


@pytest.fixture
def process(server: LiveServer, room: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker in a process of its own, with one thread for tasks."""
    arguments = [server.url, TOKEN, room, forking.__file__]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *arguments], start_new_session=True)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_job_may_fork(worker: Make, room: str, process: subprocess.Popen[bytes]) -> None:
    """A pool ends, a process can be terminated, and one that comes back ends; the worker stays the same."""
    caller = worker()
    job = f"{room}:analysis:Fork"
    wait_until(lambda: [found for found in caller.jobs(room).items if found.full_name == job])
    for how, expected in forking.EXPECTED.items():
        ended = caller.wait_for(caller.submit(job, {"how": how}), 30)
        assert (how, ended.result, ended.error) == (how, expected, None)
        assert caller.wait_for(caller.submit(job), 30).result == process.pid
    assert len(caller.workers(room).items) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def in_fork(work: Callable[[], Any]) -> str:
    """Return what `work` returns or raises in a forked process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            text = repr(work())
        except BaseException as error:
            text = repr(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    assert forking.exit_code(pid) == 0
    return text


def test_a_forked_process_is_not_the_worker(worker: Make, room: str) -> None:
    """It can neither claim nor report nor remove the worker, but it may submit."""
    manager = worker()
    manager.register(Add, room=room)
    worker_id = manager.worker_id
    tasks = manager.listen(0.1)
    manager.submit(Add(a=1), room=room)
    task = next(tasks)
    for work in (
        lambda: next(tasks),
        manager.claim,
        manager.heartbeat,
        lambda: manager.start(task),
        lambda: manager.register(Add, room=room),
    ):
        assert "is not the worker" in in_fork(work)
    assert in_fork(manager.disconnect) == "None"
    manager.start(task)
    assert manager.complete(task, 1).result == 1
    assert manager.worker_id == worker_id
    submitted = in_fork(lambda: str(manager.submit(Add(a=2), room=room))).strip("'")
    assert manager.get_task(submitted).payload == {"a": 2, "b": 0}


def test_a_forked_process_has_its_own_connections(api: Connection) -> None:
    """The HTTP client of the parent is not used by another process."""
    first = api.http
    assert in_fork(lambda: api.http is first) == "False"
    assert api.http is first


def test_signals_are_reset_only_while_a_worker_handles_them() -> None:
    """A host's own handlers are inherited as usual."""
    assert in_fork(lambda: signal.getsignal(signal.SIGTERM)) == repr(signal.getsignal(signal.SIGTERM))
