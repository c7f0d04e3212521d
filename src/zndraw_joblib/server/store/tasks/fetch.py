"""Fetch the next tasks of queues, by job or by room, without scanning their backlog."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Select, bindparam, func, literal, select, text, tuple_, union_all

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.server.store.bulk import among, arrays, by_column, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Attempt, Job, Task
from zndraw_joblib.server.store.tasks.records import FULL, QUEUED, Place, TaskRecord, fetch_records, in_queue

tasks = Task.__table__

# SQLite takes 500 branches of a compound select.
BRANCHES = 100
_LOCK_OLDEST = (
    FULL.where(in_queue(bindparam("job")))
    .order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq)
    .limit(bindparam("count"))
    .with_for_update(of=tasks, skip_locked=True)
)
_LOCK_BY_SEQ = (
    FULL.where(among(tasks.c.seq, bindparam("seqs")))
    .order_by(tasks.c.seq)
    .with_for_update(of=tasks, skip_locked=True)
)


async def lock_oldest(tx: Transaction, job_id: UUID, count: int) -> list[TaskRecord]:
    """Lock the first tasks in the queue of a job; skip those that another transaction has locked."""
    return await fetch_records(tx, _LOCK_OLDEST, job=job_id, count=count)


async def lock_queued(tx: Transaction, seqs: Sequence[int]) -> dict[int, TaskRecord]:
    """Lock those of these tasks that are in their queue, by `seq`; skip locked ones."""
    # Filtered here: with the status in the statement, the planner scans an index of all pending tasks.
    found = await fetch_records(tx, _LOCK_BY_SEQ, seqs=padded(seqs))
    return {record.seq: record for record in found if record.is_queued}


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


jobs = Job.__table__
_before = tasks.alias("before")
_attempts = Attempt.__table__

# Transactions that count the held tasks of rooms run one at a time: two would both find the last free slot.
_LOCK_COUNTS = text("SELECT pg_advisory_xact_lock(4961402731120482811)")
_MAX_JOBS = 100


class QueueHead(NamedTuple):
    """One of the first tasks of a room in the queue of a job. `served_at`: the room's last claim there."""

    room_id: str
    lane: int
    seq: int
    served_at: datetime | None


async def lock_counts(tx: Transaction) -> None:
    """Wait until no other transaction counts the held tasks of rooms."""
    if not tx.is_sqlite:
        await tx.execute(_LOCK_COUNTS)


async def queue_heads(tx: Transaction, job_id: UUID, count: int) -> list[QueueHead]:
    """Return the first tasks of each room in the queue of a job, at most `count` of a room."""
    rooms = [room for room in (await tx.execute(_ROOMS, {"job": job_id})).scalars() if room is not None]
    if not rooms:
        return []
    if not tx.is_sqlite:
        given = {"job": job_id, "count": count, "all_room": rooms}
        return [QueueHead(*row) for row in await tx.execute(_HEADS, given)]
    found: list[QueueHead] = []
    branches = [select(_heads_of(literal(job_id), literal(room), count).subquery()) for room in rooms]
    for start in range(0, len(branches), BRANCHES):
        rows = await tx.execute(union_all(*branches[start : start + BRANCHES]))
        found += [QueueHead(*row) for row in rows]
    return found


async def jobs_queued_in(tx: Transaction, rooms: Sequence[str]) -> list[JobName]:
    """Return the jobs whose queues contain tasks of these rooms, at most a hundred."""
    statement = (
        select(jobs.c.room_id, jobs.c.category, jobs.c.name)
        .join_from(tasks, jobs, tasks.c.job_id == jobs.c.id)
        .where(tasks.c.room_id.in_(padded(rooms)), QUEUED)
        .distinct()
        .limit(_MAX_JOBS)
    )
    return [JobName(*row) for row in await tx.execute(statement)]


def _heads_of(job_id: Any, room: Any, count: Any) -> Select[Any]:
    # Within a room tasks are mostly claimed in order: the room's last claim is that of the task before the
    # head, or of the head itself if it was requeued. A requeued task has its last claim in its attempts.
    earlier = select(func.max(_attempts.c.claimed_at)).where(_attempts.c.task_seq == _before.c.seq)
    served_at = (
        select(func.coalesce(_before.c.claimed_at, earlier.scalar_subquery()))
        .where(
            _before.c.job_id == tasks.c.job_id,
            _before.c.room_id == tasks.c.room_id,
            tuple_(_before.c.created_at, _before.c.seq) <= tuple_(tasks.c.created_at, tasks.c.seq),
            _before.c.attempt > 0,
        )
        .order_by(_before.c.created_at.desc(), _before.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )
    head = select(tasks.c.room_id, tasks.c.lane, tasks.c.seq, served_at.label("served_at"))
    head = head.where(tasks.c.job_id == job_id, tasks.c.room_id == room, QUEUED)
    return head.order_by(tasks.c.lane, tasks.c.seq).limit(count)


def _rooms_of(job_id: Any) -> Select[Any]:
    """Select the rooms of a queue: each step of the recursion finds the next one by the index."""
    queue = (tasks.c.job_id == job_id, QUEUED)
    rooms = select(func.min(tasks.c.room_id).label("room_id")).where(*queue).cte("rooms", recursive=True)
    following = select(func.min(tasks.c.room_id)).where(*queue, tasks.c.room_id > rooms.c.room_id)
    rooms = rooms.union_all(
        select(following.correlate(rooms).scalar_subquery()).where(rooms.c.room_id.is_not(None))
    )
    return select(rooms.c.room_id)


_JOB = bindparam("job", type_=tasks.c.job_id.type)
_ROOMS = _rooms_of(_JOB)
_GIVEN = arrays({"room": tasks.c.room_id.type})
_HEADS = select(_heads_of(_JOB, _GIVEN.c.room, bindparam("count")).lateral()).select_from(_GIVEN)
