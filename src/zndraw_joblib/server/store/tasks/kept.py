"""Counts of tasks by status: of all tasks, of jobs and of rooms. No backlog and no history is counted.

Read them in a snapshot: held tasks are counted, all others are kept counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, bindparam, func, select

from zndraw_joblib.contract.searches import StatusCounts
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store.bulk import among, padded, unindexed
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import RoomCount, Task
from zndraw_joblib.server.store.tasks.records import IS_HELD

tasks = Task.__table__
kept = RoomCount.__table__

NO_COUNTS = StatusCounts()
_SUMS = [func.sum(kept.c[name]) for name in ("total", "pending", "failed", "cancelled")]


def _held_by(*keys: ColumnElement[Any]) -> Select[Any]:
    # All held tasks, which are few. With a condition on the key, its whole history might be read.
    unread = [unindexed(key) for key in keys]
    return select(*keys, tasks.c.status, func.count()).where(IS_HELD).group_by(*unread, tasks.c.status)


_ALL, _HELD = select(*_SUMS), _held_by()
_ALL_BY_JOB = select(kept.c.job_id, *_SUMS).group_by(kept.c.job_id)
_BY_JOB, _HELD_BY_JOB = _ALL_BY_JOB.where(among(kept.c.job_id, bindparam("keys"))), _held_by(tasks.c.job_id)
_IN_ROOM = _ALL_BY_JOB.where(kept.c.room_id == bindparam("room"))
_HELD_BY_ROOM_AND_JOB = _held_by(tasks.c.room_id, tasks.c.job_id)
_BY_ROOM = (
    select(kept.c.room_id, *_SUMS).where(among(kept.c.room_id, bindparam("keys"))).group_by(kept.c.room_id)
)
_HELD_BY_ROOM = _held_by(tasks.c.room_id)


async def of_all(tx: Transaction) -> StatusCounts:
    """Return the counts of all tasks."""
    held = {TaskStatus(status): number for status, number in await tx.execute(_HELD)}
    return _counts([number or 0 for number in (await tx.execute(_ALL)).one()], held)


async def of_jobs(tx: Transaction, job_ids: Sequence[UUID] | None = None) -> dict[UUID, StatusCounts]:
    """Return the counts of these jobs, or of all; a job without tasks is missing."""
    held = await _held(tx, _HELD_BY_JOB)
    if job_ids is None:
        rows = await tx.execute(_ALL_BY_JOB)
    else:
        rows = await tx.execute(_BY_JOB, {"keys": padded(job_ids)})
    return {job_id: _counts(sums, held.get(job_id, {})) for job_id, *sums in rows}


async def of_jobs_in_room(tx: Transaction, room_id: str) -> dict[UUID, StatusCounts]:
    """Return the counts of a room's tasks by job."""
    held: dict[UUID, dict[TaskStatus, int]] = {}
    for room, job_id, status, number in await tx.execute(_HELD_BY_ROOM_AND_JOB):
        if room == room_id:
            held.setdefault(job_id, {})[TaskStatus(status)] = number
    rows = await tx.execute(_IN_ROOM, {"room": room_id})
    return {job_id: _counts(sums, held.get(job_id, {})) for job_id, *sums in rows}


async def of_rooms(tx: Transaction, room_ids: Sequence[str]) -> tuple[dict[str, StatusCounts], int]:
    """Return the counts of these rooms, and how many tasks are held in all."""
    held = await _held(tx, _HELD_BY_ROOM)
    rows = await tx.execute(_BY_ROOM, {"keys": padded(room_ids)})
    found = {room_id: _counts(sums, held.get(room_id, {})) for room_id, *sums in rows}
    return found, sum(sum(by_status.values()) for by_status in held.values())


async def _held(tx: Transaction, statement: Select[Any]) -> dict[Any, dict[TaskStatus, int]]:
    found: dict[Any, dict[TaskStatus, int]] = {}
    for key, status, number in await tx.execute(statement):
        found.setdefault(key, {})[TaskStatus(status)] = number
    return found


def _counts(sums: Sequence[int], held: Mapping[TaskStatus, int]) -> StatusCounts:
    total, pending, failed, cancelled = map(int, sums)
    claimed, running = held.get(TaskStatus.CLAIMED, 0), held.get(TaskStatus.RUNNING, 0)
    return StatusCounts(
        pending=max(0, pending),
        claimed=claimed,
        running=running,
        completed=max(0, total - pending - failed - cancelled - claimed - running),
        failed=max(0, failed),
        cancelled=max(0, cancelled),
    )
