"""Workers, and which jobs they serve."""

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, TEXT, statement
from zndraw_joblib.server.queue.sql_jobs import QUEUE_NAME
from zndraw_joblib.server.queue.sql_task_rows import TASK_IS_HELD, TASK_IS_QUEUED
from zndraw_joblib.server.queue.sql_transitions import COST_IF_LOST
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.names import INTERNAL, JobName
from zndraw_joblib.wire.statuses import TaskStatus


class WorkerRecord(NamedTuple):
    """A worker's row."""

    id: UUID
    owner_id: str
    last_heartbeat: datetime
    draining: bool
    max_tasks: int | None
    slots: int | None


class OwnerCounts(NamedTuple):
    """How many workers a user has, and how many of them are silent."""

    owner_id: str
    total: int
    silent: int


_INFO = [*WorkerInfo.model_fields]
_COLUMNS = ("id", "owner_id", "created_at", "last_heartbeat", "draining", "max_tasks", *_INFO)
_LOCK_OF_WORKER = "FOR NO KEY UPDATE OF joblib_worker"
_ADD = statement(
    f"""
INSERT INTO joblib_worker ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)})
"""
)
_DESCRIBE = statement(
    f"""
UPDATE joblib_worker SET {", ".join(f"{name} = coalesce(:{name}, {name})" for name in _INFO)}
WHERE id = :id
    AND NOT ({" AND ".join(f"coalesce(:{name}, {name}) IS NOT DISTINCT FROM {name}" for name in _INFO)})
"""
)
_SET_DRAINING = statement("UPDATE joblib_worker SET draining = true WHERE id = :id")
_SET_MAX_TASKS = statement("UPDATE joblib_worker SET max_tasks = :max_tasks WHERE id = :id")
_LOCK = statement(
    f"""
SELECT {", ".join(WorkerRecord._fields)}, CURRENT_TIMESTAMP AS now
FROM joblib_worker WHERE id = ANY (:all_id)
ORDER BY id
{_LOCK_OF_WORKER}
""",
    *(*WorkerRecord._fields, "now"),
)
_LOCK_OF_OWNER = statement(
    f"SELECT id FROM joblib_worker WHERE owner_id = :owner_id ORDER BY id LIMIT :limit\n{_LOCK_OF_WORKER}",
    "id",
)
_STALE = statement(
    "SELECT id FROM joblib_worker WHERE last_heartbeat < :at ORDER BY last_heartbeat LIMIT :limit", "id"
)


class SilentWorker(NamedTuple):
    """A worker to remove: what it costs to recover its tasks, 1 for each one that fails without a retry."""

    cost: int = 0
    name: str | None = None
    last_heartbeat: datetime | None = None


def _lock_stale(condition: str) -> Any:
    # A stronger lock would conflict with a provider that gets one of these workers as its next worker.
    return statement(
        f"""
SELECT joblib_worker.id, (
    SELECT coalesce(sum({COST_IF_LOST}), 0) FROM joblib_task
    WHERE {TASK_IS_HELD} AND joblib_task.worker_id = joblib_worker.id
) AS cost, joblib_worker.name, joblib_worker.last_heartbeat
FROM joblib_worker WHERE joblib_worker.last_heartbeat < :at AND {condition}
ORDER BY joblib_worker.last_heartbeat
LIMIT :limit
{_LOCK_OF_WORKER} SKIP LOCKED
""",
        *("id", *SilentWorker._fields),
    )


_LOCK_STALE = _lock_stale("NOT (joblib_worker.owner_id = ANY (:all_owner_id))")
_LOCK_ONE_STALE = _lock_stale("joblib_worker.id = :id")
# With a limit PostgreSQL uses the index, whatever it expects to find.
_FUTURE_LIMIT = 500
_LOCK_FUTURE = statement(
    f"""
SELECT id FROM joblib_worker WHERE last_heartbeat > :at
ORDER BY last_heartbeat
LIMIT {_FUTURE_LIMIT}
{_LOCK_OF_WORKER} SKIP LOCKED
""",
    "id",
)
_HEARTBEAT = statement(
    f"""
UPDATE joblib_worker SET last_heartbeat = :at WHERE id IN (
    SELECT id FROM joblib_worker WHERE id = ANY (:all_id)
    {_LOCK_OF_WORKER} SKIP LOCKED
)
"""
)
_HEARTBEAT_SINCE = statement("UPDATE joblib_worker SET last_heartbeat = :at WHERE last_heartbeat >= :since")
_MARK_CLAIMS = statement("UPDATE joblib_worker SET draining = draining WHERE id = ANY (:all_id)")
_REMOVE = statement("DELETE FROM joblib_worker WHERE id = ANY (:all_id)")
_UNLINK_ALL = statement(
    "DELETE FROM joblib_worker_job WHERE worker_id = ANY (:all_id) RETURNING job_id", "job_id"
)
_LINK = statement(
    "INSERT INTO joblib_worker_job (worker_id, job_id) VALUES (:worker_id, :job_id) ON CONFLICT DO NOTHING"
)
_UNLINK = statement(
    "DELETE FROM joblib_worker_job WHERE worker_id = :worker_id AND job_id = :job_id RETURNING job_id",
    "job_id",
)
_UNFIT = "DELETE FROM joblib_unfit_worker WHERE worker_id = ANY (:all_id) RETURNING job_id"
_UNMARK_ALL = statement(_UNFIT, "job_id")
_LINKS = statement(
    """
SELECT job_id, true AS is_fit FROM joblib_worker_job
WHERE worker_id = :worker_id AND job_id = ANY (:all_job_id)
UNION ALL
SELECT job_id, false FROM joblib_unfit_worker
WHERE worker_id = :worker_id AND job_id = ANY (:all_job_id)
""",
    *("job_id", "is_fit"),
    is_fit=BOOLEAN,
)
_MARK_UNFIT = statement(
    "INSERT INTO joblib_unfit_worker (worker_id, job_id) VALUES (:worker_id, :job_id) ON CONFLICT DO NOTHING"
)
_UNLINK_SOME, _UNMARK_SOME = (
    statement(f"DELETE FROM {table} WHERE worker_id = :worker_id AND job_id = ANY (:all_job_id)")
    for table in ("joblib_worker_job", "joblib_unfit_worker")
)
_PLACEMENT = statement("SELECT labels, slots FROM joblib_worker WHERE id = :id", *("labels", "slots"))


def _registered(links: str) -> str:
    return f"""
SELECT {links}.worker_id, joblib_job.room_id, joblib_job.category, joblib_job.name
FROM {links} JOIN joblib_job ON {links}.job_id = joblib_job.id
WHERE {links}.worker_id = ANY (:all_worker_id) AND joblib_job.room_id <> '{INTERNAL}'
"""


_SERVED_JOBS = statement(
    f"{_registered('joblib_worker_job')} UNION ALL {_registered('joblib_unfit_worker')}",
    *("worker_id", "room_id", "category", "name"),
)
_SERVED_QUEUES = statement(
    f"""
SELECT joblib_worker_job.worker_id, {QUEUE_NAME}
FROM joblib_worker_job JOIN joblib_job ON joblib_worker_job.job_id = joblib_job.id
WHERE joblib_worker_job.worker_id = ANY (:all_worker_id) AND joblib_job.room_id <> '{INTERNAL}'
ORDER BY joblib_job.id
""",
    *("worker_id", "queue"),
)
_BATCH_QUEUES = statement(
    f"""
SELECT joblib_job.id, joblib_job.full_name, {QUEUE_NAME} AS queue
FROM joblib_job JOIN joblib_worker_job ON joblib_worker_job.job_id = joblib_job.id
WHERE joblib_job.full_name = ANY (:all_full_name) AND joblib_worker_job.worker_id = :worker_id
""",
    *("id", "full_name", "queue"),
)
_GET = statement(
    f"SELECT {', '.join(WorkerRecord._fields)} FROM joblib_worker WHERE id = :id", *WorkerRecord._fields
)
_SERVING = statement(
    "SELECT job_id, worker_id FROM joblib_worker_job WHERE job_id = ANY (:all_job_id) ORDER BY worker_id",
    *("job_id", "worker_id"),
)
# SQLite reads the ids in the order of the key, for `job_digests`. Workers of equal digests
# get the tasks of each other's jobs, so no user may be able to make two sets with one digest.
_IDS_IN_ORDER = "group_concat(job_id, '')"
JOBS_DIGEST = """encode(sha256(string_agg(
        uuid_send(joblib_worker_job.job_id), CAST('' AS bytea) ORDER BY joblib_worker_job.job_id
    )), 'hex')"""
_DIGESTS = {
    is_sqlite: statement(
        f"""
SELECT worker_id, {_IDS_IN_ORDER if is_sqlite else JOBS_DIGEST} FROM joblib_worker_job
WHERE worker_id = ANY (:all_worker_id) GROUP BY worker_id
""",
        *("worker_id", "digest"),
        digest=TEXT,
    )
    for is_sqlite in (True, False)
}
_COUNT_BY_OWNER = statement(
    """
SELECT owner_id, count(*), count(*) FILTER (WHERE last_heartbeat < :at) FROM joblib_worker GROUP BY owner_id
""",
    *OwnerCounts._fields,
)
_COUNT = statement("SELECT count(*) FROM joblib_worker", "number")
_COUNT_STALE = statement("SELECT count(*) FROM joblib_worker WHERE last_heartbeat < :at", "number")


async def add(
    tx: Transaction, owner_id: str, max_tasks: int | None = None, info: WorkerInfo | None = None
) -> UUID:
    """Insert a worker with a heartbeat now, and what it says about itself."""
    worker_id, now = uuid4(), await tx.now()
    params = {
        "id": worker_id,
        "owner_id": owner_id,
        "created_at": now,
        "last_heartbeat": now,
        "draining": False,
        "max_tasks": max_tasks,
        **(info or WorkerInfo()).model_dump(),
    }
    await tx.execute(_ADD, params)
    return worker_id


async def describe(tx: Transaction, worker_id: UUID, info: WorkerInfo) -> None:
    """Write what a worker says about itself, unless it is known; the fields that are None stay."""
    if info != WorkerInfo():
        await tx.execute(_DESCRIBE, {"id": worker_id, **info.model_dump()})


async def set_draining(tx: Transaction, worker_id: UUID) -> None:
    """Mark a worker as draining."""
    await tx.execute(_SET_DRAINING, {"id": worker_id})


async def set_max_tasks(tx: Transaction, worker_id: UUID, max_tasks: int) -> None:
    """Set how many tasks a worker may hold at once."""
    await tx.execute(_SET_MAX_TASKS, {"id": worker_id, "max_tasks": max_tasks})


async def lock(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, WorkerRecord]:
    """Lock workers until the commit, so that they are not deleted, and return those that exist, by id."""
    rows = (await tx.execute(_LOCK, {"all_id": padded(ids)})).all()
    tx.record_now(rows)
    return {row.id: WorkerRecord(*row[:-1]) for row in rows}


async def lock_of_owner(tx: Transaction, owner_id: str, limit: int) -> list[UUID]:
    """Lock up to `limit` workers of a user, and return their ids."""
    return list((await tx.execute(_LOCK_OF_OWNER, {"owner_id": owner_id, "limit": limit})).scalars())


async def lock_if_stale(
    tx: Transaction, cutoff: datetime, limit: int, only: UUID | None = None, but_of: Collection[str] = ()
) -> dict[UUID, SilentWorker]:
    """Lock and return up to `limit` workers without a heartbeat since `cutoff`, the oldest heartbeat first.

    Those of the users `but_of` are left out. A worker that another transaction has locked (it claims, or
    another sweeper removes it) is skipped.
    """
    params = {"at": cutoff, "limit": limit}
    if only is None:
        rows = await tx.execute(_LOCK_STALE, {**params, "all_owner_id": padded([*but_of])})
    else:
        rows = await tx.execute(_LOCK_ONE_STALE, {**params, "id": only})
    return {worker_id: SilentWorker(*values) for worker_id, *values in rows}


async def stale(tx: Transaction, cutoff: datetime, limit: int) -> list[UUID]:
    """Return what `lock_if_stale` would lock, without a lock."""
    return list((await tx.execute(_STALE, {"at": cutoff, "limit": limit})).scalars())


async def heartbeat(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Set the heartbeats of these workers to now. A worker that another transaction has locked is skipped."""
    if ids:
        await tx.execute(_HEARTBEAT, {"all_id": padded(ids), "at": await tx.now()})


async def heartbeat_since(tx: Transaction, since: datetime) -> None:
    """Set the heartbeats of all workers that are not older to now, for a test clock."""
    await tx.execute(_HEARTBEAT_SINCE, {"since": since, "at": await tx.now()})


async def mark_claims(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Write new versions of the rows of locked workers, whose claims have ids.

    A plain claim that began before this transaction's commit then sees that there was another claim.
    """
    if ids and not tx.is_sqlite:
        await tx.execute(_MARK_CLAIMS, {"all_id": ids})


async def clamp_future_heartbeats(tx: Transaction, tolerance: timedelta) -> None:
    """Set heartbeats in the future to now: after a clock was set back they would not expire."""
    latest = await tx.now() + tolerance
    count = _FUTURE_LIMIT
    while count == _FUTURE_LIMIT:
        ids = (await tx.execute(_LOCK_FUTURE, {"at": latest})).scalars().all()
        await heartbeat(tx, ids)
        count = len(ids)


async def remove(tx: Transaction, ids: Sequence[UUID]) -> None:
    """Delete workers, which the caller has unlinked from their jobs and providers."""
    await tx.execute(_REMOVE, {"all_id": padded(ids)})


async def unlink_all(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Delete all links of these workers. Return the ids of the jobs that they were registered for."""
    params = {"all_id": padded(ids)}
    job_ids = set((await tx.execute(_UNLINK_ALL, params)).scalars())
    return sorted(job_ids | set((await tx.execute(_UNMARK_ALL, params)).scalars()))


async def link(tx: Transaction, worker_id: UUID, job_id: UUID) -> None:
    """Link a worker to a job, unless it is linked already."""
    await tx.execute(_LINK, {"worker_id": worker_id, "job_id": job_id})


async def unlink_job(tx: Transaction, worker_id: UUID, queue_ids: Sequence[UUID]) -> bool:
    """Delete the links of a worker to all queues of a job. Return whether it was registered for it."""
    params = {"worker_id": worker_id, "all_job_id": padded(queue_ids)}
    was_registered = bool((await tx.execute(_LINKS, params)).all()) if queue_ids else False
    if was_registered:
        await tx.execute(_UNLINK_SOME, params)
        await tx.execute(_UNMARK_SOME, params)
    return was_registered


async def set_links(
    tx: Transaction,
    worker_id: UUID,
    of_job: Sequence[UUID],
    linked: Collection[UUID],
    unfit: Collection[UUID],
) -> bool:
    """Link a worker to exactly these queues of a job, and record that it lacks labels for those `unfit`.

    Return whether a link was deleted.
    """
    params = {"worker_id": worker_id, "all_job_id": padded(of_job)}
    rows = (await tx.execute(_LINKS, params)).all()
    before = {row.job_id for row in rows if row.is_fit}
    unfit_before = {row.job_id for row in rows if not row.is_fit}
    for sql, ids in ((_LINK, set(linked) - before), (_MARK_UNFIT, set(unfit) - unfit_before)):
        if ids:
            await tx.execute(sql, [{"worker_id": worker_id, "job_id": job_id} for job_id in sorted(ids)])
    for sql, ids in ((_UNLINK_SOME, before - set(linked)), (_UNMARK_SOME, unfit_before - set(unfit))):
        if ids:
            await tx.execute(sql, {"worker_id": worker_id, "all_job_id": padded(sorted(ids))})
    return not before <= set(linked)


async def placement_of(tx: Transaction, worker_id: UUID) -> tuple[dict[str, Any] | None, int | None]:
    """Return the labels and the slots of a worker, as it has said them."""
    row = (await tx.execute(_PLACEMENT, {"id": worker_id})).one_or_none()
    return (None, None) if row is None else (row.labels, row.slots)


async def unlink(tx: Transaction, worker_id: UUID, job_id: UUID) -> bool:
    """Delete the link of a worker to a job. Return whether it existed."""
    return (await tx.execute(_UNLINK, {"worker_id": worker_id, "job_id": job_id})).first() is not None


async def served_jobs(tx: Transaction, worker_ids: Sequence[UUID]) -> dict[UUID, list[JobName]]:
    """Return the jobs for which each worker is registered, also if it lacks labels that they require."""
    by_worker: dict[UUID, list[JobName]] = {worker_id: [] for worker_id in worker_ids}
    for worker_id, *name in await tx.execute(_SERVED_JOBS, {"all_worker_id": padded(worker_ids)}):
        by_worker[worker_id].append(JobName(*name))
    return by_worker


async def served_queues(tx: Transaction, worker_ids: Sequence[UUID]) -> dict[UUID, list[str]]:
    """Return the names of the queues that each worker claims from: a job has one for each version."""
    by_worker: dict[UUID, list[str]] = {worker_id: [] for worker_id in worker_ids}
    for worker_id, queue in await tx.execute(_SERVED_QUEUES, {"all_worker_id": padded(worker_ids)}):
        by_worker[worker_id].append(queue)
    return by_worker


class BatchQueue(NamedTuple):
    """A queue of a worker: a version of a job that its claims take in batches."""

    id: UUID
    job: str
    name: str


async def batch_queues(tx: Transaction, worker_id: UUID, names: Sequence[str]) -> list[BatchQueue]:
    """Return the queues of these jobs that a worker claims from."""
    rows = await tx.execute(_BATCH_QUEUES, {"all_full_name": padded(sorted(names)), "worker_id": worker_id})
    return [BatchQueue(*row) for row in rows]


async def get(tx: Transaction, worker_id: UUID) -> WorkerRecord | None:
    """Return a worker, without a lock; None if there is none."""
    row = (await tx.execute(_GET, {"id": worker_id})).first()
    return None if row is None else WorkerRecord(*row)


async def job_digests(tx: Transaction, worker_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return a digest of the ids of each worker's jobs. Workers without jobs are missing."""
    rows = await tx.execute(_DIGESTS[bool(tx.is_sqlite)], {"all_worker_id": padded(worker_ids)})
    if not tx.is_sqlite:
        return {worker_id: digest for worker_id, digest in rows}
    return {worker_id: hashlib.sha256(ids.encode()).hexdigest() for worker_id, ids in rows}


async def serving(tx: Transaction, job_ids: Sequence[UUID]) -> dict[UUID, list[UUID]]:
    """Return the workers of each job."""
    by_job: dict[UUID, list[UUID]] = {job_id: [] for job_id in job_ids}
    for job_id, worker_id in await tx.execute(_SERVING, {"all_job_id": padded(job_ids)}):
        by_job[job_id].append(worker_id)
    return by_job


async def count_by_owner(tx: Transaction, silent_since: datetime) -> list[OwnerCounts]:
    """Count the workers of each user, and those of them without a heartbeat since a time."""
    return [OwnerCounts(*row) for row in await tx.execute(_COUNT_BY_OWNER, {"at": silent_since})]


async def count(tx: Transaction, stale_since: datetime | None = None) -> int:
    """Count the workers, or those without a heartbeat since a time."""
    sql = _COUNT if stale_since is None else _COUNT_STALE
    number: int = (await tx.execute(sql, {"at": stale_since})).scalar_one()
    return number


# How busy the workers of a job are, and how long its recent tasks took.

_LOADS = statement(
    f"""
SELECT joblib_worker.draining, joblib_worker.max_tasks, joblib_worker.created_at,
    count(joblib_task.seq), count(joblib_task.started_at),
    max(coalesce(joblib_task.started_at, joblib_task.claimed_at)), joblib_worker.id, joblib_worker.ends_at
FROM joblib_worker_job
JOIN joblib_worker ON joblib_worker.id = joblib_worker_job.worker_id
LEFT JOIN joblib_task ON joblib_task.worker_id = joblib_worker.id AND {TASK_IS_HELD}
WHERE joblib_worker_job.job_id = :job_id
GROUP BY joblib_worker.id
""",
    *("draining", "max_tasks", "created_at", "held_count", "running_count", "started_at"),
    *("id", "ends_at"),
)
# The job is a range, as in the statements of a claim.
_FIRST_IN_QUEUE = statement(
    f"""
SELECT room_id, created_at FROM joblib_task
WHERE job_id >= :job_id AND job_id <= :job_id AND {TASK_IS_QUEUED}
ORDER BY job_id, lane, seq LIMIT 1
""",
    *("room_id", "created_at"),
)
_EARLIER = statement(
    f"""
SELECT claimed_at, CASE WHEN status = '{TaskStatus.COMPLETED}' THEN completed_at END AS completed_at
FROM joblib_task WHERE job_id = :job_id AND room_id = :room_id AND created_at <= :created_at
ORDER BY joblib_task.created_at DESC, joblib_task.seq DESC LIMIT 100
""",
    *("claimed_at", "completed_at"),
)


class WorkerLoad(NamedTuple):
    """How many tasks a worker holds, of any job, and runs; `since` is when the last of them began.

    `ends_at` is when its allocation ends, None if it did not say so.
    """

    is_draining: bool
    max_tasks: int | None
    created_at: datetime
    held: int
    running: int
    since: datetime | None
    id: UUID
    ends_at: datetime | None

    @property
    def is_full(self) -> bool:
        """Whether it holds as many tasks as it may. The server knows the slots of few workers."""
        return self.held >= (self.max_tasks or 1)


async def of_workers(tx: Transaction, job_id: UUID) -> list[WorkerLoad]:
    """Return how busy the workers of a job are."""
    return [WorkerLoad(*row) for row in await tx.execute(_LOADS, {"job_id": job_id})]


async def recent_durations(tx: Transaction, job_id: UUID) -> list[timedelta]:
    """Return how long tasks took from claim to completion, of those submitted before the queue's first one.

    They are among the last 100 tasks of the job in that task's room, so the backlog is not read.
    """
    first = (await tx.execute(_FIRST_IN_QUEUE, {"job_id": job_id})).one_or_none()
    if first is None:
        return []
    rows = await tx.execute(_EARLIER, {"job_id": job_id, **first._asdict()})
    return [ended - claimed for claimed, ended in rows if ended is not None]


# The rooms of what a worker serves and holds.

_IS_OWN = "EXISTS (SELECT 1 FROM joblib_worker WHERE id = :worker_id AND owner_id = :owner_id)"
_ROOMS = statement(
    f"""
SELECT 'jobs', joblib_job.room_id
FROM joblib_worker_job JOIN joblib_job ON joblib_worker_job.job_id = joblib_job.id
WHERE joblib_worker_job.worker_id = :worker_id AND {_IS_OWN}
UNION
SELECT 'held', joblib_job.room_id
FROM joblib_task JOIN joblib_job ON joblib_task.job_id = joblib_job.id
WHERE {TASK_IS_HELD} AND joblib_task.worker_id = :worker_id AND {_IS_OWN}
UNION
SELECT 'providers', room_id FROM joblib_provider WHERE worker_id = :worker_id AND {_IS_OWN}
""",
    *("kind", "room_id"),
)
_NAMES = statement(
    f"""
SELECT DISTINCT joblib_job.full_name
FROM joblib_worker_job JOIN joblib_job ON joblib_worker_job.job_id = joblib_job.id
WHERE joblib_worker_job.worker_id = :worker_id AND {_IS_OWN}
ORDER BY joblib_job.full_name
""",
    "full_name",
)
_JOB_ROOMS = statement(
    """
SELECT joblib_task.id, joblib_job.room_id
FROM joblib_task JOIN joblib_job ON joblib_task.job_id = joblib_job.id
WHERE joblib_task.id = ANY (:all_id) AND joblib_task.worker_owner_id = :owner_id
""",
    *("id", "room_id"),
)


async def served(tx: Transaction, worker_id: UUID, owner_id: str) -> list[tuple[str, str]]:
    """Return the rooms of a worker: those of its `jobs`, of the jobs of `held` tasks, and of its `providers`.

    Each has its kind before it. There are none if the worker belongs to another user.
    """
    rows = await tx.execute(_ROOMS, {"worker_id": worker_id, "owner_id": owner_id})
    return [(kind, room_id) for kind, room_id in rows]


async def served_names(tx: Transaction, worker_id: UUID, owner_id: str) -> list[str]:
    """Return the full names of the jobs of a worker; none if it belongs to another user."""
    return list((await tx.execute(_NAMES, {"worker_id": worker_id, "owner_id": owner_id})).scalars())


async def job_rooms(tx: Transaction, task_ids: Sequence[UUID], owner_id: str) -> dict[UUID, str]:
    """Return the rooms of the jobs of those of these tasks that a worker of this user has or had last."""
    params = {"all_id": padded(task_ids), "owner_id": owner_id}
    return {task_id: room_id for task_id, room_id in await tx.execute(_JOB_ROOMS, params)}
