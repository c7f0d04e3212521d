"""Claims of tasks that take several slots of their worker, and which workers keep slots free for them.

The cost of a task is that of its queue. A worker is linked to a queue only if it has as many slots, so a
claim compares the cost with the free slots alone, and passes over queues instead of tasks.
"""

from datetime import timedelta
from uuid import UUID

from cachetools import TTLCache

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import rules_fairness, rules_limits, sql_jobs, sql_pauses, sql_slots
from zndraw_joblib.server.queue.sql_claims import QueueHead
from zndraw_joblib.server.queue.sql_jobs import policy_of

# For each such time that the first task of a queue has waited, one more worker keeps its free slots for it.
_ONE_MORE_AFTER = timedelta(minutes=1)
# For so long a server keeps to the workers that it has found.
_CACHED_QUEUES, _CACHED_SECONDS = 10_000, 1.0


async def free(tx: Transaction, worker_id: UUID, slots: int | None, *, has_batches: bool) -> int:
    """Return how many slots of a worker, which is locked, the tasks that it holds leave.

    It may be negative: a worker may hold tasks that wait for its slots. If it runs some jobs in batches, what
    it has got of these by one claim takes the cost of one task.
    """
    taken = 0
    for row in await sql_slots.held(tx, worker_id):
        is_batch = has_batches and row.claim_id is not None and policy_of(row.policy).batch is not None
        taken += (row.cost or 1) * (1 if is_batch else row.number)
    return (slots or 1) - taken


class Reservations:
    """The workers that keep their free slots for the first task of a queue which takes more of them.

    It is one worker at first, the one with most free slots, and one more for each minute that the task has
    waited. Others get later tasks meanwhile. As these workers get none, their free slots only grow.
    """

    def __init__(self) -> None:
        self._workers: TTLCache[tuple[UUID, int], frozenset[UUID]] = TTLCache(_CACHED_QUEUES, _CACHED_SECONDS)

    async def has(self, tx: Transaction, head: QueueHead, worker_id: UUID) -> bool:
        """Return whether a worker keeps its free slots for the first task of a queue."""
        key = head.job_id, head.seq
        workers = self._workers.get(key)
        if workers is None:
            workers = self._workers[key] = await _reserving(tx, head)
        return worker_id in workers


async def _reserving(tx: Transaction, head: QueueHead) -> frozenset[UUID]:
    first = await sql_slots.first_task(tx, head.job_id)
    if first is None or not await _may_be_claimed(tx, head, first.room_id):
        return frozenset()
    cost = head.cost or 1
    workers = [row for row in await sql_slots.of_workers(tx, head.job_id) if row.free < cost <= row.slots]
    number = 1 + max(0, (await tx.now() - first.since) // _ONE_MORE_AFTER)
    return frozenset(row.worker_id for row in sql_slots.most_free(workers)[:number])


async def _may_be_claimed(tx: Transaction, head: QueueHead, room_id: str) -> bool:
    """Return whether pauses and limits allow the first task of a queue; keyed limits, any of its tasks."""
    if head.has_pauses and (await sql_pauses.active(tx)).has(room_id):
        return False
    if head.max_in_flight is not None:
        versions = await sql_jobs.versions_of(tx, [head.job_id]) if head.has_versions else {}
        limits = {head.job_id: head.max_in_flight}
        if not (await rules_fairness.free_slots(tx, limits, versions))[head.job_id]:
            return False
    if head.limits is None:
        return True
    return bool((await rules_limits.allowed(tx, head.limits, {head.job_id: 1}))[head.job_id])
