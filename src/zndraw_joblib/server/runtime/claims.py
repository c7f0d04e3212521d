"""Claims with a condition: a full batch of tasks, or tasks that fit into the rest of an allocation."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import NamedTuple

from zndraw_joblib.server.process.ports import Wake, job_key
from zndraw_joblib.server.process.waiters import Disconnected, Waiter
from zndraw_joblib.server.queue.rules_allocations import TimeLeft
from zndraw_joblib.server.queue.rules_batches import Candidate, Candidates
from zndraw_joblib.server.queue.rules_claims import Claim, ClaimResult, NotFull
from zndraw_joblib.wire.messages import ClaimBatch, TaskResponse

# While a batch fills, the most often that its queues are read: this number of times in `wait_seconds`.
_READS = 10
_MAX_PAUSE_SECONDS = 0.1
# A wait may end a little before the time at which a queue no longer fits.
_LATER_SECONDS = 0.002


def key_of(task: TaskResponse) -> str:
    """Return the key of the claims that wait for the queue of a task."""
    return job_key(task.job_name, task.version)


class BatchClaim:
    """One request of a worker. Until a batch is full, or its oldest task has waited for `wait_seconds`, the
    tasks stay in their queue: any worker may claim them, and nothing is lost if this request ends.

    `read` returns what the claim may take, and `claim` takes it. At `deadline`, by `time`, it takes
    what there is.
    """

    def __init__(
        self,
        batches: Sequence[ClaimBatch],
        read: Callable[[Claim, Sequence[ClaimBatch]], Awaitable[Candidates]],
        claim: Callable[[Claim], Awaitable[ClaimResult]],
        deadline: float,
        disconnected: Disconnected,
        time: Callable[[], float] = monotonic,
    ) -> None:
        self._batches = batches
        self._read = read
        self._claim = claim
        self._deadline, self._time = deadline, time
        self._disconnected = disconnected
        # The jobs whose tasks it has waited for, and when the next batch is due.
        self._waited: set[str] = set()
        self._next_due = math.inf
        self._unused: dict[str, int] = {}

    @property
    def unused(self) -> list[Wake]:
        """The wake-ups for tasks that it waited for and did not claim, for other waiters."""
        return [Wake(key, count) for key, count in self._unused.items() if count > 0]

    async def claim(self, item: Claim) -> ClaimResult:
        """Claim a batch that is full or due, or tasks of other jobs, without a wait."""
        self._unused, self._next_due = {}, math.inf
        read = await self._read(item, self._batches)
        if not read.candidates:
            return await self._claim(item._replace(choice=read.others))
        result = read.empty
        for candidate in read.candidates:
            claimed = None
            if not result.is_final:
                claimed = await self._take(item, candidate)
                result = claimed or result
            # It may have been woken for any of these tasks, also if it claims others.
            if candidate.batch is not None and candidate.batch.job in self._waited:
                self._leave(candidate, claimed)
        return result

    async def wait(self, waiter: Waiter, seconds: float) -> None:
        """Wait for a wake-up, at most until the next batch is due; between two reads there is a pause."""
        now = self._time()
        is_filling = self._next_due < math.inf
        await waiter.wait(max(0.0, min(seconds, self._next_due - now)), self._disconnected)
        if is_filling and waiter.is_woken:
            shortest = min(batch.wait_seconds for batch in self._batches)
            pause = min(shortest / _READS, _MAX_PAUSE_SECONDS, self._next_due - self._time())
            await asyncio.sleep(max(0.0, pause))

    async def _take(self, item: Claim, candidate: Candidate) -> ClaimResult | None:
        """Claim the tasks of a candidate. Return None if it waits for more of them, after they were counted.

        Pending tasks may be of paused rooms, or of keys at their limits: the claim counts those it may take.
        """
        batch, now = candidate.batch, self._time()
        if batch is None:
            return await self._claim(item._replace(choice=candidate.choice))
        fill_for = timedelta.max
        if not batch.only_full:
            fill_for = timedelta(seconds=batch.wait_seconds if now < self._deadline else 0)
        rest = fill_for - candidate.age
        if candidate.may_be_full or rest <= timedelta():
            chosen = item._replace(
                task_limit=batch.max, choice=candidate.choice, fill_for=fill_for, is_batch=True
            )
            try:
                return await self._claim(chosen)
            except NotFull as not_full:
                rest = fill_for - not_full.age
        if not batch.only_full:
            self._waited.add(batch.job)
            self._next_due = min(self._next_due, now + rest.total_seconds(), self._deadline)
        return None

    def _leave(self, candidate: Candidate, result: ClaimResult | None = None) -> None:
        """Record the tasks that stay in their queues, and for which this request may have been woken."""
        for name, pending in candidate.pending.items():
            self._unused[job_key(name)] = pending
        if result is None:
            return
        # Those whose queue has another number than their version.
        keys = {task.id: task.job_key for task in result.required}
        for task in result.tasks:
            key = keys.get(task.id) or key_of(task)
            self._unused[key] = self._unused.get(key, 0) - 1


class TimedClaim:
    """One request of a worker that has `remaining` seconds. `claim` claims without a wait.

    `read` returns what fits into a number of seconds, and `store` stores when the allocation ends.
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
        self.changes_at = math.inf

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
