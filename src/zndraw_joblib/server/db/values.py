"""Values of the database's result backend: bytes in parts with an expiry time, and locks.

Each value has a random number. A value that is being written is a draft under a name of its own; an
abandoned draft expires.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from secrets import randbits
from typing import Any, NamedTuple

from sqlalchemy import (
    Executable,
    Integer,
    LargeBinary,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, FLOAT, TEXT, statement
from zndraw_joblib.server.db.tables import Result, ResultPart
from zndraw_joblib.server.process.ports import PART_BYTES

# Added to the size of each value, for its rows.
VALUE_BYTES = 1024
_PARTS_PER_EVICTION = 64

# Values whose keys begin with this are never evicted.
KEPT = "task-result:"
results = Result.__table__
parts = ResultPart.__table__


class ValueHead(NamedTuple):
    """The number and the size of a value, and its first part."""

    n: int
    size: int
    first: bytes


def new_number() -> int:
    """Return a number for a value. A number that was used before could make a reader mix two values."""
    return randbits(62)


async def read(tx: Transaction, key: str) -> bytes | None:
    """Return the bytes of a value."""
    rows = await _current(tx, _BYTES, key)
    return b"".join(row.data for row in rows) if rows else None


async def head(tx: Transaction, key: str) -> ValueHead | None:
    """Return the number, the size and the first part of a value."""
    rows = await _current(tx, _HEAD, key)
    return ValueHead(rows[0].n, rows[0].size, rows[0].data) if rows else None


async def heads(tx: Transaction, keys: Sequence[str]) -> dict[str, ValueHead]:
    """Return the number, the size and the first part of each of these values that exists, by its key."""
    names = {_value(key): key for key in keys}
    rows = (await tx.execute(_HEADS, {"all_key": padded([*names])})).all()
    tx.record_now(rows)
    now = await tx.now()
    return {names[row.key]: ValueHead(row.n, row.size, row.data) for row in rows if row.expires_at > now}


async def _current(tx: Transaction, statement: Executable, key: str) -> Sequence[Any]:
    rows = (await tx.execute(statement, {"key": _value(key)})).all()
    tx.record_now(rows)
    return rows if rows and rows[0].expires_at > await tx.now() else ()


async def part(tx: Transaction, n: int, number: int) -> bytes | None:
    """Return a part of the value `n`, None if it was deleted."""
    data: bytes | None = (await tx.execute(_PART, {"n": n, "part": number})).scalar_one_or_none()
    return data


async def begin_draft(tx: Transaction, n: int, ttl: float) -> None:
    """Begin a draft that is written in several transactions, with at most `ttl` seconds between them."""
    await tx.execute(insert(results), [await _row(tx, n, _draft(n), 0, ttl)])


async def add_part(tx: Transaction, n: int, number: int, data: bytes, ttl: float) -> bool:
    """Add a part to a draft. Return whether the draft still existed."""
    until = await tx.now() + timedelta(seconds=ttl)
    params = {"draft": _draft(n), "until": until, "more": len(data)}
    if (await tx.execute(_GROW, params)).first() is None:
        return False
    await tx.execute(insert(parts), [{"result_n": n, "part": number, "data": data}])
    return True


async def publish_draft(tx: Transaction, n: int, key: str, ttl: float) -> bool:
    """Store a draft under a key, in place of its value. Return whether the draft still existed."""
    row = (await tx.execute(_TAKE_DRAFT, {"draft": _draft(n)})).first()
    if row is None:
        return False
    await _replace(tx, n, key, row.size, ttl)
    return True


async def drop_draft(tx: Transaction, n: int) -> None:
    """Delete a draft."""
    await tx.execute(_TAKE_DRAFT, {"draft": _draft(n)})
    await tx.execute(_DROP_PARTS, {"old": n})


async def put(tx: Transaction, n: int, key: str, data: bytes, ttl: float, *, is_durable: bool = True) -> None:
    """Store at most `PART_BYTES` under a key for `ttl` seconds, in place of its value.

    A crash of PostgreSQL may lose a value that is not `is_durable`, unless a later commit is durable.
    """
    if not is_durable and not tx.is_sqlite:
        at = await tx.now() if tx.has_own_clock else None
        params = {"n": n, "key": _value(key), "size": len(data), "ttl": ttl, "at": at, "data": data}
        if await tx.execute_alone(_PUT_NEW, params):
            return
        await tx.commit_lazily()
    await _replace(tx, n, key, len(data), ttl)
    await tx.execute(insert(parts), [{"result_n": n, "part": 0, "data": data}])


async def remove(tx: Transaction, key: str) -> None:
    """Delete a value."""
    await _remove(tx, _value(key))


# A lock of a server that lost it in a crash of PostgreSQL is free, as one that has expired: the fences of
# what it protects refuse the second writer. So locks do not wait for the disk.


async def lock(tx: Transaction, n: int, key: str, ttl: float) -> bool:
    """Take the lock `n` for `ttl` seconds unless another is held. Return whether it was free."""
    if tx.is_sqlite:
        row = await _row(tx, n, _lock(key), None, ttl)
        return (await tx.execute(_TAKE_LOCK_ON_SQLITE, {**row, "now": await tx.now()})).first() is not None
    at = await tx.now() if tx.has_own_clock else None
    return bool(await tx.execute_alone(_TAKE_LOCK, {"n": n, "key": _lock(key), "ttl": ttl, "at": at}))


async def unlock(tx: Transaction, key: str) -> None:
    """Release a lock."""
    params = {"key": _lock(key)}
    await (tx.execute(_UNLOCK_ON_SQLITE, params) if tx.is_sqlite else tx.execute_alone(_UNLOCK, params))


async def prune(tx: Transaction, limit: int) -> int:
    """Delete expired values and locks, the oldest first: at most `limit` parts, but at least one value.

    Return how many values and locks were deleted; 0 when none is left.
    """
    expired = (await tx.execute(_EXPIRED, {"now": await tx.now(), "limit": limit})).all()
    rows: list[dict[str, int]] = []
    for row in expired:
        limit -= 1 + (row.size or 0) // PART_BYTES
        if rows and limit < 0:
            break
        rows.append({"old": row.n})
    if rows:
        await tx.execute(_DROP, rows)
        await tx.execute(_DROP_PARTS, rows)
    return len(rows)


async def evict(tx: Transaction, max_bytes: int) -> bool:
    """Delete the values that expire first, a bounded number, if all values exceed `max_bytes`.

    It neither counts nor deletes drafts, locks and values that are `KEPT`. Return whether another call is
    needed.
    """
    total: int = (await tx.execute(_TOTAL)).scalar_one()
    excess, budget, rows = total - max_bytes, _PARTS_PER_EVICTION, list[dict[str, int]]()
    for row in (await tx.execute(_OLDEST)).all() if excess > 0 else ():
        if excess <= 0 or budget <= 0:
            break
        rows.append({"old": row.n})
        excess -= row.size + VALUE_BYTES
        budget -= 1 + row.size // PART_BYTES
    if rows:
        await tx.execute(_DROP, rows)
        await tx.execute(_DROP_PARTS, rows)
    return bool(rows) and excess > 0


async def _replace(tx: Transaction, n: int, key: str, size: int, ttl: float) -> None:
    row = await _row(tx, n, _value(key), size, ttl)
    while True:
        await _remove(tx, _value(key))
        # PostgreSQL: another transaction may have stored a value meanwhile; then that one is deleted.
        if (await tx.execute(_put_row(tx.is_sqlite), row)).first() is not None:
            return


async def _remove(tx: Transaction, name: str) -> None:
    for row in (await tx.execute(_REMOVE, {"name": name})).all():
        await tx.execute(_DROP_PARTS, {"old": row.n})


async def _row(tx: Transaction, n: int, name: str, size: int | None, ttl: float) -> dict[str, Any]:
    return {"n": n, "key": name, "size": size, "expires_at": await tx.now() + timedelta(seconds=ttl)}


def _value(key: str) -> str:
    return f"value:{key}"


def _lock(key: str) -> str:
    return f"lock:{key}"


def _draft(n: int) -> str:
    return f"draft:{n}"


@cache
def _put_row(is_sqlite: bool) -> Executable:
    row: Any = (sqlite if is_sqlite else postgresql).insert(results)
    statement: Executable = row.on_conflict_do_nothing(index_elements=["key"]).returning(results.c.n)
    return statement


_lock_row: Any = sqlite.insert(results)
_TAKE_LOCK_ON_SQLITE: Executable = _lock_row.on_conflict_do_update(
    index_elements=["key"],
    set_={"n": _lock_row.excluded.n, "expires_at": _lock_row.excluded.expires_at},
    where=or_(results.c.expires_at <= bindparam("now"), results.c.n == _lock_row.excluded.n),
).returning(results.c.n)
# If the connection was lost, it is repeated, and finds its own lock.
_TAKE_LOCK = statement(
    """
INSERT INTO joblib_result (n, key, expires_at)
SELECT :n, :key, coalesce(:at, now()) + make_interval(secs => :ttl)
WHERE set_config('synchronous_commit', 'off', true) = 'off'
ON CONFLICT (key) DO UPDATE SET n = excluded.n, expires_at = excluded.expires_at
WHERE joblib_result.expires_at <= coalesce(:at, now()) OR joblib_result.n = excluded.n
RETURNING n
""",
    "n",
    n=BIG_INTEGER,
    key=TEXT,
    ttl=FLOAT,
)
_UNLOCK_ON_SQLITE = statement("DELETE FROM joblib_result WHERE key = :key", key=TEXT)
_UNLOCK = statement(
    """
DELETE FROM joblib_result WHERE key = :key AND set_config('synchronous_commit', 'off', true) = 'off'
RETURNING n
""",
    "n",
    key=TEXT,
)
# It does nothing if the key has a value, or had one that has expired.
_PUT_NEW = statement(
    """
WITH added AS (
    INSERT INTO joblib_result (n, key, size, expires_at)
    SELECT :n, :key, :size, coalesce(:at, now()) + make_interval(secs => :ttl)
    WHERE set_config('synchronous_commit', 'off', true) = 'off'
    ON CONFLICT (key) DO NOTHING
    RETURNING n
)
INSERT INTO joblib_result_part (result_n, part, data) SELECT n, 0, :data FROM added RETURNING result_n
""",
    "result_n",
    n=BIG_INTEGER,
    key=TEXT,
    size=BIG_INTEGER,
    data=LargeBinary(),
    ttl=FLOAT,
)
_PARTS_OF = (
    select(parts.c.data, results.c.n, results.c.size, results.c.expires_at, func.now().label("now"))
    .join_from(parts, results, results.c.n == parts.c.result_n)
    .where(results.c.key == bindparam("key"))
)
_BYTES = _PARTS_OF.order_by(parts.c.part)
_HEAD = _PARTS_OF.where(parts.c.part == literal_column("0"))
_HEADS = statement(
    """
SELECT joblib_result.key, joblib_result.n, joblib_result.size, joblib_result_part.data,
    joblib_result.expires_at, CURRENT_TIMESTAMP AS now
FROM joblib_result JOIN joblib_result_part ON joblib_result_part.result_n = joblib_result.n
WHERE joblib_result.key = ANY (:all_key) AND joblib_result_part.part = 0
""",
    *("key", "n", "size", "data", "expires_at", "now"),
    key=TEXT,
    n=BIG_INTEGER,
    size=BIG_INTEGER,
    data=LargeBinary(),
)
_PART = select(parts.c.data).where(parts.c.result_n == bindparam("n"), parts.c.part == bindparam("part"))
_GROW = (
    update(results)
    .where(results.c.key == bindparam("draft"))
    .values(expires_at=bindparam("until"), size=results.c.size + bindparam("more"))
    .returning(results.c.n)
)
_TAKE_DRAFT = delete(results).where(results.c.key == bindparam("draft")).returning(results.c.size)
_REMOVE = delete(results).where(results.c.key == bindparam("name")).returning(results.c.n)
_DROP = delete(results).where(results.c.n == bindparam("old"))
_DROP_PARTS = delete(parts).where(parts.c.result_n == bindparam("old"))
_EXPIRED = (
    select(results.c.n, results.c.size)
    .where(results.c.expires_at <= bindparam("now"))
    .order_by(results.c.expires_at)
    .limit(bindparam("limit", type_=Integer))
    .with_for_update(skip_locked=True)
)
_IS_VALUE = and_(results.c.key.like(_value("%")), results.c.key.not_like(_value(f"{KEPT}%")))
_TOTAL = select(func.coalesce(func.sum(results.c.size + VALUE_BYTES), 0)).where(_IS_VALUE)
_OLDEST = (
    select(results.c.n, results.c.size)
    .where(_IS_VALUE)
    .order_by(results.c.expires_at)
    .limit(_PARTS_PER_EVICTION)
    .with_for_update(skip_locked=True)
)
