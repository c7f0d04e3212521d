"""Find tasks and workers by the first characters of their ids."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Table, select

from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Task, Worker

tasks, workers = Task.__table__, Worker.__table__

# Ids of tasks begin with the time: so many may share a short prefix.
_CANDIDATES = 20_000


async def tasks_with(
    tx: Transaction, first: UUID, last: UUID, rooms: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` tasks with ids in a range, the last first, of these rooms or of all."""
    return await _within(tx, tasks, (first, last), "room_id", rooms, limit)


async def workers_with(
    tx: Transaction, first: UUID, last: UUID, owners: Sequence[str], limit: int
) -> list[UUID]:
    """Return up to `limit` workers with ids in a range, the last first, of these owners or of all."""
    return await _within(tx, workers, (first, last), "owner_id", owners, limit)


async def _within(
    tx: Transaction, table: Table, span: tuple[UUID, UUID], name: str, values: Sequence[Any], limit: int
) -> list[UUID]:
    ids = select(table.c.id, table.c[name]).where(table.c.id >= span[0], table.c.id <= span[1])
    near = ids.order_by(table.c.id.desc()).limit(_CANDIDATES if values else limit).subquery()
    statement = select(near.c.id).order_by(near.c.id.desc()).limit(limit)
    if values:
        statement = statement.where(near.c[name].in_(values))
    return list((await tx.execute(statement)).scalars())
