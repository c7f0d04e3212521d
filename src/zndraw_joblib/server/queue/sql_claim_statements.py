"""Claim with one statement on PostgreSQL, and with few short ones on SQLite.

The statements check their conditions, and write nothing if these do not hold; then `rules_claims.claim` takes
the batch. A claim of one task has a statement of its own: PostgreSQL prepares each part of a statement for
each execution, and the parts for several claims cost it more than they do.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from zndraw_joblib.server.db.database import PlainStatements, Transaction
from zndraw_joblib.server.db.room_events import is_watched
from zndraw_joblib.server.db.statements import BOOLEAN, FLOAT, INTEGER, TEXT, UUID_TYPE, statement
from zndraw_joblib.server.queue import sql_counts, sql_workers
from zndraw_joblib.server.queue.sql_claims import (
    FIRST_QUEUES,
    WorkerQueues,
    first_block,
    first_of_front,
    first_tasks,
    heads_of,
    queues,
)
from zndraw_joblib.server.queue.sql_jobs import QUEUE_NAME, policy_of
from zndraw_joblib.server.queue.sql_pauses import HAS_PAUSES, is_job_paused, may_be_paused
from zndraw_joblib.server.queue.sql_task_rows import (
    TASK_IS_HELD,
    TASK_IS_PENDING,
    ShortRows,
    TaskRow,
    row_columns,
)
from zndraw_joblib.server.queue.sql_workers import JOBS_DIGEST
from zndraw_joblib.wire.names import GLOBAL, INTERNAL
from zndraw_joblib.wire.policy import JobPolicy
from zndraw_joblib.wire.statuses import TaskStatus


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
    `is_contended`: a task is pending, but another transaction has locked it. `has_many_queues`: the worker of
    a lone claim had tasks in at least `FIRST_QUEUES` queues.
    """

    tasks: Sequence[TaskRow]
    jobs_digest: str | None
    job_names: Sequence[str] | None
    is_paused: bool
    is_contended: bool
    has_many_queues: bool = False


async def claim_single_statement(  # noqa: PLR0913 - what the last claims have shown
    tx: Transaction,
    claimants: Sequence[Claimant],
    demands: Sequence[Demand],
    digests: Sequence[str] = (),
    most_bytes: int | None = None,
    first_queues: dict[UUID, WorkerQueues] | None = None,
    *,
    had_many_queues: bool = False,
) -> Sequence[ClaimAnswer | None] | None:
    """Claim the first tasks of the only queue of these workers, in the order of the demands.

    A lone claim of one task gets the first of all queues of its worker; if that `had_many_queues`, the first
    tasks of all queues are read before its own. `digests` are those of jobs whose names need not be returned.

    Return None, after which nothing was written, if one of these conditions does not hold:

    - no worker is draining, has a limit, or got tasks for one of these ids before;
    - all their jobs with tasks are one job, or there is one claim of one task; its job has no limit, and
      its tasks take one slot;
    - no task has expired, or is of a room that has a pause, or is watched unless events were expected;
    - the payloads have up to `most_bytes` together.

    On SQLite the workers have few jobs, except that of a lone claim, whose queues are added to
    `first_queues`, and one of the claims gets a task. The answer to others may be None.
    """
    if tx.is_sqlite:
        known = {} if first_queues is None else first_queues
        return await _claim_on_sqlite(tx, claimants, demands, most_bytes, known, had_many_queues)
    params = {"at": await tx.now() if tx.has_own_clock else None, "all_digest": list(digests)}
    if _is_lone(demands):
        params |= claimants[0]._asdict() | demands[0]._asdict()
        rows = await tx.execute_plain("claim", _CLAIM_ONE[had_many_queues], params)
    else:
        params |= _by_column(Claimant._fields, claimants) | _by_column(Demand._fields, demands)
        rows = await tx.execute_plain("claim", _CLAIM, {**params, "most_bytes": most_bytes})
    if not rows:
        return None
    tx.record_now(rows)
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
        bool(first.is_contended),
        bool(first.has_many_queues),
    )


async def _claim_on_sqlite(
    tx: Transaction,
    claimants: Sequence[Claimant],
    demands: Sequence[Demand],
    most_bytes: int | None,
    first_queues: dict[UUID, WorkerQueues],
    had_many_queues: bool,
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
    has_many_queues = False
    if len(rows) != 1 and _is_lone(demands):
        job_id, has_many_queues = await _first_queue(tx, claimants[0], first_queues, had_many_queues)
        rows = (
            [] if job_id is None else (await tx.execute(_QUEUE_ON_SQLITE, {**params, "job_id": job_id})).all()
        )
    # Each worker has one queue, and all have the same.
    if len(rows) != len(claimants) or len({row.job_id for row in rows}) > 1:
        return None
    queue, now = rows[0], await tx.now()
    is_large = most_bytes is not None and (queue.size or 0) > most_bytes
    if queue.is_limited or is_large or queue.may_be_refused:
        return None
    answers, claimed = list[ClaimAnswer | None](), list[tuple[int, TaskRow]]()
    for demand in demands:
        tasks = await _claim_first_on_sqlite(tx, demand, queue, now)
        claimed += tasks
        answer = ClaimAnswer([task for _, task in tasks], None, None, False, False, has_many_queues)
        answers.append(answer if tasks else None)
    if not claimed:
        return None
    ages = {claimant.claimant: timedelta(seconds=claimant.age) for claimant in claimants}
    late = [row.worker_id for row in rows if row.last_heartbeat < now - ages[row.worker_id]]
    await sql_workers.heartbeat(tx, late)
    counted = await tx.execute(_COUNT_ON_SQLITE, {"job_id": queue.job_id, "count": len(claimed)})
    tx.record_watched(is_watched=bool(counted.one().is_watched))
    await sql_counts.write_claimed(tx, queue.job_id, claimed)
    return answers


async def _first_queue(
    tx: Transaction, claimant: Claimant, first_queues: dict[UUID, WorkerQueues], had_many_queues: bool
) -> tuple[UUID | None, bool]:
    """Return the job of the first task that a worker may claim, and whether it has many queues.

    None if the job is not one of `first_queues`, to which it adds the queues that it reads.
    """
    if had_many_queues:
        worker = {"worker_id": claimant.claimant, "serves_global": claimant.serves_global}
        params = {**worker, "now": await tx.now()}
        job_id: UUID | None = (await tx.execute(_FRONT_ON_SQLITE, params)).scalar_one_or_none()
        if job_id is not None:
            return job_id, True
    first_queues |= await queues(tx, [claimant.claimant], FIRST_QUEUES)
    heads, is_all = first_queues[claimant.claimant]
    refused = {INTERNAL} if claimant.serves_global else {INTERNAL, GLOBAL}
    open_ids = (head.job_id for head in heads if not head.paused and head.room_id not in refused)
    return next(open_ids, None), not is_all


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
        task.job_name, task.job_version, task.worker_id = queue.full_name, queue.job_version, demand.worker
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
        coalesce(served.queues[1:2], CAST('{{}}' AS uuid[])) AS queues, served.is_paused
    FROM unnest(
        (SELECT :all_claimant), (SELECT :all_owner), (SELECT :all_serves_global), (SELECT :all_age),
        (SELECT :all_is_marked)
    ) AS claimants (claimant, owner, serves_global, age, is_marked)
    JOIN joblib_worker ON joblib_worker.id = claimants.claimant
    CROSS JOIN LATERAL (
        SELECT array_agg(queue.id) FILTER (
                WHERE NOT queue.paused AND (claimants.serves_global OR queue.room_id <> '{GLOBAL}')
            ) AS queues,
            bool_or(queue.paused) AS is_paused
        FROM joblib_worker_job
        CROSS JOIN LATERAL (
            SELECT id, {is_job_paused(_AT)} AS paused, room_id FROM joblib_job
            WHERE joblib_job.id = joblib_worker_job.job_id
                AND joblib_job.pending > 0 AND joblib_job.room_id <> '{INTERNAL}'
            OFFSET 0
        ) AS queue
        WHERE joblib_worker_job.worker_id = joblib_worker.id
    ) AS served
    WHERE joblib_worker.id = ANY (:all_claimant)
)"""
# One row if all claims fit, with their queue; the workers are locked if something is to be written. The claim
# of a worker whose row has changed since this statement began does not fit: a claim with an id, or one that
# ended its registration, may have committed meanwhile.
_READY = """
state AS (
    SELECT count(*) = cardinality(:all_claimant)
            AND bool_and(fits)
            AND max(cardinality(queues)) <= 1
            AND count(DISTINCT queues[1]) <= 1 AS fits,
        bool_or(is_late OR cardinality(queues) > 0) AS must_lock,
        (SELECT queues[1] FROM workers WHERE queues[1] IS NOT NULL LIMIT 1) AS queue
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
# Of a job whose tasks are claimed: its name, how many are left, and their deadlines.
_COUNTED_COLUMNS = f"""id, full_name, job_version, pending,
        {_AT} + make_interval(secs => nullif(CAST(coalesce(
            CAST(policy AS json) ->> 'start_timeout_seconds', '{JobPolicy().start_timeout_seconds}'
        ) AS float), 0)) AS start_by,
        {_AT} + make_interval(secs => CAST(
            CAST(policy AS json) ->> 'timeout_seconds' AS float
        )) AS end_by"""
_HAS_LANES = "(SELECT has_lanes FROM joblib_job WHERE joblib_job.id = (SELECT queue FROM ready))"


# The first tasks of the queue, which it locks; it skips locked ones. Then the job: no row if it is paused or
# has a limit now, or if a task does not fit, as one of a room that is `watched`.
def _counted(watched: str) -> str:
    return f"""
demand AS (
    SELECT demands.*, sum(task_limit) OVER (ORDER BY position) - task_limit + 1 AS first
    FROM {_DEMANDS} JOIN workers ON workers.id = demands.worker
    WHERE cardinality(workers.queues) > 0
),
first_block AS ({first_block("(SELECT queue FROM ready)", _HAS_LANES)}
),
first_tasks AS ({
        first_tasks(
            "seq, id, lane, expires_at, room_id, octet_length(payload) AS size",
            "(SELECT queue FROM ready)",
            "(SELECT coalesce(sum(task_limit), 0) FROM demand)",
            ("(SELECT lane FROM first_block)", "(SELECT seq FROM first_block)"),
        )
    }
    FOR NO KEY UPDATE OF joblib_task SKIP LOCKED
),
counted AS (
    UPDATE joblib_job SET pending = pending - (SELECT count(*) FROM first_tasks)
    WHERE id = (SELECT queue FROM ready) AND NOT {is_job_paused(_AT)}
        AND max_in_flight IS NULL AND limits IS NULL AND cost IS NULL
        AND EXISTS (SELECT 1 FROM first_tasks)
        AND NOT EXISTS (
            SELECT 1 FROM first_tasks
            WHERE expires_at <= {_AT} OR {watched}
                OR {may_be_paused("first_tasks.room_id")}
        )
        AND (:most_bytes IS NULL OR (SELECT sum(size) FROM first_tasks) <= :most_bytes)
    RETURNING {_COUNTED_COLUMNS}
)"""


# One row of arrays: of the tasks in the order of `seq`, with their ranks and claims, and of the claims. If
# tasks and claims were joined, PostgreSQL might compare each with each.
_LISTS = """
lists AS (
    SELECT tasks.*, claims.*, counted.full_name, counted.job_version, counted.start_by, counted.end_by
    FROM (
        SELECT array_agg(position ORDER BY position) AS positions,
            array_agg(worker ORDER BY position) AS workers,
            array_agg(holder ORDER BY position) AS holders,
            array_agg(claim ORDER BY position) AS claims,
            array_agg(is_started ORDER BY position) AS are_started,
            array_agg(first ORDER BY position) AS firsts
        FROM demand
    ) AS claims
    CROSS JOIN LATERAL (
        SELECT array_agg(seq ORDER BY seq) AS seqs, array_agg(rank ORDER BY seq) AS ranks,
            array_agg(width_bucket(rank, claims.firsts) ORDER BY seq) AS indexes
        FROM (SELECT seq, row_number() OVER (ORDER BY lane, seq) AS rank FROM first_tasks) AS ranked
    ) AS tasks
    CROSS JOIN counted
)"""
_RANK = "lists.ranks[width_bucket(joblib_task.seq, lists.seqs)]"
_INDEX = "lists.indexes[width_bucket(joblib_task.seq, lists.seqs)]"
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
        joblib_task.job_id,
        {row_columns(names=_ROWS.names, job_name="lists.full_name", job_version="lists.job_version")}
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


# A worker with more jobs has many. To look for the first block of each would cost more than it saves.
_FEW_JOBS = 8


def _has_few_jobs(worker_id: str) -> str:
    return f"""(
        SELECT count(*) FROM (
            SELECT 1 FROM joblib_worker_job WHERE worker_id = {worker_id} LIMIT {_FEW_JOBS + 1}
        ) AS links
    ) <= {_FEW_JOBS}"""


def _served_jobs(worker_id: str) -> str:
    return f"""joblib_worker_job JOIN joblib_job ON joblib_job.id = joblib_worker_job.job_id
        WHERE joblib_worker_job.worker_id = {worker_id} AND joblib_job.room_id <> '{INTERNAL}'"""


# A row for each task, or for each claim without one; none if the claims do not fit. A full join is never done
# by comparing each row with each.
_ANSWER_NAMES = (
    *_ROWS.names,
    *("jobs_digest", "job_names", "is_paused", "is_contended", "has_many_queues", "position", "now"),
    "is_watched",
)
_TYPES = {
    "digest": TEXT,
    "claimant": UUID_TYPE,
    "owner": TEXT,
    "serves_global": BOOLEAN,
    "age": FLOAT,
    "is_marked": BOOLEAN,
    "worker": UUID_TYPE,
    "holder": TEXT,
    "claim": UUID_TYPE,
    "is_started": BOOLEAN,
    "task_limit": INTEGER,
    "has_many_queues": BOOLEAN,
    "is_watched": BOOLEAN,
}


def _answer_of_all(watched: str) -> str:
    return f"""
SELECT {row_columns("answers", _ROWS.names)},
    answers.digest,
    CASE WHEN NOT answers.digest = ANY (:all_digest) THEN array(
        SELECT {QUEUE_NAME} FROM {_served_jobs("answers.worker")} ORDER BY joblib_job.id
    ) END,
    answers.is_paused, answers.is_contended, false, answers.position, now(), {watched}
FROM (
    SELECT {row_columns("claimed", _ROWS.names)}, claimed.rank, claims.*,
        CASE WHEN claimed.id IS NULL THEN (
            SELECT {JOBS_DIGEST} FROM joblib_worker_job WHERE worker_id = claims.worker
        ) END AS digest
    FROM (
        SELECT demands.position, demands.worker, workers.is_paused,
            cardinality(workers.queues) > 0 AND counted.pending > 0 AS is_contended
        FROM unnest((SELECT :all_worker)) WITH ORDINALITY AS demands (worker, position)
        JOIN workers ON workers.id = demands.worker
        CROSS JOIN ready
        LEFT JOIN counted ON true
        WHERE ready.queue IS NULL OR counted.id IS NOT NULL
    ) AS claims
    FULL JOIN claimed ON claimed.position = claims.position
    OFFSET 0
) AS answers
ORDER BY answers.position, answers.rank
"""


def _claim(guard: str, watched: str) -> Any:
    parts = (_WORKERS, _READY, _counted(guard), _LISTS, _CLAIMED, sql_counts.COUNT_CLAIMED, _HEARTBEATS)
    return statement(f"WITH {','.join(parts)}{_answer_of_all(watched)}", *_ANSWER_NAMES, **_TYPES)


_CLAIM = PlainStatements(
    _claim(is_watched("first_tasks.room_id"), "false"), _claim("false", is_watched("answers.room_id"))
)


# One claim of one task. The queue is that of the worker's first task. If it is the only one, the first task
# that no other transaction has locked is claimed. For a worker with many queues the first tasks of all queues
# are read before the queues of the worker.
_HAS_FEW_JOBS = _has_few_jobs(":worker")


def _is_open(now: str) -> str:
    return (
        f"NOT {is_job_paused(now)} AND room_id <> '{INTERNAL}' AND (:serves_global OR room_id <> '{GLOBAL}')"
    )


_IS_OPEN = _is_open(_AT)
_HEADS = heads_of(":worker", str(FIRST_QUEUES), _HAS_FEW_JOBS)
_FRONT_OR_HEADS = f"""
    SELECT front.*, {FIRST_QUEUES} AS number FROM front
    UNION ALL
    SELECT heads.*, 1 FROM ({_HEADS}
    ) AS heads
    WHERE NOT EXISTS (SELECT 1 FROM front)"""


_ONE_WORKER = f"""
worker AS (
    SELECT id, ctid AS version,
        owner_id = :owner AND NOT draining AND max_tasks IS NULL
            AND CASE WHEN :claim IS NOT NULL THEN (
                SELECT joblib_task.seq FROM joblib_task
                WHERE {TASK_IS_HELD} AND joblib_task.worker_id = :worker AND joblib_task.claim_id = :claim
                LIMIT 1
            ) IS NULL ELSE true END AS fits,
        last_heartbeat < {_AT} - make_interval(secs => :age) AS is_late
    FROM joblib_worker WHERE id = :worker
),"""
_ONE_READY = f"""
locked AS (
    SELECT ctid AS version FROM joblib_worker
    WHERE id = :worker AND (SELECT fits AND must_lock FROM state)
    FOR NO KEY UPDATE
),
ready AS (
    SELECT head.*
    FROM state
    LEFT JOIN (SELECT job_id, lane, seq, has_lanes FROM heads WHERE {
    _IS_OPEN
} ORDER BY lane, seq LIMIT 1) AS head
        ON true
    WHERE state.fits
        AND (NOT state.must_lock OR (SELECT version FROM locked) = (SELECT version FROM worker))
),
first_task AS ({
    first_tasks(
        "seq, id, expires_at, room_id",
        "(SELECT job_id FROM ready)",
        "1",
        ("(SELECT lane FROM ready)", "(SELECT CASE WHEN NOT has_lanes THEN seq END FROM ready)"),
    )
}
    FOR NO KEY UPDATE OF joblib_task SKIP LOCKED
),"""


def _one_claimed(watched: str) -> str:
    return f"""
counted AS (
    UPDATE joblib_job SET pending = pending - 1
    WHERE id = (SELECT job_id FROM ready) AND NOT {is_job_paused(_AT)}
        AND max_in_flight IS NULL AND limits IS NULL AND cost IS NULL
        AND EXISTS (
            SELECT 1 FROM first_task
            WHERE (first_task.seq = (SELECT seq FROM ready) OR (SELECT is_only FROM state))
                AND (expires_at <= {_AT}) IS NOT TRUE AND NOT {watched}
                AND NOT {may_be_paused("first_task.room_id")}
        )
    RETURNING {_COUNTED_COLUMNS}
),
claimed AS (
    UPDATE joblib_task SET
        status = CASE WHEN :is_started THEN '{TaskStatus.RUNNING}' ELSE '{TaskStatus.CLAIMED}' END,
        worker_id = :worker,
        worker_owner_id = :holder,
        claim_id = :claim,
        attempt = joblib_task.attempt + 1,
        claimed_at = {_AT},
        started_at = CASE WHEN :is_started THEN {_AT} END,
        deadline = CASE WHEN :is_started THEN counted.end_by ELSE counted.start_by END,
        expires_at = NULL
    FROM counted
    WHERE joblib_task.id = (SELECT id FROM first_task)
        AND CASE WHEN {TASK_IS_PENDING} THEN true ELSE false END
    RETURNING joblib_task.seq, joblib_task.job_id,
        {row_columns(names=_ROWS.names, job_name="counted.full_name", job_version="counted.job_version")}
),
{sql_counts.COUNT_CLAIMED_ONE},
heartbeats AS (
    UPDATE joblib_worker
    SET last_heartbeat = CASE WHEN (SELECT is_late FROM worker) THEN {_AT} ELSE last_heartbeat END
    WHERE id = (
        SELECT worker.id FROM worker CROSS JOIN ready
        WHERE CASE WHEN EXISTS (SELECT 1 FROM counted) THEN worker.is_late OR :claim IS NOT NULL
            ELSE worker.is_late AND ready.job_id IS NULL END
    )
)"""


def _one_answer(watched: str) -> str:
    return f"""
SELECT {row_columns("claimed", _ROWS.names)},
    jobs.digest,
    CASE WHEN NOT jobs.digest = ANY (:all_digest) THEN array(
        SELECT {QUEUE_NAME} FROM {_served_jobs(":worker")} ORDER BY joblib_job.id
    ) END,
    (SELECT is_paused FROM state), false, (SELECT has_many_queues FROM state), 1, now(), {watched}
FROM ready
LEFT JOIN claimed ON true
CROSS JOIN LATERAL (
    SELECT {JOBS_DIGEST} AS digest FROM joblib_worker_job
    WHERE worker_id = :worker AND claimed.id IS NULL
) AS jobs
WHERE ready.job_id IS NULL OR claimed.id IS NOT NULL
"""


def _claim_one(*, has_many_queues: bool) -> PlainStatements:
    front, heads, number = "", _HEADS, "count(*)"
    if has_many_queues:
        front = f"front AS ({first_of_front(':worker', _IS_OPEN)}\n),"
        heads, number = _FRONT_OR_HEADS, "coalesce(sum(number), 0)"
    state = f"""
state AS (
    SELECT worker.fits AND (queues.open > 0 OR queues.number < {FIRST_QUEUES}) AS fits,
        worker.is_late OR queues.open > 0 AS must_lock,
        queues.open = 1 AND queues.number < {FIRST_QUEUES} AS is_only,
        queues.number >= {FIRST_QUEUES} AS has_many_queues, queues.is_paused
    FROM worker
    CROSS JOIN (
        SELECT {number} AS number, count(*) FILTER (WHERE {_IS_OPEN}) AS open,
            bool_or({is_job_paused(_AT)} AND room_id <> '{INTERNAL}') AS is_paused
        FROM heads
    ) AS queues
),"""

    def form(guard: str, watched: str) -> Any:
        parts = f"{_ONE_WORKER} {front} heads AS ({heads}), {state}{_ONE_READY}{_one_claimed(guard)}"
        return statement(f"WITH {parts}{_one_answer(watched)}", *_ANSWER_NAMES, **_TYPES)

    return PlainStatements(
        form(is_watched("first_task.room_id"), "false"), form("false", is_watched("claimed.room_id"))
    )


_CLAIM_ONE = {is_many: _claim_one(has_many_queues=is_many) for is_many in (False, True)}


# The queues of workers that claim, on SQLite. A worker with more jobs is left to `lock_with_queues`.
def _queues_on_sqlite(condition: str) -> Any:
    return statement(
        f"""
SELECT joblib_worker.id, joblib_worker.last_heartbeat,
    queue.id, queue.full_name, queue.job_version, queue.policy,
    queue.max_in_flight IS NOT NULL OR queue.limits IS NOT NULL OR queue.cost IS NOT NULL,
    CASE WHEN :count IS NOT NULL THEN (
        SELECT sum(size) FROM ({first_tasks("payload_size(joblib_task) AS size", "queue.id", ":count")})
    ) END,
    {HAS_PAUSES} OR EXISTS (SELECT 1 FROM joblib_task WHERE {TASK_IS_PENDING} AND expires_at <= :now)
FROM json_each(:rows) AS claimants
JOIN joblib_worker ON joblib_worker.id = claimants.value ->> 0
JOIN joblib_worker_job ON joblib_worker_job.worker_id = joblib_worker.id
JOIN joblib_job AS queue ON queue.id = joblib_worker_job.job_id
WHERE joblib_worker.owner_id = claimants.value ->> 1
    AND NOT joblib_worker.draining AND joblib_worker.max_tasks IS NULL
    AND {condition}
    AND queue.pending > 0 AND NOT {is_job_paused(":now", "queue.")} AND queue.room_id <> '{INTERNAL}'
    AND (claimants.value ->> 2 OR queue.room_id <> '{GLOBAL}')
    AND (:claims IS NULL OR NOT EXISTS (
        SELECT 1 FROM joblib_task
        WHERE {TASK_IS_HELD} AND joblib_task.worker_id = joblib_worker.id
            AND joblib_task.claim_id IN (SELECT value FROM json_each(:claims))
    ))
""",
        *("worker_id", "last_heartbeat", "job_id", "full_name", "job_version", "policy", "is_limited"),
        *("size", "may_be_refused"),
        rows=TEXT,
        claims=TEXT,
        policy=TEXT,
        is_limited=BOOLEAN,
        size=INTEGER,
        may_be_refused=BOOLEAN,
    )


_QUEUES_ON_SQLITE = _queues_on_sqlite(_has_few_jobs("joblib_worker.id"))
_QUEUE_ON_SQLITE = _queues_on_sqlite("joblib_worker_job.job_id = :job_id")
_FRONT_ON_SQLITE = statement(
    f"SELECT job_id FROM ({first_of_front(':worker_id', _is_open(':now'))}) AS first",
    "job_id",
    serves_global=BOOLEAN,
)
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
WHERE seq IN ({first_tasks("joblib_task.seq", ":job_id", ":count")})
RETURNING {row_columns(names=_ROWS.names, job_name="NULL", job_version="NULL")}, seq
""",
    *(*_ROWS.names, "seq"),
    status=TEXT,
)
