"""The two loops of a worker. Each is a pause around a cycle; the cycle can be called by itself."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from zndraw_joblib.worker.claims import Claims
from zndraw_joblib.worker.polls import Pace
from zndraw_joblib.worker.reports import Reports
from zndraw_joblib.worker.retry import Backoff, describe, passing, status_of
from zndraw_joblib.worker.roster import Roster
from zndraw_joblib.worker.tasks import ClaimedTask, GiveUp

log = logging.getLogger(__name__)

Execute = Callable[[ClaimedTask], Any]

_LEAST_BEAT_TIMEOUT_SECONDS = 2.0
_SLICE_SECONDS = 1.0
_SPREAD_SECONDS = 1.0
_HURRY_SECONDS, _HURRIED_BEATS = 3.0, 4
_CONFLICT = 409


class HeartbeatLoop:
    """Tells the server that the worker lives, from a thread of its own, until `over` is set.

    The server says how often; an `interval` given here wins. A failed beat is repeated sooner. When `due` is
    set, a beat follows within a second, and some more soon after: the server may notice later than the
    worker that their connection is gone, and wants a sign of life since then.
    """

    def __init__(
        self, roster: Roster, over: threading.Event, due: threading.Event, interval: float | None = None
    ) -> None:
        self._roster = roster
        self._over = over
        self._due = due
        self._hurried = 0
        self._asked = interval
        self._warned = False
        self.interval = interval or _LEAST_BEAT_TIMEOUT_SECONDS

    def beat_once(self) -> None:
        """Beat, and learn the interval. A worker that the server does not know is registered anew."""
        response = self._roster.beat(max(self.interval, _LEAST_BEAT_TIMEOUT_SECONDS))
        if response is None:
            return
        wanted = response.heartbeat_interval_seconds
        self.interval = self._asked or wanted
        if self.interval > wanted and not self._warned:
            self._warned = True
            log.warning(
                "heartbeat_interval is %g s, but the server wants a beat every %g s",
                self.interval,
                wanted,
            )

    def run(self) -> None:
        """Beat until it is over, which is heard of once `due` is set; nothing that goes wrong ends it."""
        backoff = Backoff()
        while not self._over.is_set():
            pause = self.interval
            try:
                self.beat_once()
            except Exception as error:
                pause = min(backoff.after(error), self.interval)
                log.warning("Heartbeat: %s; trying again in %.1f s", describe(error), pause)
            else:
                backoff.reset()
                pause = self.interval
            self._rest(pause)

    def _rest(self, pause: float) -> None:
        if self._hurried:
            self._hurried -= 1
            pause = min(pause, _HURRY_SECONDS)
        doze(self._due, pause)
        if self._due.is_set():
            # Many workers lose their connections at the same moment.
            self._over.wait(min(pause, _SPREAD_SECONDS) * random.random())  # noqa: S311 - jitter
            self._due.clear()
            self._hurried = _HURRIED_BEATS


class ClaimLoop:
    """Takes one task after the other and sees each through, until the worker stops."""

    def __init__(self, claims: Claims, reports: Reports, execute: Execute, pace: Pace) -> None:
        self._claims = claims
        self._reports = reports
        self._execute = execute
        self._pace = pace

    def serve_once(self) -> bool:
        """Wait a bounded time for a task and see it through; tell whether there was one to run."""
        with self._claims.taking(self._pace) as task:
            if task is None:
                return False
            self._see_through(task)
            return True

    def run(self) -> None:
        """Serve until the worker stops; nothing that goes wrong ends it."""
        self._claims.keep(self.serve_once, "Claiming")

    def _see_through(self, task: ClaimedTask) -> None:
        try:
            if self._start(task):
                self._tell(task, *self._run(task))
        except Exception as error:
            is_settled = task.cancelled.is_set() or status_of(error) == _CONFLICT
            level = logging.INFO if is_settled else logging.WARNING
            log.log(level, "Task %s is not ours any more: %s", task.task_id, describe(error))

    def _start(self, task: ClaimedTask) -> bool:
        """Tell that the work begins, or hand the task back where the stop comes first; tell which it was."""
        try:
            self._reports.start(task, self._claims.stopping)
        except Exception as error:
            if not (self._claims.stopped and passing(error)):
                raise
            self._reports.release_in_haste(task)
            return False
        return True

    def _tell(self, task: ClaimedTask, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._reports.complete(task, result)
        else:
            self._reports.fail(task, error, retry=not isinstance(error, GiveUp))

    def _run(self, task: ClaimedTask) -> tuple[Any, BaseException | None]:
        try:
            return self._execute(task), None
        # Not Exception: sys.exit() in an extension ends its task, not the worker.
        except BaseException as error:
            if task.cancelled.is_set():
                log.info("Task %s ended after it was cancelled: %s", task.task_id, describe(error))
            else:
                log.error("Task %s of %s raised", task.task_id, task.job_name, exc_info=error)
            return None, error


def doze(stop: threading.Event, seconds: float, clock: Callable[[], float] = time.time) -> None:
    """Wait `seconds`, or until `stop` is set.

    The wall clock counts too: after a machine slept, the wait ends within a second of its waking up.
    """
    since, wall = time.monotonic(), clock()
    while True:
        left = seconds - max(time.monotonic() - since, clock() - wall)
        if left <= 0 or stop.wait(min(left, _SLICE_SECONDS)):
            return
