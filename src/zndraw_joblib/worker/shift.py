"""One life of a worker, from its first registration to its goodbye: its id, its jobs, its threads."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from zndraw_joblib.worker.channel import Channel
from zndraw_joblib.worker.claims import Claims
from zndraw_joblib.worker.inflight import InFlight
from zndraw_joblib.worker.loops import ClaimLoop, Execute, HeartbeatLoop
from zndraw_joblib.worker.polls import Pace
from zndraw_joblib.worker.reads import ProviderRequests
from zndraw_joblib.worker.remote import Remote
from zndraw_joblib.worker.reports import Reports
from zndraw_joblib.worker.roster import Roster

log = logging.getLogger(__name__)

_ARRIVAL_SECONDS = 0.1
_PARTING_SECONDS = 1.0
_SLICE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How a worker works: what runs its tasks (None: nothing), how many things at once, how often it asks."""

    execute: Execute | None
    concurrency: int
    read_concurrency: int
    heartbeat_interval: float | None
    pace: Pace
    limits: dict[str, Any]


class Shift:
    """Composes the parts of a worker; threads start when there is something to do for them."""

    def __init__(self, remote: Remote, channel: Channel, in_flight: InFlight, plan: Plan) -> None:
        self._plan = plan
        self.over = threading.Event()
        self.gone = threading.Event()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._closing = threading.Lock()
        self._starting = threading.Lock()
        self._beating: threading.Thread | None = None
        self._serving: list[threading.Thread] = []
        self._reading: list[threading.Thread] = []
        self._beat_due = channel.beat_due
        self._in_flight = in_flight
        self.roster = Roster(remote, channel, in_flight, plan.limits, self.drain)
        self.reports = Reports(remote, in_flight, self.over)
        self.claims = Claims(remote, self.roster, self.reports, in_flight, channel.wake)
        self.reads = ProviderRequests(remote, self.roster, channel.wake_readers, self.over, plan.pace)

    def beat(self) -> None:
        """See that heartbeats go out."""
        with self._starting:
            if self._beating is None:
                interval = self._plan.heartbeat_interval
                loop = HeartbeatLoop(self.roster, self.over, self._beat_due, interval)
                self._beating = _thread("heartbeat", loop.run)

    def serve(self) -> None:
        """See that heartbeats go out and, if the worker serves by itself, that tasks are claimed and run."""
        self.beat()
        plan = self._plan
        with self._starting:
            if plan.execute is not None and not self._serving:
                loop = ClaimLoop(self.claims, self.reports, plan.execute, plan.pace)
                self._serving = [_thread(f"claim-{n}", loop.run) for n in range(1, plan.concurrency + 1)]

    def read(self) -> None:
        """See that heartbeats go out, and that reads are answered."""
        self.beat()
        with self._starting:
            if not self._reading:
                count = self._plan.read_concurrency
                self._reading = [_thread(f"read-{n}", self.reads.run) for n in range(1, count + 1)]

    def end(self) -> None:
        """Let `wait` return. Takes no lock: a signal handler may call it."""
        self._ended.put(None)

    def wait(self) -> None:
        """Sleep until somebody calls `end`."""
        while True:
            # In slices: Python hears a signal that comes just before it goes to sleep when it wakes up.
            with suppress(Empty):
                self._ended.get(timeout=_SLICE_SECONDS)
                self._ended.put(None)
                return

    def close(self, timeout: float | None) -> None:
        """Claim no more, wait for what runs, say goodbye. A second caller waits for the first."""
        inside = threading.current_thread() in (*self._serving, *self._reading)
        if not self._closing.acquire(blocking=False):
            if not inside:
                self.gone.wait(timeout)
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        is_quiet = False
        try:
            self._stop_claiming()
            has_answered = self._stop_reading(timeout)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            has_run = self.claims.quiet(left, besides=threading.current_thread() in self._serving)
            if not has_run:
                log.warning("Tasks still run after %s s; the server will fail them", timeout)
            is_quiet = has_run and has_answered
        finally:
            self._say_goodbye([*self._serving, *self._reading] if is_quiet else [])

    def drain(self) -> None:
        """Claim no more, and leave once nothing is worked on any more, also by hand. Returns at once."""
        with self._starting:
            if self.claims.stopped:
                return
            self.claims.stop()
            self.reads.stop()
        log.info("The server asks worker %s to leave", self.roster.worker_id)
        threading.Thread(target=self._drain, name="zndraw-joblib-drain", daemon=True).start()

    def _drain(self) -> None:
        self._stop_claiming()
        self._stop_reading(None)
        self._in_flight.wait_for_none()
        self.close(None)

    def _stop_claiming(self) -> None:
        """Claim no more, and lose no task: what the open long-poll has just been given is handed back.

        A connection that is cut would lose it, so the server is told first; then its answer may arrive.
        """
        self.claims.stop()
        self.reads.stop()
        began = time.monotonic()
        self.roster.retire()
        self.claims.settle(_ARRIVAL_SECONDS + time.monotonic() - began)

    def _stop_reading(self, timeout: float | None) -> bool:
        """Claim no more reads, and take the providers off the worker once those under way are answered."""
        is_quiet = self.reads.quiet(timeout, besides=threading.current_thread() in self._reading)
        if not is_quiet:
            log.warning("ProviderRequests still run after %s s; nobody will have their answers", timeout)
        self.roster.retire_offers()
        return is_quiet

    def _say_goodbye(self, idle: list[threading.Thread]) -> None:
        self.over.set()
        self._beat_due.set()
        try:
            self._part([self._beating] if self._beating else [])
            self.roster.leave()
            self._part(idle)
        finally:
            self.gone.set()
            self.end()

    @staticmethod
    def _part(threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + _PARTING_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _thread(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=f"zndraw-joblib-{name}", daemon=True)
    thread.start()
    return thread
