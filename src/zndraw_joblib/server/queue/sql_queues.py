"""Queues of a job for tasks with requirements of their own: each is a row of the table of jobs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from zndraw_joblib.server.db.bulk import padded
from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.db.statements import BOOLEAN, TEXT, UUID_TYPE, statement
from zndraw_joblib.server.process.ports import QUEUES, version_of
from zndraw_joblib.server.queue.sql_jobs import COLUMNS, OF_JOB, QUEUE_NAME, JobRecord, stored_cost
from zndraw_joblib.wire.masks import joined_paths
from zndraw_joblib.wire.names import JobName

_LOCK = statement(
    f"""
SELECT {", ".join(COLUMNS)}, CURRENT_TIMESTAMP
FROM joblib_job
WHERE full_name = ANY (:all_full_name) AND (NOT deleted OR requires = ANY (:all_requires))
ORDER BY id
FOR NO KEY UPDATE
""",
    *(*COLUMNS, "now"),
)
_SHARED = [name for name in OF_JOB if name != "cost"]
_ADD = statement(
    f"""
INSERT INTO joblib_job (
    id, schema, masked, job_version, first_id, requires, {", ".join(_SHARED)}, deleted_at, cost,
    superseded, deleted, pending, scheduled, has_lanes, fair_round, fair_room
)
SELECT :id, schema, masked, :job_version, coalesce(first_id, id), :requires, {", ".join(_SHARED)}, :now,
    :cost, true, true, 0, 0, false, 0, ''
FROM joblib_job WHERE id = :current
""",
    current=UUID_TYPE,
)
_OF_JOB = statement(
    """
SELECT id, job_version, requires, pending, scheduled, has_lanes, masked FROM joblib_job
WHERE full_name = :full_name AND requires IS NOT NULL
ORDER BY job_version
""",
    *("id", "job_version", "requires", "pending", "scheduled", "has_lanes", "masked"),
)
_LOCK_IDLE = statement(
    """
SELECT id FROM joblib_job WHERE id = ANY (:all_id) AND pending = 0 AND scheduled = 0
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED
""",
    "id",
)
_REUSE = statement(
    """
UPDATE joblib_job SET requires = :requires, job_version = :job_version, has_lanes = false, deleted_at = :now,
    cost = :cost,
    schema = (SELECT current.schema FROM joblib_job AS current WHERE current.id = :current), masked = :masked
WHERE id = :id
""",
    current=UUID_TYPE,
)
# Workers that are registered for a version of a job, and whether they are linked to it.
_CANDIDATES = statement(
    """
SELECT joblib_worker.id, joblib_worker.labels, joblib_worker.slots, version.job_id, version.is_fit
FROM (
    SELECT worker_id, job_id, true AS is_fit FROM joblib_worker_job WHERE job_id = ANY (:all_job_id)
    UNION ALL
    SELECT worker_id, job_id, false FROM joblib_unfit_worker WHERE job_id = ANY (:all_job_id)
) AS version
JOIN joblib_worker ON joblib_worker.id = version.worker_id
ORDER BY joblib_worker.id
""",
    *("id", "labels", "slots", "job_id", "is_fit"),
    is_fit=BOOLEAN,
)
_LINKED = statement("SELECT worker_id FROM joblib_worker_job WHERE job_id = :job_id", "worker_id")
_LINK, _MARK_UNFIT = (
    statement(
        f"""
INSERT INTO {table} (worker_id, job_id)
SELECT id, :job_id FROM joblib_worker WHERE id = ANY (:all_id)
ON CONFLICT DO NOTHING
"""
    )
    for table in ("joblib_worker_job", "joblib_unfit_worker")
)
_UNLINK, _UNMARK_UNFIT = (
    statement(f"DELETE FROM {table} WHERE job_id = :job_id AND worker_id = ANY (:all_id)")
    for table in ("joblib_worker_job", "joblib_unfit_worker")
)
_JOBS_OF_WORKER = statement(
    """
SELECT DISTINCT joblib_job.room_id, joblib_job.category, joblib_job.name
FROM (
    SELECT job_id FROM joblib_worker_job WHERE worker_id = :worker_id
    UNION ALL
    SELECT job_id FROM joblib_unfit_worker WHERE worker_id = :worker_id
) AS registered
JOIN joblib_job ON joblib_job.id = registered.job_id
""",
    *JobName._fields,
)
_LOCK_ALL = statement(
    "SELECT id FROM joblib_job WHERE full_name = ANY (:all_full_name) ORDER BY id\nFOR NO KEY UPDATE", "id"
)
_OF_NAMES = statement(
    """
SELECT full_name, job_version, requires FROM joblib_job
WHERE full_name = ANY (:all_full_name) AND job_version = ANY (:all_job_version) AND requires IS NOT NULL
""",
    *("full_name", "job_version", "requires"),
)
_REQUIRED = statement(
    "SELECT id, requires FROM joblib_job WHERE id = ANY (:all_id) AND requires IS NOT NULL",
    *("id", "requires"),
)


_CLAIMABLE_BY = statement(
    f"""
SELECT DISTINCT joblib_worker_job.worker_id
FROM joblib_job JOIN joblib_worker_job ON joblib_worker_job.job_id = joblib_job.id
WHERE joblib_job.full_name = ANY (:all_full_name) AND {QUEUE_NAME} = ANY (:all_queue)
    AND joblib_worker_job.worker_id = ANY (:all_worker_id)
""",
    "worker_id",
    queue=TEXT,
)


_LABELED = statement(
    """
SELECT joblib_worker.id, joblib_worker.labels
FROM joblib_worker_job JOIN joblib_worker ON joblib_worker.id = joblib_worker_job.worker_id
WHERE joblib_worker_job.job_id = :job_id AND joblib_worker.labels IS NOT NULL AND NOT joblib_worker.draining
ORDER BY joblib_worker.id LIMIT :limit
""",
    *("id", "labels"),
)


class Candidate(NamedTuple):
    """A worker that is registered for the version `job_id`; it serves that if it `is_fit`."""

    id: UUID
    labels: Mapping[str, Any] | None
    slots: int | None
    job_id: UUID
    is_fit: bool


class QueueRow(NamedTuple):
    """A queue of tasks with requirements. `number` is as in `ports.version_of`."""

    id: UUID
    number: int
    requires: str
    pending: int
    scheduled: int
    has_lanes: bool
    masked: str | None = None

    @property
    def version(self) -> int:
        """The version of the job's schema."""
        return version_of(self.number)


async def lock(
    tx: Transaction, names: Sequence[JobName], requires: Collection[str]
) -> tuple[dict[JobName, JobRecord], list[JobRecord]]:
    """Lock the active jobs of these names with their queues of these requirements, in the order of ids.

    Return the jobs as `sql_jobs.lock_by_names` does, and the queues of their current versions.
    """
    params = {
        "all_full_name": padded([str(name) for name in names]),
        "all_requires": padded(sorted(requires)),
    }
    ids: set[UUID] | None = None
    while True:
        rows = (await tx.execute(_LOCK, params)).all()
        tx.record_now(rows)
        records = [JobRecord(*row[:-1]) for row in rows]
        jobs = {job.name: job for job in records if not job.superseded}
        queues = {
            (record.name, record.requires): record
            for record in records
            if record.requires is not None
            and record.name in jobs
            and version_of(record.job_version) == jobs[record.name].job_version
        }
        is_complete = len(jobs) == len(names) and len(queues) == len(names) * len(requires)
        before, ids = ids, {record.id for record in records}
        if is_complete or tx.is_sqlite or ids == before:
            return jobs, list(queues.values())
        # The statement may have waited for the commit of a version or a queue, which only the next one sees.


async def of_job(tx: Transaction, name: JobName | str) -> list[QueueRow]:
    """Return the queues of a job for tasks with requirements, without a lock."""
    return [QueueRow(*row) for row in await tx.execute(_OF_JOB, {"full_name": str(name)})]


async def add(tx: Transaction, job: JobRecord, requires: str, taken: Iterable[int]) -> JobRecord:
    """Insert a queue of the current version of a job, which is locked. `taken` are the numbers of others."""
    places = {number // QUEUES for number in taken}
    place = next(place for place in range(1, len(places) + 2) if place not in places)
    record = _record(job, uuid4(), place * QUEUES + job.job_version, requires)
    params = {"id": record.id, "job_version": record.job_version, "requires": requires, "current": job.id}
    await tx.execute(_ADD, {**params, "cost": record.cost, "now": await tx.now()})
    return record


async def lock_idle(tx: Transaction, ids: Sequence[UUID]) -> list[UUID]:
    """Lock those of these queues that have no waiting task and that no other transaction has locked."""
    return list((await tx.execute(_LOCK_IDLE, {"all_id": padded(ids)})).scalars())


async def reuse(tx: Transaction, queue: QueueRow, job: JobRecord, requires: str) -> JobRecord:
    """Let an idle queue, which is locked, take tasks of the current version with other requirements."""
    number = queue.number - queue.version + job.job_version
    # Its ended tasks may have payloads of another version.
    masked = joined_paths([queue.masked, job.masked])
    record = _record(job, queue.id, number, requires)._replace(masked=masked)
    params = {"id": queue.id, "job_version": number, "requires": requires, "current": job.id}
    await tx.execute(_REUSE, {**params, "masked": masked, "cost": record.cost, "now": await tx.now()})
    return record


def _record(job: JobRecord, queue_id: UUID, number: int, requires: str) -> JobRecord:
    """Return an empty queue of a job."""
    return job._replace(
        id=queue_id,
        job_version=number,
        first_id=job.stable_id,
        requires=requires,
        cost=stored_cost(job.policy, requires),
        deleted=True,
        superseded=True,
        pending=0,
        scheduled=0,
        has_lanes=False,
    )


async def candidates(tx: Transaction, version_ids: Sequence[UUID]) -> list[Candidate]:
    """Return the workers that are registered for these versions, with their labels."""
    rows = await tx.execute(_CANDIDATES, {"all_job_id": padded(sorted(version_ids))})
    return [Candidate(*row) for row in rows]


async def labeled(tx: Transaction, queue_id: UUID, limit: int) -> list[tuple[UUID, Mapping[str, Any]]]:
    """Return up to `limit` workers of a queue that have labels, with these."""
    rows = await tx.execute(_LABELED, {"job_id": queue_id, "limit": limit})
    return [(worker_id, labels) for worker_id, labels in rows]


async def set_links(tx: Transaction, queue_id: UUID, worker_ids: Collection[UUID]) -> list[UUID]:
    """Link exactly these workers to a queue, which is locked. Return those whose links have changed."""
    linked = set((await tx.execute(_LINKED, {"job_id": queue_id})).scalars())
    new, old = sorted(set(worker_ids) - linked), sorted(linked - set(worker_ids))
    if new:
        await tx.execute(_LINK, {"job_id": queue_id, "all_id": padded(new)})
    if old:
        await tx.execute(_UNLINK, {"job_id": queue_id, "all_id": padded(old)})
    return [*new, *old]


async def set_fit(tx: Transaction, version_id: UUID, fit: Sequence[UUID], unfit: Sequence[UUID]) -> None:
    """Link these workers to a version, which is locked, and record of others that they lack its labels."""
    for ids, insert, delete in ((fit, _LINK, _UNMARK_UNFIT), (unfit, _MARK_UNFIT, _UNLINK)):
        if ids:
            params = {"job_id": version_id, "all_id": padded(ids)}
            await tx.execute(insert, params)
            await tx.execute(delete, params)


async def jobs_of_worker(tx: Transaction, worker_id: UUID) -> list[JobName]:
    """Return the jobs for which a worker is registered."""
    return [JobName(*row) for row in await tx.execute(_JOBS_OF_WORKER, {"worker_id": worker_id})]


async def lock_all(tx: Transaction, names: Sequence[JobName]) -> None:
    """Lock all versions and queues of these jobs, in the order of their ids."""
    if names:
        await tx.execute(_LOCK_ALL, {"all_full_name": padded(sorted(map(str, names)))})


async def required(tx: Transaction, job_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the requirements of those of these queues that have some, as JSON."""
    rows = await tx.execute(_REQUIRED, {"all_id": padded(sorted(set(job_ids)))})
    return {queue_id: requires for queue_id, requires in rows}


async def by_numbers(
    tx: Transaction, names: Iterable[str], numbers: Iterable[int]
) -> dict[tuple[str, int], str]:
    """Return the requirements of the queues of these jobs with these numbers, as JSON, by name and number."""
    params = {"all_full_name": padded(sorted(set(names))), "all_job_version": padded(sorted(set(numbers)))}
    rows = await tx.execute(_OF_NAMES, params)
    return {(name, number): requires for name, number, requires in rows}


async def linked_to(tx: Transaction, queues: Sequence[str], worker_ids: Sequence[UUID]) -> list[UUID]:
    """Return those of these workers that are linked to one of the queues of these names."""
    params = {
        "all_full_name": padded(sorted({queue.partition("#")[0] for queue in queues})),
        "all_queue": padded(sorted(queues)),
        "all_worker_id": padded(sorted(worker_ids)),
    }
    return list((await tx.execute(_CLAIMABLE_BY, params)).scalars())
