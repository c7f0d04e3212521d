"""Serve from several processes: each is a worker of its own, and one that crashes is replaced."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_any
from multiprocessing.context import SpawnProcess

from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.worker import signals
from zndraw_joblib.worker.api import connect
from zndraw_joblib.worker.loading import CannotLoad, load_context, load_extensions
from zndraw_joblib.worker.serving import serve

log = logging.getLogger(__name__)

REFUSED = 2
_SETTLED_SECONDS = 60.0
_MOST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """What each process loads and serves, and where; `target` and `context` as in `loading`."""

    target: str
    url: str
    token: str | None
    room: str
    context: str | None = None
    concurrency: int = 1

    def __repr__(self) -> str:
        return f"<{self.target} for {self.room} at {self.url}>"


class _Place:
    """One place in the row of processes, filled anew after a crash, later and later if they follow fast."""

    def __init__(self, number: int, plan: ProcessPlan, prepare: Callable[[], None] | None) -> None:
        self.number = number
        self._args = (plan, prepare)
        self._crashes = 0
        self.process: SpawnProcess | None = None
        self.due: float | None = 0.0

    def fill(self) -> None:
        with _sigint_blocked():
            self.process = multiprocessing.get_context("spawn").Process(
                target=_serve_in_child, args=self._args, name=f"worker-{self.number}"
            )
            self.process.start()
        self._since, self.due = time.monotonic(), None

    def empty(self, process: SpawnProcess) -> int:
        """Take away a process that ended, and plan its successor if it crashed; return its exit code."""
        process.join()
        self.process = None
        code = process.exitcode or 0
        if code not in (0, REFUSED):
            settled = time.monotonic() - self._since > _SETTLED_SECONDS
            self._crashes = 1 if settled else self._crashes + 1
            self.due = time.monotonic() + min(_MOST_PAUSE_SECONDS, 2.0 ** (self._crashes - 1))
        return code


def serve_processes(plan: ProcessPlan, processes: int, prepare: Callable[[], None] | None = None) -> int:
    """Run `plan` in `processes` processes until SIGINT or SIGTERM; return the exit code.

    A signal is passed on: the first lets running tasks end, the second does not. A process that crashes
    is replaced after 1 s, doubling to 60 s. A process that the server or the plan refuses ends them all,
    with code 2. `prepare` is called first in each process, to set up logging; it must be picklable. Call
    it on the main thread, in a program that multiprocessing can spawn from.
    """
    places = [_Place(number, plan, prepare) for number in range(1, processes + 1)]
    alarm = _Alarm()
    try:
        with signals.handled(alarm.ring):
            return _mind(places, alarm)
    finally:
        alarm.close()


class _Alarm:
    """A signal came: the pipe wakes the parent. A handler does no more, so that no process is overlooked."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def ring(self, number: int = 0, frame: object = None) -> None:
        os.write(self._writer, b"!")

    def close(self) -> None:
        os.close(self.reader)
        os.close(self._writer)


def _mind(places: list[_Place], alarm: _Alarm) -> int:
    result, stopping = 0, False
    while True:
        if not stopping:
            _fill_due(places)
        running = [place for place in places if place.process is not None]
        waiting = [] if stopping else [place.due for place in places if place.due is not None]
        if not running and not waiting:
            return result
        timeout = max(0.0, min(waiting) - time.monotonic()) if waiting else None
        sentinels = [place.process.sentinel for place in running if place.process is not None]
        ready = wait_for_any([*sentinels, alarm.reader], timeout)
        if alarm.reader in ready:
            os.read(alarm.reader, 1)
            stopping = True
            _tell(running)
        if REFUSED in _bury(running, ready, stopping=stopping):
            result = REFUSED
            alarm.ring()


def _bury(running: list[_Place], ready: Sequence[object], *, stopping: bool) -> list[int]:
    """Take away the processes that ended; return their exit codes."""
    codes = []
    for place in running:
        if place.process is not None and place.process.sentinel in ready:
            codes.append(place.empty(place.process))
            if place.due is not None and not stopping:
                pause = place.due - time.monotonic()
                log.error("Process %d crashed (%d); a new one in %.0f s", place.number, codes[-1], pause)
    return codes


def _fill_due(places: list[_Place]) -> None:
    for place in places:
        if place.due is not None and place.due <= time.monotonic():
            place.fill()


def _tell(places: list[_Place]) -> None:
    """Pass a signal on. A child hears only SIGTERM, see `_sigint_blocked`."""
    for place in places:
        if place.process is not None:
            place.process.terminate()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Let a child be born deaf to the terminal's Ctrl-C, which reaches the whole group: we pass it on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve_in_child(plan: ProcessPlan, prepare: Callable[[], None] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare:
        prepare()
    try:
        extensions = load_extensions(plan.target)
        context = load_context(plan.context) if plan.context else None
        with connect(plan.url, plan.token, realtime=True) as api:
            serve(api, extensions, room=plan.room, context=context, concurrency=plan.concurrency)
    except (ProblemException, CannotLoad) as error:
        log.error("%s", error)
        sys.exit(REFUSED)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
