"""Parsl: a block that is killed."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from engines.engine_jobs import engine_square, engine_wait
from zndraw_joblib.worker import engines
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]
SECONDS = 120

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("parsl") is None, reason="parsl is not installed here: make engines"),
]


def kill_block(pid: int) -> None:
    """Kill the block of a process, as a node that is lost: its manager and all that it has started."""
    parents = psutil.Process(pid).parents()
    [manager] = [one for one in parents if any("process_worker_pool" in word for word in one.cmdline()[:2])]
    for process in (manager, *manager.children(recursive=True)):
        process.kill()


def test_a_block_that_is_killed_costs_an_attempt_and_is_replaced(
    worker: Make, room: str, tmp_path: Path
) -> None:
    """The task that ran there runs again in the next block, and so does one that waited."""
    manager = worker(Runner(), executor=engines.parsl, concurrency=8)
    for cls in (engine_square, engine_wait):
        manager.register(cls, room=room)
    square = manager.submit(engine_square.task(number=1, folder=str(tmp_path)), room=room)
    pid = manager.wait_for(square, SECONDS).result[1]
    names = [str(number) for number in range(8)]
    tasks = [manager.submit(engine_wait.task(folder=str(tmp_path), name=name), room=room) for name in names]
    wait_until((tmp_path / "began").exists, SECONDS)
    kill_block(pid)
    (tmp_path / "go").touch()
    ended = [manager.wait_for(task, SECONDS) for task in tasks]
    assert [task.result for task in ended] == names
    began = (tmp_path / "began").read_text().split()[0]
    assert ended[names.index(began)].attempts == 2
