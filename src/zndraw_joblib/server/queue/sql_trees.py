"""Tags of tasks, the parents of new tasks, and the tasks of a tree.

A parent is older than its children, so its `seq` is smaller: one scan of a tree in the order of `seq` meets
each task after its parent, however deep the tree is.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from zndraw_joblib.server.db.bulk import by_column, padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BIG_INTEGER, BOOLEAN, statement
from zndraw_joblib.server.process.ports import Page
from zndraw_joblib.server.queue.sql_task_rows import CHUNK, TaskRecord
from zndraw_joblib.wire.statuses import TaskStatus


class Parent(NamedTuple):
    """A task as the parent of others."""

    id: UUID
    room_id: str
    status: str
    root: UUID | None


class Top(NamedTuple):
    """A task below which others are cancelled."""

    seq: int
    id: UUID
    room_id: str
    root: UUID | None
    created_by: str
    worker_owner_id: str | None


class TreeTask(NamedTuple):
    """A task of a tree, and whether it has ended."""

    seq: int
    id: UUID
    parent: UUID
    has_ended: bool


# Until the commit no other transaction cancels a parent: that locks its row with FOR UPDATE. Claims, starts
# and completions lock it with FOR NO KEY UPDATE, and do not wait.
_PARENTS = statement(
    f"""
SELECT {", ".join(Parent._fields)} FROM joblib_task WHERE id = ANY (:all_id) ORDER BY seq
FOR KEY SHARE
""",
    *Parent._fields,
)
_ADD_ON_SQLITE = statement(
    """
INSERT INTO joblib_task_tag (task_seq, tag, room_id)
SELECT seq, :tag, room_id FROM joblib_task WHERE id = :id
"""
)
_ADD = statement(
    """
INSERT INTO joblib_task_tag (task_seq, tag, room_id)
SELECT joblib_task.seq, new.tag, joblib_task.room_id
FROM unnest((SELECT :all_id), (SELECT :all_tag)) AS new (id, tag) JOIN joblib_task ON joblib_task.id = new.id
"""
)
_REMOVE = statement("DELETE FROM joblib_task_tag WHERE task_seq = ANY (:all_task_seq)")
_TOP = statement(f"SELECT {', '.join(Top._fields)} FROM joblib_task WHERE id = :id", *Top._fields)
# A subquery instead of EXISTS, of which PostgreSQL may make a hash of all tasks. In the order of the index:
# with an equality it may look for the first one in the whole table.
_WITH_TREES = statement(
    """
SELECT id FROM joblib_task AS top
WHERE id = ANY (:all_id) AND (
    SELECT seq FROM joblib_task
    WHERE joblib_task.root >= top.id AND joblib_task.root <= top.id ORDER BY joblib_task.root, seq LIMIT 1
) IS NOT NULL
""",
    "id",
)
# Beside an equality PostgreSQL knows that the primary key has the same order, and may read the history by it.
_SCAN = statement(
    """
SELECT seq, id, parent, completed_at IS NOT NULL AS has_ended FROM joblib_task
WHERE (root, seq) > (:root, :after) AND root <= :root ORDER BY root, seq LIMIT :limit
""",
    *TreeTask._fields,
    after=BIG_INTEGER,
    has_ended=BOOLEAN,
)


async def lock_parents(tx: Transaction, ids: Iterable[UUID]) -> dict[UUID, Parent]:
    """Return those of these tasks that exist, by id, and let no other transaction cancel or delete them."""
    parents: dict[UUID, Parent] = {}
    unique_ids = sorted(set(ids))
    for start in range(0, len(unique_ids), CHUNK):
        rows = await tx.execute(_PARENTS, {"all_id": padded(unique_ids[start : start + CHUNK])})
        parents |= {row.id: Parent(*row) for row in rows}
    return parents


async def add_tags(tx: Transaction, tasks: Iterable[TaskRecord]) -> None:
    """Write the tags of tasks that this transaction has inserted or changed."""
    rows = [{"id": task.id, "tag": tag} for task in tasks if task.tags for tag in task.tags]
    if rows and tx.is_sqlite:
        await tx.execute(_ADD_ON_SQLITE, rows)
    elif rows:
        await tx.execute(_ADD, by_column(rows))


async def remove_tags(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete the tags of these tasks."""
    for start in range(0, len(seqs), CHUNK):
        await tx.execute(_REMOVE, {"all_task_seq": padded(seqs[start : start + CHUNK])})


async def top(tx: Transaction, task_id: UUID) -> Top | None:
    """Return a task below which others may be; None if it was deleted."""
    row = (await tx.execute(_TOP, {"id": task_id})).one_or_none()
    return None if row is None else Top(*row)


async def with_trees(tx: Transaction, ids: Sequence[UUID]) -> set[UUID]:
    """Return those of these tasks that are the first of a tree with others."""
    firsts: set[UUID] = set()
    for start in range(0, len(ids), CHUNK):
        firsts.update(
            (await tx.execute(_WITH_TREES, {"all_id": padded(ids[start : start + CHUNK])})).scalars()
        )
    return firsts


async def scan(tx: Transaction, root: UUID, after: int, limit: int) -> list[TreeTask]:
    """Return the tasks below the first task of a tree that follow a `seq`, oldest first, at most `limit`."""
    return [TreeTask(*row) for row in await tx.execute(_SCAN, {"root": root, "after": after, "limit": limit})]


# The tasks of a room that have a tag, a parent or a root.


class Link(NamedTuple):
    """Which tasks of a room to list: those with this tag, this parent and this root, if they are not None."""

    tag: str | None = None
    parent: UUID | None = None
    root: UUID | None = None


# The most tasks of a list that are counted, and looked at for their status, their job or other links.
MAX_COUNTED = 10_000
# No planner makes a join of a subquery that is compared.
_OF_TAGGED = "(SELECT {} FROM joblib_task WHERE joblib_task.seq = newest.seq)"
_HAS_TAG = "EXISTS (SELECT 1 FROM joblib_task_tag WHERE task_seq = newest.seq AND tag = :tag)"


async def page(
    tx: Transaction,
    room_id: str,
    status: TaskStatus | None,
    link: Link,
    part: Page,
    job_ids: Sequence[UUID] = (),
) -> tuple[list[int], int]:
    """Return the numbers of a page of a room's tasks, newest first, and the count of all, up to 10,000.

    Of one status, job or several links, only the newest 10,000 tasks of the tag, the parent or the tree are
    looked at.
    """
    params: dict[str, Any] = {name: value for name, value in link._asdict().items() if value is not None}
    seqs, count = _page(status, tuple(params), of_job=bool(job_ids))
    params |= {"room_id": room_id, **({"all_job_id": padded(job_ids)} if job_ids else {})}
    total, room = (await tx.execute(count, params)).one()
    # All tasks of a tree are of one room.
    if room != room_id:
        return [], 0
    rows = await tx.execute(seqs, {**params, "limit": part.limit, "offset": part.offset})
    return list(rows.scalars()), total


@cache
def _page(status: TaskStatus | None, names: tuple[str, ...], *, of_job: bool) -> tuple[Any, Any]:
    """Return the statements for the numbers of a page and for the count, along the index of one link."""
    conditions = []
    if names == ("tag",):
        columns, table, order = "task_seq AS seq, room_id", "joblib_task_tag", "task_seq DESC"
        indexed, column = "room_id = :room_id AND tag = :tag", _OF_TAGGED
    else:
        first, *others = [name for name in ("parent", "root") if name in names]
        columns, table, order = "seq, room_id, status, job_id, parent, root", "joblib_task", "seq DESC"
        indexed, column = f"{first} >= :{first} AND {first} <= :{first}", "newest.{}"
        order = f"{first} DESC, {order}"
        conditions += [f"newest.{name} = :{name}" for name in others]
        conditions += [_HAS_TAG] if "tag" in names else []
    if status is not None:
        conditions.append(f"{column.format('status')} = '{status}'")
    if of_job:
        conditions.append(f"{column.format('job_id')} = ANY (:all_job_id)")
    along = f"SELECT {columns} FROM {table} WHERE {indexed} ORDER BY {order}"
    # Nothing else than the index decides within the limit, so it bounds what is read.
    newest = f"FROM ({along} LIMIT {MAX_COUNTED}) AS newest"
    newest += f" WHERE {' AND '.join(conditions)}" if conditions else ""
    seqs = f"SELECT seq {newest} ORDER BY seq DESC" if conditions else along
    count = f"SELECT count(*), min(room_id) {newest}"
    return (
        statement(f"{seqs} LIMIT :limit OFFSET :offset", "seq", limit=BIG_INTEGER),
        statement(count, "number", "room_id"),
    )
