"""Claims of a worker: one long-poll is open at a time, from any of its threads."""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Generic, TypeVar
from uuid import UUID, uuid4

from zndraw_joblib.contract.forks import check_not_forked, exit_if_forked
from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.retry import RequestBackoff, describe, status_of

log = logging.getLogger(__name__)

Work = TypeVar("Work")

_EARLY_PAUSE_SECONDS = 0.1
_LONG_POLL_SECONDS = 5.0
_TOO_MANY_WAIT = 503


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait for work, in seconds.

    `poll` is the wait of one long-poll on the server; `pause` is the pause between two claims where the
    server does not wait.
    """

    poll: float
    pause: float


NOW = Pace(0, 0)


class Poller(ABC, Generic[Work]):
    """Claims work of one kind for one worker. Thread-safe.

    `wake` ends a pause between two claims. Once `stopping` is set, there are no more claims.
    """

    def __init__(self, registrations: Registrations, wake: threading.Event) -> None:
        self._registrations = registrations
        self._wake = wake
        self._pid = os.getpid()
        self.stopping = threading.Event()
        self._poll_lock = threading.Lock()
        self._change = threading.Condition()
        self._polling = False
        self._held = 0
        self._unanswered: set[UUID] = set()

    @abstractmethod
    def _claim(self, worker_id: UUID, wait: int, claim_id: UUID) -> tuple[Work | None, int]:
        """Claim from the server; return the work and how many seconds the server agreed to wait."""

    @property
    def stopped(self) -> bool:
        """Return whether there are no more claims."""
        return self.stopping.is_set()

    def stop(self) -> None:
        """Claim no more. An open long-poll stays open until the worker is removed."""
        self.stopping.set()
        self._wake.set()

    def wait_for_poll(self, seconds: float) -> None:
        """Wait until no long-poll is open, at most `seconds`."""
        with self._change:
            self._change.wait_for(lambda: not self._polling, seconds)

    def wait_until_idle(self, timeout: float | None, besides: int = 0) -> bool:
        """Wait until at most `besides` pieces of work are held; return whether that happened in time."""
        with self._change:
            return self._change.wait_for(lambda: self._held <= besides, timeout)

    def repeat(self, serve_once: Callable[[], object], what: str) -> None:
        """Call `serve_once` until the worker stops, whatever it raises; `what` names it in the log."""
        backoff = RequestBackoff()
        while not self.stopped:
            began = time.monotonic()
            try:
                serve_once()
                exit_if_forked(self._pid)
            # BaseException: the code of a host may call sys.exit().
            except BaseException as error:
                exit_if_forked(self._pid, error)
                # A proxy that cuts long-polls fails slowly: that error needs no growing pauses.
                if time.monotonic() - began > _LONG_POLL_SECONDS:
                    backoff.reset()
                pause = backoff.after(error)
                log.warning("%s: %s; trying again in %.1f s", what, describe(error), pause)
                self.stopping.wait(pause)
            else:
                backoff.reset()

    def _next(self, pace: Pace) -> Work | None:
        """Claim, and count what is found as held. Only one thread of a worker waits on the server."""
        check_not_forked(self._pid)
        if pace == NOW:
            return self._claim_with_recovery(0)[0]
        if not self._poll_lock.acquire(timeout=max(pace.poll, pace.pause)):
            return None
        try:
            return None if self.stopped else self._poll(pace)
        finally:
            self._poll_lock.release()

    def _poll(self, pace: Pace) -> Work | None:
        self._wake.clear()
        self._polling = True
        began = time.monotonic()
        try:
            found, applied = self._claim_with_recovery(ceil(pace.poll))
        finally:
            with self._change:
                self._polling = False
                self._change.notify_all()
        if found is None and not self.stopped:
            self._pause(applied, time.monotonic() - began, pace.pause)
        return found

    def _pause(self, applied: int, waited: float, pause: float) -> None:
        """Pause after an empty response that came early; `wake` ends the pause."""
        if applied <= 0:
            self._wake.wait(pause)
        elif waited < applied / 2:
            self._wake.wait(min(pause, _EARLY_PAUSE_SECONDS))

    def _claim_with_recovery(self, wait: int) -> tuple[Work | None, int]:
        """Claim; repeat it at once where the server cannot wait, or the worker was registered again."""
        worker_id = self._registrations.worker()
        try:
            return self._claim_once(worker_id, wait)
        except Exception as error:
            if self.stopped:
                log.debug("The open claim ended: %s", describe(error))
                return None, 0
            if wait and status_of(error) == _TOO_MANY_WAIT:
                return self._claim_once(worker_id)
            if not self._registrations.renew_if_unknown(worker_id, error):
                raise
        return self._claim_once(self._registrations.worker(), wait)

    def _claim_once(self, worker_id: UUID, wait: int = 0) -> tuple[Work | None, int]:
        """Claim with a new id, or repeat the id of a claim whose response was lost."""
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
