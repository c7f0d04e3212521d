"""Stored task results: which content a task has, how much there is in all, and what is to be deleted.

Locks: tasks, then results by `n`, then the sums of users by id, then the total.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, INTEGER, TEXT, Type, statement
from zndraw_joblib.server.queue.sql_task_rows import IS_NEEDED_BY_SUCCESSOR, TaskRecord
from zndraw_joblib.wire.progress import StoredResult
from zndraw_joblib.wire.statuses import HELD, TaskStatus

_TOTAL_ID = 1
# The result of an attempt that ends without completing is kept at most this long after its end.
CHECK_INTERVAL = timedelta(seconds=60)
# Added to the size of each result, for its rows.
RESULT_BYTES = 1024


class ResultRecord(NamedTuple):
    """The stored result of a task; `content_key` is None after its content was deleted."""

    task_seq: int
    attempt: int
    content_key: str | None
    size: int
    content_type: str
    etag: str
    filename: str | None
    expires_at: datetime

    def as_message(self) -> StoredResult:
        """Return the result as responses contain it."""
        return StoredResult(
            content_type=self.content_type,
            size=self.size,
            etag=self.etag,
            filename=self.filename,
            expires_at=self.expires_at,
        )


class NewResult(NamedTuple):
    """The content of a finished upload."""

    size: int
    content_type: str
    etag: str
    filename: str | None


class Deletable(NamedTuple):
    """Content that is to be deleted, and the number of its row."""

    n: int
    content_key: str


class Unconfirmed(NamedTuple):
    """The result of an attempt that may not have completed, by the number of its row.

    `status` is that of the task; `is_current`: no later attempt has begun.
    """

    n: int
    status: TaskStatus
    is_current: bool


class Quota(NamedTuple):
    """The most bytes of all results, and of those that count for one user; how long a result is kept."""

    max_total: int
    max_share: int
    keep: timedelta


class NoRoom(Exception):
    """There is no room for more bytes: for any, or with `is_share` for those of one user.

    `is_passing`: there will be, after other uploads have ended and content was deleted.
    """

    def __init__(self, *, is_share: bool, is_passing: bool) -> None:
        super().__init__(is_share, is_passing)
        self.is_share = is_share
        self.is_passing = is_passing


class NewUpload(NamedTuple):
    """An upload of `announced` bytes, or 0 if that is unknown, of which `reserved` are reserved at once."""

    content_key: str
    user_id: str
    reserved: int
    announced: int


class _Sums(NamedTuple):
    """A table of sums: the statement that adds to one if it stays in its bound, and that which reads it."""

    add: Any
    read: Any


def _sums(table: str, column: str, kind: Type) -> _Sums:
    add = statement(
        f"""
INSERT INTO {table} ({column}, size) VALUES (:key, :size)
ON CONFLICT ({column}) DO UPDATE SET size = {table}.size + excluded.size
WHERE {table}.size + :needed <= :bound
RETURNING size
""",
        "size",
        key=kind,
        size=BIG_INTEGER,
        needed=BIG_INTEGER,
        bound=BIG_INTEGER,
    )
    return _Sums(add, statement(f"SELECT size FROM {table} WHERE {column} = :key", "size", key=kind))


_SHARES = _sums("joblib_task_result_share", "user_id", TEXT)
_TOTAL = _sums("joblib_task_result_total", "id", BIG_INTEGER)
_LARGEST_SHARE = statement(
    "SELECT user_id, size FROM joblib_task_result_share ORDER BY size DESC, user_id LIMIT 1",
    "user_id",
    "size",
    user_id=TEXT,
    size=BIG_INTEGER,
)
_FREE_SHARE = statement(
    "UPDATE joblib_task_result_share SET size = size - :size WHERE user_id = :user_id", size=BIG_INTEGER
)
_DROP_SHARE = statement("DELETE FROM joblib_task_result_share WHERE user_id = :user_id AND size = 0")
_FREE_TOTAL = statement("UPDATE joblib_task_result_total SET size = size - :size", size=BIG_INTEGER)

_IS_UPLOAD = "n = :n AND task_seq IS NULL AND content_key IS NOT NULL"
# Of an upload that has been abandoned.
_ABANDONED = -1
_IS_ALIVE = f"expires_at > :now AND attempt <> {_ABANDONED}"
_BEGIN = statement(
    """
INSERT INTO joblib_task_result (attempt, content_key, size, content_type, etag, expires_at, user_id)
VALUES (0, :content_key, :size, '', '', :expires_at, :user_id)
RETURNING n
""",
    "n",
    size=BIG_INTEGER,
)
_GROW = statement(
    f"UPDATE joblib_task_result SET size = size + :size WHERE {_IS_UPLOAD} RETURNING user_id",
    "user_id",
    size=BIG_INTEGER,
)
_EXTEND = statement(
    f"""
UPDATE joblib_task_result SET expires_at = :expires_at WHERE {_IS_UPLOAD} AND {_IS_ALIVE} RETURNING n
""",
    "n",
)
_LOCK_UPLOAD = statement(
    f"""
SELECT size, content_key, user_id FROM joblib_task_result WHERE {_IS_UPLOAD} AND {_IS_ALIVE}
FOR UPDATE
""",
    *("size", "content_key", "user_id"),
)
_FINISH = statement(
    """
UPDATE joblib_task_result SET
    task_seq = :task_seq, attempt = :attempt, size = :size, content_type = :content_type, etag = :etag,
    filename = :filename, expires_at = :expires_at, check_at = :check_at
WHERE n = :n
""",
    size=BIG_INTEGER,
)
_ABANDON = statement(
    f"""
UPDATE joblib_task_result SET attempt = {_ABANDONED}, expires_at = :expires_at WHERE {_IS_UPLOAD}
RETURNING n
""",
    "n",
)
_IS_RESULT = statement("SELECT 1 AS one FROM joblib_task_result WHERE n = :n AND task_seq IS NOT NULL", "one")
_UNCOUNT = statement(f"UPDATE joblib_task_result SET size = -{RESULT_BYTES} WHERE n = ANY (:all_n)")


def _detaching(condition: str) -> tuple[Any, Any]:
    return (
        statement(f"DELETE FROM joblib_task_result WHERE {condition} AND content_key IS NULL"),
        statement(
            f"""
UPDATE joblib_task_result SET task_seq = NULL, check_at = NULL, expires_at = :now WHERE {condition}
"""
        ),
    )


_IS_OF_TASK = "n = :n AND task_seq IS NOT NULL"
_DETACH = _detaching("task_seq = ANY (:all_task_seq)")
_DETACH_ONE = _detaching(_IS_OF_TASK)
_TO_CHECK = statement(
    """
SELECT joblib_task_result.n, joblib_task_result.attempt, joblib_task.status, joblib_task.attempt AS current
FROM joblib_task_result JOIN joblib_task ON joblib_task.seq = joblib_task_result.task_seq
WHERE check_at <= :now ORDER BY check_at LIMIT :limit
""",
    *("n", "attempt", "status", "current"),
    current=INTEGER,
)
_LOCK = statement("SELECT n FROM joblib_task_result WHERE n = ANY (:all_n) ORDER BY n\nFOR UPDATE", "n")
_SET_CHECK = statement(f"UPDATE joblib_task_result SET check_at = :check_at WHERE {_IS_OF_TASK}")
_OF_TASKS = statement(
    f"""
SELECT {", ".join(ResultRecord._fields)} FROM joblib_task_result WHERE task_seq = ANY (:all_task_seq)
""",
    *ResultRecord._fields,
)
_EXPIRED = statement(
    """
SELECT n, content_key FROM joblib_task_result WHERE content_key IS NOT NULL AND expires_at <= :now
    AND NOT (n = ANY (:all_n))
ORDER BY expires_at LIMIT :limit
""",
    *Deletable._fields,
)
# Content that expires soon and that a task which waits will need.
_NEEDED = statement(
    f"""
SELECT joblib_task_result.n FROM joblib_task_result JOIN joblib_task ON joblib_task.seq = task_seq
WHERE content_key IS NOT NULL AND joblib_task_result.expires_at <= :soon AND {IS_NEEDED_BY_SUCCESSOR}
ORDER BY joblib_task_result.expires_at LIMIT :limit
""",
    "n",
    soon=UtcDateTime(),
)
_POSTPONE = statement(
    """
UPDATE joblib_task_result SET expires_at = :later
WHERE n = ANY (:all_n) AND task_seq IS NOT NULL AND content_key IS NOT NULL
""",
    later=UtcDateTime(),
)
_LOCK_CONTENT = statement(
    """
SELECT n, size, user_id FROM joblib_task_result WHERE n = ANY (:all_n) AND content_key IS NOT NULL
ORDER BY n
FOR UPDATE
""",
    *("n", "size", "user_id"),
)
_REMOVE = statement("DELETE FROM joblib_task_result WHERE n = ANY (:all_n) AND task_seq IS NULL")
_FORGET = statement("UPDATE joblib_task_result SET content_key = NULL WHERE n = ANY (:all_n)")
# Other uploads, and content that is to be deleted.
_LOOSE_OF_ALL = f"""
SELECT coalesce(sum(size + {RESULT_BYTES}), 0) FROM joblib_task_result
WHERE task_seq IS NULL AND content_key IS NOT NULL AND n <> :n"""
_LOOSE = {
    True: statement(_LOOSE_OF_ALL, "size"),
    False: statement(f"{_LOOSE_OF_ALL} AND user_id = :user_id", "size"),
}


async def begin(tx: Transaction, new: NewUpload, quota: Quota, lease: timedelta) -> int:
    """Insert an upload. Return its number. Raises `NoRoom` if there is none for its announced size.

    Unless `extend` is called, its content may be deleted after `lease`.
    """
    row = {"content_key": new.content_key, "size": new.reserved, "user_id": new.user_id}
    n: int = (await tx.execute(_BEGIN, {**row, "expires_at": await tx.now() + lease})).scalar_one()
    rest = max(0, new.announced - new.reserved)
    await _grow(tx, n, new.user_id, new.reserved + RESULT_BYTES, quota, rest)
    return n


async def reserve(tx: Transaction, n: int, more: int, quota: Quota) -> None:
    """Reserve more bytes for an upload. Raises `NoRoom`, and LookupError if the upload has expired."""
    row = (await tx.execute(_GROW, {"n": n, "size": more})).first()
    if row is None:
        raise LookupError(f"the upload {n} has expired")
    await _grow(tx, n, row.user_id, more, quota)


async def extend(tx: Transaction, n: int, lease: timedelta) -> bool:
    """Extend an upload by `lease`. Return whether its content was not to be deleted yet."""
    now = await tx.now()
    return (await tx.execute(_EXTEND, {"n": n, "now": now, "expires_at": now + lease})).first() is not None


async def finish(
    tx: Transaction, n: int, task_seq: int, attempt: int, new: NewResult, quota: Quota
) -> ResultRecord:
    """Make an upload the result of a locked task, in place of its former result.

    Raises `NoRoom`, and LookupError if the upload has expired.
    """
    now = await tx.now()
    row = (await tx.execute(_LOCK_UPLOAD, {"n": n, "now": now})).first()
    if row is None:
        raise LookupError(f"the upload {n} has expired")
    await detach(tx, [task_seq])
    expires_at = now + quota.keep
    values = {"task_seq": task_seq, "attempt": attempt, **new._asdict(), "expires_at": expires_at}
    await tx.execute(_FINISH, {**values, "check_at": now + CHECK_INTERVAL, "n": n})
    await _grow(tx, n, row.user_id, new.size - row.size, quota)
    return ResultRecord(task_seq, attempt, row.content_key, **new._asdict(), expires_at=expires_at)


async def detach(tx: Transaction, task_seqs: Sequence[int]) -> None:
    """Take the results of these tasks away from them; their content is deleted later."""
    await _detach(tx, _DETACH, {"all_task_seq": padded(task_seqs)})


async def _detach(tx: Transaction, detaching: tuple[Any, Any], params: dict[str, Any]) -> None:
    removes, detaches = detaching
    await tx.execute(removes, params)
    await tx.execute(detaches, {**params, "now": await tx.now()})


async def to_check(tx: Transaction, limit: int) -> list[Unconfirmed]:
    """Return results whose `check_at` has passed."""
    rows = await tx.execute(_TO_CHECK, {"now": await tx.now(), "limit": limit})
    return [Unconfirmed(row.n, TaskStatus(row.status), row.attempt == row.current) for row in rows]


async def checked(tx: Transaction, unconfirmed: Sequence[Unconfirmed]) -> None:
    """Confirm results of completed attempts, check those of held tasks again later, and detach others.

    The tasks need no lock, because an attempt that has ended never runs again.
    """
    now = await tx.now()
    await tx.execute(_LOCK, {"all_n": padded([result.n for result in unconfirmed])})
    for result in unconfirmed:
        if result.is_current and result.status == TaskStatus.COMPLETED:
            await tx.execute(_SET_CHECK, {"n": result.n, "check_at": None})
        elif result.is_current and result.status in HELD:
            await tx.execute(_SET_CHECK, {"n": result.n, "check_at": now + CHECK_INTERVAL})
        else:
            await _detach(tx, _DETACH_ONE, {"n": result.n})


async def abandon(tx: Transaction, n: int, lease: timedelta) -> bool:
    """Let the content of an upload be deleted after `lease`. Return False if it is a task's result."""
    params = {"n": n, "expires_at": await tx.now() + lease}
    if (await tx.execute(_ABANDON, params)).first() is not None:
        return True
    return (await tx.execute(_IS_RESULT, {"n": n})).first() is None


async def uncount(tx: Transaction, n: int) -> None:
    """Count no bytes for an abandoned upload, whose row stays until its content is deleted once more."""
    params = {"all_n": padded([n])}
    rows = (await tx.execute(_LOCK_CONTENT, params)).all()
    await tx.execute(_UNCOUNT, params)
    if rows:
        await _free(tx, {row.user_id: row.size + RESULT_BYTES for row in rows})


async def of_tasks(tx: Transaction, task_seqs: Sequence[int]) -> dict[int, ResultRecord]:
    """Return the results of tasks by `seq`, also those whose content has expired."""
    rows = await tx.execute(_OF_TASKS, {"all_task_seq": padded(task_seqs)})
    return {row.task_seq: ResultRecord(*row) for row in rows}


async def current(tx: Transaction, tasks: Sequence[TaskRecord]) -> dict[UUID, StoredResult]:
    """Return the stored results of completed tasks by id; most tasks have none."""
    may_have = {
        task.seq: task for task in tasks if task.status == TaskStatus.COMPLETED and task.result is None
    }
    by_seq = await of_tasks(tx, list(may_have)) if may_have else {}
    return {
        may_have[seq].id: record.as_message()
        for seq, record in by_seq.items()
        if record.attempt == may_have[seq].attempt
    }


async def expired(tx: Transaction, limit: int, but: Sequence[int] = ()) -> list[Deletable]:
    """Return content that is to be deleted, the oldest first, without that of the rows `but`."""
    rows = await tx.execute(_EXPIRED, {"now": await tx.now(), "limit": limit, "all_n": padded(but)})
    return [Deletable(*row) for row in rows]


async def needed(tx: Transaction, soon: datetime, limit: int) -> list[int]:
    """Return content that expires by a time although a task that waits will need it, the oldest first."""
    return list((await tx.execute(_NEEDED, {"soon": soon, "limit": limit})).scalars())


async def postpone(tx: Transaction, numbers: Sequence[int], later: datetime) -> None:
    """Keep content until a later time."""
    await tx.execute(_POSTPONE, {"all_n": padded(numbers), "later": later})


async def forget(tx: Transaction, numbers: Sequence[int]) -> None:
    """Record that the content of these rows was deleted. Tasks keep the row of a result that has expired."""
    rows = (await tx.execute(_LOCK_CONTENT, {"all_n": padded(numbers)})).all()
    if not rows:
        return
    freed: Counter[str | None] = Counter()
    for row in rows:
        freed[row.user_id] += row.size + RESULT_BYTES
    params = {"all_n": padded([row.n for row in rows])}
    await tx.execute(_REMOVE, params)
    await tx.execute(_FORGET, params)
    await _free(tx, freed)


async def total(tx: Transaction) -> int:
    """Return the size of all content, with that of uploads that are under way."""
    size: int | None = (await tx.execute(_TOTAL.read, {"key": _TOTAL_ID})).scalar_one_or_none()
    return size or 0


async def largest_share(tx: Transaction) -> tuple[str, int] | None:
    """Return the user whose content is largest, and its size; None if there is none of a user."""
    row = (await tx.execute(_LARGEST_SHARE)).first()
    return None if row is None else (row.user_id, row.size)


async def _grow(tx: Transaction, n: int, user_id: str | None, more: int, quota: Quota, rest: int = 0) -> None:
    """Add the bytes of an upload to the sums. Raises `NoRoom` without room for them and the `rest`."""
    if more + rest <= 0:
        await _free(tx, {user_id: -more})
        return
    if user_id is not None:
        await _reserve(tx, _Sum(_SHARES, user_id, quota.max_share), n, more, rest)
    await _reserve(tx, _Sum(_TOTAL, _TOTAL_ID, quota.max_total), n, more, rest)


class _Sum(NamedTuple):
    """A sum, which may have at most `bound` bytes: that of a user, or that of all."""

    table: _Sums
    key: str | int
    bound: int


async def _reserve(tx: Transaction, row: _Sum, n: int, more: int, rest: int) -> None:
    params = {"key": row.key, "size": more, "needed": more + rest, "bound": row.bound}
    if more + rest <= row.bound and (await tx.execute(row.table.add, params)).first() is not None:
        return
    size = (await tx.execute(row.table.read, {"key": row.key})).scalar_one_or_none() or 0
    user_id = row.key if isinstance(row.key, str) else None
    loose = await _loose(tx, n, user_id)
    raise NoRoom(is_share=user_id is not None, is_passing=size - loose + more + rest <= row.bound)


async def _loose(tx: Transaction, n: int, user_id: str | None) -> int:
    """Return the bytes of other uploads, and of content that is to be deleted; of a user, or of all."""
    return int((await tx.execute(_LOOSE[user_id is None], {"n": n, "user_id": user_id})).scalar_one())


async def _free(tx: Transaction, freed: Mapping[str | None, int]) -> None:
    """Subtract bytes that are no longer stored from the sums."""
    for user_id, size in sorted((user_id, size) for user_id, size in freed.items() if user_id is not None):
        await tx.execute(_FREE_SHARE, {"user_id": user_id, "size": size})
        await tx.execute(_DROP_SHARE, {"user_id": user_id})
    await tx.execute(_FREE_TOTAL, {"size": sum(freed.values())})
