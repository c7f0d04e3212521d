"""The clock of a tested queue: real time, which a test can move forward."""

from datetime import UTC, datetime, timedelta


class TestClock:
    """Shows the time plus all advances. Call it for the time."""

    __test__ = False

    def __init__(self) -> None:
        self._ahead = timedelta()

    def __call__(self) -> datetime:
        """Return the time of the queue."""
        return datetime.now(UTC) + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"seconds: {seconds:g} is negative; a queue's clock moves forward only")
        self._ahead += timedelta(seconds=seconds)
