"""Claim: fetch and lock the first tasks of queues without scanning their backlog.

On PostgreSQL `claim_single_statement` claims for workers that all have one queue, or none.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.statements import BOOLEAN, FLOAT, INTEGER, TEXT, UUID_TYPE, statement
from zndraw_joblib.server.queue import sql_counts, sql_workers
from zndraw_joblib.server.queue.sql_jobs import policy_of
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    RECORD_NAMES,
    SELECT_RECORDS,
    TASK_IS_HELD,
    TASK_IS_PENDING,
    TASK_IS_QUEUED,
    Place,
    ShortRows,
    TaskRecord,
    TaskRow,
    fetch_records,
    row_columns,
)
from zndraw_joblib.server.queue.sql_workers import JOBS_DIGEST, WorkerRecord
from zndraw_joblib.wire.names import GLOBAL, INTERNAL
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import TaskStatus

Choose = Callable[[AbstractSet[int]], Awaitable[tuple[list[int], list[int]]]]

# A claim passes over about this many tasks that other transactions have locked.
_MAX_SKIPPED = 256
# SQLite takes 32766 parameters.
_MAX_SIZES = 2048
# A claim of one task reads so many of its worker's queues at first: some may be paused or locked.
FIRST_QUEUES = 8


def _first_tasks(columns: str, job_id: str, limit: str) -> str:
    """Return the SELECT of the first tasks in the queue of a job.

    The job is a range, so that only the index of the queues has the order. With an equality PostgreSQL may
    scan the primary key, and with it the whole history.
    """
    return f"""
    SELECT {columns} FROM joblib_task
    WHERE joblib_task.job_id >= {job_id} AND joblib_task.job_id <= {job_id} AND {TASK_IS_QUEUED}
    ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq
    LIMIT {limit}"""


_LOCK_OLDEST = {
    bodies: statement(
        f"""{SELECT_RECORDS[bodies]}
WHERE joblib_task.job_id >= :job_id AND joblib_task.job_id <= :job_id AND {TASK_IS_QUEUED}
ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq
LIMIT :count
FOR UPDATE OF joblib_task SKIP LOCKED
""",
        *RECORD_NAMES,
    )
    for bodies in (True, False)
}
_LOCK_BY_SEQ = {
    bodies: statement(
        f"""{SELECT_RECORDS[bodies]}
WHERE joblib_task.seq = ANY (:all_seq)
ORDER BY joblib_task.seq
FOR UPDATE OF joblib_task SKIP LOCKED
""",
        *RECORD_NAMES,
    )
    for bodies in (True, False)
}
_PAYLOADS = statement("SELECT seq, payload FROM joblib_task WHERE seq = ANY (:all_seq)", *("seq", "payload"))
_SIZES = statement(
    "SELECT seq, octet_length(payload) FROM joblib_task WHERE seq = ANY (:all_seq)", *("seq", "size")
)
# Each queue is read by itself: a condition over several jobs makes PostgreSQL sort the whole backlog.
_OLDEST = statement(
    f"""
SELECT first_tasks.job_id, first_tasks.lane, first_tasks.seq
FROM unnest((SELECT :all_job_id), (SELECT :all_count)) AS demand (job_id, count)
CROSS JOIN LATERAL ({_first_tasks("job_id, lane, seq", "demand.job_id", "demand.count")}
) AS first_tasks
""",
    *("job_id", "lane", "seq"),
)
_OLDEST_ON_SQLITE = statement(
    f"""
SELECT first_tasks.job_id, first_tasks.lane, first_tasks.seq
FROM json_each(:jobs) AS demand
JOIN joblib_task AS first_tasks
    ON first_tasks.seq IN ({_first_tasks("joblib_task.seq", "demand.value", ":count")})
""",
    *("job_id", "lane", "seq"),
    jobs=TEXT,
)


# A task's place in one number, so that SQLite sorts queues by their first tasks without reading these rows.
_SEQ_BITS = 48
_LAST_PLACE = 2**63 - 1
_FIRST_PLACE = f"""coalesce((
            SELECT lane * {1 << _SEQ_BITS} + seq FROM joblib_task
            WHERE joblib_task.job_id = joblib_worker_job.job_id AND {TASK_IS_QUEUED}
            ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq LIMIT 1
        ), {_LAST_PLACE})"""
_HEAD_NAMES = ("worker_id", "job_id", "lane", "seq", "pending", "paused", "max_in_flight", "room_id")
_HEAD_COLUMNS = ", ".join(f"heads.{name}" for name in _HEAD_NAMES[1:])
_HEADS_ON_SQLITE = statement(
    f"""
SELECT workers.value, joblib_task.job_id, joblib_task.lane, joblib_task.seq,
    joblib_job.pending, joblib_job.paused, joblib_job.max_in_flight, joblib_job.room_id
FROM json_each(:workers) AS workers
CROSS JOIN joblib_task ON joblib_task.seq IN (
    SELECT place & {(1 << _SEQ_BITS) - 1}
    FROM (
        SELECT {_FIRST_PLACE} AS place FROM joblib_worker_job
        WHERE worker_id = workers.value ORDER BY place LIMIT :limit
    )
    WHERE place < {_LAST_PLACE}
)
CROSS JOIN joblib_job ON joblib_job.id = joblib_task.job_id
""",
    *_HEAD_NAMES,
    workers=TEXT,
)


def _heads(worker_id: str, limit: str) -> str:
    """Return PostgreSQL's SELECT of the queues of a worker with the first tasks.

    The OFFSET makes it look up each job of the worker, instead of joining all workers with all their jobs. A
    queue that is empty is not read: its index may still have the tasks that left it.
    """
    return f"""
    SELECT {_HEAD_COLUMNS}
    FROM (
        SELECT joblib_worker_job.job_id, first_task.lane, first_task.seq,
            queue.pending, queue.paused, queue.max_in_flight, queue.room_id
        FROM joblib_worker_job
        CROSS JOIN LATERAL (
            SELECT pending, paused, max_in_flight, room_id FROM joblib_job
            WHERE joblib_job.id = joblib_worker_job.job_id AND pending > 0
            OFFSET 0
        ) AS queue
        CROSS JOIN LATERAL ({_first_tasks("lane, seq", "joblib_worker_job.job_id", "1")}
        ) AS first_task
        WHERE joblib_worker_job.worker_id = {worker_id}
        OFFSET 0
    ) AS heads
    ORDER BY heads.lane, heads.seq
    LIMIT {limit}"""


# Workers of the same jobs have the same queues, which are read for one of them.
_HEADS_OF_SETS = f"""
WITH sets AS (
    SELECT worker_id, {sql_workers.JOBS_DIGEST} AS digest FROM joblib_worker_job
    WHERE worker_id = ANY (:all_id) GROUP BY worker_id
),
heads AS (
    SELECT first_workers.digest, heads.*
    FROM (SELECT DISTINCT ON (digest) digest, worker_id AS id FROM sets) AS first_workers
    CROSS JOIN LATERAL ({_heads("first_workers.id", ":limit")}
    ) AS heads
)"""
_LOCK_WITH_HEADS = statement(
    f"""{_HEADS_OF_SETS}
SELECT joblib_worker.id, joblib_worker.owner_id, joblib_worker.last_heartbeat, joblib_worker.draining,
    joblib_worker.max_tasks, (
        SELECT seen.last_heartbeat FROM joblib_worker AS seen WHERE seen.id = joblib_worker.id
    ) AS heartbeat_seen,
    {_HEAD_COLUMNS}, now()
FROM joblib_worker
LEFT JOIN sets ON sets.worker_id = joblib_worker.id
LEFT JOIN heads ON heads.digest = sets.digest
WHERE joblib_worker.id = ANY (:all_id)
ORDER BY joblib_worker.id
FOR NO KEY UPDATE OF joblib_worker
""",
    *(*WorkerRecord._fields, "heartbeat_seen", *_HEAD_NAMES[1:], "now"),
    heartbeat_seen=UtcDateTime(),
)
_HEADS_OF_WORKERS = statement(
    f"""{_HEADS_OF_SETS}
SELECT sets.worker_id, {_HEAD_COLUMNS} FROM sets JOIN heads ON heads.digest = sets.digest
""",
    *_HEAD_NAMES,
)


class QueueHead(NamedTuple):
    """A job with queued tasks, and the place of the first of them."""

    job_id: UUID
    lane: int
    seq: int
    pending: int
    paused: bool
    max_in_flight: int | None
    room_id: str


class WorkerQueues(NamedTuple):
    """The queues of a worker with the first tasks, in their order. `is_all`: its other queues are empty."""

    heads: list[QueueHead]
    is_all: bool


async def lock_with_queues(
    tx: Transaction, ids: Sequence[UUID], limit: int, first_queues: Mapping[UUID, WorkerQueues]
) -> tuple[dict[UUID, WorkerRecord], dict[UUID, WorkerQueues]]:
    """Lock workers, as `sql_workers.lock` does. Return them, and up to `limit` queues of each.

    `first_queues` has those that this transaction has read on SQLite.

    On PostgreSQL this is one statement. If it waits for a lock, it returns the new version of the worker's
    row, but links and jobs as they were before. A transaction that unlinks a job changes the heartbeat too;
    if the heartbeat differs between the two versions, the queues are read again.
    """
    if tx.is_sqlite:
        locked = await sql_workers.lock(tx, ids)
        if limit <= FIRST_QUEUES and locked.keys() <= first_queues.keys():
            return locked, dict(first_queues)
        return locked, await queues(tx, list(locked), limit)
    rows = (await tx.execute(_LOCK_WITH_HEADS, {"all_id": ids, "limit": limit})).all()
    tx.record_now(rows)
    size = len(WorkerRecord._fields)
    locked = {row.id: WorkerRecord(*row[:size]) for row in rows}
    if any(row.last_heartbeat != row.heartbeat_seen for row in rows):
        return locked, await queues(tx, list(locked), limit)
    heads = [(row.id, *row[size + 1 : -1]) for row in rows if row.job_id is not None]
    return locked, _by_worker(list(locked), heads, limit)


async def queues(tx: Transaction, worker_ids: Sequence[UUID], limit: int) -> dict[UUID, WorkerQueues]:
    """Return up to `limit` queues of each of these workers, those with the first tasks."""
    if not tx.is_sqlite:
        rows = await tx.execute(_HEADS_OF_WORKERS, {"all_id": worker_ids, "limit": limit})
        return _by_worker(worker_ids, rows, limit)
    # Workers of the same jobs have the same queues, which are read for one of them.
    digests = await sql_workers.job_digests(tx, worker_ids) if len(worker_ids) > 1 else {}
    first_of = {digests.get(worker_id): worker_id for worker_id in worker_ids}
    workers = to_json([worker_id.hex for worker_id in first_of.values()]).decode()
    rows = await tx.execute(_HEADS_ON_SQLITE, {"workers": workers, "limit": limit})
    by_worker = _by_worker(list(first_of.values()), rows, limit)
    return {worker_id: by_worker[first_of[digests.get(worker_id)]] for worker_id in worker_ids}


def _by_worker(
    worker_ids: Sequence[UUID], rows: Iterable[Sequence[Any]], limit: int
) -> dict[UUID, WorkerQueues]:
    heads: dict[UUID, list[QueueHead]] = {worker_id: [] for worker_id in worker_ids}
    for worker_id, *head in rows:
        heads[worker_id].append(QueueHead(*head))
    for of_worker in heads.values():
        of_worker.sort(key=itemgetter(1, 2))
    return {worker_id: WorkerQueues(own, len(own) < limit) for worker_id, own in heads.items()}


async def lock_oldest(tx: Transaction, job_id: UUID, count: int, *, bodies: bool = True) -> list[TaskRecord]:
    """Lock the first tasks in the queue of a job; skip those that another transaction has locked."""
    return await fetch_records(tx, _LOCK_OLDEST[bodies], job_id=job_id, count=count)


async def lock_queued(tx: Transaction, seqs: Sequence[int], *, bodies: bool = True) -> dict[int, TaskRecord]:
    """Lock those of these tasks that are in their queue, by `seq`; skip locked ones."""
    # Filtered here: with the status in the statement, the planner scans an index of all pending tasks.
    records = await fetch_records(tx, _LOCK_BY_SEQ[bodies], all_seq=padded(seqs))
    return {record.seq: record for record in records if record.is_queued}


async def payload_sizes(tx: Transaction, seqs: Sequence[int]) -> dict[int, int]:
    """Return about how many bytes the payload of each of these tasks has."""
    sizes: dict[int, int] = {}
    for start in range(0, len(seqs), _MAX_SIZES):
        params = {"all_seq": padded(seqs[start : start + _MAX_SIZES])}
        sizes |= {seq: size for seq, size in await tx.execute(_SIZES, params)}
    return sizes


async def load_payloads(tx: Transaction, records: Mapping[int, TaskRecord]) -> None:
    """Read the payloads of records that were locked without."""
    seqs = list(records)
    for start in range(0, len(seqs), CHUNK):
        for seq, payload in await tx.execute(_PAYLOADS, {"all_seq": padded(seqs[start : start + CHUNK])}):
            records[seq].payload = payload


async def lock_chosen(tx: Transaction, choose: Choose, *, bodies: bool = True) -> dict[int, TaskRecord]:
    """Lock the tasks that `choose` returns, by `seq`; if others hold some, choose again without those.

    `choose` takes the tasks to skip; it returns its choice, and those that it would choose next.
    """
    skipped: set[int] = set()
    while True:
        seqs, following = await choose(skipped)
        tested = [*seqs, *following[: len(skipped)]]
        locked = await lock_queued(tx, tested, bodies=bodies) if tested else {}
        lost = set(tested) - set(locked)
        skipped |= lost
        if lost.isdisjoint(seqs) or len(skipped) > _MAX_SKIPPED:
            return {seq: locked[seq] for seq in seqs if seq in locked}


async def oldest(tx: Transaction, demand: Mapping[UUID, int]) -> dict[UUID, list[Place]]:
    """Return the places of each queue's first tasks, as many as `demand` asks for, without a lock."""
    places: dict[UUID, list[Place]] = {job_id: [] for job_id in demand}
    if tx.is_sqlite:
        # A LIMIT of SQLite is the same for all jobs: one statement for each power of two.
        jobs_of: dict[int, list[str]] = {}
        for job_id, count in demand.items():
            jobs_of.setdefault(1 << max(count - 1, 0).bit_length(), []).append(job_id.hex)
        for count, jobs in jobs_of.items():
            params = {"jobs": to_json(jobs).decode(), "count": count}
            for job_id, lane, seq in await tx.execute(_OLDEST_ON_SQLITE, params):
                places[job_id].append((lane, seq))
    else:
        params = {"all_job_id": list(demand), "all_count": list(demand.values())}
        for job_id, lane, seq in await tx.execute(_OLDEST, params):
            places[job_id].append((lane, seq))
    return {job_id: sorted(of_job)[: demand[job_id]] for job_id, of_job in places.items()}


# Claim with one statement on PostgreSQL, and with few short ones on SQLite. They check their conditions, and
# write nothing if these do not hold.


class Claimant(NamedTuple):
    """A worker that claims, the owner that it must have, and whether it may serve the jobs of ``@global``.

    Its heartbeat is written if it is older than `age` seconds. `is_marked`: its claims have ids.
    """

    claimant: UUID
    owner: str
    serves_global: bool
    age: float
    is_marked: bool


class Demand(NamedTuple):
    """A claim for up to `task_limit` tasks. With `is_started` they are also started."""

    worker: UUID
    holder: str
    claim: UUID | None
    is_started: bool
    task_limit: int


class ClaimAnswer(NamedTuple):
    """The tasks of a claim. Without tasks: the jobs of its worker, and why there are none.

    `jobs_digest` is a digest of the jobs, None for none; there are names unless the digest was known.
    `is_contended`: a task is pending, but another transaction has locked it.
    """

    tasks: Sequence[TaskRow]
    jobs_digest: str | None
    job_names: Sequence[str] | None
    is_paused: bool
    is_contended: bool


async def claim_single_statement(
    tx: Transaction,
    claimants: Sequence[Claimant],
    demands: Sequence[Demand],
    digests: Sequence[str] = (),
    most_bytes: int | None = None,
    first_queues: dict[UUID, WorkerQueues] | None = None,
) -> Sequence[ClaimAnswer | None] | None:
    """Claim the first tasks of the only queue of these workers, in the order of the demands.

    A lone claim of one task gets the first of all queues of its worker. `digests` are those of jobs whose
    names need not be returned.

    Return None, after which nothing was written, if one of these conditions does not hold:

    - no worker is draining, has a limit, or got tasks for one of these ids before;
    - all their jobs with tasks are one job, or there is one claim of one task; its job has no limit;
    - no task has expired or is of a watched room;
    - the payloads have up to `most_bytes` together.

    On SQLite the workers have few jobs, except that of a lone claim, whose queues are added to
    `first_queues`, and one of the claims gets a task. The answer to others may be None.
    """
    if tx.is_sqlite:
        return await _claim_on_sqlite(
            tx, claimants, demands, most_bytes, {} if first_queues is None else first_queues
        )
    params = {
        **_by_column(Claimant._fields, claimants),
        **_by_column(Demand._fields, demands),
        "at": await tx.now() if tx.has_own_clock else None,
        "most_bytes": most_bytes,
        "all_digest": list(digests),
        "is_lone": _is_lone(demands),
    }
    rows = await tx.execute_alone(_CLAIM, params)
    if not rows:
        return None
    tx.record_now(rows)
    tx.record_watched(is_watched=False)
    now = await tx.now()
    claims = groupby(rows, attrgetter("position"))
    return [
        _answer(demand, list(of_claim), now) for demand, (_, of_claim) in zip(demands, claims, strict=True)
    ]


def _is_lone(demands: Sequence[Demand]) -> bool:
    return len(demands) == 1 and demands[0].task_limit == 1


def _answer(demand: Demand, rows: Sequence[Any], now: datetime) -> ClaimAnswer:
    first = rows[0]
    tasks = [_ROWS.row_of(row) for row in rows if row.id is not None]
    for task in tasks:
        task.worker_id, task.claimed_at = demand.worker, now
        task.started_at = now if demand.is_started else None
    return ClaimAnswer(
        tasks,
        first.jobs_digest,
        first.job_names,
        bool(first.is_paused),
        is_contended=first.has_queue and bool(first.has_more),
    )


async def _claim_on_sqlite(
    tx: Transaction,
    claimants: Sequence[Claimant],
    demands: Sequence[Demand],
    most_bytes: int | None,
    first_queues: dict[UUID, WorkerQueues],
) -> Sequence[ClaimAnswer | None] | None:
    claims = [demand.claim.hex for demand in demands if demand.claim is not None]
    workers = [(claimant.claimant.hex, claimant.owner, claimant.serves_global) for claimant in claimants]
    params = {
        "rows": to_json(workers).decode(),
        "claims": to_json(claims).decode() if claims else None,
        "count": None if most_bytes is None else sum(demand.task_limit for demand in demands),
        "now": await tx.now(),
    }
    rows = (await tx.execute(_QUEUES_ON_SQLITE, params)).all()
    if len(rows) != 1 and _is_lone(demands):
        first_queues |= await queues(tx, [claimants[0].claimant], FIRST_QUEUES)
        job_id = _first_queue(claimants[0], first_queues)
        rows = (
            [] if job_id is None else (await tx.execute(_QUEUE_ON_SQLITE, {**params, "job_id": job_id})).all()
        )
    # Each worker has one queue, and all have the same.
    if len(rows) != len(claimants) or len({row.job_id for row in rows}) > 1:
        return None
    queue, now = rows[0], await tx.now()
    is_large = most_bytes is not None and (queue.size or 0) > most_bytes
    if queue.max_in_flight is not None or is_large or queue.has_expired:
        return None
    answers, claimed = list[ClaimAnswer | None](), list[tuple[int, TaskRow]]()
    for demand in demands:
        tasks = await _claim_first_on_sqlite(tx, demand, queue, now)
        claimed += tasks
        answers.append(ClaimAnswer([task for _, task in tasks], None, None, False, False) if tasks else None)
    if not claimed:
        return None
    ages = {claimant.claimant: timedelta(seconds=claimant.age) for claimant in claimants}
    late = [row.worker_id for row in rows if row.last_heartbeat < now - ages[row.worker_id]]
    await sql_workers.heartbeat(tx, late)
    counted = await tx.execute(_COUNT_ON_SQLITE, {"job_id": queue.job_id, "count": len(claimed)})
    tx.record_watched(is_watched=bool(counted.one().is_watched))
    await sql_counts.write_claimed(tx, queue.job_id, claimed)
    return answers


def _first_queue(claimant: Claimant, by_worker: Mapping[UUID, WorkerQueues]) -> UUID | None:
    """Return the job of the first task that a worker may claim, None if it is not one of these."""
    refused = {INTERNAL} if claimant.serves_global else {INTERNAL, GLOBAL}
    heads = by_worker[claimant.claimant].heads
    return next((head.job_id for head in heads if not head.paused and head.room_id not in refused), None)


async def _claim_first_on_sqlite(
    tx: Transaction, demand: Demand, queue: Any, now: datetime
) -> list[tuple[int, TaskRow]]:
    """Claim the first tasks of a queue. Return them in its order, each after its `seq`."""
    policy, started_at = policy_of(queue.policy), now if demand.is_started else None
    seconds = policy.timeout_seconds if demand.is_started else policy.start_timeout_seconds or None
    params = {
        "job_id": queue.job_id,
        "count": demand.task_limit,
        "status": TaskStatus.RUNNING if demand.is_started else TaskStatus.CLAIMED,
        "worker_id": demand.worker,
        "worker_owner_id": demand.holder,
        "claim_id": demand.claim,
        "now": now,
        "started_at": started_at,
        "deadline": None if seconds is None else now + timedelta(seconds=seconds),
    }
    claimed = []
    for row in await tx.execute(_CLAIM_FIRST_ON_SQLITE, params):
        task = _ROWS.row_of(row)
        task.job_name, task.worker_id = queue.full_name, demand.worker
        task.claimed_at, task.started_at = now, started_at
        claimed.append((row.seq, task))
    if len(claimed) > 1:
        claimed.sort(key=lambda entry: (entry[1].lane, entry[0]))
    return claimed


def _by_column(names: Sequence[str], rows: Sequence[Any]) -> dict[str, list[Any]]:
    return {f"all_{name}": list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


_AT = "coalesce(:at, now())"
_DEMANDS = """unnest(
        (SELECT :all_worker), (SELECT :all_holder), (SELECT :all_claim), (SELECT :all_is_started),
        (SELECT :all_task_limit)
    ) WITH ORDINALITY AS demands (worker, holder, claim, is_started, task_limit, position)"""
# A queue of a link that is not empty. The OFFSET keeps the order: each link of a worker, then its job.
_QUEUE_OF_LINK = f"""CROSS JOIN LATERAL (
                SELECT id, paused, room_id FROM joblib_job
                WHERE joblib_job.id = joblib_worker_job.job_id
                    AND joblib_job.pending > 0 AND joblib_job.room_id <> '{INTERNAL}'
                OFFSET 0
            ) AS queue"""


def _may_serve(worker: str, queue: str) -> str:
    return f"({worker}.serves_global OR {queue}.room_id <> '{GLOBAL}')"


# The workers without a lock: whether their claims fit, and up to two of their queues. A subquery instead of
# EXISTS, which may become a hash of all held tasks. The list of workers is repeated, so that it reads these
# workers alone, however few PostgreSQL knows of.
_WORKERS = f"""
workers AS (
    SELECT joblib_worker.id, joblib_worker.ctid AS version, claimants.is_marked,
        joblib_worker.owner_id = claimants.owner
            AND NOT joblib_worker.draining
            AND joblib_worker.max_tasks IS NULL
            AND CASE WHEN claimants.is_marked THEN (
                SELECT joblib_task.seq FROM joblib_task
                WHERE {TASK_IS_HELD} AND joblib_task.worker_id = joblib_worker.id
                    AND joblib_task.claim_id = ANY (:all_claim)
                LIMIT 1
            ) IS NULL ELSE true END AS fits,
        joblib_worker.last_heartbeat < {_AT} - make_interval(secs => claimants.age) AS is_late,
        filled.is_any,
        CASE WHEN filled.is_any THEN array(
            SELECT queue.id FROM joblib_worker_job {_QUEUE_OF_LINK}
            WHERE joblib_worker_job.worker_id = joblib_worker.id
                AND NOT queue.paused AND {_may_serve("claimants", "queue")}
            LIMIT 2
        ) ELSE CAST('{{}}' AS uuid[]) END AS queues,
        claimants.serves_global
    FROM unnest(
        (SELECT :all_claimant), (SELECT :all_owner), (SELECT :all_serves_global), (SELECT :all_age),
        (SELECT :all_is_marked)
    ) AS claimants (claimant, owner, serves_global, age, is_marked)
    JOIN joblib_worker ON joblib_worker.id = claimants.claimant
    CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT FROM joblib_worker_job {_QUEUE_OF_LINK}
            WHERE joblib_worker_job.worker_id = joblib_worker.id
            OFFSET 0
        ) AS is_any
        OFFSET 0
    ) AS filled
    WHERE joblib_worker.id = ANY (:all_claimant)
)"""
# One row if all claims fit, with their queue; the workers are locked if something is to be written. The claim
# of a worker whose row has changed since this statement began does not fit: a claim with an id, or one that
# ended its registration, may have committed meanwhile.
# A lone claim of one task takes the queue of its worker with the first task.
_READY = f"""
first_head AS (
    SELECT heads.job_id, heads.seq
    FROM workers CROSS JOIN LATERAL ({_heads("workers.id", str(FIRST_QUEUES))}
    ) AS heads
    WHERE :is_lone AND cardinality(workers.queues) > 1
        AND NOT heads.paused AND heads.room_id <> '{INTERNAL}' AND {_may_serve("workers", "heads")}
    ORDER BY heads.lane, heads.seq LIMIT 1
),
state AS (
    SELECT count(*) = cardinality(:all_claimant)
            AND bool_and(fits)
            AND CASE WHEN max(cardinality(queues)) > 1 THEN (SELECT count(*) FROM first_head) = 1
                ELSE count(DISTINCT queues[1]) <= 1 END AS fits,
        bool_or(is_late OR cardinality(queues) > 0) AS must_lock,
        coalesce(
            (SELECT job_id FROM first_head),
            (SELECT queues[1] FROM workers WHERE queues[1] IS NOT NULL LIMIT 1)
        ) AS queue
    FROM workers
),
locked AS (
    SELECT id, ctid AS version FROM joblib_worker
    WHERE id = ANY (:all_claimant) AND (SELECT fits AND must_lock FROM state)
    ORDER BY id
    FOR NO KEY UPDATE
),
ready AS (
    SELECT queue FROM state
    WHERE fits AND (
        NOT must_lock
        OR (SELECT count(*) FROM locked JOIN workers USING (id, version)) = (SELECT count(*) FROM workers)
    )
)"""
# The first tasks of the queue, which it locks; it skips locked ones. Then the job: no row if it is paused or
# has a limit now, or if a task does not fit.
_COUNTED = f"""
demand AS (
    SELECT demands.*, sum(task_limit) OVER (ORDER BY position) - task_limit + 1 AS first
    FROM {_DEMANDS} JOIN workers ON workers.id = demands.worker
    WHERE cardinality(workers.queues) > 0
),
first_tasks AS ({
    _first_tasks(
        "seq, id, lane, expires_at, room_id, octet_length(payload) AS size",
        "(SELECT queue FROM ready)",
        "(SELECT coalesce(sum(task_limit), 0) FROM demand)",
    )
}
    FOR UPDATE OF joblib_task SKIP LOCKED
),
counted AS (
    UPDATE joblib_job SET pending = pending - (SELECT count(*) FROM first_tasks)
    WHERE id = (SELECT queue FROM ready) AND NOT paused AND max_in_flight IS NULL
        AND EXISTS (
            SELECT 1 FROM first_tasks WHERE seq = coalesce((SELECT seq FROM first_head), first_tasks.seq)
        )
        AND NOT EXISTS (
            SELECT 1 FROM first_tasks WHERE expires_at <= {_AT} OR {is_watched("first_tasks.room_id")}
        )
        AND (:most_bytes IS NULL OR (SELECT sum(size) FROM first_tasks) <= :most_bytes)
    RETURNING id, full_name, pending,
        {_AT} + make_interval(secs => nullif(CAST(coalesce(
            CAST(policy AS json) ->> 'start_timeout_seconds', '{JobPolicy().start_timeout_seconds}'
        ) AS float), 0)) AS start_by,
        {_AT} + make_interval(secs => CAST(
            CAST(policy AS json) ->> 'timeout_seconds' AS float
        )) AS end_by
)"""
# One row of sorted arrays, in which each task finds its rank, and each rank its claim: to join tasks and
# claims, PostgreSQL might compare each with each.
_LISTS = """
lists AS (
    SELECT tasks.*, claims.*, counted.full_name, counted.start_by, counted.end_by
    FROM (
        SELECT array_agg(seq ORDER BY seq) AS seqs, array_agg(rank ORDER BY seq) AS ranks
        FROM (SELECT seq, row_number() OVER (ORDER BY lane, seq) AS rank FROM first_tasks) AS ranked
    ) AS tasks
    CROSS JOIN (
        SELECT array_agg(position ORDER BY position) AS positions,
            array_agg(worker ORDER BY position) AS workers,
            array_agg(holder ORDER BY position) AS holders,
            array_agg(claim ORDER BY position) AS claims,
            array_agg(is_started ORDER BY position) AS are_started,
            array_agg(first ORDER BY position) AS firsts
        FROM demand
    ) AS claims
    CROSS JOIN counted
)"""
_RANK = "lists.ranks[width_bucket(joblib_task.seq, lists.seqs)]"
_INDEX = f"width_bucket({_RANK}, lists.firsts)"
# Columns that are the same for all tasks of a claim: to read them for each task costs a tenth of it.
_ROWS = ShortRows(
    **dict.fromkeys(("job_id", "worker_id", "claimed_at", "started_at", "completed_at")),
    **dict.fromkeys(("result", "run_at", "expires_at")),
)
# The tasks are found by an array of ids, which only one index has, and by conditions that no index has:
# otherwise a plan that is made while there are few tasks, and kept, reads the whole queue, or all tasks by an
# index that has `seq`. Another condition would be compared with the version at the start of the statement
# first. A task is counted already, and may have returned to its queue since then with another attempt.
_CLAIMED = f"""
claimed AS (
    UPDATE joblib_task SET
        status = CASE WHEN lists.are_started[{_INDEX}]
            THEN '{TaskStatus.RUNNING}' ELSE '{TaskStatus.CLAIMED}' END,
        worker_id = lists.workers[{_INDEX}],
        worker_owner_id = lists.holders[{_INDEX}],
        claim_id = lists.claims[{_INDEX}],
        attempt = joblib_task.attempt + 1,
        claimed_at = {_AT},
        started_at = CASE WHEN lists.are_started[{_INDEX}] THEN {_AT} END,
        deadline = CASE WHEN lists.are_started[{_INDEX}] THEN lists.end_by ELSE lists.start_by END,
        expires_at = NULL
    FROM lists
    WHERE joblib_task.id = ANY (array(SELECT id FROM first_tasks))
        AND CASE WHEN {TASK_IS_PENDING} THEN joblib_task.seq >= lists.seqs[1] ELSE false END
    RETURNING lists.positions[{_INDEX}] AS position, {_RANK} AS rank, joblib_task.seq,
        joblib_task.job_id, {row_columns(names=_ROWS.names, job_name="lists.full_name")}
)"""
# Late heartbeats, and a new version of the rows of workers whose claims have ids.
_HEARTBEATS = f"""
heartbeats AS (
    UPDATE joblib_worker
    SET last_heartbeat = CASE WHEN late.is_late THEN {_AT} ELSE joblib_worker.last_heartbeat END
    FROM (
        SELECT workers.id, workers.is_late
        FROM workers CROSS JOIN ready
        WHERE (ready.queue IS NULL OR EXISTS (SELECT 1 FROM counted))
            AND (workers.is_late OR workers.is_marked AND EXISTS (SELECT 1 FROM counted))
    ) AS late
    WHERE joblib_worker.id = late.id
)"""
_SERVED_JOBS = f"""joblib_worker_job JOIN joblib_job ON joblib_job.id = joblib_worker_job.job_id
        WHERE joblib_worker_job.worker_id = claims.worker AND joblib_job.room_id <> '{INTERNAL}'"""
# A row for each task, or for each claim without one; none if the claims do not fit. A full join is never done
# by comparing each row with each.
_ANSWER = f"""
SELECT {row_columns("claimed", _ROWS.names)},
    jobs.digest,
    CASE WHEN NOT jobs.digest = ANY (:all_digest) THEN array(
        SELECT joblib_job.full_name FROM {_SERVED_JOBS} ORDER BY joblib_job.id
    ) END,
    CASE WHEN claimed.id IS NULL AND claims.is_any THEN (
        SELECT true FROM joblib_worker_job {_QUEUE_OF_LINK}
        WHERE joblib_worker_job.worker_id = claims.worker AND queue.paused LIMIT 1
    ) END,
    claims.position, claims.has_queue, claims.has_more, now()
FROM (
    SELECT demands.position, demands.worker, workers.is_any, cardinality(workers.queues) > 0 AS has_queue,
        counted.pending > 0 AS has_more
    FROM {_DEMANDS}
    JOIN workers ON workers.id = demands.worker
    CROSS JOIN ready
    LEFT JOIN counted ON true
    WHERE ready.queue IS NULL OR counted.id IS NOT NULL
) AS claims
FULL JOIN claimed ON claimed.position = claims.position
CROSS JOIN LATERAL (
    SELECT {JOBS_DIGEST} AS digest FROM joblib_worker_job
    WHERE worker_id = claims.worker AND claimed.id IS NULL
) AS jobs
ORDER BY claims.position, claimed.rank
"""
_CLAIM = statement(
    f"WITH {_WORKERS},{_READY},{_COUNTED},{_LISTS},{_CLAIMED},{sql_counts.COUNT_CLAIMED},{_HEARTBEATS}"
    f"{_ANSWER}",
    *(*_ROWS.names, "jobs_digest", "job_names", "is_paused", "position", "has_queue", "has_more", "now"),
    digest=TEXT,
    is_lone=BOOLEAN,
    claimant=UUID_TYPE,
    owner=TEXT,
    serves_global=BOOLEAN,
    age=FLOAT,
    is_marked=BOOLEAN,
    worker=UUID_TYPE,
    holder=TEXT,
    claim=UUID_TYPE,
    is_started=BOOLEAN,
    task_limit=INTEGER,
)


# The queues of workers that claim, on SQLite. A worker with more jobs is left to `lock_with_queues`.
_FEW_JOBS = 8
_HAS_FEW_JOBS = f"""(
        SELECT count(*) FROM (
            SELECT 1 FROM joblib_worker_job WHERE worker_id = joblib_worker.id LIMIT {_FEW_JOBS + 1}
        )
    ) <= {_FEW_JOBS}"""


def _queues_on_sqlite(condition: str) -> Any:
    return statement(
        f"""
SELECT joblib_worker.id, joblib_worker.last_heartbeat,
    queue.id, queue.full_name, queue.policy, queue.max_in_flight,
    CASE WHEN :count IS NOT NULL THEN (
        SELECT sum(octet_length(payload)) FROM ({_first_tasks("payload", "queue.id", ":count")})
    ) END,
    EXISTS (SELECT 1 FROM joblib_task WHERE {TASK_IS_PENDING} AND expires_at <= :now)
FROM json_each(:rows) AS claimants
JOIN joblib_worker ON joblib_worker.id = claimants.value ->> 0
JOIN joblib_worker_job ON joblib_worker_job.worker_id = joblib_worker.id
JOIN joblib_job AS queue ON queue.id = joblib_worker_job.job_id
WHERE joblib_worker.owner_id = claimants.value ->> 1
    AND NOT joblib_worker.draining AND joblib_worker.max_tasks IS NULL
    AND {condition}
    AND queue.pending > 0 AND NOT queue.paused AND queue.room_id <> '{INTERNAL}'
    AND (claimants.value ->> 2 OR queue.room_id <> '{GLOBAL}')
    AND (:claims IS NULL OR NOT EXISTS (
        SELECT 1 FROM joblib_task
        WHERE {TASK_IS_HELD} AND joblib_task.worker_id = joblib_worker.id
            AND joblib_task.claim_id IN (SELECT value FROM json_each(:claims))
    ))
""",
        *("worker_id", "last_heartbeat", "job_id", "full_name", "policy", "max_in_flight", "size"),
        "has_expired",
        rows=TEXT,
        claims=TEXT,
        policy=TEXT,
        size=INTEGER,
        has_expired=BOOLEAN,
    )


_QUEUES_ON_SQLITE = _queues_on_sqlite(_HAS_FEW_JOBS)
_QUEUE_ON_SQLITE = _queues_on_sqlite("joblib_worker_job.job_id = :job_id")
_COUNT_ON_SQLITE = statement(
    """
UPDATE joblib_job SET pending = pending - :count WHERE id = :job_id
RETURNING EXISTS (SELECT 1 FROM joblib_room_stream)
""",
    "is_watched",
    is_watched=BOOLEAN,
)
_CLAIM_FIRST_ON_SQLITE = statement(
    f"""
UPDATE joblib_task SET
    status = :status, worker_id = :worker_id, worker_owner_id = :worker_owner_id, claim_id = :claim_id,
    attempt = attempt + 1, claimed_at = :now, started_at = :started_at, deadline = :deadline,
    expires_at = NULL
WHERE seq IN ({_first_tasks("joblib_task.seq", ":job_id", ":count")})
RETURNING {row_columns(names=_ROWS.names, job_name="NULL")}, seq
""",
    *(*_ROWS.names, "seq"),
    status=TEXT,
)
