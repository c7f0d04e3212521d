"""Store the answers to requests with an `Idempotency-Key`, by a digest of the caller and the key."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, UUID_TYPE, statement


class StoredAnswer(NamedTuple):
    """The answer to the first request with a key."""

    id: UUID
    fingerprint: UUID
    created_at: datetime
    answer: str
    user_id: str | None


_COLUMNS = ", ".join(StoredAnswer._fields)
_FIND = statement(
    f"SELECT {_COLUMNS} FROM joblib_idempotency_key WHERE id = ANY (:all_id)", *StoredAnswer._fields
)
# It never waits for a lock, so the lock order does not include it.
_LOCK_AND_FIND = statement(
    f"""
SELECT new_keys.key, pg_try_advisory_xact_lock(new_keys.lock), now(), {_COLUMNS}
FROM unnest((SELECT :all_key), (SELECT :all_lock)) AS new_keys (key, lock)
LEFT JOIN joblib_idempotency_key ON joblib_idempotency_key.id = new_keys.key
""",
    *("key", "is_free", "now", *StoredAnswer._fields),
    key=UUID_TYPE,
    lock=BIG_INTEGER,
)
_REPLACE = f"""ON CONFLICT (id) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in StoredAnswer._fields[1:])}"""
_ADD_ON_SQLITE = statement(
    f"""
INSERT INTO joblib_idempotency_key ({_COLUMNS})
VALUES ({", ".join(f":{name}" for name in StoredAnswer._fields)})
{_REPLACE}
"""
)
_ADD_FREE = statement(
    f"""
INSERT INTO joblib_idempotency_key ({_COLUMNS})
SELECT {_COLUMNS}
FROM unnest({", ".join(f"(SELECT :all_{name})" for name in StoredAnswer._fields)}) AS new_keys ({_COLUMNS})
{_REPLACE}
WHERE joblib_idempotency_key.created_at <= :free_since
RETURNING id
""",
    "id",
    free_since=UtcDateTime(),
)
_LOCK_OLD = statement(
    """
SELECT id FROM joblib_idempotency_key WHERE created_at <= :before ORDER BY created_at LIMIT :limit
FOR UPDATE SKIP LOCKED
""",
    "id",
    before=UtcDateTime(),
)
_REMOVE = statement("DELETE FROM joblib_idempotency_key WHERE id = ANY (:all_id)")


async def stored(tx: Transaction, ids: Sequence[UUID], since: datetime | None = None) -> set[UUID]:
    """Return which of these keys have an answer, stored after a time."""
    rows = await tx.execute(_FIND, {"all_id": padded(ids)})
    return {row.id for row in rows if since is None or row.created_at > since}


async def lock(tx: Transaction, ids: Sequence[UUID]) -> tuple[dict[UUID, StoredAnswer], set[UUID]]:
    """Lock these keys until the end of the transaction; return their answers, including old ones.

    Also return the keys that other transactions have locked.
    """
    if tx.is_sqlite:
        rows = (await tx.execute(_FIND, {"all_id": padded(ids)})).all()
        return {row.id: StoredAnswer(*row) for row in rows}, set()
    params = {"all_key": ids, "all_lock": [lock_number(id) for id in ids]}
    rows = (await tx.execute(_LOCK_AND_FIND, params)).all()
    tx.record_now(rows)
    answers = {row.id: StoredAnswer(*row[3:]) for row in rows if row.id is not None}
    return answers, {row.key for row in rows if not row.is_free}


async def add(tx: Transaction, answers: Sequence[StoredAnswer], free_since: datetime) -> bool:
    """Store answers; replace those stored at or before `free_since`. Return whether all keys were free."""
    rows = [answer._asdict() for answer in answers]
    if tx.is_sqlite:
        await tx.execute(_ADD_ON_SQLITE, rows)
        return True
    stored = await tx.execute(_ADD_FREE, {**by_column(rows), "free_since": free_since})
    return len(stored.all()) == len(rows)


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` answers that were stored at or before a time. Return how many."""
    ids = (await tx.execute(_LOCK_OLD, {"before": before, "limit": limit})).scalars().all()
    if ids:
        await remove(tx, ids)
    return len(ids)


class StoredKey(NamedTuple):
    """A stored key and its user; the order of keys is that of `created_at` and `id`."""

    created_at: datetime
    id: UUID
    user_id: str | None


# How many answers are stored, as far as a limit.
_COUNT = statement(
    "SELECT count(*) FROM (SELECT created_at FROM joblib_idempotency_key LIMIT :limit) AS stored", "count"
)
_BY_USER = statement(
    "SELECT user_id, count(*) FROM joblib_idempotency_key GROUP BY user_id", *("user_id", "count")
)
_OLDEST = statement(
    """
SELECT created_at, id, user_id FROM joblib_idempotency_key
WHERE created_at >= :since AND (created_at, id) > (:since, :after_id) AND created_at < :before
ORDER BY created_at, id
LIMIT :limit
""",
    *StoredKey._fields,
    since=UtcDateTime(),
    after_id=UUID_TYPE,
    before=UtcDateTime(),
)


async def counts_beyond(tx: Transaction, limit: int) -> dict[str | None, int]:
    """Return how many answers each user has, if more than `limit` are stored; otherwise nothing."""
    if ((await tx.execute(_COUNT, {"limit": limit + 1})).scalar() or 0) <= limit:
        return {}
    return {user_id: count for user_id, count in await tx.execute(_BY_USER)}


async def oldest(
    tx: Transaction, after: tuple[datetime, UUID], before: datetime, limit: int
) -> list[StoredKey]:
    """Return the oldest keys that follow `after` and were stored before a time."""
    params = {"since": after[0], "after_id": after[1], "before": before, "limit": limit}
    return [StoredKey(*row) for row in await tx.execute(_OLDEST, params)]


async def remove(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Delete the answers with these keys."""
    await tx.execute(_REMOVE, {"all_id": padded(ids)})


def lock_number(id: UUID) -> int:
    """Return the number of the advisory lock of a key."""
    return int.from_bytes(id.bytes[:8], signed=True)
