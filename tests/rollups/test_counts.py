"""Each submit, end and earlier attempt is counted once, with its waiting and running time."""

from typing import Any

import pytest
from replica import SUBMITTER, ManualClock, Replica

from rollups.reading import buckets, intervals, summed, totals, update
from zndraw_joblib.server.queue import rules_task_actions
from zndraw_joblib.wire.messages import JobResponse
from zndraw_joblib.wire.operators import Counters, Histogram
from zndraw_joblib.wire.policy import Backoff
from zndraw_joblib.wire.statuses import TaskStatus

POLICY: dict[str, Any] = {
    "max_attempts": 4,
    "retry_on": ["error", "timeout", "worker_lost"],
    "timeout_seconds": 100,
    "start_timeout_seconds": 10,
    "backoff": Backoff(base_seconds=40, factor=1),
}
EXPECTED = Counters(
    submitted=6,
    completed=1,
    failed=3,
    cancelled=2,
    retried=3,
    lost=4,
    causes={
        "start-timeout": 1,
        "error": 1,
        "run-timeout": 1,
        "worker-lost": 2,
        "failed-by-operator": 1,
        "task-expired": 1,
    },
    waiting=Histogram(buckets=buckets(5, 3, 5, 0, 0, 0, 5, 0), sum=9.5),
    running=Histogram(buckets=buckets(7, 9, 4, 5, 1, 7, 9), sum=220.02),
)


class Story:
    """Tasks that end in every way, at known times."""

    def __init__(self, replica: Replica, clock: ManualClock, *, is_eager: bool) -> None:
        self.replica, self.clock, self.is_eager = replica, clock, is_eager

    async def wait(self, seconds: float) -> None:
        """Let time pass; with `is_eager`, update the statistics before and after."""
        for part in (0.001, seconds - 0.001):
            self.clock.advance(part)
            if self.is_eager:
                await update(self.replica)

    async def make_due(self) -> None:
        """Wait for the pause before the next attempt."""
        await self.wait(40)
        assert await self.replica.enqueue_due() == 1

    async def lose_attempts(self) -> JobResponse:
        """Lose and fail attempts of a task whose policy retries it; return its job."""
        replica = self.replica
        job = await replica.register(**POLICY)
        await replica.submit(job)
        await self.wait(3)
        await replica.claim_task(job.worker_id)
        await self.wait(10)
        assert await replica.recover_overdue() == 1
        await self.wait(0.5)
        running = await replica.start(job.worker_id)
        await self.wait(20)
        await replica.report(running.id, TaskStatus.FAILED, error="oh")
        await self.make_due()
        await self.wait(2)
        await replica.start(job.worker_id)
        await self.wait(100)
        assert await replica.recover_overdue() == 1
        await self.make_due()
        await replica.start(job.worker_id)
        await self.wait(1)
        await replica.leave(job.worker_id)
        await self.make_due()
        return job

    async def end_by_hand(self) -> None:
        """Fail the task by hand, retry it, and complete it; the retry replaces its end."""
        job = await self.replica.register()
        running = await self.replica.start(job.worker_id)
        await self.wait(5)
        await self.replica.act(rules_task_actions.fail, running.id, error="enough")
        await self.wait(7)
        await self.replica.act(rules_task_actions.retry, running.id)
        again = await self.replica.start(job.worker_id)
        await self.wait(0.02)
        await self.replica.report(again.id, TaskStatus.COMPLETED)

    async def end_others(self) -> None:
        """End tasks without a retry: one is cancelled, expires, loses its worker, and is released."""
        replica = self.replica
        job = await replica.register("Other", start_timeout_seconds=0)
        cancelled = await replica.submit(job)
        await replica.report(cancelled.id, TaskStatus.CANCELLED, by=SUBMITTER)
        await replica.submit(job, expires_in_seconds=9)
        await self.wait(9)
        assert await replica.fail_expired() == 1
        await replica.submit(job, delay_seconds=50)
        await self.wait(50)
        assert await replica.enqueue_due() == 1
        await self.wait(4)
        await replica.start(job.worker_id)
        await self.wait(30)
        await replica.leave(job.worker_id)
        job = await replica.register("Other", start_timeout_seconds=0)
        released = await replica.running(job)
        await self.wait(64)
        await replica.act(rules_task_actions.release, released.id)
        await replica.report(released.id, TaskStatus.CANCELLED, by=SUBMITTER)
        await replica.submit(job)


@pytest.mark.parametrize("is_eager", [False, True], ids=["at-the-end", "after-each-step"])
async def test_every_end_of_an_attempt_is_counted_once(
    timed: Replica, clock: ManualClock, is_eager: bool
) -> None:
    """However often the statistics are updated: the totals, the minutes and the hours have the same sums."""
    story = Story(timed, clock, is_eager=is_eager)
    await update(timed)
    await story.wait(1)
    job = await story.lose_attempts()
    await story.end_by_hand()
    await story.end_others()
    await story.wait(1)
    await update(timed)
    found = await totals(timed)
    for histogram in (found.waiting, found.running):
        histogram.sum = round(histogram.sum, 3)
    assert found.model_dump() == EXPECTED.model_dump()
    assert summed(await intervals(timed)) == summed(await intervals(timed, 3600)) == summed([EXPECTED])
    assert (await totals(timed, job.full_name)).submitted == 1
    assert await update(timed) == 0
