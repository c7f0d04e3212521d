"""Claim: fetch and lock the first tasks of queues without scanning their backlog."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.column_types import UtcDateTime
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, INTEGER, TEXT, statement
from zndraw_joblib.server.queue import sql_workers
from zndraw_joblib.server.queue.sql_counts import BLOCK_BITS
from zndraw_joblib.server.queue.sql_pauses import HAS_PAUSES
from zndraw_joblib.server.queue.sql_task_rows import (
    CHUNK,
    RECORD_NAMES,
    SELECT_RECORDS,
    TASK_IS_QUEUED,
    Place,
    TaskRecord,
    fetch_records,
)
from zndraw_joblib.server.queue.sql_workers import WorkerRecord

Choose = Callable[[AbstractSet[int]], Awaitable[tuple[list[int], list[int]]]]

# A claim passes over about this many tasks that other transactions have locked.
_MAX_SKIPPED = 256
_FIRST_LANE = -(2**31)
# SQLite takes 32766 parameters.
_MAX_SIZES = 2048
# The queues of its worker that a claim of one task reads at first: some may be paused or locked.
FIRST_QUEUES = 8


def first_tasks(columns: str, job_id: str, limit: str, after: tuple[str, str] | None = None) -> str:
    """Return the SELECT of the first tasks in the queue of a job.

    The job is a range, so that only the index of the queues has the order. With an equality PostgreSQL may
    scan the primary key, and with it the whole history. `after` are bounds of the lanes and of the numbers of
    all its tasks, as of `first_block`.
    """
    bounds = ""
    if after is not None:
        lane, seq = after
        bounds = f"""
        AND joblib_task.lane >= coalesce({lane}, {_FIRST_LANE}) AND joblib_task.seq >= coalesce({seq}, 0)"""
    return f"""
    SELECT {columns} FROM joblib_task
    WHERE joblib_task.job_id >= {job_id} AND joblib_task.job_id <= {job_id} AND {TASK_IS_QUEUED}{bounds}
    ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq
    LIMIT {limit}"""


def first_block(job_id: str, has_lanes: str, condition: str = "true") -> str:
    """Return PostgreSQL's SELECT of the lane and the lowest `seq` of the first block with tasks of a queue.

    While a transaction keeps an old snapshot, the index of a queue keeps the tasks that left it. A claim that
    starts at this block passes over few of them. The counts of blocks are exact in each snapshot; where they
    are wrong, as before a repair, tasks may be late, but without a block a claim reads all. Of a job that has
    lanes only the lane is a bound.
    """
    return f"""
    SELECT lane, CASE WHEN {has_lanes} THEN 0 ELSE block << {BLOCK_BITS} END AS seq
    FROM joblib_queue_block
    WHERE joblib_queue_block.job_id = {job_id} AND queued > 0 AND {condition}
    ORDER BY lane, block
    LIMIT 1"""


_LOCK_OLDEST = {
    bodies: statement(
        f"""{SELECT_RECORDS[bodies]}
WHERE joblib_task.job_id >= :job_id AND joblib_task.job_id <= :job_id AND {TASK_IS_QUEUED}
ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq
LIMIT :count
FOR NO KEY UPDATE OF joblib_task SKIP LOCKED
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
FOR NO KEY UPDATE OF joblib_task SKIP LOCKED
""",
        *RECORD_NAMES,
    )
    for bodies in (True, False)
}
_PAYLOADS = statement(
    "SELECT seq, payload_of(joblib_task) AS payload FROM joblib_task WHERE seq = ANY (:all_seq)",
    *("seq", "payload"),
)
_SIZES = statement(
    "SELECT seq, payload_size(joblib_task) AS size FROM joblib_task WHERE seq = ANY (:all_seq)",
    *("seq", "size"),
    size=INTEGER,
)
# Each queue is read by itself: a condition over several jobs makes PostgreSQL sort the whole backlog.
_OLDEST = statement(
    f"""
SELECT first_tasks.job_id, first_tasks.lane, first_tasks.seq
FROM unnest((SELECT :all_job_id), (SELECT :all_count)) AS demand (job_id, count)
CROSS JOIN LATERAL ({first_tasks("job_id, lane, seq", "demand.job_id", "demand.count")}
) AS first_tasks
""",
    *("job_id", "lane", "seq"),
)
_OLDEST_ON_SQLITE = statement(
    f"""
SELECT first_tasks.job_id, first_tasks.lane, first_tasks.seq
FROM json_each(:jobs) AS demand
JOIN joblib_task AS first_tasks
    ON first_tasks.seq IN ({first_tasks("joblib_task.seq", "demand.value", ":count")})
""",
    *("job_id", "lane", "seq"),
    jobs=TEXT,
)


def _oldest_since(job_id: str, jobs: str) -> Any:
    first = first_tasks("coalesce(queued_at, created_at) AS since", job_id, ":count")
    sql = f"SELECT {job_id} AS job_id, (SELECT min(since) FROM ({first}) AS first_tasks) AS since FROM {jobs}"
    return statement(sql, "job_id", "since", since=UtcDateTime(), jobs=TEXT)


_OLDEST_SINCE = _oldest_since("demand.job_id", "unnest((SELECT :all_job_id)) AS demand (job_id)")
_OLDEST_SINCE_ON_SQLITE = _oldest_since("demand.value", "json_each(:jobs) AS demand")


# A task's place in one number, so that SQLite sorts queues by their first tasks without reading these rows.
_SEQ_BITS = 48
_LAST_PLACE = 2**63 - 1
_FIRST_PLACE = f"""coalesce((
            SELECT lane * {1 << _SEQ_BITS} + seq FROM joblib_task
            WHERE joblib_task.job_id = joblib_worker_job.job_id AND {TASK_IS_QUEUED}
            ORDER BY joblib_task.job_id, joblib_task.lane, joblib_task.seq LIMIT 1
        ), {_LAST_PLACE})"""
_HEAD_NAMES = (
    *("worker_id", "job_id", "lane", "seq", "pending", "paused", "max_in_flight", "limits", "room_id"),
    *("paused_until", "has_pauses", "has_versions", "cost"),
)
# Other versions share the limits of a job; it costs a probe of an index where there are limits.
_HAS_VERSIONS = """(joblib_job.max_in_flight IS NOT NULL OR joblib_job.limits IS NOT NULL) AND EXISTS (
                    SELECT 1 FROM joblib_job AS version
                    WHERE version.full_name = joblib_job.full_name AND version.id <> joblib_job.id
                )"""
_HEAD_COLUMNS = ", ".join(f"heads.{name}" for name in _HEAD_NAMES[1:])
_JOB_COLUMNS = f"""pending, paused, max_in_flight, limits, room_id, paused_until, {HAS_PAUSES} AS has_pauses,
                {_HAS_VERSIONS} AS has_versions, cost"""
_HEADS_ON_SQLITE = statement(
    f"""
SELECT workers.value, joblib_task.job_id, joblib_task.lane, joblib_task.seq,
    joblib_job.pending, joblib_job.paused, joblib_job.max_in_flight, joblib_job.limits, joblib_job.room_id,
    joblib_job.paused_until, {HAS_PAUSES}, {_HAS_VERSIONS}, joblib_job.cost
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
    has_pauses=BOOLEAN,
    has_versions=BOOLEAN,
)


def heads_of(worker_id: str, limit: str, has_few_jobs: str | None = None) -> str:
    """Return PostgreSQL's SELECT of the queues of a worker with the first tasks.

    The OFFSET makes it look up each job of the worker, instead of joining all workers with all their jobs. A
    queue that is empty is not read: its index may still have the tasks that left it. If `has_few_jobs` holds,
    each queue is read from its first block; then there is also the column `has_lanes`.
    """
    job_id = "joblib_worker_job.job_id"
    first_task = f"""CROSS JOIN LATERAL ({first_tasks("lane, seq", job_id, "1")}
        ) AS first_task"""
    columns, others = _JOB_COLUMNS, ""
    if has_few_jobs is not None:
        after = "first_block.lane", "first_block.seq"
        first_task = f"""LEFT JOIN LATERAL ({first_block(job_id, "queue.has_lanes", has_few_jobs)}
        ) AS first_block ON true
        CROSS JOIN LATERAL ({first_tasks("lane, seq", job_id, "1", after)}
        ) AS first_task"""
        columns, others = f"{columns}, has_lanes", ", heads.has_lanes"
    return f"""
    SELECT {_HEAD_COLUMNS}{others}
    FROM (
        SELECT joblib_worker_job.job_id, first_task.lane, first_task.seq, queue.*
        FROM joblib_worker_job
        CROSS JOIN LATERAL (
            SELECT {columns} FROM joblib_job
            WHERE joblib_job.id = joblib_worker_job.job_id AND pending > 0
            OFFSET 0
        ) AS queue
        {first_task}
        WHERE joblib_worker_job.worker_id = {worker_id}
        OFFSET 0
    ) AS heads
    ORDER BY heads.lane, heads.seq
    LIMIT {limit}"""


# Of all queued tasks, how many of the first ones are read for a worker with many queues.
_FRONT = 64


def first_of_front(worker_id: str, is_open: str) -> str:
    """Return the SELECT of the first task of a worker's open queues, if it is among the first of all tasks.

    It has the same columns as `heads_of`, with `has_lanes`. A worker with many queues mostly has it there.
    """
    return f"""
    SELECT front.job_id, front.lane, front.seq, {_JOB_COLUMNS}, has_lanes
    FROM (
        SELECT job_id, lane, seq FROM joblib_task WHERE {TASK_IS_QUEUED} AND attempt >= 0
        ORDER BY joblib_task.lane, joblib_task.seq
        LIMIT {_FRONT}
    ) AS front
    CROSS JOIN joblib_worker_job
    CROSS JOIN joblib_job
    WHERE joblib_worker_job.worker_id = {worker_id} AND joblib_worker_job.job_id = front.job_id
        AND joblib_job.id = front.job_id AND pending > 0 AND {is_open}
    ORDER BY front.lane, front.seq
    LIMIT 1"""


# Workers of the same jobs have the same queues, which are read for one of them.
_HEADS_OF_SETS = f"""
WITH sets AS (
    SELECT worker_id, {sql_workers.JOBS_DIGEST} AS digest FROM joblib_worker_job
    WHERE worker_id = ANY (:all_id) GROUP BY worker_id
),
heads AS (
    SELECT first_workers.digest, heads.*
    FROM (SELECT DISTINCT ON (digest) digest, worker_id AS id FROM sets) AS first_workers
    CROSS JOIN LATERAL ({heads_of("first_workers.id", ":limit")}
    ) AS heads
)"""
_LOCK_WITH_HEADS = statement(
    f"""{_HEADS_OF_SETS}
SELECT joblib_worker.id, joblib_worker.owner_id, joblib_worker.last_heartbeat, joblib_worker.draining,
    joblib_worker.max_tasks, joblib_worker.slots, (
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
    has_pauses=BOOLEAN,
)
_HEADS_OF_WORKERS = statement(
    f"""{_HEADS_OF_SETS}
SELECT sets.worker_id, {_HEAD_COLUMNS} FROM sets JOIN heads ON heads.digest = sets.digest
""",
    *_HEAD_NAMES,
    has_pauses=BOOLEAN,
)


class QueueHead(NamedTuple):
    """A job with queued tasks, and the place of the first of them. `has_pauses`: a room may be paused.

    `cost` is how many slots of its worker a task takes, None for one.
    """

    job_id: UUID
    lane: int
    seq: int
    pending: int
    paused: bool
    max_in_flight: int | None
    limits: str | None
    room_id: str
    paused_until: datetime | None
    has_pauses: bool
    has_versions: bool
    cost: int | None = None

    @property
    def place(self) -> Place:
        """Return the position of its first task in the order of claims."""
        return self.lane, self.seq

    @property
    def is_limited(self) -> bool:
        """Whether the job has a limit of concurrency or rate."""
        return self.max_in_flight is not None or self.limits is not None


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
    return locked, await _by_worker(tx, list(locked), heads, limit)


async def queues(tx: Transaction, worker_ids: Sequence[UUID], limit: int) -> dict[UUID, WorkerQueues]:
    """Return up to `limit` queues of each of these workers, those with the first tasks."""
    if not tx.is_sqlite:
        rows = await tx.execute(_HEADS_OF_WORKERS, {"all_id": worker_ids, "limit": limit})
        return await _by_worker(tx, worker_ids, rows, limit)
    # Workers of the same jobs have the same queues, which are read for one of them.
    digests = await sql_workers.job_digests(tx, worker_ids) if len(worker_ids) > 1 else {}
    first_of = {digests.get(worker_id): worker_id for worker_id in worker_ids}
    workers = to_json([worker_id.hex for worker_id in first_of.values()]).decode()
    rows = await tx.execute(_HEADS_ON_SQLITE, {"workers": workers, "limit": limit})
    by_worker = await _by_worker(tx, list(first_of.values()), rows, limit)
    return {worker_id: by_worker[first_of[digests.get(worker_id)]] for worker_id in worker_ids}


async def _by_worker(
    tx: Transaction, worker_ids: Sequence[UUID], rows: Iterable[Sequence[Any]], limit: int
) -> dict[UUID, WorkerQueues]:
    heads: dict[UUID, list[QueueHead]] = {worker_id: [] for worker_id in worker_ids}
    for worker_id, *columns in rows:
        head = QueueHead(*columns)
        if head.paused_until is not None and head.paused_until <= await tx.now():
            head = head._replace(paused=False)
        heads[worker_id].append(head)
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


async def oldest_since(tx: Transaction, job_ids: Sequence[UUID], count: int) -> dict[UUID, datetime]:
    """Return since when the oldest of each queue's first `count` tasks waits."""
    if tx.is_sqlite:
        params = {"jobs": to_json([job_id.hex for job_id in job_ids]).decode(), "count": count}
        rows = await tx.execute(_OLDEST_SINCE_ON_SQLITE, params)
    else:
        rows = await tx.execute(_OLDEST_SINCE, {"all_job_id": list(job_ids), "count": count})
    return {job_id: since for job_id, since in rows if since is not None}


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
