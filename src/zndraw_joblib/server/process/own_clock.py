"""A clock for tests: real time, which a test moves forward."""

from datetime import UTC, datetime, timedelta


class TestClock:
    """Shows the time plus all advances. Call it for the time."""

    __test__ = False

    def __init__(self) -> None:
        self._ahead = timedelta()
        self._kept = timedelta()

    def __call__(self) -> datetime:
        """Return the time of the queue."""
        return datetime.now(UTC) + self._ahead

    @property
    def ahead_seconds(self) -> float:
        """How far it is ahead of the real time."""
        return self._ahead.total_seconds()

    def describe(self) -> str:
        """Return what a health check says about it."""
        return f"a test clock, {self.ahead_seconds:g} s ahead: not for production"

    def token_time(self) -> float:
        """Return the time by which tokens of tasks expire, in seconds.

        It leaves out the advances that kept the workers: their heartbeats have renewed the tokens.
        """
        return (self() - self._kept).timestamp()

    def advance(self, seconds: float, *, keeps_workers: bool = False) -> None:
        """Move the clock forward. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"seconds: {seconds:g} is negative; a queue's clock moves forward only")
        self._ahead += timedelta(seconds=seconds)
        if keeps_workers:
            self._kept += timedelta(seconds=seconds)
