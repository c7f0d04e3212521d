"""How many tasks a worker claims ahead of those that it runs."""

from zndraw_joblib.contract.messages import MAX_BATCH

_AHEAD_SECONDS = 0.1
_STUCK_SECONDS = 0.2
_SHORTEST_SECONDS = 1e-6
_WEIGHT_OF_LONGER, _WEIGHT_OF_SHORTER = 0.5, 0.1


class Lookahead:
    """Decides how many tasks to claim, so that those that wait are about 100 ms of work at most.

    The run time of a task is estimated from those of the last ones; longer ones count more. The number grows
    step by step while the server has as many tasks as were claimed, so several idle workers share a short
    queue. Not thread-safe.
    """

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._estimate: float | None = None
        self._window = 1
        self._has_backlog = False
        self._progress_at = 0.0

    def wanted(self, free: int, waiting: int) -> int:
        """Return how many tasks to claim, for `free` slots that no waiting task needs.

        If there are no free slots, it claims ahead only while the queue had enough tasks at the last claim,
        and only once half of the waiting tasks have started.
        """
        most = self._ahead()
        if free > 0:
            return min(free + most, MAX_BATCH)
        if self._has_backlog and waiting <= most // 2:
            return most - waiting
        return 0

    def _ahead(self) -> int:
        if self._estimate is None:
            return 0
        planned = int(self._concurrency * _AHEAD_SECONDS / max(self._estimate, _SHORTEST_SECONDS))
        return min(self._window, planned, self._prefetch)

    def claimed(self, most: int, got: int, now: float) -> None:
        """Notice that a claim for `most` tasks got `got`."""
        self._progress_at = now
        self._has_backlog = got == most
        self._window = min(2 * self._window, max(self._prefetch, 1)) if self._has_backlog else max(1, got)

    def handed_back(self) -> None:
        """Notice that the tasks that waited are released: claim none until there is a free slot."""
        self._has_backlog, self._window = False, 1

    def began(self, now: float) -> None:
        """Notice that a task has begun."""
        self._progress_at = now

    def ended(self, seconds: float) -> None:
        """Notice that a task has ended after `seconds`."""
        before = seconds if self._estimate is None else self._estimate
        weight = _WEIGHT_OF_LONGER if seconds > before else _WEIGHT_OF_SHORTER
        self._estimate = before + weight * (seconds - before)

    def is_stuck(self, now: float) -> bool:
        """Return whether the tasks that wait have waited for too long, because those before take longer."""
        return self.seconds_until_stuck(now) <= 0

    def seconds_until_stuck(self, now: float) -> float:
        """Return after how many seconds the tasks that wait have waited for too long."""
        return self._progress_at + _STUCK_SECONDS - now
