"""Tasks on real clusters of other engines on this machine: many of them, kills, and cancellations.

`make engines` runs them in environments that have the engines.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from sdk.live import TOKEN, LiveServer
from sdk.test_cancelled_coroutines import end_elsewhere
from waiting import wait_until

from engines.engine_jobs import engine_killer, engine_square, engine_wait
from zndraw_joblib import Queue
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker import engines
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]
TASKS = 1000
SECONDS = 120
# A process for each processor runs one task; the other calls wait in the engine.
PROCESSES = os.cpu_count() or 1
IN_FLIGHT = PROCESSES + 6


@pytest.fixture(params=engines.ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    """Return an engine that is installed."""
    name: str = request.param
    if find_spec(engines.ENGINES[name]) is None:
        pytest.skip(f"{name} is not installed here: make engines")
    return name


@pytest.fixture
def manager(name: str, worker: Make, room: str) -> JobManager:
    """Return a worker on the engine."""
    executor = getattr(engines, name)
    manager = worker(Runner(), executor=executor, concurrency=IN_FLIGHT, heartbeat_interval=0.2)
    for cls in (engine_square, engine_killer, engine_wait):
        manager.register(cls, room=room)
    return manager


def test_tasks_end_once_when_processes_are_killed(
    manager: JobManager, server: LiveServer, room: str, tmp_path: Path
) -> None:
    """A thousand have their results; a killed process costs an attempt, and its policy decides."""
    folder = str(tmp_path)
    squares = [engine_square.task(number=number, folder=folder) for number in range(TASKS)]
    with Queue(server.url, token=TOKEN) as queue:
        tasks = [str(task.id) for task in queue.submit_many(squares, room=room, atomic=True)]
    killer = manager.submit(engine_killer.task(folder=folder), room=room, priority=1)
    pid = manager.wait_for(tasks[TASKS // 4], SECONDS).result[1]
    os.kill(pid, signal.SIGKILL)
    ended = [manager.wait_for(task, SECONDS) for task in tasks]
    assert [task.result[0] for task in ended] == [number**2 for number in range(TASKS)]
    assert (manager.wait_for(killer, SECONDS).result, manager.get_task(killer).attempts) == ("well", 2)
    wait_until(lambda: not manager.held_tasks)
    # The process had a call that ran, and perhaps some that waited there.
    assert sum(task.attempts - 1 for task in ended) <= IN_FLIGHT
    runs = Counter((tmp_path / "squares").read_text().split())
    assert len(runs) == TASKS
    print(f"{sum(runs.values()) - TASKS} runs more than tasks")
    once = manager.submit(engine_killer.task(folder=folder, always=True), room=room, max_attempts=1)
    failed = manager.wait_for(once, SECONDS)
    assert (failed.status, failed.error_code) == ("failed", "worker-lost")


def test_cancelled_tasks_do_not_hold_the_engine(
    name: str, manager: JobManager, room: str, tmp_path: Path, api: Connection
) -> None:
    """One that waits in the engine never begins, except in Parsl; the others go on."""
    folder = str(tmp_path)

    def began() -> list[str]:
        return (tmp_path / "began").read_text().split() if (tmp_path / "began").exists() else []

    names = [str(number) for number in range(IN_FLIGHT)]
    tasks = {name: manager.submit(engine_wait.task(folder=folder, name=name), room=room) for name in names}
    wait_until(lambda: len(began()) == PROCESSES)
    wait_until(lambda: len(manager.held_tasks) == len(names))
    running, waiting = began()[0], next(name for name in names if name not in began())
    for cancelled in (waiting, running):
        end_elsewhere(manager, api, tasks[cancelled], TaskStatus.CANCELLED)
    (tmp_path / "go").touch()
    others = {name: manager.wait_for(task, SECONDS).result for name, task in tasks.items()}
    assert others == {name: None if name in (waiting, running) else name for name in names}
    if name != "parsl":
        assert sorted(began()) == sorted(number for number in names if number != waiting)
