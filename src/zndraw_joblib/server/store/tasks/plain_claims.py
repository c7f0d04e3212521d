"""Claim tasks for workers that all have one queue, or none, with one statement on PostgreSQL.

It checks what makes these claims plain, and writes nothing if they are not.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Float,
    ScalarSelect,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    distinct,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects import postgresql

from zndraw_joblib.contract.names import INTERNAL
from zndraw_joblib.contract.policy import JobPolicy
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store.bulk import arrays
from zndraw_joblib.server.store.column_types import UtcDateTime
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.room_events import is_watched
from zndraw_joblib.server.store.tables import Job, Task, Worker, WorkerJobLink
from zndraw_joblib.server.store.tasks import counts
from zndraw_joblib.server.store.tasks.records import IS_HELD, IS_PENDING, in_queue

tasks = Task.__table__
jobs = Job.__table__
workers = Worker.__table__
links = WorkerJobLink.__table__


class Claimant(NamedTuple):
    """A worker that claims, and the owner that it must have.

    Its heartbeat is written if it is older than `age` seconds. `is_marked`: its claims have ids.
    """

    claimant: UUID
    owner: str
    age: float
    is_marked: bool


class Slot(NamedTuple):
    """Capacity of a worker for one task. With `is_started` the task is also started."""

    worker: UUID
    holder: str
    claim: UUID | None
    is_started: bool


class ClaimedTask(NamedTuple):
    """A task that was claimed now."""

    id: UUID
    job_name: str
    room_id: str
    created_by: str
    payload: dict[str, Any]
    created_at: datetime
    attempt: int
    error: str | None
    error_code: str | None
    lane: int


class FilledSlot(NamedTuple):
    """What a slot got. Without a task: the full names of its worker's jobs, and why there is none.

    `is_contended`: a task is pending, but another transaction has locked it.
    """

    task: ClaimedTask | None
    job_names: Sequence[str]
    is_paused: bool
    is_contended: bool


async def claim(
    tx: Transaction, claimants: Sequence[Claimant], slots: Sequence[Slot]
) -> list[FilledSlot] | None:
    """Claim the first tasks of the only queue of these workers, in the order of the slots.

    Return None if the claims are not plain, after which nothing was written: a worker is draining, has a
    limit, or got tasks for one of these ids before; their jobs with tasks are several, or one with a limit;
    or a task has expired or is of a watched room.
    """
    given = {
        **_by_column(Claimant._fields, claimants),
        **_by_column(Slot._fields, slots),
        "at": await tx.now() if tx.has_own_clock else None,
        "workers": [each.claimant for each in claimants],
        "claims": [slot.claim for slot in slots if slot.claim is not None],
    }
    rows = await tx.execute_alone(_CLAIM, given)
    if not rows:
        return None
    tx.record_now(rows)
    tx.record_watched(is_watched=False)
    return [
        FilledSlot(
            None if row.id is None else ClaimedTask(*row[: len(ClaimedTask._fields)]),
            row.job_names or (),
            bool(row.is_paused),
            is_contended=row.has_queue and bool(row.left),
        )
        for row in rows
    ]


def _by_column(names: Sequence[str], rows: Sequence[Any]) -> dict[str, list[Any]]:
    return {f"all_{name}": list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _any_of(name: str) -> ColumnElement[Any]:
    return any_(bindparam(name, type_=postgresql.ARRAY(workers.c.id.type, dimensions=1)))


def _count(rows: CTE) -> ScalarSelect[Any]:
    return select(func.count()).select_from(rows).scalar_subquery()


def _seen() -> CTE:
    """Return the workers without a lock: whether they are plain, and up to two of their queues."""
    queue = (
        select(jobs.c.id)
        .join_from(links, jobs, links.c.job_id == jobs.c.id)
        .where(links.c.worker_id == workers.c.id)
        .where(jobs.c.pending > 0, jobs.c.room_id != INTERNAL, ~jobs.c.paused)
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
    is_late = workers.c.last_heartbeat < _AT - _seconds(_CLAIMANTS.c.age)
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
        .cte("seen")
    )


def _ready(seen: CTE) -> CTE:
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


def _chosen(ready: CTE, demand: CTE) -> CTE:
    """Return the first tasks of the queue, which it locks; it skips locked ones."""
    names = ("seq", "lane", "expires_at", "room_id")
    queue = select(ready.c.queue).scalar_subquery()
    return (
        select(*[tasks.c[name] for name in names])
        .where(in_queue(queue))
        .order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq)
        .limit(_count(demand))
        .with_for_update(of=tasks, skip_locked=True)
        .cte("chosen")
    )


def _counted(ready: CTE, chosen: CTE) -> CTE:
    """Lock the job and subtract the chosen tasks; return no row if it is paused or has a limit now."""
    policy = cast(jobs.c.policy, postgresql.JSON())
    start, end = (
        policy.op("->>", return_type=Text())(literal_column(f"'{name}'"))
        for name in ("start_timeout_seconds", "timeout_seconds")
    )
    known_start = func.coalesce(start, literal_column(f"'{JobPolicy().start_timeout_seconds}'"))
    is_not_plain = exists().where(or_(chosen.c.expires_at <= _AT, is_watched(chosen.c.room_id)))
    return (
        update(jobs)
        .where(
            jobs.c.id == select(ready.c.queue).scalar_subquery(),
            ~jobs.c.paused,
            jobs.c.max_in_flight.is_(None),
        )
        .where(exists(chosen.c.seq), ~is_not_plain)
        .values(pending=jobs.c.pending - _count(chosen))
        .returning(
            jobs.c.id,
            jobs.c.full_name,
            jobs.c.pending.label("left"),
            (_AT + _seconds(func.nullif(cast(known_start, Float()), 0))).label("start_by"),
            (_AT + _seconds(cast(end, Float()))).label("end_by"),
        )
        .cte("counted")
    )


def _written(chosen: CTE, counted: CTE, demand: CTE) -> CTE:
    """Write the claims over the chosen tasks, in order."""
    # Lists of equal order, so that no join compares each task with each slot.
    places = (chosen.c.lane, chosen.c.seq)
    found = select(_listed(chosen.c.seq, *places)).subquery("found")
    names = ("place", *Slot._fields)
    wanted = select(*[_listed(demand.c[name], demand.c.place) for name in names]).subquery("wanted")
    lists = func.unnest(*found.c, *wanted.c)
    each = lists.table_valued(
        *[column(c.key, c.type.item_type) for c in (*found.c, *wanted.c)], name="each"
    ).render_derived()
    given = (
        select(each, counted.c.start_by, counted.c.end_by)
        .select_from(found.join(wanted, true()).join(counted, true()).join(each, true()))
        .cte("given")
    )
    values = {
        "status": case((given.c.is_started, TaskStatus.RUNNING.value), else_=TaskStatus.CLAIMED.value),
        "worker_id": given.c.worker,
        "worker_owner_id": given.c.holder,
        "claim_id": given.c.claim,
        "attempt": tasks.c.attempt + 1,
        "claimed_at": _AT,
        "started_at": case((given.c.is_started, _AT)),
        "deadline": case((given.c.is_started, given.c.end_by), else_=given.c.start_by),
        "expires_at": null(),
    }
    returned = [tasks.c[name] for name in ("seq", "job_id", *ClaimedTask._fields) if name != "job_name"]
    return (
        update(tasks)
        # Another condition would be compared with the version at the start of the statement first. The task
        # is counted already, and may have returned to its queue since then with another attempt.
        .where(tasks.c.seq == given.c.seq, IS_PENDING)
        .values(values)
        .returning(given.c.place, *returned)
        .cte("written")
    )


def _listed(value: ColumnElement[Any], *order: ColumnElement[Any]) -> ColumnElement[Any]:
    made = func.array_agg(postgresql.aggregate_order_by(value, *order))
    return type_coerce(made, postgresql.ARRAY(value.type)).label(value.key)


def _beat(seen: CTE, ready: CTE, counted: CTE) -> CTE:
    """Write late heartbeats, and a new version of the rows of workers whose claims have ids."""
    is_claimed = exists(counted.c.id)
    late = (
        select(seen.c.id, seen.c.is_late)
        .join_from(seen, ready, true())
        .where(or_(ready.c.queue.is_(None), is_claimed))
        .where(or_(seen.c.is_late, and_(seen.c.is_marked, is_claimed)))
        .subquery("late")
    )
    return (
        update(workers)
        .where(workers.c.id == late.c.id)
        .values(last_heartbeat=case((late.c.is_late, _AT), else_=workers.c.last_heartbeat))
        .returning(workers.c.id)
        .cte("beat")
    )


def _claim() -> Select[Any]:
    seen = _seen()
    ready = _ready(seen)
    demand = (
        select(_SLOTS)
        .join_from(_SLOTS, seen, seen.c.id == _SLOTS.c.worker)
        .where(func.cardinality(seen.c.queues) > 0)
        .cte("demand")
    )
    chosen = _chosen(ready, demand)
    counted = _counted(ready, chosen)
    written = _written(chosen, counted, demand)
    served = links.join(jobs, links.c.job_id == jobs.c.id)
    of_worker = and_(links.c.worker_id == seen.c.id, jobs.c.room_id != INTERNAL)
    names = (
        select(jobs.c.full_name).select_from(served).where(of_worker).order_by(jobs.c.id).scalar_subquery()
    )
    paused = select(true()).select_from(served).where(of_worker, jobs.c.paused, jobs.c.pending > 0).limit(1)
    got = written.c.id.is_not(None)
    columns = [counted.c.full_name if name == "job_name" else written.c[name] for name in ClaimedTask._fields]
    return (
        select(
            *columns,
            case((~got, func.array(names, type_=postgresql.ARRAY(Text())))).label("job_names"),
            case((~got, paused.scalar_subquery())).label("is_paused"),
            (func.cardinality(seen.c.queues) > 0).label("has_queue"),
            (counted.c.left > 0).label("left"),
            func.now().label("now"),
        )
        .select_from(
            _SLOTS.join(seen, seen.c.id == _SLOTS.c.worker)
            .join(ready, true())
            .outerjoin(counted, true())
            .outerjoin(written, written.c.place == _SLOTS.c.place)
        )
        .where(or_(ready.c.queue.is_(None), counted.c.id.is_not(None)))
        .order_by(_SLOTS.c.place)
        .add_cte(*counts.keep_claimed(written), _beat(seen, ready, counted))
    )


def _seconds(number: ColumnElement[Any]) -> ColumnElement[Any]:
    zero: ColumnElement[int] = literal_column("0")
    return func.make_interval(zero, zero, zero, zero, zero, zero, number)


_AT = func.coalesce(bindparam("at", type_=UtcDateTime()), func.now())
_IDS = postgresql.ARRAY(workers.c.id.type, dimensions=1)
_VERSION: ColumnElement[Any] = literal_column("joblib_worker.ctid").label("version")
_ID = workers.c.id.type
_CLAIMANTS = arrays({"claimant": _ID, "owner": Text(), "age": Float(), "is_marked": Boolean()}).alias(
    "claimants"
)
_SLOTS = arrays(
    {"worker": _ID, "holder": Text(), "claim": tasks.c.claim_id.type, "is_started": Boolean()}
).alias("slots")
_CLAIM = _claim()
