"""Tokens of workers: add, count, prune, and the number of tasks that they have claimed."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import INTEGER, one_row, statement

_STORED = (
    *("name", "digest", "is_superuser", "created_at", "roles", "rooms", "jobs", "expires_at"),
    *("issued_by", "max_tasks", "claims", "labels"),
)
_ADD = statement(f"INSERT INTO joblib_token {one_row(_STORED)}")
# A revocation or a change waits for what the token issues.
_RIGHTS = ("created_at", "expires_at", "is_superuser", "roles", "rooms", "jobs")
_LOCK_ISSUER = statement(
    f"SELECT {', '.join(_RIGHTS)} FROM joblib_token WHERE name = :name\nFOR KEY SHARE", *_RIGHTS
)
_ISSUED_BY = statement(
    "SELECT name, rooms, jobs FROM joblib_token WHERE issued_by = :issued_by ORDER BY name\nFOR UPDATE",
    *("name", "rooms", "jobs"),
)
_REMOVE = statement("DELETE FROM joblib_token WHERE name = ANY (:all_name)")
_LIMIT_TIMES = statement(
    """
UPDATE joblib_token SET expires_at = :expires_at
WHERE issued_by = :issued_by AND expires_at > :expires_at
"""
)
_COUNT = statement(
    "SELECT count(*) FROM joblib_token WHERE issued_by = :issued_by AND expires_at > :now", "number"
)
_LOCK_FREE = statement(
    """
SELECT name, max_tasks - claims AS free FROM joblib_token
WHERE name = ANY (:all_name) AND max_tasks IS NOT NULL
ORDER BY name
FOR NO KEY UPDATE
""",
    *("name", "free"),
    free=INTEGER,
)
_ADD_CLAIMS = statement(
    "UPDATE joblib_token SET claims = claims + :count WHERE name = :name AND max_tasks > 0"
)
_PRUNE = statement(
    """
DELETE FROM joblib_token WHERE name IN (
    SELECT name FROM joblib_token WHERE issued_by IS NOT NULL AND expires_at < :at LIMIT :limit
)
RETURNING name
""",
    "name",
)


async def add(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Insert a token."""
    await tx.execute(_ADD, {**row, "is_superuser": False, "claims": 0})


async def lock_issuer(tx: Transaction, name: str) -> Any:
    """Keep a token until the commit, and return its times and its rights; None if there is no such token."""
    return (await tx.execute(_LOCK_ISSUER, {"name": name})).first()


async def issued_by(tx: Transaction, issuer: str) -> Sequence[Any]:
    """Lock the tokens that a token has issued; return their names, rooms and jobs, the lists as JSON."""
    return (await tx.execute(_ISSUED_BY, {"issued_by": issuer})).all()


async def remove(tx: Transaction, names: Collection[str]) -> None:
    """Delete tokens."""
    await tx.execute(_REMOVE, {"all_name": padded(sorted(names))})


async def limit_times(tx: Transaction, issuer: str, expires_at: datetime) -> None:
    """Let the tokens that a token has issued expire at a time at the latest."""
    await tx.execute(_LIMIT_TIMES, {"issued_by": issuer, "expires_at": expires_at})


async def count(tx: Transaction, issuer: str) -> int:
    """Count the tokens of a user that have not expired."""
    params = {"issued_by": issuer, "now": await tx.now()}
    number: int = (await tx.execute(_COUNT, params)).scalar_one()
    return number


async def lock_free(tx: Transaction, names: Collection[str]) -> dict[str, int]:
    """Lock tokens with a limit until the commit, and return how many more tasks each may claim."""
    rows = await tx.execute(_LOCK_FREE, {"all_name": padded(sorted(names))})
    return {row.name: max(0, row.free) for row in rows}


async def add_claims(tx: Transaction, counts: Mapping[str, int]) -> None:
    """Add to the numbers of claimed tasks of those users that are tokens which `lock_free` has locked."""
    for name, number in counts.items():
        await tx.execute(_ADD_CLAIMS, {"name": name, "count": number})


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` tokens of workers that have expired before a time. Return how many."""
    return len((await tx.execute(_PRUNE, {"at": before, "limit": limit})).all())
