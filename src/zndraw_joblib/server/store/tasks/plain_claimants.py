"""The workers that claim with one statement on PostgreSQL: whether they are plain, and their queue."""

from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Float,
    ScalarSelect,
    Text,
    and_,
    any_,
    bindparam,
    case,
    distinct,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.dialects import postgresql

from zndraw_joblib.contract.names import GLOBAL, INTERNAL
from zndraw_joblib.server.store.bulk import arrays
from zndraw_joblib.server.store.column_types import UtcDateTime
from zndraw_joblib.server.store.tables import Job, Task, Worker, WorkerJobLink
from zndraw_joblib.server.store.tasks.records import IS_HELD

tasks = Task.__table__
jobs = Job.__table__
workers = Worker.__table__
links = WorkerJobLink.__table__


class Claimant(NamedTuple):
    """A worker that claims, the owner that it must have, and whether it may serve the jobs of ``@global``.

    Its heartbeat is written if it is older than `age` seconds. `is_marked`: its claims have ids.
    """

    claimant: UUID
    owner: str
    serves_global: bool
    age: float
    is_marked: bool


def _any_of(name: str) -> ColumnElement[Any]:
    return any_(bindparam(name, type_=postgresql.ARRAY(workers.c.id.type, dimensions=1)))


def _count(rows: CTE) -> ScalarSelect[Any]:
    return select(func.count()).select_from(rows).scalar_subquery()


def seen_workers() -> CTE:
    """Return the workers without a lock: whether they are plain, and up to two of their queues."""
    queue = (
        select(jobs.c.id)
        .join_from(links, jobs, links.c.job_id == jobs.c.id)
        .where(links.c.worker_id == workers.c.id)
        .where(jobs.c.pending > 0, jobs.c.room_id != INTERNAL, ~jobs.c.paused)
        .where(or_(_CLAIMANTS.c.serves_global, jobs.c.room_id != GLOBAL))
        .limit(2)
    )
    # An EXISTS may become a hash of all held tasks.
    repeated = select(tasks.c.seq).where(IS_HELD, tasks.c.worker_id == workers.c.id).limit(1)
    repeated = repeated.where(tasks.c.claim_id == _any_of("claims"))
    is_plain = and_(
        workers.c.owner_id == _CLAIMANTS.c.owner,
        ~workers.c.draining,
        workers.c.max_tasks.is_(None),
        case((_CLAIMANTS.c.is_marked, repeated.scalar_subquery().is_(None)), else_=true()),
    )
    is_late = workers.c.last_heartbeat < AT - seconds(_CLAIMANTS.c.age)
    return (
        select(
            workers.c.id,
            _VERSION,
            is_plain.label("is_plain"),
            is_late.label("is_late"),
            _CLAIMANTS.c.is_marked,
            func.array(queue.scalar_subquery(), type_=postgresql.ARRAY(jobs.c.id.type)).label("queues"),
        )
        .join_from(_CLAIMANTS, workers, workers.c.id == _CLAIMANTS.c.claimant)
        # So that it reads these workers alone, however few PostgreSQL knows of.
        .where(workers.c.id == _any_of("workers"))
        .cte("seen")
    )


def ready_workers(seen: CTE) -> CTE:
    """Return one row if the workers are plain, and their queue; lock them if something is to be written.

    A worker whose row has changed since this statement began is not plain: a claim with an id, or one that
    ended its registration, may have committed meanwhile.
    """
    queue = seen.c.queues[1]
    state = select(
        and_(
            func.count() == func.cardinality(bindparam("workers", type_=_IDS)),
            func.bool_and(seen.c.is_plain),
            func.max(func.cardinality(seen.c.queues)) <= 1,
            func.count(distinct(queue)) <= 1,
        ).label("is_plain"),
        func.bool_or(or_(seen.c.is_late, func.cardinality(seen.c.queues) > 0)).label("must_lock"),
        select(queue).where(queue.is_not(None)).limit(1).scalar_subquery().label("queue"),
    ).cte("state")
    must_lock = select(and_(state.c.is_plain, state.c.must_lock)).scalar_subquery()
    locked = (
        select(workers.c.id, _VERSION)
        .where(workers.c.id == _any_of("workers"), must_lock)
        .order_by(workers.c.id)
        .with_for_update(key_share=True)
        .cte("locked")
    )
    is_same = and_(locked.c.id == seen.c.id, locked.c.version == seen.c.version)
    unchanged = select(func.count()).join_from(locked, seen, is_same).scalar_subquery()
    return (
        select(state.c.queue)
        .where(state.c.is_plain, or_(~state.c.must_lock, unchanged == _count(seen)))
        .cte("ready")
    )


def seconds(number: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a number of seconds as an interval."""
    zero: ColumnElement[int] = literal_column("0")
    return func.make_interval(zero, zero, zero, zero, zero, zero, number)


AT = func.coalesce(bindparam("at", type_=UtcDateTime()), func.now())
_IDS = postgresql.ARRAY(workers.c.id.type, dimensions=1)
_VERSION: ColumnElement[Any] = literal_column("joblib_worker.ctid").label("version")
_ID = workers.c.id.type
_CLAIMANTS = arrays(
    {"claimant": _ID, "owner": Text(), "serves_global": Boolean(), "age": Float(), "is_marked": Boolean()}
).alias("claimants")
