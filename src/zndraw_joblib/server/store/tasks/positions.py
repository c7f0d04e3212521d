"""Find the queue positions of pending tasks, counted from 1, without ranking whole queues."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, bindparam, func, select, tuple_

from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Job, Task
from zndraw_joblib.server.store.tasks.records import Condition, Place, TaskRecord, in_queue

tasks = Task.__table__
jobs = Job.__table__

# How many tasks are counted from either end of a queue before the whole queue is counted.
MAX_NEAR_COUNT = 1000


async def positions(tx: Transaction, records: Sequence[TaskRecord]) -> dict[UUID, int]:
    """Return the positions of those of these tasks that are in a queue, by id."""
    queues: dict[UUID, list[TaskRecord]] = {}
    for record in records:
        if record.is_queued:
            queues.setdefault(record.job_id, []).append(record)
    found: dict[UUID, int] = {}
    for job_id, queue in queues.items():
        first = min(record.place for record in queue)
        start = await _position(tx, job_id, first)
        ranks = {first[1]: 1} if len(queue) == 1 else await _ranks(tx, job_id, queue)
        # A task that left the queue after it was read has no rank.
        found |= {r.id: start + ranks[r.seq] - 1 for r in queue if r.seq in ranks}
    return found


async def _ranks(tx: Transaction, job_id: UUID, queue: Sequence[TaskRecord]) -> dict[int, int]:
    places = [record.place for record in queue]
    given = {
        "job": job_id,
        "seqs": padded([record.seq for record in queue]),
        **_place_parameters("first", min(places)),
        **_place_parameters("last", max(places)),
    }
    return {row.seq: row.rank for row in await tx.execute(_RANKS, given)}


def _place_parameters(name: str, place: Place) -> dict[str, int]:
    return {f"{name}_lane": place[0], f"{name}_seq": place[1]}


async def _position(tx: Transaction, job_id: UUID, place: Place) -> int:
    given = {"job": job_id, **_place_parameters("first", place)}
    before, after, pending = (await tx.execute(_NEAR_ENDS, given)).one()
    if before <= MAX_NEAR_COUNT:
        return int(before) + 1
    if after <= MAX_NEAR_COUNT:
        return int(pending - after) + 1
    return int((await tx.execute(_AHEAD, given)).scalar_one()) + 1


def _count_near(wanted: Condition, *order: ColumnElement[Any]) -> ColumnElement[int]:
    # The order makes the database scan the queue from one end.
    some = select(tasks.c.seq).where(_QUEUE, wanted).order_by(*order)
    return select(func.count()).select_from(some.limit(MAX_NEAR_COUNT + 1).subquery()).scalar_subquery()


def _place(name: str) -> ColumnElement[Any]:
    return tuple_(
        bindparam(f"{name}_lane", type_=tasks.c.lane.type), bindparam(f"{name}_seq", type_=tasks.c.seq.type)
    )


_QUEUE = in_queue(bindparam("job"))
_placed = tuple_(tasks.c.lane, tasks.c.seq)
_ORDER = (tasks.c.job_id, tasks.c.lane, tasks.c.seq)
_RANKED = (
    select(tasks.c.seq, func.row_number().over(order_by=_ORDER).label("rank"))
    .where(_QUEUE, _placed >= _place("first"), _placed <= _place("last"))
    .subquery()
)
_RANKS = select(_RANKED.c.seq, _RANKED.c.rank).where(among(_RANKED.c.seq, bindparam("seqs")))
_NEAR_ENDS = select(
    _count_near(_placed < _place("first"), *_ORDER),
    _count_near(_placed >= _place("first"), *[column.desc() for column in _ORDER]),
    jobs.c.pending,
).where(jobs.c.id == bindparam("job"))
_AHEAD = select(func.count()).select_from(tasks).where(_QUEUE, _placed < _place("first"))
