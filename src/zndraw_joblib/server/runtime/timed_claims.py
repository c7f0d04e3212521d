"""The claim of a worker whose allocation ends: it gets only tasks that fit, also after it has waited."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from math import inf
from typing import NamedTuple

from zndraw_joblib.server.queue.rules_allocations import TimeLeft
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult
from zndraw_joblib.server.runtime.batch_claims import BatchClaim

# A wait may end a little before the time at which a queue no longer fits.
_LATER_SECONDS = 0.002


class TimedClaim:
    """One request of a worker that has `remaining` seconds. `claim` claims without a wait.

    `read` returns what fits into so many seconds, and `store` stores when the allocation ends.
    """

    def __init__(
        self,
        claim: Callable[[Claim], Awaitable[ClaimResult]],
        read: Callable[[Claim, float], Awaitable[TimeLeft]],
        store: Callable[[Claim, datetime], Awaitable[None]],
        remaining: float,
        time: Callable[[], float],
    ) -> None:
        self._claim = claim
        self._read = read
        self._store = store
        self._time = time
        self._ends_at = time() + remaining
        # When a queue that fits no longer does.
        self.changes_at = inf

    async def claim(self, item: Claim) -> ClaimResult:
        """Claim a task that fits into the rest of the time."""
        now = self._time()
        left = await self._read(item, max(0.0, self._ends_at - now))
        self.changes_at = now + left.seconds + _LATER_SECONDS
        if left.ends_at is not None:
            await self._store(item, left.ends_at)
        return await self._claim(item._replace(long=left.long))


class ClaimFlow(NamedTuple):
    """How a request claims: `claim` does so without a wait, with `batch` and `timed` if these are set."""

    claim: Callable[[Claim], Awaitable[ClaimResult]]
    batch: BatchClaim | None = None
    timed: TimedClaim | None = None

    def until(self, deadline: float) -> float:
        """Return until when the request may wait before it claims again."""
        return deadline if self.timed is None else min(deadline, self.timed.changes_at)
