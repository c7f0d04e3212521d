"""The worker's heartbeats, from a thread of their own."""

import logging
import random
import threading
import time
from collections.abc import Callable

from zndraw_joblib.worker.registrations import Registrations
from zndraw_joblib.worker.retry import RequestBackoff, describe

log = logging.getLogger(__name__)

_SHORTEST_TIMEOUT_SECONDS = 2.0
_CLOCK_CHECK_SECONDS = 1.0
_JITTER_SECONDS = 1.0
_FAST_INTERVAL_SECONDS, _FAST_COUNT = 3.0, 4


class HeartbeatLoop:
    """Sends heartbeats until `stop` is set.

    The server sets the interval, unless `interval` does; a failed heartbeat is repeated sooner. When `due` is
    set, a heartbeat follows within a second, and four more, 3 s apart: the server may notice later than the
    worker that their Socket.IO connection is gone, and needs a heartbeat that is newer than that.
    """

    def __init__(
        self,
        registrations: Registrations,
        stop: threading.Event,
        due: threading.Event,
        interval: float | None = None,
    ) -> None:
        self._registrations = registrations
        self._stop = stop
        self._due = due
        self._fast_left = 0
        self._given_interval = interval
        self._warned = False
        self.interval = interval or _SHORTEST_TIMEOUT_SECONDS

    def run(self) -> None:
        """Send heartbeats until it is stopped, whatever fails; set `due` too, so that it notices at once."""
        backoff = RequestBackoff()
        while not self._stop.is_set():
            try:
                self.send_once()
            except Exception as error:
                pause = min(backoff.after(error), self.interval)
                log.warning("Heartbeat: %s; trying again in %.1f s", describe(error), pause)
            else:
                backoff.reset()
                pause = self.interval
            self._rest(pause)

    def send_once(self) -> None:
        """Send a heartbeat and learn the interval; register a worker that the server does not know again."""
        response = self._registrations.heartbeat(max(self.interval, _SHORTEST_TIMEOUT_SECONDS))
        if response is None:
            return
        wanted = response.heartbeat_interval_seconds
        self.interval = self._given_interval or wanted
        if self.interval > wanted and not self._warned:
            self._warned = True
            log.warning(
                "heartbeat_interval is %g s, longer than the %g s that the server asks for; the server may "
                "remove this worker between two heartbeats",
                self.interval,
                wanted,
            )

    def _rest(self, pause: float) -> None:
        if self._fast_left:
            self._fast_left -= 1
            pause = min(pause, _FAST_INTERVAL_SECONDS)
        sleep_until(self._due, pause)
        if self._due.is_set():
            # Many workers lose their connections at the same moment.
            self._stop.wait(min(pause, _JITTER_SECONDS) * random.random())  # noqa: S311 - jitter
            self._due.clear()
            self._fast_left = _FAST_COUNT


def sleep_until(event: threading.Event, seconds: float, clock: Callable[[], float] = time.time) -> None:
    """Sleep until `event` is set, at most `seconds`.

    The wall clock counts too: the sleep ends within a second after a suspended machine resumes.
    """
    since, wall = time.monotonic(), clock()
    while True:
        left = seconds - max(time.monotonic() - since, clock() - wall)
        if left <= 0 or event.wait(min(left, _CLOCK_CHECK_SECONDS)):
            return
