"""Tasks run in threads, on an event loop, or in processes of their own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import forking
import pytest
from endings import ENDINGS
from waiting import suspend, wait_until

from sdk.executors import EndInSubtask, EndLater, Meet, Process, ProcessLater
from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.test_killed_processes import has_ended, pids_in
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

KILLED = (
    "The process that ran the task ended with exit code -9 "
    "(SIGKILL, as when the machine or the allocation has no memory left)"
)

Make = Callable[..., JobManager]
Start = Callable[[], subprocess.Popen[bytes]]


def test_coroutines_run_at_once_beside_threads(worker: Make, room: str) -> None:
    """`concurrency` coroutines share one thread; the same worker serves an extension with a plain `run`."""
    manager = worker(Runner(), concurrency=5)
    for cls in (Meet, Add):
        manager.register(cls, room=room)
    Meet.running = 0
    ids = [manager.submit(Meet(others=5), room=room) for _ in range(5)]
    assert {manager.wait_for(task_id, 30).result for task_id in ids} == {"zndraw-joblib-async"}
    assert manager.wait_for(manager.submit(Add(a=1, b=2), room=room), 30).result == 3


def test_coroutines_are_limited(worker: Make, room: str) -> None:
    """No more than `concurrency` coroutines run at once."""
    manager = worker(Runner(), concurrency=2)
    manager.register(Meet, room=room)
    Meet.running = 0
    ids = [manager.submit(Meet(others=3), room=room) for _ in range(3)]
    wait_until(lambda: Meet.running == 2)
    assert manager.tasks(room, status=TaskStatus.RUNNING, limit=5).total <= 2
    Meet.running = 2
    Meet.full._loop.call_soon_threadsafe(Meet.full.set)  # type: ignore[attr-defined]
    for task_id in ids:
        assert manager.wait_for(task_id, 40).status == TaskStatus.COMPLETED


def test_any_ending_of_a_coroutine_is_reported(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """The task fails with a text, and the event loop continues. A coroutine cannot raise StopIteration."""
    for how in sorted(ENDINGS.keys() - {"stop iteration"}):
        with subtests.test(how=how):
            manager = worker(Runner())
            manager.register(EndLater, room=room)
            failed = manager.wait_for(manager.submit(EndLater(how=how), room=room), 30)
            assert failed.status == TaskStatus.FAILED
            assert (failed.error or "").startswith(ENDINGS[how][1])
            assert manager.wait_for(manager.submit(EndLater(), room=room), 30).result == "well"


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("how", ["gather", "group", "forgotten"])
def test_an_exit_in_a_subtask_ends_only_its_task(worker: Make, room: str, how: str, executor: str) -> None:
    """asyncio leaves the event loop with it; the coroutines of other tasks continue nevertheless.

    In a process, it ends the task even if the job does not look at it, as with `asyncio.run`.
    """
    manager = worker(Runner(), concurrency=3, executor=executor)
    for cls in (Meet, EndInSubtask):
        manager.register(cls, room=room)
    Meet.running = 0
    others = 2 if executor == "thread" else 1
    meeting = [manager.submit(Meet(others=others), room=room)]
    wait_until(lambda: manager.get_task(meeting[0]).status != TaskStatus.PENDING)
    ended = manager.wait_for(manager.submit(EndInSubtask(how=how), room=room), 60)
    goes_on = how == "forgotten" and executor == "thread"
    assert ended.error == (None if goes_on else "SystemExit: 3")
    meeting.append(manager.submit(Meet(others=others), room=room))
    assert [manager.wait_for(task_id, 60).error for task_id in meeting] == [None, None]
    manager.disconnect()


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize(("prefix", "how"), [("zndraw-joblib-async", "well"), ("asyncio_", "bytes")])
def test_a_coroutine_that_gets_no_thread_fails(
    worker: Make, room: str, monkeypatch: pytest.MonkeyPatch, prefix: str, how: str
) -> None:
    """Without one for the event loop, or for the upload of its result; its slot is free again."""
    manager = worker(Runner())
    manager.register(EndLater, room=room)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        failed = manager.wait_for(manager.submit(EndLater(how=how), room=room), 30)
    assert failed.error == "RuntimeError: can't start new thread"
    assert manager.wait_for(manager.submit(EndLater(), room=room), 30).result == "well"


def test_tasks_run_in_processes(worker: Make, room: str) -> None:
    """Not in the worker's; a process serves several tasks, and also coroutines."""
    manager = worker(Runner(), executor="process")
    for cls in (Process, ProcessLater):
        manager.register(cls, room=room)
    pids = {manager.wait_for(manager.submit(Process(), room=room), 60).result for _ in range(2)}
    pids.add(manager.wait_for(manager.submit(ProcessLater(), room=room), 60).result)
    assert len(pids) == 1
    assert os.getpid() not in pids
    manager.disconnect()
    [pid] = pids
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("how", ["error", "exit", "lazy exit", "kill"])
def test_any_ending_of_a_process_is_reported(worker: Make, room: str, how: str) -> None:
    """A process that is killed fails its task, and another one runs the next task."""
    manager = worker(Runner(), executor="process")
    manager.register(Process, room=room)
    failed = manager.wait_for(manager.submit(Process(how=how), room=room), 60)
    assert failed.status == TaskStatus.FAILED
    expected = KILLED if how == "kill" else ENDINGS[how][1]
    assert (failed.error or "").startswith(expected)
    assert manager.wait_for(manager.submit(Process(), room=room), 60).status == TaskStatus.COMPLETED


def test_a_message_that_cannot_be_read_fails_its_task(worker: Make, room: str) -> None:
    """The process that sent it ends, and another one runs the next task in the same slot."""
    manager = worker(Runner(), executor="process")
    manager.register(Process, room=room)
    first = manager.wait_for(manager.submit(Process(), room=room), 60).result
    failed = manager.wait_for(manager.submit(Process(how="garble"), room=room), 60)
    assert (failed.status, str(failed.error).partition(":")[0]) == (TaskStatus.FAILED, "MemoryError")
    assert manager.wait_for(manager.submit(Process(), room=room), 60).result not in {None, first}


def test_a_process_that_leaves_helpers_behind_is_noticed(worker: Make, room: str) -> None:
    """A forked helper keeps the connection of a killed process open; the task fails nevertheless."""
    manager = worker(Runner(), executor="process")
    manager.register(Process, room=room)
    failed = manager.wait_for(manager.submit(Process(how="kill", leaves_helper=True), room=room), 40)
    assert failed.error == KILLED
    assert manager.wait_for(manager.submit(Process(), room=room), 60).status == TaskStatus.COMPLETED


def test_a_process_that_dies_between_tasks_fails_none(worker: Make, room: str) -> None:
    """Another one runs the next task."""
    manager = worker(Runner(), executor="process")
    manager.register(Process, room=room)
    first = manager.wait_for(manager.submit(Process(), room=room), 60).result
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    second = manager.wait_for(manager.submit(Process(), room=room), 60)
    assert (second.status, second.error) == (TaskStatus.COMPLETED, None)
    assert second.result != first


def test_a_process_that_dies_while_it_receives_a_task_fails_none(worker: Make, room: str) -> None:
    """A helper keeps its connection open, so the rest of a large task could be sent to no process."""
    manager = worker(Runner(), executor="process")
    manager.register(Process, room=room)
    first = manager.wait_for(manager.submit(Process(leaves_helper=True), room=room), 60).result
    suspend(first)
    large = manager.submit(Process(padding=900_000 * "."), room=room)
    wait_until(lambda: manager.get_task(large).status == TaskStatus.RUNNING)
    os.kill(first, signal.SIGKILL)
    second = manager.wait_for(large, 60)
    assert (second.status, second.error) == (TaskStatus.COMPLETED, None)
    assert second.result != first


def test_jobs_in_processes_may_start_others(worker: Make, room: str) -> None:
    """Their programs and forked processes handle signals as usual."""
    manager = worker(Runner(), executor="process")
    for cls in (Process, forking.Fork):
        manager.register(cls, room=room)
    ended = manager.wait_for(manager.submit(Process(how="interrupt program"), room=room), 60)
    assert (ended.result, ended.error) == (-signal.SIGINT, None)
    for how, expected in forking.EXPECTED.items():
        ended = manager.wait_for(manager.submit(forking.Fork(how=how), room=room), 60)
        assert (how, ended.result, ended.error) == (how, expected, None)


def test_a_class_that_cannot_be_imported_is_refused(worker: Make, room: str) -> None:
    """The error says why, and what to do; so does the one for a function."""

    class Local(Add):
        """A class inside a function."""

    manager = worker(Runner(), executor="process")
    with pytest.raises(TypeError, match=r"Local cannot run in another process: .*top level of a module"):
        manager.register(Local, room=room)
    with pytest.raises(TypeError, match=r"lambda> cannot run in another process"):
        worker(lambda task: None, executor="process")


SCRIPT = """
import sys, time
from pathlib import Path
from sdk.executors import Process
from sdk.stuck_jobs import Stuck
from zndraw_joblib.client.connection import connect
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.serving import Runner

if __name__ == "__main__":
    url, token, room = sys.argv[1:]
    with connect(url, token) as api, JobManager(api, execute=Runner(), executor="process") as manager:
        manager.register(Process, room=room)
        manager.register(Stuck, room=room)
        manager.wait()

folder = Path(__file__).parent
if __name__ == "__mp_main__" and (folder / "slow").exists():
    (folder / "starting").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def start(server: LiveServer, room: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a worker in a process group of its own."""
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    arguments = [sys.executable, str(script), server.url, TOKEN, room]
    started: list[subprocess.Popen[bytes]] = []

    def run() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(arguments, env=environment, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("moment", ["starting", "running"])
def test_a_signal_to_all_processes_ends_no_task(
    worker: Make, room: str, start: Start, tmp_path: Path, moment: str
) -> None:
    """A service manager stops the worker and the processes of its tasks; the running task finishes."""
    if moment == "starting":
        (tmp_path / "slow").touch()
    process, caller = start(), worker()
    wait_until(lambda: any(job.full_name.startswith(room) for job in caller.jobs(room).items), 60)
    task_id = caller.submit(f"{room}:analysis:Process", {"how": str(tmp_path)})
    wait_until((tmp_path / moment).exists, 60)
    os.killpg(process.pid, signal.SIGTERM)
    wait_until(lambda: not caller.jobs(room).items)
    (tmp_path / "go").touch()
    ended = caller.wait_for(task_id, 60)
    assert (ended.result, ended.error) == ("waited", None)
    assert process.wait(30) == 0


def test_a_process_that_dies_while_it_sends_a_result_fails_its_task(worker: Make, room: str) -> None:
    """A helper keeps its connection open, so the rest of a large result never arrives."""
    manager = worker(Runner(), executor="process")
    manager.register(Process, room=room)
    cut = Process(how="kill while it sends", leaves_helper=True)
    failed = manager.wait_for(manager.submit(cut, room=room), 60)
    assert (failed.status, failed.error) == (TaskStatus.FAILED, KILLED)
    assert manager.wait_for(manager.submit(Process(), room=room), 60).status == TaskStatus.COMPLETED


@pytest.mark.parametrize("how", ["two signals", "kill", "kill in native code"])
def test_no_process_is_left_behind(worker: Make, room: str, start: Start, tmp_path: Path, how: str) -> None:
    """A worker that ends abruptly takes the processes of its tasks along, with their programs."""
    process, caller = start(), worker()
    wait_until(lambda: len(caller.jobs(room).items) == 2, 60)
    job = f"{room}:analysis:Process"
    pids = [caller.wait_for(caller.submit(job), 60).result]
    if how == "two signals":
        task_id = caller.submit(job, {"how": "sleep"})
        wait_until(lambda: caller.get_task(task_id).status == TaskStatus.RUNNING)
        process.terminate()
        wait_until(lambda: not caller.jobs(room).items)
        process.terminate()
    elif how == "kill":
        process.kill()
    else:
        caller.submit(f"{room}:analysis:Stuck", {"folder": str(tmp_path)})
        pids = pids_in(tmp_path)
        process.kill()
    process.wait(30)
    wait_until(lambda: all(map(has_ended, pids)), 30)
