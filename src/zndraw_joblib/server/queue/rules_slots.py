"""Claims of tasks that take several slots of their worker, and which workers keep slots free for them.

The cost of a task is that of its queue. A worker is linked to a queue only if it has as many slots, so a
claim compares the cost with the free slots alone, and passes over queues instead of tasks.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from cachetools import LRUCache, TTLCache

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import (
    rules_fairness,
    rules_limits,
    sql_jobs,
    sql_limits,
    sql_pauses,
    sql_room_queues,
    sql_slots,
    sql_tasks,
)
from zndraw_joblib.server.queue.sql_claims import QueueHead
from zndraw_joblib.server.queue.sql_jobs import policy_of
from zndraw_joblib.server.queue.sql_pauses import NO_PAUSES, Pauses
from zndraw_joblib.server.queue.sql_room_queues import OpenRooms
from zndraw_joblib.server.queue.sql_slots import SlotsOf
from zndraw_joblib.server.queue.sql_task_rows import Place

# For each such time that the first task of a queue does not fit, one more worker keeps its free slots for it.
_ONE_MORE_AFTER = timedelta(minutes=1)
# The queues whose workers a server keeps, and for how many seconds.
_CACHED_QUEUES, _CACHED_SECONDS = 10_000, 1.0
# A claim that waits is checked more often than this.
_REFUSED_SECONDS = 15.0
# The most workers of a queue that are read. All servers read the same ones.
_MAX_WORKERS = 1000
# The rooms that are read for the first task of one that is open; a later number, if their rows are outdated.
_ROOMS = (8, 64, 512)


async def free(tx: Transaction, worker_id: UUID, slots: int | None, *, has_batches: bool) -> int:
    """Return how many slots of a worker, which is locked, the tasks that it holds leave.

    It may be negative: a worker may hold tasks that wait for its slots. If it runs some jobs in batches, what
    it has got of these by one claim takes the cost of one task, the largest.
    """
    taken, of_batches = 0, dict[UUID, int]()
    for row in await sql_slots.held(tx, worker_id):
        cost = row.cost or 1
        if has_batches and row.claim_id is not None and policy_of(row.policy).batch is not None:
            of_batches[row.claim_id] = max(of_batches.get(row.claim_id, 0), cost)
        else:
            taken += cost * row.number
    return (slots or 1) - taken - sum(of_batches.values())


class Kept(NamedTuple):
    """The position and the queue of the task for which a worker keeps its free slots."""

    place: Place
    queue_id: UUID


def first_kept(kept: Kept | None, other: Kept | None) -> Kept | None:
    """Return the earlier one of two tasks for which a worker keeps slots."""
    return min((one for one in (kept, other) if one is not None), default=None)


class Reservations:
    """The workers that keep their free slots for the first task of a queue which takes more of them.

    It is the first one that pauses and limits allow. One worker does so at first, the one with most free
    slots, and one more for each minute since this server has found that the task does not fit: it may have
    waited for hours behind others. Others get later tasks meanwhile. As these workers get none, their free
    slots only grow.
    """

    def __init__(self) -> None:
        # By queue, the first task that may be claimed and does not fit, and when this was found.
        self._since: LRUCache[UUID, tuple[Place, datetime]] = LRUCache(_CACHED_QUEUES)
        # Of queues whose first task may be held back, the first one that is not; it may be none.
        self._first: TTLCache[UUID, list[Place]] = TTLCache(_CACHED_QUEUES, _CACHED_SECONDS)
        # By queue, also for the tasks that become the first ones meanwhile; those with most free slots first.
        self._workers: TTLCache[UUID, list[UUID]] = TTLCache(_CACHED_QUEUES, _CACHED_SECONDS)
        # Queues and workers whose claims the room's guard of a host has refused lately.
        self._refused: TTLCache[tuple[UUID, UUID], None] = TTLCache(_CACHED_QUEUES, _REFUSED_SECONDS)

    async def kept_for(
        self, tx: Transaction, head: QueueHead, worker_id: UUID, room_cap: int | None
    ) -> Kept | None:
        """Return for which task of a queue a worker keeps its free slots; None if it keeps none.

        `room_cap` limits how many tasks of a room may be held.
        """
        first = await self._first_allowed(tx, head, room_cap)
        if first is None:
            self._since.pop(head.job_id, None)
            return None
        now = await tx.now()
        place, since = self._since.get(head.job_id, (first, now))
        if place != first:
            since = now
        self._since[head.job_id] = first, since
        workers = self._workers.get(head.job_id)
        if workers is None:
            workers = self._workers[head.job_id] = await _most_free(tx, head)
        if self._refused:
            workers = [one for one in workers if (head.job_id, one) not in self._refused]
        number = 1 + max(0, (now - since) // _ONE_MORE_AFTER)
        return Kept(first, head.job_id) if worker_id in workers[:number] else None

    def pass_over(self, queue_id: UUID, worker_id: UUID) -> None:
        """Let others keep slots for a queue from which a claim of a worker may get nothing."""
        self._refused[queue_id, worker_id] = None

    def forget_first(self, queue_ids: Iterable[UUID]) -> None:
        """Read again which task of these queues is the first one that limits allow."""
        for queue_id in queue_ids:
            self._first.pop(queue_id, None)

    async def _first_allowed(self, tx: Transaction, head: QueueHead, room_cap: int | None) -> Place | None:
        if room_cap is None and not head.has_pauses and not head.is_limited:
            return head.place
        places = self._first.get(head.job_id)
        if places is None:
            first = await _first_allowed(tx, head, room_cap)
            places = self._first[head.job_id] = [] if first is None else [first]
        # Those before may have been claimed since.
        return max(places[0], head.place) if places else None


async def _most_free(tx: Transaction, head: QueueHead) -> list[UUID]:
    """Return the workers of a queue that have too few free slots for its tasks, those with most first.

    A worker whose token may no longer serve the room of the job gets none of them, however long it waits.
    """
    cost = head.cost or 1
    rows: list[SlotsOf] = await sql_slots.of_workers(tx, head.job_id, _MAX_WORKERS)
    full = [row for row in rows if row.free < cost <= row.slots and row.may_serve(head.room_id)]
    return [row.worker_id for row in sql_slots.most_free(full)]


async def _first_allowed(tx: Transaction, head: QueueHead, room_cap: int | None) -> Place | None:
    """Return the position of the first task of a queue that pauses and limits allow; None for none."""
    if head.max_in_flight is not None:
        versions = await sql_jobs.versions_of(tx, [head.job_id]) if head.has_versions else {}
        limits = {head.job_id: head.max_in_flight}
        if not (await rules_fairness.free_slots(tx, limits, versions))[head.job_id]:
            return None
    pauses = await sql_pauses.active(tx) if head.has_pauses else NO_PAUSES
    if pauses.is_all:
        return None
    if head.limits is not None:
        queues = await rules_limits.allowed_queues(tx, head.limits, head.job_id)
        if queues is not None:
            closed = await _closed_rooms(tx, {queue.room_id for queue in queues}, pauses, room_cap)
            open_queues = [queue for queue in queues if queue.room_id not in closed]
            tasks = await sql_limits.first_tasks(tx, head.job_id, open_queues, 1)
            return min((place for places in tasks.values() for place in places), default=None)
    open_rooms = OpenRooms(room_cap, bool(pauses.rooms))
    return head.place if open_rooms == OpenRooms() else await _first_of_rooms(tx, head.job_id, open_rooms)


async def _closed_rooms(tx: Transaction, rooms: set[str], pauses: Pauses, room_cap: int | None) -> set[str]:
    """Return those of these rooms that are paused, or hold as many tasks as they may."""
    closed = {room_id for room_id in rooms if pauses.has(room_id)}
    if room_cap is not None:
        held = await sql_tasks.held_in_rooms(tx, sorted(rooms - closed))
        closed |= {room_id for room_id, number in held.items() if number >= room_cap}
    return closed


async def _first_of_rooms(tx: Transaction, queue_id: UUID, open_rooms: OpenRooms) -> Place | None:
    """Return the position of the first task of the open rooms of a queue, or of an earlier one of them."""
    for size in _ROOMS:
        rows = await sql_room_queues.by_place(tx, queue_id, size, open_rooms)
        tasks = await sql_room_queues.heads(tx, queue_id, [row.room_id for row in rows], 1) if rows else []
        first = min((task.place for task in tasks), default=None)
        if len(rows) < size:
            return first
        # Tasks of rooms that were not read come after this one.
        end = rows[-1].place
        if first is not None and first <= end:
            return first
    return end
