"""A state machine: batches that claims get on two servers, with waits, beside limits, releases and deaths."""

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import rule
from replica import OWNER, SUBMITTER

from model.machines import SERVERS, RunMachine, runs
from model.test_limits import LimitedTasks
from zndraw_joblib import Batch
from zndraw_joblib.wire.messages import ClaimBatch, TaskClaimRequest, TaskResponse, TaskSubmitRequest
from zndraw_joblib.wire.names import GLOBAL, JobName

BATCHED = ("Slots", "Plain")
SIZES = st.sampled_from([1, 2, 3, 9])
_SECONDS = 0.05


class BatchClaims(LimitedTasks):
    """Claims ask for batches of two of the jobs, and for up to two tasks of the other one."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.attempts: set[tuple[UUID, int]] = set()

    def request(self, size: int, wait: float, *, only_full: bool = False) -> TaskClaimRequest:
        """Return a claim of batches of a size."""
        entry = {"max": size, "wait_seconds": wait, "only_full": only_full}
        batches = [ClaimBatch(job=str(JobName(GLOBAL, "modifiers", name)), **entry) for name in BATCHED]
        return TaskClaimRequest(worker_id=self.worker, max=2, batches=batches)

    def check_batch(self, claimed: list[TaskResponse], size: int) -> None:
        """Check that each attempt is in one claim only, and what may be in one batch."""
        attempts = {(task.id, task.attempt) for task in claimed}
        assert len(attempts) == len(claimed)
        assert not attempts & self.attempts
        self.attempts |= attempts
        names = {(task.job_name, task.version) for task in claimed}
        if names and not names & {(f"{GLOBAL}:modifiers:{name}", 1) for name in BATCHED}:
            assert len(claimed) <= 2
            return
        assert len(names) <= 1
        assert len(claimed) <= size
        batch = Batch(max=size, key="/user")
        split = batch.split(task.payload for task in claimed)
        assert sorted(index for part in split for index in part) == list(range(len(claimed)))
        assert all(len({claimed[index].payload["user"] for index in part}) == 1 for part in split)

    def check_turns(self, claimed: list[TaskResponse]) -> None:
        """Check that no room of the job got two tasks more than one whose tasks wait."""
        fair = self.runtimes[0].settings.claim_order == "fair"
        if not (fair and claimed and claimed[0].job_name.endswith("Plain") and self.cap is None):
            return
        counts = Counter(task.room_id for task in claimed)
        waiting = {
            task.room_id
            for task in self.left()
            if task.job_name.endswith("Plain") and task.priority >= max(one.priority for one in claimed)
        }
        if len({task.priority for task in claimed}) == 1:
            assert all(max(counts.values()) - counts[room] <= 1 for room in waiting)

    @rule(server=SERVERS, size=SIZES, only_full=st.booleans(), rooms=st.text("rs", max_size=12))
    def claim_batch(self, server: int, size: int, rooms: str, *, only_full: bool) -> None:
        """Claim a batch without a wait; it leaves nothing that it may take, unless it is to be full."""
        if rooms:
            self.submit(server, [("Plain", "ab"[room == "s"], room, "u") for room in rooms], 0)
        self.read()
        before = self.held()
        request = self.request(size, 0, only_full=only_full)
        claimed = self.runner.run(self.runtimes[server].claim(OWNER, request)).tasks
        self.check_batch(claimed, size)
        self.check_claimed(claimed, before)
        self.check_turns(claimed)
        if only_full:
            assert not claimed or not claimed[0].job_name.endswith(BATCHED) or len(claimed) == size
        elif not claimed:
            assert self.left() == []

    @rule(sizes=st.tuples(SIZES, SIZES), number=st.integers(0, 6), user=st.sampled_from("ab"))
    def claim_with_waits(self, sizes: tuple[int, int], number: int, user: str) -> None:
        """Both servers wait for batches while tasks are submitted one by one."""
        self.read()
        before = self.held()
        for claimed, size in zip(self.runner.run(self._wait(sizes, number, user)), sizes, strict=True):
            self.check_batch(claimed, size)
            self.check_claimed(claimed, before)

    async def _wait(self, sizes: tuple[int, int], number: int, user: str) -> list[list[TaskResponse]]:
        claims = [
            asyncio.create_task(runtime.claim(OWNER, self.request(size, _SECONDS), wait=2 * _SECONDS))
            for runtime, size in zip(self.runtimes, sizes, strict=True)
        ]
        for index in range(number):
            runtime = self.runtimes[index % 2]
            name = JobName(GLOBAL, "modifiers", BATCHED[index % 3 == 2])
            body = TaskSubmitRequest(payload={"user": user})
            task: Any = await runtime.submit(runtime.submission(SUBMITTER, "rs"[index % 2], name, body))
            self.tasks[task.id] = task
            if not self.limits[name.name]:
                self.keyless.add(task.id)
        async with asyncio.timeout(30):
            return [(await claim).tasks for claim in claims]


@runs(sqlite=[(5, 20), (60, 40)], postgresql=[(5, 20), (60, 40)])
def test_batches_hold(run_machine: RunMachine) -> None:
    """Each batch is within all limits, and full unless nothing is left."""
    run_machine(BatchClaims)
