"""The batches of a worker: what its claims ask for, and how the tasks that it got are put together."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zndraw_joblib.jobs.batches import Batch
from zndraw_joblib.wire.messages import MAX_BATCH_JOBS, ClaimBatch
from zndraw_joblib.worker.tasks import ClaimedTask


class Waiting(NamedTuple):
    """Tasks that wait here for the slots of one call.

    `claimed_at` is since when they have surely been held, by the wall clock.
    """

    tasks: Sequence[ClaimedTask]
    claimed_at: float
    is_batch: bool = False

    @property
    def cost(self) -> int:
        """How many slots they take."""
        return max(task.cost for task in self.tasks)


class BatchSizes:
    """How many tasks of each job to claim for a batch. Not thread-safe.

    The tasks of one claim may have different keys, so that some wait for a slot of their own. After they had
    to be released the next claim asks for as many as have run, and for more again while all of them run.
    """

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def claimable(self, batches: Mapping[str, Batch], *, may_wait: bool) -> list[ClaimBatch]:
        """Return what a claim asks for; a claim ahead, which does not wait, asks for full batches only."""
        return [
            ClaimBatch(
                job=name,
                max=self._sizes.get(name, batch.max),
                wait_seconds=batch.wait_seconds,
                only_full=not may_wait,
            )
            for name, batch in list(batches.items())[:MAX_BATCH_JOBS]
        ]

    def is_full(self, batches: Mapping[str, Batch], tasks: Sequence[ClaimedTask], limit: int) -> bool:
        """Return whether a claim for `limit` tasks, or for a batch, got as many as it asked for."""
        if not tasks or tasks[0].job_name not in batches:
            return len(tasks) == limit
        name = tasks[0].job_name
        size, most = self._sizes.get(name, batches[name].max), batches[name].max
        if len(tasks) >= size < most:
            self._sizes[name] = min(2 * size, most)
        return len(tasks) >= size

    def released(self, batches: Mapping[str, Batch], waiting: Sequence[Waiting]) -> None:
        """Notice that batches were released, because others ran too long before them."""
        for entry in waiting:
            name = entry.tasks[0].job_name
            if entry.is_batch and name in batches:
                self._sizes[name] = max(1, self._sizes.get(name, batches[name].max) - len(entry.tasks))


def put_together(
    tasks: Sequence[ClaimedTask], claimed_at: float, batches: Mapping[str, Batch]
) -> list[Waiting]:
    """Return the tasks as batches of jobs that take some, and one by one of the others, in their order."""
    waiting = []
    of_job: dict[str, list[ClaimedTask]] = {}
    for task in tasks:
        if task.job_name in batches:
            of_job.setdefault(task.job_name, []).append(task)
        else:
            waiting.append(Waiting((task,), claimed_at))
    for name, own in of_job.items():
        for group in batches[name].split(task.payload for task in own):
            waiting.append(Waiting([own[index] for index in group], claimed_at, is_batch=True))
    return waiting
