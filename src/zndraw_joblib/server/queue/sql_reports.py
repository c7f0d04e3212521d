"""Start and complete held tasks by one statement, which is a transaction of its own on PostgreSQL.

A step has all its conditions in the statement. Steps that need more, such as a deadline, are left to `move`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Text,
    Update,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql

from zndraw_joblib.server.db.bulk import among, arrays, json_rows, padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.tables import Job, Task
from zndraw_joblib.server.process.ports import job_key
from zndraw_joblib.server.queue.sql_task_rows import CHUNK, if_small
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__
jobs = Job.__table__


class Step(NamedTuple):
    """A held task's way from `source` to `target`, for the owner of its worker.

    From claimed to completed it starts and ends at the same time. `worker` and `attempt` are those of the
    claim, or None for any. `result` is JSON.
    """

    id: UUID
    owner: str
    worker: UUID | None
    attempt: int | None
    source: TaskStatus
    target: TaskStatus
    result: str | None


class Stepped(NamedTuple):
    """A task after its step. `error` and `error_code` are those of its earlier attempt.

    `payload` is None if it was not wanted or is too large.
    """

    id: UUID
    job_name: str
    room_id: str
    created_by: str
    created_at: datetime
    started_at: datetime
    completed_at: datetime | None
    worker_id: UUID | None
    attempt: int
    unstarted: int
    lane: int
    error: str | None
    error_code: str | None
    max_in_flight: int | None
    payload: dict[str, Any] | None = None


async def step(tx: Transaction, steps: Sequence[Step], most_bytes: int = 0) -> list[Stepped]:
    """Write steps of different tasks; return the tasks that were written, with payloads up to `most_bytes`.

    A step whose task is not as assumed writes nothing. On PostgreSQL then none does, so that the caller can
    lock all tasks in their order; nor if a task is of a watched room.
    """
    columns = dict(zip(Step._fields, zip(*steps, strict=True), strict=True))
    given: dict[str, Any] = {"most_bytes": most_bytes} if most_bytes else {}
    if tx.is_sqlite:
        rows = await _step_on_sqlite(tx, columns, {**given, "at": await tx.now()})
    else:
        given |= {f"all_{name}": list(values) for name, values in columns.items()}
        given |= {"at": await tx.now() if tx.has_own_clock else None, "count": len(steps)}
        rows = list(await tx.execute_alone(_ON_POSTGRESQL[bool(most_bytes)], given))
        if rows:
            tx.record_watched(is_watched=False)
    written = [Stepped(*row) for row in rows]
    for task in written:
        if task.completed_at is not None:
            tx.record_freed(task.room_id, task.worker_id)
            if task.max_in_flight is not None:
                tx.wake(job_key(parse_job_name(task.job_name)), 1)
    return written


async def _step_on_sqlite(
    tx: Transaction, columns: Mapping[str, Sequence[Any]], given: dict[str, Any]
) -> Sequence[Any]:
    """Write steps. A value that is the same for all is one parameter: reading it from JSON costs more."""
    each = {name: values for name, values in columns.items() if values.count(values[0]) < len(values)}
    each = {"id": columns["id"], **each}
    same = {name: values[0] for name, values in columns.items() if name not in each}
    is_listed = len(each) == 1 and len(each["id"]) <= CHUNK
    given |= {f"all_{name}": value for name, value in same.items()}
    given |= {"ids": padded(each["id"])} if is_listed else {"rows": list(each.values())}
    statement = _on_sqlite(tuple(same), tuple(each), is_listed=is_listed, bodies="most_bytes" in given)
    return (await tx.execute(statement, given)).all()


_KINDS = {
    "id": tasks.c.id.type,
    "owner": Text(),
    "worker": tasks.c.worker_id.type,
    "attempt": Integer(),
    "source": Text(),
    "target": Text(),
    "result": Text(),
}
_KEPT = [tasks.c[name] for name in ("room_id", "created_by", "created_at", "started_at", "completed_at")]
_KEPT += [tasks.c[name] for name in ("worker_id", "attempt", "unstarted", "lane")]
_COMPLETED: ColumnElement[str] = literal_column(f"'{TaskStatus.COMPLETED}'")
_AT = bindparam("at", type_=UtcDateTime())
Given = dict[str, ColumnElement[Any]]


def _as_assumed(given: Given, timeout: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    return [
        tasks.c.worker_owner_id == given["owner"],
        tasks.c.worker_id == func.coalesce(given["worker"], tasks.c.worker_id),
        tasks.c.attempt == func.coalesce(given["attempt"], tasks.c.attempt),
        tasks.c.status == given["source"],
        or_(given["target"] == _COMPLETED, timeout.is_(None)),
    ]


def _written(given: Given, at: ColumnElement[Any]) -> dict[str, Any]:
    is_end = given["target"] == _COMPLETED
    return {
        "status": given["target"],
        "started_at": func.coalesce(tasks.c.started_at, at),
        "completed_at": case((is_end, at)),
        "error": case((~is_end, tasks.c.error)),
        "error_code": case((~is_end, tasks.c.error_code)),
        "deadline": null(),
        "result": given["result"],
    }


def _on_postgresql(*, bodies: bool) -> Update:
    """Return PostgreSQL's statement. It locks the tasks in their order.

    The lock reads the newest version of a row that another transaction has changed meanwhile. The UPDATE
    must not compare more than the key, because it compares the older version first.
    """
    rows = arrays(_KINDS)
    given: Given = {name: rows.c[name] for name in _KINDS}
    policy = cast(jobs.c.policy, postgresql.JSON)
    timeout: ColumnElement[Any] = policy.op("->>")(literal_column("'timeout_seconds'"))
    read = [tasks.c.seq, given["target"], given["result"], jobs.c.full_name, jobs.c.max_in_flight]
    read += [tasks.c.error, tasks.c.error_code, *([if_small(tasks.c.payload)] if bodies else [])]
    locked: CTE = (
        select(*read)
        .select_from(rows.join(tasks, tasks.c.id == given["id"]).join(jobs, jobs.c.id == tasks.c.job_id))
        .where(*_as_assumed(given, timeout), ~is_watched(tasks.c.room_id))
        .order_by(tasks.c.seq)
        .with_for_update(of=tasks)
        .cte("locked")
    )
    are_all = select(func.count()).select_from(locked).scalar_subquery() == bindparam("count")
    found = locked.c
    made = update(tasks).where(tasks.c.seq == found.seq, are_all)
    made = made.values(
        _written({"target": found.target, "result": found.result}, func.coalesce(_AT, func.now()))
    )
    returned = [tasks.c.id, found.full_name, *_KEPT, found.error, found.error_code, found.max_in_flight]
    return made.returning(*returned, *([found.payload] if bodies else []))


@lru_cache(maxsize=256)
def _on_sqlite(same: tuple[str, ...], each: tuple[str, ...], *, is_listed: bool, bodies: bool) -> Update:
    """Return SQLite's statement. RETURNING sees the new row, so a start and end must replace no error."""
    given: Given = {name: bindparam(f"all_{name}", type_=_KINDS[name]) for name in same}
    chosen: ColumnElement[bool] = among(tasks.c.id, bindparam("ids"))
    if not is_listed:
        given |= json_rows({name: _KINDS[name] for name in each})
        chosen = tasks.c.id == given["id"]
    policy, full_name, max_in_flight = [
        select(column).where(jobs.c.id == tasks.c.job_id).correlate(tasks).scalar_subquery()
        for column in (jobs.c.policy, jobs.c.full_name, jobs.c.max_in_flight)
    ]
    timeout: ColumnElement[Any] = policy.op("->>")(literal_column("'timeout_seconds'"))
    is_first = and_(tasks.c.error.is_(None), tasks.c.error_code.is_(None))
    is_one_step = or_(
        given["source"] != literal_column(f"'{TaskStatus.CLAIMED}'"), given["target"] != _COMPLETED
    )
    made = update(tasks).where(chosen, *_as_assumed(given, timeout), or_(is_one_step, is_first))
    returned = [tasks.c.id, full_name, *_KEPT, tasks.c.error, tasks.c.error_code, max_in_flight]
    returned += [if_small(tasks.c.payload)] if bodies else []
    return made.values(_written(given, _AT)).returning(*returned)


_ON_POSTGRESQL = {bodies: _on_postgresql(bodies=bodies) for bodies in (True, False)}
