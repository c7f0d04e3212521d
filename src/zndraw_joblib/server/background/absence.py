"""Detect that this server was paused: then missing heartbeats do not show that a worker is lost."""

from collections.abc import Callable
from datetime import datetime


class AbsenceDetector:
    """Compares the times of successive observations by this process's clock and by the database's.

    The monotonic clock counts while the process is stopped, but not while the machine is suspended. The
    database's clock counts then too; an operator may also set it ahead, with the same effect.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.restart()

    def restart(self) -> None:
        """Start to watch for absences now."""
        self._since = self._monotonic()
        self._last: float | None = self._since
        self._last_in_database: tuple[float, datetime] | None = None

    def forget(self) -> None:
        """Forget the last observation, so that the next one is compared with none."""
        self._last = self._last_in_database = None

    @property
    def watched_seconds(self) -> float:
        """Return for how many seconds this server has watched without an absence."""
        return self._monotonic() - self._since

    def observe(self, database_time: datetime | None, longest_gap: float, slack: float) -> float:
        """Record that the server works now. Return the seconds of an absence before; 0 without one.

        A pause longer than `longest_gap` is an absence, and so are more than `slack` seconds by which the
        database's clock went ahead of this process's clock. An absence restarts the watch.
        """
        at = self._monotonic()
        absence = 0.0
        if self._last is not None and at - self._last > longest_gap:
            absence = at - self._last
        self._last = at
        if database_time is not None:
            if self._last_in_database is not None:
                own, database = at - self._last_in_database[0], database_time - self._last_in_database[1]
                ahead = database.total_seconds() - own
                absence = max(absence, ahead if ahead > slack else 0.0)
            self._last_in_database = at, database_time
        if absence:
            self._since = at
        return absence
