"""A histogram that one process counts: cheap enough for each request."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values: `buckets` has those up to each bound and above the one before, then the rest."""

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.sum += value
