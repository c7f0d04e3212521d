"""Growing pauses between attempts: the one backoff of the SDK, the server and the command line."""

import random


class ExponentialBackoff:
    """Pauses in seconds: `first`, then `growth` times the one before, `longest` at most.

    Each pause is shortened at random by up to the share `jitter`, so that many clients do not retry at
    the same moment.
    """

    def __init__(self, first: float, longest: float, jitter: float = 0.3, growth: float = 2.0) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._growth = growth
        self.failures = 0

    def next(self) -> float:
        """Count one more failure and return the pause that follows it."""
        pause = min(self._longest, self._first * self._growth ** min(self.failures, 60))
        self.failures += 1
        return pause * (1 - self._jitter * random.random())  # noqa: S311 - no secret depends on it

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.failures = 0
