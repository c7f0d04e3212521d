"""Fetch the next tasks of queues, without scanning their backlog."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Float,
    Integer,
    ScalarSelect,
    Select,
    Subquery,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    distinct,
    exists,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql

from zndraw_joblib.server.db.bulk import among, arrays, by_column, byte_size, padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.tables import Job, Task, Worker, WorkerJobLink
from zndraw_joblib.server.queue import sql_counts
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    IS_HELD,
    IS_PENDING,
    Place,
    TaskRecord,
    fetch_records,
    in_queue,
    select_records,
)
from zndraw_joblib.wire.names import GLOBAL, INTERNAL
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import TaskStatus

tasks = Task.__table__

Choose = Callable[[AbstractSet[int]], Awaitable[tuple[list[int], list[int]]]]

# A claim passes over about this many tasks that other transactions have locked.
_MAX_SKIPPED = 256
# SQLite takes 500 branches of a compound select.
BRANCHES = 100
_LOCK_OLDEST = {
    bodies: select_records(bodies=bodies)
    .where(in_queue(bindparam("job")))
    .order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq)
    .limit(bindparam("count"))
    .with_for_update(of=tasks, skip_locked=True)
    for bodies in (True, False)
}
# SQLite takes 32766 parameters.
_MAX_SIZES = 2048
_IS_GIVEN = among(tasks.c.seq, bindparam("seqs"))
_LOCK_BY_SEQ = {
    bodies: select_records(bodies=bodies)
    .where(_IS_GIVEN)
    .order_by(tasks.c.seq)
    .with_for_update(of=tasks, skip_locked=True)
    for bodies in (True, False)
}
_PAYLOADS = select(tasks.c.seq, tasks.c.payload).where(_IS_GIVEN)
# On PostgreSQL `octet_length` does not read a large value; SQLite has it only since 3.43.
_SIZES = {
    is_sqlite: select(tasks.c.seq, size(tasks.c.payload)).where(_IS_GIVEN)
    for is_sqlite, size in ((True, func.length), (False, func.octet_length))
}


async def lock_oldest(tx: Transaction, job_id: UUID, count: int, *, bodies: bool = True) -> list[TaskRecord]:
    """Lock the first tasks in the queue of a job; skip those that another transaction has locked."""
    return await fetch_records(tx, _LOCK_OLDEST[bodies], job=job_id, count=count)


async def lock_queued(tx: Transaction, seqs: Sequence[int], *, bodies: bool = True) -> dict[int, TaskRecord]:
    """Lock those of these tasks that are in their queue, by `seq`; skip locked ones."""
    # Filtered here: with the status in the statement, the planner scans an index of all pending tasks.
    found = await fetch_records(tx, _LOCK_BY_SEQ[bodies], seqs=padded(seqs))
    return {record.seq: record for record in found if record.is_queued}


async def payload_sizes(tx: Transaction, seqs: Sequence[int]) -> dict[int, int]:
    """Return about how many bytes the payload of each of these tasks has."""
    found: dict[int, int] = {}
    for start in range(0, len(seqs), _MAX_SIZES):
        given = {"seqs": padded(seqs[start : start + _MAX_SIZES])}
        found |= {seq: size for seq, size in await tx.execute(_SIZES[tx.is_sqlite], given)}
    return found


async def load_payloads(tx: Transaction, records: Mapping[int, TaskRecord]) -> None:
    """Read the payloads of records that were locked without."""
    seqs = list(records)
    for start in range(0, len(seqs), CHUNK):
        for seq, payload in await tx.execute(_PAYLOADS, {"seqs": padded(seqs[start : start + CHUNK])}):
            records[seq].payload = payload


async def lock_chosen(tx: Transaction, choose: Choose, *, bodies: bool = True) -> dict[int, TaskRecord]:
    """Lock the tasks that `choose` returns, by `seq`; if others hold some, choose again without those.

    `choose` takes the tasks to skip; it returns its choice, and those that it would choose next.
    """
    skipped: set[int] = set()
    while True:
        chosen, following = await choose(skipped)
        tested = [*chosen, *following[: len(skipped)]]
        locked = await lock_queued(tx, tested, bodies=bodies) if tested else {}
        lost = set(tested) - set(locked)
        skipped |= lost
        if lost.isdisjoint(chosen) or len(skipped) > _MAX_SKIPPED:
            return {seq: locked[seq] for seq in chosen if seq in locked}


async def oldest(tx: Transaction, demand: Mapping[UUID, int]) -> dict[UUID, list[Place]]:
    """Return the places of each queue's first tasks, as many as `demand` asks for, without a lock.

    Each queue is read by itself: a condition over several jobs makes PostgreSQL sort the whole backlog.
    """
    found: dict[UUID, list[Place]] = {job_id: [] for job_id in demand}
    if tx.is_sqlite:
        branches = [select(_oldest_of(job_id, count).subquery()) for job_id, count in demand.items()]
        for start in range(0, len(branches), BRANCHES):
            for job_id, lane, seq in await tx.execute(union_all(*branches[start : start + BRANCHES])):
                found[job_id].append((lane, seq))
    else:
        rows = by_column([{"job": job_id, "count": count} for job_id, count in demand.items()])
        for job_id, lane, seq in await tx.execute(_OLDEST_OF_EACH, rows):
            found[job_id].append((lane, seq))
    return {job_id: sorted(places) for job_id, places in found.items()}


def _oldest_of(job_id: Any, count: Any) -> Select[Any]:
    queue = select(tasks.c.job_id, tasks.c.lane, tasks.c.seq).where(in_queue(job_id))
    return queue.order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq).limit(count)


_DEMAND = arrays({"job": tasks.c.job_id.type, "count": tasks.c.attempt.type})
_OLDEST_OF_EACH = select(_oldest_of(_DEMAND.c.job, _DEMAND.c.count).lateral()).select_from(_DEMAND)


# The workers that claim with one statement on PostgreSQL: whether they are plain, and their queue.

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


# Claim tasks for workers that all have one queue, or none, with one statement on PostgreSQL.
#
# It checks what makes these claims plain, and writes nothing if they are not.


class Demand(NamedTuple):
    """A claim for `most` tasks at most. With `is_started` they are also started."""

    worker: UUID
    holder: str
    claim: UUID | None
    is_started: bool
    most: int


class ClaimedTask(NamedTuple):
    """A task that was claimed now."""

    id: UUID
    job_name: str
    room_id: str
    created_by: str
    payload: dict[str, Any]
    created_at: datetime
    attempt: int
    unstarted: int
    error: str | None
    error_code: str | None
    lane: int
    traceparent: str | None


class Found(NamedTuple):
    """What a claim got. Without tasks: the full names of its worker's jobs, and why there are none.

    `is_contended`: a task is pending, but another transaction has locked it.
    """

    tasks: Sequence[ClaimedTask]
    job_names: Sequence[str]
    is_paused: bool
    is_contended: bool


async def claim_plain(
    tx: Transaction, claimants: Sequence[Claimant], demands: Sequence[Demand], most_bytes: int | None = None
) -> list[Found] | None:
    """Claim the first tasks of the only queue of these workers, in the order of the demands.

    Return None if the claims are not plain, after which nothing was written: a worker is draining, has a
    limit, or got tasks for one of these ids before; their jobs with tasks are several, or one with a limit;
    a task has expired or is of a watched room; or the payloads have more than `most_bytes` together.
    """
    given = {
        **_by_column(Claimant._fields, claimants),
        **_by_column(Demand._fields, demands),
        "at": await tx.now() if tx.has_own_clock else None,
        "workers": [each.claimant for each in claimants],
        "claims": [demand.claim for demand in demands if demand.claim is not None],
        "most_bytes": most_bytes,
    }
    rows = await tx.execute_alone(_CLAIM, given)
    if not rows:
        return None
    tx.record_now(rows)
    tx.record_watched(is_watched=False)
    return [_found(list(rows)) for _, rows in groupby(rows, attrgetter("place"))]


def _found(rows: Sequence[Any]) -> Found:
    first = rows[0]
    return Found(
        [ClaimedTask(*row[: len(ClaimedTask._fields)]) for row in rows if row.id is not None],
        first.job_names or (),
        bool(first.is_paused),
        is_contended=first.has_queue and bool(first.left),
    )


def _by_column(names: Sequence[str], rows: Sequence[Any]) -> dict[str, list[Any]]:
    return {f"all_{name}": list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _chosen(ready: CTE, demand: CTE) -> CTE:
    """Return the first tasks of the queue, which it locks; it skips locked ones."""
    names = ("seq", "id", "lane", "expires_at", "room_id")
    queue = select(ready.c.queue).scalar_subquery()
    most = select(func.coalesce(func.sum(demand.c.most), literal_column("0"))).scalar_subquery()
    return (
        select(*[tasks.c[name] for name in names], byte_size(tasks.c.payload).label("size"))
        .where(in_queue(queue))
        .order_by(tasks.c.job_id, tasks.c.lane, tasks.c.seq)
        .limit(most)
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
    is_not_plain = exists().where(or_(chosen.c.expires_at <= AT, is_watched(chosen.c.room_id)))
    size = select(func.sum(chosen.c.size)).scalar_subquery()
    number = select(func.count()).select_from(chosen).scalar_subquery()
    return (
        update(jobs)
        .where(
            jobs.c.id == select(ready.c.queue).scalar_subquery(),
            ~jobs.c.paused,
            jobs.c.max_in_flight.is_(None),
        )
        .where(exists(chosen.c.seq), ~is_not_plain, or_(_MOST_BYTES.is_(None), size <= _MOST_BYTES))
        .values(pending=jobs.c.pending - number)
        .returning(
            jobs.c.id,
            jobs.c.full_name,
            jobs.c.pending.label("left"),
            (AT + seconds(func.nullif(cast(known_start, Float()), 0))).label("start_by"),
            (AT + seconds(cast(end, Float()))).label("end_by"),
        )
        .cte("counted")
    )


def _lists(chosen: CTE, counted: CTE, demand: CTE) -> CTE:
    """Return one row of sorted lists, in which each task finds its rank, and each rank its claim.

    To join tasks and claims, PostgreSQL might compare each with each.
    """
    rank = func.row_number().over(order_by=(chosen.c.lane, chosen.c.seq)).label("rank")
    ranked = select(chosen.c.seq, rank).subquery("ranked")
    of_tasks = [_listed(column, ranked.c.seq) for column in ranked.c]
    names = ("place", *Demand._fields[:-1], "first")
    of_claims = [_listed(demand.c[name], demand.c.place) for name in names]
    found, wanted = select(*of_tasks).subquery("found"), select(*of_claims).subquery("wanted")
    return (
        select(*found.c, *wanted.c, counted.c.start_by, counted.c.end_by)
        .select_from(found.join(wanted, true()).join(counted, true()))
        .cte("lists")
    )


def _written(chosen: CTE, counted: CTE, demand: CTE) -> CTE:
    """Write the claims over the chosen tasks, in order; return the tasks with the places of their claims."""
    lists = _lists(chosen, counted, demand)
    own_rank = lists.c.rank[func.width_bucket(tasks.c.seq, lists.c.seq)]
    own = func.width_bucket(own_rank, lists.c.first, type_=Integer())
    is_started = lists.c.is_started[own]
    values = {
        "status": case((is_started, TaskStatus.RUNNING.value), else_=TaskStatus.CLAIMED.value),
        "worker_id": lists.c.worker[own],
        "worker_owner_id": lists.c.holder[own],
        "claim_id": lists.c.claim[own],
        "attempt": tasks.c.attempt + 1,
        "claimed_at": AT,
        "started_at": case((is_started, AT)),
        "deadline": case((is_started, lists.c.end_by), else_=lists.c.start_by),
        "expires_at": null(),
    }
    returned = [tasks.c[name] for name in ("seq", "job_id", *ClaimedTask._fields) if name != "job_name"]
    # The array of ids, which only one index has, and conditions that no index has: otherwise a plan that is
    # made while there are few tasks, and kept, reads the whole queue, or all tasks by an index that has seq.
    ids = func.array(select(chosen.c.id).scalar_subquery(), type_=postgresql.ARRAY(tasks.c.id.type))
    return (
        update(tasks)
        # Another condition would be compared with the version at the start of the statement first. The task
        # is counted already, and may have returned to its queue since then with another attempt.
        .where(tasks.c.id == any_(ids), case((IS_PENDING, tasks.c.seq >= lists.c.seq[1]), else_=false()))
        .values(values)
        .returning(lists.c.place[own].label("place"), own_rank.label("rank"), *returned)
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
        .values(last_heartbeat=case((late.c.is_late, AT), else_=workers.c.last_heartbeat))
        .returning(workers.c.id)
        .cte("beat")
    )


def _answered(seen: CTE, ready: CTE, counted: CTE) -> Subquery:
    """Return a row for each claim, none if they are not plain."""
    return (
        select(
            _DEMANDS.c.place,
            seen.c.id.label("worker"),
            (func.cardinality(seen.c.queues) > 0).label("has_queue"),
            (counted.c.left > 0).label("left"),
            counted.c.full_name,
        )
        .select_from(
            _DEMANDS.join(seen, seen.c.id == _DEMANDS.c.worker).join(ready, true()).outerjoin(counted, true())
        )
        .where(or_(ready.c.queue.is_(None), counted.c.id.is_not(None)))
        .subquery("answered")
    )


def _claim() -> Select[Any]:
    seen = seen_workers()
    ready = ready_workers(seen)
    before = func.sum(_DEMANDS.c.most).over(order_by=_DEMANDS.c.place) - _DEMANDS.c.most
    demand = (
        select(_DEMANDS, (before + 1).label("first"))
        .join_from(_DEMANDS, seen, seen.c.id == _DEMANDS.c.worker)
        .where(func.cardinality(seen.c.queues) > 0)
        .cte("demand")
    )
    chosen = _chosen(ready, demand)
    counted = _counted(ready, chosen)
    written = _written(chosen, counted, demand)
    answered = _answered(seen, ready, counted)
    served = links.join(jobs, links.c.job_id == jobs.c.id)
    of_worker = and_(links.c.worker_id == answered.c.worker, jobs.c.room_id != INTERNAL)
    names = (
        select(jobs.c.full_name).select_from(served).where(of_worker).order_by(jobs.c.id).scalar_subquery()
    )
    paused = select(true()).select_from(served).where(of_worker, jobs.c.paused, jobs.c.pending > 0).limit(1)
    is_empty = written.c.id.is_(None)
    columns = [
        answered.c.full_name if name == "job_name" else written.c[name] for name in ClaimedTask._fields
    ]
    return (
        select(
            *columns,
            case((is_empty, func.array(names, type_=postgresql.ARRAY(Text())))).label("job_names"),
            case((is_empty, paused.scalar_subquery())).label("is_paused"),
            answered.c.place,
            answered.c.has_queue,
            answered.c.left,
            func.now().label("now"),
        )
        # A full join is never done by comparing each row with each.
        .select_from(answered.join(written, written.c.place == answered.c.place, full=True))
        .order_by(answered.c.place, written.c.rank)
        .add_cte(*sql_counts.keep_claimed(written), _beat(seen, ready, counted))
    )


_DEMANDS = arrays(
    {
        "worker": workers.c.id.type,
        "holder": Text(),
        "claim": tasks.c.claim_id.type,
        "is_started": Boolean(),
        "most": Integer(),
    }
).alias("demands")
_MOST_BYTES = bindparam("most_bytes", type_=Integer())
_CLAIM = _claim()
