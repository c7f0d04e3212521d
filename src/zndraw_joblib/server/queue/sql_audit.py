"""The audit trail: what operators did, one row for each action, written in the transaction of the action."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, bindparam, delete, insert, select, update

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import metadata

audit = metadata.tables["joblib_audit"]

_ADD = insert(audit).returning(audit.c.n)
_SET_DETAIL = (
    update(audit)
    .where(audit.c.n == bindparam("own_n"))
    .values(detail=bindparam("detail", type_=audit.c.detail.type))
)


async def add_audit(tx: Transaction, **values: Any) -> int:
    """Insert a row, and return its number."""
    number: int = (await tx.execute(_ADD, values)).scalar_one()
    return number


async def set_audit_detail(tx: Transaction, number: int, detail: dict[str, Any]) -> None:
    """Replace the detail of a row."""
    await tx.execute(_SET_DETAIL, {"own_n": number, "detail": detail})


_FIRST = select(audit.c.n, audit.c.at).order_by(audit.c.n).limit(bindparam("limit", type_=BigInteger()))
_DELETE = delete(audit).where(among(audit.c.n, bindparam("numbers")))


async def prune_audit(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` of the first rows that are older than a time.

    Return how many. Other servers may delete the same rows at the same time.
    """
    first = await tx.execute(_FIRST, {"limit": limit})
    numbers = [row.n for row in first if row.at < before]
    if numbers:
        await tx.execute(_DELETE, {"numbers": padded(numbers)})
    return len(numbers)
