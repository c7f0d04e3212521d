"""Tasks that run on an executor of another library: what is sent to it, and what comes back."""

import asyncio
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from zndraw_joblib.client.retry import describe
from zndraw_joblib.jobs.failures import error_text
from zndraw_joblib.jobs.logs import ExponentialBackoff
from zndraw_joblib.jobs.run import Outcome, failed
from zndraw_joblib.jobs.traces import continued, current_traceparent
from zndraw_joblib.wire.problems import WorkerLost
from zndraw_joblib.worker.task_process import Forwarded, ForwardedReports, run_tasks
from zndraw_joblib.worker.tasks import ClaimedTask, Execute, TaskServer

log = logging.getLogger(__name__)

ExecutorSource = futures.Executor | Callable[[], futures.Executor]

_MAX_CONTENT_BYTES = 256 * 1024 * 1024
_CLOSE_SECONDS = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
# An executor that was shut down raises RuntimeError.
_BROKEN = (futures.BrokenExecutor, RuntimeError)
# The engine's worker lacks a module, or the engine cannot send the call: each attempt would fail the same.
_UNUSABLE = (ImportError, AttributeError, pickle.PickleError)


class _Answer(NamedTuple):
    """What an executor returns for the tasks of a call: their outcomes, their progress and their logs."""

    outcomes: list[Outcome]
    reports: list[Forwarded]


def run_call(call: bytes) -> bytes:
    """Run the tasks of a call where the executor runs it, and return their `_Answer`."""
    pid = os.getpid()
    try:
        folders, work = pickle.loads(call)  # noqa: S301 - the worker sent it
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        execute, tasks, traceparent = pickle.loads(work)  # noqa: S301 - the worker sent it
    except BaseException as error:
        text = (
            f"The task cannot run on the executor: {describe(error)}. Install the module of the job where "
            "the executor runs its calls, or put it into a folder that is shared with the worker"
        )
        return pickle.dumps(_Answer([Outcome(error=error_text(text))], []))
    with continued(traceparent):
        outcomes = run_tasks(execute, tasks, pid)
    return pickle.dumps(_Answer([_in_memory(outcome) for outcome in outcomes], list(_reports(tasks))))


def _reports(tasks: Sequence[ClaimedTask]) -> Iterator[Forwarded]:
    for index, task in enumerate(tasks):
        for report in task.channel.take_all():
            yield Forwarded(report.progress, report.first, list(report.lines), index)
        task.channel.close()


def _in_memory(outcome: Outcome) -> Outcome:
    """Return an outcome with its content in memory: the worker may not see the files of this machine."""
    content = outcome.content
    if content is None or isinstance(content.data, bytes):
        return outcome
    try:
        if content.size > _MAX_CONTENT_BYTES:
            text = (
                f"The result has {content.size:,} bytes, more than the {_MAX_CONTENT_BYTES:,} that an "
                "executor returns: write it to a shared file, and return its path"
            )
            return Outcome(error=text)
        return replace(outcome, content=replace(content, data=b"".join(content.pieces()), temporary=False))
    except OSError as error:
        return Outcome(error=error_text(f"The result cannot be read: {describe(error)}"))
    finally:
        content.discard()


class ExecutorUnavailable(RuntimeError):
    """There is no executor to run a task, which has not begun."""


class RemoteExecutor:
    """Runs tasks on an executor, in place of which it makes another one when it is lost. Thread-safe.

    `source` is an executor, or a function that makes one. Without a function there is no other one: then
    `on_lost` is called, which lets the worker leave. New ones are made after 1 s, doubling to 30 s until a
    task has ended well.
    """

    def __init__(self, source: ExecutorSource, execute: Execute) -> None:
        self._source = source
        self._execute = execute
        self._lock = threading.Lock()
        # Held while one is made. Not `_lock`: engines call `_note_end` in threads that may be needed for it.
        self._making = threading.Lock()
        self._executor: futures.Executor | None = None
        self._backoff = ExponentialBackoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, jitter=0.0)
        self._not_before = 0.0
        self._is_lost = False
        self.on_lost: Callable[[], object] = lambda: None

    def open(self) -> None:
        """Make the executor, unless there is one. Raises `ExecutorUnavailable`."""
        with self._making:
            if self._executor is None:
                try:
                    self._executor = self._make()
                except Exception as error:
                    raise ExecutorUnavailable(f"The executor cannot be made: {describe(error)}") from error

    def submit(
        self, tasks: Sequence[ClaimedTask], stop: threading.Event, *, is_batch: bool = False
    ) -> "futures.Future[bytes]":
        """Submit the call for a task or a batch; make another executor first if this one is lost.

        Raises `ExecutorUnavailable` if none can be made now, or when `stop` is set, and what pickle raises.
        """
        call = self._packed(tasks, None if is_batch else self._execute)
        while True:
            executor = self._current(stop)
            try:
                with _ignored_interrupts():
                    future = executor.submit(run_call, call)
            except _BROKEN as error:
                self._replace(executor, error)
                continue
            future.add_done_callback(partial(self._note_end, executor))
            return future

    async def outcomes(self, tasks: Sequence[ClaimedTask], future: "futures.Future[bytes]") -> list[Outcome]:
        """Await a call; return the outcome of each task. The call is cancelled with the last of them."""

        def cancel_with_last() -> None:
            if all(task.cancelled.is_set() for task in tasks):
                future.cancel()

        for task in tasks:
            task.cancelled.call_when_set(cancel_with_last)
        try:
            wrapped: asyncio.Future[bytes] = asyncio.wrap_future(future)
            answer: _Answer = pickle.loads(await wrapped)  # noqa: S301 - it answers our call
        except BaseException as error:
            return [_not_run(error)] * len(tasks)
        finally:
            for task in tasks:
                task.cancelled.call_when_set(None)
        reports = [ForwardedReports(task.channel) for task in tasks]
        for report in answer.reports:
            reports[report.index].add(report)
        outcomes = answer.outcomes
        return outcomes if len(outcomes) == len(tasks) else outcomes * len(tasks)

    def close(self) -> None:
        """Shut down an executor that this object has made, and wait at most 10 s for it."""
        with self._making, self._lock:
            executor, self._executor = self._executor, None
        if executor is not None and executor is not self._source:
            _shut_down(executor).join(_CLOSE_SECONDS)

    @staticmethod
    def _packed(tasks: Sequence[ClaimedTask], execute: Execute | None) -> bytes:
        # Without the identity of the worker, which may do more than this task.
        plain = [replace(task, server=_without_identity(task)) for task in tasks]
        work = pickle.dumps((execute, plain, current_traceparent()))
        return pickle.dumps((_folders(tasks), work))

    def _current(self, stop: threading.Event) -> futures.Executor:
        with self._making:
            executor = self._executor
            if executor is not None:
                return executor
            if self._is_lost:
                raise ExecutorUnavailable("The executor is lost, and the worker cannot make another one")
            if stop.wait(max(0.0, self._not_before - time.monotonic())):
                raise ExecutorUnavailable("The worker leaves, and its executor is lost")
            try:
                executor = self._make()
            except Exception as error:
                with self._lock:
                    pause = self._pause()
                log.warning("Making an executor failed; next attempt in %g s: %s", pause, describe(error))
                raise ExecutorUnavailable(f"No executor can be made: {describe(error)}") from error
            log.info("A new executor runs the tasks")
            self._executor = executor
            return executor

    def _make(self) -> futures.Executor:
        if isinstance(self._source, futures.Executor):
            return self._source
        with _ignored_interrupts():
            executor = self._source()
        if not isinstance(executor, futures.Executor):
            raise TypeError(
                f"{self._source!r} returned {type(executor).__name__}: it must return an Executor"
            )
        return executor

    def _pause(self) -> float:
        pause = self._backoff.next()
        self._not_before = time.monotonic() + pause
        return pause

    def _note_end(self, executor: futures.Executor, future: "futures.Future[bytes]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._backoff.reset()
        elif isinstance(error, futures.BrokenExecutor):
            self._replace(executor, error)

    def _replace(self, executor: futures.Executor, error: BaseException) -> None:
        with self._lock:
            if self._executor is not executor:
                return
            self._executor = None
            is_ours = executor is not self._source
            self._is_lost = not is_ours
            pause = self._pause() if is_ours else 0.0
        if not is_ours:
            log.error(
                "The executor is lost: %s. The worker leaves; pass a function that makes executors instead "
                "of an executor, and it makes another one",
                describe(error),
            )
            self.on_lost()
            return
        log.warning("The executor is lost; another one is made in %g s: %s", pause, describe(error))
        _shut_down(executor)


def _without_identity(task: ClaimedTask) -> TaskServer | None:
    return None if task.server is None or task.credential is None else task.server.without_identity()


def _not_run(error: BaseException) -> Outcome:
    """Return the outcome of a task whose call has no answer: an executor's worker ended, or its engine."""
    text = error_text(f"The executor did not run the task to its end: {describe(error)}")
    if isinstance(error, _UNUSABLE):
        return Outcome(error=text)
    return Outcome(error=text, error_code=WorkerLost.problem_id())


def not_submitted(tasks: Sequence[ClaimedTask], error: BaseException) -> list[Outcome]:
    """Return the outcomes of tasks that were not submitted: back into their queues, or failed."""
    if isinstance(error, ExecutorUnavailable):
        return [Outcome(error=error_text(str(error)), is_release=True)] * len(tasks)
    return [failed(task, task.extension, error) for task in tasks]


def _folders(tasks: Sequence[ClaimedTask]) -> list[str]:
    """Return the folder from which the module of the tasks' job was imported."""
    module = sys.modules.get(type(tasks[0].extension).__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return []
    depth = module.__name__.count(".") + (Path(file).stem == "__init__")
    return [str(Path(file).resolve().parents[depth])]


def _shut_down(executor: futures.Executor) -> threading.Thread:
    """Shut down an executor in a thread: an engine may wait for workers that have ended."""

    def shut_down() -> None:
        try:
            try:
                executor.shutdown(wait=True, cancel_futures=True)
            except TypeError:  # Dask's takes no `cancel_futures`
                executor.shutdown(wait=True)
        except Exception as error:
            log.info("Shutting down the executor failed: %s", describe(error))

    thread = threading.Thread(target=shut_down, name="zndraw-joblib-executor-end", daemon=True)
    thread.start()
    return thread


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Let processes that start in this block ignore Ctrl-C, which a terminal sends to all: tasks finish."""
    if sys.platform == "win32":
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
