"""Stored task results: which content a task has, how much there is in all, and what is to be deleted.

Locks: tasks, then results by `n`, then the sums of users by id, then the total.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Executable, Table, and_, bindparam, delete, func, insert, select, update

from zndraw_joblib.server.db.bulk import among, padded
from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.tables import Task, TaskResult, TaskResultShare, TaskResultTotal
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.progress import StoredResult
from zndraw_joblib.wire.statuses import HELD, TaskStatus

results = TaskResult.__table__
shares = TaskResultShare.__table__
totals = TaskResultTotal.__table__

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


async def begin(tx: Transaction, new: NewUpload, quota: Quota, lease: timedelta) -> int:
    """Insert an upload. Return its number. Raises `NoRoom` if there is none for its announced size.

    Unless `extend` is called, its content may be deleted after `lease`.
    """
    row = {
        "attempt": 0,
        "content_key": new.content_key,
        "size": new.reserved,
        "content_type": "",
        "etag": "",
        "expires_at": await tx.now() + lease,
        "user_id": new.user_id,
    }
    n: int = (await tx.execute(insert(results).returning(results.c.n), [row])).scalar_one()
    rest = max(0, new.announced - new.reserved)
    await _grow(tx, n, new.user_id, new.reserved + RESULT_BYTES, quota, rest)
    return n


async def reserve(tx: Transaction, n: int, more: int, quota: Quota) -> None:
    """Reserve more bytes for an upload. Raises `NoRoom`, and LookupError if the upload has expired."""
    row = (await tx.execute(_GROW, {"own": n, "more": more})).first()
    if row is None:
        raise LookupError(f"the upload {n} has expired")
    await _grow(tx, n, row.user_id, more, quota)


async def extend(tx: Transaction, n: int, lease: timedelta) -> bool:
    """Extend an upload by `lease`. Return whether its content was not to be deleted yet."""
    now = await tx.now()
    return (await tx.execute(_EXTEND, {"own": n, "now": now, "until": now + lease})).first() is not None


async def finish(
    tx: Transaction, n: int, task_seq: int, attempt: int, new: NewResult, quota: Quota
) -> ResultRecord:
    """Make an upload the result of a locked task, in place of its former result.

    Raises `NoRoom`, and LookupError if the upload has expired.
    """
    now = await tx.now()
    row = (await tx.execute(_LOCK_UPLOAD, {"own": n, "now": now})).first()
    if row is None:
        raise LookupError(f"the upload {n} has expired")
    await detach(tx, [task_seq])
    expires_at = now + quota.keep
    values = {"task_seq": task_seq, "attempt": attempt, **new._asdict(), "expires_at": expires_at}
    values["check_at"] = now + CHECK_INTERVAL
    await tx.execute(update(results).where(results.c.n == n).values(values))
    await _grow(tx, n, row.user_id, new.size - row.size, quota)
    return ResultRecord(task_seq, attempt, row.content_key, **new._asdict(), expires_at=expires_at)


async def detach(tx: Transaction, task_seqs: Sequence[int]) -> None:
    """Take the results of these tasks away from them; their content is deleted later."""
    await _detach(tx, results.c.task_seq.in_(padded(task_seqs)))


async def _detach(tx: Transaction, own: ColumnElement[bool]) -> None:
    await tx.execute(delete(results).where(own, results.c.content_key.is_(None)))
    detached = {"task_seq": None, "check_at": None, "expires_at": await tx.now()}
    await tx.execute(update(results).where(own).values(detached))


async def to_check(tx: Transaction, limit: int) -> list[Unconfirmed]:
    """Return results whose `check_at` has passed."""
    rows = await tx.execute(_TO_CHECK.limit(limit), {"now": await tx.now()})
    return [Unconfirmed(row.n, TaskStatus(row.status), row.attempt == row.current) for row in rows]


async def checked(tx: Transaction, unconfirmed: Sequence[Unconfirmed]) -> None:
    """Confirm results of completed attempts, check those of held tasks again later, and detach others.

    The tasks need no lock, because an attempt that has ended never runs again.
    """
    now = await tx.now()
    numbers = padded([result.n for result in unconfirmed])
    await tx.execute(
        select(results.c.n).where(results.c.n.in_(numbers)).order_by(results.c.n).with_for_update()
    )
    for result in unconfirmed:
        own = and_(results.c.n == result.n, results.c.task_seq.is_not(None))
        if result.is_current and result.status == TaskStatus.COMPLETED:
            await tx.execute(update(results).where(own).values(check_at=None))
        elif result.is_current and result.status in HELD:
            await tx.execute(update(results).where(own).values(check_at=now + CHECK_INTERVAL))
        else:
            await _detach(tx, own)


async def abandon(tx: Transaction, n: int) -> str | None:
    """Let the content of an upload be deleted; return its key. Return None if it is a task's result."""
    now = await tx.now()
    key: str | None = (await tx.execute(_ABANDON, {"own": n, "now": now})).scalar_one_or_none()
    return key


async def of_tasks(tx: Transaction, task_seqs: Sequence[int]) -> dict[int, ResultRecord]:
    """Return the results of tasks by `seq`, also those whose content has expired."""
    rows = await tx.execute(_OF_TASKS, {"seqs": padded(task_seqs)})
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


async def expired(tx: Transaction, limit: int) -> list[Deletable]:
    """Return content that is to be deleted, the oldest first."""
    rows = await tx.execute(_EXPIRED.limit(limit), {"now": await tx.now()})
    return [Deletable(*row) for row in rows]


async def forget(tx: Transaction, numbers: Sequence[int]) -> None:
    """Record that the content of these rows was deleted. Tasks keep the row of a result that has expired."""
    condition = and_(results.c.n.in_(padded(numbers)), results.c.content_key.is_not(None))
    columns = (results.c.n, results.c.size, results.c.user_id)
    locked = select(*columns).where(condition).order_by(results.c.n).with_for_update()
    rows = (await tx.execute(locked)).all()
    if not rows:
        return
    freed: Counter[str | None] = Counter()
    for row in rows:
        freed[row.user_id] += row.size + RESULT_BYTES
    own = results.c.n.in_(padded([row.n for row in rows]))
    await tx.execute(delete(results).where(own, results.c.task_seq.is_(None)))
    await tx.execute(update(results).where(own).values(content_key=None))
    await _free(tx, freed)


async def total(tx: Transaction) -> int:
    """Return the size of all content, with that of uploads that are under way."""
    size: int | None = (await tx.execute(select(totals.c.size))).scalar_one_or_none()
    return size or 0


async def _grow(tx: Transaction, n: int, user_id: str | None, more: int, quota: Quota, rest: int = 0) -> None:
    """Add the bytes of an upload to the sums. Raises `NoRoom` without room for them and the `rest`."""
    if more + rest <= 0:
        await _free(tx, {user_id: -more})
        return
    if user_id is not None:
        room = _Room(shares, shares.c.user_id, user_id, quota.max_share)
        await _reserve(tx, room, n, more, rest)
    await _reserve(tx, _Room(totals, totals.c.id, _TOTAL_ID, quota.max_total), n, more, rest)


class _Room(NamedTuple):
    """A sum, which may have at most `limit` bytes."""

    sums: Table
    column: ColumnElement[Any]
    key: Any
    limit: int


async def _reserve(tx: Transaction, room: _Room, n: int, more: int, rest: int) -> None:
    sums, column, key, limit = room
    grown: Any = dialect(tx).insert(sums).values({column: key, sums.c.size: more})
    statement: Executable = grown.on_conflict_do_update(
        index_elements=[column],
        set_={"size": sums.c.size + bindparam("more")},
        where=sums.c.size + bindparam("wanted") <= bindparam("most"),
    ).returning(sums.c.size)
    amount = more + rest
    params = {"more": more, "wanted": amount, "most": limit}
    if amount <= limit and (await tx.execute(statement, params)).first() is not None:
        return
    size = (await tx.execute(select(sums.c.size).where(column == key))).scalar_one_or_none() or 0
    loose = await _loose(tx, n, key if sums is shares else None)
    raise NoRoom(is_share=sums is shares, is_passing=size - loose + amount <= limit)


async def _loose(tx: Transaction, n: int, user_id: str | None) -> int:
    """Return the bytes of other uploads, and of content that is to be deleted; of a user, or of all."""
    own = and_(results.c.task_seq.is_(None), results.c.content_key.is_not(None), results.c.n != n)
    if user_id is not None:
        own = and_(own, results.c.user_id == user_id)
    size = func.coalesce(func.sum(results.c.size + RESULT_BYTES), 0)
    return int((await tx.execute(select(size).where(own))).scalar_one())


async def _free(tx: Transaction, freed: Mapping[str | None, int]) -> None:
    """Subtract bytes that are no longer stored from the sums."""
    for user_id, size in sorted((user_id, size) for user_id, size in freed.items() if user_id is not None):
        own = and_(shares.c.user_id == user_id)
        await tx.execute(update(shares).where(own).values(size=shares.c.size - size))
        await tx.execute(delete(shares).where(own, shares.c.size == 0))
    await tx.execute(update(totals).values(size=totals.c.size - sum(freed.values())))


_COLUMNS = [results.c[name] for name in ResultRecord._fields]
_OF_TASKS = select(*_COLUMNS).where(among(results.c.task_seq, bindparam("seqs")))
_IS_UPLOAD = and_(
    results.c.n == bindparam("own"), results.c.task_seq.is_(None), results.c.content_key.is_not(None)
)
_IS_ALIVE = results.c.expires_at > bindparam("now")
_EXTEND = (
    update(results).where(_IS_UPLOAD, _IS_ALIVE).values(expires_at=bindparam("until")).returning(results.c.n)
)
_GROW = (
    update(results)
    .where(_IS_UPLOAD)
    .values(size=results.c.size + bindparam("more"))
    .returning(results.c.user_id)
)
_TO_CHECK = (
    select(results.c.n, results.c.attempt, Task.__table__.c.status, Task.__table__.c.attempt.label("current"))
    .join_from(results, Task.__table__, Task.__table__.c.seq == results.c.task_seq)
    .where(results.c.check_at <= bindparam("now"))
    .order_by(results.c.check_at)
)
_LOCK_UPLOAD = (
    select(results.c.size, results.c.content_key, results.c.user_id)
    .where(_IS_UPLOAD, _IS_ALIVE)
    .with_for_update()
)
_ABANDON = (
    update(results).where(_IS_UPLOAD).values(expires_at=bindparam("now")).returning(results.c.content_key)
)
_EXPIRED = (
    select(results.c.n, results.c.content_key)
    .where(results.c.content_key.is_not(None), results.c.expires_at <= bindparam("now"))
    .order_by(results.c.expires_at)
)
