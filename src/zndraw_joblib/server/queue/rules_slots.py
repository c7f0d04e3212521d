"""Claims of tasks that take several slots of their worker, and which workers keep slots free for them.

The cost of a task is that of its queue. A worker is linked to a queue only if it has as many slots, so a
claim compares the cost with the free slots alone, and passes over queues instead of tasks.
"""

from datetime import datetime, timedelta
from uuid import UUID

from cachetools import LRUCache, TTLCache

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import (
    rules_fairness,
    rules_limits,
    sql_jobs,
    sql_pauses,
    sql_slots,
    sql_tasks,
)
from zndraw_joblib.server.queue.sql_claims import QueueHead
from zndraw_joblib.server.queue.sql_jobs import policy_of

# For each such time that the first task of a queue does not fit, one more worker keeps its free slots for it.
_ONE_MORE_AFTER = timedelta(minutes=1)
# For so long a server keeps to the workers that it has found.
_CACHED_QUEUES, _CACHED_SECONDS = 10_000, 1.0
# Of so many workers of a queue. All servers read the same ones.
_MAX_WORKERS = 1000


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

    It is one worker at first, the one with most free slots, and one more for each minute since this server
    has found that the task does not fit: it may have waited for hours behind others. Others get later tasks
    meanwhile. As these workers get none, their free slots only grow.
    """

    def __init__(self) -> None:
        # By queue, the first task that may be claimed and does not fit, and when this was found.
        self._since: LRUCache[UUID, tuple[int, datetime]] = LRUCache(_CACHED_QUEUES)
        # By queue, also for the tasks that become the first ones meanwhile.
        self._workers: TTLCache[UUID, frozenset[UUID]] = TTLCache(_CACHED_QUEUES, _CACHED_SECONDS)

    async def has(self, tx: Transaction, head: QueueHead, worker_id: UUID, room_cap: int | None) -> bool:
        """Return whether a worker keeps its free slots for the first task of a queue.

        `room_cap` limits how many tasks of a room may be held.
        """
        workers = self._workers.get(head.job_id)
        if workers is None:
            workers = self._workers[head.job_id] = await self._read(tx, head, room_cap)
        return worker_id in workers

    async def _read(self, tx: Transaction, head: QueueHead, room_cap: int | None) -> frozenset[UUID]:
        room_id = await sql_slots.room_of_first(tx, head.job_id)
        if room_id is None or not await _may_be_claimed(tx, head, room_id, room_cap):
            self._since.pop(head.job_id, None)
            return frozenset()
        now = await tx.now()
        seq, since = self._since.get(head.job_id, (head.seq, now))
        if seq != head.seq:
            since = now
        self._since[head.job_id] = head.seq, since
        cost = head.cost or 1
        rows = await sql_slots.of_workers(tx, head.job_id, _MAX_WORKERS)
        workers = [row for row in rows if row.free < cost <= row.slots]
        number = 1 + max(0, (now - since) // _ONE_MORE_AFTER)
        return frozenset(row.worker_id for row in sql_slots.most_free(workers)[:number])


async def _may_be_claimed(tx: Transaction, head: QueueHead, room_id: str, room_cap: int | None) -> bool:
    """Return whether pauses and limits allow the first task of a queue; keyed limits, any of its tasks."""
    if head.has_pauses and (await sql_pauses.active(tx)).has(room_id):
        return False
    if room_cap is not None and (await sql_tasks.held_in_rooms(tx, [room_id]))[room_id] >= room_cap:
        return False
    if head.max_in_flight is not None:
        versions = await sql_jobs.versions_of(tx, [head.job_id]) if head.has_versions else {}
        limits = {head.job_id: head.max_in_flight}
        if not (await rules_fairness.free_slots(tx, limits, versions))[head.job_id]:
            return False
    if head.limits is None:
        return True
    return bool((await rules_limits.allowed(tx, head.limits, {head.job_id: 1}))[head.job_id])
