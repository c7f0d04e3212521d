"""Server processes and the cycles of their sweepers, for operators."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, insert, select

from zndraw_joblib.server.store.database import Transaction, dialect
from zndraw_joblib.server.store.operation_tables import Server, SweepCycle

servers = Server.__table__
cycles = SweepCycle.__table__


async def put(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert or replace the row of a server; its `started_at` stays."""
    added = dialect(tx).insert(servers).values(dict(row))
    changing = {name: added.excluded[name] for name in row if name not in {"id", "started_at"}}
    await tx.execute(added.on_conflict_do_update(index_elements=["id"], set_=changing))


async def add_cycle(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert the summary of a cycle."""
    await tx.execute(insert(cycles), [dict(row)])


async def remove(tx: Transaction, server_id: UUID) -> None:
    """Delete a server. Its cycles stay."""
    await tx.execute(delete(servers).where(servers.c.id == server_id))


async def prune(tx: Transaction, *, seen_since: datetime, cycles_since: datetime, most: int) -> None:
    """Delete servers that were not seen since a time, old cycles, and all but the newest `most` cycles."""
    await tx.execute(delete(servers).where(servers.c.seen_at < seen_since))
    await tx.execute(delete(cycles).where(cycles.c.at < cycles_since))
    newest = select(func.max(cycles.c.n)).scalar_subquery()
    await tx.execute(delete(cycles).where(cycles.c.n <= newest - most))


async def seen_since(tx: Transaction, at: datetime) -> list[Any]:
    """Return the rows of the servers that have reported since a time, the oldest first."""
    found = select(servers).where(servers.c.seen_at >= at).order_by(servers.c.started_at, servers.c.id)
    return list(await tx.execute(found))


async def last_cycles(tx: Transaction, limit: int) -> list[Any]:
    """Return the rows of the last cycles of all servers, newest first."""
    return list(await tx.execute(select(cycles).order_by(cycles.c.n.desc()).limit(limit)))
