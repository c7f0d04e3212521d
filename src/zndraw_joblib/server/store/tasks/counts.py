"""Count held tasks by worker, job and room."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select

from zndraw_joblib.server.store.bulk import padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Task
from zndraw_joblib.server.store.tasks.records import IS_HELD

tasks = Task.__table__


async def held_by_workers(tx: Transaction, worker_ids: Sequence[UUID]) -> Counter[UUID]:
    """Count the tasks that each of these workers holds."""
    return await _count_held(tx, tasks.c.worker_id, worker_ids)


async def held_of_jobs(tx: Transaction, job_ids: Sequence[UUID]) -> Counter[UUID]:
    """Count the held tasks of each of these jobs."""
    return await _count_held(tx, tasks.c.job_id, job_ids)


async def held_in_rooms(tx: Transaction, rooms: Sequence[str]) -> Counter[str]:
    """Count the held tasks of each of these rooms."""
    return await _count_held(tx, tasks.c.room_id, rooms)


async def _count_held(tx: Transaction, column: ColumnElement[Any], values: Sequence[Any]) -> Counter[Any]:
    if not values:
        return Counter()
    matching = (IS_HELD, column.in_(padded(values)))
    rows = await tx.execute(select(column, func.count()).where(*matching).group_by(column))
    return Counter({key: count for key, count in rows})
