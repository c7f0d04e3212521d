"""Compare the kept counts with the tasks and their results, and correct them, also while servers run.

Each statement sees one snapshot, in which every task is counted once. So a difference is an error, and adding
it to the counts stays right whatever other transactions add meanwhile.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Select,
    Table,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.errors import is_retriable
from zndraw_joblib.server.db.tables import Attempt, Job
from zndraw_joblib.server.queue import sql_counts
from zndraw_joblib.server.queue.sql_results import RESULT_BYTES, results, shares
from zndraw_joblib.server.queue.sql_task_rows import IS_PENDING, IS_SCHEDULED, QUEUED
from zndraw_joblib.wire.statuses import TaskStatus

tasks, jobs, rooms, blocks = sql_counts.tasks, Job.__table__, sql_counts.rooms, sql_counts.blocks
attempts = Attempt.__table__

_MAX_LISTED = 100
_ATTEMPTS = 10
# Distinguishes the lock of a repair from those of other applications on the same database.
_REPAIR_LOCK = 7318450926617730145


def _number(wanted: ColumnElement[bool], name: str) -> ColumnElement[int]:
    return func.sum(case((wanted, 1), else_=0)).label(name)


def _differences(actual: Select[Any], kept: Select[Any], key: Sequence[str]) -> Select[Any]:
    """Select what must be added to the kept counts, where that is not 0."""
    both = union_all(actual, kept).subquery()
    sums = [func.sum(both.c[name]).label(name) for name in both.c.keys() if name not in key]  # noqa: SIM118
    grouped = select(*[both.c[name] for name in key], *sums).group_by(*[both.c[name] for name in key])
    return grouped.having(or_(*[each.element != 0 for each in sums]))


_STATUSES = (TaskStatus.PENDING, TaskStatus.FAILED, TaskStatus.CANCELLED)
_BLOCK = sql_counts.block_of(tasks.c.seq).label("block")
_OF_ROOMS = _differences(
    select(
        *(tasks.c.room_id, tasks.c.job_id, func.count().label("total")),
        *[_number(tasks.c.status == status.value, status.value) for status in _STATUSES],
    ).group_by(tasks.c.room_id, tasks.c.job_id),
    select(rooms.c.room_id, rooms.c.job_id, *[-rooms.c[name] for name in ("total", *_STATUSES)]),
    ("room_id", "job_id"),
)
_OF_BLOCKS = _differences(
    select(tasks.c.job_id, tasks.c.lane, _BLOCK, func.count().label("queued"))
    .where(QUEUED)
    .group_by(tasks.c.job_id, tasks.c.lane, _BLOCK),
    select(blocks.c.job_id, blocks.c.lane, blocks.c.block, -blocks.c.queued),
    ("job_id", "lane", "block"),
)
_OF_JOBS = _differences(
    select(tasks.c.job_id, _number(QUEUED, "queued"), _number(IS_SCHEDULED, "scheduled"))
    .where(IS_PENDING)
    .group_by(tasks.c.job_id),
    select(jobs.c.id, -jobs.c.pending, -jobs.c.scheduled),
    ("job_id",),
)
_OF_USERS = _differences(
    select(results.c.user_id, func.sum(results.c.size + RESULT_BYTES).label("size"))
    .where(results.c.user_id.is_not(None), results.c.content_key.is_not(None))
    .group_by(results.c.user_id),
    select(shares.c.user_id, -shares.c.size),
    ("user_id",),
)
_UNSTARTED = (
    select(attempts.c.task_seq.label("seq"), func.count().label("number"))
    .where(attempts.c.claimed_at.is_not(None), attempts.c.started_at.is_(None))
    .group_by(attempts.c.task_seq)
    .subquery()
)
_OF_TASKS = (
    select(tasks.c.seq, (_UNSTARTED.c.number - tasks.c.unstarted).label("unstarted"))
    .join(_UNSTARTED, _UNSTARTED.c.seq == tasks.c.seq)
    .where(_UNSTARTED.c.number > tasks.c.unstarted)
)
_ALL = {
    "room": _OF_ROOMS,
    "block of a queue": _OF_BLOCKS,
    "job": _OF_JOBS,
    "user": _OF_USERS,
    "task": _OF_TASKS,
}


def wrong(connection: Connection) -> list[str]:
    """Return what is missing in each wrong count, at most a hundred of each kind."""
    found = []
    for kind, differences in _ALL.items():
        for row in connection.execute(differences.limit(_MAX_LISTED)):
            values = ", ".join(f"{name}={value}" for name, value in row._mapping.items())
            found.append(f"{kind}: {values}")
    return found


async def repair(database: Database) -> None:
    """Correct all counts.

    Each kind has a transaction of its own, because every writer locks jobs before the other counts. A
    transaction runs again after a deadlock with a writer that locks its rows in another order.
    """
    for correct in (_repair_jobs, _repair_blocks, _repair_rooms, _repair_shares, _repair_tasks):
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await database.run_sync(partial(_alone, correct=correct))
                break
            except DBAPIError as error:
                if not is_retriable(error) or attempt == _ATTEMPTS:
                    raise


def _alone(connection: Connection, correct: Callable[[Connection], None]) -> None:
    """Correct counts after any other repair has committed: two would both add the same difference.

    On SQLite a statement that writes sees no state before the last commit.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(select(func.pg_advisory_xact_lock(_REPAIR_LOCK)))
    correct(connection)


def _repair_jobs(connection: Connection) -> None:
    off = _OF_JOBS.subquery()
    values = {"pending": jobs.c.pending + off.c.queued, "scheduled": jobs.c.scheduled + off.c.scheduled}
    connection.execute(update(jobs).where(jobs.c.id == off.c.job_id).values(values))


def _repair_blocks(connection: Connection) -> None:
    in_order = _OF_BLOCKS.order_by("job_id", "lane", "block")
    connection.execute(_add_from(connection, blocks, in_order))


def _repair_rooms(connection: Connection) -> None:
    pruned = _OF_ROOMS.add_columns(literal(sql_counts.PRUNED).label("part")).order_by("room_id", "job_id")
    connection.execute(_add_from(connection, rooms, pruned))


def _repair_shares(connection: Connection) -> None:
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    off = _OF_USERS.order_by("user_id").subquery()
    # An INSERT checks that the size is not negative, also where it adds to an existing one.
    missing = insert(shares).from_select(["user_id", "size"], select(off.c.user_id, literal(0)).where(true()))
    connection.execute(missing.on_conflict_do_nothing())
    own = shares.c.user_id == off.c.user_id
    connection.execute(update(shares).where(own).values(size=shares.c.size + off.c.size))
    connection.execute(delete(shares).where(shares.c.size == 0))


def _repair_tasks(connection: Connection) -> None:
    off = _OF_TASKS.subquery()
    added = {"unstarted": tasks.c.unstarted + off.c.unstarted}
    connection.execute(update(tasks).where(tasks.c.seq == off.c.seq).values(added))


def _add_from(connection: Connection, table: Table, source: Select[Any]) -> Executable:
    insert = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert
    statement: Executable = sql_counts.adding(
        table, insert(table).from_select(source.selected_columns.keys(), source)
    )
    return statement
