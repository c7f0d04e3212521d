"""Dask: processes that are killed again and again, and a scheduler that is lost."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from sdk.live import TOKEN, LiveServer
from servers import free_port
from waiting import wait_until

from engines.engine_jobs import engine_killer, engine_square
from zndraw_joblib.worker import engines
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]
HERE = Path(__file__).parent
SECONDS = 120
# A local cluster of Dask looks as many seconds after a kill whether the process is there again.
LOOKS_AFTER = 15

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("distributed") is None, reason="dask is not installed here: make engines"),
]


def test_a_cluster_whose_processes_are_killed_for_long_runs_on(
    worker: Make, room: str, tmp_path: Path
) -> None:
    """One that is down when the cluster looks for it is not given up."""
    manager = worker(Runner(), executor=engines.dask, concurrency=4)
    for cls in (engine_square, engine_killer):
        manager.register(cls, room=room)
    folder, until = str(tmp_path), time.monotonic() + 2 * LOOKS_AFTER
    while time.monotonic() < until:
        killers = [
            manager.submit(engine_killer.task(folder=folder, always=True), room=room, max_attempts=1)
            for _ in range(os.cpu_count() or 1)
        ]
        assert {manager.wait_for(task, SECONDS).error_code for task in killers} == {"worker-lost"}
    task = manager.submit(engine_square.task(number=3, folder=folder), room=room)
    assert manager.wait_for(task, SECONDS).result[0] == 9


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of Python; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_command_survives_the_loss_of_its_scheduler(
    server: LiveServer, worker: Make, room: str, tmp_path: Path
) -> None:
    """Its tasks are lost attempts, and run on the next scheduler at this address."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    process = ["dask", "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    # The scheduler's own setting, for which the worker only warns.
    no_repeats = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    command = ["zndraw_joblib", "worker", str(HERE / "engine_jobs.py"), "--executor", "dask"]
    command += ["--room", room, "--url", server.url]
    caller = worker()
    payload = {"folder": str(tmp_path), "name": "a"}
    with ExitStack() as stack:
        first, _ = (
            stack.enter_context(running(*scheduler, **no_repeats)),
            stack.enter_context(running(*process)),
        )
        stack.enter_context(running(*command, DASK_SCHEDULER_ADDRESS=address, ZNDRAW_JOBLIB_TOKEN=TOKEN))
        wait_until(lambda: len(caller.jobs(room).items) == 3)
        task = caller.submit(f"{room}:jobs:engine_wait", payload)
        wait_until((tmp_path / "began").exists)
        first.kill()
        first.wait()
        with running(*scheduler, **no_repeats), running(*process):
            wait_until(lambda: (tmp_path / "began").read_text() == "a\na\n", SECONDS)
            (tmp_path / "go").touch()
            ended = caller.wait_for(task, SECONDS)
    assert (ended.result, ended.attempts) == ("a", 2)
