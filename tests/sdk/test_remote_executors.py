"""Tasks on any `concurrent.futures.Executor`; those of other engines are in tests/engines."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting import wait_until

from sdk.batch_jobs import measure
from sdk.live import TOKEN, LiveServer
from sdk.remote_jobs import pool, remote_killer, remote_later, remote_parent, remote_square, remote_wait
from sdk.test_cancelled_coroutines import end_elsewhere
from sdk.test_live_reports import texts
from zndraw_joblib.cli.display import UsageError
from zndraw_joblib.cli.worker import _executor
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.engines import ENGINES
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.remote import ExecutorUnavailable
from zndraw_joblib.worker.serving import Runner

Make = Callable[..., JobManager]


def test_tasks_run_where_the_executor_runs_them(worker: Make, room: str, api: Connection) -> None:
    """Functions, coroutines and batches do; results, errors, the progress and the log come back."""
    manager = worker(Runner(), executor=pool, concurrency=4)
    for cls in (remote_square, remote_later, remote_parent, measure):
        manager.register(cls, room=room)
    numbers = [manager.submit(remote_square.task(number=number), room=room) for number in range(50)]
    results = [manager.wait_for(task, 60).result for task in numbers]
    assert [square for square, _ in results] == [number**2 for number in range(50)]
    assert os.getpid() not in {pid for _, pid in results}
    assert texts(api, numbers[0]) == ["a line", "printed"]
    progress = manager.get_task(numbers[0]).progress
    assert progress is not None
    assert (progress.current, progress.total, progress.message) == (1, 2, "half")
    later = manager.submit(remote_later.task(number=3), room=room)
    assert manager.wait_for(later, 60).result == 9
    word = manager.submit(measure.task(text="word"), room=room)
    assert manager.wait_for(word, 60).result[0] == 4
    parent = manager.submit(remote_parent.task(child=f"{room}:jobs:remote_square"), room=room)
    child, refusal, identity = manager.wait_for(parent, 60).result
    assert str(manager.get_task(child).parent) == parent
    assert "Not authorized in room 'another-room'" in refusal
    assert identity == "{}"
    wrong = manager.submit(remote_square.task(number=3, error="none"), room=room)
    assert manager.wait_for(wrong, 60).error == "ValueError: none"


def test_a_lost_executor_costs_a_crash_and_is_made_again(worker: Make, room: str, tmp_path: Path) -> None:
    """Its tasks are tried again as after a lost worker, if their policy allows it."""
    made: list[Executor] = []

    def make() -> Executor:
        made.append(pool())
        return made[-1]

    manager = worker(Runner(), executor=make, concurrency=2)
    manager.register(remote_killer, room=room)
    task = manager.submit(remote_killer.task(folder=str(tmp_path)), room=room)
    assert manager.wait_for(task, 60).result == "well"
    assert (manager.get_task(task).attempts, len(made)) == (2, 2)

    killer = remote_killer.task(folder=str(tmp_path), always=True)
    once = manager.submit(killer, room=room, max_attempts=1)
    ended = manager.wait_for(once, 60)
    assert (ended.status, ended.attempts, ended.error_code) == ("failed", 1, "worker-lost")
    assert "did not run the task to its end" in str(ended.error)


def test_an_executor_that_cannot_be_made_again_ends_the_worker(worker: Make, room: str) -> None:
    """It is not shut down by the worker, except by its owner, and a task that did not begin is not lost."""
    with ThreadPoolExecutor(1) as executor:
        manager = worker(Runner(), executor=executor)
        manager.register(remote_square, room=room)
        task = manager.submit(remote_square.task(number=2), room=room)
        assert manager.wait_for(task, 60).result[0] == 4
    caller = worker()
    waiting = caller.submit(f"{room}:jobs:remote_square", {"number": 3})
    wait_until(lambda: manager.worker_id is None)
    assert caller.get_task(waiting).status == "pending"
    assert caller.get_task(waiting).error_code != "worker-lost"


def test_an_executor_that_cannot_be_made_takes_no_tasks(worker: Make, room: str, tmp_path: Path) -> None:
    """The registration fails, and names why; later its tasks go back into their queue until it can be."""
    faults = [OSError("no nodes")]

    def make() -> Executor:
        if faults:
            raise faults.pop()
        return pool()

    manager = worker(Runner(), executor=make)
    with pytest.raises(ExecutorUnavailable, match="no nodes"):
        manager.register(remote_square, room=room)
    manager.register(remote_killer, room=room)
    manager.register(remote_square, room=room)
    faults += [OSError("no nodes")]
    killer = manager.submit(remote_killer.task(folder=str(tmp_path), always=True), room=room, max_attempts=1)
    assert manager.wait_for(killer, 60).error_code == "worker-lost"
    task = manager.submit(remote_square.task(number=2), room=room, max_attempts=1)
    assert (manager.wait_for(task, 60).result[0], faults) == (4, [])


def test_a_cancelled_task_that_waits_in_the_executor_never_begins(
    worker: Make, room: str, tmp_path: Path, api: Connection
) -> None:
    """Its call is cancelled; the worker submits no more than `concurrency` calls."""
    with ThreadPoolExecutor(1) as executor:
        manager = worker(Runner(), heartbeat_interval=0.1, executor=executor, concurrency=2, prefetch=0)
        manager.register(remote_wait, room=room)
        folder = str(tmp_path)
        tasks = [manager.submit(remote_wait.task(folder=folder, name="a"), room=room)]
        wait_until((tmp_path / "a-began").exists)
        tasks += [manager.submit(remote_wait.task(folder=folder, name=name), room=room) for name in "bc"]
        wait_until(lambda: manager.get_task(tasks[1]).status == "running")
        assert manager.get_task(tasks[2]).status == "pending"
        end_elsewhere(manager, api, tasks[1], TaskStatus.CANCELLED)
        wait_until(lambda: manager.get_task(tasks[2]).status == "running")
        (tmp_path / "go").touch()
        assert [manager.wait_for(tasks[index], 60).result for index in (0, 2)] == ["a", "c"]
    assert not (tmp_path / "b-began").exists()


def test_an_engine_that_is_not_installed_is_named_with_its_extra() -> None:
    """The command says what to install; the package has an extra of this name."""
    extras = metadata.metadata("zndraw-joblib").get_all("Provides-Extra")
    missing = [name for name, module in ENGINES.items() if find_spec(module) is None]
    assert missing or find_spec("ray")
    for name in missing:
        assert name in extras
        with pytest.raises(UsageError, match=rf"{name} is not installed here.*'zndraw-joblib\[{name}\]'"):
            _executor(name, {})


@pytest.mark.processes
def test_the_command_lets_running_tasks_finish(
    server: LiveServer, worker: Make, room: str, tmp_path: Path
) -> None:
    """Ctrl-C, which a terminal sends to all processes, ends none of the executor's; none is left behind."""
    (tmp_path / "engine.py").write_text(
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def pool():\n    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn'))\n"
    )
    (tmp_path / "work.py").write_text(
        "import os, time\nfrom pathlib import Path\nfrom zndraw_joblib import job\n"
        "@job\ndef wait() -> int:\n    Path('began').touch()\n"
        "    while not Path('go').exists():\n        time.sleep(0.01)\n    return os.getpid()\n"
    )
    command = [sys.executable, "-m", "zndraw_joblib", "worker", "work.py", "--executor", "engine:pool"]
    command += ["--room", room, "--url", server.url]
    environment = {**os.environ, "ZNDRAW_JOBLIB_TOKEN": TOKEN}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        caller = worker()
        wait_until(lambda: caller.jobs(room).items)
        task = caller.submit(f"{room}:jobs:wait")
        wait_until((tmp_path / "began").exists)
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: not caller.jobs(room).items[0].workers)
        (tmp_path / "go").touch()
        pid = caller.wait_for(task, 60).result
        assert process.wait(60) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        process.kill()
        process.wait()
