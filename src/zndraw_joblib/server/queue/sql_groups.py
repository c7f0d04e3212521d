"""Groups of tasks, and the counts of their tasks in stripes, so that writers seldom wait for each other.

The open tasks of a group are the sum over its stripes. A transaction takes the tasks that it ends from one
stripe, its own or else another: if this has more than that, it changes this row alone, and is not the last,
because some stay. If none has, it locks the group and all its stripes, shares the open tasks among them anew,
and knows exactly whether none is left. Adding tasks locks the group for a share, so a group is not sealed
meanwhile.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from random import randrange
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import TaskEnd, Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, BOOLEAN, INTEGER, TEXT, statement
from zndraw_joblib.server.db.tables import SHOWN_OF_GROUP
from zndraw_joblib.server.process.ports import Wake, group_change_key
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_HELD
from zndraw_joblib.wire.statuses import StatusCounts, TaskStatus

# How many stripes the counts of a group have on PostgreSQL: more than servers usually write at the same time.
STRIPES = 8
_TASKS_PER_SHARE = 32
MAX_ERROR = 300
# The most running tasks whose progress is read.
_MAX_HELD = 10_000
_next_stripe = count(randrange(STRIPES))  # noqa: S311 - servers begin with different ones


class GroupRecord(NamedTuple):
    """A group's row."""

    n: int
    id: UUID
    room_id: str
    name: str | None
    created_by: str
    created_at: datetime
    sealed: bool
    expires_at: datetime | None
    due_at: datetime | None
    ended_at: datetime | None
    on_end: str | None
    on_end_schema: str | None
    on_end_task: UUID | None
    error: str | None
    task_id: UUID | None
    masked: str | None = None


class OpenGroup(NamedTuple):
    """What a submit needs of a group."""

    id: UUID
    room_id: str
    sealed: bool
    expires_at: datetime | None
    task_id: UUID | None


class GroupChange(NamedTuple):
    """By how much the counts of a group change. Tasks that end are `open` no longer: then it is negative."""

    open: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    def __add__(self, other: Any) -> "GroupChange":
        return GroupChange(*(one + more for one, more in zip(self, other, strict=True)))


COLUMNS = GroupRecord._fields
_COUNTS = GroupChange._fields
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM joblib_group"
_TYPES = {"stripe": INTEGER, "open": INTEGER, "completed": INTEGER, "failed": INTEGER, "cancelled": INTEGER}
_ADD = statement(
    f"""
INSERT INTO joblib_group ({", ".join(COLUMNS[1:])})
VALUES ({", ".join(f":{name}" for name in COLUMNS[1:])})
RETURNING n
""",
    "n",
)
_GET = statement(f"{_SELECT} WHERE id = :id", *COLUMNS)
# One transaction at a time may end a group. Those that add tasks do not wait for it; a seal waits for them.
_LOCK = statement(f"{_SELECT} WHERE id = ANY (:all_id) ORDER BY id\nFOR NO KEY UPDATE", *COLUMNS)
_LOCK_TO_SEAL = statement(f"{_SELECT} WHERE id = :id\nFOR UPDATE", *COLUMNS)
_SHARE = statement(
    """
SELECT id, room_id, sealed, expires_at, task_id FROM joblib_group WHERE id = ANY (:all_id) ORDER BY id
FOR KEY SHARE
""",
    *OpenGroup._fields,
)
_SHARES = statement(
    """
SELECT group_id, stripe, open FROM joblib_group_count WHERE group_id = ANY (:all_group_id)
ORDER BY group_id, stripe
FOR UPDATE
""",
    *("group_id", "stripe", "open"),
    **_TYPES,
)
_SUMS = statement(
    f"""
SELECT group_id, {", ".join(f"sum({name})" for name in _COUNTS)}
FROM joblib_group_count WHERE group_id = ANY (:all_group_id) GROUP BY group_id
""",
    *("group_id", *_COUNTS),
)
_HELD = statement(
    f"""
SELECT group_id, status, count(*) FROM joblib_task
WHERE {TASK_IS_HELD} AND {SHOWN_OF_GROUP} AND group_id = ANY (:all_group_id) GROUP BY group_id, status
""",
    *("group_id", "status", "number"),
)
_ADD_CHANGE = ",\n    ".join(f"{name} = joblib_group_count.{name} + excluded.{name}" for name in _COUNTS)
_COUNT = statement(
    f"""
INSERT INTO joblib_group_count (group_id, stripe, {", ".join(_COUNTS)})
VALUES (:group_id, :stripe, {", ".join(f":{name}" for name in _COUNTS)})
ON CONFLICT (group_id, stripe) DO UPDATE SET
    {_ADD_CHANGE}
""",
    **_TYPES,
)
# Whether one of these tasks has a webhook of its own: mostly none has, which saves a statement.
_HAVE_WEBHOOKS = """(
    SELECT task_seq FROM joblib_task_webhook WHERE task_seq = ANY (:all_seq) LIMIT 1
) IS NOT NULL"""
# The same of tasks for which others wait. Who adds such an edge has locked the task, which is locked here.
_HAVE_SUCCESSORS = """(
    SELECT source FROM joblib_edge WHERE source = ANY (:all_seq) AND is_open ORDER BY source LIMIT 1
) IS NOT NULL"""
# On SQLite those of all tasks from the first to the last: mostly there are none, and a list takes longer.
_MAY_HAVE_WEBHOOKS, _MAY_HAVE_SUCCESSORS = (
    condition.replace(f"{seq} = ANY (:all_seq)", f"{seq} >= :first_seq AND {seq} <= :last_seq")
    for condition, seq in ((_HAVE_WEBHOOKS, "task_seq"), (_HAVE_SUCCESSORS, "source"))
)
_TAKE_ON_SQLITE = statement(
    f"""
INSERT INTO joblib_group_count (group_id, {", ".join(_COUNTS)}, stripe)
SELECT value ->> 0, {", ".join(f"value ->> {index}" for index, _ in enumerate(_COUNTS, 1))}, 0
FROM json_each(:rows) WHERE true
ON CONFLICT (group_id, stripe) DO UPDATE SET
    {_ADD_CHANGE}
RETURNING group_id, open, {_MAY_HAVE_WEBHOOKS}, {_MAY_HAVE_SUCCESSORS}
""",
    *("group_id", "open", "have_webhooks", "have_successors"),
    rows=TEXT,
    first_seq=BIG_INTEGER,
    last_seq=BIG_INTEGER,
    have_webhooks=BOOLEAN,
    have_successors=BOOLEAN,
    **_TYPES,
)
# For one of `changes`: a stripe of its group with more open tasks than its `number`, if it can the own one.
STRIPE_OF_CHANGE = f"""
            SELECT counts.stripe FROM joblib_group_count AS counts
            WHERE counts.group_id = changes.group_id AND counts.open > changes.number
            ORDER BY (counts.stripe + {STRIPES} - :stripe) % {STRIPES} LIMIT 1"""
# The stripes are locked in the order of the groups, which the UPDATE alone would not do. None is locked if
# one of the groups seems to have none with enough open tasks: then all groups are locked before any stripe,
# also in order.
_TAKE = statement(
    f"""
WITH changes AS (
    SELECT *, -open AS number
    FROM unnest((SELECT :all_group_id), {", ".join(f"(SELECT :all_{name})" for name in _COUNTS)})
        AS changes (group_id, {", ".join(_COUNTS)})
),
stripes AS (
    SELECT changes.group_id, own.stripe
    FROM (
        SELECT group_id, number FROM changes
        WHERE (SELECT count(*) FROM changes) = (
            SELECT count(*) FROM changes WHERE ({STRIPE_OF_CHANGE}
            ) IS NOT NULL
        )
        ORDER BY group_id
    ) AS changes
    CROSS JOIN LATERAL ({STRIPE_OF_CHANGE}
        FOR NO KEY UPDATE
    ) AS own
),
taken AS (
    UPDATE joblib_group_count SET
        {", ".join(f"{name} = joblib_group_count.{name} + changes.{name}" for name in _COUNTS)}
    FROM stripes JOIN changes ON changes.group_id = stripes.group_id
    WHERE joblib_group_count.group_id = stripes.group_id AND joblib_group_count.stripe = stripes.stripe
        AND (SELECT count(*) FROM stripes) = (SELECT count(*) FROM changes)
    RETURNING joblib_group_count.group_id
)
SELECT changes.group_id, taken.group_id IS NOT NULL, always.have_webhooks, always.have_successors
FROM (SELECT {_HAVE_WEBHOOKS} AS have_webhooks, {_HAVE_SUCCESSORS} AS have_successors) AS always
LEFT JOIN changes ON true LEFT JOIN taken ON taken.group_id = changes.group_id
""",
    *("group_id", "is_taken", "have_webhooks", "have_successors"),
    is_taken=BOOLEAN,
    have_webhooks=BOOLEAN,
    have_successors=BOOLEAN,
    **_TYPES,
)
_END = statement(
    """
UPDATE joblib_group SET ended_at = :ended_at, due_at = NULL, on_end_task = :on_end_task, error = :error
WHERE id = :id
"""
)
_SEAL = statement("UPDATE joblib_group SET sealed = :sealed, due_at = NULL WHERE id = :id")
_ENDED = statement("SELECT id FROM joblib_group WHERE id = ANY (:all_id) AND ended_at IS NOT NULL", "id")
_WITH_ERROR = statement(
    f"{_SELECT} WHERE error IS NOT NULL AND ended_at > :since ORDER BY n DESC LIMIT :limit", *COLUMNS
)
_IS_OLD = """ended_at < :before AND (
    SELECT seq FROM joblib_task WHERE group_id >= joblib_group.id AND group_id <= joblib_group.id
    ORDER BY group_id, seq LIMIT 1
) IS NULL AND (
    SELECT task_seq FROM joblib_edge
    WHERE source >= -joblib_group.n AND source <= -joblib_group.n AND is_open
    ORDER BY source, task_seq LIMIT 1
) IS NULL"""
_OLD = statement(
    f"SELECT n, id, {_IS_OLD} AS is_old FROM joblib_group WHERE n > :n ORDER BY n LIMIT :limit",
    *("n", "id", "is_old"),
    before=UtcDateTime(),
    is_old=BOOLEAN,
)
# A submit shares the lock of a group that its task waits for: after it the next statement sees its edge.
_LOCK_OLD = statement("SELECT id FROM joblib_group WHERE id = ANY (:all_id) FOR UPDATE SKIP LOCKED", "id")
_STILL_OLD = statement(
    f"SELECT id FROM joblib_group WHERE id = ANY (:all_id) AND {_IS_OLD}", "id", before=UtcDateTime()
)
_PRUNE = {
    key: statement(f"DELETE FROM {table} WHERE {key} = ANY (:all_{key})")
    for table, key in (("joblib_group_count", "group_id"), ("joblib_group", "id"))
}
# The tasks of a group stay until the task that was submitted at its end has ended too: it may read their
# results; and while a task waits for the group: they may be retried. (EXISTS would read all tasks.)
IS_NEEDED = """(
    SELECT 1 FROM joblib_group WHERE joblib_group.id = joblib_task.group_id AND (
        joblib_group.ended_at IS NULL OR (
            SELECT 1 FROM joblib_task AS last WHERE last.id = joblib_group.on_end_task
                AND last.completed_at IS NULL LIMIT 1
        ) IS NOT NULL OR (
            SELECT 1 FROM joblib_edge WHERE source = -joblib_group.n AND is_open LIMIT 1
        ) IS NOT NULL
    ) LIMIT 1
) IS NOT NULL"""
# The first ones by themselves: in their order PostgreSQL may read the failed tasks of all groups.


def _failed(condition: str = "") -> Any:
    return statement(
        f"""
WITH failed AS MATERIALIZED (
    SELECT seq FROM joblib_task
    WHERE group_id = :group_id AND status = '{TaskStatus.FAILED}' AND {SHOWN_OF_GROUP}{condition}
)
SELECT joblib_task.id, joblib_job.full_name AS job_name, substr(joblib_task.error, 1, {MAX_ERROR}) AS error,
    joblib_task.error_code
FROM joblib_task JOIN joblib_job ON joblib_job.id = joblib_task.job_id
WHERE joblib_task.seq IN (SELECT seq FROM failed ORDER BY seq LIMIT :limit)
ORDER BY joblib_task.seq
""",
        *("id", "job_name", "error", "error_code"),
        job_name=TEXT,
    )


_FAILED, _FAILED_OF_USER = _failed(), _failed(" AND created_by = :user_id")
_OF_RESULTS = """(group_id, seq) > (:group_id, :seq) AND group_id <= :group_id
ORDER BY group_id, seq LIMIT :limit"""
_RESULT_SIZES = statement(
    f"SELECT coalesce(octet_length(result), 0) AS size FROM joblib_task WHERE {_OF_RESULTS}", "size"
)
_RESULTS = statement(
    f"""
SELECT seq, joblib_task.id, status, CAST(result AS text) AS result_json,
    substr(error, 1, {MAX_ERROR}) AS error, error_code, EXISTS (
        SELECT 1 FROM joblib_task_result WHERE task_seq = seq AND content_key IS NOT NULL
    ) AS stored
FROM joblib_task WHERE {_OF_RESULTS}
""",
    *("seq", "id", "status", "result_json", "error", "error_code", "stored"),
    result_json=TEXT,
    stored=BOOLEAN,
)
_PROGRESS = statement(
    f"""
SELECT (
    SELECT progress FROM joblib_attempt_detail
    WHERE task_seq = joblib_task.seq AND joblib_attempt_detail.attempt = joblib_task.attempt
) AS progress
FROM joblib_task WHERE status = '{TaskStatus.RUNNING}' AND {SHOWN_OF_GROUP} AND group_id = :group_id
LIMIT :limit
""",
    "progress",
)
_DUE = {
    has_begun: statement(
        f"{_SELECT} WHERE due_at <= :now{' AND (due_at, n) > (:due_at, :n)' if has_begun else ''}\n"
        "ORDER BY due_at, n LIMIT :limit",
        *COLUMNS,
    )
    for has_begun in (False, True)
}
_LOCK_DUE = statement(f"{_SELECT} WHERE id = :id AND due_at <= :now\nFOR UPDATE SKIP LOCKED", *COLUMNS)


async def add(tx: Transaction, group: GroupRecord) -> None:
    """Insert a group."""
    await tx.execute(_ADD, dict(zip(COLUMNS[1:], group[1:], strict=True)))


async def get(tx: Transaction, group_id: UUID) -> GroupRecord | None:
    """Return a group."""
    row = (await tx.execute(_GET, {"id": group_id})).first()
    return None if row is None else GroupRecord(*row)


async def lock_to_seal(tx: Transaction, group_id: UUID) -> GroupRecord | None:
    """Lock a group until the commit, so that no other transaction adds tasks, or may end it."""
    row = (await tx.execute(_LOCK_TO_SEAL, {"id": group_id})).first()
    return None if row is None else GroupRecord(*row)


async def lock(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, GroupRecord]:
    """Lock groups until the commit, so that no other transaction may end them."""
    rows = await tx.execute(_LOCK, {"all_id": padded(sorted(ids))})
    return {row.id: GroupRecord(*row) for row in rows}


async def share(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, OpenGroup]:
    """Return groups to add tasks to. None of them is sealed until the commit, except those that are."""
    return {row.id: OpenGroup(*row) for row in await tx.execute(_SHARE, {"all_id": padded(sorted(ids))})}


async def due(tx: Transaction, after: tuple[datetime, int] | None, limit: int) -> list[GroupRecord]:
    """Return groups whose `due_at` has passed, in its order, after a time and the `n` of a group."""
    params: dict[str, Any] = {"now": await tx.now(), "limit": limit}
    if after is not None:
        params |= {"due_at": after[0], "n": after[1]}
    return [GroupRecord(*row) for row in await tx.execute(_DUE[after is not None], params)]


async def lock_due(tx: Transaction, group_id: UUID) -> GroupRecord | None:
    """Lock and return a group whose `due_at` has passed, unless another transaction has locked it."""
    row = (await tx.execute(_LOCK_DUE, {"id": group_id, "now": await tx.now()})).first()
    return None if row is None else GroupRecord(*row)


async def seal(tx: Transaction, group: GroupRecord) -> None:
    """Seal a group that is locked."""
    _wake(tx, [group.id])
    await tx.execute(_SEAL, {"id": group.id, "sealed": True})


async def end(tx: Transaction, group: GroupRecord) -> None:
    """Write the end of a group that is locked, with its task or the error."""
    params = {name: getattr(group, name) for name in ("id", "ended_at", "on_end_task", "error")}
    await tx.execute(_END, params)


async def ended(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these groups that have ended."""
    return list((await tx.execute(_ENDED, {"all_id": padded(ids)})).scalars())


async def with_error(tx: Transaction, since: datetime, limit: int) -> list[GroupRecord]:
    """Return groups that have ended since a time without the task that they should submit, newest first."""
    return [GroupRecord(*row) for row in await tx.execute(_WITH_ERROR, {"since": since, "limit": limit})]


async def prune(tx: Transaction, before: datetime, after: int, limit: int) -> tuple[int, int | None]:
    """Delete groups without tasks that ended before a time, among the `limit` groups behind `after`.

    Return how many, and where to continue: None at the end.
    """
    rows = (await tx.execute(_OLD, {"before": before, "n": after, "limit": limit})).all()
    old = [row.id for row in rows if row.is_old]
    if old:
        locked = list((await tx.execute(_LOCK_OLD, {"all_id": padded(old)})).scalars())
        params = {"all_id": padded(locked), "before": before}
        old = list((await tx.execute(_STILL_OLD, params)).scalars())
    if old:
        for key, delete in _PRUNE.items():
            await tx.execute(delete, {f"all_{key}": padded(old)})
    return len(old), rows[-1].n if len(rows) == limit else None


async def failed(tx: Transaction, group_id: UUID, limit: int, user_id: str | None = None) -> Sequence[Any]:
    """Return the first failed tasks of a group; with `user_id` of those that this user has submitted."""
    params: dict[str, Any] = {"group_id": group_id, "limit": limit}
    if user_id is None:
        return (await tx.execute(_FAILED, params)).all()
    return (await tx.execute(_FAILED_OF_USER, params | {"user_id": user_id})).all()


async def result_sizes(tx: Transaction, group_id: UUID, after: int, limit: int) -> Sequence[int]:
    """Return how many bytes the results of tasks of a group have as JSON, in the order of `results`."""
    return list(
        (await tx.execute(_RESULT_SIZES, {"group_id": group_id, "seq": after, "limit": limit})).scalars()
    )


async def results(tx: Transaction, group_id: UUID, after: int, limit: int) -> Sequence[Any]:
    """Return tasks of a group in the order of submission, behind one, each with its result as JSON."""
    return (await tx.execute(_RESULTS, {"group_id": group_id, "seq": after, "limit": limit})).all()


async def progress(tx: Transaction, group_id: UUID) -> list[dict[str, Any]]:
    """Return the progress of the running tasks of a group that have reported some."""
    rows = await tx.execute(_PROGRESS, {"group_id": group_id, "limit": _MAX_HELD})
    return [progress for progress in rows.scalars() if progress is not None]


async def kept_counts(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, GroupChange]:
    """Return the kept counts of groups."""
    sums = dict.fromkeys(ids, GroupChange())
    rows = await tx.execute(_SUMS, {"all_group_id": padded(ids)})
    return sums | {row[0]: GroupChange(*map(int, row[1:])) for row in rows}


async def counts(
    tx: Transaction, ids: Sequence[UUID]
) -> tuple[dict[UUID, GroupChange], dict[UUID, StatusCounts]]:
    """Return the kept counts of groups, and how many of their tasks have each status; read in a snapshot."""
    sums = await kept_counts(tx, ids)
    held: dict[UUID, dict[str, int]] = {}
    if open_ids := [group_id for group_id in ids if sums[group_id].open > 0]:
        for group_id, status, number in await tx.execute(_HELD, {"all_group_id": padded(open_ids)}):
            held.setdefault(group_id, {})[status] = number
    return sums, {group_id: _by_status(sums[group_id], held.get(group_id, {})) for group_id in ids}


def _by_status(sums: GroupChange, held: Mapping[str, int]) -> StatusCounts:
    claimed, running = held.get(TaskStatus.CLAIMED, 0), held.get(TaskStatus.RUNNING, 0)
    return StatusCounts(
        pending=max(0, sums.open - claimed - running),
        claimed=claimed,
        running=running,
        completed=sums.completed,
        failed=sums.failed,
        cancelled=sums.cancelled,
    )


async def add_tasks(tx: Transaction, numbers: Mapping[UUID, int]) -> None:
    """Count new tasks of groups, which the transaction has locked for a share."""
    _wake(tx, numbers)
    rows = {
        (group_id, stripe): GroupChange(share)
        for group_id, number in numbers.items()
        for stripe, share in shares(tx, number).items()
    }
    await _add_counts(tx, rows)


async def reopen(tx: Transaction, ended: Iterable[tuple[UUID, TaskStatus]]) -> None:
    """Count tasks of groups that had these statuses and were retried."""
    changes: dict[UUID, GroupChange] = {}
    for group_id, status in ended:
        changes[group_id] = changes.get(group_id, GroupChange()) + GroupChange(1, **{status.value: -1})
    own = stripe(tx)
    _wake(tx, changes)
    await _add_counts(tx, {(group_id, own): change for group_id, change in changes.items()})


def _wake(tx: Transaction, ids: Iterable[UUID]) -> None:
    """Wake those that follow groups."""
    tx.wakes += [Wake(group_change_key(group_id), None) for group_id in ids]


def record_counted(tx: Transaction, ids: Iterable[UUID]) -> None:
    """Record that a statement has counted ends of tasks of these groups, which were not their last ones."""
    tx.has_counted = True
    _wake(tx, ids)


def stripe(tx: Transaction) -> int:
    """Return the stripe of a transaction. They take turns, so that few use the same at the same time."""
    return 0 if tx.is_sqlite else next(_next_stripe) % STRIPES


def shares(tx: Transaction, number: int) -> dict[int, int]:
    """Return how many of new tasks to count in which stripes: of many in several, but not in all.

    While the transaction that adds them commits, others count ends in those that it leaves out.
    """
    parts = 1 if tx.is_sqlite else min(STRIPES // 2, 1 + number // _TASKS_PER_SHARE)
    part, rest = divmod(number, parts)
    first = stripe(tx)
    return dict(sorted(((first + index) % STRIPES, part + (index < rest)) for index in range(parts)))


class Taken(NamedTuple):
    """The groups that have no open task now, and what the tasks may have: webhooks of their own, successors.

    On SQLite tasks that are in no group may always have both, and others may if a task between them has.
    """

    emptied: dict[UUID, GroupRecord]
    may_have_webhooks: bool
    may_have_successors: bool


async def take(tx: Transaction, ended: Mapping[int, TaskEnd]) -> Taken:
    """Count the ends of tasks, which have been written. Return groups that have no open task now, locked.

    Those are all that this transaction may have ended: whether they are sealed is for the caller.
    """
    seqs, changes = sorted(seq for seq, end in ended.items() if end.linked), _changes(ended.values())
    params: dict[str, Any]
    if tx.is_sqlite:
        if not changes:
            return Taken({}, may_have_webhooks=True, may_have_successors=True)
        first, last = (seqs[0], seqs[-1]) if seqs else (0, -1)
        params = {"first_seq": first, "last_seq": last, "rows": _as_json(changes)}
        rows = (await tx.execute(_TAKE_ON_SQLITE, params)).all()
        _wake(tx, [row.group_id for row in rows])
        emptied = [row.group_id for row in rows if row.open <= 0]
        return Taken(await lock(tx, emptied) if emptied else {}, *_may_have(rows))
    own = stripe(tx)
    # Without tasks of groups there is one row, which has no group.
    params = {"all_seq": seqs, "stripe": own, "all_group_id": list(changes)}
    params |= {f"all_{name}": [getattr(change, name) for change in changes.values()] for name in _COUNTS}
    both = (await tx.execute(_TAKE, params)).all()
    rows = [row for row in both if row.group_id is not None]
    _wake(tx, changes)
    remaining = {row.group_id: changes[row.group_id] for row in rows if not row.is_taken}
    return Taken(await _take_exactly(tx, remaining, own) if remaining else {}, *_may_have(both))


def _changes(ends: Iterable[TaskEnd]) -> dict[UUID, GroupChange]:
    """Return what the ends of tasks change in the counts of their groups."""
    changes: dict[UUID, GroupChange] = {}
    for (status, group_id, _), number in Counter(ends).items():
        if group_id is not None:
            change = GroupChange(-number, **{status.value: number})
            changes[group_id] = changes.get(group_id, GroupChange()) + change
    return changes


def _as_json(changes: Mapping[UUID, GroupChange]) -> str:
    return to_json([(group_id.hex, *change) for group_id, change in changes.items()]).decode()


def _may_have(rows: Sequence[Any]) -> tuple[bool, bool]:
    return bool(rows[0].have_webhooks), bool(rows[0].have_successors)


async def _take_exactly(
    tx: Transaction, ended: Mapping[UUID, GroupChange], stripe: int
) -> dict[UUID, GroupRecord]:
    groups = await lock(tx, ended)
    shares: dict[UUID, dict[int, int]] = {group_id: {stripe: 0} for group_id in ended}
    # A statement of its own, whose snapshot has what was committed before the locks.
    for row in await tx.execute(_SHARES, {"all_group_id": padded(sorted(ended))}):
        shares[row.group_id][row.stripe] = row.open
    rows, emptied = dict[tuple[UUID, int], GroupChange](), dict[UUID, GroupRecord]()
    for group_id, change in ended.items():
        own = shares[group_id]
        remaining = sum(own.values()) + change.open
        # As few as can take the next ends of as many tasks, so that only the last ones lock the group.
        number = max(1, min(len(own), remaining // (2 * -change.open)))
        part, rest = divmod(max(0, remaining), number)
        for index, (key, before) in enumerate(sorted(own.items())):
            share = part + (index < rest) if index < number else 0
            rows[group_id, key] = GroupChange(share - before)
        rows[group_id, stripe] += change._replace(open=min(0, remaining))
        if remaining <= 0 and group_id in groups:
            emptied[group_id] = groups[group_id]
    await _add_counts(tx, rows)
    return emptied


async def _add_counts(tx: Transaction, rows: Mapping[tuple[UUID, int], GroupChange]) -> None:
    params = [
        {"group_id": group_id, "stripe": stripe, **rows[group_id, stripe]._asdict()}
        for group_id, stripe in sorted(rows)
    ]
    await tx.execute(_COUNT, params)
