"""The functions of a host to call after the end of a task: their names, leases and attempts."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, select, update

from zndraw_joblib.server.store.bulk import padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.tables import Task

tasks = Task.__table__
_HOOKED = and_(tasks.c.on_end.is_not(None), tasks.c.completed_at.is_not(None))


class Lease(NamedTuple):
    """One call of a function for the end of a task; `attempt` counts from 1."""

    task_id: UUID
    name: str
    attempt: int
    completed_at: datetime


async def attach(tx: Transaction, names: Mapping[UUID, str], now: datetime) -> None:
    """Set the function to call after the end of each of these new tasks."""
    for name in sorted(set(names.values())):
        ids = [task_id for task_id, each in names.items() if each == name]
        values = {"on_end": name, "on_end_attempts": 0, "on_end_due_at": now}
        await tx.execute(update(tasks).where(tasks.c.id.in_(padded(ids))).values(values))


async def take(
    tx: Transaction, names: Mapping[str, int], limit: int, now: datetime, until: datetime
) -> list[Lease]:
    """Lease due calls until a time, after which another server takes them again.

    At most `limit`, and of each function at most as many as `names` has.
    """
    leases: list[Lease] = []
    # One by one, so that none reads the calls of functions that this server does not know.
    for name, most in names.items():
        due = select(tasks.c.id, tasks.c.on_end_attempts, tasks.c.completed_at)
        due = due.where(_HOOKED, tasks.c.on_end == name, tasks.c.on_end_due_at <= now)
        due = (
            due.order_by(tasks.c.on_end_due_at)
            .limit(min(most, limit - len(leases)))
            .with_for_update(skip_locked=True)
        )
        rows = (await tx.execute(due)).all()
        leases += [Lease(row.id, name, row.on_end_attempts + 1, row.completed_at) for row in rows]
        if len(leases) == limit:
            break
    if leases:
        ids = padded([lease.task_id for lease in leases])
        values = {"on_end_attempts": tasks.c.on_end_attempts + 1, "on_end_due_at": until}
        await tx.execute(update(tasks).where(tasks.c.id.in_(ids)).values(values))
    return leases


async def next_due(tx: Transaction, names: Collection[str]) -> datetime | None:
    """Return when the next call of these functions is due; None without one."""
    found: list[datetime] = []
    for name in names:
        first = select(func.min(tasks.c.on_end_due_at)).where(_HOOKED, tasks.c.on_end == name)
        if (due := (await tx.execute(first)).scalar()) is not None:
            found.append(due)
    return min(found, default=None)


async def finish(tx: Transaction, lease: Lease) -> None:
    """Record that there is no further call; not if the task has got another end since."""
    values = {"on_end": None, "on_end_attempts": None, "on_end_due_at": None}
    await tx.execute(update(tasks).where(_is_current(lease)).values(values))


async def postpone(tx: Transaction, lease: Lease, until: datetime) -> None:
    """Set when to call the function again."""
    await tx.execute(update(tasks).where(_is_current(lease)).values(on_end_due_at=until))


def _is_current(lease: Lease) -> ColumnElement[bool]:
    return and_(
        tasks.c.id == lease.task_id,
        tasks.c.on_end_attempts == lease.attempt,
        tasks.c.completed_at == lease.completed_at,
    )
