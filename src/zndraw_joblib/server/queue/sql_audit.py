"""The audit trail: what operators did, one row for each action, written in the transaction of the action."""

from datetime import datetime
from typing import Any

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import one_row, statement

_COLUMNS = ("at", "actor", "action", "room_id", "target", "detail", "request_id")
_ADD = statement(f"INSERT INTO joblib_audit {one_row(_COLUMNS)} RETURNING n", "n")
_SET_DETAIL = statement("UPDATE joblib_audit SET detail = :detail WHERE n = :n")
_FIRST = statement("SELECT n, at FROM joblib_audit ORDER BY n LIMIT :limit", *("n", "at"))
_REMOVE = statement("DELETE FROM joblib_audit WHERE n = ANY (:all_n)")


async def add_audit(tx: Transaction, **values: Any) -> int:
    """Insert a row, and return its number."""
    number: int = (await tx.execute(_ADD, values)).scalar_one()
    return number


async def set_audit_detail(tx: Transaction, number: int, detail: dict[str, Any]) -> None:
    """Replace the detail of a row."""
    await tx.execute(_SET_DETAIL, {"n": number, "detail": detail})


async def prune_audit(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` of the first rows that are older than a time.

    Return how many. Other servers may delete the same rows at the same time.
    """
    first = await tx.execute(_FIRST, {"limit": limit})
    numbers = [row.n for row in first if row.at < before]
    if numbers:
        await tx.execute(_REMOVE, {"all_n": padded(numbers)})
    return len(numbers)
