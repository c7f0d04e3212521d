"""What a job prints, warns and logs belongs to its own task, and still reaches the terminal."""

import asyncio
import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from sdk.jobs import Add
from zndraw_joblib.jobs.capture import CapturedStream, outside_tasks, running, stop_following_threads
from zndraw_joblib.jobs.run import Outcome, await_job, run_job
from zndraw_joblib.jobs.task_channel import TaskChannel
from zndraw_joblib.jobs.task_context import current_task
from zndraw_joblib.wire.progress import LogLevel, LogSource
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.tasks import ClaimedTask

Lines = list[tuple[LogSource, str]]


def make_task(name: str = "a", *, captures: bool = True) -> ClaimedTask:
    """Return a task that nobody reports."""
    channel = TaskChannel(name, 1, captures=captures)
    return ClaimedTask(name, "job", "room", None, 1, {}, UUID(int=0), channel=channel)


def lines(task: ClaimedTask) -> Lines:
    """Return the lines of a task's log."""
    return [(line.source, line.text) for part in task.channel.take_all() for line in part.lines]


def run(task: ClaimedTask, work: Callable[[], Any]) -> Outcome:
    """Run a task as a worker does, in this thread."""
    outcome = run_job(work, task, None, os.getpid())
    assert isinstance(outcome, Outcome)
    return outcome


@contextmanager
def handled(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    """Let a logger use a handler, at the level of INFO."""
    former = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(former)
        logger.removeHandler(handler)


def test_prints_are_captured_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Both streams, in order; the streams of the process are its own again afterwards."""
    streams = sys.stdout, sys.stderr
    task = make_task()

    def work() -> None:
        print("to", "stdout")
        print("to stderr", file=sys.stderr)
        sys.stdout.writelines(["a ", "list\n"])
        print("not ended", end="", flush=True)

    run(task, work)
    assert lines(task) == [
        (LogSource.STDOUT, "to stdout"),
        (LogSource.STDERR, "to stderr"),
        (LogSource.STDOUT, "a list"),
        (LogSource.STDOUT, "not ended"),
    ]
    assert capsys.readouterr() == ("to stdout\na list\nnot ended", "to stderr\n")
    assert (sys.stdout, sys.stderr) == streams


def test_nothing_is_captured_when_it_is_off() -> None:
    """The task may still report by itself."""
    task = make_task(captures=False)

    def work() -> None:
        assert not isinstance(sys.stdout, CapturedStream)
        print("hidden")
        found = current_task()
        assert found is task
        found.log("shown")

    run(task, work)
    assert lines(task) == [(LogSource.LOG, "shown")]


def test_outputs_of_threads_do_not_mix() -> None:
    """Tasks at once, each with a thread of its own, a pool, and a thread of a thread."""
    tasks = [make_task(name) for name in "abc"]
    meet = threading.Barrier(len(tasks), timeout=30)

    def work(name: str) -> None:
        meet.wait()
        print(name, "task")
        nested = threading.Thread(target=lambda: _in_thread(lambda: print(name, "nested")))
        nested.start()
        nested.join()
        meet.wait()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(print, name, "pool").result()
        meet.wait()

    threads = [
        threading.Thread(target=run, args=(task, lambda name=task.task_id: work(name))) for task in tasks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for task in tasks:
        assert [text for _, text in lines(task)] == [f"{task.task_id} {what}" for what in _PLACES]
    assert current_task() is None


_PLACES = ("task", "nested", "pool")


def _in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_pool_that_tasks_share_serves_each() -> None:
    """Its threads were started by the first task."""
    with ThreadPoolExecutor(1) as pool:
        first, second = make_task("first"), make_task("second")
        for task in (first, second):
            run(task, lambda task=task: pool.submit(print, task.task_id).result())
        assert pool.submit(current_task).result() is None
    assert lines(first) == [(LogSource.STDOUT, "first")]
    assert lines(second) == [(LogSource.STDOUT, "second")]


def test_outputs_of_coroutines_do_not_mix() -> None:
    """They take turns in one thread, and share its pool of threads."""
    tasks = [make_task(name) for name in "ab"]

    async def work(name: str, turn: asyncio.Barrier) -> None:
        print(name, "begins")
        await turn.wait()
        await asyncio.gather(_say(name, "subtask"))
        await turn.wait()
        await asyncio.get_running_loop().run_in_executor(None, print, name, "executor")
        await turn.wait()
        await asyncio.to_thread(print, name, "thread")

    async def both() -> None:
        turn = asyncio.Barrier(len(tasks))
        await asyncio.gather(*(await_job(work(t.task_id, turn), t, None, os.getpid()) for t in tasks))

    asyncio.run(both())
    for task in tasks:
        whats = ("begins", "subtask", "executor", "thread")
        assert [text for _, text in lines(task)] == [f"{task.task_id} {what}" for what in whats]


async def _say(name: str, what: str) -> None:
    await asyncio.sleep(0)
    print(name, what)


def test_a_result_that_runs_code_is_captured() -> None:
    """A generator's code runs after `run` has returned it."""
    task = make_task()

    def numbers() -> Iterator[int]:
        print("generating")
        yield 1

    assert run(task, numbers).result == b"[1]"
    assert lines(task) == [(LogSource.STDOUT, "generating")]


@pytest.mark.parametrize("by_logging", [False, True])
def test_warnings_are_captured(*, by_logging: bool) -> None:
    """Also if `logging` takes them from stderr, as in worker processes of the command line."""
    task = make_task()
    logging.captureWarnings(by_logging)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # pytest records warnings instead of showing them.
            warnings.showwarning = _shown if not by_logging else logging._showwarning  # type: ignore[attr-defined]
            run(task, lambda: warnings.warn("the cell is small", UserWarning, stacklevel=1))
    finally:
        logging.captureWarnings(capture=False)
    assert any("UserWarning: the cell is small" in text for _, text in lines(task))
    assert {source for source, _ in lines(task)} == {LogSource.STDERR}


def _shown(
    message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def test_records_of_logging_go_to_the_task_that_makes_them() -> None:
    """One handler for all tasks; records of other threads go nowhere."""
    logger = logging.getLogger("a.library")
    first, second = make_task("first"), make_task("second")

    def work(task: ClaimedTask) -> None:
        logger.addHandler(task.log_handler())
        logger.warning("of %s\nin two lines", task.task_id)
        _in_thread(lambda: logger.info("child of %s", task.task_id))

    with handled(logger, first.log_handler()):
        run(first, lambda: work(first))
        run(second, lambda: work(second))
        logger.error("of nobody")
        assert len(logger.handlers) == 1
    for task in (first, second):
        (report,) = task.channel.take_all()
        assert [(line.text, line.level) for line in report.lines] == [
            (f"of {task.task_id}", LogLevel.WARNING),
            ("in two lines", LogLevel.WARNING),
            (f"child of {task.task_id}", LogLevel.INFO),
        ]


def test_threads_of_the_worker_belong_to_no_task() -> None:
    """Although a task's first line starts one of them."""
    task = make_task()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(current_task()))
    run(task, lambda: outside_tasks(thread.start))
    thread.join()
    assert found == [None]


def test_streams_that_were_replaced_keep_what_is_written() -> None:
    """A job that redirects its output captures it for itself; one without a terminal writes to its log."""
    task, own = make_task(), io.StringIO()

    def work() -> None:
        with contextlib.redirect_stdout(own):
            print("own")
        print("captured")

    run(task, work)
    assert own.getvalue() == "own\n"
    with contextlib.redirect_stdout(None):
        run(task, lambda: print("no terminal"))
        assert sys.stdout is None
    assert lines(task) == [(LogSource.STDOUT, "captured"), (LogSource.STDOUT, "no terminal")]


def test_a_wrapped_stream_is_captured_once() -> None:
    """A library may put its own stream around that of a task, and leave it there."""

    class Wrapper(io.StringIO):
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def write(self, text: str) -> int:
            self.stream.write(text)
            return len(text)

    task = make_task()
    with contextlib.redirect_stdout(sys.stdout):
        run(make_task(), lambda: setattr(sys, "stdout", Wrapper(sys.stdout)))
        run(task, lambda: print("once"))
    assert lines(task) == [(LogSource.STDOUT, "once")]


def test_a_stream_that_outlives_its_task_writes_through(capsys: pytest.CaptureFixture[str]) -> None:
    """A library may keep `sys.stdout`."""
    task, kept = make_task(), []
    run(task, lambda: kept.append(sys.stdout))
    run(make_task(), lambda: None)
    print("later", file=kept[0])
    assert kept[0].isatty() is False
    assert capsys.readouterr().out == "later\n"
    assert lines(task) == []


def test_a_forked_process_prints_only_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """It has the streams of the process, and the parent's task continues as before."""
    task = make_task()

    def work() -> None:
        pid = os.fork()
        if pid == 0:
            print("forked", isinstance(sys.stdout, CapturedStream), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print("parent")

    run(task, work)
    assert "forked False\n" in capfd.readouterr().out
    assert lines(task) == [(LogSource.STDOUT, "parent")]


def test_the_end_of_the_interpreter_prints() -> None:
    """A stream that a task has left installed does not lose what is printed at exit."""
    code = """
import atexit, sys, threading
from uuid import UUID
from zndraw_joblib.jobs.capture import running
from zndraw_joblib.jobs.run import Outcome, await_job, run_job
from zndraw_joblib.jobs.task_channel import TaskChannel
from zndraw_joblib.worker.tasks import ClaimedTask
task = ClaimedTask("a", "job", "room", None, 1, {}, UUID(int=0), channel=TaskChannel(captures=True))
def work():
    with running(task):
        print("in the task", flush=True)
        started.set()
        threading.Event().wait()
started = threading.Event()
threading.Thread(target=work, daemon=True).start()
started.wait()
atexit.register(print, "at exit")
print("printed", type(sys.stdout).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "in the task\nprinted CapturedStream\nat exit\n"


def test_an_exception_is_described_with_the_frames_of_the_job() -> None:
    """The outcome has the trimmed traceback, the full one, the cause and the notes."""

    def compute() -> None:
        try:
            {}["frame-7"]
        except KeyError as error:
            error.add_note("in frames.xyz")
            raise ValueError("no such frame") from error

    failure = run(make_task(), compute).failure
    assert failure is not None
    assert failure.type == "ValueError"
    assert "KeyError: 'frame-7'\nin frames.xyz" in failure.traceback
    assert failure.traceback.endswith("ValueError: no such frame\n")
    assert "in compute" in failure.traceback
    assert "jobs/run.py" not in failure.traceback
    assert "jobs/run.py" in failure.full_traceback


def test_running_ends_with_its_block() -> None:
    """Also when it raises."""
    task = make_task()
    with pytest.raises(ValueError, match="x"), running(task):
        raise ValueError("x")
    assert current_task() is None
    assert not isinstance(sys.stdout, CapturedStream)


def test_a_print_outlives_the_task_that_it_is_captured_for() -> None:
    """`print` keeps no reference to the stream that it writes to, also if the task ends in between."""
    code = """
import io, sys, threading
from uuid import UUID
from zndraw_joblib.jobs.capture import running
from zndraw_joblib.jobs.run import Outcome, await_job, run_job
from zndraw_joblib.jobs.task_channel import TaskChannel
from zndraw_joblib.worker.tasks import ClaimedTask
task = ClaimedTask("a", "job", "room", None, 1, {}, UUID(int=0), channel=TaskChannel(captures=True))
class Slow(io.StringIO):
    def write(self, text):
        writes.set()
        ended.wait()
        return super().write(text)
writes, ended = threading.Event(), threading.Event()
sys.stdout = slow = Slow()
with running(task):
    thread = threading.Thread(target=print, args=("one", "two"))
    thread.start()
    writes.wait()
others = [object() for _ in range(100_000)]
ended.set()
thread.join()
sys.stdout = sys.__stdout__
print(slow.getvalue(), end="")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "one two\n"


def test_methods_are_restored() -> None:
    """After the last worker of the process; a task that runs needs them still."""
    stop_following_threads()
    methods = threading.Thread.start, ThreadPoolExecutor.submit
    handlers = list(logging.getLogger("py.warnings").handlers)

    def work() -> None:
        stop_following_threads()
        thread = threading.Thread(target=print, args=("followed",))
        thread.start()
        thread.join()

    task = make_task()
    run(task, work)
    assert lines(task) == [(LogSource.STDOUT, "followed")]
    assert threading.Thread.start.__wrapped__ is methods[0]  # type: ignore[attr-defined]
    stop_following_threads()
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == methods
    assert logging.getLogger("py.warnings").handlers == handlers


def test_a_worker_that_stops_restores_them(worker: Callable[..., JobManager], room: str) -> None:
    """Its process may go on with other work."""
    stop_following_threads()
    methods = threading.Thread.start, ThreadPoolExecutor.submit
    manager = worker(lambda task: threading.Thread.start is not methods[0])
    manager.register(Add, room=room)
    assert manager.wait_for(manager.submit(Add(), room=room), 30).result is True
    manager.disconnect()
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == methods


@pytest.mark.usefixtures("followed")
def test_methods_that_others_have_wrapped_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their wrapper is not lost, and tasks are followed under it, once."""
    calls = []
    below = ThreadPoolExecutor.submit

    def submit(self: ThreadPoolExecutor, /, *args: Any, **kwargs: Any) -> Any:
        calls.append(args[0])
        return below(self, *args, **kwargs)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    stop_following_threads()
    assert ThreadPoolExecutor.submit is submit
    task = make_task()
    with ThreadPoolExecutor(1) as pool:
        run(task, lambda: pool.submit(print, "followed").result())
    assert calls == [print]
    assert lines(task) == [(LogSource.STDOUT, "followed")]


@pytest.mark.usefixtures("followed")
def test_calls_outside_of_tasks_are_as_ever() -> None:
    """Their exceptions have no frame of the worker, also in a pool that a task used."""
    with ThreadPoolExecutor(1) as pool:
        run(make_task(), lambda: pool.submit(int).result())
        error = pool.submit(int, "x").exception()
    assert error is not None
    assert "capture.py" not in "".join(traceback.format_exception(error))
    with pytest.raises(TypeError, match="submit"):
        ThreadPoolExecutor.submit(pool)  # type: ignore[call-arg]


class Careful(threading.Thread):
    """A thread whose attributes may not be set."""

    ready = False

    def __init__(self) -> None:
        super().__init__()
        self.ready = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self.ready and not name.startswith("_"):
            raise AttributeError(name)
        super().__setattr__(name, value)

    def run(self) -> None:
        """Print."""
        print("careful")


def test_subclasses_of_threads_are_followed() -> None:
    """One that refuses attributes, one whose `run` was replaced, and a timer."""
    task = make_task()

    def work() -> None:
        replaced = threading.Thread()
        replaced.run = lambda: print("replaced", "run" in vars(replaced))  # type: ignore[method-assign]
        for thread in (Careful(), replaced, threading.Timer(0, print, ["timer"])):
            thread.start()
            thread.join()

    run(task, work)
    assert [text for _, text in lines(task)] == ["careful", "replaced True", "timer"]


def test_a_thread_that_does_not_start_stays_as_it_was() -> None:
    """The error is Python's own, and the thread refers to no task."""
    thread = threading.Thread(target=print)

    def work() -> None:
        thread.start()
        thread.join()
        thread.start()

    outcome = run(make_task(), work)
    assert outcome.error == "RuntimeError: threads can only be started once"
    assert "run" not in vars(thread)
