"""Token buckets of users: each row is when a bucket is full. One statement takes tokens, on any server."""

from datetime import UTC, datetime, timedelta

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, statement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A clock that went back must not leave a bucket empty for longer than it takes to fill it.
_FULL_AT = """CASE
        WHEN joblib_submit_rate.full_at > :now_us + {window} THEN :now_us + {window}
        WHEN joblib_submit_rate.full_at < :now_us THEN :now_us
        ELSE joblib_submit_rate.full_at
    END""".format(window=":window_us")
_TAKE = statement(
    f"""
INSERT INTO joblib_submit_rate (user_id, full_at) VALUES (:user_id, :now_us + :cost_us)
ON CONFLICT (user_id) DO UPDATE SET full_at = {_FULL_AT} + :cost_us
WHERE {_FULL_AT} + :needed_us <= :now_us + :window_us
RETURNING full_at
""",
    "full_at",
    **dict.fromkeys(("now_us", "cost_us", "needed_us", "window_us"), BIG_INTEGER),
)
_FULL = statement("SELECT full_at FROM joblib_submit_rate WHERE user_id = :user_id", "full_at")
_PRUNE = statement(
    """
DELETE FROM joblib_submit_rate WHERE user_id IN (
    SELECT user_id FROM joblib_submit_rate WHERE full_at < :now_us ORDER BY full_at LIMIT :limit
) AND full_at < :now_us
RETURNING user_id
""",
    "user_id",
    now_us=BIG_INTEGER,
)


async def take(
    tx: Transaction, user_id: str, cost: timedelta, needed: timedelta, window: timedelta
) -> tuple[bool, timedelta]:
    """Take what a bucket gains in `cost`, if it has at least what it gains in `needed`.

    It is full after `window` without a take. Return whether it was taken, and how long it takes to be full.
    """
    now = _microseconds(await tx.now() - _EPOCH)
    sizes = {"cost_us": cost, "needed_us": needed, "window_us": window}
    params = {"user_id": user_id, "now_us": now} | {name: _microseconds(size) for name, size in sizes.items()}
    row = (await tx.execute(_TAKE, params)).first()
    full_at = row or (await tx.execute(_FULL, {"user_id": user_id})).first()
    late = timedelta(microseconds=max(0, full_at[0] - now)) if full_at else timedelta()
    return row is not None, late if row is not None else min(late, window)


async def prune(tx: Transaction, at: datetime, limit: int) -> int:
    """Delete up to `limit` buckets that were full at a time. Return how many."""
    params = {"now_us": _microseconds(at - _EPOCH), "limit": limit}
    return len((await tx.execute(_PRUNE, params)).all())


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
