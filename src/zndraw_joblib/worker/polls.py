"""How a worker asks for work: by one open long-poll, whichever thread has the turn."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar
from uuid import UUID, uuid4

from zndraw_joblib.worker.retry import Backoff, describe, status_of
from zndraw_joblib.worker.roster import Roster

log = logging.getLogger(__name__)

Work = TypeVar("Work")

_EARLY_PAUSE_SECONDS = 0.1
_LONG_POLL_SECONDS = 5.0
_TOO_MANY_WAIT = 503


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait for work, in seconds.

    `poll` is asked of the server as a long-poll; `pause` is slept where the server does not wait.
    """

    poll: float
    pause: float


NOW = Pace(0, 0)


class Polls(ABC, Generic[Work]):
    """Claims work of one kind for one worker. Thread-safe.

    `wake` ends a pause between two claims, `stopping` tells that there will be none.
    """

    def __init__(self, roster: Roster, wake: threading.Event) -> None:
        self._roster = roster
        self._wake = wake
        self.stopping = threading.Event()
        self._turn = threading.Lock()
        self._change = threading.Condition()
        self._polling = False
        self._held = 0
        self._unanswered: set[UUID] = set()

    @abstractmethod
    def _claim(self, worker_id: UUID, wait: int, claim_id: UUID) -> tuple[Work | None, int]:
        """Ask the server; return what it gives, and the seconds of waiting that it agreed to."""

    @property
    def stopped(self) -> bool:
        """Tell whether no more work will be claimed."""
        return self.stopping.is_set()

    def stop(self) -> None:
        """Claim no more. A long-poll that is open stays so until the worker is removed."""
        self.stopping.set()
        self._wake.set()

    def settle(self, seconds: float) -> None:
        """Give what is on its way to an open long-poll `seconds` to arrive."""
        with self._change:
            self._change.wait_for(lambda: not self._polling, seconds)

    def quiet(self, timeout: float | None, besides: int = 0) -> bool:
        """Wait until no more than `besides` pieces are being worked on; tell whether it came to that."""
        with self._change:
            return self._change.wait_for(lambda: self._held <= besides, timeout)

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond a stop."""
        self.stopping.wait(seconds)

    def keep(self, serve_once: Callable[[], object], what: str) -> None:
        """Call `serve_once` until the worker stops; nothing that goes wrong ends it."""
        backoff = Backoff()
        while not self.stopped:
            began = time.monotonic()
            try:
                serve_once()
            except Exception as error:
                # A proxy that cuts long-polls says "nothing" slowly; that is no fault that grows.
                if time.monotonic() - began > _LONG_POLL_SECONDS:
                    backoff.reset()
                pause = backoff.after(error)
                log.warning("%s: %s; trying again in %.1f s", what, describe(error), pause)
                self.sleep(pause)
            else:
                backoff.reset()

    def _next(self, pace: Pace) -> Work | None:
        """Claim; what is found counts as held. Only one thread waits at a time, as the server has it."""
        if pace == NOW:
            return self._ask(0)[0]
        if not self._turn.acquire(timeout=max(pace.poll, pace.pause)):
            return None
        try:
            return None if self.stopped else self._poll(pace)
        finally:
            self._turn.release()

    def _poll(self, pace: Pace) -> Work | None:
        self._wake.clear()
        self._polling = True
        began = time.monotonic()
        try:
            found, applied = self._ask(ceil(pace.poll))
        finally:
            with self._change:
                self._polling = False
                self._change.notify_all()
        if found is None and not self.stopped:
            self._pause(applied, time.monotonic() - began, pace.pause)
        return found

    def _pause(self, applied: int, waited: float, pause: float) -> None:
        """Sleep where the server answered "nothing" before its time; a wake-up ends it."""
        if applied <= 0:
            self._wake.wait(pause)
        elif waited < applied / 2:
            self._wake.wait(min(pause, _EARLY_PAUSE_SECONDS))

    def _ask(self, wait: int) -> tuple[Work | None, int]:
        worker_id = self._roster.worker()
        try:
            return self._claim_once(worker_id, wait)
        except Exception as error:
            if self.stopped:
                log.debug("The open claim ended: %s", describe(error))
                return None, 0
            if wait and status_of(error) == _TOO_MANY_WAIT:
                return self._claim_once(worker_id)
            if not self._roster.lost(worker_id, error):
                raise
        return self._claim_once(self._roster.worker(), wait)

    def _claim_once(self, worker_id: UUID, wait: int = 0) -> tuple[Work | None, int]:
        """Claim by a new id, or by that of a claim whose answer was lost: what it got may be ours."""
        with self._change:
            claim_id = self._unanswered.pop() if self._unanswered else uuid4()
        try:
            found, applied = self._claim(worker_id, wait, claim_id)
        except BaseException:
            self._unanswered.add(claim_id)
            raise
        if found is not None:
            self._hold(+1)
        return found, applied

    def _hold(self, number: int) -> None:
        with self._change:
            self._held += number
            self._change.notify_all()
