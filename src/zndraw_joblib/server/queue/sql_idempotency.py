"""Store the answers to requests with an `Idempotency-Key`, by a digest of the caller and the key."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, Text, Uuid, bindparam, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from zndraw_joblib.server.db.bulk import among, arrays, by_column, padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.tables import IdempotencyKey

keys = IdempotencyKey.__table__


class StoredAnswer(NamedTuple):
    """The answer to the first request with a key."""

    id: UUID
    fingerprint: UUID
    created_at: datetime
    answer: str
    user_id: str | None


_COLUMNS = [keys.c[name] for name in StoredAnswer._fields]
_FIND = select(*_COLUMNS).where(among(keys.c.id, bindparam("ids")))
_GIVEN = arrays({"given_id": Uuid(), "lock": BigInteger()})
# It never waits for a lock, so the lock order does not include it.
_LOCK_AND_FIND = select(
    _GIVEN.c.given_id,
    func.pg_try_advisory_xact_lock(_GIVEN.c.lock).label("is_free"),
    func.now().label("now"),
    *_COLUMNS,
).select_from(_GIVEN.outerjoin(keys, keys.c.id == _GIVEN.c.given_id))

_NEW = arrays(
    {"id": Uuid(), "fingerprint": Uuid(), "created_at": UtcDateTime(), "answer": Text(), "user_id": Text()}
)
_ADD = sqlite.insert(keys)
_ADD = _ADD.on_conflict_do_update(
    index_elements=["id"], set_={name: _ADD.excluded[name] for name in StoredAnswer._fields[1:]}
)
_ADD_MANY = postgresql.insert(keys).from_select(
    list(StoredAnswer._fields), select(*[_NEW.c[name] for name in StoredAnswer._fields])
)
_ADD_MANY_FREE = _ADD_MANY.on_conflict_do_update(
    index_elements=["id"],
    set_={name: _ADD_MANY.excluded[name] for name in StoredAnswer._fields[1:]},
    where=keys.c.created_at <= bindparam("free_since"),
).returning(keys.c.id)


async def lock(tx: Transaction, ids: Sequence[UUID]) -> tuple[dict[UUID, StoredAnswer], set[UUID]]:
    """Lock these keys until the end of the transaction; return their answers, including old ones.

    Also return the keys that other transactions have locked.
    """
    if tx.is_sqlite:
        rows = (await tx.execute(_FIND, {"ids": padded(ids)})).all()
        return {row.id: StoredAnswer(*row) for row in rows}, set()
    given = by_column([{"given_id": id, "lock": lock_number(id)} for id in ids])
    rows = (await tx.execute(_LOCK_AND_FIND, given)).all()
    tx.record_now(rows)
    found = {row.id: StoredAnswer(*row[3:]) for row in rows if row.id is not None}
    return found, {row.given_id for row in rows if not row.is_free}


async def add(tx: Transaction, answers: Sequence[StoredAnswer], free_since: datetime) -> bool:
    """Store answers; replace those stored at or before `free_since`. Return whether all keys were free."""
    rows = [answer._asdict() for answer in answers]
    if tx.is_sqlite:
        await tx.execute(_ADD, rows)
        return True
    stored = await tx.execute(_ADD_MANY_FREE, {**by_column(rows), "free_since": free_since})
    return len(stored.all()) == len(rows)


async def prune(tx: Transaction, before: datetime, limit: int) -> int:
    """Delete up to `limit` answers that were stored at or before a time. Return how many."""
    old = select(keys.c.id).where(keys.c.created_at <= before).order_by(keys.c.created_at)
    ids = (await tx.execute(old.limit(limit).with_for_update(skip_locked=True))).scalars().all()
    if ids:
        await remove(tx, ids)
    return len(ids)


class StoredKey(NamedTuple):
    """A stored key, and whose it is; the order of keys is that of `created_at` and `id`."""

    created_at: datetime
    id: UUID
    user_id: str | None


# How many answers are stored, as far as a limit.
_COUNT = select(func.count()).select_from(select(keys.c.created_at).limit(bindparam("limit")).subquery())
_BY_USER = select(keys.c.user_id, func.count().label("count")).group_by(keys.c.user_id)
_OLDEST = (
    select(keys.c.created_at, keys.c.id, keys.c.user_id)
    .where(
        keys.c.created_at >= bindparam("since", type_=UtcDateTime()),
        tuple_(keys.c.created_at, keys.c.id)
        > tuple_(bindparam("since", type_=UtcDateTime()), bindparam("after_id", type_=Uuid())),
        keys.c.created_at < bindparam("before", type_=UtcDateTime()),
    )
    .order_by(keys.c.created_at, keys.c.id)
    .limit(bindparam("limit"))
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
    given = {"since": after[0], "after_id": after[1], "before": before, "limit": limit}
    return [StoredKey(*row) for row in await tx.execute(_OLDEST, given)]


async def remove(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Delete the answers with these keys."""
    await tx.execute(delete(keys).where(keys.c.id.in_(padded(ids))))


def lock_number(id: UUID) -> int:
    """Return the number of the advisory lock of a key."""
    return int.from_bytes(id.bytes[:8], signed=True)
