"""Fetch the next tasks of queues, without scanning their backlog."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from uuid import UUID

from sqlalchemy import Select, bindparam, func, select, union_all

from zndraw_joblib.server.store.bulk import among, arrays, by_column, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Task
from zndraw_joblib.server.store.tasks.records import (
    CHUNK,
    Place,
    TaskRecord,
    fetch_records,
    in_queue,
    select_records,
)

tasks = Task.__table__

Choose = Callable[[AbstractSet[int]], Awaitable[tuple[list[int], list[int]]]]

# A claim passes over about this many tasks that other transactions have locked.
_MAX_SKIPPED = 256
# SQLite takes 500 branches of a compound select.
BRANCHES = 100
_LOCK_OLDEST = {
    bodies: select_records(bodies=bodies)
    .where(in_queue(bindparam("job")))
    .order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq)
    .limit(bindparam("count"))
    .with_for_update(of=tasks, skip_locked=True)
    for bodies in (True, False)
}
# SQLite takes 32766 parameters.
_MAX_SIZES = 2048
_IS_GIVEN = among(tasks.c.seq, bindparam("seqs"))
_LOCK_BY_SEQ = {
    bodies: select_records(bodies=bodies)
    .where(_IS_GIVEN)
    .order_by(tasks.c.seq)
    .with_for_update(of=tasks, skip_locked=True)
    for bodies in (True, False)
}
_PAYLOADS = select(tasks.c.seq, tasks.c.payload).where(_IS_GIVEN)
# On PostgreSQL `octet_length` does not read a large value; SQLite has it only since 3.43.
_SIZES = {
    is_sqlite: select(tasks.c.seq, size(tasks.c.payload)).where(_IS_GIVEN)
    for is_sqlite, size in ((True, func.length), (False, func.octet_length))
}


async def lock_oldest(tx: Transaction, job_id: UUID, count: int, *, bodies: bool = True) -> list[TaskRecord]:
    """Lock the first tasks in the queue of a job; skip those that another transaction has locked."""
    return await fetch_records(tx, _LOCK_OLDEST[bodies], job=job_id, count=count)


async def lock_queued(tx: Transaction, seqs: Sequence[int], *, bodies: bool = True) -> dict[int, TaskRecord]:
    """Lock those of these tasks that are in their queue, by `seq`; skip locked ones."""
    # Filtered here: with the status in the statement, the planner scans an index of all pending tasks.
    found = await fetch_records(tx, _LOCK_BY_SEQ[bodies], seqs=padded(seqs))
    return {record.seq: record for record in found if record.is_queued}


async def payload_sizes(tx: Transaction, seqs: Sequence[int]) -> dict[int, int]:
    """Return about how many bytes the payload of each of these tasks has."""
    found: dict[int, int] = {}
    for start in range(0, len(seqs), _MAX_SIZES):
        given = {"seqs": padded(seqs[start : start + _MAX_SIZES])}
        found |= {seq: size for seq, size in await tx.execute(_SIZES[tx.is_sqlite], given)}
    return found


async def load_payloads(tx: Transaction, records: Mapping[int, TaskRecord]) -> None:
    """Read the payloads of records that were locked without."""
    seqs = list(records)
    for start in range(0, len(seqs), CHUNK):
        for seq, payload in await tx.execute(_PAYLOADS, {"seqs": padded(seqs[start : start + CHUNK])}):
            records[seq].payload = payload


async def lock_chosen(tx: Transaction, choose: Choose, *, bodies: bool = True) -> dict[int, TaskRecord]:
    """Lock the tasks that `choose` returns, by `seq`; if others hold some, choose again without those.

    `choose` takes the tasks to skip; it returns its choice, and those that it would choose next.
    """
    skipped: set[int] = set()
    while True:
        chosen, following = await choose(skipped)
        tested = [*chosen, *following[: len(skipped)]]
        locked = await lock_queued(tx, tested, bodies=bodies) if tested else {}
        lost = set(tested) - set(locked)
        skipped |= lost
        if lost.isdisjoint(chosen) or len(skipped) > _MAX_SKIPPED:
            return {seq: locked[seq] for seq in chosen if seq in locked}


async def oldest(tx: Transaction, demand: Mapping[UUID, int]) -> dict[UUID, list[Place]]:
    """Return the places of each queue's first tasks, as many as `demand` asks for, without a lock.

    Each queue is read by itself: a condition over several jobs makes PostgreSQL sort the whole backlog.
    """
    found: dict[UUID, list[Place]] = {job_id: [] for job_id in demand}
    if tx.is_sqlite:
        branches = [select(_oldest_of(job_id, count).subquery()) for job_id, count in demand.items()]
        for start in range(0, len(branches), BRANCHES):
            for job_id, lane, seq in await tx.execute(union_all(*branches[start : start + BRANCHES])):
                found[job_id].append((lane, seq))
    else:
        rows = by_column([{"job": job_id, "count": count} for job_id, count in demand.items()])
        for job_id, lane, seq in await tx.execute(_OLDEST_OF_EACH, rows):
            found[job_id].append((lane, seq))
    return {job_id: sorted(places) for job_id, places in found.items()}


def _oldest_of(job_id: Any, count: Any) -> Select[Any]:
    queue = select(tasks.c.job_id, tasks.c.lane, tasks.c.seq).where(in_queue(job_id))
    return queue.order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq).limit(count)


_DEMAND = arrays({"job": tasks.c.job_id.type, "count": tasks.c.attempt.type})
_OLDEST_OF_EACH = select(_oldest_of(_DEMAND.c.job, _DEMAND.c.count).lateral()).select_from(_DEMAND)
