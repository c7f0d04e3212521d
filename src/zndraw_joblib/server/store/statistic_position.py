"""Until when the statistics have read, as the functions that delete tasks need it."""

from datetime import datetime, timedelta

from sqlalchemy import func, select, update

from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.operation_tables import StatisticPosition
from zndraw_joblib.server.store.tables import Attempt, Task

position = StatisticPosition.__table__
tasks = Task.__table__
attempts = Attempt.__table__

KEY = 1
# Tasks that were not read yet are kept for this long.
_KEEP_UNREAD = timedelta(minutes=10)
_UNTIL = select(position.c.until).where(position.c.key == KEY)
_NEWEST = {
    "task_floor": select(func.coalesce(func.max(tasks.c.seq), 0)).scalar_subquery(),
    "attempt_floor": select(func.coalesce(func.max(attempts.c.n), 0)).scalar_subquery(),
}
_LOWER = update(position).values(
    {
        f"{prefix}{name}": func.min(position.c[f"{prefix}{name}"], newest)
        for prefix in ("", "next_")
        for name, newest in _NEWEST.items()
    }
)


async def read_until(tx: Transaction) -> datetime | None:
    """Return until when the statistics have read; None before they begin."""
    found: datetime | None = (await tx.execute(_UNTIL)).scalar_one_or_none()
    return found


async def unread_since(tx: Transaction) -> datetime | None:
    """Return the time since which ended tasks must not be deleted, because the statistics will read them.

    None without statistics, and if no server has updated them for some minutes.
    """
    until = await read_until(tx)
    return None if until is None or until < await tx.now() - _KEEP_UNREAD else until


async def lower_floors(tx: Transaction) -> None:
    """Lower the floors to the numbers that exist, after tasks were deleted.

    SQLite gives the number of a deleted row to a new one if no row has a greater number.
    """
    if tx.is_sqlite:
        await tx.execute(_LOWER)
