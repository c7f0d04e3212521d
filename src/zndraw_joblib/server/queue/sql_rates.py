"""Token buckets of users: each row is when a bucket is full. One statement takes tokens, on any server."""

from datetime import UTC, datetime, timedelta

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, statement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# If the clock went back since a row was written, the time until its bucket is full is as it was then.
_FULL_AT = """joblib_submit_rate.full_at - CASE
        WHEN joblib_submit_rate.written_at > :now_us THEN joblib_submit_rate.written_at - :now_us
        ELSE 0
    END"""
_SINCE = f"CASE WHEN {_FULL_AT} > :now_us THEN {_FULL_AT} ELSE :now_us END"
_TAKE = statement(
    f"""
INSERT INTO joblib_submit_rate (user_id, full_at, written_at) VALUES (:user_id, :now_us + :cost_us, :now_us)
ON CONFLICT (user_id) DO UPDATE SET full_at = {_SINCE} + :cost_us, written_at = :now_us
WHERE {_SINCE} + :needed_us <= :now_us + :window_us
RETURNING full_at
""",
    "full_at",
    **dict.fromkeys(("now_us", "cost_us", "needed_us", "window_us"), BIG_INTEGER),
)
_SET_BACK = statement(
    f"""
UPDATE joblib_submit_rate SET full_at = {_FULL_AT}, written_at = :now_us
WHERE user_id = :user_id AND written_at > :now_us
""",
    now_us=BIG_INTEGER,
)
_FULL = statement("SELECT full_at FROM joblib_submit_rate WHERE user_id = :user_id", "full_at")
_RETURN = statement(
    "UPDATE joblib_submit_rate SET full_at = full_at - :cost_us WHERE user_id = :user_id", cost_us=BIG_INTEGER
)
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

    An empty one is full after `window` without a take. Return whether it was taken, and how long it takes to
    be full.
    """
    now = _microseconds(await tx.now() - _EPOCH)
    sizes = {"cost_us": cost, "needed_us": needed, "window_us": window}
    params = {"user_id": user_id, "now_us": now} | {name: _microseconds(size) for name, size in sizes.items()}
    row = (await tx.execute(_TAKE, params)).first()
    is_taken = row is not None
    if row is None:
        await tx.execute(_SET_BACK, {"user_id": user_id, "now_us": now})
        row = (await tx.execute(_FULL, {"user_id": user_id})).first()
    return is_taken, timedelta(microseconds=max(0, row[0] - now)) if row else timedelta()


async def give_back(tx: Transaction, user_id: str, cost: timedelta) -> None:
    """Return to a bucket what it gains in `cost`."""
    await tx.execute(_RETURN, {"user_id": user_id, "cost_us": _microseconds(cost)})


async def prune(tx: Transaction, at: datetime, limit: int) -> int:
    """Delete up to `limit` buckets that were full at a time. Return how many."""
    params = {"now_us": _microseconds(at - _EPOCH), "limit": limit}
    return len((await tx.execute(_PRUNE, params)).all())


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
